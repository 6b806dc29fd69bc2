"""The guard's own readmissions (--allow readmission): begun by its decisions, and taken a step further at each look.

Steps, limits and records are the same as for `guard readmit`, so each can continue what the other began. The guard's decision
removes the replica and holds the topic; the loop reads the new copy. This file does the rest: waits until the old copy is gone,
throttles, adds the replica again, and restores its place in the replica list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headstone.cluster.refusals import NoAnswer
from headstone.coordination import readmission as steps
from headstone.coordination.guard_values import AddAgain, Expel, Verdict
from headstone.coordination.readmission import Readmission, Step
from headstone.errors import Unfinished
from headstone.guard.acting.readmission_port import Stuck
from headstone.guard.ledger.overrides import Void, never
from headstone.guard.ledger.readmissions import Busy, alone, keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import temporary_changes
from headstone.guard.readmission.driver import Course, Ended, ReadmissionMeans, advance, forget_gone, put_back_changes
from headstone.guard.readmission.plan import ReadmissionPlan
from headstone.guard.verification.verdicts import JudgedReplica
from headstone.log.shown import visible
from headstone.log.topic_partition import TopicPartition

WHY = "it may have missed what the others removed"
BY_GUARD = "the guard itself"
"""The actor in the journal; for a person it is `guard readmit`."""
STEPS_MAX = 5
"""At one look: after a note in the journal the next step follows at once, after a request to the cluster at the next look."""
HEARD_MS_MAX = 60_000
"""A broker may take this long to learn of a replica that was added."""

Replica = tuple[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the look decided, and whether that is too old by now."""

    action: Expel | AddAgain
    void: Void


class OwnReadmissions:
    """Readmissions by the guard that leads and acts."""

    def __init__(self, means: ReadmissionMeans) -> None:
        self._means = replace(means, actor=BY_GUARD)
        self._courses: dict[Replica, Course] = {}
        self._wanted: dict[Replica, Wish] = {}
        self._void: Void = never

    def want(self, action: Expel | AddAgain, void: Void) -> None:
        """Valid until the next `go_on`: a request that is not decided again is dropped."""
        self._wanted[TopicPartition(action.topic, action.partition), action.broker] = Wish(action=action, void=void)

    def go_on(self, void: Void) -> list[Stuck]:
        """Takes each readmission as far as it can go now. While a person's `guard readmit` runs, that run continues all of
        them. `void` stops all of them, for example when another guard may lead."""
        wanted, self._wanted = self._wanted, {}
        self._void = void
        journal = self._means.journal
        if (
            not wanted
            and not temporary_changes(journal)
            and not any(each.by_guard for each in open_readmissions(journal))
        ):
            return []
        try:
            with alone(journal):
                forget_gone(self._means)
                stuck = self._go_on(wanted)
                put_back_changes(self._means, None, void)
                return stuck
        except Busy:
            return []
        except Unfinished as error:
            self._means.tell(visible(str(error)))
            return []

    def _go_on(self, wanted: Mapping[Replica, Wish]) -> list[Stuck]:
        stuck = [kept for replica, wish in wanted.items() if (kept := self._begin(replica, wish.action)) is not None]
        for readmission in open_readmissions(self._means.journal):
            if readmission.by_guard:
                replica = (readmission.topic_partition, readmission.broker)
                kept = self._advanced(replica, readmission, wanted.get(replica))
                stuck += [] if kept is None else [kept]
        return stuck

    def _begin(self, replica: Replica, action: Expel | AddAgain) -> Stuck | None:
        """One replica of a partition at a time: a readmission that has begun comes first. A person's is continued only by a
        person."""
        partition, broker = replica
        open_elsewhere = [
            other for other in open_readmissions(self._means.journal) if other.topic_partition == partition
        ]
        if open_elsewhere:
            by_hand = [other for other in open_elsewhere if not other.by_guard]
            return Stuck(readmission=by_hand[0], why=_waits(broker, by_hand[0])) if by_hand else None
        state = self._means.admin.describe([partition.topic])
        described = state.topics.get(partition.topic, {}).get(partition.number)
        if described is None:
            return None
        added_again = isinstance(action, AddAgain)
        begun = Readmission(
            topic=partition.topic, partition=partition.number, broker=broker,
            order=action.order if isinstance(action, AddAgain) else described.replicas, expelled=added_again,
            was_away=broker not in state.brokers, began_ms=self._means.clock_ms(),
            topic_id=state.topic_ids.get(partition.topic), by_guard=True,
        )  # fmt: skip
        keep_readmission(self._means.journal, begun)
        self._courses[replica] = _course(begun, resumed=added_again)
        return None

    def _advanced(self, replica: Replica, readmission: Readmission, wish: Wish | None) -> Stuck | None:
        """None if it makes progress, or waits for something that takes its time."""
        action = None if wish is None else wish.action
        course = self._courses.pop(replica, None) or _course(readmission, resumed=True)
        course.readmission = readmission
        try:
            for _ in range(STEPS_MAX):
                course.verdict = self._verdict(course.readmission)
                step = advance(
                    self._means, course, is_left=lambda step: self._is_left(step, replica, action),
                    void=lambda: self._void() or (wish is not None and wish.void()),
                )  # fmt: skip
                if course.end is not None or not isinstance(step, steps.Note | steps.Throttle):
                    break
        except Unfinished as error:
            return Stuck(readmission=readmission, why=str(error), unanswered=isinstance(error, NoAnswer))
        if course.end is None and action is None and self._is_dropped(course.readmission):
            keep_readmission(self._means.journal, course.readmission, over=True)
            return None
        if course.end is None:
            self._courses[replica] = course
            return None
        if course.end.ended is Ended.READMITTED and course.end.stray is not None:
            partition, broker = replica
            self._means.tell(f"{visible(str(partition))} on broker {broker}: {course.end.remark}")
        stopped = course.end.ended is Ended.STOPPED and course.end.why
        return Stuck(readmission=readmission, why=stopped) if stopped else None

    def _is_dropped(self, readmission: Readmission) -> bool:
        """True if the decision was taken back and the cluster still shows the replica assigned. If the readmission were kept,
        no other replica of the partition would get its turn, and a person who continued it would remove a replica that is
        right."""
        if readmission.expelled or readmission.tries > 0:
            return False
        replica = (readmission.partition, readmission.broker)
        away = self._means.journal.memory(readmission.topic).away
        return not any((each.partition, each.broker) == replica and each.order for each in away)

    def _is_left(self, step: Step, replica: Replica, action: Expel | AddAgain | None) -> bool:
        """Removal is decided again at each look; the hold and the reading are the loop's. All late replicas leave at once,
        which is safe. They are copied in turn, and the throttle is not set before a copy's turn."""
        if isinstance(step, steps.RemoveReplica):
            return not isinstance(action, Expel)
        if isinstance(step, steps.Throttle | steps.Add):
            return self._copying(besides=replica) >= self._means.limits.partitions_at_once
        return isinstance(step, steps.HoldTopic | steps.Read | steps.BrokerAway)

    def _copying(self, *, besides: Replica) -> int:
        """How many copies are being made, whoever began them. Not counted: a replica that is in sync and waits to be read or
        for a person, and one whose broker is down, perhaps for long. Neither uses bandwidth."""
        count = 0
        for readmission in open_readmissions(self._means.journal):
            if readmission.copies and (readmission.topic_partition, readmission.broker) != besides:
                state = self._means.admin.describe([readmission.topic])
                described = state.topics.get(readmission.topic, {}).get(readmission.partition)
                if described is not None and readmission.broker in state.brokers:
                    count += readmission.broker not in described.isr and self._is_added(readmission, described.replicas)
        return count

    def _is_added(self, readmission: Readmission, replicas: Sequence[int]) -> bool:
        return readmission.broker in replicas or self._means.clock_ms() - readmission.added_ms < HEARD_MS_MAX

    def _verdict(self, readmission: Readmission) -> Verdict | None:
        """The verdict on the new copy, as the loop read it."""
        for reading in self._means.journal.readings(readmission.topic):
            same = (reading.partition, reading.broker) == (readmission.partition, readmission.broker)
            if same and readmission.added_ms and reading.read_ms >= readmission.added_ms:
                return reading.verdict
        return None


def _waits(broker: int, by_hand: Readmission) -> str:
    return (
        f"broker {broker} waits to re-replicate {by_hand.topic_partition}: `headstone guard readmit` began with broker "
        f"{by_hand.broker} and has not finished: run it again with --apply"
    )


def _course(readmission: Readmission, *, resumed: bool) -> Course:
    judged = JudgedReplica(verdict=Verdict.UNJUDGED, why=WHY)
    plan = ReadmissionPlan(readmission=readmission, judged=judged, away=readmission.was_away, resumed=resumed)
    return Course(plan=plan, readmission=readmission)
