"""Outages at the edge of the retention, for stories with a guard: what a replica misses is due as soon as no hold keeps it.

Owns what is missed (a deletion, a marker, everything written while a replica or the whole partition was away), how the other
replicas clean meanwhile, and what a person does to the topic's policy on the way. `guarded.py` has the guard, and what it must
not let happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headstone.sim.broker import Parts, SimBroker
from headstone.sim.cluster import SimProducer
from headstone.sim.guard_world import MARGINS, RETENTION_MS, World
from headstone.sim.ordeals import Ordeals
from headstone.sim.scenario import Scenario

EDGE_BEFORE_MS = 1_400
EDGE_STEPS = 32
EDGE_STEPS_MS = (20, 60, 90)
"""From the first moment that anything could be due by any clock until it is due by all of them."""
EDIT_CHANCE = 0.05
"""At each of these steps, if somebody interferes: a hold is undone while it matters."""
DARK_MS = (3 * MARGINS.poll_ms, RETENTION_MS // 2, RETENTION_MS - EDGE_BEFORE_MS, 2 * RETENTION_MS)
"""For how long all replicas of a partition are down."""
CHANGE_EVERY_MS = 1_500
"""Nobody changes configs and restores them between two looks: the promise does not cover that."""


class GuardedOutages(Ordeals):
    """Ordeals in the guard's world. `purges`: a person switches the topic to `delete` for a while, and back."""

    dark_until_ms = -1
    """Until then all brokers were down: no guard could look, or hold anything."""

    world: World
    meddled: bool
    purges: bool

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, Parts())
        self.policy_switches = 0
        self._marked = 0
        self._changed_ms = self.cluster.now_ms

    def somebody_edits(self, rng: random.Random) -> bool:
        """A person changes what is held, sets a hold, or changes delete.retention.ms."""
        if not self.meddled or self.cluster.now_ms < self._changed_ms + CHANGE_EVERY_MS:
            return False
        self._changed_ms = self.cluster.now_ms
        if rng.random() < 0.5:
            self.world.person(rng)
        else:
            self.world.change_retention(rng)
        return True

    def edge_outage(self, rng: random.Random, back: Callable[[], None] = lambda: None) -> bool:
        """A replica misses something that is stamped at once, and the others clean all the time until past its due time.

        Another follower may copy it with its stamp, so that its clock decides when it goes, and then lead: at worst the fastest
        clock of all, after the slowest has stamped it. `back` is called before the replica is back.
        """
        cluster, crossed = self.cluster, rng.random() < 0.6
        if crossed and cluster.elect(min(cluster.metadata.isr, key=lambda number: cluster.brokers[number].skew_ms)):
            self._all_learn()
        leader = cluster.leader()
        followers = [b for b in cluster.brokers if b.number in cluster.metadata.isr and b is not leader and b.alive]
        if leader is None or not followers or cluster.isolated:
            return False
        followers.sort(key=lambda follower: follower.skew_ms)
        copier = followers.pop() if crossed and len(followers) > 1 else None
        broker = rng.choice(followers)
        producer = rng.choice(cluster.producers)
        marker = rng.random() < 0.3 and producer.txn is None
        cluster.produce(leader, [(b"edge", b"value")], producer if marker else None)
        self.pump(rng)
        cluster.wait(rng.choice((0, 50, 300)))
        cluster.crash(broker.number, clean_stop=True)
        if copier is not None:
            cluster.shrink_isr(copier.number)
        self._all_learn()
        self._write_plain(leader, rng)
        self._miss(leader, producer, marker=marker, commit=rng.random() < 0.5)
        self._stamp(leader, copier, rng)
        self._wear_on(broker, rng)
        back()
        if copier is not None and cluster.elect(copier.number):
            self._all_learn()
        self._return(broker, rng)
        return True

    def _write_plain(self, leader: SimBroker, rng: random.Random) -> None:
        """Writes only plain values, which an absent replica may miss, for up to half of the retention, or for longer."""
        for _ in range(rng.choice((0, 0, 0, 2, 20))):
            self.cluster.produce(leader, [(b"filler", b"beat")])
            self._follow()
            self.cluster.wait(rng.choice((MARGINS.poll_ms, RETENTION_MS // 10)))

    def _miss(self, leader: SimBroker, producer: SimProducer, *, marker: bool, commit: bool) -> None:
        if marker:
            self.cluster.decide(producer, commit=commit)
            self.cluster.write_marker(producer)
            self.cluster.produce(leader, [(b"edge", b"newer")])
        else:
            self.cluster.produce(leader, [(b"edge", None)])

    def _stamp(self, leader: SimBroker, copier: SimBroker | None, rng: random.Random) -> None:
        for broker in self.cluster.brokers:
            if broker is not copier:
                self.cluster.fetch(broker)
                self.cluster.fetch(broker)
        for _ in range(2):
            self.cluster.produce(leader, [(b"filler", b"beat")])
            leader.log.roll()
            self.cluster.commit(leader)
            self.cluster.clean(leader)
        self.pump(rng)
        self.cluster.expand_isr()

    def _wear_on(
        self, besides: SimBroker | None, rng: random.Random, *, after_ms: int = RETENTION_MS - EDGE_BEFORE_MS
    ) -> None:
        """Lets time pass until everything stamped by now is due; on the way somebody may purge the topic."""
        cluster = self.cluster
        off, on = self._purge_steps(rng)
        if off < 0:
            self.switch_policy(rng, compacted=False)
        cluster.wait(after_ms)
        for step in range(EDGE_STEPS):
            if step in (off, on):
                self.switch_policy(rng, compacted=step == on)
            leader = cluster.leader()
            if leader is not None:
                cluster.produce(leader, [(b"filler", b"beat")])
            self._follow()
            for number in cluster.metadata.members:
                if cluster.brokers[number].alive and cluster.brokers[number] is not besides:
                    self._choose_or_clean(cluster.brokers[number], rng)
            if self.meddled and rng.random() < EDIT_CHANCE:
                self.somebody_edits(rng)
            cluster.wait(rng.choice(EDGE_STEPS_MS))
            self.world.begin_passes()

    def _purge_steps(self, rng: random.Random) -> tuple[int, int]:
        """The steps at which the topic is switched to `delete` (-1: at once) and back. Beyond the last step: never."""
        if not self.purges or rng.random() < 0.3:
            return EDGE_STEPS, EDGE_STEPS
        off = rng.choice((-1, rng.randrange(EDGE_STEPS // 2)))
        return off, max(off, 0) + rng.randrange(1, EDGE_STEPS // 2)

    def switch_policy(self, rng: random.Random, *, compacted: bool) -> None:
        """While it is `delete`, retention by time, or a purge, moves the log start."""
        if self.world.settings.compacted == compacted:
            return
        self.world.configure(compacted=compacted)
        self.policy_switches += 1
        if not compacted and rng.random() < 0.3:
            self.trim(rng)

    def missed_marker(self, rng: random.Random) -> bool:
        """A replica misses a marker that the others clean away, and the producer's next marker says the opposite: on that
        replica aborted data is committed, or committed data hidden."""
        cluster = self.cluster
        leader, producer = cluster.leader(), rng.choice(cluster.producers)
        followers = [b for b in cluster.brokers if b.number in cluster.metadata.isr and b is not leader and b.alive]
        if leader is None or not followers or cluster.isolated or producer.txn is not None:
            return False
        self._marked += 1
        key, commits, broker = b"marked%d" % self._marked, rng.random() < 0.5, rng.choice(followers)
        if commits:
            cluster.produce(leader, [(key, b"value")])
        cluster.produce(leader, [(key, None if commits else b"poison")], producer)
        self.pump(rng)
        cluster.crash(broker.number, clean_stop=True)
        self._all_learn()
        self._end(leader, producer, commit=commits)
        for _ in range(2):
            # Data goes first, a deletion after its time, and only a pass that finds none of it stamps the marker.
            self._stamp(leader, None, rng)
            self._wear_on(broker, rng)
        if producer.txn is None:
            cluster.produce(leader, [(b"next", b"x")], producer)
            self._end(leader, producer, commit=not commits)
        self._return(broker, rng)
        return True

    def _end(self, leader: SimBroker, producer: SimProducer, *, commit: bool) -> None:
        self.cluster.decide(producer, commit=commit)
        for _ in range(2):
            self.cluster.write_marker(producer)
            self._follow()
            self.cluster.commit(leader)

    def blackout(self, rng: random.Random) -> bool:
        """All replicas go down, and come back in any order. The last one to go down alone has all that was committed."""
        cluster, leader = self.cluster, self.cluster.leader()
        if leader is None or cluster.isolated:
            return False
        cluster.produce(leader, [(b"dark", b"value")])
        self.pump(rng)
        cluster.wait(rng.choice((0, 50, 300)))
        other_brokers = [
            cluster.brokers[n] for n in cluster.metadata.members if n != leader.number and cluster.brokers[n].alive
        ]
        for broker in other_brokers:
            cluster.crash(broker.number, clean_stop=True)
        self._all_learn()
        if rng.random() < 0.7:
            cluster.produce(leader, [(b"dark", None)])
            self._stamp(leader, None, rng)
        cluster.crash(leader.number, clean_stop=True)
        self._all_learn()
        cluster.wait(rng.choice(DARK_MS))
        self.dark_until_ms = cluster.now_ms
        last_first = rng.random() < 0.7
        if not last_first:
            for broker in other_brokers:
                self._return(broker, rng)
        self._return(leader, rng)
        self._wear_on(None, rng, after_ms=rng.choice((0, RETENTION_MS - EDGE_BEFORE_MS)))
        if last_first:
            for broker in other_brokers:
                self._return(broker, rng)
        return True

    def _return(self, broker: SimBroker, rng: random.Random) -> None:
        self.cluster.restart(broker.number, kept_to=broker.log.log_end)
        self._all_learn()
        self.pump(rng)

    def _follow(self) -> None:
        """Everyone copies records, then learns that they are committed; and all segments roll."""
        cluster = self.cluster
        members = [cluster.brokers[number] for number in cluster.metadata.members]
        for _ in range(2):
            for broker in members:
                cluster.fetch(broker)
        for broker in members:
            if broker.alive:
                broker.log.roll()
        cluster.expand_isr()

    def _choose_or_clean(self, broker: SimBroker, rng: random.Random) -> None:
        """A pass begins at once, or a while after its cleaner chose the log: it does not see a hold that comes in between.

        Most passes that would remove nothing are left out, because they cost as much as those that do.
        """
        if broker.number in self.world.passes or broker.held:
            return
        horizons = [batch.horizon for batch in broker.log.batches() if batch.horizon is not None]
        left_ms = min(horizons, default=broker.clock(self.cluster.now_ms)) - broker.clock(self.cluster.now_ms)
        if 0 < left_ms < MARGINS.pass_start_ms or rng.random() < 0.1:
            self.world.passes[broker.number] = self.cluster.now_ms + rng.randrange(MARGINS.pass_start_ms)
        elif horizons and left_ms <= 0:
            self.cluster.clean(broker)
