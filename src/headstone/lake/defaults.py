"""The lake's defaults: sizes, times and numbers that apply unless the caller gives others.

Numbers and names only, each stated here and nowhere else, so that a command line can show them without loading the lake.
"""

from __future__ import annotations

from headstone.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

RECORDS, TABLE = "records", "table"
VIEWS = (RECORDS, TABLE)
"""Views of a topic: every record, or the newest record of each key that is not deleted."""
PARTITIONS = 1
"""Of a topic that is created without a number."""
COPIES = 1
"""Replication factor of what is written back to a cluster."""

OBJECT_BYTES = 64 << 20
"""Size of an object that an ingest writes."""
EXTENT_BYTES = 16 << 20
BATCH_OBJECTS = 64
"""Objects in one batch from a cluster. A batch is committed at once, and is what a stop has to wait for."""
CODEC = "zstd"
"""For records ingested from a cluster."""
FLUSH_AGE_MS = MINUTE_MS
"""A continuous ingest writes what is waiting once it is this old."""
POLL_EVERY_MS = SECOND_MS
"""Time between two looks of a continuous ingest."""

DEAD_SHARE_MAX = 0.3
"""An extent that loses a larger share of its records is rewritten; others get a list of dead records. As in Iceberg."""
LEASE_MS = MINUTE_MS
"""Lease duration: if a worker does not renew its leases for this long, others may take its partitions."""
PARTITIONS_AT_ONCE = 16
"""Partitions in one job of a worker. Small enough to leave work for others, and to lose little when a job is killed."""

GRACE_MS = HOUR_MS
"""How long replaced objects stay, for their readers."""
UPLOAD_MS = DAY_MS
"""How long an upload may take. A compaction that takes longer is refused when it commits, and starts over."""
GC_EVERY_MS = 10 * MINUTE_MS
GC_OBJECTS_AT_ONCE = 1000
UPKEEP_BYTES_AT_ONCE = 1 << 30
"""Bytes of extents rewritten at one look: half a minute of work, or a few."""

ERASURE_DEADLINE_MS = 30 * DAY_MS
"""From the request to erase keys or drop a topic until nothing of them is left."""
HOLD_MS = DAY_MS
"""How long a reader's hold on tombstones lasts unless renewed."""
HELD_FROM = 0
"""Offset of a hold if the reader does not say what it has passed."""
