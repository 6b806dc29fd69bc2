"""Alarms: which stand after a decision, and what a person should do about each in the present state.

An alarm of one kind may stand in more than one state: `detail` names the state, and the advice fits it. docs/guard.md has more
on each kind. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headstone.coordination.guard_values import HOLD, Alarm, AlarmKind, Allowed, Decision, Memory, Verdict, Verify
from headstone.coordination.hold_states import ENDED, STANDING, HoldState, state_of
from headstone.divergence.kafka_tools import quoted
from headstone.guard.ledger import commands
from headstone.guard.ledger.journal_values import KeptAlarm, Lease, ReplicaReading
from headstone.guard.verification.reasons import DAMAGED, DIFFERENT_LOGS, DIFFERS, WITHHELD
from headstone.log.shown import visible

CLUSTER_LOST = "the cluster cannot be looked at"
JOURNAL_LOST = "the journal cannot be written"
"""The journal cannot keep this alarm: the guard logs it, and its metrics show it."""
OTHER_TOPICS = "another guard leads, of other topics"
REFUSED = "a change was refused"
UNANSWERED = "a change was not answered"
UNSEEN = "part of the cluster cannot be seen"
UNREADABLE = "a replica cannot be read"
BY_DEFAULT = "the cluster default holds it instead"
DEFAULT_ASKED = "the cluster default was asked for, and not every broker has it"
OUT_OF_REACH = "the cluster default does not reach overrides of its own"
DEFAULT_CHANGED = "of the cluster default"
ONLY_COPY = "it is the only copy, and was made without a hold"
BY_ITSELF = "with --allow readmission"
REASONS_MAX = 5
JUDGED = (AlarmKind.WRONG, AlarmKind.UNJUDGED)
"""Kinds for which a reading has details."""
LACKS = "this user lacks"
"""In every refusal that names a missing permission."""
ADVICE: dict[str | tuple[str, str], str] = {
    AlarmKind.UNDONE_BY_ROBOT: "configure the automation to leave the three settings alone, or restart the guard with --allow "
                               "cluster-default",
    (AlarmKind.UNDONE_BY_ROBOT, BY_DEFAULT): "configure the automation to leave the three settings alone: until then every "
                                             "topic without its own overrides is held too",
    (AlarmKind.UNDONE_BY_ROBOT, DEFAULT_ASKED): "configure the automation to leave the three settings alone, and find out why "
                                                "brokers do not apply the cluster default: until they do, the countdown "
                                                "continues",
    (AlarmKind.UNDONE_BY_ROBOT, OUT_OF_REACH): "configure the automation to leave the three settings alone, or bring the "
                                               "replica back in time",
    AlarmKind.CHANGED_BY_PERSON: "the guard leaves it alone: set the hold again yourself, or bring the replica back in time",
    (AlarmKind.CHANGED_BY_PERSON, OUT_OF_REACH): "delete the topic's own values of the three settings, which it got while the "
    "cluster default held it; or bring the replica back in time",
    AlarmKind.FOREIGN_HOLD: "probably by a guard with another journal, by one that lost or could not write its journal, or by "
                            "a person; a guard's log line `done: hold topic` shows the original settings. Once every replica "
                            "is in sync, undo it",
    AlarmKind.NOT_CONFIRMED: "this broker may still clean: find out why it does not apply the config, or stop it",
    AlarmKind.TOO_LATE: "it must not lead: headstone guard readmit",
    (AlarmKind.TOO_LATE, BY_ITSELF): "it must not lead: the guard checks it when it is back and re-replicates it; keep it "
                                     "running",
    AlarmKind.WRONG: "it must not lead: headstone guard readmit",
    (AlarmKind.WRONG, BY_ITSELF): "it must not lead: the guard re-replicates it once the topic is held and enough other "
                                  "replicas are in sync",
    AlarmKind.UNJUDGED: "nothing shows that it is wrong: bring the other replicas back, and it is checked again; remove "
                        "replicas that are gone for good from the assignment",
    (AlarmKind.UNJUDGED, ONLY_COPY): "no other copy is left to compare it with, and this alarm comes once: compare it with the "
                                     "source of the data, or load its keys from there again",
    (AlarmKind.UNJUDGED, DIFFERS): "find out which one is wrong: compare them, then re-replicate that one with headstone guard "
                                   "readmit --broker N",
    (AlarmKind.UNJUDGED, DIFFERENT_LOGS): "copy nothing: one of these brokers has the log of another partition, of a deleted "
                                          "topic, or of another cluster; find out which",
    (AlarmKind.UNJUDGED, WITHHELD): "its broker still treats a finished transaction as open: if that lasts, re-replicate it "
                                    "with headstone guard readmit --broker N",
    (AlarmKind.UNJUDGED, DAMAGED): "repair or replace that broker's disk; then re-replicate it with headstone guard readmit "
                                   "--broker N",
    AlarmKind.RETENTION_TOO_SHORT: "raise delete.retention.ms, or synchronize the brokers' clocks: headstone guard check",
    REFUSED: "remove the named cause: the guard retries at every look",
    UNANSWERED: "the next look shows whether it was applied, and the guard retries; find out why the broker does not answer",
    UNREADABLE: "fix the named cause: the guard retries at every look, and topics are held until it succeeds",
    UNSEEN: "find out why the broker does not answer",
    CLUSTER_LOST: "what is held stays held; find out why the brokers do not answer",
    JOURNAL_LOST: "meanwhile a guard with --apply still holds topics, but does nothing else: find out what locks the file or "
                  "fills its disk",
    OTHER_TOPICS: "stop one of the two, or start both for the same topics: this one takes over when the other has ended",
}  # fmt: skip
"""What a person does, by kind, or by kind and detail where that makes a difference."""


PERMISSIONS = {
    REFUSED: "give the guard the named permission: it retries at every look",
    UNREADABLE: "give the guard the named permission: it retries at every look, and topics are held until it succeeds",
    UNSEEN: "give the guard the named permission",
}
"""Advice if a permission is missing."""


def advice(alarm: KeptAlarm) -> str:
    if alarm.kind in PERMISSIONS and LACKS in alarm.detail:
        return PERMISSIONS[alarm.kind]
    told_apart = [
        text
        for key, text in ADVICE.items()
        if isinstance(key, tuple) and key[0] == alarm.kind and f"{alarm.detail}: ".startswith(f"{key[1]}: ")
    ]
    words = told_apart[0] if told_apart else ADVICE.get(alarm.kind, "")
    return ": ".join(filter(None, (words, _command(alarm))))


def names_topic(alarm: KeptAlarm) -> bool:
    """True if the advice differs from topic to topic."""
    return bool(_command(alarm))


def _command(alarm: KeptAlarm) -> str:
    """The command to run, if it depends on the topic."""
    if alarm.kind in JUDGED and alarm.detail != ONLY_COPY:
        return f"all findings: headstone audit --bootstrap HOSTS --topic {quoted(alarm.topic)}"
    if alarm.kind == AlarmKind.FOREIGN_HOLD:
        return commands.release(alarm.topic, tuple((name, None) for name, _ in HOLD), bootstrap="HOSTS")
    return ""


def other_topics(lease: Lease, topics: Sequence[str]) -> str | None:
    """Why this guard, configured for `topics`, cannot stand by for the leading one; None if it can."""
    if set(lease.topics) == set(topics):
        return None
    return (
        f"guard {visible(lease.holder)} leads with this journal and watches {_named(lease.topics)}; this one is configured to "
        f"watch {_named(topics)}, which no guard would watch"
    )


def _named(topics: Sequence[str]) -> str:
    return ", ".join(visible(topic) for topic in sorted(topics)) or "every compacted topic"


def standing(
    topic: str, decision: Decision, reasons: Sequence[str], allowed: Allowed, *, applies: bool,
    readings: Sequence[ReplicaReading] = (), unanswered: Sequence[str] = (),
) -> list[KeptAlarm]:  # fmt: skip
    """What a person must know now. Some alarms are decided once, and stand until their cause is over.

    `reasons`: why changes of this topic were refused. `unanswered`: why it is not known whether they were made. `readings`: the
    topic's newest ones, including those of this look."""
    itself = BY_ITSELF if allowed.readmission and applies else ""
    details = {AlarmKind.TOO_LATE: itself, AlarmKind.WRONG: itself}
    problems: dict[tuple[int | None, int | None], str] = {
        (one.partition, one.broker): one.detail for one in readings if one.verdict not in (None, Verdict.RIGHT)
    }
    away = {(absence.partition, absence.broker) for absence in decision.memory.away}
    alarms = [
        KeptAlarm(
            kind=action.kind, topic=topic, partition=action.partition, broker=action.broker,
            detail=": ".join(filter(None, (
                ONLY_COPY if action.kind is AlarmKind.UNJUDGED and (action.partition, action.broker) not in away
                else details.get(action.kind, ""),
                problems.get((action.partition, action.broker), "") if action.kind in JUDGED else "",
            ))),
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
    for kind, texts in ((REFUSED, reasons), (UNANSWERED, unanswered)):
        if texts:
            alarms.append(KeptAlarm(kind=kind, topic=topic, detail="; ".join(sorted(set(texts)))))
    unique = {(alarm.kind, alarm.partition, alarm.broker): alarm for alarm in alarms}
    return list(unique.values())


def is_about_readings(decision: Decision) -> bool:
    """True if a replica is to be read, was found wrong, or could not be judged."""
    return any(
        isinstance(action, Verify) or (isinstance(action, Alarm) and action.kind in JUDGED)
        for action in decision.actions
    )


def _unreadable(topic: str, decision: Decision, readings: Sequence[ReplicaReading]) -> Iterator[KeptAlarm]:
    """Replicas that the guard wants to read and, since they are back, could not."""
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


def of_cluster(problems: Sequence[str], unread: Sequence[str], *, unseen_ms: int | None) -> list[KeptAlarm]:
    """Alarms about the whole cluster after a look: what the look did not show, and topics that this user may not read. A
    missing answer becomes an alarm only once it has lasted (`unseen_ms`), a missing permission at once."""
    causes = {
        UNSEEN: problems if unseen_ms is not None else [text for text in problems if LACKS in text],
        UNREADABLE: unread,
    }
    return [
        KeptAlarm(kind=kind, detail="; ".join(reasons[:REASONS_MAX])) for kind, reasons in causes.items() if reasons
    ]


def _undone(topic: str, memory: Memory, allowed: Allowed) -> Iterator[KeptAlarm]:
    """While the hold is missing."""
    state = state_of(memory)
    if state in ENDED | STANDING:
        return
    if memory.hold is not None and not memory.hold.by_robot:
        yield KeptAlarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=topic)
    elif state is HoldState.DEFAULT_UNDONE:
        yield KeptAlarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=topic, detail=DEFAULT_CHANGED)
    elif state is HoldState.OUT_OF_REACH:
        yield KeptAlarm(kind=AlarmKind.CHANGED_BY_PERSON, topic=topic, detail=OUT_OF_REACH)
    elif state is HoldState.UNDONE_BY_ROBOT:
        detail = OUT_OF_REACH if allowed.cluster_default else ""
        yield KeptAlarm(kind=AlarmKind.UNDONE_BY_ROBOT, topic=topic, detail=detail)
    else:
        detail = BY_DEFAULT if state is HoldState.BY_DEFAULT else DEFAULT_ASKED
        yield KeptAlarm(kind=AlarmKind.UNDONE_BY_ROBOT, topic=topic, detail=detail)
