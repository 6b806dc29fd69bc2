"""Alarms: which stand after a decision, and what a person does about each, as things are then.

An alarm of one kind may stand in more than one state; `detail` says which, and the advice fits it. docs/guard.md has more words
on every kind. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headstone.coordination.absences import in_effect
from headstone.coordination.guard_values import Alarm, AlarmKind, Allowed, Decision, Memory, Verify
from headstone.guard.journal import KeptAlarm, Lease, Reading
from headstone.log.shown import visible

CLUSTER_LOST = "the cluster cannot be looked at"
JOURNAL_LOST = "the journal cannot be written"
OTHER_TOPICS = "another guard leads, of other topics"
REFUSED = "a change was refused"
UNSEEN = "part of the cluster cannot be seen"
UNREADABLE = "a replica cannot be read"
BY_DEFAULT = "the cluster default holds it instead"
DEFAULT_ASKED = "the cluster default was asked for, and not every broker has it"
OUT_OF_REACH = "the cluster default does not reach overrides of its own"
DEFAULT_CHANGED = "of the cluster default"
BY_ITSELF = "with --allow readmission"
REASONS_MAX = 5
ADVICE: dict[str | tuple[str, str], str] = {
    AlarmKind.UNDONE_BY_ROBOT: "tell the robot to leave the three settings alone, or restart the guard with --allow "
    "cluster-default",
    (AlarmKind.UNDONE_BY_ROBOT, BY_DEFAULT): "tell the robot to leave the three settings alone: until then every topic without "
    "overrides of its own is held too",
    (AlarmKind.UNDONE_BY_ROBOT, DEFAULT_ASKED): "tell the robot to leave the three settings alone, and see why brokers do not "
    "take the cluster default: until they do, the countdown goes on",
    (AlarmKind.UNDONE_BY_ROBOT, OUT_OF_REACH): "tell the robot to leave the three settings alone, or bring the replica back in "
    "time",
    AlarmKind.CHANGED_BY_PERSON: "the guard leaves it: set the hold again yourself, or bring the replica back in time",
    (AlarmKind.CHANGED_BY_PERSON, OUT_OF_REACH): "delete the topic's own values of the three settings, which it got while the "
    "cluster default held it; or bring the replica back in time",
    AlarmKind.FOREIGN_HOLD: "nobody here knows who set it: ask, and remove it once every replica is in sync",
    AlarmKind.NOT_CONFIRMED: "this broker may still clean: see why it does not take the config, or stop it",
    AlarmKind.TOO_LATE: "it must not lead: headstone guard readmit",
    (AlarmKind.TOO_LATE, BY_ITSELF): "it must not lead: the guard reads it when it is back, and lets it copy afresh; keep it "
    "running",
    AlarmKind.WRONG: "it must not lead: headstone guard readmit",
    (AlarmKind.WRONG, BY_ITSELF): "it must not lead: the guard lets it copy afresh, once the topic is held and enough others "
    "are in sync",
    AlarmKind.RETENTION_TOO_SHORT: "raise delete.retention.ms, or set clocks right that differ: headstone guard check",
    REFUSED: "give the guard the permission that is named, or remove what else is named: it asks again at every look",
    UNREADABLE: "give the guard READ on the topic, or see to what else is named: it is tried again at every look, and topics "
    "are held until it succeeds",
    UNSEEN: "give the guard the permission that is named, or see why the broker does not answer",
    CLUSTER_LOST: "what is held stays held; see why the brokers do not answer",
    JOURNAL_LOST: "nothing is decided meanwhile, and what is held stays held: see who locks the file, or what fills its disk",
    OTHER_TOPICS: "end one of the two, or start both for the same topics: this one takes over when that one has ended",
}  # fmt: skip
"""What a person does, by kind, or by kind and detail where that makes a difference."""


def advice(alarm: KeptAlarm) -> str:
    return ADVICE.get((alarm.kind, alarm.detail)) or ADVICE.get(alarm.kind, "")


def other_topics(lease: Lease, topics: Sequence[str]) -> str | None:
    """Why this guard, which is to watch `topics`, is no stand-by for the one that leads; None: it is, or nobody knows."""
    if lease.topics is None or set(lease.topics) == set(topics):
        return None
    return (
        f"guard {visible(lease.holder)} leads with this journal and watches {_named(lease.topics)}; this one is to watch "
        f"{_named(topics)}, which nobody would guard"
    )


def _named(topics: Sequence[str]) -> str:
    return ", ".join(visible(topic) for topic in sorted(topics)) or "every compacted topic"


def standing(
    topic: str, decision: Decision, reasons: Sequence[str], allowed: Allowed, *, applies: bool,
    readings: Sequence[Reading] = (),
) -> list[KeptAlarm]:  # fmt: skip
    """What a person must know now: some alarms are decided once, and stand until what they are about is over.

    `reasons` are why changes of this topic were refused, `readings` are its newest ones, of this look too."""
    itself = BY_ITSELF if allowed.readmission and applies else ""
    details = {AlarmKind.TOO_LATE: itself, AlarmKind.WRONG: itself}
    alarms = [
        KeptAlarm(
            kind=action.kind, topic=topic, partition=action.partition, broker=action.broker,
            detail=details.get(action.kind, ""),
        )
        for action in decision.actions
        if isinstance(action, Alarm)
    ]  # fmt: skip
    alarms += [
        KeptAlarm(
            kind=AlarmKind.TOO_LATE, topic=topic, partition=away.partition, broker=away.broker,
            detail=details[AlarmKind.TOO_LATE],
        )
        for away in decision.memory.away
        if away.too_late or away.order
    ]  # fmt: skip
    alarms += _undone(topic, decision.memory, allowed)
    alarms += _unreadable(topic, decision, readings)
    if reasons:
        alarms.append(KeptAlarm(kind=REFUSED, topic=topic, detail="; ".join(sorted(set(reasons)))))
    unique = {(alarm.kind, alarm.partition, alarm.broker): alarm for alarm in alarms}
    return list(unique.values())


def wants_reading(decision: Decision) -> bool:
    return any(isinstance(action, Verify) for action in decision.actions)


def _unreadable(topic: str, decision: Decision, readings: Sequence[Reading]) -> Iterator[KeptAlarm]:
    """Whom the guard wants to read and, since it is back, could not."""
    failed = {(reading.partition, reading.broker): reading for reading in readings if reading.verdict is None}
    returned_ms = {(away.partition, away.broker): away.returned_ms or 0 for away in decision.memory.away}
    for action in decision.actions:
        if isinstance(action, Verify):
            reading = failed.get((action.partition, action.broker))
            if reading is not None and reading.read_ms >= returned_ms[action.partition, action.broker]:
                yield KeptAlarm(
                    kind=UNREADABLE,
                    topic=topic,
                    partition=action.partition,
                    broker=action.broker,
                    detail=reading.detail,
                )


def of_cluster(problems: Sequence[str], unread: Sequence[str]) -> list[KeptAlarm]:
    """What stands of the whole after a look: what it did not show, and leaders from which it may not read what those that are
    away have missed."""
    told = {UNSEEN: problems, UNREADABLE: unread}
    return [KeptAlarm(kind=kind, detail="; ".join(reasons[:REASONS_MAX])) for kind, reasons in told.items() if reasons]


def _undone(topic: str, memory: Memory, allowed: Allowed) -> Iterator[KeptAlarm]:
    """As long as the hold is missed."""
    hold = memory.hold
    if hold is None or hold.undone_ms is None or hold.released_ms is not None:
        return
    if not hold.by_robot:
        yield KeptAlarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=topic)
    elif hold.default_undone_ms is not None:
        yield KeptAlarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=topic, detail=DEFAULT_CHANGED)
    elif hold.out_of_reach_ms is not None:
        yield KeptAlarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=topic, detail=OUT_OF_REACH)
    else:
        detail = OUT_OF_REACH if allowed.cluster_default else ""
        if memory.default_hold is not None:
            detail = BY_DEFAULT if in_effect(memory) else DEFAULT_ASKED
        yield KeptAlarm(kind=AlarmKind.UNDONE_BY_ROBOT, topic=topic, detail=detail)
