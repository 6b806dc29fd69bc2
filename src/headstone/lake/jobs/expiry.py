"""Retention by time and size: how far the log start of a partition may move, and moving it.

For topics whose cleanup.policy names both `compact` and `delete`. Whole extents go, oldest first, like Kafka's segments. A
setting that is absent deletes nothing: a broker's defaults do not apply to the lake. A look costs one statement for the oldest
extent of every partition, and reads further only where that one goes; it never looks at what stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused, Partition
from headstone.lake.metastore.surveys import first_extents, oldest_extents
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT
from headstone.retention.settings import retention_limits

EXTENTS_FIRST = 64
"""Extents of a partition to read first once something of it has to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What lies below a new log start. `reason` names the setting or settings that ask for it."""

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
    """None if nothing has expired. Records that a reader holds stay until it has passed them, as its tombstones do.

    `size`: total bytes of all extents, if `partition` has only the first ones; None if it has all."""
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
    """How many extents at the beginning go by retention.ms, and how many by retention.bytes."""
    limit_ms, limit_bytes = retention_limits(settings)
    total_bytes = sum(extent.length for extent in partition.extents) if size is None else size
    return (
        0 if limit_ms is None else _old(partition, now_ms - limit_ms),
        0 if limit_bytes is None else _too_many(partition, total_bytes - limit_bytes),
    )


def _old(partition: Partition, before_ms: int) -> int:
    """How many extents at the beginning have only records that are too old; one without timestamps never counts as too old."""
    count = 0
    for i, extent in enumerate(partition.extents, start=1):
        if extent.length and not 0 <= extent.max_timestamp_ms < before_ms:
            break
        count = i if extent.length else count
    return count


def _too_many(partition: Partition, excess: int) -> int:
    """How many extents at the beginning may go without getting below the limit, which is now exceeded by `excess` bytes."""
    count = 0
    for i, extent in enumerate(partition.extents, start=1):
        excess -= extent.length
        if excess < 0:
            break
        count = i if extent.length else count
    return count


def find_expired(lake: Lake, *, now_ms: int, topics: Collection[str] | None = None) -> list[Expired]:
    """Of all topics, or of these. Looks only at topics with such a policy and a limit."""
    settings = lake.metastore.topics()
    limited = {topic for topic in settings if retention_limits(settings[topic]) != (None, None)}
    chosen = limited if topics is None else limited & set(topics)
    wanted = [partition for partition in lake.metastore.partitions() if partition.topic in chosen] if chosen else []
    all_expired = []
    for topic_partition, log in (oldest_extents(lake.metastore, wanted, now_ms=now_ms) if wanted else {}).items():
        if any(_counts(log.partition, settings[topic_partition.topic], now_ms=log.moment_ms, size=log.bytes)):
            all_expired.append(_expired_in(lake, topic_partition, settings[topic_partition.topic], now_ms))
    return [gone for gone in all_expired if gone is not None]


def _expired_in(
    lake: Lake, topic_partition: TopicPartition, settings: Mapping[str, object], now_ms: int
) -> Expired | None:
    """Reads from the beginning, four times as far each time, until something stays."""
    count = EXTENTS_FIRST
    while True:
        log = first_extents(lake.metastore, topic_partition, count, now_ms=now_ms)
        behind = log.partition.extents[max(_counts(log.partition, settings, now_ms=log.moment_ms, size=log.bytes)) :]
        if len(log.partition.extents) < count or any(extent.length for extent in behind):
            return expired(
                topic_partition, log.partition, settings, now_ms=log.moment_ms, held_from=log.held_from, size=log.bytes
            )
        count *= 4


def expire(
    lake: Lake, *, clock: Callable[[], int], topics: Collection[str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Expired]:  # fmt: skip
    """Moves log starts and returns what was done. What lies below is garbage after the grace, or when its object is purged."""
    done = []
    for gone in find_expired(lake, now_ms=clock(), topics=topics):
        try:
            lake.metastore.start_at(gone.partition, gone.start_after, now_ms=clock, unless_held=True)
        except CommitRefused as error:
            tell(f"{gone.partition}: retrying later: {error}")
            continue
        tell(f"{gone.partition}: now starts at {gone.start_after}, by {gone.reason}")
        done.append(gone)
    return done
