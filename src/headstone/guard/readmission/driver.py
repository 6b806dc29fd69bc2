"""Carries out readmissions step by step, each step in the journal before it is done, until they are finished.

`coordination/readmission.py` decides what comes next, `plan.py` plans. If this process is killed anywhere, the next run
continues from the journal and the cluster's state; what stays set until then is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import assert_never

from headstone import units
from headstone.cluster.admin import Admin, MayHaveArrived
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import Verdict
from headstone.coordination.readmission import (
    Add,
    AskPerson,
    BrokerAway,
    Elect,
    HoldTopic,
    Note,
    PartitionNow,
    Read,
    Readmission,
    ReadmissionDone,
    RemoveReplica,
    Reorder,
    Step,
    Throttle,
    Wait,
    next_step,
)
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change, ReplicaReading
from headstone.guard.ledger.overrides import TooLate, Void, journaled, never, refuse_late
from headstone.guard.ledger.readmissions import LOCK_SECONDS_MAX, alone, keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import (
    forget_change,
    hold_for_a_while,
    is_counted_on,
    is_gone,
    is_throttled,
    put_back,
    temporary_changes,
    throttle_copy,
)
from headstone.guard.ledger.topic_identity import still_there
from headstone.guard.looks.look import held_brokers
from headstone.guard.looks.look_age import Clock, clock_ms, grows_old, steady_ms
from headstone.guard.readmission.old_copy import NO_COPY, copy_bytes
from headstone.guard.readmission.plan import (
    CopyLimits,
    ReadmissionPlan,
    Tell,
    partition_now,
    refreshed,
)
from headstone.guard.verification.verdicts import JudgedReplica, read_replicas
from headstone.log.shown import visible
from headstone.log.topic_partition import TopicPartition

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.3, 5.0
STALL_SECONDS_MAX = 600.0
"""After this long without progress a person should look, and run it again."""
ASKED_MAX = 20
"""A hold or an election that was requested this often and does not come."""
BY_HAND = "guard readmit"
READINGS_MAX = 10
"""A new copy learns a moment later what is committed: until then it cannot be judged."""


class Ended(StrEnum):
    RIGHT = "right: nothing to do"
    READMITTED = "readmitted"
    EXPELLED = "expelled, its broker is away"
    REFUSED = "refused"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmitted:
    """What became of one replica. `stray`: the name of the folder that its broker leaves behind, if it was away."""

    partition: TopicPartition
    broker: int
    ended: Ended
    why: str = ""
    stray: str | None = None

    @property
    def remark(self) -> str:
        """What a person may delete."""
        return f"its old folder is called {self.stray} once its broker is back: the broker never deletes it, you may"

    @property
    def is_well(self) -> bool:
        return self.ended in (Ended.RIGHT, Ended.READMITTED)

    @property
    def document(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic, "partition": self.partition.number, "broker": self.broker,
            "ended": self.ended.name.lower(), "why": self.why, "stray_folder": self.stray,
        }  # fmt: skip


@dataclass(slots=True, kw_only=True)
class ReadmissionMeans:
    """What a readmission needs. Clock and pause are arguments so that tests can replace them."""

    admin: Admin
    connection: Connection
    journal: Journal
    work: Path
    limits: CopyLimits = field(default_factory=CopyLimits)
    tell: Tell = print
    actor: str = BY_HAND
    """The name under which the journal records changes of settings."""
    clock_ms: Callable[[], int] = clock_ms
    pause: Callable[[float], None] = time.sleep
    steady: Clock = steady_ms
    """Measures the age of a look, independent of the wall clock."""


@dataclass(slots=True, kw_only=True)
class Course:
    """One readmission while this process works on it: the state that is not in the journal. `end` is None until nothing is left
    to do now."""

    plan: ReadmissionPlan
    readmission: Readmission
    verdict: Verdict | None = None
    why: str = ""
    readings: int = 0
    asked: int = 0
    last_text: str = ""
    moved_s: float = field(default_factory=time.monotonic)
    last: object = None
    end: Readmitted | None = None


def readmit(means: ReadmissionMeans, plans: Sequence[ReadmissionPlan]) -> list[Readmitted]:
    """Topic by topic, with as many partitions at once as the limits allow. Two replicas of one partition are done one after the
    other."""
    ended: list[Readmitted] = []
    with alone(means.journal, seconds_max=LOCK_SECONDS_MAX, pause=means.pause):
        forget_gone(means)
        # Planning takes minutes, and waiting for the lock too: the guard may have done something since.
        begun = open_readmissions(means.journal)
        current = sorted((refreshed(plan, begun) for plan in plans), key=_place)
        by_topic = groupby(current, key=lambda plan: plan.readmission.topic)
        for topic, of_topic in by_topic:
            for batch in _batches(list(of_topic), means.limits.partitions_at_once):
                ended += _together(means, batch)
            put_back_changes(means, topic)
        put_back_changes(means, None)
        for temporary in temporary_changes(means.journal):
            if is_counted_on(means.journal, temporary):
                means.tell(visible(f"{temporary.resource} stays held: the guard relies on it and restores it later"))
    return ended


def forget_gone(means: ReadmissionMeans) -> None:
    """Drops readmissions and temporary changes of deleted topics: there is nothing to finish or restore."""
    for readmission in open_readmissions(means.journal):
        state = means.admin.describe([readmission.topic])
        if not still_there(state, readmission.topic, readmission.topic_id):
            keep_readmission(means.journal, readmission, over=True)
    for temporary in temporary_changes(means.journal):
        if is_gone(means.admin, temporary):
            forget_change(means.journal, temporary)


def _place(plan: ReadmissionPlan) -> tuple[TopicPartition, bool, int]:
    """Readmissions that have begun go first."""
    return plan.readmission.topic_partition, not plan.resumed, plan.readmission.broker


def _batches(plans: list[ReadmissionPlan], size: int) -> Iterator[list[ReadmissionPlan]]:
    waiting = plans
    while waiting:
        batch: list[ReadmissionPlan] = []
        later: list[ReadmissionPlan] = []
        for plan in waiting:
            taken = {other.readmission.partition for other in batch}
            fits = len(batch) < size and plan.readmission.partition not in taken
            (batch if fits else later).append(plan)
        yield batch
        waiting = later


def _together(means: ReadmissionMeans, plans: Sequence[ReadmissionPlan]) -> list[Readmitted]:
    courses = [_begun(means, plan) for plan in plans]
    pause_s = PAUSE_SECONDS
    while any(course.end is None for course in courses):
        steps = [advance(means, course) for course in courses if course.end is None]
        if all(isinstance(step, Wait) for step in steps):
            means.pause(pause_s)
            pause_s = min(pause_s * 1.5, PAUSE_SECONDS_MAX)
        else:
            pause_s = PAUSE_SECONDS
    return [course.end for course in courses if course.end is not None]


def _begun(means: ReadmissionMeans, plan: ReadmissionPlan) -> Course:
    course = Course(plan=plan, readmission=plan.readmission)
    if not plan.needed:
        _end(means, course, Ended.RIGHT)
    elif plan.refusals:
        _end(means, course, Ended.REFUSED, plan.refusals[0])
    else:
        if not plan.resumed:
            course.readmission = replace(plan.readmission, began_ms=means.clock_ms())
        keep_readmission(means.journal, course.readmission)
    return course


def advance(
    means: ReadmissionMeans, course: Course, *, is_left: Callable[[Step], bool] = lambda step: False, void: Void = never
) -> Step:
    """Takes one step, or none: `is_left` names steps that belong to somebody else or must wait. What moves replicas is not done
    if `void()` is true, or if the look at the partition has become old: the in-sync replicas may have changed since."""
    old = grows_old(means.steady)
    now = _look(means, course)
    step = next_step(course.readmission, now)
    if is_left(step):
        return Wait(why="")
    _watch(course, step, now)
    try:
        _carry_out(means, course, step, now, partial(_either, void, old))
    except MayHaveArrived as error:
        means.tell(f"{_name(course)}: {visible(str(error))}; checking whether it was applied")
    except TooLate as error:
        means.tell(f"{_name(course)}: {visible(str(error))}; retrying")
    except Unfinished:
        if isinstance(step, RemoveReplica) and not course.plan.resumed:
            keep_readmission(means.journal, course.readmission, over=True)  # refused: nothing has begun
        raise
    return step


def _look(means: ReadmissionMeans, course: Course) -> PartitionNow:
    """Asks what only some steps need only for those steps."""
    admin, readmission = means.admin, course.readmission
    partition, broker = readmission.topic_partition, readmission.broker
    state = admin.describe([partition.topic])
    same = still_there(state, partition.topic, readmission.topic_id)
    if not same or partition.number not in state.topics.get(partition.topic, {}):
        raise Unfinished(f"{_name(course)}: it is no longer in the cluster's metadata; run the same command again")
    now = partition_now(admin, state, partition)
    if not readmission.expelled or broker in now.isr:
        return replace(now, verdict=course.verdict if broker in now.isr else None)
    alive = sorted(state.brokers)
    outside = broker not in now.replicas
    size = copy_bytes(admin, partition, broker) if broker in state.brokers else None
    has_copy = None if size is None else size != NO_COPY
    return replace(
        now, has_copy=has_copy, copied_bytes=size, held=set(alive) <= set(held_brokers(admin, partition.topic, alive)),
        throttled=outside and has_copy is False and is_throttled(admin, partition, broker),
    )  # fmt: skip


def _watch(course: Course, step: Step, now: PartitionNow) -> None:
    """Ends a run in which nothing moves any more; what it set stays, and is safe."""
    state = (step, replace(now, verdict=None))
    if state != course.last:
        course.last, course.moved_s, course.asked = state, time.monotonic(), 0
    course.asked += 1
    if isinstance(step, HoldTopic | Elect) and course.asked > ASKED_MAX:
        what = "the hold of the topic" if isinstance(step, HoldTopic) else "its election"
        raise Unfinished(
            f"{_name(course)}: {what} was requested {ASKED_MAX} times and does not persist: something reverts it, or a broker "
            "does not apply it; fix that, then run the same command again"
        )
    if time.monotonic() - course.moved_s > STALL_SECONDS_MAX:
        why = f": {step.why}" if isinstance(step, Wait) else ""
        raise Unfinished(
            f"{_name(course)}: no progress for {STALL_SECONDS_MAX:g} s{why}; the settings stay in place and are safe: run the "
            "same command again"
        )


def _carry_out(means: ReadmissionMeans, course: Course, step: Step, now: PartitionNow, void: Void) -> None:
    partition, broker = course.readmission.topic_partition, course.readmission.broker
    match step:
        case Note():
            course.readmission, course.verdict, course.readings = step.readmission, None, 0
            keep_readmission(means.journal, step.readmission)
        case RemoveReplica():
            reason = f"broker {broker} leaves the assignment: {course.plan.judged.why}"
            _reassign(means, course, now, step.remaining, reason, void)
        case Add():
            course.readmission = replace(course.readmission, added_ms=means.clock_ms())
            keep_readmission(means.journal, course.readmission)
            reason = f"broker {broker} is added again and re-replicates under the hold"
            _reassign(means, course, now, step.replicas, reason, void)
        case Reorder():
            reason = f"broker {broker} is right: the replicas get their old order"
            _reassign(means, course, now, step.order, reason, void)
        case HoldTopic():
            _say(means, course, "holding the topic")
            reason = f"broker {broker} re-replicates {partition}"
            now_ms = means.clock_ms()
            hold_for_a_while(
                means.admin, means.journal, partition.topic, reason=reason, evidence=means.actor, now_ms=now_ms
            )
            means.pause(PAUSE_SECONDS)
        case Throttle():
            rate = means.limits.copy_bytes_per_second
            now_ms = means.clock_ms()
            throttle_copy(
                means.admin, means.journal, partition, broker, bytes_per_second=rate, evidence=means.actor, now_ms=now_ms
            )  # fmt: skip
            means.pause(PAUSE_SECONDS)
        case Read():
            _read(means, course)
        case Elect():
            _elect(means, course, now, void)
            means.pause(PAUSE_SECONDS)
        case Wait():
            copied = f": {units.size(now.copied_bytes)}" if now.copied_bytes is not None and now.adding else ""
            _say(means, course, step.why + copied)
        case BrokerAway():
            course.readmission = replace(course.readmission, was_away=True)
            _end(means, course, Ended.EXPELLED, f"when broker {broker} is back, run the same command again", over=False)
        case AskPerson():
            # Keep it if it has begun: the guard would only begin it again at its next look, over and over. Not if somebody
            # replaced the replica: then the guard has let go of it.
            begun = course.readmission.by_guard and (course.readmission.expelled or course.readmission.tries > 0)
            begun = begun and not step.replaced
            _end(means, course, Ended.STOPPED, step.why, over=not step.again and not begun)
        case ReadmissionDone():
            _end(means, course, Ended.READMITTED)
        case _:
            assert_never(step)


def _reassign(
    means: ReadmissionMeans, course: Course, now: PartitionNow, replicas: tuple[int, ...], reason: str, void: Void
) -> None:
    _say(means, course, reason)
    partition = course.readmission.topic_partition
    change = Change(
        resource=f"partition {partition}", topic=partition.topic, old=_replicas(now.replicas), new=_replicas(replicas),
        reason=reason, evidence=course.plan.judged.why, began_ms=means.clock_ms(),
    )  # fmt: skip
    check = partial(refuse_late, void)
    journaled(means.journal, change, lambda: means.admin.reassign({partition: replicas}, check=check))


def _elect(means: ReadmissionMeans, course: Course, now: PartitionNow, void: Void) -> None:
    partition, broker = course.readmission.topic_partition, course.readmission.broker
    reason = f"broker {broker} leads again"
    _say(means, course, reason)
    change = Change(
        resource=f"partition {partition}", topic=partition.topic, new=(("leader", str(broker)),),
        old=(("leader", None if now.leader is None else str(now.leader)),), reason=reason,
        evidence=course.plan.judged.why, began_ms=means.clock_ms(),
    )  # fmt: skip
    check = partial(refuse_late, void)
    journaled(means.journal, change, lambda: means.admin.elect_preferred([partition], check=check))


def _replicas(brokers: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    return (("replicas", ",".join(map(str, brokers))),)


def _read(means: ReadmissionMeans, course: Course) -> None:
    """Reads until the copy can be judged: a new copy learns a moment later what is committed."""
    readmission = course.readmission
    _say(means, course, f"reading broker {readmission.broker} and the others")
    began_ms = means.clock_ms()
    read = read_replicas(
        means.connection, readmission.topic_partition, last=readmission.broker, work=means.work,
        bytes_per_second=means.limits.read_bytes_per_second,
    )  # fmt: skip
    judged = read.get(readmission.broker, JudgedReplica(verdict=Verdict.UNJUDGED, why="it has no replica of it"))
    course.readings += 1
    if judged.verdict is Verdict.UNJUDGED and course.readings < READINGS_MAX:
        means.pause(PAUSE_SECONDS)
        return
    course.verdict, course.why = judged.verdict, judged.why
    reading = ReplicaReading(
        partition=readmission.partition, broker=readmission.broker, verdict=judged.verdict, read_ms=began_ms,
        detail=judged.why,
    )  # fmt: skip
    means.journal.note_reading(readmission.topic, reading)


def _end(means: ReadmissionMeans, course: Course, ended: Ended, why: str = "", *, over: bool = True) -> None:
    readmission = course.readmission
    if ended not in (Ended.RIGHT, Ended.REFUSED):
        keep_readmission(means.journal, readmission, over=over)
    stray = course.plan.stray if readmission.was_away and readmission.expelled else None
    if course.why and ended is Ended.STOPPED:
        why = f"{why} ({course.why})"
    course.end = Readmitted(
        partition=readmission.topic_partition, broker=readmission.broker, ended=ended, why=why, stray=stray
    )


def put_back_changes(means: ReadmissionMeans, topic: str | None, void: Void = never) -> None:
    """Restores the temporary changes of `topic`, or all of them (None), except those of a copy that is still being made. A hold
    that the guard relies on stays until the guard is done with it. That is asked here, so nothing is restored once the answer
    is too old."""
    late = partial(_either, void, grows_old(means.steady))
    # From the journal: a broker that has not heard of the new replica yet would say that nothing is copied.
    copying = [readmission for readmission in open_readmissions(means.journal) if readmission.copies]
    topics, brokers = {readmission.topic for readmission in copying}, {readmission.broker for readmission in copying}
    for temporary in temporary_changes(means.journal):
        is_wanted = temporary.topic == topic if topic is not None else True
        if (
            not is_wanted
            or temporary.topic in topics
            or temporary.broker in brokers
            or is_counted_on(means.journal, temporary)
        ):
            continue
        now_ms = means.clock_ms()
        for remark in put_back(means.admin, means.journal, temporary, evidence=means.actor, now_ms=now_ms, void=late):
            means.tell(visible(remark))


def _either(first: Void, second: Void) -> bool:
    return first() or second()


def _say(means: ReadmissionMeans, course: Course, text: str) -> None:
    """Says each text only once in a row."""
    if text != course.last_text:
        course.last_text = text
        means.tell(f"{_name(course)}: {visible(text)}")


def _name(course: Course) -> str:
    return visible(str(course.readmission.topic_partition))
