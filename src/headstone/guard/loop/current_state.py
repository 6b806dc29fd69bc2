"""The state after a guard's round: the status of every partition, growth under holds, and alarms.

For `status` and metrics. Alarms are in the journal, the rest in this process. Decides no action.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import HOLD, AlarmKind, Allowed, Decision, Memory, State, Status
from headstone.errors import Unfinished
from headstone.guard.acting.changes import grown_bytes, topic_bytes
from headstone.guard.acting.outcomes import Done, is_held
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import KeptAlarm
from headstone.guard.ledger.temporary_changes import temporary_changes
from headstone.guard.looks.look import Clock, Look
from headstone.guard.loop.alarms import (
    CLUSTER_LOST,
    LACKS,
    UNANSWERED,
    UNREADABLE,
    UNSEEN,
    is_about_readings,
    of_cluster,
    standing,
)
from headstone.guard.loop.repeated_failures import Lasting


class GuardStanding:
    """The state that one guard shows."""

    def __init__(
        self, allowed: Allowed, *, applies: bool, admin: Admin, journal: Journal, clock: Clock, memory: Callable[[str], Memory]
    ) -> None:  # fmt: skip
        self.statuses: dict[str, tuple[Status, ...]] = {}
        self.memories: dict[str, Memory] = {}
        self.held_bytes: dict[str, int] = {}
        self.looked_ms: int | None = None
        self.brokers: tuple[int, ...] = ()
        self.unseen: tuple[str, ...] = ()
        self._allowed, self._applies = allowed, applies
        self._admin, self._journal, self._clock, self._memory = admin, journal, clock, memory
        self._lasting = Lasting(journal)

    def by_another(self) -> None:
        """Another guard leads: shows what that one has written into the journal."""
        self.memories, self.statuses, self.held_bytes = {}, self._journal.shown(), {}
        self.looked_ms = self._journal.looked_ms()

    def note(
        self, decided: Mapping[str, tuple[Memory, Decision]], done: Sequence[Done], began_ms: int, *,
        gone: Collection[str], whole: bool,
    ) -> None:  # fmt: skip
        temporary = {each.topic for each in temporary_changes(self._journal) if each.new == HOLD}
        if whole:
            self.looked_ms = began_ms
            for topic in (*gone, *decided):
                self.statuses.pop(topic, None)
                self.memories.pop(topic, None)
            # A partition that this look did not show is not thereby fine.
            self.statuses = {
                topic: tuple(replace(status, state=State.UNKNOWN) for status in statuses)
                for topic, statuses in self.statuses.items()
            }
        for topic, (_, decision) in decided.items():
            self.statuses[topic] = decision.statuses
            self.memories[topic] = self._memory(topic)
            self._set_alarms(
                topic, decision, [one for one in done if one.topic == topic], is_temporary=topic in temporary
            )
        if whole:
            self._measure()

    def note_unseen(self, look: Look) -> None:
        """After a look at everything watched."""
        self.unseen = look.problems
        now_ms = self._clock()
        self._lasting.since_ms(CLUSTER_LOST, fails=False, now_ms=now_ms)
        since_ms = self._lasting.since_ms(UNSEEN, fails=any(LACKS not in text for text in look.problems), now_ms=now_ms)
        self._journal.set_alarms("", of_cluster(look.problems, look.unread, unseen_ms=since_ms), now_ms=now_ms)

    def note_lost(self, why: str, now_ms: int) -> None:
        if self._lasting.since_ms(CLUSTER_LOST, fails=True, now_ms=now_ms) is not None:
            self._journal.set_alarms("", [KeptAlarm(kind=CLUSTER_LOST, detail=why)], now_ms=now_ms)

    def _set_alarms(self, topic: str, decision: Decision, done: Sequence[Done], *, is_temporary: bool) -> None:
        failed = [each.outcome for each in done if each.outcome and each.outcome.why]
        readings = self._journal.readings(topic) if is_about_readings(decision) else ()
        unanswered = [outcome.why for outcome in failed if outcome.why and outcome.unanswered]
        now_ms = self._clock()
        lasts = self._lasting.since_ms(f"{UNANSWERED}: {topic}", fails=bool(unanswered), now_ms=now_ms) is not None
        alarms = standing(
            topic, decision, [outcome.why for outcome in failed if outcome.why and not outcome.unanswered], self._allowed,
            applies=self._applies, readings=readings, unanswered=unanswered if lasts else (),
        )  # fmt: skip
        # A readmission by hand holds the topic for a while, which the journal says.
        alarms = [alarm for alarm in alarms if alarm.kind != AlarmKind.FOREIGN_HOLD or not is_temporary]
        alarms = self._without_passing(topic, alarms, now_ms)
        self._journal.set_alarms(topic, alarms, now_ms=now_ms)

    def _without_passing(self, topic: str, alarms: Sequence[KeptAlarm], now_ms: int) -> list[KeptAlarm]:
        """Without readings that failed only once and may succeed at the next look. A missing permission is an alarm at once."""
        passing = [alarm for alarm in alarms if alarm.kind == UNREADABLE and LACKS not in alarm.detail]
        lasts = self._lasting.since_ms(f"{UNREADABLE}: {topic}", fails=bool(passing), now_ms=now_ms) is not None
        return [alarm for alarm in alarms if lasts or alarm not in passing]

    def _measure(self) -> None:
        """One request to each broker, and only while something is held."""
        held = sorted(topic for topic, memory in self.memories.items() if is_held(memory))
        if not held:
            self.held_bytes = {}
            return
        try:
            brokers = sorted(self._admin.describe(held).brokers)
        except Unfinished:
            return
        sizes = topic_bytes(self._admin, held, brokers)
        for topic in held:
            self._journal.note_sizes(topic, sizes[topic])
        sizes_before = self._journal.sizes()
        self.held_bytes = grown_bytes({topic: sizes_before[topic] for topic in held if topic in sizes_before}, sizes)
