"""What the guard does about one topic: a look and a memory in, a new memory, actions and a status out.

Owns when to hold, to verify, to release, to readmit, and when to leave things to a person. Pure: the clock is an argument,
calls are the caller's, and any of them may fail, be late or be done twice (docs/rfcs/0003-guard.md). Who is away and
since when is `absences.py`'s; the sums are `danger.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstone.coordination.absences import in_effect, is_held, learn_absences, learn_ends, learn_retentions
from headstone.coordination.danger import Danger, Margins, danger
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Action,
    AddAgain,
    Alarm,
    AlarmKind,
    Allowed,
    AskBrokers,
    Away,
    Complete,
    Decision,
    EndPasses,
    Expel,
    Hold,
    HoldByDefault,
    Memory,
    PartitionSeen,
    Release,
    ReleaseDefault,
    SetHold,
    State,
    Status,
    TopicSeen,
    Verdict,
    Verify,
)

ROBOT_MS = 600_000
"""A robot puts back what it found at its next round; somebody who does it later than this is a person."""
STALE_LOOKS = 4
"""A look older than this many polling intervals says nothing about now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One absence with its sums."""

    away: Away
    danger: Danger


def decide(memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins, allowed: Allowed) -> Decision:
    """The memory must be durable before the actions are carried out."""
    memory = learn_retentions(memory, seen, margins)
    memory = learn_ends(replace(memory, skew_ms=max(memory.skew_ms, seen.skew_ms)), seen)
    memory = learn_absences(memory, seen, margins)
    memory, hold_actions = _follow_hold(memory, seen, now_ms, margins, allowed)
    memory, late_alarms = _note_too_late(memory, seen, now_ms, margins)
    memory, returned = _returned(memory, seen, margins, allowed)
    cases = _cases(memory, seen, margins)
    memory, wanted = _hold_or_release(memory, seen, cases, now_ms, margins)
    statuses = tuple(_status(memory, seen, partition, cases, now_ms, margins) for partition in seen.partitions)
    actions = (*_too_short(seen, margins), *hold_actions, *late_alarms, *returned, *wanted)
    return Decision(memory=memory, actions=actions, statuses=statuses)


def _too_short(seen: TopicSeen, margins: Margins) -> list[Action]:
    short = seen.compacted and seen.delete_retention_ms < margins.retention_ms_min
    return [Alarm(kind=AlarmKind.RETENTION_TOO_SHORT, topic=seen.topic)] if short else []


def _cases(memory: Memory, seen: TopicSeen, margins: Margins) -> list[Case]:
    horizons = {partition.partition: partition.horizon_ms for partition in seen.partitions}
    return [
        Case(
            away=away,
            danger=danger(
                complete=away.complete_ms, retentions=memory.retentions, horizon_ms=horizons.get(away.partition),
                skew_ms=memory.skew_ms, margins=margins,
            ),
        )
        for away in memory.away
    ]  # fmt: skip


def _first_unsafe_ms(cases: list[Case]) -> int | None:
    return min((case.danger.unsafe_ms for case in cases if not case.away.too_late), default=None)


def _follow_hold(
    memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins, allowed: Allowed
) -> tuple[Memory, list[Action]]:
    """What became of the hold that the guard asked for: not there yet, there, undone."""
    hold = memory.hold
    if hold is None:
        foreign = is_held(seen.overrides)
        return memory, [Alarm(kind=AlarmKind.FOREIGN_HOLD, topic=seen.topic)] if foreign else []
    if hold.released_ms is not None:
        return memory, []
    actions: list[Action] = []
    if hold.seen_ms is not None and hold.undone_ms is None and not is_held(seen.overrides):
        if hold.late_release_ms is not None and seen.asked_ms - hold.late_release_ms <= margins.effect_ms:
            # The guard's own release, which overtook nobody but its next hold: that is asked for again.
            return replace(memory, hold=replace(hold, seen_ms=None, confirmed=(), confirmed_ms=None)), []
        memory, actions = _undone(memory, hold, seen, allowed)
    hold = memory.hold
    assert hold is not None
    stands = memory.default_hold is not None if hold.undone_ms is not None else is_held(seen.overrides)
    if not stands:
        return memory, actions
    unsafe_ms = _first_unsafe_ms(_cases(memory, seen, margins))
    confirmed = tuple(sorted({*hold.confirmed, *seen.held_on}))
    missing = tuple(broker for broker in seen.alive if broker not in confirmed)
    confirmed_ms = hold.confirmed_ms if hold.confirmed_ms is not None or missing else now_ms
    if missing:
        actions.append(AskBrokers(topic=seen.topic, brokers=missing))
        if unsafe_ms is not None and now_ms >= unsafe_ms - margins.poll_ms:
            actions += [Alarm(kind=AlarmKind.NOT_CONFIRMED, topic=seen.topic, broker=broker) for broker in missing]
    elif hold.confirmed_ms is None and unsafe_ms is not None and now_ms + margins.pass_start_ms > unsafe_ms:
        actions.append(EndPasses(topic=seen.topic))
    seen_ms = hold.seen_ms if hold.seen_ms is not None else seen.asked_ms
    hold = replace(hold, seen_ms=seen_ms, confirmed=confirmed, confirmed_ms=confirmed_ms)
    return replace(memory, hold=hold), actions


def _undone(memory: Memory, hold: Hold, seen: TopicSeen, allowed: Allowed) -> tuple[Memory, list[Action]]:
    """Told and left alone. Only a robot, which puts back exactly what it knew, is answered: out of its reach."""
    assert hold.seen_ms is not None
    robot = seen.overrides == hold.found and seen.asked_ms - hold.seen_ms <= ROBOT_MS
    kind = AlarmKind.UNDONE_BY_ROBOT if robot else AlarmKind.CHANGED_BY_PERSON
    hold = replace(hold, undone_ms=seen.asked_ms, confirmed=(), confirmed_ms=None)
    memory = replace(memory, hold=hold)
    actions: list[Action] = [Alarm(kind=kind, topic=seen.topic)]
    reaches = all(value is None for _, value in seen.overrides)
    if robot and reaches and allowed.cluster_default and memory.default_hold is None:
        memory = replace(memory, default_hold=seen.default_overrides)
        actions.append(HoldByDefault(configs=DEFAULT_HOLD))
    return memory, actions


def _note_too_late(memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins) -> tuple[Memory, list[Action]]:
    """A replica whose moment of danger came without a hold in effect: it stays so until it is read, or copies afresh.

    What happens to the hold after it was seen in sync again is no danger to it: it has everything.
    """
    away: list[Away] = []
    alarms: list[Action] = []
    hold = memory.hold
    for case in _cases(memory, seen, margins):
        absence = case.away
        held_ms = hold.confirmed_ms if hold is not None and in_effect(memory) else None
        needed_ms = case.danger.unsafe_ms if absence.complete_ms is not None else absence.since_ms
        safe = held_ms is not None and held_ms <= needed_ms
        over = absence.returned_ms is not None and absence.returned_ms + margins.poll_ms < needed_ms
        judged = absence.returned_ms is None or absence.returned_ms == seen.asked_ms
        if judged and not absence.too_late and not absence.order and not safe and not over and now_ms >= needed_ms:
            absence = replace(absence, too_late=True)
            alarms.append(
                Alarm(
                    kind=AlarmKind.TOO_LATE, topic=seen.topic, partition=absence.partition, broker=absence.broker
                )
            )  # fmt: skip
        away.append(absence)
    return replace(memory, away=tuple(away)), alarms


def _returned(memory: Memory, seen: TopicSeen, margins: Margins, allowed: Allowed) -> tuple[Memory, list[Action]]:
    """Absences that are over, readings that are needed, and replicas that must copy afresh, one at a time."""
    partitions = {partition.partition: partition for partition in seen.partitions}
    left: list[Away] = []
    complete = list(memory.complete)
    actions: list[Action] = []
    moving = any(partition.moving for partition in seen.partitions) or any(away.order for away in memory.away)
    for away in memory.away:
        partition = partitions[away.partition]
        if away.order:
            actions += _readmission(memory, seen, partition, away)
            left.append(away)
            continue
        verdict = _verdict(partition, away)
        if verdict is Verdict.RIGHT or (away.returned_ms is not None and memory.hold is None and not away.too_late):
            complete_ms = seen.asked_ms - margins.metadata_age_ms
            complete.append(Complete(partition=away.partition, broker=away.broker, complete_ms=complete_ms))
            continue
        wrong = verdict is not None
        if wrong:
            alarm = Alarm(kind=AlarmKind.WRONG, topic=seen.topic, partition=away.partition, broker=away.broker)
            actions.append(alarm)
        elif away.returned_ms is not None:
            actions.append(Verify(topic=seen.topic, partition=away.partition, broker=away.broker))
        expels = wrong or (away.too_late and away.returned_ms is None)
        if expels and allowed.readmission and in_effect(memory) and not moving and _enough(partition, away, seen):
            moving = True
            away = replace(away, order=tuple(replica.broker for replica in partition.replicas))
            actions += _readmission(memory, seen, partition, away)
        left.append(away)
    return replace(memory, away=tuple(left), complete=tuple(complete)), actions


def _readmission(memory: Memory, seen: TopicSeen, partition: PartitionSeen, away: Away) -> list[Action]:
    """The next step: out of the assignment, asked for until it is seen; then in again, only under the hold."""
    if partition.moving:
        return []
    if away.expelled_ms is None:
        if not _enough(partition, away, seen):
            return []
        remaining = tuple(broker for broker in away.order if broker != away.broker)
        return [Expel(topic=seen.topic, partition=away.partition, broker=away.broker, remaining=remaining)]
    if not in_effect(memory):
        return []
    return [AddAgain(topic=seen.topic, partition=away.partition, broker=away.broker, order=away.order)]


def _verdict(partition: PartitionSeen, away: Away) -> Verdict | None:
    """Only a reading that began after the replica was in sync again says anything about what it missed."""
    for replica in partition.replicas:
        if replica.broker == away.broker and away.returned_ms is not None and replica.read_ms >= away.returned_ms:
            return replica.verdict
    return None


def _enough(partition: PartitionSeen, away: Away, seen: TopicSeen) -> bool:
    """Never below min.insync.replicas, never the last copy in sync."""
    others = [broker for broker in partition.isr if broker != away.broker]
    return len(others) >= max(1, seen.in_sync_min)


def _hold_or_release(
    memory: Memory, seen: TopicSeen, cases: list[Case], now_ms: int, margins: Margins
) -> tuple[Memory, list[Action]]:  # fmt: skip
    hold = memory.hold
    due = [case for case in cases if now_ms >= case.danger.hold_ms and _needs_hold(seen, case.away)]
    if due and seen.compacted and (hold is None or hold.released_ms is not None or hold.seen_ms is None):
        if hold is None and is_held(seen.overrides):
            return memory, []
        found = hold.found if hold is not None else seen.overrides
        late_ms = None if hold is None else hold.released_ms if hold.released_ms is not None else hold.late_release_ms
        memory = replace(memory, hold=Hold(asked_ms=now_ms, found=found, late_release_ms=late_ms))
        who = ", ".join(f"partition {case.away.partition}: broker {case.away.broker}" for case in due)
        by_ms = min(case.danger.unsafe_ms for case in due)
        return memory, [SetHold(topic=seen.topic, configs=HOLD, by_ms=by_ms, reason=f"behind: {who}")]
    if hold is None or (seen.compacted and not _all_back(memory, seen)):
        return memory, []
    return _release(memory, hold, seen, now_ms, margins)


def _needs_hold(seen: TopicSeen, away: Away) -> bool:
    """Whoever is behind; and who is back and wrong, because it will copy afresh."""
    partitions = {partition.partition: partition for partition in seen.partitions}
    return away.returned_ms is None or _verdict(partitions[away.partition], away) is not None


def _all_back(memory: Memory, seen: TopicSeen) -> bool:
    in_sync = all(
        {replica.broker for replica in partition.replicas} <= set(partition.isr) and not partition.moving
        for partition in seen.partitions
    )
    return in_sync and not memory.away


def _release(memory: Memory, hold: Hold, seen: TopicSeen, now_ms: int, margins: Margins) -> tuple[Memory, list[Action]]:
    """Asked for until the cluster shows it. What somebody else set meanwhile stays."""
    present, found, actions = dict(seen.overrides), dict(hold.found), list[Action]()
    # A value that the guard found and that is a hold's already is not the guard's to restore.
    ours = [name for name, value in HOLD if present.get(name) == value and found.get(name) != value]
    if ours:
        actions.append(Release(topic=seen.topic, restore=tuple((name, found.get(name)) for name in ours)))
    default = memory.default_hold
    if default is not None:
        now_there = dict(seen.default_overrides)
        if any(now_there.get(name) == value for name, value in DEFAULT_HOLD):
            before = dict(default)
            restore = tuple((name, before.get(name)) for name, _ in DEFAULT_HOLD)
            actions.append(ReleaseDefault(restore=restore))
        else:
            default = None
    # A call that was given up, or repeated, may still arrive: the hold is remembered for as long as it could.
    arriving = now_ms - hold.asked_ms < margins.effect_ms
    left = replace(hold, released_ms=now_ms) if actions or arriving else None
    return replace(memory, hold=left, default_hold=default), actions


def _status(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, cases: list[Case], now_ms: int, margins: Margins
) -> Status:  # fmt: skip
    blocking = [case for case in cases if case.away.partition == partition.partition]
    if now_ms - seen.asked_ms > STALE_LOOKS * margins.poll_ms:
        state = State.UNKNOWN
    elif any(case.away.too_late or case.away.order for case in blocking):
        state = State.TOO_LATE
    elif not blocking:
        state = State.FINE
    else:
        state = State.HELD if in_effect(memory) else State.WATCHED
    if not blocking:
        return Status(partition=partition.partition, state=state)
    unsafe_ms = min(case.danger.unsafe_ms for case in blocking)
    return Status(
        partition=partition.partition, state=state, blockers=tuple(case.away.broker for case in blocking),
        since_ms=min(case.away.since_ms for case in blocking), unsafe_ms=unsafe_ms, countdown_ms=unsafe_ms - now_ms,
    )  # fmt: skip
