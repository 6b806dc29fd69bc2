"""Random stories of brokers that follow Kafka's rule, with the guard outside in place of coordination.

Owns the exact statement of the promise: a finding counts unless the guard had said that it may happen
(docs/rfcs/0003-guard.md). `guarded_outages.py` has the outages that test it, `guard_actor.py` the guard.
"""

from __future__ import annotations

import random

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import Allowed, Away, State
from headstone.sim.chaos import Corrupt
from headstone.sim.checkers import NOT_CONVERGED, CheckerFinding, check_log
from headstone.sim.cluster import SimProducer
from headstone.sim.guard_actor import FIRST_SEEN_MS, READ_BATCHES, Guard
from headstone.sim.guard_world import CALM, MARGINS, NO_DEFAULTS, RETENTION_MS, ROUGH, WORST, World
from headstone.sim.guarded_outages import GuardedOutages
from headstone.sim.scenario import Scenario

HELD_LATE = "held-late"
FALSE_ALARM = "false-alarm"
LET_GO = "let-go"
CALM_LOOKS = 400
AWAIT_LOOKS = 40
ALONE_SHARE = 0.1
"""Share of topics that have another partition, which nobody leads any more."""


class Guarded(GuardedOutages):
    """The driver with a guard. A replica that the guard called too late, or unread, is excused until it is right again."""

    def __init__(
        self, scenario: Scenario, margins: Margins, seed: int, *, guarding: bool = True, bounds: Margins = MARGINS,
        first_seen_ms: int | None = None,
    ) -> None:  # fmt: skip
        """`first_seen_ms`: one of FIRST_SEEN_MS; None: drawn."""
        super().__init__(scenario)
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
        besides = random.Random(f"{seed} besides")
        self.purges = besides.random() < 0.3
        self.world.empties_isr = besides.random() < 0.5
        self.guard.suspends = besides.choice((0.0, 0.0, 0.0, 0.02)) if guarding else 0.0
        self.guard.sees_alone = besides.random() < ALONE_SHARE
        self.never_late = trouble is not ROUGH and not self.meddled and not self.guard.suspends
        """Slow and outdated, but within the margins, and nobody interferes: here the guard must not come too late."""
        self.excused_for_good = False
        if guarding:
            self.cluster.watcher = self.guard
            self.guard.watch()

    def do(self, name: str, number: int) -> bool:
        done = super().do(name, number)
        self.cluster.wait(1)
        self._note_led()
        return done

    def isolate(self, rng: random.Random) -> bool:
        """A broker that is cut off does not clean here: the promise does not cover one that keeps cleaning."""
        done = super().isolate(rng)
        for number in self.cluster.isolated:
            self.cluster.brokers[number].held = True
        return done

    def _days(self, producer: SimProducer, passes: int, rng: random.Random) -> None:
        """Long enough for a stamp and its retention, several times over."""
        for _ in range(passes):
            super()._days(producer, 1, rng)
            self.cluster.wait(rng.choice((0, RETENTION_MS // 2, RETENTION_MS)))

    def suspects(self) -> set[int]:
        """Replicas called too late, or to be read; exposed by others; or those whose countdown, as the guard last showed it, is
        over."""
        late = {away.broker for away in self.guard.memory.away if away.too_late or away.unread or away.order}
        late |= self.guard.exposed
        for status in self.guard.statuses:
            over = status.unsafe_ms is not None and status.unsafe_ms <= self.cluster.now_ms
            if over and status.state is not State.HELD:
                late |= set(status.blockers)
        return late

    def _note_led(self) -> None:
        """A replica that copied from one that must not lead may be wrong too; a person was told."""
        led = self.cluster.metadata.leader in self.suspects()
        self.excused_for_good |= led or self.guard.missed_a_leader or self.guard.missed_a_change

    def suspended_release(self, rng: random.Random) -> bool:
        """Suspends the guard when it is about to release, and wakes it when another replica has been away for long."""
        cluster, guard = self.cluster, self.guard
        if self.guarding:
            guard.sleeps = rng.choice(("deciding", "acting"))
            if guard.sleeps == "acting" and random.Random(cluster.now_ms).random() < 0.5:
                guard.sleeps = "calling"
        done = self.edge_outage(rng)
        for _ in range(AWAIT_LOOKS):
            if guard.asleep or not self.guarding:
                break
            self.pump(rng)
            cluster.expand_isr()
            cluster.wait(MARGINS.poll_ms)
        guard.sleeps = None
        done = self.edge_outage(rng, back=guard.wake) or done
        guard.wake()
        return done

    def check(self) -> None:
        self._note_led()
        self._check_let_go()
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

    def _check_let_go(self) -> None:
        """The guard must not undo a hold itself while it keeps what a replica lacks, however late it carries out its
        decision."""
        let_go = self.guard.let_go
        if let_go is not None and not self.excused_for_good and not self.meddled:
            raise Corrupt(CheckerFinding(kind=LET_GO, where="guard", text=let_go))

    def _check_told(self) -> None:
        """Reports must be true if the world stays within the margins; those about the cluster default always, because nobody
        else changes it."""
        memory = self.guard.memory
        late = [away for away in memory.away if away.too_late and self._watched_all_along(away)]
        if self.never_late and late and not self.excused_for_good:
            raise Corrupt(CheckerFinding(kind=HELD_LATE, where=f"broker {late[0].broker}", text=str(late[0])))
        if self.never_late and self.guard.late_at_first_sight:
            raise Corrupt(
                CheckerFinding(kind=HELD_LATE, where="guard", text="too late in a topic that was made just before")
            )
        if self.guard.accused is not None:
            text = f"broker {self.guard.accused} was called wrong, and nobody could be asked"
            raise Corrupt(CheckerFinding(kind=FALSE_ALARM, where="guard", text=text))
        if self.guard.doubted is not None:
            text = f"broker {self.guard.doubted} is the only replica, and was said to be behind"
            raise Corrupt(CheckerFinding(kind=FALSE_ALARM, where="guard", text=text))
        if memory.hold is not None and memory.hold.default_undone_ms is not None:
            raise Corrupt(
                CheckerFinding(kind=FALSE_ALARM, where="guard", text=f"nobody changed the default: {memory.hold}")
            )

    def _watched_all_along(self, away: Away) -> bool:
        """False for a new copy, or one that came back with less than it had: nobody could know of those in time. Also false for
        one that was away while the guard was suspended for long, or while no broker ran."""
        before_ms = MARGINS.metadata_age_ms + 2 * MARGINS.poll_ms
        watched = away.complete_ms is not None and away.complete_ms >= away.since_ms - before_ms
        watched = watched and away.since_ms > max(self.guard.woken_ms, self.dark_until_ms)
        return watched and away.broker not in self.guard.came_with_less

    def heal(self) -> None:
        """Everything comes back and the guard's world behaves: the guard must release what it held."""
        cluster, guard = self.cluster, self.guard
        self.world.trouble, guard.suspends = CALM, 0.0
        self.switch_policy(random.Random(0), compacted=True)
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
            raise Corrupt(CheckerFinding(kind=NOT_CONVERGED, where="guard", text=text))

    def _at_peace(self) -> bool:
        """With the cluster default as it was: nobody else changes it."""
        memory, left = self.guard.memory, self.world.settings.default_overrides != NO_DEFAULTS
        return memory.hold is None and not memory.away and not left and (self.meddled or not self.cluster.hold)

    def _left_to_a_person(self) -> bool:
        """Somebody undid the hold: without one, a wrong replica can be taken out but not re-replicated."""
        memory = self.guard.memory
        undone = memory.hold is not None and memory.hold.undone_ms is not None
        out = any(away.expelled_ms is not None for away in memory.away)
        return undone and (out or not self._is_wrong_beside_a_right_leader())

    def _is_wrong_beside_a_right_leader(self) -> bool:
        leader, metadata = self.cluster.leader(), self.cluster.metadata
        in_sync = [self.cluster.brokers[number] for number in metadata.isr if number in metadata.members]
        wrong = [broker for broker in in_sync if check_log("read", broker.log, self.cluster.truth)]
        return leader is not None and bool(wrong) and leader not in wrong
