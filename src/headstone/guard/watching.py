"""The guard's loop: look, decide per topic, remember, act, sleep.

Owns the order of these and what survives a failure of each: the memory is on the disk before anything is done, only the
guard that leads does anything, and a cluster that is lost is looked for again. Without `applies` it only says what it would
do. The decision is `coordination/guarding.py`'s, the calls are `acting.py`'s.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headstone.cluster.admin import Admin
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    Action,
    Alarm,
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
    Verdict,
    Verify,
)
from headstone.coordination.guarding import decide
from headstone.errors import Unfinished
from headstone.guard.acting import Outcome, carry_out, grown_bytes, put_back, topic_bytes
from headstone.guard.evidence import evidence
from headstone.guard.journal import Journal, KeptAlarm, Lease, LeaseLost, Reading, Remembered
from headstone.guard.loans import loans
from headstone.guard.looks import Look
from headstone.guard.memories import plain
from headstone.guard.readings import Readings
from headstone.guard.recollection import Recollection
from headstone.guard.status import CLUSTER_LOST, REFUSED, UNSEEN

LEASE_POLLS = 3
"""A lease outlives some looks, and half of the time that a hold may take: another guard must still be in time."""
HASTY_MS = 1_000
HASTY_LOOKS_MAX = 30
PAUSE_MS_MIN = 100
"""A change is followed at this pace, this often; then at the usual one."""
MARGINS = "margins"
"""Fact of the journal: what the guard that leads counts with, for whoever asks for the status."""
UNKNOWN_TOPIC = 3
"""Kafka's error of a topic that is not there."""
PROBLEMS_MAX = 5
END_TRIES_MAX = 10
REREAD_MS = 600_000
"""A replica that could not be judged is read again after this long."""
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
class Done:
    """An action of one topic; outcome is None if it was only wished for: a dry run, or another guard leads."""

    topic: str
    action: Action
    outcome: Outcome | None


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

    @property
    def hasty(self) -> tuple[str, ...]:
        """Topics whose change should be seen soon."""
        return tuple(sorted({done.topic for done in self.done if done.outcome and isinstance(done.action, HASTY)}))


class Watcher:
    """One guard of one cluster. `looking` says that nothing is being changed: a look may be dropped in the middle."""

    def __init__(
        self, settings: Settings, *, admin: Admin, look: LookAt, journal: Journal, clock: Clock, readings: Readings | None
    ) -> None:  # fmt: skip
        self.settings = settings
        self.looking = False
        self.calls_failed = 0
        self.looks = 0
        self._admin, self._look, self._journal, self._clock = admin, look, journal, clock
        self._readings = readings
        self._recollection = Recollection(journal)
        self._held_on: dict[str, tuple[int, ...]] = {}
        self._end_tries: dict[str, int] = {}
        self._accepted_ms: dict[str, int] = {}
        self._held_bytes: dict[str, int] = {}
        self._statuses: dict[str, tuple[Status, ...]] = {}
        self._memories: dict[str, Memory] = {}
        self._looked_ms: int | None = None
        self._gone: tuple[str, ...] = ()

    def run(self, stop: threading.Event, tell: Callable[[Round], None]) -> None:
        """Until `stop`. Looks begin poll_ms apart, sooner while a change is followed."""
        hasty: tuple[str, ...] = ()
        hasty_looks, whole_ms = 0, 0
        poll_ms = self.settings.margins.poll_ms
        while not stop.is_set():
            now_ms = self._clock()
            if not hasty or not whole_ms <= now_ms < whole_ms + poll_ms:
                hasty, whole_ms = (), now_ms
            result = self.round(hasty or None)
            tell(result)
            hasty_looks = hasty_looks + 1 if result.hasty else 0
            hasty = result.hasty if hasty_looks <= HASTY_LOOKS_MAX else ()
            pause_ms = min(HASTY_MS, poll_ms) if hasty else whole_ms + poll_ms - self._clock()
            stop.wait(min(max(pause_ms, PAUSE_MS_MIN), poll_ms) / 1000)

    def round(self, only: Sequence[str] | None = None) -> Round:
        """Look, decide, remember, act: once; of the topics whose change is followed, or of all that are watched."""
        began_ms = self._clock()
        lease = self._journal.lead(
            self.settings.name, now_ms=began_ms, lease_ms=self.settings.lease_ms, applies=self.settings.applies
        )
        leads = lease.holder == self.settings.name
        if not leads:
            return self._stand_by(began_ms, lease)
        try:
            look = self._looked(only)
        except Unfinished as error:
            return self._lost(began_ms, lease, str(error))
        released = self._journal.released()
        decided = {seen.topic: self._decided(seen, released) for seen in look.topics}
        seen_topics = {seen.topic: seen for seen in look.topics}
        problems = list(look.problems)
        try:
            problems += self._remember(decided, seen_topics, began_ms if only is None else None)
            done = self._act(decided, seen_topics)
        except LeaseLost:
            return self._stand_by(began_ms, self._journal.lease() or lease)
        self._note(decided, done, began_ms, whole=only is None)
        if only is None:
            unseen = [KeptAlarm(kind=UNSEEN, detail="; ".join(look.problems[:PROBLEMS_MAX]))] if look.problems else []
            self._journal.set_alarms("", unseen, now_ms=self._clock())
        self.looks += 1
        self.calls_failed += len(look.problems)
        return self._result(began_ms, lease, True, tuple(done), tuple(problems), whole=only is None)

    def _stand_by(self, began_ms: int, lease: Lease) -> Round:
        """Another guard leads: what it shows is in the journal, and the cluster is asked once and not twice."""
        self._recollection.forget()
        self._memories, self._statuses, self._held_bytes = {}, self._journal.shown(), {}
        self._looked_ms = self._journal.looked_ms()
        return self._result(began_ms, lease, False, (), (), whole=True)

    def _looked(self, only: Sequence[str] | None) -> Look:
        """Topics that the guard holds are looked at also if they are no longer compacted: then the hold ends."""
        self.looking = True
        try:
            look = self._look(only or self.settings.topics or None)
            if only is None and not self.settings.topics:
                seen = {topic.topic for topic in look.topics}
                missing = [name for name in self._journal.names() if name not in seen]
                self._gone = self._deleted(missing)
                left = [name for name in missing if name not in self._gone]
                held = [name for name in left if self._recollection.memory(name).hold is not None]
                others = self._look(held) if held else replace(look, topics=(), problems=())
                look = replace(look, topics=(*look.topics, *others.topics), problems=(*look.problems, *others.problems))
            return look
        finally:
            self.looking = False

    def _deleted(self, topics: Sequence[str]) -> tuple[str, ...]:
        described = self._admin.describe(topics).topics if topics else {}
        return tuple(
            name for name, states in described.items() if any(s.error == UNKNOWN_TOPIC for s in states.values())
        )

    def _lost(self, began_ms: int, lease: Lease, why: str) -> Round:
        """What is set stays set, which is safe; it is told, and looked for again."""
        self.calls_failed += 1
        self._journal.set_alarms("", [KeptAlarm(kind=CLUSTER_LOST, detail=why)], now_ms=began_ms)
        return self._result(began_ms, lease, True, (), (why,), whole=True, lost=why)

    def _result(
        self, began_ms: int, lease: Lease, leads: bool, done: tuple[Done, ...], problems: tuple[str, ...], *, whole: bool,
        lost: str | None = None,
    ) -> Round:  # fmt: skip
        return Round(
            began_ms=began_ms, ended_ms=self._clock(), lease=lease, leads=leads, cluster_id=self._journal.cluster_id,
            whole=whole, memories=dict(self._memories), statuses=dict(self._statuses), done=done,
            alarms=tuple(self._journal.alarms()), problems=problems, held_bytes=dict(self._held_bytes),
            looked_ms=self._looked_ms, lost=lost,
        )  # fmt: skip

    def _decided(self, seen: TopicSeen, released: Mapping[str, int]) -> tuple[Memory, Decision]:
        """With what was asked of brokers since, what was read of replicas, and what a person released."""
        memory = released_by_person(self._recollection.memory(seen.topic), released.get(seen.topic))
        now_ms = self._clock()
        held_on = tuple(sorted({*seen.held_on, *self._held_on.pop(seen.topic, ())}))
        seen = replace(seen, held_on=held_on, hold_accepted_ms=self._accepted_ms.get(seen.topic))
        seen = with_readings(seen, self._journal.readings(seen.topic), now_ms)
        return memory, decide(memory, seen, now_ms, self.settings.margins, self.settings.allowed)

    def _remember(
        self, decided: Mapping[str, tuple[Memory, Decision]], seen: Mapping[str, TopicSeen], looked_ms: int | None
    ) -> list[str]:  # fmt: skip
        """On the disk before anything is done."""
        kept = {
            topic: Remembered(
                memory=decision.memory if self.settings.applies else without_wishes(before, decision.memory),
                statuses=decision.statuses, looked_ms=seen[topic].asked_ms,
            )
            for topic, (before, decision) in decided.items()
        }  # fmt: skip
        self._recollection.keep(kept, holder=self.settings.name, now_ms=self._clock(), looked_ms=looked_ms)
        margins = json.dumps(plain(self.settings.margins))
        if self._journal.fact(MARGINS) != margins:
            self._journal.note_fact(MARGINS, margins)
        for topic in self._gone:
            self._journal.forget(topic)
            self._recollection.drop(topic)
        for topic in self._journal.released():
            if topic in kept and kept[topic].memory.hold is None:
                self._journal.forget_released(topic)
        for topic in self._journal.sizes():
            if topic in kept and kept[topic].memory.hold is None:
                self._journal.forget_sizes(topic)
        if not self.settings.applies:
            return []
        try:
            return put_back(self._admin, self._journal)
        except Unfinished as error:
            return [f"what an interrupted guard began was not put back: {error}"]

    def _act(self, decided: Mapping[str, tuple[Memory, Decision]], seen: Mapping[str, TopicSeen]) -> list[Done]:
        done = []
        wanted = [*_actions(decided), *self._unended(decided)]
        for topic, action in wanted:
            outcome = self._acted(topic, action, decided[topic][1], seen[topic]) if self.settings.applies else None
            done.append(Done(topic=topic, action=action, outcome=outcome))
        return done

    def _unended(self, decided: Mapping[str, tuple[Memory, Decision]]) -> list[tuple[str, Action]]:
        """Passes are asked to end once, when a hold is confirmed: what was refused is asked for again, some times."""
        wanted: list[tuple[str, Action]] = []
        for topic, tries in list(self._end_tries.items()):
            if topic in decided and (tries > END_TRIES_MAX or not _is_held(decided[topic][1].memory)):
                del self._end_tries[topic]
            elif topic in decided:
                wanted.append((topic, EndPasses(topic=topic)))
        return wanted

    def _acted(self, topic: str, action: Action, decision: Decision, seen: TopicSeen) -> Outcome:
        if isinstance(action, Verify):
            if self._readings is not None:
                self._readings.want(action)
            return Outcome()
        now_ms = self._clock()
        self._journal.check_lease(self.settings.name, now_ms=now_ms)
        text = evidence(seen, decision.statuses)
        outcome = carry_out(action, self._admin, self._journal, now_ms=now_ms, topic=topic, evidence=text)
        if outcome.held_on:
            self._held_on[topic] = outcome.held_on
        if isinstance(action, EndPasses):
            tries = self._end_tries.pop(topic, 0)
            if outcome.why is not None:
                self._end_tries[topic] = tries + 1
        if isinstance(action, SetHold) and outcome.why is None:
            self._accepted_ms[topic] = self._clock()
        self.calls_failed += outcome.why is not None
        return outcome

    def _note(
        self, decided: Mapping[str, tuple[Memory, Decision]], done: Sequence[Done], began_ms: int, *, whole: bool
    ) -> None:  # fmt: skip
        """What stands now, for status and metrics."""
        now_ms = self._clock()
        lent = {loan.topic for loan in loans(self._journal)}
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
        for topic, (before, decision) in decided.items():
            self._statuses[topic] = decision.statuses
            self._memories[topic] = (
                decision.memory if self.settings.applies else without_wishes(before, decision.memory)
            )
            known = self._journal.alarms(topic)
            refused = [one for one in done if one.topic == topic and one.outcome and one.outcome.why is not None]
            alarms = standing(topic, decision, refused, known)
            # A readmission by hand holds the topic for a while, and says so in the journal.
            alarms = [a for a in alarms if a.kind != AlarmKind.FOREIGN_HOLD or topic not in lent]
            self._journal.set_alarms(topic, alarms, now_ms=now_ms)
        if whole:
            self._measure()

    def _measure(self) -> None:
        """One question to each broker, and only while something is held."""
        held = sorted(topic for topic, memory in self._memories.items() if _is_held(memory))
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


def _is_held(memory: Memory) -> bool:
    return memory.hold is not None and memory.hold.seen_ms is not None and memory.hold.released_ms is None


def _actions(decided: Mapping[str, tuple[Memory, Decision]]) -> list[tuple[str, Action]]:
    """Alarms apart: they are told by what stands."""
    return [
        (topic, action)
        for topic, (_, decision) in decided.items()
        for action in decision.actions
        if not isinstance(action, Alarm)
    ]


def without_wishes(before: Memory, decided: Memory) -> Memory:
    """Of a dry run: what was learnt, but no hold and no readmission that nobody asked the cluster for."""
    hold = decided.hold
    if before.hold is None or hold is None or hold.asked_ms != before.hold.asked_ms or (
        hold.released_ms != before.hold.released_ms
    ):  # fmt: skip
        hold = before.hold
    orders = {(away.partition, away.broker): away.order for away in before.away}
    away = tuple(replace(away, order=orders.get((away.partition, away.broker), ())) for away in decided.away)
    return replace(decided, hold=hold, default_hold=before.default_hold, away=away)


def released_by_person(memory: Memory, released_ms: int | None) -> Memory:
    """As if the guard had seen somebody undo it: told, and left alone until everybody is back."""
    hold = memory.hold
    if hold is None or released_ms is None or hold.undone_ms is not None or hold.asked_ms > released_ms:
        return memory
    seen_ms = hold.asked_ms if hold.seen_ms is None else hold.seen_ms
    return replace(memory, hold=replace(hold, seen_ms=seen_ms, undone_ms=released_ms, confirmed=(), confirmed_ms=None))


def with_readings(seen: TopicSeen, readings: Sequence[Reading], now_ms: int) -> TopicSeen:
    """One that could not be judged is forgotten after a while: it is read again."""
    by_replica = {
        (reading.partition, reading.broker): reading
        for reading in readings
        if reading.verdict is not Verdict.UNJUDGED or now_ms - reading.read_ms < REREAD_MS
    }
    partitions = []
    for partition in seen.partitions:
        replicas = []
        for replica in partition.replicas:
            reading = by_replica.get((partition.partition, replica.broker))
            if reading is not None:
                replica = replace(replica, verdict=reading.verdict, read_ms=reading.read_ms)
            replicas.append(replica)
        partitions.append(replace(partition, replicas=tuple(replicas)))
    return replace(seen, partitions=tuple(partitions))


def standing(
    topic: str, decision: Decision, refused: Sequence[Done], known: Sequence[KeptAlarm]
) -> list[KeptAlarm]:  # fmt: skip
    """What a person must know now: some alarms are decided once, and stand until what they are about is over."""
    alarms = [
        KeptAlarm(kind=action.kind, topic=topic, partition=action.partition, broker=action.broker)
        for action in decision.actions
        if isinstance(action, Alarm)
    ]
    alarms += [
        KeptAlarm(kind=AlarmKind.TOO_LATE, topic=topic, partition=away.partition, broker=away.broker)
        for away in decision.memory.away
        if away.too_late or away.order
    ]
    hold = decision.memory.hold
    if hold is not None and hold.undone_ms is not None and hold.released_ms is None:
        by_robot = any(alarm.kind == AlarmKind.UNDONE_BY_ROBOT for alarm in (*alarms, *known))
        kind = AlarmKind.UNDONE_BY_ROBOT if by_robot else AlarmKind.CHANGED_BY_PERSON
        alarms.append(KeptAlarm(kind=kind, topic=topic))
    reasons = sorted({str(done.outcome.why) for done in refused if done.outcome is not None})
    if reasons:
        alarms.append(KeptAlarm(kind=REFUSED, topic=topic, detail="; ".join(reasons)))
    unique = {(alarm.kind, alarm.partition, alarm.broker): alarm for alarm in alarms}
    return list(unique.values())
