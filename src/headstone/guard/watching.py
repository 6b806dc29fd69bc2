"""The guard's loop: look, decide per topic, remember, act, sleep.

Owns the order of these and what survives a failure of each: the memory is on the disk before anything is done, only the
guard that leads does anything, and a cluster or a journal that is lost is tried again. Without `applies` it only says what
it would do. The decision is `coordination/guarding.py`'s, the calls are `acting.py`'s.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headstone.cluster.admin import Admin
from headstone.coordination.absences import known_below
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    HOLD,
    AddAgain,
    AlarmKind,
    Allowed,
    AskBrokers,
    Decision,
    EndPasses,
    HoldByDefault,
    Memory,
    Release,
    ReleaseDefault,
    SetHold,
    State,
    Status,
    TopicSeen,
    Verify,
)
from headstone.coordination.guarding import decide
from headstone.errors import Unfinished, UsageError
from headstone.guard.acting import Outcome, forget_old_changes, grown_bytes, put_back, topic_bytes
from headstone.guard.actions import Actions, Done, is_held
from headstone.guard.alarms import (
    CLUSTER_LOST,
    JOURNAL_LOST,
    OTHER_TOPICS,
    of_cluster,
    other_topics,
    standing,
    wants_reading,
)
from headstone.guard.departures import Departures
from headstone.guard.evidence import moment
from headstone.guard.gone_topics import end_topic, forget_idle, is_idle, release_orphaned_default
from headstone.guard.journal import Journal, KeptAlarm, Lease, LeaseLost, Remembered
from headstone.guard.loans import loans
from headstone.guard.looks import Look
from headstone.guard.memories import plain
from headstone.guard.missed import Missed
from headstone.guard.outages import ended, note_longest
from headstone.guard.readings import Readings
from headstone.guard.readmitting import OwnReadmissions
from headstone.guard.recollection import Recollection, released_by_person, with_readings, without_wishes
from headstone.guard.topic_identity import is_another

LEASE_POLLS = 3
"""A lease outlives some looks, and half of the time that a hold may take: another guard must still be in time."""
HASTY_MS = 1_000
HASTY_LOOKS_MAX = 30
PAUSE_MS_MIN = 100
"""A change is followed at this pace, this often; then at the usual one."""
MARGINS = "margins"
"""Fact of the journal: what the guard that leads counts with, for whoever asks for the status."""
"""Alarm that no journal can keep: it is told by the guard itself, and its metrics."""
DELETED = "it was deleted"
NOT_COMPACTED = "it is not compacted any more"
MADE_ANEW = "it was deleted, and another one has its name now"
FORGET_EVERY_MS = 86_400_000
HASTY = (SetHold, AskBrokers, EndPasses, HoldByDefault, Release, ReleaseDefault)

LookAt = Callable[[Sequence[str] | None], Look]
Clock = Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`topics` empty: every compacted topic. `name` is by which other guards see this one."""

    name: str
    margins: Margins = field(default_factory=Margins)
    allowed: Allowed = field(default_factory=Allowed)
    topics: tuple[str, ...] = ()
    applies: bool = False

    @property
    def lease_ms(self) -> int:
        return LEASE_POLLS * self.margins.poll_ms + self.margins.effect_ms // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One look and what came of it. `lost` is why there was none; memories and statuses are then the last known."""

    began_ms: int
    ended_ms: int
    lease: Lease
    leads: bool
    cluster_id: str
    whole: bool = True
    """False: only of the topics whose change is followed."""
    memories: Mapping[str, Memory]
    statuses: Mapping[str, tuple[Status, ...]]
    done: tuple[Done, ...] = ()
    alarms: tuple[KeptAlarm, ...] = ()
    problems: tuple[str, ...] = ()
    held_bytes: Mapping[str, int]
    """By topic: what its replicas have grown by since it was held."""
    looked_ms: int | None = None
    """When the newest look at the whole began; None: there was none."""
    lost: str | None = None
    unwritten: bool = False
    """It was lost by the journal, not by the cluster."""

    @property
    def hasty(self) -> tuple[str, ...]:
        """Topics whose change should be seen soon."""
        return tuple(sorted({done.topic for done in self.done if done.outcome and isinstance(done.action, HASTY)}))


class Watcher:
    """One guard of one cluster. `looking` says that nothing is being changed: a look may be dropped in the middle."""

    def __init__(
        self, settings: Settings, *, admin: Admin, look: LookAt, journal: Journal, clock: Clock, readings: Readings | None,
        readmissions: OwnReadmissions | None = None, missed: Missed | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.looking = False
        self._looks_failed = 0
        self.looks = 0
        self._admin, self._look, self._journal, self._clock = admin, look, journal, clock
        self._readings, self._readmissions, self._missed = readings, readmissions, missed
        self._recollection = Recollection(journal)
        self._actions = Actions(
            settings.name, lease_ms=settings.lease_ms, admin=admin, journal=journal, clock=clock,
            recollection=self._recollection, readmissions=readmissions,
        )  # fmt: skip
        self._held_bytes: dict[str, int] = {}
        self._statuses: dict[str, tuple[Status, ...]] = {}
        self._memories: dict[str, Memory] = {}
        self._looked_ms: int | None = None
        self._departures = Departures(journal, settings.margins.metadata_age_ms)
        self._gone: dict[str, str] = {}
        """Topics that the look found gone, or without need of a guard, and why."""
        self._forgot_ms = 0
        self._newest: Round | None = None

    @property
    def calls_failed(self) -> int:
        return self._looks_failed + self._actions.failed

    def run(self, stop: threading.Event, tell: Callable[[Round], None]) -> None:
        """Until `stop`. Looks begin poll_ms apart, sooner while a change is followed."""
        hasty: tuple[str, ...] = ()
        hasty_looks, whole_ms = 0, 0
        poll_ms = self.settings.margins.poll_ms
        while not stop.is_set():
            now_ms = self._clock()
            if not hasty or not whole_ms <= now_ms < whole_ms + poll_ms:
                hasty, whole_ms = (), now_ms
            result = self._tried(hasty or None)
            tell(result)
            hasty_looks = hasty_looks + 1 if result.hasty else 0
            hasty = result.hasty if hasty_looks <= HASTY_LOOKS_MAX else ()
            pause_ms = min(HASTY_MS, poll_ms) if hasty else whole_ms + poll_ms - self._clock()
            stop.wait(min(max(pause_ms, PAUSE_MS_MIN), poll_ms) / 1000)

    def _tried(self, only: Sequence[str] | None) -> Round:
        """A journal that cannot be written, as while somebody copies it or its disk is full, costs a round and not the guard:
        what is held stays held, and the next round looks again. Not the first one: somebody is there who can see to it."""
        try:
            return self.round(only)
        except Unfinished as error:
            if self._newest is None:
                raise
            self._looks_failed += 1
            alarm = KeptAlarm(kind=JOURNAL_LOST, detail=str(error))
            alarms = (*(kept for kept in self._newest.alarms if kept.kind != JOURNAL_LOST), alarm)
            now_ms = self._clock()
            self._newest = replace(
                self._newest, began_ms=now_ms, ended_ms=now_ms, done=(), problems=(str(error),), alarms=alarms,
                lost=str(error), unwritten=True,
            )  # fmt: skip
            return self._newest

    def round(self, only: Sequence[str] | None = None) -> Round:
        """Look, decide, remember, act: once; of the topics whose change is followed, or of all that are watched."""
        began_ms = self._clock()
        lease = self._journal.lead(
            self.settings.name, now_ms=began_ms, lease_ms=self.settings.lease_ms, applies=self.settings.applies,
            topics=self.settings.topics,
        )  # fmt: skip
        leads = lease.holder == self.settings.name
        if not leads:
            return self._stand_by(began_ms, lease)
        try:
            look = self._looked(only)
        except Unfinished as error:
            return self._lost(began_ms, lease, str(error))
        seen_topics = {seen.topic: seen for seen in look.topics}
        problems = list(look.problems)
        try:
            # A look may outlast the lease: of a large cluster, of brokers that answer late.
            lease = self._renew()
            problems += self._end_gone(look)
            released = self._journal.released()
            decided = {seen.topic: self._decided(seen, released) for seen in look.topics}
            self._remember(decided, seen_topics, began_ms if only is None else None)
            done = self._act(decided, seen_topics)
            problems += self._put_back()
        except LeaseLost:
            return self._stand_by(began_ms, self._journal.lease() or lease)
        self._note(decided, done, began_ms, whole=only is None)
        if only is None:
            self._journal.set_alarms("", of_cluster(look.problems, look.unread), now_ms=self._clock())
        self.looks += 1
        self._looks_failed += len(look.problems)
        return self._result(began_ms, lease, True, tuple(done), tuple(problems), whole=only is None)

    def _renew(self) -> Lease:
        """LeaseLost if another guard has led since."""
        return self._journal.renew(self.settings.name, now_ms=self._clock(), lease_ms=self.settings.lease_ms)

    def _stand_by(self, began_ms: int, lease: Lease) -> Round:
        """Another guard leads: what it shows is in the journal, and the cluster is asked once and not twice. One that watches
        other topics is nobody to stand by for: nobody would guard these. Who begins is refused, since somebody is there to see
        to it; who runs tells it and waits: it must not end because another one led for a moment."""
        why = other_topics(lease, self.settings.topics)
        if why is not None and self._newest is None and self.settings.applies:
            raise UsageError(
                f"{self._journal.path}: {why}: start one guard for all of them; or, if that one is gone, this one after "
                f"{moment(lease.until_ms)}, when its lease ends. Another file with --journal is the last resort: what this "
                "one holds stays held, and only `headstone guard release` with this one undoes it"
            )
        self._recollection.forget()
        self._memories, self._statuses, self._held_bytes = {}, self._journal.shown(), {}
        self._looked_ms = self._journal.looked_ms()
        result = self._result(began_ms, lease, False, (), () if why is None else (why,), whole=True)
        if why is not None and self.settings.applies:
            # Of this guard, so not in the journal: that is the other one's.
            alarms = (*result.alarms, KeptAlarm(kind=OTHER_TOPICS, detail=why))
            result = self._newest = replace(result, alarms=alarms)
        return result

    def _looked(self, only: Sequence[str] | None) -> Look:
        """Topics that the guard remembers are looked at also if they are no longer compacted: then the hold ends."""
        if self._missed is not None:
            self._expect(self._missed, only or self._journal.names())
        self.looking, self._gone = True, {}
        try:
            look = self._look(only or self.settings.topics or None)
            if only is None:
                seen = {topic.topic for topic in look.topics}
                watched = self.settings.topics
                missing = [n for n in self._journal.names() if n not in seen and (not watched or n in watched)]
                unknown = self._departures.unknown(self._admin, missing)
                self._gone = dict.fromkeys(self._departures.gone(unknown, look.asked_ms), DELETED)
                left = [name for name in missing if name not in unknown]
                if left and not watched:
                    more = self._look(left)
                    memory = self._recollection.memory
                    idle = [seen for seen in more.topics if is_idle(self._journal, memory(seen.topic), seen)]
                    self._gone |= dict.fromkeys((seen.topic for seen in idle), NOT_COMPACTED)
                    topics = (*look.topics, *(seen for seen in more.topics if seen not in idle))
                    unread = dict.fromkeys((*look.unread, *more.unread))
                    look = replace(look, topics=topics, problems=(*look.problems, *more.problems), unread=tuple(unread))
            return replace(look, topics=self._departures.current(look.topics))
        finally:
            self.looking = False

    def _expect(self, missed: Missed, topics: Sequence[str]) -> None:
        """From where on those that are away may lack something: by the journal, so that a guard of one look reads it too."""
        for topic in topics:
            memory = self._recollection.memory(topic)
            missed.recognise({topic: memory.topic_id})
            missed.expect(topic, known_below(memory))

    def _lost(self, began_ms: int, lease: Lease, why: str) -> Round:
        """What is set stays set, which is safe; it is told, and looked for again."""
        self._looks_failed += 1
        self._journal.set_alarms("", [KeptAlarm(kind=CLUSTER_LOST, detail=why)], now_ms=began_ms)
        return self._result(began_ms, lease, True, (), (why,), whole=True, lost=why)

    def _result(
        self, began_ms: int, lease: Lease, leads: bool, done: tuple[Done, ...], problems: tuple[str, ...], *, whole: bool,
        lost: str | None = None,
    ) -> Round:  # fmt: skip
        self._newest = Round(
            began_ms=began_ms, ended_ms=self._clock(), lease=lease, leads=leads, cluster_id=self._journal.cluster_id,
            whole=whole, memories=dict(self._memories), statuses=dict(self._statuses), done=done,
            alarms=tuple(self._journal.alarms()), problems=problems, held_bytes=dict(self._held_bytes),
            looked_ms=self._looked_ms, lost=lost,
        )  # fmt: skip
        return self._newest

    def _decided(self, seen: TopicSeen, released: Mapping[str, int]) -> tuple[Memory, Decision]:
        """With what was asked of brokers since, what was read of replicas, and what a person released."""
        memory = released_by_person(self._recollection.memory(seen.topic), released.get(seen.topic))
        now_ms = self._clock()
        held_on = tuple(sorted({*seen.held_on, *self._actions.held_on(seen.topic)}))
        own_ms, default_ms = self._actions.accepted_ms(seen.topic), self._actions.default_accepted_ms
        seen = replace(seen, held_on=held_on, hold_accepted_ms=own_ms, default_accepted_ms=default_ms)
        seen = with_readings(seen, self._journal.readings(seen.topic), now_ms)
        return memory, decide(memory, seen, now_ms, self.settings.margins, self.settings.allowed)

    def _end_gone(self, look: Look) -> list[str]:
        """Before anything is decided: topics that were deleted, also those whose name another one has now."""
        anew = [seen for seen in look.topics if is_another(self._recollection.memory(seen.topic), seen)]
        gone = [*self._gone.items(), *((seen.topic, MADE_ANEW) for seen in anew)]
        if not gone:
            return []
        self._journal.check_lease(self.settings.name, now_ms=self._clock())
        remarks = []
        for topic, why in gone:
            if why == NOT_COMPACTED:
                remarks.append(forget_idle(self._journal, topic, why=why))
            else:
                self._departures.note(self._recollection.memory(topic).topic_id, look.asked_ms)
                remarks.append(end_topic(self._journal, topic, why=why, now_ms=self._clock()))
            self._recollection.drop(topic)
            self._actions.forget(topic)
        return remarks

    def _remember(
        self, decided: Mapping[str, tuple[Memory, Decision]], seen: Mapping[str, TopicSeen], looked_ms: int | None
    ) -> None:  # fmt: skip
        """On the disk before anything is done."""
        kept = {
            topic: Remembered(
                memory=decision.memory if self.settings.applies else without_wishes(before, decision.memory),
                statuses=decision.statuses, looked_ms=seen[topic].asked_ms,
            )
            for topic, (before, decision) in decided.items()
        }  # fmt: skip
        self._recollection.keep(kept, holder=self.settings.name, now_ms=self._clock(), looked_ms=looked_ms)
        note_longest(self._journal, (
            outage
            for topic, (before, decision) in decided.items()
            for outage in ended(topic, before, decision.memory, seen[topic].asked_ms)
        ))  # fmt: skip
        margins = json.dumps(plain(self.settings.margins))
        if self._journal.fact(MARGINS) != margins:
            self._journal.note_fact(MARGINS, margins)
        for topic in self._journal.released():
            if topic in kept and kept[topic].memory.hold is None:
                self._journal.forget_released(topic)
        for topic in self._journal.sizes():
            if topic in kept and kept[topic].memory.hold is None:
                self._journal.forget_sizes(topic)
        if not self._forgot_ms <= self._clock() < self._forgot_ms + FORGET_EVERY_MS:
            self._forgot_ms = self._clock()
            forget_old_changes(self._journal, now_ms=self._forgot_ms)

    def _put_back(self) -> list[str]:
        """What is left of an interrupted guard, and of topics that are gone. Behind all actions: no hold waits for it."""
        if not self.settings.applies:
            return []
        self._renew()
        memories = (self._recollection.memory(topic) for topic in self._journal.names())
        try:
            remarks = put_back(self._admin, self._journal)
            return remarks + release_orphaned_default(self._admin, self._journal, memories, now_ms=self._clock())
        except Unfinished as error:
            return [f"what an interrupted guard began was not put back: {error}"]

    def _act(self, decided: Mapping[str, tuple[Memory, Decision]], seen: Mapping[str, TopicSeen]) -> list[Done]:
        if not self.settings.applies:
            return [Done(topic=topic, action=action, outcome=None) for topic, action in self._actions.wanted(decided)]
        done = self._actions.carry_out(decided, seen)
        if self._readings is not None:
            self._readings.want([each.action for each in done if isinstance(each.action, Verify)], decided.keys())
        return done + self._readmit()

    def _readmit(self) -> list[Done]:
        """Those that were begun, a step further; what is told of them here is only what keeps them."""
        if self._readmissions is None:
            return []
        self._renew()
        stuck = self._readmissions.go_on()
        self._looks_failed += len(stuck)
        return [
            Done(
                topic=kept.readmission.topic, outcome=Outcome(why=kept.why),
                action=AddAgain(
                    topic=kept.readmission.topic, partition=kept.readmission.partition, broker=kept.readmission.broker,
                    order=kept.readmission.order,
                ),
            )
            for kept in stuck
        ]  # fmt: skip

    def _note(
        self, decided: Mapping[str, tuple[Memory, Decision]], done: Sequence[Done], began_ms: int, *, whole: bool
    ) -> None:  # fmt: skip
        """What stands now, for status and metrics."""
        now_ms = self._clock()
        lent = {loan.topic for loan in loans(self._journal) if loan.lent == HOLD}
        if whole:
            self._looked_ms = began_ms
            for topic in (*self._gone, *decided):
                self._statuses.pop(topic, None)
                self._memories.pop(topic, None)
            # What this look did not show is not fine for that.
            self._statuses = {
                topic: tuple(replace(status, state=State.UNKNOWN) for status in statuses)
                for topic, statuses in self._statuses.items()
            }
        for topic, (_, decision) in decided.items():
            self._statuses[topic] = decision.statuses
            self._memories[topic] = self._recollection.memory(topic)
            reasons = [each.outcome.why for each in done if each.topic == topic and each.outcome and each.outcome.why]
            settings = self.settings
            readings = self._journal.readings(topic) if wants_reading(decision) else ()
            alarms = standing(
                topic, decision, reasons, settings.allowed, applies=settings.applies, readings=readings
            )  # fmt: skip
            # A readmission by hand holds the topic for a while, and says so in the journal.
            alarms = [a for a in alarms if a.kind != AlarmKind.FOREIGN_HOLD or topic not in lent]
            self._journal.set_alarms(topic, alarms, now_ms=now_ms)
        if whole:
            self._measure()

    def _measure(self) -> None:
        """One question to each broker, and only while something is held."""
        held = sorted(topic for topic, memory in self._memories.items() if is_held(memory))
        if not held:
            self._held_bytes = {}
            return
        try:
            brokers = sorted(self._admin.describe(held).brokers)
        except Unfinished:
            return
        sizes = topic_bytes(self._admin, held, brokers)
        for topic in held:
            self._journal.note_sizes(topic, sizes[topic])
        known = self._journal.sizes()
        self._held_bytes = grown_bytes({topic: known[topic] for topic in held if topic in known}, sizes)
