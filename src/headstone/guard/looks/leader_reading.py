"""How much a look reads from leaders on behalf of absent replicas: bounded in bytes and time, with leaders and partitions in
turn.

Owns the budget of one look and whose turn is next. Asks one leader after the other, and processes each answer before fetching
the next, so only one answer is in memory. What is left when bytes or time run out comes first at the next look. `missed.py`
interprets the batches and says from which offset they are needed.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from headstone.cluster.admin import Admin
from headstone.cluster.questions import READ_TOPIC
from headstone.cluster.refusals import NotPermitted
from headstone.coordination.guard_values import PartitionSeen, TopicSeen
from headstone.errors import Unfinished
from headstone.guard.looks.missed import Missed, ReadRange
from headstone.log.layout import LENGTH_AT, LOG_OVERHEAD
from headstone.log.shown import visible
from headstone.log.topic_partition import TopicPartition

LOOK_BYTES_MAX = 64 << 20
"""Of all leaders together: 2 MiB a second at the usual poll interval, which neither the network nor this process notices."""
ANSWER_BYTES_MAX = 16 << 20
"""Of one leader: what is in memory at a time."""
PARTITION_BYTES_MAX = 1 << 20
"""About Kafka's default maximum for a batch."""
POLL_SHARE = 0.2
"""Of the time between two looks. The decision waits for the reading, and a hold for the decision."""
SECONDS_MAX = 6.0
"""POLL_SHARE of the usual poll interval."""
NAMED_MAX = 5
UNSEEN = "stamps of clients in what is missing elsewhere are not seen"
COUNTS = "what those that are away have missed counts as deletions"

Seconds = Callable[[], float]


@dataclass(slots=True, kw_only=True)
class _Budget:
    """What is left for one look."""

    bytes_left: int
    ends_s: float
    denied: set[str]
    problems: list[str]


class LeaderReading:
    """Kept from look to look by a caller that needs to know what absent replicas missed."""

    def __init__(self, missed: Missed, *, seconds_max: float = SECONDS_MAX, seconds: Seconds = time.monotonic) -> None:
        self._missed, self._seconds_max, self._seconds = missed, seconds_max, seconds
        self._leader = -1
        """The leader whose turn was last."""
        self._partition: dict[int, TopicPartition] = {}
        """By leader: the last partition that had its turn."""

    def learn(
        self, admin: Admin, topics: tuple[TopicSeen, ...], problems: list[str], unread: list[str], *, whole: bool
    ) -> tuple[TopicSeen, ...]:
        """Returns the topics with what was read of them. `whole`: anything not in `topics` no longer exists. `unread`: gets
        what this user may not read; that is not a problem, such topics are only held earlier."""
        budget = _Budget(
            bytes_left=LOOK_BYTES_MAX, ends_s=self._seconds() + self._seconds_max, denied=set(), problems=problems
        )
        seen = {TopicPartition(topic.topic, state.partition): state for topic in topics for state in topic.partitions}
        self._missed.recognise({topic.topic: topic.topic_id for topic in topics})
        reads = self._missed.learn(seen, lambda wanted: self._fetch(admin, wanted, budget), whole=whole)
        if budget.denied:
            unread.append(_lacking(sorted(budget.denied)))
        return tuple(
            replace(topic, partitions=tuple(
                _with_read(state, reads.get(TopicPartition(topic.topic, state.partition))) for state in topic.partitions
            ))
            for topic in topics
        )  # fmt: skip

    def _fetch(
        self, admin: Admin, wanted: Mapping[int, Mapping[TopicPartition, int]], budget: _Budget
    ) -> Iterator[tuple[TopicPartition, bytes]]:
        """One leader after the other. The time that the caller takes to process each answer counts too."""
        leaders = sorted(wanted)
        first = bisect_right(leaders, self._leader)
        leaders = [*leaders[first:], *leaders[:first]]
        for number, leader in enumerate(leaders):
            if budget.bytes_left <= 0 or self._seconds() >= budget.ends_s:
                return
            self._leader = leader
            share = max(budget.bytes_left // (len(leaders) - number), PARTITION_BYTES_MAX)
            yield from self._ask(admin, leader, wanted[leader], min(share, ANSWER_BYTES_MAX), budget)
        self._partition = {leader: last for leader, last in self._partition.items() if leader in wanted}

    def _ask(
        self, admin: Admin, leader: int, offsets: Mapping[TopicPartition, int], share: int, budget: _Budget
    ) -> Iterator[tuple[TopicPartition, bytes]]:
        asked = in_turn(offsets, self._partition.get(leader))
        try:
            answer = admin.records(
                leader, {partition: offsets[partition] for partition in asked}, bytes_max=share,
                partition_bytes_max=PARTITION_BYTES_MAX,
            )  # fmt: skip
        except Unfinished as error:
            budget.problems.append(f"broker {leader}: {error}; {UNSEEN}")
            return
        budget.denied |= {partition.topic for partition, data in answer.items() if isinstance(data, NotPermitted)}
        given = [(name, data) for name in asked if isinstance(data := answer.get(name), bytes) and data]
        budget.bytes_left -= sum(len(data) for _, data in given)
        self._partition[leader] = asked[-1]
        all_whole = True
        for number, (partition, data) in enumerate(given):
            # The first batch comes whole, however large. A partition whose data the end of the answer cut off comes first next
            # time.
            if number and is_cut_off(data):
                all_whole = False
                continue
            if number and self._seconds() >= budget.ends_s:
                return
            if all_whole:
                self._partition[leader] = partition
            yield partition, data


def in_turn(partitions: Iterable[TopicPartition], last: TopicPartition | None) -> list[TopicPartition]:
    """In order, from after `last` and around. Partitions of the first topic that come before that point wait for the next look:
    a request names each topic once."""
    ordered = sorted(partitions)
    first = 0 if last is None else bisect_right(ordered, last)
    behind, before = ordered[first:], ordered[:first]
    return [*behind, *(partition for partition in before if not behind or partition.topic != behind[0].topic)]


def is_cut_off(data: bytes) -> bool:
    """Not even the first batch is complete."""
    if len(data) < LOG_OVERHEAD:
        return True
    (length,) = struct.unpack_from(">i", data, LENGTH_AT)
    return LOG_OVERHEAD + int(length) > len(data)


def _lacking(topics: list[str]) -> str:
    more = f" and {len(topics) - NAMED_MAX} more" if len(topics) > NAMED_MAX else ""
    return f"topics {visible(', '.join(topics[:NAMED_MAX]))}{more}: this user lacks {READ_TOPIC}: {COUNTS}"


def _with_read(state: PartitionSeen, read: ReadRange | None) -> PartitionSeen:
    return state if read is None else replace(state, horizons=read.horizons, deletions=read.deletions)
