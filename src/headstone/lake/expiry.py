"""Retention by time and size: how far the log start of a partition may go, and that it goes there.

For topics whose cleanup.policy names both `compact` and `delete`. Whole extents go, oldest first, as Kafka's segments do.
Settings that are not there delete nothing: a broker's defaults are not the lake's. A look costs one statement for the oldest
extent of every partition, and reads on only where that one goes: what stays is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, select

from headstone.lake import schema
from headstone.lake.commits import EMPTY, CommitRefused, Extent, Partition
from headstone.lake.lake import Lake
from headstone.lake.rows import chunks, extent_of, located_all, lowest_hold
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT
from headstone.retention.settings import retention_limits

EXTENTS_FIRST = 64
"""Of a partition of which something goes: read before it is known how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What lies below a new log start. `reason` is the setting that asks for it, or both."""

    partition: TopicPartition
    start_before: int
    start_after: int
    extents: int
    records: int
    bytes: int
    reason: str


def expired(
    topic_partition: TopicPartition, partition: Partition, settings: Mapping[str, object], *, now_ms: int,
    held_from: int = NO_LIMIT, size: int | None = None,
) -> Expired | None:  # fmt: skip
    """None if nothing is. Records that a reader holds stay until it has passed them, as its tombstones do.

    `size`: of all extents in bytes, where `partition` has only the first of them; None: it has all."""
    by_age, by_size = _counts(partition, settings, now_ms=now_ms, size=size)
    gone = partition.extents[: max(by_age, by_size)]
    while gone and gone[-1].span.end > held_from:
        gone = gone[:-1]
    if not any(extent.records + extent.dead for extent in gone):
        return None
    reasons = [name for name, count in (("retention.ms", by_age), ("retention.bytes", by_size)) if count]
    return Expired(
        partition=topic_partition, start_before=partition.start_offset, start_after=gone[-1].span.end, extents=len(gone),
        records=sum(extent.records for extent in gone), bytes=sum(extent.length for extent in gone),
        reason=" and ".join(reasons),
    )  # fmt: skip


def _counts(partition: Partition, settings: Mapping[str, object], *, now_ms: int, size: int | None) -> tuple[int, int]:
    """How many extents at the beginning go by their age, and by what is left without them."""
    limit_ms, limit_bytes = retention_limits(settings)
    total_bytes = sum(extent.length for extent in partition.extents) if size is None else size
    return (
        0 if limit_ms is None else _old(partition, now_ms - limit_ms),
        0 if limit_bytes is None else _too_many(partition, total_bytes - limit_bytes),
    )


def _old(partition: Partition, before_ms: int) -> int:
    """How many extents at the beginning have no record that is young enough; one without timestamps is never too old."""
    count = 0
    for i, extent in enumerate(partition.extents, start=1):
        if extent.length and not 0 <= extent.max_timestamp_ms < before_ms:
            break
        count = i if extent.length else count
    return count


def _too_many(partition: Partition, excess: int) -> int:
    """How many may go at the beginning so that what is left is not smaller than the limit, which is exceeded by so much."""
    count = 0
    for i, extent in enumerate(partition.extents, start=1):
        excess -= extent.length
        if excess < 0:
            break
        count = i if extent.length else count
    return count


def find_expired(lake: Lake, *, now_ms: int, topics: Collection[str] | None = None) -> list[Expired]:
    """Of all topics, or of these. Only topics with such a policy and a limit are looked at."""
    settings = lake.metastore.topics()
    limited = {topic for topic in settings if retention_limits(settings[topic]) != (None, None)}
    chosen = limited if topics is None else limited & set(topics)
    wanted = [partition for partition in lake.metastore.partitions() if partition.topic in chosen] if chosen else []
    with lake.metastore.transaction(snapshot=True) as connection:
        rows = located_all(connection, wanted) if wanted else {}
        now_ms = lake.metastore.moment(connection, now_ms)
        oldest = _oldest_extents(connection, [row.partition_id for row in rows.values()])
        all_expired = []
        for topic_partition, row in sorted(rows.items()):
            first = oldest.get(row.partition_id)
            topic_settings = settings[topic_partition.topic]
            if first is not None and any(
                _counts(_log_of(row, (first,)), topic_settings, now_ms=now_ms, size=row.bytes)
            ):
                all_expired.append(_expired_in(connection, topic_partition, row, topic_settings, now_ms))
    return [gone for gone in all_expired if gone is not None]


def _log_of(row: Any, extents: tuple[Extent, ...]) -> Partition:
    return replace(EMPTY, start_offset=row.start_offset, next_offset=row.next_offset, extents=extents)


def _oldest_extents(connection: Connection, ids: Collection[int]) -> dict[int, Extent]:
    """By partition the first extent that has bytes: one step into the index of its extents, whatever lies behind."""
    extents, partitions, each = schema.extents, schema.partitions, schema.extents.alias()
    first = (
        select(each.c.span_start).where(each.c.partition_id == partitions.c.partition_id, each.c.length > 0)
        .order_by(each.c.span_start).limit(1).correlate(partitions).scalar_subquery()
    )  # fmt: skip
    own = (extents.c.partition_id == partitions.c.partition_id) & (extents.c.span_start == first)
    query = select(extents).join_from(partitions, extents, own)
    return {
        row.partition_id: extent_of(row)
        for some in chunks(sorted(ids))
        for row in connection.execute(query.where(partitions.c.partition_id.in_(some)))
    }


def _expired_in(
    connection: Connection, topic_partition: TopicPartition, row: Any, settings: Mapping[str, object], now_ms: int
) -> Expired | None:
    """Reads from the beginning, four times as far each time, until something stays."""
    hold, count = lowest_hold(connection, row.partition_id, now_ms), EXTENTS_FIRST
    while True:
        query = select(schema.extents).where(schema.extents.c.partition_id == row.partition_id)
        rows = connection.execute(query.order_by(schema.extents.c.span_start).limit(count))
        partition = _log_of(row, tuple(map(extent_of, rows)))
        behind = partition.extents[max(_counts(partition, settings, now_ms=now_ms, size=row.bytes)) :]
        if len(partition.extents) < count or any(extent.length for extent in behind):
            held_from = NO_LIMIT if hold is None else hold.held_from
            return expired(topic_partition, partition, settings, now_ms=now_ms, held_from=held_from, size=row.bytes)
        count *= 4


def expire(
    lake: Lake, *, clock: Callable[[], int], topics: Collection[str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Expired]:  # fmt: skip
    """Moves log starts; what lies below is garbage after the grace, or when its object is purged. What was done."""
    done = []
    for gone in find_expired(lake, now_ms=clock(), topics=topics):
        try:
            lake.metastore.start_at(gone.partition, gone.start_after, now_ms=clock, unless_held=True)
        except CommitRefused as error:
            tell(f"{gone.partition}: looking again later: {error}")
            continue
        tell(f"{gone.partition}: begins at {gone.start_after} now, by {gone.reason}")
        done.append(gone)
    return done
