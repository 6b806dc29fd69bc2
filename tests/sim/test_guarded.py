"""Brokers that follow Kafka's rule: corrupt by themselves, not with a guard, whose world is slow and partly wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headstone.coordination import hold_states
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import RATIO, Allowed, State, Status
from headstone.coordination.hold_states import TABLE, HoldState, Step, is_in_table
from headstone.sim import guard_actor
from headstone.sim.checkers import CORRUPTIONS, check_log
from headstone.sim.guard_actor import READ_BATCHES
from headstone.sim.guard_world import (
    CALM,
    MARGINS,
    NO_DEFAULTS,
    NO_OVERRIDES,
    RETENTION_MS,
    WORST,
    Trouble,
)
from headstone.sim.guarded import Guarded
from headstone.sim.guarded_runs import (
    AT_THE_LAST_MOMENT,
    MUTANTS,
    draw_guarded,
    margins_of,
    run_both_ways,
    run_guarded,
)

CORRUPT_WITHOUT = (3, 5, 27, 38, 97)
"""All four corruptions are among them."""
FOUND_BY = {"metadata_age_ms": 0, "skew_ms": 163, "effect_ms": 5, "poll_ms": 5, "pass_start_ms": 163}


@pytest.mark.parametrize("seed", CORRUPT_WITHOUT)
def test_the_guard_prevents_what_happens_without_it(seed: int) -> None:
    without, _ = run_guarded(seed, guarding=False)
    guarded, driver = run_guarded(seed)
    assert without.finding is not None
    assert without.finding.kind in CORRUPTIONS
    assert (guarded.finding, driver.excused_for_good) == (None, False)
    assert driver.guard.actions["SetHold"] > 0


def test_what_happens_between_and_beside_the_steps_is_counted_too() -> None:
    names = ("policy_switch", "suspension", "sole_replica", "unled_partition")
    counted = {seed: run_guarded(seed)[0].faults for seed in (3, 6, 7, 12, 26)}
    assert {seed: {name: faults[name] for name in names if faults[name]} for seed, faults in counted.items()} == {
        3: {}, 6: {"sole_replica": 1}, 7: {"suspension": 1}, 12: {"policy_switch": 2}, 26: {"unled_partition": 1},
    }  # fmt: skip


def test_at_the_last_moment_the_hold_is_still_in_time() -> None:
    findings = [run_guarded(seed, margins=AT_THE_LAST_MOMENT)[0].finding for seed in range(12)]
    assert findings == [None] * 12


def test_the_guard_keeps_its_promise_on_fresh_seeds() -> None:
    first = random.SystemRandom().randrange(10**9, 2 * 10**9)
    found = [violation for seed in range(first, first + 12) for violation in run_both_ways(seed).violations]
    replay = "headstone simulate --rules guarded --seeds 1 --seed"
    assert [f"{replay} {violation.seed}: {violation.finding}" for violation in found] == []


def test_a_hold_makes_only_steps_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: set[Step] = set()

    def note(step: Step) -> bool:
        steps.add(step)
        return is_in_table(step)

    monkeypatch.setattr(hold_states, "is_in_table", note)
    for seed in range(24):
        run_guarded(seed)
    assert steps <= TABLE
    common = {HoldState.ASKED, HoldState.SHOWN, HoldState.IN_EFFECT, HoldState.RELEASING, HoldState.NONE}
    assert {step.target for step in steps} > common


@pytest.mark.parametrize("margin", MUTANTS)
def test_a_guard_without_a_margin_is_found_by_its_seed(margin: str) -> None:
    """Looking for the seed again, after the simulator has changed: headstone simulate --rules guarded --mutant NAME."""
    seed = FOUND_BY[margin]
    assert run_guarded(seed, margins=MUTANTS[margin])[0].finding is not None
    assert run_guarded(seed, margins=AT_THE_LAST_MOMENT)[0].finding is None


EARLIER_SEEDS = (
    6, 12, 26, 94, 115, 355, 387, 2155, 2180, 8561, 500010, 500035, 500037, 500041, 500159, 502121, 31009590, 41000824,
    61003109,
)  # fmt: skip


@pytest.mark.parametrize("seed", EARLIER_SEEDS)
def test_what_found_earlier_mistakes_finds_nothing(seed: int) -> None:
    """A topic that is first seen while a broker is away; a wrong replica where the hold was undone; a cluster default of which
    nobody tells, or that arrives when nobody needs it any more; an agent that lies about clocks before the guard dies; a guard
    that is suspended when it lets go, also once that is noted, or for so long that it comes too late for somebody else; a
    purge, before the hold and during it, and what it removed before that was read; a replica that nobody could judge; an only
    replica that is down, or never comes back; who was away while nobody led. The mistakes are in campaigns/mutants. And a guard
    that is dead from the start, or calls a replica wrong just when another reading shows nothing: mistakes of checks."""
    assert run_guarded(seed, margins=margins_of(seed, None))[0].finding is None


MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@pytest.mark.parametrize("seed", [1, 2])
def test_a_day_of_rolling_restarts_touches_nothing(seed: int) -> None:
    """Every broker, round after round, minutes each and one of twenty; in a world as slow as the margins allow."""
    drawn, _ = draw_guarded(seed, 0)
    policy = replace(drawn.policy, delete_retention_ms=DAY_MS)
    scenario = replace(drawn, policy=policy, replicas=3, brokers=3, skews_ms=(0, -1_000, 4_000))
    rng = random.Random(seed)
    driver = Guarded(scenario, Margins(), seed, bounds=Margins())
    driver.guard.world.trouble = replace(driver.guard.world.trouble, dies=0.0)
    cluster = driver.cluster
    restarts = 0
    while cluster.now_ms < DAY_MS:
        number = restarts % 3
        driver.write(rng)
        driver.delete(rng)
        driver.pump(rng)
        cluster.crash(number, clean_stop=True)
        learn_all(driver)
        driver.write(rng)
        driver.pump(rng)
        driver.clean(rng)
        cluster.wait((20 if restarts % 7 == 3 else rng.randrange(1, 6)) * MINUTE_MS)
        cluster.restart(number, kept_to=cluster.brokers[number].log.log_end)
        learn_all(driver)
        for _ in range(2):
            driver.pump(rng)
            cluster.expand_isr()
        driver.clean(rng)
        cluster.wait(3 * MINUTE_MS)
        restarts += 1
    assert restarts > 100
    assert dict(driver.guard.actions) == {}
    assert driver.guard.statuses == (Status(partition=0, state=State.FINE),)
    assert [check_log("broker", broker.log, cluster.truth) for broker in cluster.brokers] == [[], [], []]


@pytest.mark.parametrize("reads", [True, False])
def test_a_partition_that_nobody_deletes_in_needs_no_hold_if_all_of_it_is_read(reads: bool) -> None:
    """Until somebody deletes: then the time that is left begins anew."""
    driver = three_brokers(WORST, AT_THE_LAST_MOMENT)
    driver.guard.agents, driver.guard.reads = False, READ_BATCHES[-1 if reads else 0]
    cluster, rng = driver.cluster, random.Random(4)
    driver.write(rng)
    driver.pump(rng)
    cluster.wait(2 * MARGINS.metadata_age_ms)
    cluster.crash(2, clean_stop=True)
    learn_all(driver)
    for _ in range(3):
        leader = cluster.leader()
        assert leader is not None
        cluster.produce(leader, [(b"plain", b"value")])
        driver.pump(rng)
        for broker in cluster.brokers[:2]:
            cluster.clean(broker)
        cluster.wait(RETENTION_MS)
    assert ("SetHold" in driver.guard.actions) == (not reads)
    driver.delete(rng)
    driver.pump(rng)
    for broker in cluster.brokers[:2]:
        cluster.clean(broker)
    cluster.wait(RETENTION_MS // 4)
    assert driver.guard.statuses[0].state == (State.WATCHED if reads else State.HELD)
    cluster.wait(RETENTION_MS)
    assert driver.guard.statuses[0].state == State.HELD
    driver.heal()
    assert [check_log("broker", broker.log, cluster.truth) for broker in cluster.brokers] == [[], [], []]


@pytest.mark.parametrize("cluster_default", [True, False])
def test_a_robot_that_undoes_every_hold_is_out_of_reach_of_the_default_or_the_danger_is_named(
    cluster_default: bool,
) -> None:
    driver = three_brokers(CALM, MARGINS)
    driver.meddled, driver.guard.robot_ms = True, driver.cluster.now_ms
    driver.guard.allowed = Allowed(cluster_default=cluster_default)
    cluster, rng = driver.cluster, random.Random(4)
    leave_and_delete(driver, rng)
    write_and_clean(driver, rng)
    assert driver.guard.statuses[0].state == (State.HELD if cluster_default else State.TOO_LATE)
    assert ("HoldByDefault" in driver.guard.actions) == cluster_default
    driver.heal()
    assert [check_log("broker", broker.log, cluster.truth) for broker in cluster.brokers] == [[], [], []]
    assert driver.world.settings.default_overrides == NO_DEFAULTS


def test_a_topic_that_somebody_takes_out_of_the_defaults_reach_is_not_called_held() -> None:
    driver = three_brokers(CALM, MARGINS)
    driver.meddled, driver.guard.robot_ms = True, driver.cluster.now_ms
    driver.guard.allowed = Allowed(cluster_default=True)
    cluster, rng = driver.cluster, random.Random(4)
    leave_and_delete(driver, rng)
    write_and_clean(driver, rng)
    assert (driver.guard.statuses[0].state, driver.world.settings.hold) == (State.HELD, True)
    driver.world.robot_knows = ((RATIO, "0.3"), *NO_OVERRIDES[1:])
    cluster.wait(2 * MARGINS.metadata_age_ms)
    assert (driver.guard.statuses[0].state, driver.world.settings.hold) == (State.TOO_LATE, False)


def test_a_person_who_changes_the_hold_is_left_alone_and_the_danger_is_named() -> None:
    driver = three_brokers(CALM, MARGINS)
    driver.meddled = True
    cluster, rng = driver.cluster, random.Random(4)
    leave_and_delete(driver, rng)
    while driver.guard.statuses[0].state != State.HELD:
        cluster.wait(MARGINS.poll_ms)
    holds = driver.guard.actions["SetHold"]
    driver.world.override(((RATIO, "0.3"),))
    cluster.wait(RETENTION_MS)
    assert driver.guard.statuses[0].state == State.TOO_LATE
    assert (driver.guard.actions["SetHold"], dict(driver.world.settings.overrides)[RATIO]) == (holds, "0.3")


def test_an_agent_that_lies_about_clocks_before_the_guard_dies_hides_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lie counts for two retentions: a replica that is away and back within the six seconds of its death is read."""
    monkeypatch.setattr(guard_actor, "DEAD_MS", (6_000,))
    driver = three_brokers(CALM, AT_THE_LAST_MOMENT)
    driver.guard.agents, driver.guard.liars = False, True
    cluster, rng = driver.cluster, random.Random(4)
    driver.write(rng)
    driver.pump(rng)
    cluster.wait(2 * MARGINS.metadata_age_ms)
    driver.world.trouble = Trouble(dies=1.0)
    cluster.wait(MARGINS.poll_ms)
    driver.world.trouble = CALM
    lied_ms = driver.guard.looked_ms
    leave_and_delete(driver, rng)
    for _ in range(3):
        cluster.wait(RETENTION_MS * 2 // 5)
        driver.write(rng)
        driver.pump(rng)
        for broker in cluster.brokers[:2]:
            cluster.clean(broker)
    cluster.restart(2, kept_to=cluster.brokers[2].log.log_end)
    learn_all(driver)
    for _ in range(2):
        driver.pump(rng)
        cluster.expand_isr()
    assert (2 in cluster.metadata.isr, driver.guard.looked_ms) == (True, lied_ms)
    assert check_log("back", cluster.brokers[2].log, cluster.truth) != []
    while driver.guard.looked_ms == lied_ms:
        cluster.wait(MARGINS.poll_ms)
    assert driver.guard.statuses[0].state == State.UNREAD
    driver.heal()
    assert [check_log("broker", broker.log, cluster.truth) for broker in cluster.brokers] == [[], [], []]


def three_brokers(trouble: Trouble, margins: Margins) -> Guarded:
    drawn, _ = draw_guarded(4, 0)
    policy = replace(drawn.policy, index_keys_max=None)
    scenario = replace(drawn, policy=policy, replicas=3, brokers=3, skews_ms=(0, 0, 0))
    driver = Guarded(scenario, margins, 4, first_seen_ms=0)
    driver.world.trouble = trouble
    return driver


def leave_and_delete(driver: Guarded, rng: random.Random) -> None:
    """Broker 2 misses a deletion, which is stamped at once."""
    driver.write(rng)
    driver.pump(rng)
    driver.cluster.wait(MARGINS.poll_ms)
    driver.cluster.crash(2, clean_stop=True)
    learn_all(driver)
    driver.delete(rng)
    driver.pump(rng)
    for broker in driver.cluster.brokers[:2]:
        driver.cluster.clean(broker)


def write_and_clean(driver: Guarded, rng: random.Random) -> None:
    """For twice the retention."""
    for _ in range(8):
        driver.cluster.wait(RETENTION_MS // 4)
        driver.write(rng)
        driver.pump(rng)
        for broker in driver.cluster.brokers[:2]:
            driver.cluster.clean(broker)


def learn_all(driver: Guarded) -> None:
    for broker in driver.cluster.brokers:
        driver.cluster.learn(broker)
