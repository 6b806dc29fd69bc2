"""The guard's loop: look, decide per topic, remember, act, sleep.

Owns this order and what survives a failure of each step: the memory is on disk before anything is done, only the leading guard
acts, and a cluster or journal that fails is tried again. Without `applies` it only says what it would do.
`coordination/guarding.py` decides, `acting/changes.py` makes the calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headstone.cluster.admin import Admin
from headstone.coordination.absences import known_below
from headstone.coordination.guard_values import (
    AddAgain,
    Decision,
    Memory,
    TopicSeen,
    Verify,
)
from headstone.coordination.guarding import decide
from headstone.errors import Unfinished, UsageError
from headstone.guard.acting.actions import Actions
from headstone.guard.acting.changes import forget_old_changes, put_back
from headstone.guard.acting.deleted_topics import end_topic, forget_idle, is_idle, release_orphaned_default
from headstone.guard.acting.outcomes import ActionOutcome, Done
from headstone.guard.acting.readmission_port import ReadmissionPort
from headstone.guard.acting.without_journal import Unwritten, adopt
from headstone.guard.ledger.encoding import plain
from headstone.guard.ledger.journal import GuardLeaseLost, Journal
from headstone.guard.ledger.journal_values import KeptAlarm, Lease, RememberedTopic
from headstone.guard.ledger.memory import Recollection, released_by_person, with_readings, without_wishes
from headstone.guard.ledger.outages import ended, note_longest
from headstone.guard.ledger.topic_identity import is_another
from headstone.guard.looks.look import Look
from headstone.guard.looks.look_age import LookAge, steady_ms
from headstone.guard.looks.missed import Missed
from headstone.guard.loop.alarms import (
    JOURNAL_LOST,
    OTHER_TOPICS,
    other_topics,
)
from headstone.guard.loop.current_state import GuardStanding
from headstone.guard.loop.leadership import Leadership
from headstone.guard.loop.missing_topics import Departures
from headstone.guard.loop.rounds import MARGINS, GuardSettings, Round
from headstone.guard.verification.background import Readings
from headstone.interruption import droppable, until_asked
from headstone.units import moment

HASTY_MS = 1_000
HASTY_LOOKS_MAX = 30
PAUSE_MS_MIN = 100
"""A change is followed up every HASTY_MS, at most HASTY_LOOKS_MAX times, then at the usual interval; never faster than
PAUSE_MS_MIN."""
DELETED = "it was deleted"
NOT_COMPACTED = "it is not compacted any more"
MADE_ANEW = "it was deleted, and another one has its name now"
VOID = "it stood still, or was at work, for longer than its lease: what it had decided is void, and it looks again"
FORGET_EVERY_MS = 86_400_000

LookAt = Callable[[Sequence[str] | None], Look]
Clock = Callable[[], int]


class Watcher:
    """One guard of one cluster."""

    def __init__(
        self, settings: GuardSettings, *, admin: Admin, look: LookAt, journal: Journal, clock: Clock, readings: Readings | None,
        readmissions: ReadmissionPort | None = None, missed: Missed | None = None, steady: Clock = steady_ms,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._looks_failed = 0
        self.looks = 0
        self._admin, self._look, self._journal, self._clock = admin, look, journal, clock
        self._readings, self._readmissions, self._missed = readings, readmissions, missed
        self._recollection = Recollection(journal)
        self._age = LookAge(clock, steady)
        self._actions = Actions(
            settings.name, lease_ms=settings.lease_ms, margins=settings.margins, admin=admin, journal=journal,
            clock=self._age.now_ms, recollection=self._recollection, readmissions=readmissions,
        )  # fmt: skip
        self._leadership = Leadership(
            settings.name, journal, self._age, lease_ms=settings.lease_ms, applies=settings.applies, topics=settings.topics,
            anew=self._begin_anew,
        )  # fmt: skip
        self._standing = GuardStanding(
            settings.allowed,
            applies=settings.applies,
            admin=admin,
            journal=journal,
            clock=clock,
            memory=self._recollection.memory,
        )
        self._unwritten = Unwritten(settings.margins, admin=admin, clock=clock)
        self._departures = Departures(journal, settings.margins.metadata_age_ms)
        self._gone: dict[str, str] = {}
        """Topics that the look found gone, or no longer in need of a guard, and why."""
        self._forgot_ms = 0
        self._newest: Round | None = None

    def _begin_anew(self) -> None:
        self._recollection.forget()
        self._actions.forget_answers()

    @property
    def calls_failed(self) -> int:
        return self._looks_failed + self._actions.failed

    def run(self, stop: Callable[[], bool], tell: Callable[[Round], None]) -> None:
        """Runs until `stop` is true, which also ends a pause. Looks begin poll_ms apart, sooner while a change is followed
        up."""
        hasty: tuple[str, ...] = ()
        hasty_looks, whole_ms = 0, 0
        poll_ms = self.settings.margins.poll_ms
        while not stop():
            now_ms = self._clock()
            if not hasty or not whole_ms <= now_ms < whole_ms + poll_ms:
                hasty, whole_ms = (), now_ms
            result = self._tried(hasty or None)
            tell(result)
            hasty_looks = hasty_looks + 1 if result.hasty else 0
            hasty = result.hasty if hasty_looks <= HASTY_LOOKS_MAX else ()
            pause_ms = min(HASTY_MS, poll_ms) if hasty else whole_ms + poll_ms - self._clock()
            until_asked(min(max(pause_ms, PAUSE_MS_MIN), poll_ms) / 1000)

    def _tried(self, only: Sequence[str] | None) -> Round:
        """A journal that cannot be written, because it is being copied or its disk is full, does not end the guard: what is
        held stays held, what must be held is held, and the next round tries again. Nor does it prevent a start, as after a
        reboot with a full disk. Other errors at the start are raised, because a person is there to see them."""
        try:
            return self.round(only)
        except (Unfinished, UsageError) as error:
            newest = self._newest or self._from_before(error)
            self._looks_failed += 1
            began_ms = self._clock()
            done, remarks = self._unwritten_holds(newest, only)
            alarm = KeptAlarm(kind=JOURNAL_LOST, detail=str(error))
            alarms = (*(kept for kept in newest.alarms if kept.kind != JOURNAL_LOST), alarm)
            self._newest = replace(
                newest, began_ms=began_ms, ended_ms=self._clock(), done=tuple(done), problems=(str(error), *remarks),
                alarms=alarms, lost=str(error), unwritten=True,
            )  # fmt: skip
            return self._newest

    def _from_before(self, error: Unfinished | UsageError) -> Round:
        """The journal's last state, for a guard that starts and cannot write the journal. Raises `error` in a dry run, if
        nothing was ever learnt, or if the error is about usage; raises too if the journal cannot be read."""
        looked_ms = self._journal.looked_ms()
        if isinstance(error, UsageError) or not self.settings.applies or looked_ms is None:
            raise error
        now_ms = self._clock()
        lease = self._journal.lease() or Lease(holder=self.settings.name, until_ms=now_ms, applies=True)
        if lease.until_ms > now_ms:
            self._refuse_other_topics(lease)
        remembered = self._journal.topics()
        return Round(
            began_ms=now_ms, ended_ms=now_ms, lease=lease, leads=lease.until_ms <= now_ms, cluster_id=self._journal.cluster_id,
            memories={topic: kept.memory for topic, kept in remembered.items()}, held_bytes={},
            statuses={topic: kept.statuses for topic, kept in remembered.items()}, alarms=tuple(self._journal.alarms()),
            looked_ms=looked_ms,
        )  # fmt: skip

    def _unwritten_holds(self, newest: Round, only: Sequence[str] | None) -> tuple[list[Done], list[str]]:
        """If this guard led when the journal failed, it keeps looking and holding. If it stood by, it does so once the other's
        lease has expired. Two guards that hold the same topic do no harm."""
        if not self.settings.applies or (not newest.leads and newest.lease.until_ms > self._clock()):
            return [], []
        try:
            with droppable():
                look = self._look(only or self.settings.topics or None)
        except Unfinished as error:
            return [], [f"no look at the cluster either: {error}"]
        return self._unwritten.hold(look, lambda topic: self._recollection.newest(topic, newest.memories))

    def round(self, only: Sequence[str] | None = None) -> Round:
        """One look, decision and action: for the topics in `only`, whose change is followed up, or for everything watched."""
        began_ms = self._clock()
        self._age.begin()
        led = self._journal.lease() if self._unwritten.waits else None
        lease = self._leadership.lead(began_ms)
        leads = lease.holder == self.settings.name
        if self._unwritten.waits:
            goes_on = leads and led is not None and led.holder == self.settings.name
            self._unwritten.write_down(self._journal, holder=self.settings.name, goes_on=goes_on)
            self._recollection.forget()
        if not leads:
            return self._stand_by(began_ms, lease)
        try:
            look = self._looked(only)
        except Unfinished as error:
            return self._lost(began_ms, lease, str(error))
        self._standing.brokers = look.brokers
        seen_topics = {seen.topic: seen for seen in look.topics}
        problems = list(look.problems)
        try:
            lease = self._leadership.lead_on(lease)
            problems += self._adopted()
            problems += self._end_gone(look)
            released = self._journal.released()
            decided = {seen.topic: self._decided(seen, released) for seen in look.topics}
            self._remember(decided, seen_topics, began_ms if only is None else None)
            done = self._act(decided, seen_topics)
            problems += self._put_back()
        except GuardLeaseLost:
            newest = self._journal.lease() or lease
            if newest.holder == self.settings.name:
                self._recollection.forget()
                return self._result(began_ms, newest, True, (), (VOID,), whole=only is None)
            return self._stand_by(began_ms, newest)
        self._standing.note(decided, done, began_ms, gone=self._gone, whole=only is None)
        if only is None:
            self._standing.note_unseen(look)
        self.looks += 1
        self._looks_failed += len(look.problems)
        return self._result(began_ms, lease, True, tuple(done), tuple(problems), whole=only is None)

    def _adopted(self) -> list[str]:
        """Adopts holds that were set while the journal could not be written, by this guard or another one with this journal."""
        topics = adopt(self._journal, holder=self.settings.name, now_ms=self._clock())
        for topic in topics:
            self._recollection.drop(topic)
        return [f"topic {topic}: the hold that was set without the journal is in it now" for topic in topics]

    def _stand_by(self, began_ms: int, lease: Lease) -> Round:
        """Another guard leads: its state is in the journal, so the cluster is not asked a second time. If it watches other
        topics, no guard would watch these: a guard that is starting is refused, because a person is there to see it; one that
        runs raises an alarm and waits, because it must not end just because another one led for a moment."""
        if self._newest is None and self.settings.applies:
            self._refuse_other_topics(lease)
        why = other_topics(lease, self.settings.topics)
        self._recollection.forget()
        self._standing.by_another()
        result = self._result(began_ms, lease, False, (), () if why is None else (why,), whole=True)
        if why is not None and self.settings.applies:
            # About this guard, so not in the journal, which belongs to the leader.
            alarms = (*result.alarms, KeptAlarm(kind=OTHER_TOPICS, detail=why))
            result = self._newest = replace(result, alarms=alarms)
        return result

    def _refuse_other_topics(self, lease: Lease) -> None:
        why = other_topics(lease, self.settings.topics)
        if why is not None:
            raise UsageError(
                f"{self._journal.path}: {why}: start one guard for all of them; or, if that one is gone, start this one after "
                f"{moment(lease.until_ms)}, when its lease expires. Use another --journal file only as a last resort: the "
                "holds in this one stay, and only `headstone guard release` with it undoes them"
            )

    def _looked(self, only: Sequence[str] | None) -> Look:
        """Also looks at remembered topics that are no longer compacted: their hold ends."""
        if self._missed is not None:
            self._expect(self._missed, only or self._journal.names())
        self._gone = {}
        with droppable():
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

    def _expect(self, missed: Missed, topics: Sequence[str]) -> None:
        """Tells the reader from which offsets absent replicas may lack something. From the journal, so that a guard of one look
        reads on too."""
        for topic in topics:
            memory = self._recollection.memory(topic)
            missed.recognise({topic: memory.topic_id})
            missed.expect(topic, known_below(memory))

    def _lost(self, began_ms: int, lease: Lease, why: str) -> Round:
        """Holds stay, which is safe; the failure is reported and the look tried again."""
        self._looks_failed += 1
        self._standing.note_lost(why, began_ms)
        return self._result(began_ms, lease, True, (), (why,), whole=True, lost=why)

    def _result(
        self, began_ms: int, lease: Lease, leads: bool, done: tuple[Done, ...], problems: tuple[str, ...], *, whole: bool,
        lost: str | None = None,
    ) -> Round:  # fmt: skip
        stands = self._standing
        self._newest = Round(
            began_ms=began_ms, ended_ms=self._clock(), lease=lease, leads=leads, cluster_id=self._journal.cluster_id,
            whole=whole, memories=dict(stands.memories), statuses=dict(stands.statuses), done=done,
            alarms=tuple(self._journal.alarms()), problems=problems, held_bytes=dict(stands.held_bytes),
            looked_ms=stands.looked_ms, lost=lost, brokers=stands.brokers, unseen=stands.unseen,
        )  # fmt: skip
        return self._newest

    def _decided(self, seen: TopicSeen, released: Mapping[str, int]) -> tuple[Memory, Decision]:
        """Decides with the brokers' confirmations since, the readings of replicas, and what a person released."""
        memory = released_by_person(self._recollection.memory(seen.topic), released.get(seen.topic))
        now_ms = self._age.now_ms()
        held_on = tuple(sorted({*seen.held_on, *self._actions.held_on(seen.topic)}))
        own_ms, default_ms = self._actions.accepted_ms(seen.topic), self._actions.default_accepted_ms
        seen = replace(seen, held_on=held_on, hold_accepted_ms=own_ms, default_accepted_ms=default_ms)
        seen = with_readings(seen, self._journal.readings(seen.topic), now_ms)
        return memory, decide(memory, seen, now_ms, self.settings.margins, self.settings.allowed)

    def _end_gone(self, look: Look) -> list[str]:
        """Before anything is decided: topics that were deleted, also if another one has the name now."""
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
        """On disk before anything is done."""
        kept = {
            topic: RememberedTopic(
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
        """Cleans up after an interrupted guard and after topics that are gone. After all actions, so that no hold waits for
        it."""
        if not self.settings.applies:
            return []
        void = self._leadership.ends()
        memories = (self._recollection.memory(topic) for topic in self._journal.names())
        try:
            remarks = put_back(self._admin, self._journal)
            return remarks + release_orphaned_default(
                self._admin, self._journal, memories, now_ms=self._clock(), void=void
            )
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
        """Takes readmissions a step further. The result has only those that are stuck, and why."""
        if self._readmissions is None:
            return []
        stuck = self._readmissions.go_on(self._leadership.ends())
        self._looks_failed += len(stuck)
        return [
            Done(
                topic=kept.readmission.topic, outcome=ActionOutcome(why=kept.why, unanswered=kept.unanswered),
                action=AddAgain(
                    topic=kept.readmission.topic, partition=kept.readmission.partition, broker=kept.readmission.broker,
                    order=kept.readmission.order,
                ),
            )
            for kept in stuck
        ]  # fmt: skip
