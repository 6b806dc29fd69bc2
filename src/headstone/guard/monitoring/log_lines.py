"""The guard's news in words: what has changed since the previous round, what was or would be done, what a person must do.

One line each, for a terminal or a log. Names are escaped, so that they cannot control a terminal. Values in, words out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import (
    Action,
    AddAgain,
    Alarm,
    AskBrokers,
    Configs,
    EndPasses,
    Expel,
    HoldByDefault,
    Release,
    ReleaseDefault,
    SetHold,
    State,
    Status,
    Verify,
)
from headstone.guard.acting.outcomes import Done, is_held
from headstone.guard.ledger.journal_values import KeptAlarm
from headstone.guard.loop.alarms import advice, names_topic
from headstone.guard.loop.rounds import Round
from headstone.guard.monitoring.grouping import (
    ALIKE_MAX,
    across_topics,
    alarms_together,
    ranges,
    statuses_across,
    together,
    waiting_together,
)
from headstone.guard.monitoring.status import GuardedTopicStatus
from headstone.log.shown import visible
from headstone.units import brief_duration, count, duration, moment, size

NAMES_MAX = 8


def news(before: Round | None, now: Round, *, applies: bool, poll_ms: int) -> Iterator[str]:
    """Leaves out what has not changed since `before`."""
    yield from _leadership(before, now)
    if now.lost is not None:
        problems_before = set() if before is None else set(before.problems)
        if before is None or before.lost != now.lost:
            goes_on = (
                f"{'nothing but holds' if applies else 'nothing'} is done, and what is held stays held, until it can"
            )
            yield (
                f"{visible(now.lost)}: {goes_on}" if now.unwritten
                else f"cannot look at the cluster: {visible(now.lost)}; what is held stays held; retrying"
            )  # fmt: skip
        if now.unwritten:
            yield from _done(before, now, applies=applies)
            yield from (visible(text) for text in now.problems if text not in problems_before and text != now.lost)
        else:
            yield from _alarms(before, now)
        return
    if before is not None and before.lost is not None:
        yield "the journal can be written again" if before.unwritten else "the cluster answers again"
    problems_before = set(before.problems) if before is not None else set()
    yield from (visible(problem) for problem in now.problems if problem not in problems_before)
    if _too_slow(now, poll_ms) and (before is None or not _too_slow(before, poll_ms)):
        yield (
            f"this look took {duration(now.ended_ms - now.began_ms)}, longer than --poll-ms {brief_duration(poll_ms)}: raise "
            "--poll-ms"
        )
    yield from _states(before, now)
    if now.leads:
        yield from _done(before, now, applies=applies)
    yield from _alarms(before, now)


def in_short(now: Round) -> str:
    """One look of the leading guard in one line, for a person who must also hear that nothing happened. For a guard that stands
    by, use `not_looked`."""
    assert now.leads, "another guard looks"
    held = sum(is_held(memory) for memory in now.memories.values())
    calm = not now.alarms and not now.problems and not held and _counts(now).keys() <= {State.FINE}
    seconds = (now.ended_ms - now.began_ms) / 1000
    return (
        f"{'all is well: ' if calm else ''}looked at {_what(now)} on {count(len(now.brokers), 'broker')} in {seconds:.1f} s; "
        f"{held or 'nothing'} held{_alarms_counted(now)}"
    )


def not_looked(now: Round, held: Sequence[str]) -> str:
    """Like `in_short`, for a guard that stands by. `held`: held topics, according to the journal."""
    leads = f"{visible(now.lease.holder)} leads" + ("" if now.lease.applies else ", in a dry run")
    if now.looked_ms is None:
        return f"this guard did not look: {leads}, and has not looked yet"
    return (
        f"this guard did not look: {leads}; its journal of {moment(now.looked_ms)} has {_what(now)}; "
        f"{f'{len(held)} held: {first_names(held)}' if held else 'nothing held'}{_alarms_counted(now)}"
    )


def first_names(names: Sequence[str]) -> str:
    return ", ".join(map(visible, names[:NAMES_MAX])) + (", ..." if len(names) > NAMES_MAX else "")


def _counts(now: Round) -> Counter[State]:
    return Counter(status.state for statuses in now.statuses.values() for status in statuses)


def _what(now: Round) -> str:
    counts = _counts(now)
    states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items())) or "none"
    return f"{count(len(now.statuses), 'topic')} with {count(counts.total(), 'partition')} ({states})"


def _alarms_counted(now: Round) -> str:
    return "" if not now.alarms else f", {count(len(now.alarms), 'alarm')}"


def _leadership(before: Round | None, now: Round) -> Iterator[str]:
    if before is not None and (before.leads, before.lease.holder) == (now.leads, now.lease.holder):
        return
    if not now.leads:
        what = "leads" if now.lease.applies else "leads, in a dry run"
        until = moment(now.lease.until_ms)
        yield (
            f"standing by: {visible(now.lease.holder)} {what}; this guard takes over if that one does not renew its lease by "
            f"{until}"
        )
    elif before is not None:
        yield "leading now"


def _states(before: Round | None, now: Round) -> Iterator[str]:
    changed = {}
    for topic, statuses in now.statuses.items():
        statuses_before = (
            {} if before is None else {status.partition: status for status in before.statuses.get(topic, ())}
        )
        changed[topic] = [status for status in statuses if _is_news(statuses_before.get(status.partition), status)]
    alike, left = statuses_across(changed)
    if alike:
        counts = _counts(now)
        fine = f"{counts[State.FINE]} of {counts.total()} are fine"
        for status, partitions in alike:
            where = f"{_topics_words(list(partitions))}, {count(sum(partitions.values()), 'partition')}"
            yield f"{where}: {status_words(status)}; {fine}"
    for topic, some in left.items():
        statuses = now.statuses[topic]
        for status, numbers in together(some):
            if len(numbers) == 1:
                yield f"{visible(topic)}-{numbers[0]}: {status_words(status)}"
            else:
                fine_here = sum(one.state is State.FINE for one in statuses)
                yield (
                    f"{visible(topic)}: {count(len(numbers), 'partition')} ({ranges(numbers)}) {status_words(status)}; "
                    f"{fine_here} of {len(statuses)} are fine"
                )


def _topics_words(topics: Sequence[str], *, all_of_them: bool = False) -> str:
    names = ", ".join(map(visible, topics)) if all_of_them else first_names(topics)
    return f"{count(len(topics), 'topic')} ({names})"


def _is_news(old: Status | None, status: Status) -> bool:
    usual = State.FINE if old is None else old.state
    return status.state is not usual or (old is not None and status.blockers != old.blockers)


def partitions_words(topic: str, partitions: Sequence[int]) -> str:
    """A single partition by its name, several by their count."""
    if len(partitions) == 1:
        return f"{topic}-{partitions[0]}"
    return f"{topic}, {count(len(partitions), 'partition')} ({ranges(partitions)})"


def status_words(status: Status) -> str:
    if not status.blockers or status.since_ms is None:
        return str(status.state)
    who = ("broker " if len(status.blockers) == 1 else "brokers ") + ", ".join(map(str, status.blockers))
    return f"{status.state}: {who} behind since {moment(status.since_ms)}, {_danger(status)}"


def _danger(status: Status) -> str:
    if not status.unsafe_ms or status.countdown_ms is None:
        return "it is unknown what it has missed"
    if status.unsafe_ms >= NEVER_MS:
        return "nothing it lacks is ever removed"
    if status.state is State.HELD:
        return f"held before {moment(status.unsafe_ms)}, when removals would become unsafe"
    if status.countdown_ms <= 0:
        return f"unsafe for {duration(-status.countdown_ms)}"
    return f"first unsafe removal in {duration(status.countdown_ms)}"


def _done(before: Round | None, now: Round, *, applies: bool) -> Iterator[str]:
    done_before = set() if before is None else {(done.topic, _key(done.action)) for done in before.done}
    is_new = [
        _is_told(done, applies=applies, new=(done.topic, _key(done.action)) not in done_before) for done in now.done
    ]
    news_done = [(done.topic, done) for done, told in zip(now.done, is_new, strict=True) if told]
    across = across_topics(news_done, _alike)
    for group in across.alike:
        first = next(iter(group.values()))[0]
        yield f"{_verb(first, applies=applies)}{':' if applies else ''} {_words_across(group, now.ended_ms)}"
    wished: dict[tuple[str, int], list[Done]] = {}
    for topic, done in across.rest:
        if isinstance(done.action, Verify):
            wished.setdefault((topic, done.action.broker), []).append(done)
    for (topic, broker), readings in wished.items():
        if len(readings) > ALIKE_MAX:
            what = f"{count(len(readings), 'partition')} of {visible(topic)} on broker {broker}"
            yield f"{'wanted' if applies else 'would'}: read {what} and compare each with the others"
    for topic, done in across.rest:
        if not isinstance(done.action, Verify) or len(wished[topic, done.action.broker]) <= ALIKE_MAX:
            yield f"{_verb(done, applies=applies)}{':' if applies else ''} {action_words(done, now.ended_ms)}"


def _is_told(done: Done, *, applies: bool, new: bool) -> bool:
    """`new`: the previous round did not want it."""
    if isinstance(done.action, AskBrokers):
        return False
    if not applies or isinstance(done.action, Verify):
        return new
    return done.outcome is not None and done.outcome.why is None and done.outcome.needed


def _verb(done: Done, *, applies: bool) -> str:
    return "would" if not applies else "wanted" if isinstance(done.action, Verify) else "done"


def _alike(done: Done) -> object | None:
    """What makes actions of several topics alike; for a hold: the values that it found."""
    match done.action:
        case SetHold():
            return SetHold, () if done.outcome is None else done.outcome.found
        case Release(restore=restore):
            return Release, restore
        case Verify(broker=broker):
            return Verify, broker
    return None


def _words_across(group: Mapping[str, Sequence[Done]], now_ms: int) -> str:
    topics, everything = list(group), [done for some in group.values() for done in some]
    first = everything[0]
    match first.action:
        case SetHold():
            holds = [done.action for done in everything if isinstance(done.action, SetHold)]
            reasons = {hold.reason for hold in holds}
            why = f" ({holds[0].reason})" if len(reasons) == 1 else ""
            previous = () if first.outcome is None else first.outcome.found
            own = any(value is not None for _, value in previous)
            by = _by_words(min(hold.by_ms for hold in holds), now_ms)
            return f"hold {_topics_words(topics, all_of_them=own)}{why}, {by}{_found_words(first)}"
        case Release():
            return f"release {_topics_words(topics)}: {configs_words(first.action.restore)}"
        case Verify():
            where = f"{count(len(everything), 'partition')} of {_topics_words(topics)} on broker {first.action.broker}"
            return f"read {where} and compare each with the others"
    raise AssertionError(f"{first.action} is told by itself")


def _key(action: Action) -> object:
    """A dry run wants the same hold at every look, with a deadline that moves a little."""
    return (SetHold, action.topic) if isinstance(action, SetHold) else action


def _too_slow(done: Round, poll_ms: int) -> bool:
    return done.whole and done.ended_ms - done.began_ms > poll_ms


def action_words(done: Done, now_ms: int) -> str:
    action, topic = done.action, visible(done.topic)
    match action:
        case SetHold():
            return f"hold topic {topic} ({action.reason}), {_by_words(action.by_ms, now_ms)}{_found_words(done)}"
        case AskBrokers():
            return f"ask brokers {', '.join(map(str, action.brokers))} whether they have the hold of {topic}"
        case EndPasses():
            return f"restart cleaner threads: the hold of {topic} came close to the moment of danger"
        case Verify():
            return f"read {topic}-{action.partition} on broker {action.broker} and compare it with the others"
        case Release():
            return f"release topic {topic}: {configs_words(action.restore)}"
        case HoldByDefault():
            why = f"automation reverts the hold of {topic}"
            return f"hold all topics without overrides by the cluster default: {why}{_found_words(done)}"
        case ReleaseDefault():
            return f"release the cluster default: {configs_words(action.restore)}"
        case Expel():
            remaining = ", ".join(map(str, action.remaining))
            return f"take broker {action.broker} out of {topic}-{action.partition}: it stays on {remaining}"
        case AddAgain():
            order = ", ".join(map(str, action.order))
            return f"add broker {action.broker} to {topic}-{action.partition} again to re-replicate it: {order}"
        case Alarm():
            return f"raise an alarm: {action.kind}"
    assert_never(action)


def _by_words(by_ms: int, now_ms: int) -> str:
    return f"to be in effect by {moment(by_ms)}" if by_ms > now_ms else "at once: it may be too late already"


def _found_words(done: Done) -> str:
    """A person who has lost the journal finds here what to restore."""
    previous = () if done.outcome is None else done.outcome.found
    values = (f"{name}={'(not set)' if value is None else visible(value)}" for name, value in previous)
    return f"; found {', '.join(values)}" if previous else ""


def configs_words(restore: Configs) -> str:
    return ", ".join(f"{name} {'deleted' if value is None else f'back to {visible(value)}'}" for name, value in restore)


def _alarms(before: Round | None, now: Round) -> Iterator[str]:
    alarms_before = set() if before is None else {_alarm_key(alarm) for alarm in before.alarms}
    present = {_alarm_key(alarm) for alarm in now.alarms}
    yield from _alarm_lines("ALARM", [alarm for alarm in now.alarms if _alarm_key(alarm) not in alarms_before])
    if before is not None:
        yield from _alarm_lines("over:", [old for old in before.alarms if _alarm_key(old) not in present])


def _alarm_lines(begins: str, alarms: Sequence[KeptAlarm]) -> Iterator[str]:
    advised = begins == "ALARM"
    across = across_topics(((alarm.topic, alarm) for alarm in alarms), _same_alarm)
    for group in across.alike:
        everything = [alarm for some in group.values() for alarm in some]
        where = _topics_words(list(group))
        if partitions := sum(alarm.partition is not None for alarm in everything):
            where += f", {count(partitions, 'partition')}"
        yield f"{begins} {alarm_words(everything[0], advised=advised, where=where)}"
    for alarm, numbers in alarms_together(alarm for _, alarm in across.rest):
        yield f"{begins} {alarm_words(alarm, advised=advised, partitions=numbers)}"


def _same_alarm(alarm: KeptAlarm) -> object | None:
    """Alarms with the same advice; None if the advice names the topic, so that each gets its own line."""
    return None if names_topic(alarm) else (alarm.kind, alarm.broker, alarm.detail)


def _alarm_key(alarm: KeptAlarm) -> tuple[object, ...]:
    return alarm.kind, alarm.topic, alarm.partition, alarm.broker


def alarm_words(
    alarm: KeptAlarm, *, advised: bool = True, partitions: Sequence[int] = (), where: str = ""
) -> str:  # fmt: skip
    """`partitions` or `where`: everything that the alarm stands for; the other words are the first one's."""
    where = where or visible(alarm.topic) + ("" if alarm.partition is None else f"-{alarm.partition}")
    if partitions:
        where = partitions_words(visible(alarm.topic), partitions)
    where += "" if alarm.broker is None else f", broker {alarm.broker}"
    words = ": ".join(filter(None, (where, alarm.kind, visible(alarm.detail))))
    return "; ".join(filter(None, (words, advice(alarm) if advised else "")))


def topic_lines(topic: GuardedTopicStatus, now_ms: int) -> Iterator[str]:
    name = visible(topic.topic)
    if topic.held is not None:
        held = topic.held
        effect = (
            f"in effect since {moment(held.confirmed_ms)}"
            if held.confirmed_ms is not None
            else "not in effect everywhere"
        )
        effect = f"undone at {moment(held.undone_ms)}" if held.undone_ms is not None and not held.by_default else effect
        brokers = ", ".join(map(str, held.confirmed)) or "none"
        how = "by the cluster default " if held.by_default else ""
        yield f"{name}: held {how}for {duration(now_ms - held.since_ms)}, {effect}; brokers that have it: {brokers}"
        if held.reason:
            yield f"  why: {visible(held.reason)}"
        if held.bytes_held_back is not None:
            yield f"  grown by {size(held.bytes_held_back)} since"
        yield f"  goes back to: {configs_words(held.found)}"
    for status, partitions in together(topic.worrying):
        yield f"  {partitions_words(name, partitions)}: {status_words(status)}"
    for waiting, partitions in waiting_together(topic.waiting):
        where = "out of the assignment" if waiting.expelled_ms is not None else "assigned, and must not lead"
        waits = "waits" if len(partitions) == 1 else "wait"
        yield f"  {partitions_words(name, partitions)} on broker {waiting.broker} {waits} for readmission: {where}"
