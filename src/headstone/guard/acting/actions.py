"""Carries out the actions of a round, for all topics, while the guard leads; keeps what the next round needs to know of them.

That is: which brokers confirmed a hold, when a hold was accepted, and which cleaner threads did not restart. `changes.py`
carries out a single action. Readings and readmissions are only requested here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from headstone.cluster.admin import Admin
from headstone.coordination.danger import Margins
from headstone.coordination.freshness import is_void
from headstone.coordination.guard_values import (
    Action,
    AddAgain,
    Alarm,
    AskBrokers,
    Decision,
    EndPasses,
    Expel,
    HoldByDefault,
    Memory,
    ReleaseDefault,
    SetHold,
    TopicSeen,
    Verify,
)
from headstone.guard.acting.changes import carry_out, holds_by_default
from headstone.guard.acting.evidence import evidence
from headstone.guard.acting.outcomes import ActionOutcome, Done, is_held
from headstone.guard.acting.readmission_port import ReadmissionPort
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.memory import Recollection
from headstone.guard.looks.look import held_on

END_TRIES_MAX = 10
URGENT = (SetHold, HoldByDefault, AskBrokers, EndPasses)
Decided = Mapping[str, tuple[Memory, Decision]]
"""By topic: the memory before the decision, and the decision."""


@dataclass(slots=True)
class _Shared:
    """What one round asks or changes once for all of its topics."""

    asked: Mapping[str, Sequence[int]]
    """Brokers to ask whether they have applied the topic's hold."""
    held_on: dict[str, tuple[int, ...]] | None = None
    """Brokers that confirmed the hold, by topic; None if not asked yet."""
    by_default: frozenset[str] | None = None
    """Topics that are held by the cluster default; None if not read yet."""
    outcomes: dict[type[Action], ActionOutcome] = field(default_factory=dict)


class Actions:
    """The actions of the guard `name`."""

    def __init__(
        self, name: str, *, lease_ms: int, margins: Margins, admin: Admin, journal: Journal, clock: Callable[[], int],
        recollection: Recollection, readmissions: ReadmissionPort | None,
    ) -> None:  # fmt: skip
        self.failed = 0
        self.default_accepted_ms: int | None = None
        self._name, self._lease_ms, self._margins = name, lease_ms, margins
        self._admin, self._journal, self._clock = admin, journal, clock
        self._recollection, self._readmissions = recollection, readmissions
        self._held_on: dict[str, tuple[int, ...]] = {}
        self._end_tries: dict[str, int] = {}
        self._accepted_ms: dict[str, int] = {}

    def held_on(self, topic: str) -> tuple[int, ...]:
        """Brokers that confirmed the hold when they were asked in the previous round. A second call returns nothing."""
        return self._held_on.pop(topic, ())

    def accepted_ms(self, topic: str) -> int | None:
        return self._accepted_ms.get(topic)

    def forget_answers(self) -> None:
        """Called when another guard may have led since."""
        self._held_on.clear()

    def forget(self, topic: str) -> None:
        self._held_on.pop(topic, None)
        self._accepted_ms.pop(topic, None)
        self._end_tries.pop(topic, None)

    def wanted(self, decided: Decided) -> list[tuple[str, Action]]:
        """In order of urgency, without alarms: those follow from the state after the round."""
        actions = [
            (topic, action)
            for topic, (_, decision) in decided.items()
            for action in decision.actions
            if not isinstance(action, Alarm)
        ]
        return sorted([*actions, *self._unended(decided)], key=lambda wanted: _urgency(wanted[1]))

    def _unended(self, decided: Decided) -> list[tuple[str, Action]]:
        """`EndPasses` is decided once, when a hold is confirmed. If it was refused, it is tried again up to END_TRIES_MAX
        times."""
        wanted: list[tuple[str, Action]] = []
        for topic, tries in list(self._end_tries.items()):
            if topic in decided and (tries > END_TRIES_MAX or not is_held(decided[topic][1].memory)):
                del self._end_tries[topic]
            elif topic in decided:
                wanted.append((topic, EndPasses(topic=topic)))
        return wanted

    def carry_out(self, decided: Decided, seen: Mapping[str, TopicSeen]) -> list[Done]:
        """Raises LeaseLost as soon as another guard leads; actions carried out before that stand."""
        done = []
        wanted = self.wanted(decided)
        shared = _Shared({topic: action.brokers for topic, action in wanted if isinstance(action, AskBrokers)})
        for topic, action in wanted:
            if isinstance(action, EndPasses):
                # Decided only once: if this round ends before it is carried out, the next one does it.
                self._end_tries.setdefault(topic, 0)
        for topic, action in wanted:
            outcome = self._carried_out(topic, action, decided[topic][1], seen[topic], shared)
            done.append(Done(topic=topic, action=action, outcome=outcome))
        return done

    def _carried_out(
        self, topic: str, action: Action, decision: Decision, seen: TopicSeen, shared: _Shared
    ) -> ActionOutcome:  # fmt: skip
        if isinstance(action, Verify):
            return ActionOutcome()
        void = partial(self._is_void, action, decision, seen)
        if isinstance(action, Expel | AddAgain):
            if self._readmissions is not None and not void():
                self._readmissions.want(action, void)
            return ActionOutcome(needed=False)
        text = evidence(seen, decision.statuses)
        outcome = shared.outcomes.get(type(action)) or self._asked(topic, action, text, shared, void)
        if isinstance(action, EndPasses | ReleaseDefault) and outcome.needed:
            # One change serves all topics: report a success once, a failure for each topic.
            shared.outcomes[type(action)] = outcome if outcome.why is not None else ActionOutcome(needed=False)
        if outcome.held_on:
            self._held_on[topic] = outcome.held_on
        if isinstance(action, EndPasses):
            tries = self._end_tries.pop(topic, 0)
            if outcome.why is not None:
                self._end_tries[topic] = tries + 1
        if isinstance(action, SetHold) and outcome.why is None:
            self._accepted_ms[topic] = self._clock()
        if isinstance(action, HoldByDefault) and outcome.why is None:
            self.default_accepted_ms = self._clock()
        return outcome

    def _is_void(self, action: Action, decision: Decision, seen: TopicSeen) -> bool:
        return is_void(action, decision.memory, seen, self._clock(), self._margins)

    def _asked(
        self, topic: str, action: Action, text: str, shared: _Shared, void: Callable[[], bool]
    ) -> ActionOutcome:  # fmt: skip
        now_ms = self._clock()
        # Before every action: many topics, or one slow broker, can outlast the lease.
        lease = self._journal.renew(self._name, now_ms=now_ms, lease_ms=self._lease_ms)
        if isinstance(action, AskBrokers):
            shared.held_on = shared.held_on or held_on(self._admin, shared.asked)
            return ActionOutcome(held_on=shared.held_on[topic])
        if isinstance(action, ReleaseDefault) and shared.by_default is None:
            shared.by_default = self._by_default()
        other_topics = None if shared.by_default is None else shared.by_default - {topic}
        outcome = carry_out(
            action, self._admin, self._journal, now_ms=now_ms, topic=topic, evidence=text, other_topics=other_topics,
            void=lambda: void() or self._clock() >= lease.until_ms, recollection=self._recollection,
        )  # fmt: skip
        self.failed += outcome.why is not None
        return outcome

    def _by_default(self) -> frozenset[str]:
        """From memories in this process: reading all of them from disk could outlast the lease."""
        memory = self._recollection.memory
        return frozenset(topic for topic in self._journal.names() if holds_by_default(memory(topic)))


def _urgency(action: Action) -> tuple[int, int]:
    """Holds come first, ordered by deadline: nothing that may take long comes before them."""
    place = next((place for place, kind in enumerate(URGENT) if isinstance(action, kind)), len(URGENT))
    return place, action.by_ms if isinstance(action, SetHold) else 0
