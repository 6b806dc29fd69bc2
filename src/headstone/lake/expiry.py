"""Retention by time and size: how far the log start of a partition may go, and that it goes there.

For topics whose cleanup.policy names both `compact` and `delete`. Whole extents go, oldest first, as Kafka's segments do.
Settings that are not there delete nothing: a broker's defaults are not the lake's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from headstone.lake.commits import Partition
from headstone.lake.holds import Holds
from headstone.lake.lake import Lake
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT
from headstone.retention.settings import retention_limits


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
    held_from: int = NO_LIMIT,
) -> Expired | None:  # fmt: skip
    """None if nothing is. Records that a reader holds stay until it has passed them, as its tombstones do."""
    limit_ms, limit_bytes = retention_limits(settings)
    by_age = 0 if limit_ms is None else _old(partition, now_ms - limit_ms)
    by_size = 0 if limit_bytes is None else _too_many(partition, limit_bytes)
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


def _old(partition: Partition, before_ms: int) -> int:
    """How many extents at the beginning have no record that is young enough; one without timestamps is never too old."""
    count = 0
    for i, extent in enumerate(partition.extents, start=1):
        if extent.length and not 0 <= extent.max_timestamp_ms < before_ms:
            break
        count = i if extent.length else count
    return count


def _too_many(partition: Partition, limit_bytes: int) -> int:
    """How many may go at the beginning so that what is left is not smaller than the limit."""
    excess, count = sum(extent.length for extent in partition.extents) - limit_bytes, 0
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
    holds, all_expired = Holds(lake.metastore), []
    for topic_partition in lake.metastore.partitions() if chosen else ():
        if topic_partition.topic in chosen:
            gone = expired(
                topic_partition, lake.metastore.partition(topic_partition), settings[topic_partition.topic], now_ms=now_ms,
                held_from=holds.held_from(topic_partition, now_ms=now_ms),
            )  # fmt: skip
            all_expired += [gone] if gone else []
    return all_expired


def expire(
    lake: Lake, *, clock: Callable[[], int], topics: Collection[str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Expired]:  # fmt: skip
    """Moves log starts; what lies below is garbage after the grace, or when its object is purged. What was done."""
    all_expired = find_expired(lake, now_ms=clock(), topics=topics)
    for gone in all_expired:
        lake.metastore.start_at(gone.partition, gone.start_after, now_ms=clock)
        tell(f"{gone.partition}: begins at {gone.start_after} now, by {gone.reason}")
    return all_expired
