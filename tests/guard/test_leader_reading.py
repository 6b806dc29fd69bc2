"""What a look reads of leaders: bounded in bytes and in time, with a turn for everybody, whatever is denied or silent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headstone.coordination.guard_values import PartitionSeen, ReplicaSeen, TopicSeen
from headstone.errors import Unfinished
from headstone.guard.looks import leader_reading
from headstone.guard.looks.leader_reading import LeaderReading, in_turn
from headstone.guard.looks.missed import Fetch, Missed, Read
from headstone.log.topic_partition import TopicPartition
from tests.guard.test_missed import batch

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
    ) -> dict[TopicPartition, Read]:
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
