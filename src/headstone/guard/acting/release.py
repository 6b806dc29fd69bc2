"""Undoes the guard's holds: restores exactly what the journal says was found, and only where the guard's own values still
stand.

Plans first. Carrying the plan out also notifies a running guard, which then leaves the topic alone until every replica is back.
Prints nothing: `ledger/commands.py` has the commands for Kafka's own tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headstone.cluster.admin import Admin, MayHaveArrived
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Configs, Memory
from headstone.coordination.hold_states import ENDED, state_of
from headstone.divergence.kafka_tools import Bootstrap
from headstone.errors import Unfinished, UsageError
from headstone.guard.acting.changes import (
    default_restored,
    holds_by_default,
    restore_default,
    restore_topic,
)
from headstone.guard.acting.deleted_topics import end_topic
from headstone.guard.ledger import commands
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.overrides import CLUSTER_DEFAULT, Resource, TooLate, Void, own_values
from headstone.guard.ledger.readmissions import LOCK_SECONDS_MAX, alone
from headstone.guard.ledger.temporary_changes import (
    TemporaryChange,
    default_before,
    is_gone,
    put_back,
    temporary_changes,
)
from headstone.guard.ledger.topic_identity import still_there
from headstone.guard.looks.look_age import Clock, grows_old, steady_ms

REASON = "released by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """One release: of a topic, of a broker, or (neither) of the cluster default. `restore`: None deletes the override.

    `left`: settings that somebody else has changed since; they stay. `outcome`: None in a plan. `temporary`: a change by a
    manual readmission that has not been put back. `gone`: the topic was deleted, and its overrides with it. `asked_ms`:
    identifies the hold to undo, so that a later one is not undone.
    """

    topic: str | None
    restore: Configs
    left: Configs = ()
    outcome: str | None = None
    broker: int | None = None
    temporary: TemporaryChange | None = None
    gone: bool = False
    asked_ms: int | None = None


def plan_release(admin: Admin, journal: Journal, topics: Sequence[str]) -> list[Undo]:
    """If `topics` is empty: everything that the journal says is held."""
    held = {name: kept.memory for name, kept in journal.topics().items() if state_of(kept.memory) not in ENDED}
    open_changes = [temporary for temporary in temporary_changes(journal) if not topics or temporary.topic in topics]
    for topic in topics:
        if topic not in held and topic not in {temporary.topic for temporary in open_changes}:
            names_held = ", ".join(sorted(held)) or "nothing"
            raise UsageError(f"topic {topic}: not held by this journal, which holds {names_held}")
    chosen = {name: memory for name, memory in held.items() if not topics or name in topics}
    plan = [_of_topic(admin, name, memory) for name, memory in chosen.items()]
    by_default = [name for name, memory in held.items() if holds_by_default(memory)]
    if by_default and set(by_default) <= chosen.keys():
        previous = next(memory.default_hold for name, memory in held.items() if name == by_default[0])
        plan.append(_of_default(admin, default_restored(journal, previous or ())))
    elif not by_default and not topics and default_before(journal) is not None:
        plan.append(_of_default(admin, default_restored(journal, DEFAULT_HOLD)))
    return plan + [_of_temporary_change(admin, temporary) for temporary in open_changes]


def _of_topic(admin: Admin, topic: str, memory: Memory) -> Undo:
    assert memory.hold is not None
    if not still_there(admin.describe([topic]), topic, memory.topic_id):
        return Undo(topic=topic, restore=(), gone=True)
    present = dict(own_values(admin, Resource(topic=topic), [name for name, _ in HOLD]))
    undo = _undo(topic, present, dict(HOLD), dict(memory.hold.found))
    return replace(undo, asked_ms=memory.hold.asked_ms)


def _of_temporary_change(admin: Admin, temporary: TemporaryChange) -> Undo:
    if is_gone(admin, temporary):
        return Undo(topic=temporary.topic, restore=(), temporary=temporary, gone=True)
    present = own_values(admin, temporary.resource, [name for name, _ in temporary.new])
    undo = _undo(temporary.topic, dict(present), dict(temporary.new), dict(temporary.old))
    return replace(undo, broker=temporary.broker, temporary=temporary)


def _of_default(admin: Admin, previous: Configs) -> Undo:
    return _undo(
        None,
        dict(own_values(admin, CLUSTER_DEFAULT, [name for name, _ in DEFAULT_HOLD])),
        dict(DEFAULT_HOLD),
        dict(previous),
    )


def _undo(
    topic: str | None, present: Mapping[str, str | None], held: Mapping[str, str | None], previous: Mapping[str, str | None]
) -> Undo:  # fmt: skip
    names = [name for name, value in held.items() if present.get(name) == value and previous.get(name) != value]
    left = [name for name, value in held.items() if present.get(name) not in (value, previous.get(name))]
    return Undo(
        topic=topic, restore=tuple((name, previous.get(name)) for name in names),
        left=tuple((name, present.get(name)) for name in left),
    )  # fmt: skip


def undo_commands(undo: Undo, bootstrap: Bootstrap) -> list[str]:
    if not undo.restore:
        return []
    if undo.broker is not None:
        return [commands.release_broker(undo.broker, undo.restore, bootstrap=bootstrap)]
    if undo.topic is None:
        return [commands.release_default(undo.restore, bootstrap=bootstrap)]
    return [commands.release(undo.topic, undo.restore, bootstrap=bootstrap)]


def undo_document(undo: Undo, bootstrap: Bootstrap) -> dict[str, object]:
    return {
        "topic": undo.topic, "broker": undo.broker, "restore": dict(undo.restore), "left": dict(undo.left),
        "gone": undo.gone, "outcome": undo.outcome, "commands": undo_commands(undo, bootstrap),
    }  # fmt: skip


def carry_out_release(
    admin: Admin, journal: Journal, plan: Sequence[Undo], *, now_ms: int, evidence: str, steady: Clock = steady_ms
) -> list[Undo]:
    """Each release on its own: one that is refused does not stop the others. One during which this process was suspended for
    too long is not carried out: the guard may hold for another replica by then."""
    done = []
    for undo in plan:
        topic = undo.topic if undo.temporary is None and not undo.gone else None
        void = grows_old(steady)
        before_ms = None if topic is None else journal.released().get(topic)
        if topic is not None:
            # First: a guard that looks in between must not take the change for automation.
            journal.note_released(topic, now_ms=now_ms)
        try:
            _restore(admin, journal, undo, now_ms, evidence, void)
        except Unfinished as error:
            if topic is not None and not isinstance(error, MayHaveArrived):
                # The hold stands: if the guard took it for released, its replicas would come too late.
                _take_back(journal, topic, before_ms)
            done.append(replace(undo, outcome=f"failed: {error}"))
            continue
        done.append(replace(undo, outcome="done"))
    return done


def _take_back(journal: Journal, topic: str, released_ms: int | None) -> None:
    if released_ms is None:
        journal.forget_released(topic)
    else:
        journal.note_released(topic, now_ms=released_ms)


def _restore(admin: Admin, journal: Journal, undo: Undo, now_ms: int, evidence: str, void: Void) -> None:
    if undo.temporary is not None:
        with alone(journal, seconds_max=LOCK_SECONDS_MAX):
            put_back(admin, journal, undo.temporary, evidence=evidence, now_ms=now_ms, void=void)
    elif undo.gone and undo.topic is not None:
        end_topic(journal, undo.topic, why=REASON, now_ms=now_ms)
    elif undo.topic is None:
        restore_default(
            admin, journal, undo.restore, topic="", reason=REASON, evidence=evidence, now_ms=now_ms, void=void
        )
    elif undo.restore:
        _refuse_later_hold(journal, undo.topic, undo.asked_ms)
        restore_topic(
            admin, journal, undo.topic, undo.restore, reason=REASON, evidence=evidence, now_ms=now_ms, void=void
        )


def _refuse_later_hold(journal: Journal, topic: str, asked_ms: int | None) -> None:
    hold = journal.memory(topic).hold
    if hold is None or hold.asked_ms != asked_ms:
        raise TooLate(f"topic {topic}: the planned hold has ended in the meantime: nothing was changed; run it again")
