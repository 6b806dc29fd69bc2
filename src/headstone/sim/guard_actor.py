"""The guard of a simulated cluster: the decision with a durable journal, and everything that may happen to the guard that
carries it out.

Owns when it looks, what becomes of its calls and readings, its death and its suspensions. `guard_world.py` decides what it can
see, and how late; `guarded.py` checks what must not happen.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from headstone.coordination.absences import known_below
from headstone.coordination.danger import NEVER_MS, Margins
from headstone.coordination.freshness import is_void
from headstone.coordination.guard_values import (
    Action,
    AddAgain,
    Alarm,
    AlarmKind,
    Allowed,
    Configs,
    Decision,
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
from headstone.sim.broker import PartitionMetadata, SimBroker
from headstone.sim.checkers import check_log
from headstone.sim.guard_world import MARGINS, RETENTION_MS, World

ROBOT_POLLS = 3.5
"""A robot comes round after this many polling intervals of the guard."""
DEAD_MS = (500, 3_000, 6_000, 12_000)
"""How long a guard is dead: less than the slack, about as long, longer, and longer than a false clock report counts."""
FIRST_SEEN_MS = (0, 0, MARGINS.poll_ms, MARGINS.metadata_age_ms, MARGINS.metadata_age_ms + MARGINS.effect_ms)
"""How long after the topic was created the guard first sees it: perhaps while a broker is away."""
REREAD_POLLS = 10
"""A replica that could not be judged is read again after this many polling intervals."""
READ_BATCHES = ((0,), (0,), (0, 1), (2, 50))
"""How much of what a replica lacks is read at one look: by a guard that may not read, one that falls behind, one that keeps
up."""


ALONE = PartitionSeen(partition=1, leader=None, isr=(), replicas=(ReplicaSeen(broker=99, log_end=None),))
"""Another partition of the topic, whose only replica is on a broker that never comes back."""


def _deletions(broker: SimBroker, span: OffsetSpan) -> list[int]:
    """Tombstones and markers there (`agent/replica_deletions.py`)."""
    batches = [batch for batch in broker.log.batches(span.start) if batch.base < span.end]
    markers = [batch.last for batch in batches if batch.kind not in (DATA, EMPTIED)]
    tombstones = [
        record.offset for batch in batches if batch.is_data for record in batch.records if record.value is None
    ]
    return sorted(offset for offset in (*markers, *tombstones) if span.start <= offset < span.end)


def _read_from(read: DeletionsRead | None, start: int) -> DeletionsRead:
    """Continues, or starts again at `start` if that is before or beyond what was read."""
    if read is None:
        return DeletionsRead(start=start, end=start)
    return read if read.start <= start <= read.end else replace(read, start=start, end=start)


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
        self.looked_ms = self._made_ms = self.cluster.now_ms
        self.missed_a_leader = self.missed_a_change = False
        self.exposed: set[int] = set()
        """Replicas that were away when somebody undid the hold. The guard is not responsible for them until a look could show
        it, or until a replica that is back by then was read."""
        self.came_with_less: set[int] = set()
        """Replicas that came back with less than they had: what was known of them before was not true."""
        self.robot_ms = self.cluster.now_ms if robot else None
        self.agents, self.reads = agents, reads
        self.liars = False
        """Agents falsely report that every replica has what its leader has."""
        self.suspends = 0.0
        """How often it is suspended: between its look and its decision, between decision and action, or between noting an
        action and calling."""
        self.suspensions = 0
        self.sees_alone = False
        """Each look also shows the partition ALONE; the hold for the other partition must end all the same."""
        self.sleeps: str | None = None
        """`deciding`, `acting` or `calling`: it stops there when it is about to release, until something wakes it."""
        self.woken_ms = 0
        """When it last woke from that: it did not watch replicas that were away by then all along."""
        self.let_go: str | None = None
        """The replicas that it exposed by its own release, and to what."""
        self.accused: int | None = None
        """A replica that was called wrong although nothing could show it."""
        self.doubted: int | None = None
        """A sole replica that was said to miss something, although it cannot fall behind another one."""
        self._asleep: Callable[[], None] | None = None
        self._joined: set[tuple[int, int]] = set()
        self._read: dict[int, tuple[Verdict, int]] = {}
        self._missed: DeletionsRead | None = None
        self._look_ms = self.cluster.now_ms + begins_ms
        self._unseen_ms = self.cluster.now_ms if begins_ms else None
        """When a look was made before the topic was created, if the guard first sees the topic later than that."""
        self.late_at_first_sight = False
        self._accepted_ms: int | None = None
        self._default_accepted_ms: int | None = None
        self._leader = self.cluster.metadata.leader

    @property
    def unknown(self) -> bool:
        """Its last look is too old: `guard status` would say so."""
        return self.cluster.now_ms - self.looked_ms > 2 * self.world.bounds.poll_ms

    @property
    def asleep(self) -> bool:
        return self._asleep is not None

    def wake(self) -> None:
        """It continues where it was, and looks again."""
        if self._asleep is not None:
            go_on, self._asleep = self._asleep, None
            self.woken_ms = self.cluster.now_ms
            go_on()
            self._look_ms = self.cluster.now_ms + self.world.bounds.poll_ms // 2

    def next_ms(self) -> int:
        times = (
            NEVER_MS if self.asleep else self._look_ms,
            self.robot_ms,
            self.world.next_ms(),
            *self.world.passes.values(),
        )
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
        if now_ms < self._look_ms or self.asleep:
            return
        trouble, poll_ms = self.world.trouble, self.world.bounds.poll_ms
        if self.rng.random() < trouble.dies:
            self._look_ms = now_ms + self.rng.choice(DEAD_MS)
            if self.liars and any(self.cluster.reachable(broker) for broker in self.cluster.brokers):
                # At its last look agents report clocks that differ by the whole retention: it must still read when it is back.
                lie = replace(self.look(), skew_ms=RETENTION_MS)
                self.world.later(self.world.decide_ms, lambda: self._decide(lie))
            self._missed = None
            return
        self._look_ms = now_ms + (
            poll_ms if trouble.late == 1.0 else self.rng.choice((poll_ms // 2, poll_ms - self.world.decide_ms))
        )
        if not any(self.cluster.reachable(broker) for broker in self.cluster.brokers):
            return  # no broker answers: there is no look
        seen = self.look()
        if self.suspends and self.rng.random() < self.suspends:
            self._suspend(seen)
        else:
            self.world.later(self.world.decide_ms, lambda: self._decide(seen))

    def _suspend(self, seen: TopicSeen) -> None:
        """Suspended for a while, it neither looks nor acts; then it continues as if nothing had happened."""
        self.suspensions += 1
        now_ms = self.cluster.now_ms
        until_ms = now_ms + self.rng.choice(DEAD_MS)
        self._look_ms = until_ms + self.world.bounds.poll_ms
        if self.rng.random() < 0.5:
            self.world.at(until_ms, lambda: self._decide(seen))
        elif random.Random(until_ms).random() < 0.5:
            self.world.at(now_ms, lambda: self._decide(seen, acts_ms=until_ms))
        else:
            self.world.at(now_ms, lambda: self._decide(seen, calls_ms=until_ms))

    def look(self) -> TopicSeen:
        cluster = self.cluster
        metadata, settings = self.world.known()
        alive = [broker for broker in cluster.brokers if cluster.reachable(broker)]
        silent = self.world.trouble.broker_silent
        answering = [b for b in alive if self.rng.random() >= silent]
        default_overrides = None if self.rng.random() < silent else settings.default_overrides
        partition = PartitionSeen(
            partition=0, leader=metadata.leader, isr=self._in_sync(metadata), committed_end=cluster.truth.committed_end,
            leader_epoch=metadata.leader_epoch,
            replicas=tuple(self._replica(cluster.brokers[number]) for number in metadata.members),
            moving=self._moving(metadata), deletions=self._read_missed(metadata), first_ms=self._unseen_ms,
        )  # fmt: skip
        return TopicSeen(
            topic="t", asked_ms=cluster.now_ms, compacted=settings.compacted, delete_retention_ms=settings.delete_retention_ms,
            overrides=settings.overrides, default_overrides=default_overrides,
            partitions=(partition, ALONE) if self.sees_alone else (partition,),
            alive=tuple(b.number for b in alive), held_on=tuple(b.number for b in answering if b.held),
            skew_ms=self.skew_ms, hold_accepted_ms=self._accepted_ms,
            default_accepted_ms=self._default_accepted_ms, unseen_ms=self._unseen_ms,
        )  # fmt: skip

    def _in_sync(self, metadata: PartitionMetadata) -> tuple[int, ...]:
        return () if metadata.leader is None and self.world.empties_isr else metadata.isr

    def _read_missed(self, metadata: PartitionMetadata) -> DeletionsRead | None:
        """Reads a few more batches, or many, of what replicas lack, from the leader according to metadata if it really leads
        (`guard/looks/missed.py`).

        A leader whose log begins above that place gives nothing (OFFSET_OUT_OF_RANGE): what a purge removed stays unread."""
        ends = [end for (_, broker), end in known_below(self.memory).items() if broker not in metadata.isr]
        read = self._missed = _read_from(self._missed, min(ends)) if ends else None
        leader = self.cluster.leader()
        if read is None or leader is None or leader.number != metadata.leader or read.end < leader.log.log_start:
            return read
        committed = (b for b in leader.log.batches(read.end) if b.last < leader.log.high_watermark)
        for batch in islice(committed, self.rng.choice(self.reads)):
            deletes = not batch.is_data or any(record.value is None for record in batch.records)
            read = replace(read, end=batch.last + 1, newest=batch.last if deletes else read.newest)
        self._missed = read
        return read

    def _moving(self, metadata: PartitionMetadata) -> tuple[int, ...]:
        """Added, and not in sync since."""
        self._joined |= {(number, since) for number, since in metadata.members.items() if number in metadata.isr}
        return tuple(n for n, since in metadata.members.items() if since > 0 and (n, since) not in self._joined)

    def _replica(self, broker: SimBroker) -> ReplicaSeen:
        verdict, read_ms = self._read.get(broker.number, (None, 0))
        if verdict is Verdict.UNJUDGED and self.cluster.now_ms > read_ms + REREAD_POLLS * self.world.bounds.poll_ms:
            verdict, read_ms = None, 0
        reachable = self.cluster.reachable(broker) and broker.metadata is not None
        return ReplicaSeen(
            broker=broker.number, log_end=broker.log.log_end if reachable else None, verdict=verdict, read_ms=read_ms
        )

    def _decide(self, seen: TopicSeen, *, acts_ms: int | None = None, calls_ms: int | None = None) -> None:
        """`acts_ms`: when it acts, if it is suspended after deciding. `calls_ms`: likewise, if it has noted the action by
        then."""
        decision = decide(self.memory, seen, self.cluster.now_ms, self.margins, self.allowed)
        lets_go = any(isinstance(action, Release | ReleaseDefault) for action in decision.actions)
        if lets_go and self.sleeps == "deciding":
            self._asleep, self.sleeps = lambda: self._decide(seen), None
            return
        complete: dict[int, int | None] = {known.broker: known.complete_ms for known in self.memory.complete}
        complete |= {absence.broker: absence.complete_ms for absence in self.memory.away}
        now = {absence.broker: absence.complete_ms for absence in decision.memory.away}
        self.came_with_less &= set(now)
        self.came_with_less |= {b for b, ms in now.items() if b in complete and (ms or 0) < (complete[b] or 0)}
        if not complete:
            # If the guard could not look before, because all brokers were down or it was dead from the start, it is not
            # responsible for what happened until then.
            at_once = seen.asked_ms - self._made_ms <= FIRST_SEEN_MS[-1] + 2 * self.world.bounds.poll_ms
            self.late_at_first_sight |= at_once and any(away.too_late for away in decision.memory.away)
            self.missed_a_leader |= not at_once
        self.memory, self.statuses = decision.memory, decision.statuses
        away = {absence.broker for absence in self.memory.away}
        self._note_doubted(seen, away)
        unread = {absence.broker for absence in self.memory.away if absence.returned_ms is not None}
        self.exposed = (self.exposed | away) if self.world.undone_unseen else (self.exposed & unread)
        # A leader from before the first look was complete since the topic was created, or is too late by that look.
        self.missed_a_leader |= bool(complete) and self.unknown and self.cluster.metadata.leader != self._leader
        self.missed_a_change |= self.world.changes > 1
        self.looked_ms, self._leader, self.world.changes = seen.asked_ms, self.cluster.metadata.leader, 0
        if lets_go and self.sleeps == "acting":
            self._asleep, self.sleeps = lambda: self._act(seen, decision), None
        elif acts_ms is not None:
            self.world.at(acts_ms, lambda: self._act(seen, decision))
        else:
            self._act(seen, decision, calls_ms)

    def _act(self, seen: TopicSeen, decision: Decision, calls_ms: int | None = None, done: int = 0) -> None:
        """Each action is noted, which may take long, and then called: the first one at `calls_ms`, if the guard sleeps in
        between."""
        for number, action in enumerate(decision.actions[done:], done):
            if self._is_void(action, seen, decision):
                continue
            asleep = isinstance(action, Release | ReleaseDefault) and self.sleeps == "calling"
            if asleep or calls_ms is not None:
                go_on = partial(self._call_and_act, seen, decision, number)
                if asleep:
                    self._asleep, self.sleeps = go_on, None
                else:
                    self.world.at(calls_ms or 0, go_on)
                return
            self._call(action, seen, decision)

    def _call_and_act(self, seen: TopicSeen, decision: Decision, number: int) -> None:
        self._call(decision.actions[number], seen, decision)
        self._act(seen, decision, done=number + 1)

    def _is_void(self, action: Action, seen: TopicSeen, decision: Decision) -> bool:
        return is_void(action, decision.memory, seen, self.cluster.now_ms, self.margins)

    def _call(self, action: Action, seen: TopicSeen, decision: Decision) -> None:
        if self._is_void(action, seen, decision):
            return
        self.actions[type(action).__name__] += 1
        if isinstance(action, Alarm):
            self._note_accused(action, seen)
        if isinstance(action, Release | ReleaseDefault):
            self._note_let_go()
        if self.rng.random() >= self.world.trouble.call_fails:
            self._perform(action)

    def _note_accused(self, alarm: Alarm, seen: TopicSeen) -> None:
        """By what was read when it looked: a guard that is suspended afterwards reports it late."""
        verdicts = {replica.broker: replica.verdict for replica in seen.partitions[0].replicas}
        if alarm.kind is AlarmKind.WRONG and alarm.broker is not None and verdicts[alarm.broker] is Verdict.UNJUDGED:
            self.accused = alarm.broker

    def _note_doubted(self, seen: TopicSeen, away: set[int]) -> None:
        partition = seen.partitions[0]
        if len(partition.replicas) == 1 and not partition.moving and partition.replicas[0].broker in away:
            self.doubted = partition.replicas[0].broker

    def _note_let_go(self) -> None:
        """Only replicas that were in sync, stopped cleanly, and were neither called too late nor marked to be read."""
        metadata = self.cluster.metadata
        brokers = {
            away.broker for away in self.memory.away if away.too_late or away.unread or away.order
        } | self.exposed
        for number, since in metadata.members.items():
            broker = self.cluster.brokers[number]
            away = number not in metadata.isr and not broker.alive and broker.stopped_clean and broker.log.log_end > 0
            if away and (number, since) in self._joined and number not in brokers | self.came_with_less:
                self.let_go = self.let_go or self.world.owed(number)

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
        readable = [b for b in self.cluster.brokers if self.cluster.reachable(b) and b.metadata is not None]
        if sum(peer.number in self.cluster.metadata.members for peer in readable) < 2:
            self._read[action.broker] = (Verdict.UNJUDGED, self.cluster.now_ms)
            return
        for peer in readable:
            wrong = bool(check_log("read", peer.log, self.cluster.truth))
            self._read[peer.number] = (Verdict.WRONG if wrong else Verdict.RIGHT, self.cluster.now_ms)

    def _agents_agree(self, broker: SimBroker, missed: OffsetSpan) -> bool:
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
