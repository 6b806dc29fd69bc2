"""What the guard does about one topic: a look and a memory in, a new memory, actions and a status out.

Owns when to hold, to verify, to release, to readmit, and when to leave things to a person. Pure: the clock is an argument,
calls are the caller's, and any of them may fail, be late or be done twice (docs/rfcs/0003-guard.md). Who is away and
since when is `absences.py`'s, what became of a hold is `holding.py`'s; the sums are `danger.py`'s.
"""

from __future__ import annotations

from dataclasses import replace

from headstone.coordination.absences import (
    in_effect,
    is_excused,
    is_held,
    is_too_short,
    learn_absences,
    learn_ends,
    learn_new_partitions,
    learn_retentions,
    learn_skews,
)
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Action,
    AddAgain,
    Alarm,
    AlarmKind,
    Allowed,
    Away,
    Complete,
    Configs,
    Decision,
    Expel,
    Hold,
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
from headstone.coordination.holding import Case, cases_of, follow_hold, is_news
from headstone.coordination.judging import has_source, is_dispensable, missed_span, verdict_of, was_read

REREAD_MS = 600_000
"""What a reading could not tell, of this replica or of the one that it would copy, is read again."""
STALE_LOOKS = 4
"""A look older than this many polling intervals says nothing about now."""


def decide(memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins, allowed: Allowed) -> Decision:
    """The memory must be durable before the actions are carried out."""
    looked_ms = memory.retention_seen_ms
    memory = learn_retentions(memory, seen, margins)
    memory = learn_skews(replace(memory, topic_id=seen.topic_id or memory.topic_id), seen)
    memory = learn_new_partitions(memory, seen, looked_ms, margins)
    memory = learn_ends(memory, seen)
    memory = learn_absences(memory, seen, looked_ms, now_ms, margins)
    memory, hold_actions = follow_hold(memory, seen, now_ms, margins, allowed)
    memory, late_alarms = _note_too_late(memory, seen, now_ms, margins)
    memory, returned = _returned(memory, seen, margins, allowed)
    cases = cases_of(memory, seen, margins)
    memory, wanted = _hold_or_release(memory, seen, cases, now_ms, margins)
    statuses = tuple(_status(memory, seen, partition, cases, now_ms, margins) for partition in seen.partitions)
    actions = (*_too_short(memory, seen, margins), *hold_actions, *late_alarms, *returned, *wanted)
    return Decision(memory=memory, actions=actions, statuses=statuses)


def _too_short(memory: Memory, seen: TopicSeen, margins: Margins) -> list[Action]:
    short = seen.compacted and is_too_short(memory, seen, margins)
    return [Alarm(kind=AlarmKind.RETENTION_TOO_SHORT, topic=seen.topic)] if short else []


def _note_too_late(memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins) -> tuple[Memory, list[Action]]:
    """A replica whose moment of danger came without a hold in effect.

    What happens to the hold after it was seen in sync again is no danger to it: it has everything. A copy that began
    under a hold in effect missed nothing either.
    """
    away: list[Away] = []
    alarms: list[Action] = []
    hold = memory.hold
    for case in cases_of(memory, seen, margins):
        absence = case.away
        held_ms = hold.confirmed_ms if hold is not None and in_effect(memory) else None
        needed_ms = case.danger.unsafe_ms if absence.complete_ms is not None else _copied_from_ms(absence, margins)
        safe = held_ms is not None and held_ms <= needed_ms
        over = absence.returned_ms is not None and absence.returned_ms + margins.poll_ms < needed_ms
        judged = absence.returned_ms is None or absence.returned_ms == seen.asked_ms
        if absence.unread:
            absence = replace(absence, unread=not safe)
        elif judged and not absence.too_late and not absence.order and not safe and not over and now_ms >= needed_ms:
            absence = replace(absence, too_late=True)
            alarms.append(
                Alarm(
                    kind=AlarmKind.TOO_LATE, topic=seen.topic, partition=absence.partition, broker=absence.broker
                )
            )  # fmt: skip
        away.append(absence)
    return replace(memory, away=tuple(away)), alarms


def _copied_from_ms(absence: Away, margins: Margins) -> int:
    """A copy that a look is the first to show may have begun right after the look before, and that one may have been answered
    from what was so earlier."""
    unseen_ms = margins.metadata_age_ms + margins.poll_ms
    return absence.since_ms - unseen_ms if absence.began_ms is None else absence.began_ms


def _returned(memory: Memory, seen: TopicSeen, margins: Margins, allowed: Allowed) -> tuple[Memory, list[Action]]:
    """Absences that are over, readings that are needed, and replicas that must copy afresh, one at a time."""
    partitions = {partition.partition: partition for partition in seen.partitions}
    left: list[Away] = []
    complete = list(memory.complete)
    actions: list[Action] = []
    moving = any(partition.moving for partition in seen.partitions) or any(away.order for away in memory.away)
    for away in memory.away:
        partition = partitions[away.partition]
        verdict = verdict_of(partition, away)
        if away.order:
            away = _still_ordered(partition, away, verdict, seen, margins, allowed)
        if away.order:
            away, steps = _readmission(memory, seen, partition, away, verdict, allowed)
            actions += steps
            left.append(away)
            continue
        doubtful = memory.hold is not None or away.too_late or away.unread
        if verdict is Verdict.RIGHT or (away.returned_ms is not None and not doubtful):
            complete_ms = seen.asked_ms - margins.metadata_age_ms
            complete.append(Complete(partition=away.partition, broker=away.broker, complete_ms=complete_ms))
            continue
        actions += _read(memory, seen, partition, away, verdict)
        wrong = verdict is not None
        # Found wrong, without a hold too: one that is not assigned cannot lead, wherever the hold failed. But adding it again
        # needs one: of whom nobody knows that he is wrong, none is taken out where a person has undone the hold.
        expels = wrong or (away.too_late and away.returned_ms is None and in_effect(memory))
        expels = expels and seen.compacted and has_source(memory, partition, away)
        if expels and allowed.readmission and not moving and is_dispensable(partition, away, seen):
            moving = True
            away = replace(away, order=tuple(replica.broker for replica in partition.replicas))
            away, steps = _readmission(memory, seen, partition, away, verdict, allowed)
            actions += steps
        left.append(away)
    return replace(memory, away=tuple(left), complete=tuple(complete)), actions


def _read(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, away: Away, verdict: Verdict | None
) -> list[Action]:  # fmt: skip
    """Who is back is read; who is wrong is told, and read again now and then while nobody can say that its leader is right."""
    verify = Verify(topic=seen.topic, partition=away.partition, broker=away.broker)
    if verdict is None:
        missed = missed_span(memory, partition, away)
        return [] if away.returned_ms is None else [replace(verify, missed=missed)]
    alarm = Alarm(kind=AlarmKind.WRONG, topic=seen.topic, partition=away.partition, broker=away.broker)
    again = not has_source(memory, partition, away) and was_read(partition, away, seen.asked_ms - REREAD_MS)
    return [alarm, *([verify] if again else [])]


def _still_ordered(
    partition: PartitionSeen, away: Away, verdict: Verdict | None, seen: TopicSeen, margins: Margins, allowed: Allowed
) -> Away:  # fmt: skip
    """Whom nobody may or need expel any more stays, once no call of before can still take it out: then it would be out with
    nobody to add it again."""
    if away.expelled_ms is not None or _is_to_leave(verdict, allowed) or partition.moving:
        return away
    late_ms = margins.effect_ms + margins.metadata_age_ms
    if away.expel_asked_ms is not None and seen.asked_ms <= away.expel_asked_ms + late_ms:
        return away
    return replace(away, order=(), expel_asked_ms=None)


def _is_to_leave(verdict: Verdict | None, allowed: Allowed) -> bool:
    return allowed.readmission and verdict is not Verdict.RIGHT


def _readmission(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, away: Away, verdict: Verdict | None, allowed: Allowed
) -> tuple[Away, list[Action]]:  # fmt: skip
    """The next step: out of the assignment, asked for until it is seen; then in again, under the hold, once it is there."""
    if partition.moving:
        return away, []
    if away.expelled_ms is None:
        if not is_dispensable(partition, away, seen) or not _is_to_leave(verdict, allowed):
            return away, []
        remaining = tuple(broker for broker in away.order if broker != away.broker)
        expel = Expel(topic=seen.topic, partition=away.partition, broker=away.broker, remaining=remaining)
        return replace(away, expel_asked_ms=seen.asked_ms), [expel]
    if not in_effect(memory) or away.broker not in seen.alive:
        return away, []
    return away, [AddAgain(topic=seen.topic, partition=away.partition, broker=away.broker, order=away.order)]


def _hold_or_release(
    memory: Memory, seen: TopicSeen, cases: list[Case], now_ms: int, margins: Margins
) -> tuple[Memory, list[Action]]:  # fmt: skip
    hold = memory.hold
    due = [case for case in cases if now_ms >= case.danger.hold_ms and _needs_hold(seen, case.away)]
    asks = hold is None or hold.released_ms is not None or (hold.seen_ms is None and hold.undone_ms is None)
    if due and seen.compacted and asks:
        found = hold.found if hold is not None else seen.overrides
        if hold is None and is_held(found):
            # Somebody else's: it counts as long as it stands.
            theirs = Hold(asked_ms=now_ms, found=found, seen_ms=seen.asked_ms, shown_ms=seen.asked_ms)
            return replace(memory, hold=theirs), []
        if hold is None or hold.released_ms is not None:
            new = Hold(asked_ms=now_ms, found=found, late_release_ms=None if hold is None else hold.released_ms)
        else:
            new = replace(hold, asked_ms=now_ms)
        memory = replace(memory, hold=new)
        who = ", ".join(f"partition {case.away.partition}: broker {case.away.broker}" for case in due)
        by_ms = min(case.danger.unsafe_ms for case in due)
        return memory, [SetHold(topic=seen.topic, configs=HOLD, by_ms=by_ms, reason=f"behind: {who}")]
    settled = all(_settled(memory, seen, partition, margins) for partition in seen.partitions)
    if hold is None or (seen.compacted and not settled):
        return memory, []
    return _release(memory, hold, seen, now_ms, margins)


def _needs_hold(seen: TopicSeen, away: Away) -> bool:
    """Whoever is behind; and who is back and wrong, because it will copy afresh."""
    partitions = {partition.partition: partition for partition in seen.partitions}
    return away.returned_ms is None or verdict_of(partitions[away.partition], away) is not None


def _settled(memory: Memory, seen: TopicSeen, partition: PartitionSeen, margins: Margins) -> bool:
    """Everyone is back and right; or whoever is away misses nothing that could go, by what was read."""
    absences = [away for away in memory.away if away.partition == partition.partition]
    if absences and all(is_excused(away, seen, margins) for away in absences):
        doubtful = any(a.too_late or a.unread or a.order or a.returned_ms is not None for a in absences)
        return not partition.moving and not doubtful
    in_sync = {replica.broker for replica in partition.replicas} <= set(partition.isr)
    return in_sync and not absences and not partition.moving


def _release(memory: Memory, hold: Hold, seen: TopicSeen, now_ms: int, margins: Margins) -> tuple[Memory, list[Action]]:
    """Asked for until the cluster shows it. What somebody else set meanwhile stays."""
    actions: list[Action] = []
    if restore := _to_restore(HOLD, seen.overrides, hold.found):
        actions.append(Release(topic=seen.topic, restore=restore))
    default, unknown = memory.default_hold, memory.default_hold is not None and seen.default_overrides is None
    if default is not None and seen.default_overrides is not None:
        restore = _to_restore(DEFAULT_HOLD, seen.default_overrides, default)
        if restore:
            actions.append(ReleaseDefault(restore=restore))
        else:
            default = None
    # A call that was given up, or repeated, may still arrive, and an old answer may show what is gone: the hold is
    # remembered for as long as either could be.
    last_ms = max(hold.asked_ms + margins.effect_ms, hold.shown_ms or 0, hold.default_seen_ms or 0)
    waits = bool(actions) or unknown or (not is_held(hold.found) and not is_news(seen, margins, last_ms))
    left = replace(hold, released_ms=now_ms) if waits else None
    return replace(memory, hold=left, default_hold=default), actions


def _to_restore(held: Configs, present: Configs, found: Configs) -> Configs:
    """A value that the guard found and that is a hold's already is not the guard's to restore."""
    present_values, found_values = dict(present), dict(found)
    ours = [name for name, value in held if present_values.get(name) == value and found_values.get(name) != value]
    return tuple((name, found_values.get(name)) for name in ours)


def _status(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, cases: list[Case], now_ms: int, margins: Margins
) -> Status:  # fmt: skip
    blocking = [case for case in cases if case.away.partition == partition.partition]
    if now_ms - seen.asked_ms > STALE_LOOKS * margins.poll_ms:
        state = State.UNKNOWN
    elif any(case.away.too_late or case.away.order for case in blocking):
        state = State.TOO_LATE
    elif any(case.away.unread for case in blocking):
        state = State.UNREAD
    elif not blocking:
        state = State.FINE
    else:
        state = State.HELD if in_effect(memory) else State.WATCHED
    if not blocking:
        return Status(partition=partition.partition, state=state)
    unsafe_ms = min((case.danger.unsafe_ms for case in blocking if case.danger.complete_ms is not None), default=None)
    return Status(
        partition=partition.partition, state=state, blockers=tuple(case.away.broker for case in blocking),
        since_ms=min(case.away.since_ms for case in blocking), unsafe_ms=unsafe_ms,
        countdown_ms=None if unsafe_ms is None else unsafe_ms - now_ms,
    )  # fmt: skip
