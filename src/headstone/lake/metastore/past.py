"""The log as it was at a moment of the past: the extents of then, whether current or past ones now.

Reads inside a snapshot of the metastore's. Garbage collection decides how far back the past goes. What can't be answered is an
error that says why, and never an empty log.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from headstone.errors import UsageError
from headstone.lake.metastore import schema
from headstone.lake.metastore.clock import Clock, refuse_untold
from headstone.lake.metastore.commits import Partition
from headstone.lake.metastore.rows import extent_of, located
from headstone.log.topic_partition import TopicPartition
from headstone.units import exact_moment


def partition_as_of(connection: Connection, topic_partition: TopicPartition, moment_ms: int, host: Clock) -> Partition:
    """Without clean ranges, which readers don't need."""
    partition_id, row = located(connection, topic_partition, lock=False)
    refuse_untold(connection, moment_ms, row.changed_ms, host)
    if moment_ms < row.known_from_ms:
        raise UsageError(
            f"{topic_partition} as of {exact_moment(moment_ms)}: gc has removed what was replaced before "
            f"{exact_moment(row.known_from_ms)}"
        )
    since_ms = known_since(connection, row.topic_id)
    if moment_ms < since_ms:
        raise UsageError(
            f"{topic_partition} as of {exact_moment(moment_ms)}: the lake has no topic {topic_partition.topic} before "
            f"{exact_moment(since_ms)}"
        )
    now, past = schema.extents, schema.past_extents
    lived = select(past).where(
        past.c.partition_id == partition_id, past.c.added_ms <= moment_ms, past.c.removed_ms > moment_ms
    )
    lives = select(now).where(now.c.partition_id == partition_id, now.c.added_ms <= moment_ms)
    extents = [extent_of(found) for query in (lived, lives) for found in connection.execute(query)]
    extents.sort(key=lambda extent: extent.span.start)
    start = _start_as_of(connection, partition_id, moment_ms)
    start = row.start_offset if start is None else start
    end = extents[-1].span.end if extents else start
    return Partition(
        start_offset=start, next_offset=end, compaction_epoch=row.compaction_epoch, extents=tuple(extents), cleaned=(),
        tombstones=(),
    )  # fmt: skip


def _start_as_of(connection: Connection, partition_id: int, moment_ms: int) -> int | None:
    """Where the log began, if that has moved since."""
    past = schema.past_starts
    later = select(past.c.start_offset).where(past.c.partition_id == partition_id, past.c.removed_ms > moment_ms)
    start = connection.execute(later.order_by(past.c.removed_ms, past.c.past_id).limit(1)).scalar()
    return None if start is None else int(start)


def known_since(connection: Connection, topic_id: int) -> int:
    """When the first records of a topic came into the lake; for one without records, when the lake was created."""
    columns = schema.partitions.c
    came = (columns.topic_id == topic_id) & (columns.first_added_ms >= 0)
    first_ms = connection.execute(select(func.min(columns.first_added_ms)).where(came)).scalar_one()
    return int(connection.execute(select(schema.lakes.c.created_ms)).scalar_one() if first_ms is None else first_ms)
