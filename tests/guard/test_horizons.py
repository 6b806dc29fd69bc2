"""Delete horizons in what a replica lacks: read once, a little at a time, from where it was last seen."""

from __future__ import annotations

from collections.abc import Mapping

from headstone.coordination.guard_values import PartitionSeen, ReplicaSeen
from headstone.guard.horizons import Horizons, Read, horizons_in
from headstone.log.topic_partition import TopicPartition
from tests.oracle.batches import Batch, Record, encode

ORDERS = TopicPartition("orders", 0)


def batch(offset: int, horizon_ms: int | None = None) -> bytes:
    first_ms = 1 if horizon_ms is None else horizon_ms
    record = Record(offset=offset, timestamp=first_ms, key=b"k", value=None)
    return encode(Batch(
        base_offset=offset, last_offset_delta=0, records=(record,), count=1, base_timestamp=first_ms, horizon_ms=horizon_ms,
        max_timestamp=first_ms, leader_epoch=0, codec="none", transactional=False, producer_id=-1, producer_epoch=-1,
        base_sequence=-1,
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


def test_the_earliest_horizon_of_whole_batches_counts() -> None:
    data = batch(3, 500) + batch(4) + batch(5, 900) + batch(8, 700)
    assert horizons_in(data, Read(start=4, end=4)) == Read(start=4, end=9, horizon_ms=700)
    assert horizons_in(data[:-1], Read(start=3, end=3)) == Read(start=3, end=9, horizon_ms=500)
    assert horizons_in(data[:-40], Read(start=3, end=3)) == Read(start=3, end=6, horizon_ms=500)
    assert horizons_in(b"\0" * 100, Read(start=3, end=3)) == Read(start=3, end=3)


def test_reading_goes_on_where_it_ended_and_is_over_when_everybody_is_back() -> None:
    horizons, leader = Horizons(), Leader({5: 900, 6: 400, 7: 800})
    assert horizons.learn({ORDERS: seen(away_end=5, isr=(1, 2), committed_end=5)}, leader.fetch) == {}
    told = [horizons.learn({ORDERS: seen(away_end=None, committed_end=7)}, leader.fetch) for _ in range(3)]
    assert told == [{ORDERS: 900}, {ORDERS: 400}, {ORDERS: 400}]
    assert leader.asked == [(1, 5), (1, 6)]
    assert horizons.learn({ORDERS: seen(away_end=7, isr=(1, 2), committed_end=7)}, leader.fetch) == {}
    assert horizons.learn({ORDERS: seen(away_end=7, committed_end=8)}, leader.fetch) == {ORDERS: 800}


def test_a_replica_that_came_back_with_less_is_read_from_there() -> None:
    horizons, leader = Horizons(), Leader({2: 100, 5: 900})
    assert horizons.learn({ORDERS: seen(away_end=5)}, leader.fetch) == {ORDERS: 900}
    assert horizons.learn({ORDERS: seen(away_end=2)}, leader.fetch) == {ORDERS: 100}


def test_of_one_that_was_never_seen_nothing_is_read() -> None:
    leader = Leader({})
    assert Horizons().learn({ORDERS: seen(away_end=None)}, leader.fetch) == {}
    assert leader.asked == []
