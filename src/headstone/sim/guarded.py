"""Random stories of brokers that follow Kafka's rule, with the guard outside in place of coordination.

The guard sees late and old answers, its calls fail or take time, it dies and comes back with what its journal has. What is
found counts unless the guard had said that it may happen: `Guarded.check` is its promise, told exactly
(docs/rfcs/0003-guard.md).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    HOLD,
    Action,
    AddAgain,
    Allowed,
    Away,
    Expel,
    Memory,
    PartitionSeen,
    Release,
    ReplicaSeen,
    SetHold,
    State,
    Status,
    TopicSeen,
    Verdict,
    Verify,
)
from headstone.coordination.guarding import decide
from headstone.retention.policy import KAFKA
from headstone.sim.broker import Metadata, Parts
from headstone.sim.chaos import CHECK_EVERY, Corrupt, Outcome, Step
from headstone.sim.checkers import NOT_CONVERGED, Finding, check_log
from headstone.sim.cluster import Cluster, Producer
from headstone.sim.ordeals import Ordeals
from headstone.sim.scenario import LONG_ACTIONS, WEIGHTS, Scenario, draw_scenario

RETENTION_MS = 2_400
MARGINS = Margins(metadata_age_ms=300, skew_ms=300, effect_ms=540, poll_ms=120, pass_start_ms=0)
"""As large as what the simulator does to the guard: metadata so old, clocks so wrong, calls so slow."""
CALL_MS = 180
"""A call takes at most this, and news of it at most as long again to every broker; with the look that confirms it, that is
MARGINS.effect_ms."""
ALLOWED = Allowed(readmission=True)
NO_OVERRIDES = tuple((name, None) for name, _ in HOLD)
CALM_LOOKS = 400
EDGE_LOOKS = 90
EDGE_WEIGHT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How often the guard's world misbehaves."""

    call_fails: float
    broker_silent: float
    dies: float


ROUGH = Trouble(call_fails=0.8, broker_silent=0.3, dies=0.01)
CALM = Trouble(call_fails=0.0, broker_silent=0.0, dies=0.0)
"""Slow and old, but within the margins: here the guard must not come too late."""
HELD_LATE = "held-late"


class Guard:
    """The decision, with a journal (memory survives) and a world that answers late. Lives in a cluster's `wait`."""

    def __init__(self, cluster: Cluster, margins: Margins, skew_ms: int, rng: random.Random) -> None:
        self.cluster, self.margins, self.rng = cluster, margins, rng
        self.skew_ms = skew_ms
        self.trouble = ROUGH if rng.random() < 0.5 else CALM
        self.never_late = self.trouble is CALM
        self.memory = Memory()
        self.actions: Counter[str] = Counter()
        self._history: list[tuple[int, Metadata]] = []
        self._pending: list[tuple[int, Callable[[], None]]] = []
        self._read: dict[int, tuple[Verdict, int]] = {}
        self._look_ms = 0
        self.statuses: tuple[Status, ...] = ()
        self.looked_ms = 0
        self._leader = cluster.metadata.leader
        self.missed_a_leader = False

    @property
    def unknown(self) -> bool:
        """What its last look said is too old: whoever asks for the status is told so."""
        return self.cluster.now_ms - self.looked_ms > 2 * MARGINS.poll_ms

    def watch(self) -> None:
        """Called whenever time has passed: what was on its way arrives, and it may be time to look."""
        now_ms = self.cluster.now_ms
        self._history = [(ms, m) for ms, m in self._history if ms >= now_ms - MARGINS.metadata_age_ms]
        self._history.append((now_ms, self.cluster.metadata))
        waiting, self._pending = self._pending, []
        for due_ms, arrive in waiting:
            if due_ms <= now_ms:
                arrive()
            else:
                self._pending.append((due_ms, arrive))
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + MARGINS.poll_ms // 2
        if self.rng.random() < self.trouble.dies:
            self._look_ms = now_ms + self.rng.choice((500, 3_000, 12_000))
            return
        seen = self.look()
        self._later(MARGINS.poll_ms // 4, lambda: self._decide(seen))

    def _later(self, within_ms: int, arrive: Callable[[], None]) -> None:
        self._pending.append((self.cluster.now_ms + self.rng.choice((0, within_ms)), arrive))

    def look(self) -> TopicSeen:
        cluster = self.cluster
        metadata = self.rng.choice((self._history[0], self._history[-1]))[1]
        replicas = []
        for number in metadata.members:
            broker = cluster.brokers[number]
            verdict, read_ms = self._read.get(number, (None, 0))
            end = broker.log.log_end if cluster.reachable(broker) else None
            replicas.append(ReplicaSeen(broker=number, log_end=end, verdict=verdict, read_ms=read_ms))
        alive = [broker for broker in cluster.brokers if cluster.reachable(broker)]
        answering = [b for b in alive if self.rng.random() >= self.trouble.broker_silent]
        partition = PartitionSeen(
            partition=0, leader=metadata.leader, replicas=tuple(replicas), isr=metadata.isr,
            committed_end=cluster.truth.committed_end,
        )  # fmt: skip
        return TopicSeen(
            topic="t", asked_ms=cluster.now_ms, compacted=True, delete_retention_ms=RETENTION_MS,
            overrides=HOLD if cluster.hold else NO_OVERRIDES, partitions=(partition,),
            alive=tuple(b.number for b in alive), held_on=tuple(b.number for b in answering if b.held),
            skew_ms=self.skew_ms,
        )  # fmt: skip

    def _decide(self, seen: TopicSeen) -> None:
        decision = decide(self.memory, seen, self.cluster.now_ms, self.margins, ALLOWED)
        self.memory, self.statuses = decision.memory, decision.statuses
        if self.unknown and self.cluster.metadata.leader != self._leader:
            self.missed_a_leader = True
        self.looked_ms, self._leader = seen.asked_ms, self.cluster.metadata.leader
        for action in decision.actions:
            self.actions[type(action).__name__] += 1
            if self.rng.random() >= self.trouble.call_fails:
                self._perform(action)

    def _perform(self, action: Action) -> None:
        within_ms = CALL_MS
        match action:
            case SetHold():
                self._later(within_ms, lambda: self._configure(hold=True))
            case Release():
                self._later(within_ms, lambda: self._configure(hold=False))
            case Verify(broker=number):
                self._later(within_ms, lambda: self._verify(number))
            case Expel(broker=number):
                self._later(within_ms, lambda: self._expel(number))
            case AddAgain(broker=number):
                self._later(within_ms, lambda: self._add(number))
            case _:
                pass

    def _configure(self, *, hold: bool) -> None:
        """The controller has it now; each broker when it replays its metadata."""
        self.cluster.hold = hold
        for broker in self.cluster.brokers:
            self._later(CALL_MS, lambda broker=broker: self.cluster.learn(broker))  # type: ignore[misc]

    def _verify(self, number: int) -> None:
        broker = self.cluster.brokers[number]
        if not self.cluster.reachable(broker) or broker.metadata is None:
            return
        wrong = check_log("read", broker.log, self.cluster.truth)
        self._read[number] = (Verdict.WRONG if wrong else Verdict.RIGHT, self.cluster.now_ms)

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


class Guarded(Ordeals):
    """The driver with a guard. A replica that the guard called too late is excused until it is right again."""

    def __init__(self, scenario: Scenario, margins: Margins, seed: int, *, guarding: bool) -> None:
        super().__init__(scenario, Parts())
        spread = max(scenario.skews_ms) - min(scenario.skews_ms)
        self.guard = Guard(self.cluster, margins, max(0, spread - MARGINS.skew_ms), random.Random(seed))
        self.guarding = guarding
        self.excused_for_good = False
        if guarding:
            self.cluster.watcher = self.guard.watch
            self.guard.watch()

    def do(self, name: str, number: int) -> bool:
        done = super().do(name, number)
        self.cluster.wait(1)
        self._note_led()
        return done

    def edge_outage(self, rng: random.Random) -> bool:
        """A replica misses a deletion that is stamped at once, and the others clean all the time until past its due."""
        cluster, leader = self.cluster, self.cluster.leader()
        away = [b for b in cluster.brokers if b.number in cluster.metadata.isr and b is not leader and b.alive]
        if leader is None or not away or cluster.isolated:
            return False
        broker = rng.choice(away)
        cluster.produce(leader, [(b"edge", b"value")])
        self.pump(rng)
        cluster.wait(rng.choice((0, 50, 300)))
        cluster.crash(broker.number, clean_stop=True)
        self._all_learn()
        cluster.produce(leader, [(b"edge", None)])
        for _ in range(EDGE_LOOKS):
            cluster.produce(leader, [(b"filler", b"beat")])
            self.pump(rng)
            self._clean_all(rng, besides=broker)
            cluster.wait(rng.choice((10, 40, 70)))
        cluster.restart(broker.number, kept_to=broker.log.log_end)
        self._all_learn()
        self.pump(rng)
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
        """Called too late; or the countdown that the guard last showed is over."""
        late = {away.broker for away in self.guard.memory.away if away.too_late or away.order}
        for status in self.guard.statuses:
            over = status.unsafe_ms is not None and status.unsafe_ms <= self.cluster.now_ms
            if over and status.state is not State.HELD:
                late |= set(status.blockers)
        return late

    def _note_led(self) -> None:
        """Whoever copied from a replica that was not to lead may be wrong too; a person was told."""
        led = self.cluster.metadata.leader in self.suspects()
        self.excused_for_good |= led or self.guard.missed_a_leader

    def check(self) -> None:
        self._note_led()
        if self.guarding and self.guard.unknown:
            return
        cluster = self.cluster
        late = [away for away in self.guard.memory.away if away.too_late and _watched_all_along(away)]
        if self.guard.never_late and late and not self.excused_for_good:
            raise Corrupt(Finding(kind=HELD_LATE, where=f"broker {late[0].broker}", text=str(late[0])))
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


def _watched_all_along(away: Away) -> bool:
    """Not a new copy, nor one that came back with less than it had: of those nobody could know in time."""
    before_ms = MARGINS.metadata_age_ms + 2 * MARGINS.poll_ms
    return away.complete_ms is not None and away.complete_ms >= away.since_ms - before_ms


def draw_guarded(seed: int, steps: int) -> tuple[Scenario, list[Step]]:
    rng = random.Random(seed)
    drawn = draw_scenario(seed, rules=KAFKA, replicas=rng.choice((2, 3, 3)), rng=rng)
    policy = replace(drawn.policy, delete_retention_ms=RETENTION_MS)
    scenario = replace(drawn, policy=policy, readers=0, old_version=None)
    names = rng.choices([*WEIGHTS, "edge_outage"], weights=[*scenario.weights, EDGE_WEIGHT], k=steps)
    return scenario, [(name, rng.getrandbits(32)) for name in names]


def run_guarded(seed: int, *, steps: int, margins: Margins = MARGINS, guarding: bool = True) -> tuple[Outcome, Guarded]:
    scenario, story = draw_guarded(seed, steps)
    driver = Guarded(scenario, margins, seed, guarding=guarding)
    outcome = Outcome(seed=seed, steps=story)
    try:
        for step_number, (name, number) in enumerate(story):
            outcome.at_step = step_number
            driver.do(name, number)
            if step_number % CHECK_EVERY == 0 or name in (*LONG_ACTIONS, "edge_outage"):
                driver.check()
        _heal(driver)
    except Corrupt as corrupt:
        outcome.finding = corrupt.finding
    outcome.checks = driver.checks
    return outcome, driver


def _heal(driver: Guarded) -> None:
    """Everything comes back and the guard's world behaves: what it held, it lets go."""
    cluster, guard = driver.cluster, driver.guard
    guard.trouble = CALM
    cluster.isolated.clear()
    for broker in cluster.brokers:
        if not broker.alive:
            cluster.restart(broker.number, kept_to=broker.log.log_end)
    for _ in range(CALM_LOOKS):
        if cluster.metadata.leader is None:
            next((number for number in cluster.metadata.isr if cluster.elect(number)), None)
        for broker in cluster.brokers:
            cluster.learn(broker)
            broker.pending = None
            cluster.fetch(broker)
        cluster.expand_isr()
        cluster.wait(MARGINS.poll_ms // 2)
        driver.check()
        if guard.memory.hold is None and not guard.memory.away and not cluster.hold:
            return
    if not driver.excused_for_good:
        text = f"after everything healed: {guard.memory.hold}, {guard.memory.away}"
        raise Corrupt(Finding(kind=NOT_CONVERGED, where="guard", text=text))
