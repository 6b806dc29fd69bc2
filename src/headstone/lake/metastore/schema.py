"""The metastore's tables, one column per line.

Plain SQL types, so that SQLite and PostgreSQL hold the same rows. Times are milliseconds since 1970.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TextClause,
    UniqueConstraint,
    false,
    inspect,
    select,
    text,
)

from headstone.lake.metastore.commits import OtherVersion

VERSION = 7
"""Version of the tables. Any other is refused."""

NEVER = str(2**63 - 1)
"""A time that never comes."""

metadata = MetaData()

lakes = Table(
    "lakes",
    metadata,
    Column("lake_id", String(36), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("location", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("hash_key", String(32), nullable=False, server_default=""),
    Column("clock", String(16), nullable=False, server_default="database"),
    Column("clock_ms", BigInteger, nullable=False, server_default="0"),
    Column("journal_number", BigInteger, nullable=False, server_default="0"),
    Column("journal_digest", String(64), nullable=False, server_default=""),
    Column("listed_ms", BigInteger, nullable=False, server_default="0"),
    Column("place", Text, nullable=False, server_default=""),
    Column("token", String(36), nullable=False, server_default=""),
    Column("token_before", String(36), nullable=False, server_default=""),
)
"""`location`: a URL, or a path relative to the metastore's file, which moves along with it. `place`, `token`, `token_before`
tell the metastore from its copies (`identity`).

`hash_key`: 128 bits in hexadecimal, the secret of the digests in lists of keys. `clock`: whose time decides, the database's or
a given one. `clock_ms`: the newest time the lake has seen, where the database has no clock of its own. `journal_number`,
`journal_digest`: the last object of the journal that is known to be written. `listed_ms`: when a worker last looked for objects
that are not known here; 0 if never."""

journal = Table(
    "journal",
    metadata,
    Column("entry_id", Integer, primary_key=True, autoincrement=True),
    Column("token", String(16), nullable=False, unique=True),
    Column("change", Text, nullable=False),
)
"""Changes of commits that have not been written to the store yet (`journal`)."""

topics = Table(
    "topics",
    metadata,
    Column("topic_id", Integer, primary_key=True, autoincrement=True),
    Column("name", String(249), nullable=False, unique=True),
    Column("settings", Text, nullable=False),
    Column("kafka_id", String(36), nullable=True),
)
"""`settings` is JSON by the names of Kafka's topic configs; only what differs from the defaults. `kafka_id` is the id that
Kafka gave the topic of these records: a topic that is deleted and created again has another."""

partitions = Table(
    "partitions",
    metadata,
    Column("partition_id", Integer, primary_key=True, autoincrement=True),
    Column("topic_id", Integer, ForeignKey("topics.topic_id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("compaction_epoch", BigInteger, nullable=False),
    Column("changed_ms", BigInteger, nullable=False, server_default="0"),
    Column("known_from_ms", BigInteger, nullable=False, server_default="0"),
    Column("first_added_ms", BigInteger, nullable=False, server_default="-1"),
    Column("extents", BigInteger, nullable=False, server_default="0"),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Column("dirty_bytes", BigInteger, nullable=False, server_default="0"),
    Column("records", BigInteger, nullable=False, server_default="0"),
    Column("dead_records", BigInteger, nullable=False, server_default="0"),
    Column("dead_bytes", BigInteger, nullable=False, server_default="0"),
    Column("oldest_dirty_ms", BigInteger, nullable=False, server_default="-1"),
    Column("newest_dirty_ms", BigInteger, nullable=False, server_default="-1"),
    Column("dead_since_ms", BigInteger, nullable=False, server_default="-1"),
    Column("overdue_from_ms", BigInteger, nullable=False, server_default=NEVER),
    Column("tombstones_due_ms", BigInteger, nullable=False, server_default=NEVER),
    Column("dirty_ratio", Double, nullable=False, server_default="0"),
    Column("ripe_ms", BigInteger, nullable=False, server_default="0"),
    Column("unleveled_bytes", BigInteger, nullable=False, server_default="0"),
    UniqueConstraint("topic_id", "number"),
    Index("partitions_by_overdue", "overdue_from_ms"),
    Index("partitions_by_tombstones_due", "tombstones_due_ms"),
    Index("partitions_by_dirty_ratio", "dirty_ratio"),
    Index("partitions_by_unleveled_bytes", "unleveled_bytes"),
)
"""`changed_ms` never goes back, whatever the clocks of workers say. The past before `known_from_ms` was collected.
`first_added_ms`: when its first records came; -1 if none did. From `extents` to `dead_since_ms`: what the extents come to
(`totals`). From `overdue_from_ms` on: what the queue looks for (`scheduling.QueueKeys`). `unleveled_bytes`: what has come since
the last look for small extents."""

leader_epochs = Table(
    "leader_epochs",
    metadata,
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("start_offset", BigInteger, nullable=False),
)
"""The offset at which each leader of the partition in Kafka began to write, as far as its logs have told."""

objects = Table(
    "objects",
    metadata,
    Column("object_id", String(36), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
    Column("registered_ms", BigInteger, nullable=False, server_default="0"),
)
"""`state`: registered (may be uploading), committed (extents point at it), unreferenced (none do any more), condemned (about to
be deleted; must not be used again). `size`: 0 before it is committed. `registered_ms`: when it was registered, even if a long
job that keeps it registered renews `changed_ms`; 0 if it never was."""


def _batches_of_extent() -> list[Column[Any]]:
    """Its end, and where its batches lie. Made anew for each table: a column belongs to one."""
    return [
        Column("span_end", BigInteger, nullable=False),
        Column("object_id", String(36), ForeignKey("objects.object_id"), nullable=False),
        Column("position", BigInteger, nullable=False),
        Column("length", BigInteger, nullable=False),
        Column("records", BigInteger, nullable=False),
        Column("max_timestamp_ms", BigInteger, nullable=False),
        Column("checksum", BigInteger, nullable=False),
    ]


def _keys_of_extent() -> list[Column[Any]]:
    """The CRC-32C of each part of the list of its keys."""
    return [
        Column("halves_checksum", BigInteger, nullable=False, server_default="0"),
        Column("rest_checksum", BigInteger, nullable=False, server_default="0"),
    ]


def _dead_of_extent() -> list[Column[Any]]:
    """How many of its records are dead, and where their list lies."""
    return [
        Column("dead", BigInteger, nullable=False, server_default="0"),
        Column("dead_object", String(36), nullable=True),
        Column("dead_position", BigInteger, nullable=False, server_default="0"),
        Column("dead_checksum", BigInteger, nullable=False, server_default="0"),
        Column("oldest_timestamp_ms", BigInteger, nullable=False, server_default="-1"),
        Column("dead_since_ms", BigInteger, nullable=False, server_default="-1"),
    ]


extents = Table(
    "extents",
    metadata,
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("span_start", BigInteger, primary_key=True),
    *_batches_of_extent(),
    Column("listed", BigInteger, nullable=False, server_default="-1"),
    Column("added_ms", BigInteger, nullable=False, server_default="0"),
    *_keys_of_extent(),
    *_dead_of_extent(),
    Column("dirty", Integer, nullable=False, server_default="1"),
    Index("extents_by_object", "object_id"),
    Index("extents_by_dead_object", "dead_object"),
)
DIRTY = text("extents.dirty = 1")
MARKED = text("extents.dead_since_ms >= 0")
"""Written out, not as parameters: only then does a database see that an index of just these rows is enough."""
_DIRTY_ONLY: dict[str, Any] = {"postgresql_where": text("dirty = 1"), "sqlite_where": text("dirty = 1")}
_MARKED_ONLY: dict[str, Any] = {
    "postgresql_where": text("dead_since_ms >= 0"),
    "sqlite_where": text("dead_since_ms >= 0"),
}
Index("extents_by_oldest_dirty", extents.c.partition_id, extents.c.oldest_timestamp_ms, **_DIRTY_ONLY)
Index("extents_by_newest_dirty", extents.c.partition_id, extents.c.max_timestamp_ms, **_DIRTY_ONLY)
Index("extents_by_dead_since", extents.c.partition_id, extents.c.dead_since_ms, **_MARKED_ONLY)
"""`dirty`: 1 if any of its offsets is. With these indexes a commit finds the extremes of what is left without reading it."""
SMALL_BYTES = 8 << 20
"""Size of an extent: leveling looks only at smaller ones."""
UNLEVELED_BYTES_MIN = SMALL_BYTES
"""Bytes that must come before the next look for small extents: half of what an extent should have."""
_SMALL_ONLY: dict[str, Any] = {
    "postgresql_where": text(f"length < {SMALL_BYTES}"),
    "sqlite_where": text(f"length < {SMALL_BYTES}"),
}
Index("extents_by_smallness", extents.c.partition_id, extents.c.span_start, **_SMALL_ONLY)


def is_smaller(extent_bytes: int) -> TextClause:
    """Condition for extents. Written out, as above."""
    return text(f"extents.length < {extent_bytes:d}")


past_extents = Table(
    "past_extents",
    metadata,
    Column("past_id", Integer, primary_key=True, autoincrement=True),
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), nullable=False),
    Column("span_start", BigInteger, nullable=False),
    *_batches_of_extent(),
    Column("listed", BigInteger, nullable=False),
    Column("added_ms", BigInteger, nullable=False),
    Column("removed_ms", BigInteger, nullable=False),
    *_keys_of_extent(),
    *_dead_of_extent(),
    Index("past_extents_by_object", "object_id"),
    Index("past_extents_by_dead_object", "dead_object"),
    Index("past_extents_by_partition", "partition_id", "removed_ms"),
)
"""What the log consisted of from `added_ms` until before `removed_ms`. Kept while its object exists."""

past_starts = Table(
    "past_starts",
    metadata,
    Column("past_id", Integer, primary_key=True, autoincrement=True),
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), nullable=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("removed_ms", BigInteger, nullable=False),
    Index("past_starts_by_partition", "partition_id", "removed_ms"),
)
"""Where the log began until before `removed_ms`; as far back as the past is known."""

cleaned = Table(
    "cleaned",
    metadata,
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("span_start", BigInteger, primary_key=True),
    Column("span_end", BigInteger, nullable=False),
)

tombstones = Table(
    "tombstones",
    metadata,
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("span_start", BigInteger, primary_key=True),
    Column("span_end", BigInteger, nullable=False),
    Column("cleaned_at_ms", BigInteger, nullable=False),
)

losses = Table(
    "losses",
    metadata,
    Column("loss_id", Integer, primary_key=True, autoincrement=True),
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), nullable=False),
    Column("span_start", BigInteger, nullable=False),
    Column("span_end", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("lost_keys", BigInteger, nullable=False),
    Column("older_values", Integer, nullable=False),
    Column("moment_ms", BigInteger, nullable=False),
    Index("losses_by_partition", "partition_id"),
)
"""What was given up with damaged objects. `lost_keys`: number of keys whose newest records it was; -1 if unknown.
`older_values`: 1 if older values of these may be served."""

leases = Table(
    "leases",
    metadata,
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("worker", String(200), nullable=False, server_default=""),
    Column("expires_ms", BigInteger, nullable=False, server_default="0"),
    Index("leases_by_worker", "worker"),
)
"""Which worker has a partition, until when. Saves others the work; the epoch keeps the data right. Each partition has a row
from its beginning, free or not. Whoever takes several locks these rows, which is in no committer's way."""

requests = Table(
    "requests",
    metadata,
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("requested_ms", BigInteger, nullable=False),
)
"""\"Compact this now\"."""

setbacks = Table(
    "setbacks",
    metadata,
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("not_before_ms", BigInteger, nullable=False),
)
"""Partitions whose last jobs failed, how often in a row, and when a worker may try again."""

holds = Table(
    "holds",
    metadata,
    Column("reader", String(200), primary_key=True),
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), primary_key=True),
    Column("held_from", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)
"""Readers that have not passed `held_from` yet: tombstones from there on stay until they have, or until the hold expires."""

erasures = Table(
    "erasures",
    metadata,
    Column("topic", String(249), primary_key=True),
    Column("key_digest", String(32), primary_key=True),
    Column("requested_ms", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger, nullable=False),
    Column("step", String(32), nullable=False),
    Column("step_ms", BigInteger, nullable=False),
    Column("not_before_ms", BigInteger, nullable=False),
    Column("waits_for", Text, nullable=False),
    Column("seen", Boolean, nullable=False, server_default=false()),
)
"""Keys of which nothing may be left after `deadline_ms`, by their digest under the lake's secret. The topic is a name: a
dropped topic is erased as a whole (digest `*`). `step` is the last one done; look again at `not_before_ms`."""

pins = Table(
    "pins",
    metadata,
    Column("pin_id", String(36), primary_key=True),
    Column("reader", String(200), nullable=False),
    Column("as_of_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)
"""Readers of what the log consisted of at `as_of_ms` or since: objects left since then stay until the pin expires."""

workers = Table(
    "workers",
    metadata,
    Column("worker", String(200), primary_key=True),
    Column("seen_ms", BigInteger, nullable=False),
    Column("paused", Integer, nullable=False),
    Column("doing", Text, nullable=False),
)

history = Table(
    "history",
    metadata,
    Column("job_id", String(36), primary_key=True),
    Column("partition_id", Integer, ForeignKey("partitions.partition_id"), nullable=False),
    Column("worker", String(200), nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("finished_ms", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("details", Text, nullable=False),
    Index("history_by_partition", "partition_id", "finished_ms"),
    Index("history_by_time", "finished_ms"),
)
"""`outcome`: committed, idle, refused, failed, stopped, leveled. `details` is JSON."""


def exists(connection: Connection) -> bool:
    return inspect(connection).has_table("lakes")


def expect_version(connection: Connection) -> None:
    """Checked at the beginning of every transaction: a newer program may have changed the tables since the lake was opened."""
    version = connection.execute(select(lakes.c.version)).scalar_one()
    if version != VERSION:
        raise OtherVersion(
            f"the metastore has version {version}, this program supports version {VERSION} only: use the headstone that "
            "created the lake, or create a new lake (`headstone lake init`) and ingest again"
        )
