"""The actions of a round: of all topics, carried out while the guard leads, and what is remembered of them until the next.

Who said itself that it holds a topic, when a hold was accepted, which cleaner threads did not restart. How one action is
carried out is `acting.py`'s; readings and readmissions are only wished for here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import (
    Action,
    AddAgain,
    Alarm,
    Decision,
    EndPasses,
    Expel,
    Memory,
    SetHold,
    TopicSeen,
    Verify,
)
from headstone.guard.acting import Outcome, carry_out
from headstone.guard.evidence import evidence
from headstone.guard.journal import Journal
from headstone.guard.readmitting import OwnReadmissions
from headstone.guard.recollection import Recollection

END_TRIES_MAX = 10
Decided = Mapping[str, tuple[Memory, Decision]]
"""By topic: what was remembered, and what was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An action of one topic; outcome is None if it was only wished for: a dry run, or another guard leads."""

    topic: str
    action: Action
    outcome: Outcome | None


class Actions:
    """Of one guard, `name`."""

    def __init__(
        self, name: str, *, admin: Admin, journal: Journal, clock: Callable[[], int], recollection: Recollection,
        readmissions: OwnReadmissions | None,
    ) -> None:  # fmt: skip
        self.failed = 0
        self._name, self._admin, self._journal, self._clock = name, admin, journal, clock
        self._recollection, self._readmissions = recollection, readmissions
        self._held_on: dict[str, tuple[int, ...]] = {}
        self._end_tries: dict[str, int] = {}
        self._accepted_ms: dict[str, int] = {}

    def held_on(self, topic: str) -> tuple[int, ...]:
        """Brokers that said so when they were asked in the round before: told once."""
        return self._held_on.pop(topic, ())

    def accepted_ms(self, topic: str) -> int | None:
        return self._accepted_ms.get(topic)

    def forget(self, topic: str) -> None:
        self._held_on.pop(topic, None)
        self._accepted_ms.pop(topic, None)
        self._end_tries.pop(topic, None)

    def wanted(self, decided: Decided) -> list[tuple[str, Action]]:
        """Alarms apart: they are told by what stands."""
        actions = [
            (topic, action)
            for topic, (_, decision) in decided.items()
            for action in decision.actions
            if not isinstance(action, Alarm)
        ]
        return [*actions, *self._unended(decided)]

    def _unended(self, decided: Decided) -> list[tuple[str, Action]]:
        """Passes are asked to end once, when a hold is confirmed: what was refused is asked for again, some times."""
        wanted: list[tuple[str, Action]] = []
        for topic, tries in list(self._end_tries.items()):
            if topic in decided and (tries > END_TRIES_MAX or not is_held(decided[topic][1].memory)):
                del self._end_tries[topic]
            elif topic in decided:
                wanted.append((topic, EndPasses(topic=topic)))
        return wanted

    def carry_out(self, topic: str, action: Action, decision: Decision, seen: TopicSeen) -> Outcome:
        if isinstance(action, Verify):
            return Outcome()
        if isinstance(action, Expel | AddAgain):
            if self._readmissions is not None:
                self._readmissions.want(action)
            return Outcome(needed=False)
        now_ms = self._clock()
        self._journal.check_lease(self._name, now_ms=now_ms)
        text = evidence(seen, decision.statuses)
        outcome = carry_out(action, self._admin, self._journal, now_ms=now_ms, topic=topic, evidence=text)
        if outcome.held_on:
            self._held_on[topic] = outcome.held_on
        if isinstance(action, EndPasses):
            tries = self._end_tries.pop(topic, 0)
            if outcome.why is not None:
                self._end_tries[topic] = tries + 1
        if isinstance(action, SetHold):
            # What it found just before is on the disk only: remembered as it was decided, it would be overwritten there.
            self._recollection.drop(topic)
            if outcome.why is None:
                self._accepted_ms[topic] = self._clock()
        self.failed += outcome.why is not None
        return outcome


def is_held(memory: Memory) -> bool:
    return memory.hold is not None and memory.hold.seen_ms is not None and memory.hold.released_ms is None
