"""Who is compacted next, and why: lag as a deadline, tombstones that are due, dirt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span
from headstone.lake.metastore.commits import EMPTY, Claim, Partition, TombstoneRange, appended, replaced
from headstone.lake.metastore.scheduling import compactable, due_tombstones, queue
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT
from tests.lake.oracle import eligibility_of


def log(*ends: int, length: int = 100) -> Partition:
    partition = EMPTY
    for end in ends:
        start = partition.next_offset
        extent = Extent(
            span=Span(start, end), object_id=f"o{start}", position=0, length=length, records=end - start,
            max_timestamp_ms=1000 * end, oldest_timestamp_ms=1000 * end, checksum=0,
        )  # fmt: skip
        partition = appended(partition, start, [extent])
    return partition


def cleaned(partition: Partition, end: int, *, tombstones_at: int | None = None) -> Partition:
    span = Span(0, end)
    holding = (span,) if tombstones_at is not None else ()
    claim = Claim(processed=span, cleaned=(span,), tombstones=holding)
    return replaced(partition, partition.compaction_epoch, [], claim, now_ms=tombstones_at or 0)


@pytest.mark.parametrize(
    ("partition", "settings", "eligible", "reason"),
    [
        (EMPTY, {}, False, "nothing is dirty"),
        (log(10), {}, True, "dirty ratio 1.000 is above 0.5"),
        (cleaned(log(10, 20), 10), {}, False, "dirty ratio 0.500 is not above 0.5"),
        (cleaned(log(10, 20), 10), {"min.cleanable.dirty.ratio": 0.49}, True, "dirty ratio 0.500 is above 0.49"),
        (cleaned(log(10, 20, 30), 20), {}, False, "dirty ratio 0.333 is not above 0.5"),
        (cleaned(log(10, 20, 30), 20), {"min.cleanable.dirty.ratio": "0.3"}, True, "dirty ratio 0.333 is above 0.3"),
        (cleaned(log(10), 10), {"min.cleanable.dirty.ratio": "0"}, False, "nothing is dirty"),
        (
            cleaned(log(10, 20, 30), 20),
            {"max.compaction.lag.ms": 20_000},
            True,
            "max.compaction.lag.ms expired 50 s ago",
        ),
        (cleaned(log(10, 20, 30), 20), {"max.compaction.lag.ms": 70_000}, False, "dirty ratio 0.333 is not above 0.5"),
        (
            cleaned(log(10, 20, 30), 20),
            {"max.compaction.lag.ms": 69_999},
            True,
            "max.compaction.lag.ms expired 1 ms ago",
        ),
        (cleaned(log(10), 10, tombstones_at=40), {"delete.retention.ms": 99_960}, True, "tombstones of 1 range"),
        (cleaned(log(10), 10, tombstones_at=40), {"delete.retention.ms": 99_961}, False, "nothing is dirty"),
    ],
)
def test_a_partition_is_due_for_a_reason(
    partition: Partition, settings: dict[str, object], eligible: bool, reason: str
) -> None:
    found = eligibility_of(partition, settings, now_ms=100_000)
    assert (found.eligible, found.reason[: len(reason)]) == (eligible, reason)


def test_what_is_overdue_comes_first_then_tombstones_then_the_dirtiest() -> None:
    """Redpanda's queue was ordered by dirty ratio alone, and for a while the least dirty came first."""
    lag = {"max.compaction.lag.ms": 10_000}
    found = {
        TopicPartition("t", 0): eligibility_of(
            cleaned(log(10, 20), 10), {"min.cleanable.dirty.ratio": 0.4}, now_ms=100_000
        ),
        TopicPartition("t", 1): eligibility_of(log(10), {}, now_ms=100_000),
        TopicPartition("t", 2): eligibility_of(
            cleaned(log(10), 10, tombstones_at=0), {"delete.retention.ms": 5}, now_ms=100_000
        ),
        TopicPartition("t", 3): eligibility_of(cleaned(log(10, 50, 60), 50), lag, now_ms=100_000),
        TopicPartition("t", 4): eligibility_of(cleaned(log(10, 20, 30), 20), lag, now_ms=100_000),
        TopicPartition("t", 5): eligibility_of(cleaned(log(10, 20, 30), 20), {}, now_ms=100_000),
    }
    assert [at.number for at, _ in queue(found.items(), now_ms=100_000)] == [4, 3, 2, 1, 0]


def test_timestamps_of_the_future_block_nothing() -> None:
    """Redpanda 31442."""
    found = eligibility_of(log(10), {"max.compaction.lag.ms": 1}, now_ms=5)
    assert (found.eligible, found.deadline_ms) == (True, 10_001)


def test_the_first_that_is_too_young_ends_what_is_compacted() -> None:
    lag = {"min.compaction.lag.ms": 5_000}
    assert compactable(log(10, 20, 30), lag, now_ms=24_000) == (Span(0, 10),)
    assert compactable(log(10, 20, 30), lag, now_ms=36_000) == (Span(0, 30),)


def test_dirty_data_keeps_the_tombstones_above_it() -> None:
    """One of its records may be what such a tombstone deletes."""
    tracked = (TombstoneRange(span=Span(10, 20), cleaned_at_ms=0),)
    for start, due in ((10, ()), (0, (Span(10, 20),))):
        partition = replace(log(10, 20), cleaned=(Span(start, 20),), tombstones=tracked)
        assert due_tombstones(partition, {"delete.retention.ms": 1}, now_ms=100, held_from=NO_LIMIT) == due
