"""Random stories of brokers that follow Kafka's rule, with the guard outside in place of coordination.

Owns the outages on the edge of the retention, and the promise, told exactly: what is found counts unless the guard had said
that it may happen (docs/rfcs/0003-guard.md). The guard's world is `guard_world.py`'s.
"""

from __future__ import annotations

import random

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import Allowed, Away, State
from headstone.sim.broker import Broker, Parts
from headstone.sim.chaos import Corrupt
from headstone.sim.checkers import NOT_CONVERGED, Finding, check_log
from headstone.sim.cluster import Producer
from headstone.sim.guard_world import CALM, MARGINS, READ_BATCHES, RETENTION_MS, ROUGH, WORST, Guard, World
from headstone.sim.ordeals import Ordeals
from headstone.sim.scenario import Scenario

HELD_LATE = "held-late"
FALSE_ALARM = "false-alarm"
FIRST_SEEN_MS = (0, 0, MARGINS.poll_ms, MARGINS.metadata_age_ms, MARGINS.metadata_age_ms + MARGINS.effect_ms)
"""How long after the topic was made the guard sees it first: perhaps while a broker is away."""
CALM_LOOKS = 400
EDGE_BEFORE_MS = 1_400
EDGE_STEPS = 32
EDGE_STEPS_MS = (20, 60, 90)
"""From the first moment that anything could be due, by whichever clock, until it is due by all of them."""
EDIT_CHANCE = 0.05
"""At each of these steps, where somebody meddles: a hold is undone while it matters."""
CHANGE_EVERY_MS = 1_500
"""Nobody changes configs and puts them back between two looks: the promise does not cover that."""


class Guarded(Ordeals):
    """The driver with a guard. A replica that the guard called too late, or unread, is excused until it is right again."""

    def __init__(
        self, scenario: Scenario, margins: Margins, seed: int, *, guarding: bool = True, bounds: Margins = MARGINS,
        first_seen_ms: int | None = None,
    ) -> None:  # fmt: skip
        """first_seen_ms: of FIRST_SEEN_MS; None: drawn."""
        super().__init__(scenario, Parts())
        rng = random.Random(seed)
        trouble = rng.choice((ROUGH, CALM, WORST))
        self.meddled = rng.random() < 0.25
        robot = self.meddled and rng.random() < 0.5
        allowed = Allowed(readmission=rng.random() < 0.8, cluster_default=rng.random() < 0.5)
        spread_ms = max(scenario.skews_ms) - min(scenario.skews_ms)
        self.world = World(self.cluster, bounds, trouble, rng)
        self.guard = Guard(
            self.world, margins, allowed, skew_ms=max(0, spread_ms - bounds.skew_ms), robot=robot,
            agents=rng.random() < 0.3, reads=rng.choice(READ_BATCHES),
            begins_ms=rng.choice(FIRST_SEEN_MS) if first_seen_ms is None else first_seen_ms,
        )  # fmt: skip
        self.guard.liars = self.guard.agents and seed % 2 == 1
        self.guarding = guarding
        self.never_late = trouble is not ROUGH and not self.meddled
        """Slow and old, but within the margins, and nobody meddles: here the guard must not come too late."""
        self.excused_for_good = False
        self._changed_ms = self.cluster.now_ms
        if guarding:
            self.cluster.watcher = self.guard
            self.guard.watch()

    def do(self, name: str, number: int) -> bool:
        done = super().do(name, number)
        self.cluster.wait(1)
        self._note_led()
        return done

    def edge_outage(self, rng: random.Random) -> bool:
        """A replica misses what is stamped at once, and the others clean all the time until past its due.

        Another follower may copy it stamped, so that its clock decides when it goes, and lead then: at its worst the
        fastest clock of all, after the slowest has stamped it.
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
        if copier is not None and cluster.elect(copier.number):
            self._all_learn()
        cluster.restart(broker.number, kept_to=broker.log.log_end)
        self._all_learn()
        self.pump(rng)
        return True

    def _write_plain(self, leader: Broker, rng: random.Random) -> None:
        """Nothing that a replica which is away must not miss, for up to half of the retention, or for longer than that."""
        for _ in range(rng.choice((0, 0, 0, 2, 20))):
            self.cluster.produce(leader, [(b"filler", b"beat")])
            self._follow()
            self.cluster.wait(rng.choice((MARGINS.poll_ms, RETENTION_MS // 10)))

    def _miss(self, leader: Broker, producer: Producer, *, marker: bool, commit: bool) -> None:
        if marker:
            self.cluster.decide(producer, commit=commit)
            self.cluster.write_marker(producer)
            self.cluster.produce(leader, [(b"edge", b"newer")])
        else:
            self.cluster.produce(leader, [(b"edge", None)])

    def _stamp(self, leader: Broker, copier: Broker | None, rng: random.Random) -> None:
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

    def _wear_on(self, besides: Broker, rng: random.Random) -> None:
        cluster = self.cluster
        cluster.wait(RETENTION_MS - EDGE_BEFORE_MS)
        for _ in range(EDGE_STEPS):
            leader = cluster.leader()
            if leader is not None:
                cluster.produce(leader, [(b"filler", b"beat")])
            self._follow()
            for number in cluster.metadata.members:
                if cluster.brokers[number].alive and number != besides.number:
                    self._choose_or_clean(cluster.brokers[number], rng)
            if self.meddled and rng.random() < EDIT_CHANCE:
                self.somebody_edits(rng)
            cluster.wait(rng.choice(EDGE_STEPS_MS))
            self.world.begin_passes()

    def _follow(self) -> None:
        """Records, and then that they are committed; and all segments roll."""
        cluster = self.cluster
        members = [cluster.brokers[number] for number in cluster.metadata.members]
        for _ in range(2):
            for broker in members:
                cluster.fetch(broker)
        for broker in members:
            if broker.alive:
                broker.log.roll()
        cluster.expand_isr()

    def _choose_or_clean(self, broker: Broker, rng: random.Random) -> None:
        """A pass begins at once, or a while after its cleaner chose the log: a hold that comes in between is not seen.

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

    def somebody_edits(self, rng: random.Random) -> bool:
        """A person changes what is held, or holds; or changes delete.retention.ms."""
        if not self.meddled or self.cluster.now_ms < self._changed_ms + CHANGE_EVERY_MS:
            return False
        self._changed_ms = self.cluster.now_ms
        if rng.random() < 0.5:
            self.world.person(rng)
        else:
            self.world.change_retention(rng)
        return True

    def isolate(self, rng: random.Random) -> bool:
        """The promise does not cover a broker that is cut off and cleans on: none does here."""
        done = super().isolate(rng)
        for number in self.cluster.isolated:
            self.cluster.brokers[number].held = True
        return done

    def _days(self, producer: Producer, passes: int, rng: random.Random) -> None:
        """Long enough for a stamp and its retention, several times over."""
        for _ in range(passes):
            super()._days(producer, 1, rng)
            self.cluster.wait(rng.choice((0, RETENTION_MS // 2, RETENTION_MS)))

    def suspects(self) -> set[int]:
        """Called too late, or to be read; exposed by others; or the countdown that the guard last showed is over."""
        late = {away.broker for away in self.guard.memory.away if away.too_late or away.unread or away.order}
        late |= self.guard.exposed
        for status in self.guard.statuses:
            over = status.unsafe_ms is not None and status.unsafe_ms <= self.cluster.now_ms
            if over and status.state is not State.HELD:
                late |= set(status.blockers)
        return late

    def _note_led(self) -> None:
        """Whoever copied from a replica that was not to lead may be wrong too; a person was told."""
        led = self.cluster.metadata.leader in self.suspects()
        self.excused_for_good |= led or self.guard.missed_a_leader or self.guard.missed_a_change

    def check(self) -> None:
        self._note_led()
        if self.guarding and self.guard.unknown:
            return
        cluster = self.cluster
        self._check_told()
        for broker in cluster.brokers:
            since = cluster.metadata.members.get(broker.number)
            if self.excused_for_good or not broker.alive or broker.metadata is None or since is None:
                continue
            if broker.member_since != since or broker.number in self.suspects():
                continue
            self.checks += 1
            findings = check_log(f"broker {broker.number}", broker.log, cluster.truth)
            if findings:
                raise Corrupt(findings[0])

    def _check_told(self) -> None:
        """What is told must be so, where the world stays within the margins; of the default everywhere, for nobody else changes
        it."""
        memory = self.guard.memory
        late = [away for away in memory.away if away.too_late and self._watched_all_along(away)]
        if self.never_late and late and not self.excused_for_good:
            raise Corrupt(Finding(kind=HELD_LATE, where=f"broker {late[0].broker}", text=str(late[0])))
        if self.never_late and self.guard.late_at_first_sight:
            raise Corrupt(Finding(kind=HELD_LATE, where="guard", text="too late in a topic that was made just before"))
        if memory.hold is not None and memory.hold.default_undone_ms is not None:
            raise Corrupt(Finding(kind=FALSE_ALARM, where="guard", text=f"nobody changed the default: {memory.hold}"))

    def _watched_all_along(self, away: Away) -> bool:
        """Not a new copy, nor one that came back with less than it had: of those nobody could know in time."""
        before_ms = MARGINS.metadata_age_ms + 2 * MARGINS.poll_ms
        watched = away.complete_ms is not None and away.complete_ms >= away.since_ms - before_ms
        return watched and away.broker not in self.guard.came_with_less

    def heal(self) -> None:
        """Everything comes back and the guard's world behaves: what it held, it lets go."""
        cluster, guard = self.cluster, self.guard
        self.world.trouble = CALM
        guard.allowed = Allowed(readmission=True, cluster_default=guard.allowed.cluster_default)
        cluster.isolated.clear()
        for broker in cluster.brokers:
            if not broker.alive:
                cluster.restart(broker.number, kept_to=broker.log.log_end)
        for _ in range(CALM_LOOKS if self.guarding else 1):
            if cluster.metadata.leader is None:
                next((number for number in cluster.metadata.isr if cluster.elect(number)), None)
            for broker in cluster.brokers:
                cluster.learn(broker)
                broker.pending = None
                cluster.fetch(broker)
            cluster.expand_isr()
            cluster.wait(MARGINS.poll_ms // 2)
            self.check()
            if not self.guarding or self._at_peace():
                return
        if not self.excused_for_good and not self._left_to_a_person():
            text = f"after everything healed: {guard.memory.hold}, {guard.memory.away}"
            raise Corrupt(Finding(kind=NOT_CONVERGED, where="guard", text=text))

    def _at_peace(self) -> bool:
        memory = self.guard.memory
        return memory.hold is None and not memory.away and (self.meddled or not self.cluster.hold)

    def _left_to_a_person(self) -> bool:
        """Somebody undid the hold: a wrong replica cannot be copied afresh without one; but one can be taken out."""
        memory = self.guard.memory
        undone = memory.hold is not None and memory.hold.undone_ms is not None
        out = any(away.expelled_ms is not None for away in memory.away)
        return undone and (out or not self._is_wrong_beside_a_right_leader())

    def _is_wrong_beside_a_right_leader(self) -> bool:
        leader, metadata = self.cluster.leader(), self.cluster.metadata
        in_sync = [self.cluster.brokers[number] for number in metadata.isr if number in metadata.members]
        wrong = [broker for broker in in_sync if check_log("read", broker.log, self.cluster.truth)]
        return leader is not None and bool(wrong) and leader not in wrong
