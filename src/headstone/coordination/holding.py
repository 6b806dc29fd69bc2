"""What became of a requested hold: not there yet, there, or undone; and whether every broker has it.

Owns whose hold it is, what is automation and what a person, and when the cluster default stands in. Pure. `guarding.py` decides
when a hold is due and when it ends; `absences.py` says which values are a hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstone.coordination.absences import (
    danger_of,
    is_held,
    is_held_by_default,
    is_reached_by_default,
    shows_hold,
)
from headstone.coordination.danger import Danger, Margins
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Action,
    Alarm,
    AlarmKind,
    Allowed,
    AskBrokers,
    Away,
    Configs,
    EndPasses,
    Hold,
    HoldByDefault,
    Memory,
    TopicSeen,
)
from headstone.coordination.hold_states import Reason, asked_by_default, move


def found_before(memory: Memory, present: Configs) -> Configs:
    """The overrides to restore after the hold; `present` was read just before it is set, for somebody may have changed an
    override since the look. A value that is the hold's own comes from an earlier call whose answer was lost: then the value
    that was found before that call counts."""
    hold = memory.hold
    if hold is None or hold.seen_ms is not None:
        return present if hold is None else hold.found
    held, previous = dict(HOLD), dict(hold.found)
    return tuple((name, previous.get(name) if value == held[name] else value) for name, value in present)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceCase:
    """One absence with its sums."""

    away: Away
    danger: Danger


def cases_of(memory: Memory, seen: TopicSeen, margins: Margins) -> list[AbsenceCase]:
    partitions = {partition.partition: partition for partition in seen.partitions}
    return [
        AbsenceCase(away=away, danger=danger_of(memory, partitions[away.partition], away, margins)) for away in memory.away
    ]  # fmt: skip


def first_unsafe_ms(cases: list[AbsenceCase]) -> int | None:
    """The earliest moment of danger of the replicas that a hold can still save. One that was never complete is read instead."""
    saved = [case for case in cases if not case.away.too_late and case.danger.complete_ms is not None]
    return min((case.danger.unsafe_ms for case in saved), default=None)


def follow_hold(
    memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins, allowed: Allowed
) -> tuple[Memory, list[Action]]:
    """Follows a requested hold: not there yet, there, or undone."""
    actions: list[Action] = []
    if is_held(seen.overrides) and (memory.hold is None or is_held(memory.hold.found)):
        actions.append(Alarm(kind=AlarmKind.FOREIGN_HOLD, topic=seen.topic))
    if memory.hold is None:
        return memory, actions
    hold = _learn_shown(memory.hold, seen)
    memory = replace(memory, hold=hold)
    if hold.released_ms is not None:
        return memory, actions
    if hold.undone_ms is not None:
        memory, more = _follow_default(memory, hold, seen, margins, allowed)
        actions += more
    elif _gone(hold, seen, margins):
        if is_held(hold.found):
            # Somebody else's hold, which its owner removed. Nobody undid anything of the guard's; from now on it holds by
            # itself.
            own = Hold(asked_ms=seen.asked_ms, found=seen.overrides)
            return move(memory, replace(memory, hold=own), Reason.OWNER_RELEASED), actions
        if _by_own_release(hold, seen, margins):
            again = replace(hold, seen_ms=None, shown_ms=None, accepted_ms=None, confirmed=(), confirmed_ms=None)
            return move(memory, replace(memory, hold=again), Reason.OWN_RELEASE), actions
        memory, more = _undone(memory, hold, seen, margins, allowed)
        actions += more
    if not _stands(memory, seen):
        return _without_word_of_others(memory), actions
    memory, more = _confirm(memory, seen, now_ms, margins)
    return memory, [*actions, *more]


def _learn_shown(hold: Hold, seen: TopicSeen) -> Hold:
    if is_held(seen.overrides):
        hold = replace(hold, shown_ms=seen.asked_ms)
    accepted_ms = seen.hold_accepted_ms
    if hold.accepted_ms is None and accepted_ms is not None and accepted_ms >= hold.asked_ms:
        hold = replace(hold, accepted_ms=accepted_ms)
    return hold


def _gone(hold: Hold, seen: TopicSeen, margins: Margins) -> bool:
    """An outdated answer would show the values from before the hold; anything else is news. Before somebody else's hold, those
    are unknown."""
    if is_held(seen.overrides):
        return False
    strange = hold.seen_ms is not None and seen.overrides != hold.found and not is_held(hold.found)
    return strange or is_news(seen, margins, hold.shown_ms, hold.accepted_ms)


def is_news(seen: TopicSeen, margins: Margins, *there_ms: int | None) -> bool:
    """Whether something that was there at these times, as far as known, is gone: the answer cannot be an outdated one."""
    times = [ms for ms in there_ms if ms is not None]
    return bool(times) and seen.asked_ms > max(times) + margins.metadata_age_ms


def _by_own_release(hold: Hold, seen: TopicSeen, margins: Margins) -> bool:
    """The guard's own late release, which overtook its next hold: the hold is requested again."""
    noticed_ms = margins.effect_ms + 2 * margins.metadata_age_ms + margins.poll_ms
    return hold.late_release_ms is not None and seen.asked_ms - hold.late_release_ms <= noticed_ms


def _stands(memory: Memory, seen: TopicSeen) -> bool:
    """Whether to ask the brokers: the topic's own hold is there, or somebody's cluster default holds it, or the guard has
    requested that."""
    hold = memory.hold
    assert hold is not None
    if hold.undone_ms is None:
        by_default = is_held_by_default(seen.default_overrides) and is_reached_by_default(seen.overrides)
        return shows_hold(seen) or by_default
    return asked_by_default(memory) and hold.default_undone_ms is None and hold.out_of_reach_ms is None


def _without_word_of_others(memory: Memory) -> Memory:
    """Brokers that held because of somebody's cluster default, or of their own settings, count only while that shows: the guard
    has set nothing that would keep them holding."""
    hold = memory.hold
    assert hold is not None
    if hold.undone_ms is None and hold.seen_ms is None:
        hold = replace(hold, confirmed=(), confirmed_ms=None)
    return move(memory, replace(memory, hold=hold), Reason.OTHERS_ENDED)


def _confirm(memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins) -> tuple[Memory, list[Action]]:
    """Asks each live broker until it confirms the hold itself: another broker's answer is not enough."""
    hold = memory.hold
    assert hold is not None
    actions: list[Action] = []
    unsafe_ms = first_unsafe_ms(cases_of(memory, seen, margins))
    confirmed = tuple(sorted({*hold.confirmed, *seen.held_on}))
    missing = tuple(broker for broker in seen.alive if broker not in confirmed)
    confirmed_ms = hold.confirmed_ms if hold.confirmed_ms is not None or missing else now_ms
    if missing:
        actions.append(AskBrokers(topic=seen.topic, brokers=missing))
        if unsafe_ms is not None and now_ms >= unsafe_ms - margins.poll_ms:
            actions += [Alarm(kind=AlarmKind.NOT_CONFIRMED, topic=seen.topic, broker=broker) for broker in missing]
    elif hold.confirmed_ms is None and unsafe_ms is not None and now_ms + margins.pass_start_ms > unsafe_ms:
        actions.append(EndPasses(topic=seen.topic))
    if hold.undone_ms is not None or is_held(seen.overrides) or hold.accepted_ms is not None:
        # Otherwise brokers hold, but not because of the guard's request, which is repeated until it is there.
        seen_ms = hold.seen_ms if hold.seen_ms is not None else seen.asked_ms
        shown_ms = hold.shown_ms if hold.shown_ms is not None else seen.asked_ms
        hold = replace(hold, seen_ms=seen_ms, shown_ms=shown_ms)
        memory = move(memory, replace(memory, hold=hold), Reason.SHOWN)
    hold = replace(hold, confirmed=confirmed, confirmed_ms=confirmed_ms)
    return move(memory, replace(memory, hold=hold), Reason.CONFIRMED), actions


def _undone(
    memory: Memory, hold: Hold, seen: TopicSeen, margins: Margins, allowed: Allowed
) -> tuple[Memory, list[Action]]:
    """Reported and left alone. Only automation, which restores exactly the values from before, gets an answer out of its
    reach."""
    there_ms = hold.seen_ms if hold.seen_ms is not None else hold.accepted_ms
    assert there_ms is not None
    robot = seen.overrides == hold.found and seen.asked_ms - there_ms <= margins.robot_ms
    kind = AlarmKind.UNDONE_BY_ROBOT if robot else AlarmKind.CHANGED_BY_PERSON
    hold = replace(hold, undone_ms=seen.asked_ms, by_robot=robot, confirmed=(), confirmed_ms=None)
    reason = Reason.ROBOT if robot else Reason.PERSON
    memory = move(memory, replace(memory, hold=hold), reason)
    memory, answer = _answer_robot(memory, hold, seen, allowed)
    return memory, [Alarm(kind=kind, topic=seen.topic), *answer]


def _answer_robot(memory: Memory, hold: Hold, seen: TopicSeen, allowed: Allowed) -> tuple[Memory, list[Action]]:
    """If the cluster default reaches the topic, and as soon as that is allowed, perhaps only after a restart."""
    reached = is_reached_by_default(seen.overrides)
    # If it is unknown, nobody could restore it. While an earlier hold's default is not restored yet, that is the one from
    # before.
    before = seen.default_overrides if memory.default_hold is None else memory.default_hold
    if hold.by_robot and reached and allowed.cluster_default and before is not None:
        hold = replace(hold, default_asked_ms=seen.asked_ms)
        after = replace(memory, hold=hold, default_hold=before)
        return move(memory, after, Reason.ANSWERED), [HoldByDefault(configs=DEFAULT_HOLD)]
    return memory, []


def _follow_default(
    memory: Memory, hold: Hold, seen: TopicSeen, margins: Margins, allowed: Allowed
) -> tuple[Memory, list[Action]]:
    """Requests the cluster default until the cluster shows it. Somebody who undoes that is a person: reported and left
    alone."""
    if not asked_by_default(memory):
        return _answer_robot(memory, hold, seen, allowed)
    if hold.default_undone_ms is not None:
        return memory, []
    memory, alarms = _follow_reach(replace(memory, hold=_learn_default_accepted(hold, seen)), seen, margins)
    assert memory.hold is not None
    hold = memory.hold
    if seen.default_overrides is None:
        # No answer says nothing about the default: neither that it is there nor that somebody undid it.
        return memory, alarms
    if is_held_by_default(seen.default_overrides):
        hold = replace(hold, default_seen_ms=seen.asked_ms)
        return move(memory, replace(memory, hold=hold), Reason.SHOWN), alarms
    undone = is_news(seen, margins, hold.default_seen_ms, hold.default_accepted_ms)
    if hold.default_seen_ms is not None and not undone:
        return memory, alarms
    if not undone:
        hold = replace(hold, default_asked_ms=seen.asked_ms, confirmed=(), confirmed_ms=None)
        memory = move(memory, replace(memory, hold=hold), Reason.NOT_SHOWN)
        return memory, [*alarms, HoldByDefault(configs=DEFAULT_HOLD)]
    hold = replace(hold, default_undone_ms=seen.asked_ms, confirmed=(), confirmed_ms=None)
    alarm = Alarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=seen.topic)
    return move(memory, replace(memory, hold=hold), Reason.DEFAULT_CHANGED), [alarm]


def _learn_default_accepted(hold: Hold, seen: TopicSeen) -> Hold:
    """Automation may also be faster than the looks here: what was accepted was there. Only a call for this hold counts, no
    earlier one."""
    accepted_ms, asked_ms = seen.default_accepted_ms, hold.default_asked_ms
    if hold.default_accepted_ms is not None or accepted_ms is None or asked_ms is None or accepted_ms < asked_ms:
        return hold
    return replace(hold, default_accepted_ms=accepted_ms)


def _follow_reach(memory: Memory, seen: TopicSeen, margins: Margins) -> tuple[Memory, list[Action]]:
    """A topic's own overrides take it out of the cluster default's reach. When they are gone, brokers are asked again."""
    hold = memory.hold
    assert hold is not None
    if is_reached_by_default(seen.overrides):
        back = hold.out_of_reach_ms is not None and is_news(seen, margins, hold.out_of_reach_ms)
        hold = replace(hold, out_of_reach_ms=None) if back else hold
        return move(memory, replace(memory, hold=hold), Reason.OVERRIDES_GONE), []
    alarm = Alarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=seen.topic)
    alarms: list[Action] = [] if hold.out_of_reach_ms is not None else [alarm]
    hold = replace(hold, out_of_reach_ms=seen.asked_ms, confirmed=(), confirmed_ms=None)
    return move(memory, replace(memory, hold=hold), Reason.OWN_OVERRIDES), alarms
