"""The guard's decision about one topic: takes a look and a memory, returns a new memory, actions and statuses.

Owns when to hold, to verify, to release, to readmit, and when to leave things to a person. Pure: the clock is an argument; the
caller makes the calls, any of which may fail, come late or be made twice (docs/rfcs/0003-guard.md). `absences.py` says who is
away since when, `holding.py` what became of a hold, `danger.py` has the sums.
"""

from __future__ import annotations

from collections import Counter
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
from headstone.coordination.freshness import acts_until_ms
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
from headstone.coordination.hold_states import Reason, move
from headstone.coordination.holding import AbsenceCase, cases_of, follow_hold, is_news
from headstone.coordination.judging import has_source, is_dispensable, missed_span, verdict_of, was_read

REREAD_MS = 600_000
"""A replica that could not be judged, or whose source could not, is read again after this time."""
BEHIND_NAMED = 8
STALE_LOOKS = 4
"""A look older than this many poll intervals says nothing about now."""


def decide(memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins, allowed: Allowed) -> Decision:
    """The memory must be durable before the actions are carried out."""
    looked_ms, before = memory.retention_seen_ms, memory
    memory = learn_retentions(memory, seen, margins)
    memory = learn_skews(replace(memory, topic_id=seen.topic_id or memory.topic_id), seen)
    uncompacted_ms = seen.asked_ms if memory.uncompacted_ms is None else memory.uncompacted_ms
    memory = replace(memory, uncompacted_ms=None if seen.compacted else uncompacted_ms)
    memory = learn_new_partitions(memory, seen, looked_ms, margins)
    memory = learn_ends(memory, seen)
    memory = learn_absences(memory, seen, looked_ms, now_ms, margins)
    memory, hold_actions = follow_hold(memory, seen, now_ms, margins, allowed)
    memory, late_alarms = _note_too_late(memory, seen, now_ms, margins)
    memory, returned = _returned(memory, seen, margins, allowed)
    cases = cases_of(memory, seen, margins)
    memory, wanted = _hold_or_release(memory, seen, cases, now_ms, margins)
    statuses = tuple(_status(memory, seen, partition, cases, now_ms, margins) for partition in seen.partitions)
    alarms = (*_too_short(memory, seen, margins), *_sole_in_doubt(before, seen))
    actions = (*alarms, *hold_actions, *late_alarms, *returned, *wanted)
    return Decision(memory=memory, actions=actions, statuses=statuses)


def _too_short(memory: Memory, seen: TopicSeen, margins: Margins) -> list[Action]:
    short = seen.compacted and is_too_short(memory, seen, margins)
    return [Alarm(kind=AlarmKind.RETENTION_TOO_SHORT, topic=seen.topic)] if short else []


def _sole_in_doubt(before: Memory, seen: TopicSeen) -> list[Action]:
    """Raised once, at the look that first shows a doubtful replica as the only one: it may have missed something, but nothing
    is left to compare it with, to copy it from, or to hold the topic for."""
    fine = {(known.partition, known.broker) for known in before.complete}
    doubtful = {(a.partition, a.broker) for a in before.away if a.too_late or a.unread or a.order}
    partitions = {number for number, _ in fine} | {away.partition for away in before.away}
    return [
        Alarm(kind=AlarmKind.UNJUDGED, topic=seen.topic, partition=partition.partition, broker=sole.broker)
        for partition in seen.partitions
        if partition.is_sole and partition.partition in partitions
        for sole in partition.replicas
        if (partition.partition, sole.broker) in doubtful
        or ((partition.partition, sole.broker) not in fine | {(a.partition, a.broker) for a in before.away})
    ]


def _note_too_late(memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins) -> tuple[Memory, list[Action]]:
    """Marks replicas whose moment of danger came without a hold in effect.

    What happens to the hold after a replica was seen in sync again is no danger to it: it has everything. A copy that began
    under a hold in effect has missed nothing either.
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
    """A new copy may have begun right after the look before the one that first shows it, and that look's answer may have been
    outdated."""
    unseen_ms = margins.metadata_age_ms + margins.poll_ms
    return absence.since_ms - unseen_ms if absence.began_ms is None else absence.began_ms


def _returned(memory: Memory, seen: TopicSeen, margins: Margins, allowed: Allowed) -> tuple[Memory, list[Action]]:
    """Ends absences that are over, and adds the readings and readmissions that are needed, one readmission at a time."""
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
        # A replica that was read and found wrong, or could not be judged, is expelled even without a hold: one that is not
        # assigned cannot lead, wherever the hold failed. But adding it again needs a hold, so a replica that was not read is
        # not expelled where a person has undone the hold.
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
    """A returned replica is read once the partition has a leader. One that is wrong or cannot be judged raises an alarm, and is
    read again now and then while its source is not known to be right."""
    verify = Verify(topic=seen.topic, partition=away.partition, broker=away.broker)
    if verdict is None:
        if away.returned_ms is None or partition.leader is None:
            return []
        return [replace(verify, missed=missed_span(memory, partition, away))]
    kind = AlarmKind.WRONG if verdict is Verdict.WRONG else AlarmKind.UNJUDGED
    alarm = Alarm(kind=kind, topic=seen.topic, partition=away.partition, broker=away.broker)
    again = not has_source(memory, partition, away) and was_read(partition, away, seen.asked_ms - REREAD_MS)
    return [alarm, *([verify] if again else [])]


def _still_ordered(
    partition: PartitionSeen, away: Away, verdict: Verdict | None, seen: TopicSeen, margins: Margins, allowed: Allowed
) -> Away:  # fmt: skip
    """A replica that need not or may not be expelled any more stays assigned, once no earlier call can still remove it:
    otherwise it could end up removed with nothing left to add it again."""
    if away.expelled_ms is not None or _is_to_leave(verdict, seen, allowed) or partition.moving:
        return away
    late_ms = margins.effect_ms + margins.metadata_age_ms
    if away.expel_asked_ms is not None and seen.asked_ms <= away.expel_asked_ms + late_ms:
        return away
    return replace(away, order=(), expel_asked_ms=None)


def _is_to_leave(verdict: Verdict | None, seen: TopicSeen, allowed: Allowed) -> bool:
    """If a topic is not compacted, no replica is removed: its replicas may differ just by retention."""
    return allowed.readmission and seen.compacted and verdict is not Verdict.RIGHT


def _readmission(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, away: Away, verdict: Verdict | None, allowed: Allowed
) -> tuple[Away, list[Action]]:  # fmt: skip
    """The next step: request the removal until a look shows it; then add it again, under the hold, once its broker is alive."""
    if partition.moving:
        return away, []
    if away.expelled_ms is None:
        if not is_dispensable(partition, away, seen) or not _is_to_leave(verdict, seen, allowed):
            return away, []
        remaining = tuple(broker for broker in away.order if broker != away.broker)
        expel = Expel(topic=seen.topic, partition=away.partition, broker=away.broker, remaining=remaining)
        return replace(away, expel_asked_ms=seen.asked_ms), [expel]
    if not in_effect(memory) or away.broker not in seen.alive:
        return away, []
    return away, [AddAgain(topic=seen.topic, partition=away.partition, broker=away.broker, order=away.order)]


def _hold_or_release(
    memory: Memory, seen: TopicSeen, cases: list[AbsenceCase], now_ms: int, margins: Margins
) -> tuple[Memory, list[Action]]:  # fmt: skip
    hold = memory.hold
    due = [case for case in cases if now_ms >= case.danger.hold_ms and _needs_hold(seen, case.away)]
    asks = hold is None or hold.released_ms is not None or (hold.seen_ms is None and hold.undone_ms is None)
    if due and asks:
        # Also under cleanup.policy `delete`, where a hold does nothing: what is due goes as soon as the policy is `compact`
        # again.
        restored = hold.found if hold is not None else seen.overrides
        if hold is None and is_held(restored):
            # Somebody else's hold: it counts while it stands.
            foreign = Hold(asked_ms=now_ms, found=restored, seen_ms=seen.asked_ms, shown_ms=seen.asked_ms)
            return move(memory, replace(memory, hold=foreign), Reason.DUE_FOREIGN), []
        if hold is None or hold.released_ms is not None:
            new = Hold(asked_ms=now_ms, found=restored, late_release_ms=None if hold is None else hold.released_ms)
        else:
            new = replace(hold, asked_ms=now_ms)
        memory = move(memory, replace(memory, hold=new), Reason.DUE)
        by_ms = min(case.danger.unsafe_ms for case in due)
        return memory, [SetHold(topic=seen.topic, configs=HOLD, by_ms=by_ms, reason=f"behind: {_who(due)}")]
    settled = all(_settled(memory, seen, partition, margins) for partition in seen.partitions)
    if hold is None or not settled or now_ms > acts_until_ms(memory, seen, margins):
        return memory, []
    return _release(memory, hold, seen, now_ms, margins)


def _who(due: list[AbsenceCase]) -> str:
    """Names the first ones, and counts the other partitions of each broker."""
    named, rest = due[:BEHIND_NAMED], Counter(case.away.broker for case in due[BEHIND_NAMED:])
    words = [f"partition {case.away.partition}: broker {case.away.broker}" for case in named]
    return ", ".join([*words, *(f"{count} more of broker {broker}" for broker, count in sorted(rest.items()))])


def _needs_hold(seen: TopicSeen, away: Away) -> bool:
    """A replica that is behind; or one that is back and not right, because it will be re-replicated."""
    partitions = {partition.partition: partition for partition in seen.partitions}
    return away.returned_ms is None or verdict_of(partitions[away.partition], away) is not None


def _settled(memory: Memory, seen: TopicSeen, partition: PartitionSeen, margins: Margins) -> bool:
    """Every replica is back and right; or, according to what was read, absent ones miss nothing that a cleaner could remove. A
    sole replica needs no hold, even while it is away."""
    absences = [away for away in memory.away if away.partition == partition.partition]
    if absences and all(is_excused(away, seen, margins) for away in absences):
        doubtful = any(a.too_late or a.unread or a.order or a.returned_ms is not None for a in absences)
        return not partition.moving and not doubtful
    in_sync = partition.is_sole or {replica.broker for replica in partition.replicas} <= set(partition.isr)
    return in_sync and not absences and not partition.moving


def _release(memory: Memory, hold: Hold, seen: TopicSeen, now_ms: int, margins: Margins) -> tuple[Memory, list[Action]]:
    """Requested until the cluster shows it. Values that somebody else has set meanwhile stay."""
    actions: list[Action] = []
    if restore := _to_restore(HOLD, seen.overrides, hold.found):
        actions.append(Release(topic=seen.topic, restore=restore))
    # An abandoned or repeated call may still arrive, and an outdated answer may show what is gone. The hold, and the earlier
    # cluster default, are remembered for as long as either is possible.
    called_ms = max(hold.asked_ms, hold.default_asked_ms or 0) + margins.effect_ms
    is_over = is_news(seen, margins, called_ms, hold.shown_ms, hold.default_seen_ms)
    default = memory.default_hold
    if default is not None and seen.default_overrides is not None:
        restore = _to_restore(DEFAULT_HOLD, seen.default_overrides, default)
        if restore:
            actions.append(ReleaseDefault(restore=restore))
        elif is_over:
            default = None
    waits = bool(actions) or default is not None or (not is_held(hold.found) and not is_over)
    released = replace(memory, hold=replace(hold, released_ms=now_ms), default_hold=default)
    memory = move(memory, released, Reason.SETTLED)
    return memory if waits else move(memory, replace(memory, hold=None), Reason.OVER), actions


def _to_restore(held: Configs, present: Configs, previous: Configs) -> Configs:
    """Leaves out values that were already those of a hold when the guard found them: they are not the guard's to restore."""
    present_values, found_values = dict(present), dict(previous)
    names = [name for name, value in held if present_values.get(name) == value and found_values.get(name) != value]
    return tuple((name, found_values.get(name)) for name in names)


def _status(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, cases: list[AbsenceCase], now_ms: int, margins: Margins
) -> Status:  # fmt: skip
    blocking = [case for case in cases if case.away.partition == partition.partition]
    if now_ms - seen.asked_ms > STALE_LOOKS * margins.poll_ms:
        state = State.UNKNOWN
    elif any(verdict_of(partition, case.away) is Verdict.UNJUDGED and not case.away.order for case in blocking):
        state = State.UNJUDGED
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
