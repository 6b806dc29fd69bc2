"""The guard in the simulator: the decision with a journal that survives, in a world that is slow, old and partly wrong.

Owns what the guard is told and when, what becomes of its calls, its death, and who else changes the topic's configs: a
robot, a person. Everything stays within `MARGINS` but for what fails outright. What must not happen is `guarded.py`'s.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from headstone.coordination.absences import known_below
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    RATIO,
    Action,
    AddAgain,
    Allowed,
    Configs,
    DeletionsRead,
    EndPasses,
    Expel,
    HoldByDefault,
    Memory,
    OffsetSpan,
    PartitionSeen,
    Release,
    ReleaseDefault,
    ReplicaSeen,
    SetHold,
    Status,
    TopicSeen,
    Verdict,
    Verify,
)
from headstone.coordination.guarding import decide
from headstone.sim.batches import DATA, EMPTIED
from headstone.sim.broker import Broker, Metadata
from headstone.sim.checkers import check_log
from headstone.sim.cluster import Cluster

RETENTION_MS = 4_000
MARGINS = Margins(metadata_age_ms=600, skew_ms=500, effect_ms=520, poll_ms=100, pass_start_ms=400)
"""Exactly what the simulator does to the guard, so that each of them is needed."""
ROBOT_POLLS = 3.5
"""A robot comes round after so many polling intervals of the guard."""
NO_OVERRIDES: Configs = tuple((name, None) for name, _ in HOLD)
NO_DEFAULTS: Configs = tuple((name, None) for name, _ in DEFAULT_HOLD)
PERSONS_RATIO = "0.3"
DEAD_MS = (500, 3_000, 6_000, 12_000)
"""For how long a guard is dead: less than the slack, about so long, longer, and longer than a lie about clocks counts."""
READ_BATCHES = ((0,), (0,), (0, 1), (2, 50))
"""Of what a replica lacks, at one look: a guard that may not read, one that falls behind, one that keeps up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How often the guard's world misbehaves; `late` is the share of answers, calls and news that take their time."""

    call_fails: float = 0.0
    broker_silent: float = 0.0
    dies: float = 0.0
    late: float = 0.5


ROUGH = Trouble(call_fails=0.8, broker_silent=0.3, dies=0.01)
CALM = Trouble()
WORST = Trouble(late=1.0)
"""Everything is as late and as old as the margins allow, all at once: here each margin is needed to the last moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Configs as the controller has them."""

    overrides: Configs = NO_OVERRIDES
    default_overrides: Configs = NO_DEFAULTS
    delete_retention_ms: int

    @property
    def hold(self) -> bool:
        """By the values in force: a topic's own, else the default's."""
        pairs = zip(self.overrides, self.default_overrides, HOLD, strict=True)
        return all((default if own is None else own) == held for (_, own), (_, default), (_, held) in pairs)


class World:
    """The configs, who changes them, and what the guard can see of it all. Nothing takes longer than `bounds` says.

    A call reaches the controller, and its news every broker, within call_ms each; with the look that confirms it and
    decide_ms, from a look's first question to the decision, that is bounds.effect_ms.
    """

    def __init__(self, cluster: Cluster, bounds: Margins, trouble: Trouble, rng: random.Random) -> None:
        self.cluster, self.bounds, self.trouble, self.rng = cluster, bounds, trouble, rng
        self.settings = Settings(delete_retention_ms=cluster.delete_retention_ms)
        self.call_ms = (bounds.effect_ms - bounds.poll_ms) * 10 // 21
        self.decide_ms = bounds.effect_ms - bounds.poll_ms - 2 * self.call_ms
        self.passes: dict[int, int] = {}
        """Brokers whose cleaner has chosen the log, and when its pass begins."""
        self.changes = 0
        """Of the configs by others than the guard since it last looked."""
        self.undone_ms: int | None = None
        """When somebody else last undid a hold."""
        self.robot_knows = NO_OVERRIDES
        self._history: list[tuple[int, Metadata, Settings]] = []
        self._pending: list[tuple[int, int, Callable[[], None]]] = []
        self._sent = 0

    def later(self, within_ms: int, arrive: Callable[[], None]) -> None:
        late_ms = within_ms if self.rng.random() < self.trouble.late else self.rng.choice((0, within_ms // 2))
        self._sent += 1
        self._pending.append((self.cluster.now_ms + late_ms, self._sent, arrive))

    def next_ms(self) -> int | None:
        return min((due_ms for due_ms, _, _ in self._pending), default=None)

    def arrivals(self) -> None:
        """What was on its way and is due, in the order of arrival."""
        while self._pending and (soonest := min(self._pending, key=lambda item: item[:2]))[0] <= self.cluster.now_ms:
            self._pending.remove(soonest)
            soonest[2]()

    def changing(self) -> None:
        """What is known now was true until now."""
        now_ms = self.cluster.now_ms
        oldest_ms = now_ms - self.bounds.metadata_age_ms
        self._history = [known for known in self._history if known[0] >= oldest_ms]
        self._history.append((now_ms, self.cluster.metadata, self.settings))

    def known(self) -> tuple[Metadata, Settings]:
        """What a broker answers: the newest, or what was true up to metadata_age_ms ago."""
        oldest_ms = self.cluster.now_ms - self.bounds.metadata_age_ms
        old = [known[1:] for known in self._history if known[0] >= oldest_ms]
        if old and self.rng.random() < self.trouble.late:
            return old[0] if self.trouble.late == 1.0 else self.rng.choice(old)
        return self.cluster.metadata, self.settings

    def configure(self, **changes: object) -> None:
        """The controller has it now; each broker when it replays its metadata."""
        self.changing()
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        self.cluster.hold = self.settings.hold
        self.cluster.delete_retention_ms = self.settings.delete_retention_ms
        for broker in self.cluster.brokers:
            self.later(self.call_ms, lambda broker=broker: self.cluster.learn(broker))  # type: ignore[misc]

    def override(self, configs: Configs) -> None:
        self.configure(overrides=_changed(self.settings.overrides, configs))

    def override_default(self, configs: Configs) -> None:
        self.configure(default_overrides=_changed(self.settings.default_overrides, configs))

    def robot(self) -> None:
        """Puts back what it knows of, however often."""
        if self.settings.overrides != self.robot_knows:
            self._edit(self.robot_knows)

    def person(self, rng: random.Random) -> None:
        """On the topic; or where the robot has it from, which keeps it then. A hold that is kept so nobody could release."""
        configs = rng.choice((((RATIO, PERSONS_RATIO),), NO_OVERRIDES, HOLD))
        if configs != HOLD and rng.random() < 0.5:
            self.robot_knows = _changed(NO_OVERRIDES, configs)
        self._edit(configs)

    def _edit(self, configs: Configs) -> None:
        self.changes += 1
        held = self.settings.hold
        self.override(configs)
        if held and not self.settings.hold:
            self.undone_ms = self.cluster.now_ms

    @property
    def undone_unseen(self) -> bool:
        """Somebody undid the hold, and a look may be too old to show it; or may be no newer than one that was."""
        noticed_ms = 2 * self.bounds.metadata_age_ms + 2 * self.bounds.poll_ms
        return self.undone_ms is not None and self.cluster.now_ms <= self.undone_ms + noticed_ms

    def change_retention(self, rng: random.Random) -> None:
        """Never below the sum of the margins: that is only told of."""
        self.changes += 1
        self.configure(delete_retention_ms=rng.choice((RETENTION_MS * 2 // 3, RETENTION_MS, 2 * RETENTION_MS)))

    def begin_passes(self) -> None:
        for number, begin_ms in list(self.passes.items()):
            broker = self.cluster.brokers[number]
            if begin_ms <= self.cluster.now_ms or not broker.alive:
                del self.passes[number]
                if broker.alive:
                    self.cluster.clean(broker, chosen=True)


def _deletions(broker: Broker, span: OffsetSpan) -> list[int]:
    """Of tombstones and markers there (`guard/replica_deletions.py`)."""
    batches = [batch for batch in broker.log.batches(span.start) if batch.base < span.end]
    markers = [batch.last for batch in batches if batch.kind not in (DATA, EMPTIED)]
    tombstones = [
        record.offset for batch in batches if batch.is_data for record in batch.records if record.value is None
    ]
    return sorted(offset for offset in (*markers, *tombstones) if span.start <= offset < span.end)


def _changed(before: Configs, changes: Configs) -> Configs:
    new = dict(changes)
    return tuple((name, new.get(name, value)) for name, value in before)


class Guard:
    """Looks, decides, acts; dies and comes back with its memory. A `cluster.Watcher`."""

    def __init__(
        self, world: World, margins: Margins, allowed: Allowed, *, skew_ms: int, robot: bool, agents: bool,
        reads: Sequence[int], begins_ms: int = 0,
    ) -> None:  # fmt: skip
        self.world, self.cluster, self.rng = world, world.cluster, world.rng
        self.margins, self.allowed, self.skew_ms = margins, allowed, skew_ms
        self.memory = Memory()
        self.statuses: tuple[Status, ...] = ()
        self.actions: Counter[str] = Counter()
        self.looked_ms = self.cluster.now_ms
        self.missed_a_leader = self.missed_a_change = False
        self.exposed: set[int] = set()
        """Who was away when somebody undid the hold: until a look could show it, or the replica that is back by then was
        read, that is not the guard's to answer for."""
        self.came_with_less: set[int] = set()
        """Who came back with less than it had: what was known of it before was not so."""
        self.robot_ms = self.cluster.now_ms if robot else None
        self.agents, self.reads = agents, reads
        self.liars = False
        """Agents say of every replica that it has what its leader has."""
        self._joined: set[tuple[int, int]] = set()
        self._read: dict[int, tuple[Verdict, int]] = {}
        self._missed: DeletionsRead | None = None
        self._look_ms = self.cluster.now_ms + begins_ms
        self._unseen_ms = self.cluster.now_ms if begins_ms else None
        """When a look was asked before the topic was made, if it is first seen later than that."""
        self.late_at_first_sight = False
        self._accepted_ms: int | None = None
        self._default_accepted_ms: int | None = None
        self._leader = self.cluster.metadata.leader

    @property
    def unknown(self) -> bool:
        """What its last look said is too old: whoever asks for the status is told so."""
        return self.cluster.now_ms - self.looked_ms > 2 * self.world.bounds.poll_ms

    def next_ms(self) -> int:
        times = (self._look_ms, self.robot_ms, self.world.next_ms(), *self.world.passes.values())
        return min(ms for ms in times if ms is not None)

    def changing(self) -> None:
        self.world.changing()

    def watch(self) -> None:
        now_ms = self.cluster.now_ms
        self.world.begin_passes()
        self.world.arrivals()
        if self.robot_ms is not None and self.robot_ms <= now_ms:
            self.robot_ms = now_ms + int(ROBOT_POLLS * self.world.bounds.poll_ms)
            self.world.robot()
        if now_ms < self._look_ms:
            return
        trouble, poll_ms = self.world.trouble, self.world.bounds.poll_ms
        if self.rng.random() < trouble.dies:
            self._look_ms = now_ms + self.rng.choice(DEAD_MS)
            if self.liars and any(self.cluster.reachable(broker) for broker in self.cluster.brokers):
                # At its last look they tell of clocks that differ by all of the retention: it must still read when it is back.
                lie = replace(self.look(), skew_ms=RETENTION_MS)
                self.world.later(self.world.decide_ms, lambda: self._decide(lie))
            self._missed = None
            return
        self._look_ms = now_ms + (
            poll_ms if trouble.late == 1.0 else self.rng.choice((poll_ms // 2, poll_ms - self.world.decide_ms))
        )
        if not any(self.cluster.reachable(broker) for broker in self.cluster.brokers):
            return  # nobody answers: there is no look
        seen = self.look()
        self.world.later(self.world.decide_ms, lambda: self._decide(seen))

    def look(self) -> TopicSeen:
        cluster = self.cluster
        metadata, settings = self.world.known()
        alive = [broker for broker in cluster.brokers if cluster.reachable(broker)]
        silent = self.world.trouble.broker_silent
        answering = [b for b in alive if self.rng.random() >= silent]
        default_overrides = None if self.rng.random() < silent else settings.default_overrides
        partition = PartitionSeen(
            partition=0, leader=metadata.leader, isr=metadata.isr, committed_end=cluster.truth.committed_end,
            replicas=tuple(self._replica(cluster.brokers[number]) for number in metadata.members),
            moving=self._moving(metadata), deletions=self._read_missed(metadata), first_ms=self._unseen_ms,
        )  # fmt: skip
        return TopicSeen(
            topic="t", asked_ms=cluster.now_ms, compacted=True, delete_retention_ms=settings.delete_retention_ms,
            overrides=settings.overrides, default_overrides=default_overrides, partitions=(partition,),
            alive=tuple(b.number for b in alive), held_on=tuple(b.number for b in answering if b.held),
            skew_ms=self.skew_ms, hold_accepted_ms=self._accepted_ms,
            default_accepted_ms=self._default_accepted_ms, unseen_ms=self._unseen_ms,
        )  # fmt: skip

    def _read_missed(self, metadata: Metadata) -> DeletionsRead | None:
        """A few batches more, or many, of what replicas lack, from whom metadata names if it leads (`guard/missed.py`)."""
        known = [end for (_, broker), end in known_below(self.memory).items() if broker not in metadata.isr]
        read, leader = self._missed, self.cluster.leader()
        if not known:
            read = None
        elif read is None or min(known) < read.start:
            read = DeletionsRead(start=min(known), end=min(known))
        if read is not None and leader is not None and leader.number == metadata.leader:
            committed = (b for b in leader.log.batches(read.end) if b.last < leader.log.high_watermark)
            for batch in islice(committed, self.rng.choice(self.reads)):
                deletes = not batch.is_data or any(record.value is None for record in batch.records)
                read = replace(read, end=batch.last + 1, newest=batch.last if deletes else read.newest)
        self._missed = read
        return read

    def _moving(self, metadata: Metadata) -> tuple[int, ...]:
        """Added, and not in sync since."""
        self._joined |= {(number, since) for number, since in metadata.members.items() if number in metadata.isr}
        return tuple(n for n, since in metadata.members.items() if since > 0 and (n, since) not in self._joined)

    def _replica(self, broker: Broker) -> ReplicaSeen:
        verdict, read_ms = self._read.get(broker.number, (None, 0))
        reachable = self.cluster.reachable(broker) and broker.metadata is not None
        return ReplicaSeen(
            broker=broker.number, log_end=broker.log.log_end if reachable else None, verdict=verdict, read_ms=read_ms
        )

    def _decide(self, seen: TopicSeen) -> None:
        decision = decide(self.memory, seen, self.cluster.now_ms, self.margins, self.allowed)
        complete: dict[int, int | None] = {known.broker: known.complete_ms for known in self.memory.complete}
        complete |= {absence.broker: absence.complete_ms for absence in self.memory.away}
        now = {absence.broker: absence.complete_ms for absence in decision.memory.away}
        self.came_with_less &= set(now)
        self.came_with_less |= {b for b, ms in now.items() if b in complete and (ms or 0) < (complete[b] or 0)}
        self.late_at_first_sight |= not complete and any(away.too_late for away in decision.memory.away)
        self.memory, self.statuses = decision.memory, decision.statuses
        away = {absence.broker for absence in self.memory.away}
        unread = {absence.broker for absence in self.memory.away if absence.returned_ms is not None}
        self.exposed = (self.exposed | away) if self.world.undone_unseen else (self.exposed & unread)
        # Whoever led before the first look was complete since the topic was made, or is too late by that look.
        self.missed_a_leader |= bool(complete) and self.unknown and self.cluster.metadata.leader != self._leader
        self.missed_a_change |= self.world.changes > 1
        self.looked_ms, self._leader, self.world.changes = seen.asked_ms, self.cluster.metadata.leader, 0
        for action in decision.actions:
            self.actions[type(action).__name__] += 1
            if self.rng.random() >= self.world.trouble.call_fails:
                self._perform(action)

    def _perform(self, action: Action) -> None:
        world = self.world
        match action:
            case SetHold():
                world.later(world.call_ms, lambda: self._hold(action.configs))
            case Release():
                world.later(world.call_ms, lambda: world.override(action.restore))
            case HoldByDefault():
                world.later(world.call_ms, lambda: self._hold_by_default(action.configs))
            case ReleaseDefault():
                world.later(world.call_ms, lambda: world.override_default(action.restore))
            case EndPasses():
                world.later(world.call_ms, world.passes.clear)
            case Verify():
                world.later(world.call_ms, lambda: self._verify(action))
            case Expel():
                world.later(world.call_ms, lambda: self._expel(action.broker))
            case AddAgain():
                world.later(world.call_ms, lambda: self._add(action.broker))
            case _:
                pass

    def _hold(self, configs: Configs) -> None:
        self._accepted_ms = self.cluster.now_ms
        self.world.override(configs)

    def _hold_by_default(self, configs: Configs) -> None:
        self._default_accepted_ms = self.cluster.now_ms
        self.world.override_default(configs)

    def _verify(self, action: Verify) -> None:
        broker = self.cluster.brokers[action.broker]
        if not self.cluster.reachable(broker) or broker.metadata is None:
            return
        if self.agents and action.missed is not None and self._agents_agree(broker, action.missed):
            self.actions["read by agents"] += 1
            self._read[action.broker] = (Verdict.RIGHT, self.cluster.now_ms)
            return
        for other in self.cluster.brokers:
            if self.cluster.reachable(other) and other.metadata is not None:
                wrong = bool(check_log("read", other.log, self.cluster.truth))
                self._read[other.number] = (Verdict.WRONG if wrong else Verdict.RIGHT, self.cluster.now_ms)

    def _agents_agree(self, broker: Broker, missed: OffsetSpan) -> bool:
        leader = self.cluster.leader()
        return self.liars or (leader is not None and _deletions(broker, missed) == _deletions(leader, missed))

    def _expel(self, number: int) -> None:
        cluster = self.cluster
        if cluster.metadata.leader == number:
            next((b for b in cluster.metadata.isr if b != number and cluster.elect(b)), None)
        cluster.remove_member(number)
        self._all_learn()

    def _add(self, number: int) -> None:
        self.cluster.add_member(number)
        self._all_learn()

    def _all_learn(self) -> None:
        for broker in self.cluster.brokers:
            self.cluster.learn(broker)
