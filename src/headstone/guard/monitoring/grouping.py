"""An outage of many partitions or topics in few lines: similar items share a line with their count, progress comes in steps.

Decides which changes of a round are news now and which wait for more of their kind. A change for the worse, and one that ends
the outage, never waits. `log_lines.py` has the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from headstone.coordination.guard_values import State, Status
from headstone.guard.ledger.journal_values import KeptAlarm
from headstone.guard.loop.rounds import Round
from headstone.guard.monitoring.status import Waiting

ALIKE_MAX = 4
"""Up to this many partitions of a topic, and up to this many topics, get lines of their own."""
STEP_SHARE, STEP_MS = 0.1, 60_000
"""Progress is news when this share of the topic's partitions has moved, or after this time."""
RANGES_MAX = 6
What = TypeVar("What")
CALMER = (State.FINE, State.HELD, State.UNREAD)


def together(statuses: Iterable[Status]) -> Iterator[tuple[Status, Sequence[int]]]:
    """Statuses of one topic, each with the partitions that it stands for. A shared one has the earliest times of all."""
    alike: dict[tuple[State, tuple[int, ...]], list[Status]] = {}
    for status in statuses:
        alike.setdefault((status.state, status.blockers), []).append(status)
    for group in alike.values():
        if len(group) <= ALIKE_MAX:
            yield from ((status, (status.partition,)) for status in group)
            continue
        yield _earliest(group), [status.partition for status in group]


def _earliest(group: Sequence[Status]) -> Status:
    return replace(
        group[0], since_ms=_least(status.since_ms for status in group),
        unsafe_ms=_least(status.unsafe_ms for status in group),
        countdown_ms=_least(status.countdown_ms for status in group),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossTopics(Generic[What]):
    """`alike`: items that many topics share, each by topic. `rest`: all other items, with their topics."""

    alike: Sequence[Mapping[str, Sequence[What]]]
    rest: Sequence[tuple[str, What]]


def across_topics(items: Iterable[tuple[str, What]], key: Callable[[What], object | None]) -> AcrossTopics[What]:
    """`items`: pairs of topic and item. Items with the same key in more than ALIKE_MAX topics are alike; those whose key is
    None never are."""
    listed = list(items)
    groups: dict[object, dict[str, list[What]]] = {}
    for topic, item in listed:
        if (kind := key(item)) is not None:
            groups.setdefault(kind, {}).setdefault(topic, []).append(item)
    many = {kind: by_topic for kind, by_topic in groups.items() if len(by_topic) > ALIKE_MAX}
    return AcrossTopics(
        alike=list(many.values()), rest=[(topic, item) for topic, item in listed if key(item) not in many]
    )


def statuses_across(
    changed: Mapping[str, Sequence[Status]],
) -> tuple[list[tuple[Status, Mapping[str, int]]], dict[str, list[Status]]]:
    """Statuses that stand for many topics, with the number of partitions in each; and the other statuses by topic."""
    items = [(topic, status) for topic, statuses in changed.items() for status in statuses]
    grouped = across_topics(items, lambda status: (status.state, status.blockers))
    left: dict[str, list[Status]] = {}
    for topic, status in grouped.rest:
        left.setdefault(topic, []).append(status)
    alike: list[tuple[Status, Mapping[str, int]]] = [
        (
            _earliest([one for some in group.values() for one in some]),
            {topic: len(some) for topic, some in group.items()},
        )
        for group in grouped.alike
    ]
    return alike, left


def alarms_together(alarms: Iterable[KeptAlarm]) -> Iterator[tuple[KeptAlarm, Sequence[int]]]:
    """Alarms, each with the partitions that it stands for; empty if it stands only for itself. The words are those of the
    first."""
    alike: dict[tuple[str, str, int | None], list[KeptAlarm]] = {}
    for alarm in alarms:
        alike.setdefault((alarm.topic, alarm.kind, alarm.broker), []).append(alarm)
    for group in alike.values():
        partitions = [alarm.partition for alarm in group if alarm.partition is not None]
        if len(partitions) > ALIKE_MAX:
            yield group[0], partitions
        else:
            yield from ((alarm, ()) for alarm in group)


def waiting_together(waiting: Iterable[Waiting]) -> Iterator[tuple[Waiting, Sequence[int]]]:
    """Replicas that wait for readmission, each with the partitions that it stands for."""
    alike: dict[tuple[int, bool], list[Waiting]] = {}
    for replica in waiting:
        alike.setdefault((replica.broker, replica.expelled_ms is None), []).append(replica)
    for group in alike.values():
        if len(group) > ALIKE_MAX:
            yield group[0], [replica.partition for replica in group]
        else:
            yield from ((replica, (replica.partition,)) for replica in group)


def ranges(numbers: Iterable[int]) -> str:
    """For example 0-7, 9, 12-40."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:RANGES_MAX]]
    return ", ".join([*words, *(["..."] if len(runs) > RANGES_MAX else [])])


class Steps:
    """Chooses what to show of each round: everything, except that small steps of large outages wait."""

    def __init__(self) -> None:
        self._shown: Round | None = None
        self._told_ms: dict[str, int] = {}

    def shown(self, now: Round) -> tuple[Round | None, Round]:
        """Returns the round that was shown before, and this one as it is to be shown."""
        before = self._shown
        waiting = set() if before is None else {
            topic for topic in now.statuses if self._waits(topic, before.statuses.get(topic, ()), now)
        }  # fmt: skip
        if before is not None and waiting:
            present = {_key(alarm) for alarm in now.alarms}
            over = [alarm for alarm in before.alarms if alarm.topic in waiting and _key(alarm) not in present]
            statuses = {topic: before.statuses[topic] if topic in waiting else s for topic, s in now.statuses.items()}
            now = replace(now, statuses=statuses, alarms=(*now.alarms, *over))
        self._shown = now
        return before, now

    def _waits(self, topic: str, before: Sequence[Status], now: Round) -> bool:
        statuses_before = {status.partition: status for status in before}
        worrying = sum(status.state is not State.FINE for status in before)
        changed = [
            status
            for status in now.statuses[topic]
            if (old := statuses_before.get(status.partition)) is None
            or (old.state, old.blockers) != (status.state, status.blockers)
        ]
        left = any(status.state is not State.FINE for status in now.statuses[topic])
        small = len(changed) < STEP_SHARE * len(now.statuses[topic])
        recent = now.ended_ms < self._told_ms.get(topic, 0) + STEP_MS
        waits = worrying > ALIKE_MAX and left and small and recent and all(status.state in CALMER for status in changed)
        if changed and not waits:
            self._told_ms[topic] = now.ended_ms
        return bool(changed) and waits


def _key(alarm: KeptAlarm) -> tuple[object, ...]:
    return alarm.kind, alarm.topic, alarm.partition, alarm.broker


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)
