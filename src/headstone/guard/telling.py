"""The guard's news in words: what has changed since the round before, what was done or would be, what a person must do.

One line each, for a terminal or a log; names are shown so that no terminal obeys them. Values in, words out.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from headstone.guard.actions import Done
from headstone.guard.alarms import advice
from headstone.guard.evidence import moment
from headstone.guard.journal import KeptAlarm
from headstone.guard.watching import Round
from headstone.log.shown import visible


def news(before: Round | None, now: Round, *, applies: bool, poll_ms: int) -> Iterator[str]:
    """What is as it was is not told again."""
    yield from _leadership(before, now)
    if now.lost is not None:
        if before is None or before.lost != now.lost:
            what = "no look" if now.unwritten else "no look at the cluster"
            yield f"{what}: {visible(now.lost)}; what is held stays held, trying again"
        return
    if before is not None and before.lost is not None:
        yield "the journal can be written again" if before.unwritten else "the cluster answers again"
    known = set(before.problems) if before is not None else set()
    yield from (visible(problem) for problem in now.problems if problem not in known)
    if _too_slow(now, poll_ms) and (before is None or not _too_slow(before, poll_ms)):
        yield f"this look took {now.ended_ms - now.began_ms} ms, longer than --poll-ms {poll_ms}: raise --poll-ms, a margin"
    yield from _states(before, now)
    if now.leads:
        yield from _done(before, now, applies=applies)
    yield from _alarms(before, now)


def _leadership(before: Round | None, now: Round) -> Iterator[str]:
    if before is not None and (before.leads, before.lease.holder) == (now.leads, now.lease.holder):
        return
    if not now.leads:
        what = "leads" if now.lease.applies else "leads, in a dry run"
        until = moment(now.lease.until_ms)
        yield f"standing by: {visible(now.lease.holder)} {what}; takes over if that one is silent until {until}"
    elif before is not None:
        yield "leading now"


def _states(before: Round | None, now: Round) -> Iterator[str]:
    for topic, statuses in now.statuses.items():
        known = {} if before is None else {status.partition: status for status in before.statuses.get(topic, ())}
        for status in statuses:
            old = known.get(status.partition)
            usual = State.FINE if old is None else old.state
            if status.state is not usual or (old is not None and status.blockers != old.blockers):
                yield f"{visible(topic)}-{status.partition}: {status_words(status)}"


def status_words(status: Status) -> str:
    if not status.blockers or status.since_ms is None:
        return str(status.state)
    who = ("broker " if len(status.blockers) == 1 else "brokers ") + ", ".join(map(str, status.blockers))
    return f"{status.state}: {who} behind since {moment(status.since_ms)}, {_danger(status)}"


def _danger(status: Status) -> str:
    if not status.unsafe_ms or status.countdown_ms is None:
        return "nobody knows what it has missed"
    if status.unsafe_ms >= NEVER_MS:
        return "nothing it lacks is ever removed"
    if status.state is State.HELD:
        return f"held before {moment(status.unsafe_ms)}, when removals would become unsafe"
    if status.countdown_ms <= 0:
        return f"unsafe for {duration(-status.countdown_ms)}"
    return f"first unsafe removal in {duration(status.countdown_ms)}"


def duration(span_ms: int) -> str:
    """The two largest units: 1 d 2 h, 3 min 20 s; milliseconds only below a second."""
    if 0 < span_ms < 1000:
        return f"{span_ms} ms"
    left = span_ms // 1000
    parts: list[str] = []
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def _done(before: Round | None, now: Round, *, applies: bool) -> Iterator[str]:
    known = set() if before is None else {(done.topic, _key(done.action)) for done in before.done}
    for done in now.done:
        if isinstance(done.action, AskBrokers):
            continue
        words = action_words(done)
        if not applies:
            if (done.topic, _key(done.action)) not in known:
                yield f"would {words}"
        elif isinstance(done.action, Verify):
            if (done.topic, _key(done.action)) not in known:
                yield f"wanted: {words}"
        elif done.outcome is not None and done.outcome.why is None and done.outcome.needed:
            yield f"done: {words}"


def _key(action: Action) -> object:
    """A dry run wants the same again at every look, by a deadline that moves a little."""
    return (SetHold, action.topic) if isinstance(action, SetHold) else action


def _too_slow(done: Round, poll_ms: int) -> bool:
    return done.whole and done.ended_ms - done.began_ms > poll_ms


def action_words(done: Done) -> str:
    action, topic = done.action, visible(done.topic)
    match action:
        case SetHold():
            by = f"in effect by {moment(action.by_ms)}" if action.by_ms > 0 else "at once: it may be too late already"
            return f"hold topic {topic} ({action.reason}), {by}"
        case AskBrokers():
            return f"ask brokers {', '.join(map(str, action.brokers))} whether they have the hold of {topic}"
        case EndPasses():
            return f"restart cleaner threads: the hold of {topic} came close to the moment of danger"
        case Verify():
            return f"read {topic}-{action.partition} on broker {action.broker} and compare it with the others"
        case Release():
            return f"release topic {topic}: {configs_words(action.restore)}"
        case HoldByDefault():
            return f"hold all topics without overrides by the cluster default: a robot undoes the hold of {topic}"
        case ReleaseDefault():
            return f"release the cluster default: {configs_words(action.restore)}"
        case Expel():
            remaining = ", ".join(map(str, action.remaining))
            return f"take broker {action.broker} out of {topic}-{action.partition}: it stays on {remaining}"
        case AddAgain():
            order = ", ".join(map(str, action.order))
            return f"add broker {action.broker} to {topic}-{action.partition} again, to copy afresh: {order}"
        case Alarm():
            return f"raise an alarm: {action.kind}"
    assert_never(action)


def configs_words(restore: Configs) -> str:
    return ", ".join(f"{name} {'deleted' if value is None else f'back to {visible(value)}'}" for name, value in restore)


def _alarms(before: Round | None, now: Round) -> Iterator[str]:
    known = set() if before is None else {_alarm_key(alarm) for alarm in before.alarms}
    present = {_alarm_key(alarm) for alarm in now.alarms}
    yield from (f"ALARM {alarm_words(alarm)}" for alarm in now.alarms if _alarm_key(alarm) not in known)
    if before is not None:
        yield from (
            f"over: {alarm_words(old, advised=False)}" for old in before.alarms if _alarm_key(old) not in present
        )


def _alarm_key(alarm: KeptAlarm) -> tuple[object, ...]:
    return alarm.kind, alarm.topic, alarm.partition, alarm.broker


def alarm_words(alarm: KeptAlarm, *, advised: bool = True) -> str:
    where = visible(alarm.topic) + ("" if alarm.partition is None else f"-{alarm.partition}")
    where += "" if alarm.broker is None else f", broker {alarm.broker}"
    words = ": ".join(filter(None, (where, alarm.kind, visible(alarm.detail))))
    return "; ".join(filter(None, (words, advice(alarm) if advised else "")))
