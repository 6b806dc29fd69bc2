"""Undoes what the guard holds: exactly what its journal says it found, and only where its own values still stand.

A plan first; carrying it out tells a guard that is running, which then leaves the topic alone until everybody is back. Prints
nothing: the commands for Kafka's own tools are `commands.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headstone.cluster.admin import Admin, MayHaveArrived
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Configs, Memory
from headstone.errors import Unfinished, UsageError
from headstone.guard.acting import (
    DEFAULT_FOUND,
    default_restored,
    holds_by_default,
    restore_default,
    restore_topic,
)
from headstone.guard.gone_topics import end_topic
from headstone.guard.journal import Journal
from headstone.guard.loans import Loan, is_gone, loans, put_back
from headstone.guard.overrides import CLUSTER_DEFAULT, Resource, own_values
from headstone.guard.readmission_records import LOCK_SECONDS_MAX, alone
from headstone.guard.topic_identity import still_there

REASON = "released by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Of one topic, of one broker, or of the cluster default (neither). `restore`: None deletes the override.

    `left` are settings that somebody else has changed since; they stay as they are. `outcome` is None in a plan. `loan`: what
    a readmission by hand has set and not put back. `gone`: the topic was deleted, and what was set of it with it.
    """

    topic: str | None
    restore: Configs
    left: Configs = ()
    outcome: str | None = None
    broker: int | None = None
    loan: Loan | None = None
    gone: bool = False


def plan_release(admin: Admin, journal: Journal, topics: Sequence[str]) -> list[Undo]:
    """`topics` empty: everything that the journal says is held."""
    held = {
        name: kept.memory
        for name, kept in journal.topics().items()
        if kept.memory.hold is not None and kept.memory.hold.released_ms is None
    }
    lent = [loan for loan in loans(journal) if not topics or loan.topic in topics]
    for topic in topics:
        if topic not in held and topic not in {loan.topic for loan in lent}:
            known = ", ".join(sorted(held)) or "nothing"
            raise UsageError(f"topic {topic}: this journal does not hold it; it holds {known}")
    chosen = {name: memory for name, memory in held.items() if not topics or name in topics}
    plan = [_of_topic(admin, name, memory) for name, memory in chosen.items()]
    by_default = [name for name, memory in held.items() if holds_by_default(memory)]
    if by_default and set(by_default) <= chosen.keys():
        found = next(memory.default_hold for name, memory in held.items() if name == by_default[0])
        plan.append(_of_default(admin, default_restored(journal, found or ())))
    elif not by_default and not topics and journal.fact(DEFAULT_FOUND) is not None:
        plan.append(_of_default(admin, default_restored(journal, DEFAULT_HOLD)))
    return plan + [_of_loan(admin, loan) for loan in lent]


def _of_topic(admin: Admin, topic: str, memory: Memory) -> Undo:
    assert memory.hold is not None
    if not still_there(admin.describe([topic]), topic, memory.topic_id):
        return Undo(topic=topic, restore=(), gone=True)
    present = dict(own_values(admin, Resource(topic=topic), [name for name, _ in HOLD]))
    return _undo(topic, present, dict(HOLD), dict(memory.hold.found))


def _of_loan(admin: Admin, loan: Loan) -> Undo:
    if is_gone(admin, loan):
        return Undo(topic=loan.topic, restore=(), loan=loan, gone=True)
    present = own_values(admin, loan.resource, [name for name, _ in loan.lent])
    undo = _undo(loan.topic, dict(present), dict(loan.lent), dict(loan.found))
    return replace(undo, broker=loan.broker, loan=loan)


def _of_default(admin: Admin, found: Configs) -> Undo:
    return _undo(
        None,
        dict(own_values(admin, CLUSTER_DEFAULT, [name for name, _ in DEFAULT_HOLD])),
        dict(DEFAULT_HOLD),
        dict(found),
    )


def _undo(
    topic: str | None, present: Mapping[str, str | None], held: Mapping[str, str | None], found: Mapping[str, str | None]
) -> Undo:  # fmt: skip
    ours = [name for name, value in held.items() if present.get(name) == value and found.get(name) != value]
    left = [name for name, value in held.items() if present.get(name) not in (value, found.get(name))]
    return Undo(
        topic=topic, restore=tuple((name, found.get(name)) for name in ours),
        left=tuple((name, present.get(name)) for name in left),
    )  # fmt: skip


def carry_out_release(
    admin: Admin, journal: Journal, plan: Sequence[Undo], *, now_ms: int, evidence: str
) -> list[Undo]:
    """Each on its own: what is refused does not keep the others."""
    done = []
    before = journal.released()
    for undo in plan:
        topic = undo.topic if undo.loan is None and not undo.gone else None
        if topic is not None:
            # Before: a guard that looks in between must not take it for a robot.
            journal.note_released(topic, now_ms=now_ms)
        try:
            _restore(admin, journal, undo, now_ms, evidence)
        except Unfinished as error:
            if topic is not None and not isinstance(error, MayHaveArrived):
                # The hold stands: a guard that took it for released would let its replicas come too late.
                _take_back(journal, topic, before.get(topic))
            done.append(replace(undo, outcome=f"failed: {error}"))
            continue
        done.append(replace(undo, outcome="done"))
    return done


def _take_back(journal: Journal, topic: str, released_ms: int | None) -> None:
    if released_ms is None:
        journal.forget_released(topic)
    else:
        journal.note_released(topic, now_ms=released_ms)


def _restore(admin: Admin, journal: Journal, undo: Undo, now_ms: int, evidence: str) -> None:
    if undo.loan is not None:
        with alone(journal, seconds_max=LOCK_SECONDS_MAX):
            put_back(admin, journal, undo.loan, evidence=evidence, now_ms=now_ms)
    elif undo.gone and undo.topic is not None:
        end_topic(journal, undo.topic, why=REASON, now_ms=now_ms)
    elif undo.topic is None:
        restore_default(admin, journal, undo.restore, topic="", reason=REASON, evidence=evidence, now_ms=now_ms)
    elif undo.restore:
        restore_topic(admin, journal, undo.topic, undo.restore, reason=REASON, evidence=evidence, now_ms=now_ms)
