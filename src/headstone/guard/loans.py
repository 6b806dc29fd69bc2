"""Settings that a readmission changes for a while: a hold of the topic, a limit for the copy. Put back exactly as found.

What was found is in the journal before it is changed, so that the next run of a killed one puts it back. What somebody else has
changed meanwhile is theirs, and stays. Which settings, and when, is decided elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import HOLD, Configs
from headstone.guard.journal import Change, Journal
from headstone.guard.memories import plain, value_of
from headstone.guard.overrides import Resource, change, own_values
from headstone.guard.topic_identity import still_there
from headstone.log.topic_partition import TopicPartition

LOANS = "settings of readmissions to put back"
"""Fact of the journal."""
THROTTLED, RATE = "follower.replication.throttled.replicas", "follower.replication.throttled.rate"
"""Of the topic, and of the broker that copies. Only the one that copies is limited: leaders serve nobody else by it."""
EVERYBODY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """Of a topic, or of one broker. `found` are its own overrides of before; None: there was none."""

    topic: str | None = None
    broker: int | None = None
    found: Configs
    lent: Configs
    topic_id: str | None = None

    @property
    def resource(self) -> Resource:
        return Resource(topic=self.topic, broker=self.broker)


def loans(journal: Journal) -> list[Loan]:
    return [value_of(Loan, item) for item in json.loads(journal.fact(LOANS) or "[]")]


def _keep(journal: Journal, kept: Sequence[Loan]) -> None:
    journal.note_fact(LOANS, json.dumps([plain(loan) for loan in kept]) if kept else None)


def lend_hold(admin: Admin, journal: Journal, topic: str, *, reason: str, evidence: str, now_ms: int) -> None:
    found = own_values(admin, Resource(topic=topic), [name for name, _ in HOLD])
    _lend(admin, journal, Loan(topic=topic, found=found, lent=HOLD), reason=reason, evidence=evidence, now_ms=now_ms)


def lend_brake(
    admin: Admin, journal: Journal, partition: TopicPartition, broker: int, *, bytes_per_second: int, evidence: str,
    now_ms: int,
) -> None:  # fmt: skip
    """Where somebody limits it already, that stays as it is."""
    reason = f"broker {broker} copies {partition} afresh, at {bytes_per_second} bytes a second"
    ((_, rate),) = own_values(admin, Resource(broker=broker), [RATE])
    if rate is None:
        loan = Loan(broker=broker, found=((RATE, None),), lent=((RATE, str(bytes_per_second)),))
        _lend(admin, journal, loan, reason=reason, evidence=evidence, now_ms=now_ms)
    ((_, listed),) = own_values(admin, Resource(topic=partition.topic), [THROTTLED])
    wanted = with_replica(listed, partition.number, broker)
    if wanted != listed:
        loan = Loan(topic=partition.topic, found=((THROTTLED, listed),), lent=((THROTTLED, wanted),))
        _lend(admin, journal, loan, reason=reason, evidence=evidence, now_ms=now_ms)


def is_braked(admin: Admin, partition: TopicPartition, broker: int) -> bool:
    ((_, rate),) = own_values(admin, Resource(broker=broker), [RATE])
    ((_, listed),) = own_values(admin, Resource(topic=partition.topic), [THROTTLED])
    return rate is not None and listed == with_replica(listed, partition.number, broker)


def with_replica(listed: str | None, partition: int, broker: int) -> str:
    """Kafka's list of throttled replicas, such as 0:1,0:2, with one more; * is everybody."""
    members = [member for member in (listed or "").split(",") if member]
    wanted = f"{partition}:{broker}"
    if EVERYBODY in members or wanted in members:
        return listed or ""
    return ",".join([*members, wanted])


def _lend(admin: Admin, journal: Journal, loan: Loan, *, reason: str, evidence: str, now_ms: int) -> None:
    """What was found first is what goes back, however often it is lent."""
    if loan.topic is not None:
        loan = replace(loan, topic_id=admin.describe([loan.topic]).topic_ids.get(loan.topic))
    known = loans(journal)
    same = [
        other
        for other in known
        if other.resource == loan.resource and other.topic_id == loan.topic_id and _names(other) == _names(loan)
    ]
    if same:
        first = replace(loan, found=same[0].found)
        _keep(journal, [first if other == same[0] else other for other in known])
    else:
        _keep(journal, [*known, loan])
    _changed(admin, journal, loan, loan.found, loan.lent, reason, evidence, now_ms)


def _names(loan: Loan) -> list[str]:
    return [name for name, _ in loan.lent]


def put_back(admin: Admin, journal: Journal, loan: Loan, *, evidence: str, now_ms: int) -> list[str]:
    """What could not be put back, in words: somebody else's values stay. `evidence`: who does it, or by whose word."""
    if is_gone(admin, loan):
        forget_loan(journal, loan)
        return [f"{loan.resource} was deleted meanwhile: there is nothing to put back"]
    present, found = dict(own_values(admin, loan.resource, _names(loan))), dict(loan.found)
    ours = [(name, value) for name, value in loan.lent if present[name] == value and found.get(name) != value]
    others = [name for name, value in loan.lent if present[name] not in (value, found.get(name))]
    if ours:
        restore = tuple((name, found.get(name)) for name, _ in ours)
        reason = "the readmission is over: as it was found"
        _changed(admin, journal, loan, tuple(ours), restore, reason, evidence, now_ms)
    forget_loan(journal, loan)
    return [
        f"{loan.resource}: {name} was changed by somebody else meanwhile and stays {present[name]}" for name in others
    ]


def before_loans(journal: Journal, resource: Resource, present: Configs, *, topic_id: str | None = None) -> Configs:
    """What these settings go back to: what was found, where what was lent still stands; somebody else's stay."""
    before = dict(present)
    for loan in loans(journal):
        if loan.resource == resource and loan.topic_id in (None, topic_id):
            lent, found = dict(loan.lent), dict(loan.found)
            before |= {name: found.get(name) for name, value in present if name in lent and lent[name] == value}
    return tuple(before.items())


def is_counted_on(journal: Journal, loan: Loan) -> bool:
    """The guard found this hold and relies on it: it would take whoever puts it back for a person, and hold no more."""
    hold = journal.memory(loan.topic).hold if loan.topic is not None and loan.lent == HOLD else None
    return hold is not None and hold.undone_ms is None and hold.released_ms is None


def is_gone(admin: Admin, loan: Loan) -> bool:
    """Its topic is, with all that was lent; one of the same name is another."""
    return loan.topic is not None and not still_there(admin.describe([loan.topic]), loan.topic, loan.topic_id)


def forget_loan(journal: Journal, loan: Loan) -> None:
    """Of a topic that is gone: there is nothing to put back."""
    _keep(journal, [other for other in loans(journal) if other != loan])


def _changed(
    admin: Admin, journal: Journal, loan: Loan, old: Configs, new: Configs, reason: str, evidence: str, now_ms: int
) -> None:  # fmt: skip
    entry = Change(
        resource=str(loan.resource),
        topic=loan.topic,
        old=old,
        new=new,
        reason=reason,
        evidence=evidence,
        began_ms=now_ms,
    )
    change(admin, journal, loan.resource, entry)
