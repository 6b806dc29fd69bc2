"""What a replica lacks, read of leaders a little at a time, in turn, from where it was last complete: horizons, deletions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headstone.coordination.absences import is_held
from headstone.coordination.guard_values import PartitionSeen, ReplicaSeen, State, TopicSeen
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import Journal
from headstone.guard.looks import leader_reading
from headstone.guard.looks.leader_reading import LeaderReading, in_turn
from headstone.guard.looks.look import Look
from headstone.guard.looks.missed import (
    HORIZONS_MAX,
    Fetch,
    Missed,
    ReadRange,
    missed_in,
    newest_deletion,
    with_horizon,
)
from headstone.guard.loop.rounds import GuardSettings
from headstone.guard.loop.watcher import Watcher
from headstone.log.topic_partition import TopicPartition
from headstone.sim.batches import marker_batch
from tests.guard.world import MARGINS, ClusterTwin
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
        horizon_ms=horizon_ms, max_timestamp=first_ms, codec=codec,
    ))  # fmt: skip


def seen(*, away_end: int | None, isr: tuple[int, ...] = (1,), committed_end: int = 10) -> PartitionSeen:
    replicas = (ReplicaSeen(broker=1, log_end=committed_end), ReplicaSeen(broker=2, log_end=away_end))
    return PartitionSeen(partition=0, leader=1, replicas=replicas, isr=isr, committed_end=committed_end)


class Leader:
    """Gives one batch at a time, of one record or of `step`; each has its offset's horizon, or none."""

    def __init__(self, horizons: Mapping[int, int], *, step: int = 1, deletes: bool = False) -> None:
        self.asked: list[tuple[int, int]] = []
        self._horizons, self._step, self._value = horizons, step, None if deletes else b"v"

    def fetch(self, wanted: Mapping[int, Mapping[TopicPartition, int]]) -> list[tuple[TopicPartition, bytes]]:
        self.asked += [(broker, offset) for broker, offsets in wanted.items() for offset in offsets.values()]
        return [
            (partition, batch(offset, self._horizons.get(offset), value=self._value, records=self._step))
            for offsets in wanted.values()
            for partition, offset in offsets.items()
        ]


def reads(missed: Missed, leader: Leader, **state: Any) -> ReadRange | None:
    return missed.learn({ORDERS: seen(**state)}, leader.fetch).get(ORDERS)


def test_the_earliest_horizon_of_whole_batches_counts() -> None:
    data = batch(3, 500) + batch(4) + batch(5, 900) + batch(8, 700)
    assert missed_in(data, ReadRange(start=4, end=4)) == ReadRange(start=4, end=9, horizons=((8, 700),))
    assert missed_in(data[:-1], ReadRange(start=3, end=3)) == ReadRange(start=3, end=6, horizons=((3, 500), (5, 900)))
    across = batch(3, 500, records=3)
    assert missed_in(across, ReadRange(start=5, end=5)) == ReadRange(start=5, end=6, horizons=((5, 500),))
    assert missed_in(b"\0" * 100, ReadRange(start=3, end=3)) == ReadRange(start=3, end=3)


def test_of_a_batch_that_is_larger_than_an_answer_its_header_must_do() -> None:
    data = batch(3, 500, records=9)[:-1]
    assert missed_in(data, ReadRange(start=3, end=3)) == ReadRange(start=3, end=12, horizons=((11, 500),), deletion=11)


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
def test_the_newest_tombstone_counts(codec: str) -> None:
    plain, deleting = batch(3, codec=codec, records=4), batch(7, value=None, codec=codec, records=3)
    assert missed_in(plain, ReadRange(start=3, end=3)) == ReadRange(start=3, end=7)
    assert missed_in(deleting + batch(10), ReadRange(start=3, end=7)) == ReadRange(start=3, end=11, deletion=9)
    assert missed_in(batch(11), ReadRange(start=3, end=11, deletion=9)) == ReadRange(start=3, end=12, deletion=9)


def test_the_newest_marker_counts() -> None:
    marker = marker_batch(base=8, producer_id=7, producer_epoch=0, commit=True, timestamp=5, leader_epoch=0)
    assert newest_deletion(batch(3) + marker.raw, 9) == 8


def test_what_cannot_be_read_counts_as_a_deletion() -> None:
    data = bytearray(batch(3) + batch(4))
    data[-1] ^= 1
    assert missed_in(bytes(data), ReadRange(start=3, end=3)) == ReadRange(start=3, end=5, deletion=4)


def test_reading_goes_on_where_it_ended_and_is_over_when_everybody_is_back() -> None:
    missed, leader = Missed(), Leader({5: 900, 6: 400, 7: 800})
    assert reads(missed, leader, away_end=5, isr=(1, 2), committed_end=5) is None
    answers = [reads(missed, leader, away_end=None, committed_end=7) for _ in range(3)]
    both = ReadRange(start=5, end=7, horizons=((6, 400),))
    assert answers == [ReadRange(start=5, end=6, horizons=((5, 900),)), both, both]
    assert leader.asked == [(1, 5), (1, 6)]
    assert reads(missed, leader, away_end=7, isr=(1, 2), committed_end=7) is None
    assert reads(missed, leader, away_end=7, committed_end=8) == ReadRange(start=7, end=8, horizons=((7, 800),))


def test_a_replica_that_came_back_with_less_is_read_from_there() -> None:
    """As soon as the memory says so; what was read before is not forgotten."""
    missed, leader = Missed(), Leader({2: 1_000, 5: 900})
    reads(missed, leader, away_end=5, isr=(1, 2), committed_end=5)
    assert reads(missed, leader, away_end=2) == ReadRange(start=5, end=6, horizons=((5, 900),))
    missed.expect("orders", {(0, 2): 2})
    assert reads(missed, leader, away_end=2) == ReadRange(start=2, end=3, horizons=((5, 900),))


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_nothing_is_read_for_a_new_copy(isr: tuple[int, ...]) -> None:
    """It lacks everything, down to what was stamped months ago, and is read when it is there."""
    missed, leader = Missed(), Leader({})
    copy = replace(seen(away_end=0, isr=isr), moving=(2,))
    assert missed.learn({ORDERS: copy}, leader.fetch) == {}
    assert leader.asked == []


def test_reading_begins_anew_beyond_what_was_read_when_those_who_lacked_more_are_back() -> None:
    missed, leader = Missed(), Leader({})
    missed.expect("orders", {(0, 2): 2})
    assert reads(missed, leader, away_end=None) == ReadRange(start=2, end=3)
    missed.expect("orders", {(0, 2): 8})
    assert reads(missed, leader, away_end=None) == ReadRange(start=8, end=9)


def test_of_very_many_horizons_the_earliest_are_told_too_early_and_none_too_late() -> None:
    horizons: tuple[tuple[int, int], ...] = ()
    for offset in range(3 * HORIZONS_MAX):
        horizons = with_horizon(horizons, offset, 1_000 + offset)
    assert len(horizons) == HORIZONS_MAX
    for below in range(3 * HORIZONS_MAX):
        assert next(stamp_ms for offset, stamp_ms in horizons if offset >= below) <= 1_000 + below
    assert horizons[-1] == (3 * HORIZONS_MAX - 1, 1_000 + 3 * HORIZONS_MAX - 1)


def test_of_one_that_was_never_seen_only_what_the_memory_knows_is_read() -> None:
    missed, leader = Missed(), Leader({})
    assert reads(missed, leader, away_end=None) is None
    assert leader.asked == []
    missed.expect("orders", {(0, 2): 4})
    assert reads(missed, leader, away_end=None) == ReadRange(start=4, end=5)
    missed.expect("orders", {})
    assert reads(missed, leader, away_end=None) is None


def test_what_was_read_of_a_topic_that_was_made_anew_counts_no_more() -> None:
    missed, leader = Missed(), Leader({5: 900})
    read = ReadRange(start=5, end=6, horizons=((5, 900),))
    missed.recognise({"orders": "first"})
    reads(missed, leader, away_end=5, isr=(1, 2), committed_end=5)
    assert reads(missed, leader, away_end=5, committed_end=6) == read
    missed.expect("orders", {(0, 2): 5})
    missed.recognise({"orders": "first"})
    assert reads(missed, leader, away_end=None, committed_end=6) == read
    missed.recognise({"orders": "second"})
    assert reads(missed, leader, away_end=None, committed_end=6) is None


class Cron:
    """A guard of one look at a time: nothing but the journal is left of the one before. An hour and two records apart."""

    def __init__(self, journal: Journal, *, deletes: bool = False) -> None:
        self.journal, self.twin, self.leader = journal, ClusterTwin(), Leader({}, step=10, deletes=deletes)
        self.committed_end = 100

    def round(self) -> list[State]:
        missed = Missed()

        def looked(topics: Sequence[str] | None) -> Look:
            look = self.twin.look(topics)
            (topic,) = look.topics
            state = replace(topic.partitions[0], committed_end=self.committed_end)
            missed.recognise({"orders": topic.topic_id})
            read = missed.learn({ORDERS: state}, self.leader.fetch, whole=True).get(ORDERS)
            state = state if read is None else replace(state, deletions=read.deletions, horizons=read.horizons)
            held_on = topic.alive if is_held(topic.overrides) else ()
            return replace(look, topics=(replace(topic, partitions=(state,), held_on=held_on),))

        guard = Watcher(
            GuardSettings(name="cron", margins=MARGINS, applies=True), admin=self.twin, look=looked, journal=self.journal,
            clock=self.twin.clock, steady=self.twin.clock, readings=None, missed=missed,
        )  # type: ignore[arg-type]  # fmt: skip
        result = guard.round()
        self.twin.now_ms += 3_600_000
        self.committed_end += 2
        return [status.state for status in result.statuses["orders"]]


def test_a_guard_of_one_look_reads_what_is_missed_by_what_the_journal_knows(journal: Journal) -> None:
    cron = Cron(journal)
    for _ in range(3):
        assert cron.round() == [State.FINE]
    cron.twin.stop(3)
    assert {state for _ in range(48) for state in cron.round()} == {State.WATCHED}
    assert (cron.twin.changes, cron.leader.asked[:2]) == ([], [(1, 100), (1, 104)])


def test_a_guard_of_one_look_that_reads_a_deletion_holds(journal: Journal) -> None:
    cron = Cron(journal, deletes=True)
    for _ in range(3):
        cron.round()
    cron.twin.stop(3)
    assert State.HELD in {state for _ in range(20) for state in cron.round()}


def test_what_the_journal_knows_of_a_topic_that_was_made_anew_is_not_where_reading_begins(journal: Journal) -> None:
    cron = Cron(journal)
    for _ in range(3):
        cron.round()
    cron.twin.stop(3)
    cron.round()
    assert cron.leader.asked == []
    cron.twin.topics["orders"].topic_id = "second"
    cron.round()
    assert cron.leader.asked == []


BATCH = len(batch(0))
END = 100
"""Each partition lacks so many offsets, of which each is a batch."""


def name(topic: str, number: int) -> TopicPartition:
    return TopicPartition(topic, number)


class Leaders:
    """As Kafka answers: in the order of the question, until the answer is full; the first batch comes whole, what is behind it
    may be cut off. Each question takes a second."""

    def __init__(self, *, silent: int | None = None, large: TopicPartition | None = None) -> None:
        self.asked: list[int] = []
        self.sizes: list[int] = []
        self.served: list[TopicPartition] = []
        self.now_s = 0.0
        self._silent, self._large = silent, large

    def records(
        self, broker: int, offsets: Mapping[TopicPartition, int], *, bytes_max: int, partition_bytes_max: int
    ) -> dict[TopicPartition, bytes | Unfinished]:
        self.asked.append(broker)
        self.now_s += 1
        if broker == self._silent:
            raise Unfinished("it said nothing")
        answer: dict[TopicPartition, bytes | Unfinished] = {}
        left = bytes_max
        for partition, offset in offsets.items():
            records = 100 if partition == self._large else 1
            data = b"".join(batch(base, records=records) for base in range(offset, END, records))
            whole = len(batch(offset, records=records)) if left == bytes_max else 0
            answer[partition] = data = data[: max(min(left, partition_bytes_max), whole)]
            left = max(0, left - len(data))
        self.sizes.append(sum(len(data) for data in answer.values() if isinstance(data, bytes)))
        return answer

    def seconds(self) -> float:
        return self.now_s


def topics_led(**leaders: tuple[int, ...]) -> tuple[TopicSeen, ...]:
    """By topic, the leader of each partition. Broker 9 is away and lacks everything."""
    return tuple(
        TopicSeen(
            topic=topic, asked_ms=0, compacted=True, delete_retention_ms=0, overrides=(), alive=(1, 2, 3),
            partitions=tuple(
                PartitionSeen(
                    partition=number, leader=leader, isr=(leader,), committed_end=END,
                    replicas=(ReplicaSeen(broker=leader, log_end=END), ReplicaSeen(broker=9, log_end=0)),
                )
                for number, leader in enumerate(led)
            ),
        )
        for topic, led in leaders.items()
    )  # fmt: skip


def ends(leaders: Leaders, reading: LeaderReading, topics: tuple[TopicSeen, ...]) -> dict[TopicPartition, int]:
    """After one more look: up to where each partition is read."""
    seen = reading.learn(leaders, topics, [], [], whole=True)  # type: ignore[arg-type]
    states = {name(topic.topic, state.partition): state for topic in seen for state in topic.partitions}
    return {partition: state.deletions.end for partition, state in states.items() if state.deletions is not None}


class Lacking(Missed):
    """Its memory says of every partition that broker 9 never had anything."""

    def __init__(self) -> None:
        super().__init__()
        for topic in ("orders", "users", "zones"):
            self.expect(topic, {(number, 9): 0 for number in range(12)})


def reader(leaders: Leaders, **how: Any) -> LeaderReading:
    return LeaderReading(Lacking(), seconds=leaders.seconds, **how)


def budgets(monkeypatch: pytest.MonkeyPatch, *, look: int, partition: int) -> None:
    monkeypatch.setattr(leader_reading, "LOOK_BYTES_MAX", look)
    monkeypatch.setattr(leader_reading, "PARTITION_BYTES_MAX", partition)


def test_all_leaders_together_send_no_more_than_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets(monkeypatch, look=12 * BATCH, partition=2 * BATCH)
    leaders = Leaders()
    reading, topics = reader(leaders), topics_led(orders=(1, 2, 3) * 4)
    ends(leaders, reading, topics)
    assert (leaders.asked, sum(leaders.sizes)) == ([1, 2, 3], 12 * BATCH)


def test_one_answer_is_never_larger_than_what_may_be_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_reading, "ANSWER_BYTES_MAX", 3 * BATCH)
    leaders = Leaders()
    ends(leaders, reader(leaders), topics_led(orders=(1, 2) * 4))
    assert leaders.sizes == [3 * BATCH, 3 * BATCH]


def test_every_leader_and_every_partition_gets_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads two batches of one leader; there are nine partitions."""
    budgets(monkeypatch, look=2 * BATCH, partition=2 * BATCH)
    leaders = Leaders()
    reading, topics = reader(leaders), topics_led(orders=(1, 1, 1, 2), users=(1, 2, 3), zones=(1, 3))
    for _ in range(15):
        read = ends(leaders, reading, topics)
    assert set(leaders.asked[:3]) == {1, 2, 3}
    assert {partition: end > 0 for partition, end in read.items()} == dict.fromkeys(read, True)


def test_what_the_end_of_an_answer_cut_off_is_read_whole_at_its_own_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header alone would count as a deletion."""
    budgets(monkeypatch, look=4 * BATCH, partition=2 * BATCH)
    leaders = Leaders(large=name("users", 0))
    reading, topics = reader(leaders), topics_led(orders=(1,), users=(1,), zones=(1,))
    assert ends(leaders, reading, topics) == {name("orders", 0): 2, name("users", 0): 0, name("zones", 0): 0}
    seen = reading.learn(leaders, topics, [], [], whole=True)  # type: ignore[arg-type]
    (state,) = seen[1].partitions
    assert state.deletions is not None
    assert (state.deletions.end, state.deletions.newest) == (END, None)


class SlowMissed(Lacking):
    """A second for each answer that is worked off."""

    def __init__(self, leaders: Leaders) -> None:
        super().__init__()
        self._leaders = leaders

    def learn(
        self, seen: Mapping[TopicPartition, PartitionSeen], fetch: Fetch, *, whole: bool = False
    ) -> dict[TopicPartition, ReadRange]:
        def slowly(wanted: Mapping[int, Mapping[TopicPartition, int]]) -> Iterator[tuple[TopicPartition, bytes]]:
            for partition, data in fetch(wanted):
                self._leaders.now_s += 1
                yield partition, data

        return super().learn(seen, slowly, whole=whole)


def test_when_the_time_is_over_the_rest_waits_for_the_next_look() -> None:
    leaders = Leaders()
    topics = topics_led(orders=(1, 1, 1, 1), users=(2,))
    reading = LeaderReading(SlowMissed(leaders), seconds_max=2.5, seconds=leaders.seconds)
    read = [sorted(partition for partition, end in ends(leaders, reading, topics).items() if end) for _ in range(3)]
    orders, users = [name("orders", number) for number in range(4)], name("users", 0)
    assert read == [orders[:2], [*orders[:3], users], [*orders, users]]
    assert leaders.asked == [1, 2, 1, 1]


def test_a_silent_leader_is_told_and_costs_its_own_turn_only() -> None:
    leaders = Leaders(silent=1)
    reading, topics = reader(leaders, seconds_max=0.5), topics_led(orders=(1, 2))
    problems: list[str] = []
    reading.learn(leaders, topics, problems, [], whole=True)  # type: ignore[arg-type]
    assert problems == ["broker 1: it said nothing; stamps of clients in what is missing elsewhere are not seen"]
    assert ends(leaders, reading, topics) == {name("orders", 0): 0, name("orders", 1): END}


def test_the_order_begins_behind_the_last_one_and_names_each_topic_once() -> None:
    partitions = [name("a", 0), name("b", 0), name("b", 1), name("b", 2), name("c", 0)]
    assert in_turn(partitions, None) == partitions
    assert in_turn(partitions, name("b", 0)) == [name("b", 1), name("b", 2), name("c", 0), name("a", 0)]
    assert in_turn(partitions, name("b", 2)) == [name("c", 0), name("a", 0), *partitions[1:4]]
    assert in_turn(partitions, name("c", 0)) == partitions
