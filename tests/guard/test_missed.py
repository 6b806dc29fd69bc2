"""What a replica lacks, read once, a little at a time, from where it was last complete: horizons, tombstones, markers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headstone.coordination.guard_values import PartitionSeen, ReplicaSeen
from headstone.guard.missed import Missed, Read, missed_in, newest_deletion
from headstone.log.topic_partition import TopicPartition
from headstone.sim.batches import marker_batch
from tests.oracle.batches import Batch, Record, encode

ORDERS = TopicPartition("orders", 0)


def batch(
    offset: int, horizon_ms: int | None = None, *, value: bytes | None = b"v", codec: str = "none", records: int = 1
) -> bytes:
    """The last record has that value."""
    first_ms = 1 if horizon_ms is None else horizon_ms
    rows = [Record(offset=offset + i, timestamp=first_ms, key=b"k", value=b"plain") for i in range(records)]
    rows[-1] = replace(rows[-1], value=value)
    return encode(Batch(
        base_offset=offset, last_offset_delta=records - 1, records=tuple(rows), count=records, base_timestamp=first_ms,
        horizon_ms=horizon_ms, max_timestamp=first_ms, leader_epoch=0, codec=codec, transactional=False, producer_id=-1,
        producer_epoch=-1, base_sequence=-1,
    ))  # fmt: skip


def seen(*, away_end: int | None, isr: tuple[int, ...] = (1,), committed_end: int = 10) -> PartitionSeen:
    replicas = (ReplicaSeen(broker=1, log_end=committed_end), ReplicaSeen(broker=2, log_end=away_end))
    return PartitionSeen(partition=0, leader=1, replicas=replicas, isr=isr, committed_end=committed_end)


class Leader:
    """Gives one batch at a time; each has its offset's horizon, or none."""

    def __init__(self, horizons: Mapping[int, int]) -> None:
        self.asked: list[tuple[int, int]] = []
        self._horizons = horizons

    def fetch(self, wanted: Mapping[int, Mapping[TopicPartition, int]]) -> dict[TopicPartition, bytes]:
        self.asked += [(broker, offset) for broker, offsets in wanted.items() for offset in offsets.values()]
        return {
            partition: batch(offset, self._horizons.get(offset))
            for offsets in wanted.values()
            for partition, offset in offsets.items()
        }


def reads(missed: Missed, leader: Leader, **state: Any) -> Read | None:
    return missed.learn({ORDERS: seen(**state)}, leader.fetch).get(ORDERS)


def test_the_earliest_horizon_of_whole_batches_counts() -> None:
    data = batch(3, 500) + batch(4) + batch(5, 900) + batch(8, 700)
    assert missed_in(data, Read(start=4, end=4)) == Read(start=4, end=9, horizon_ms=700)
    assert missed_in(data[:-1], Read(start=3, end=3)) == Read(start=3, end=6, horizon_ms=500)
    assert missed_in(b"\0" * 100, Read(start=3, end=3)) == Read(start=3, end=3)


def test_of_a_batch_that_is_larger_than_an_answer_its_header_must_do() -> None:
    data = batch(3, 500, records=9)[:-1]
    assert missed_in(data, Read(start=3, end=3)) == Read(start=3, end=12, horizon_ms=500, deletion=11)


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
def test_the_newest_tombstone_counts(codec: str) -> None:
    plain, deleting = batch(3, codec=codec, records=4), batch(7, value=None, codec=codec, records=3)
    assert missed_in(plain, Read(start=3, end=3)) == Read(start=3, end=7)
    assert missed_in(deleting + batch(10), Read(start=3, end=7)) == Read(start=3, end=11, deletion=9)
    assert missed_in(batch(11), Read(start=3, end=11, deletion=9)) == Read(start=3, end=12, deletion=9)


def test_the_newest_marker_counts() -> None:
    marker = marker_batch(base=8, producer_id=7, producer_epoch=0, commit=True, timestamp=5, leader_epoch=0)
    assert newest_deletion(batch(3) + marker.raw, 9) == 8


def test_what_cannot_be_read_counts_as_a_deletion() -> None:
    data = bytearray(batch(3) + batch(4))
    data[-1] ^= 1
    assert missed_in(bytes(data), Read(start=3, end=3)) == Read(start=3, end=5, deletion=4)


def test_reading_goes_on_where_it_ended_and_is_over_when_everybody_is_back() -> None:
    missed, leader = Missed(), Leader({5: 900, 6: 400, 7: 800})
    assert reads(missed, leader, away_end=5, isr=(1, 2), committed_end=5) is None
    answers = [reads(missed, leader, away_end=None, committed_end=7) for _ in range(3)]
    both = Read(start=5, end=7, horizon_ms=400)
    assert answers == [Read(start=5, end=6, horizon_ms=900), both, both]
    assert leader.asked == [(1, 5), (1, 6)]
    assert reads(missed, leader, away_end=7, isr=(1, 2), committed_end=7) is None
    assert reads(missed, leader, away_end=7, committed_end=8) == Read(start=7, end=8, horizon_ms=800)


def test_a_replica_that_came_back_with_less_is_read_from_there() -> None:
    missed, leader = Missed(), Leader({2: 100, 5: 900})
    assert reads(missed, leader, away_end=5) == Read(start=5, end=6, horizon_ms=900)
    assert reads(missed, leader, away_end=2) == Read(start=2, end=3, horizon_ms=100)


def test_of_one_that_was_never_seen_only_what_the_memory_knows_is_read() -> None:
    missed, leader = Missed(), Leader({})
    assert reads(missed, leader, away_end=None) is None
    assert leader.asked == []
    missed.expect("orders", {(0, 2): 4})
    assert reads(missed, leader, away_end=None) == Read(start=4, end=5)
    missed.expect("orders", {})
    assert reads(missed, leader, away_end=None) is None


def test_what_was_read_of_a_topic_that_was_made_anew_counts_no_more() -> None:
    missed, leader = Missed(), Leader({5: 900})
    read = Read(start=5, end=6, horizon_ms=900)
    missed.recognise({"orders": "first"})
    assert reads(missed, leader, away_end=5, committed_end=6) == read
    missed.expect("orders", {(0, 2): 5})
    missed.recognise({"orders": "first"})
    assert reads(missed, leader, away_end=None, committed_end=6) == read
    missed.recognise({"orders": "second"})
    assert reads(missed, leader, away_end=None, committed_end=6) is None
