"""Holds topics while the journal cannot be written: its disk is full or broken, or another process has locked it.

A topic that is not held in time loses data; one that is held without a journal costs disk space and a person's work to restore
it. So the guard sets holds and does nothing else, and prints what each hold found and how to undo it by hand. A broker cannot
store such a note: it refuses settings that it does not know. This process writes the holds down as soon as the journal can be
written. If it ends before, the next guard sees them as *held by somebody else*.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from headstone.cluster.admin import Admin, MayHaveArrived
from headstone.cluster.refusals import NoAnswer
from headstone.coordination.absences import is_held
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    HOLD,
    Allowed,
    AskBrokers,
    Configs,
    Decision,
    Hold,
    Memory,
    SetHold,
    TopicSeen,
)
from headstone.coordination.guarding import decide
from headstone.coordination.hold_states import ENDED, state_of
from headstone.coordination.holding import found_before
from headstone.errors import Unfinished
from headstone.guard.acting.evidence import evidence
from headstone.guard.acting.outcomes import ActionOutcome, Done
from headstone.guard.ledger import commands
from headstone.guard.ledger.encoding import plain, value_of
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change, RememberedTopic
from headstone.guard.ledger.overrides import Resource, own_values
from headstone.guard.ledger.topic_identity import is_another, refuse_another
from headstone.guard.looks.look import Clock, Look, held_on

UNWRITTEN = "holds that were set without the journal"
"""Fact of the journal: holds by topic, kept until the leading guard has adopted them."""
LATER = "done, while the journal could not be written"


class Unwritten:
    """Holds of one guard. It decides from the memories in this process."""

    def __init__(self, margins: Margins, *, admin: Admin, clock: Clock) -> None:
        self._margins, self._admin, self._clock = margins, admin, clock
        self._decided: dict[str, RememberedTopic] = {}
        self._changes: dict[str, Change] = {}
        self._held_on: dict[str, tuple[int, ...]] = {}
        self._accepted_ms: dict[str, int] = {}

    def hold(self, look: Look, remembered: Callable[[str], Memory]) -> tuple[list[Done], list[str]]:
        """Returns what was done, and what a person must know of it."""
        decided = [(seen, self._decision(seen, remembered)) for seen in look.topics]
        done: list[Done] = []
        remarks: list[str] = []
        wanted = [(a, seen, decision) for seen, decision in decided for a in decision.actions if isinstance(a, SetHold)]
        for action, seen, decision in sorted(wanted, key=lambda each: each[0].by_ms):
            outcome = self._set_hold(action, seen, decision)
            done.append(Done(topic=seen.topic, action=action, outcome=outcome))
            if outcome.why is None:
                remarks.append(_remark(seen.topic, outcome.found))
        asked = {a.topic: a.brokers for _, decision in decided for a in decision.actions if isinstance(a, AskBrokers)}
        self._held_on = held_on(self._admin, asked) if asked else {}
        return done, remarks

    def _decision(self, seen: TopicSeen, remembered: Callable[[str], Memory]) -> Decision:
        topic = seen.topic
        before = self._decided[topic].memory if topic in self._decided else remembered(topic)
        if is_another(before, seen):
            before = Memory()
        held = tuple(sorted({*seen.held_on, *self._held_on.get(topic, ())}))
        seen = replace(seen, held_on=held, hold_accepted_ms=self._accepted_ms.get(topic))
        decision = decide(before, seen, self._clock(), self._margins, Allowed())
        after = decision.memory
        if state_of(before) not in ENDED and state_of(after) in ENDED:
            # A release waits until the journal can be written.
            after = replace(after, hold=before.hold, default_hold=before.default_hold)
        decision = replace(decision, memory=after)
        self._decided[topic] = RememberedTopic(memory=after, statuses=decision.statuses, looked_ms=seen.asked_ms)
        return decision

    def _set_hold(self, action: SetHold, seen: TopicSeen, decision: Decision) -> ActionOutcome:
        topic, memory, now_ms = action.topic, decision.memory, self._clock()
        try:
            refuse_another(self._admin, topic, memory.topic_id)
            previous = found_before(memory, own_values(self._admin, Resource(topic=topic), [name for name, _ in HOLD]))
            self._admin.alter_topic(topic, dict(action.configs), repeatable=True)
        except (NoAnswer, MayHaveArrived) as error:
            return ActionOutcome(why=str(error), unanswered=True)
        except Unfinished as error:
            return ActionOutcome(why=str(error))
        assert memory.hold is not None
        self._accepted_ms[topic] = self._clock()
        kept = replace(memory, hold=replace(memory.hold, found=previous, accepted_ms=self._accepted_ms[topic]))
        self._decided[topic] = replace(self._decided[topic], memory=kept)
        self._changes.setdefault(topic, Change(
            resource=str(Resource(topic=topic)), topic=topic, old=previous, new=action.configs, reason=action.reason,
            evidence=evidence(seen, decision.statuses), began_ms=now_ms,
        ))  # fmt: skip
        return ActionOutcome(found=previous)

    @property
    def waits(self) -> bool:
        """True if something is still to be written down."""
        return bool(self._decided)

    def write_down(self, journal: Journal, *, holder: str, goes_on: bool) -> None:
        """Raises Unfinished while the journal cannot be written, and keeps everything for the next try.

        `goes_on`: `holder` leads, and no other guard has led since. Another guard would know more by now."""
        if self._changes:
            holds = {topic: plain(self._hold_of(topic)) for topic in self._changes}
            notes = json.loads(journal.fact(UNWRITTEN) or "{}")
            journal.note_fact(UNWRITTEN, json.dumps({**notes, **holds}))
        for topic in list(self._changes):
            entry = self._changes[topic]
            journal.end(journal.begin(entry), LATER, now_ms=entry.began_ms)
            del self._changes[topic]
        if goes_on:
            journal.remember_all(self._decided, holder=holder, now_ms=self._clock())
        self._decided, self._held_on = {}, {}

    def _hold_of(self, topic: str) -> Hold:
        hold = self._decided[topic].memory.hold
        assert hold is not None
        return hold


def _remark(topic: str, previous: Configs) -> str:
    return (
        f"topic {topic} is held without the journal: if this guard ends before it can write there, nothing else knows what it "
        f"found; to undo it by hand: {commands.release(topic, previous, bootstrap='HOSTS')}"
    )


def adopt(journal: Journal, *, holder: str, now_ms: int) -> Sequence[str]:
    """The topics whose holds the leading guard adopts; it will release them to the values that were found."""
    text = journal.fact(UNWRITTEN)
    if text is None:
        return ()
    holds, adopted = json.loads(text), {}
    for topic, item in holds.items():
        remembered = journal.remembered(topic)
        if remembered.memory.hold is None or is_held(remembered.memory.hold.found):
            memory = replace(remembered.memory, hold=value_of(Hold, item))
            adopted[topic] = replace(remembered, memory=memory)
    journal.remember_all(adopted, holder=holder, now_ms=now_ms)
    journal.note_fact(UNWRITTEN, None)
    return sorted(holds)
