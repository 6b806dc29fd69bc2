"""What a lake goes by unless somebody says otherwise: how large, how long, how many.

Numbers and names only, each stated here and nowhere else, so that a command line can tell them without the lake behind them.
"""

from __future__ import annotations

from headstone.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS

RECORDS, TABLE = "records", "table"
VIEWS = (RECORDS, TABLE)
"""Of a topic: every record, or the newest of every key that is not deleted."""
PARTITIONS = 1
"""Of a topic that somebody makes without saying how many."""
COPIES = 1
"""On how many brokers what is written back is."""

OBJECT_BYTES = 64 << 20
"""Of an object that an ingest makes."""
EXTENT_BYTES = 16 << 20
BATCH_OBJECTS = 64
"""In one batch from a cluster: so much is committed at once, and so much is in hand when somebody says stop."""
CODEC = "zstd"
"""Of what is ingested from a cluster."""
FLUSH_AGE_MS = MINUTE_MS
"""A continuous ingest writes what is waiting once it is this old."""
POLL_EVERY_MS = SECOND_MS
"""Between two looks of a continuous ingest."""

DEAD_SHARE_MAX = 0.3
"""An extent that loses more of its records is rewritten, others get a list of their dead records. Iceberg takes the same."""
LEASE_MS = MINUTE_MS
"""Lease duration: if a worker does not renew its leases for this long, others may take its partitions."""
PARTITIONS_AT_ONCE = 16
"""In one job of a worker: others find work too, and what a killed job has not committed is little."""

GRACE_MS = HOUR_MS
"""For readers of what was replaced."""
UPLOAD_MS = DAY_MS
"""How long an upload may take. A compaction that takes longer is refused when it commits, and starts over."""
GC_EVERY_MS = 10 * MINUTE_MS
GC_OBJECTS_AT_ONCE = 1000
UPKEEP_BYTES_AT_ONCE = 1 << 30
"""Of extents that are rewritten at one look: half a minute, or a few."""

ERASURE_DEADLINE_MS = 30 * DAY_MS
"""From the wish to erase keys, or to drop a topic, until nothing of them is left."""
HOLD_MS = DAY_MS
"""A reader's hold on tombstones, unless it is renewed."""
HELD_FROM = 0
"""By a reader that does not say what it has passed."""
