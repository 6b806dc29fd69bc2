"""Seeds of the guarded simulation: what each draws, one run, many runs with and without the guard, and its mutants.

A seed is one story; the same things happen with and without a guard. A mutant is the guard without one of its margins.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from headstone.coordination.danger import Margins
from headstone.coordination.hold_states import UnlistedStep
from headstone.retention.policy import KAFKA
from headstone.sim.chaos import CHECK_EVERY, ChaosOutcome, Corrupt, Step
from headstone.sim.guard_world import MARGINS, RETENTION_MS
from headstone.sim.guarded import Guarded
from headstone.sim.scenario import FAULTS, LONG_ACTIONS, WEIGHTS, Scenario, draw_scenario
from headstone.sim.tallies import GUARDED_STEPS, Tally, Violation

EDGE_WEIGHT = 130
EDIT_WEIGHT = 60
SKEW_MS_MAX = MARGINS.skew_ms // 2
OUTAGES = ("edge_outage", "missed_marker", "blackout", "suspended_release")
OUTAGE_WEIGHTS = (60, 15, 15, 10)
SOLE_SHARE = 0.05
"""Share of seeds that have only one replica."""
LONG = LONG_ACTIONS | set(OUTAGES)

AT_THE_LAST_MOMENT = replace(MARGINS, slack_share=1.0)
"""Half of the slack in reserve would hide that a margin is missing."""
MUTANTS = {
    name: replace(AT_THE_LAST_MOMENT, **{name: 0})
    for name in ("metadata_age_ms", "skew_ms", "effect_ms", "poll_ms", "pass_start_ms")
}


def draw_guarded(seed: int, steps: int) -> tuple[Scenario, list[Step]]:
    rng = random.Random(seed)
    drawn = draw_scenario(seed, rules=KAFKA, replicas=rng.choice((2, 3, 3, 3)), rng=rng)
    policy = replace(drawn.policy, delete_retention_ms=RETENTION_MS)
    scenario = replace(drawn, policy=policy, skews_ms=_skews(drawn.brokers, rng), readers=0, old_version=None)
    names = rng.choices(
        [*WEIGHTS, "edge_outage", "somebody_edits"], weights=[*scenario.weights, EDGE_WEIGHT, EDIT_WEIGHT], k=steps
    )
    besides = random.Random(f"{seed} outages")
    if besides.random() < SOLE_SHARE:
        scenario = replace(scenario, replicas=1)
    names = [besides.choices(OUTAGES, OUTAGE_WEIGHTS)[0] if name == "edge_outage" else name for name in names]
    return scenario, [(name, rng.getrandbits(32)) for name in names]


def _skews(brokers: int, rng: random.Random) -> tuple[int, ...]:
    """None; any difference; or as much as the margin allows, sometimes plus what was seen."""
    wide = rng.choice((1, 1, 1, 2))
    extremes = [-SKEW_MS_MAX * wide, SKEW_MS_MAX * wide]
    drawn = [rng.randrange(extremes[0], extremes[1] + 1) for _ in range(brokers)]
    match rng.choice(("none", "any", "extreme", "extreme")):
        case "none":
            return (0,) * brokers
        case "extreme":
            drawn[:2] = extremes
            rng.shuffle(drawn)
    return tuple(drawn)


def run_guarded(
    seed: int, *, steps: int = GUARDED_STEPS, margins: Margins = MARGINS, guarding: bool = True
) -> tuple[ChaosOutcome, Guarded]:
    scenario, story = draw_guarded(seed, steps)
    return run_story(seed, scenario, story, margins, guarding=guarding)


def run_story(
    seed: int, scenario: Scenario, story: list[Step], margins: Margins, *, guarding: bool = True
) -> tuple[ChaosOutcome, Guarded]:
    driver = Guarded(scenario, margins, seed, guarding=guarding)
    outcome = ChaosOutcome(seed=seed, steps=story)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnlistedStep)
        _play(driver, story, outcome)
    outcome.checks = driver.checks
    outcome.faults += Counter(
        policy_switch=driver.policy_switches, suspension=driver.guard.suspensions, sole_replica=int(scenario.replicas == 1),
        unled_partition=int(driver.guard.sees_alone),
    )  # fmt: skip
    return outcome, driver


def _play(driver: Guarded, story: Sequence[Step], outcome: ChaosOutcome) -> None:
    try:
        for step_number, (name, number) in enumerate(story):
            outcome.at_step = step_number
            done = driver.do(name, number)
            if done and name in FAULTS | {*OUTAGES, "somebody_edits"}:
                outcome.faults[name] += 1
            if step_number % CHECK_EVERY == 0 or name in LONG:
                driver.check()
        driver.heal()
    except Corrupt as corrupt:
        outcome.finding = corrupt.finding


def run_both_ways(seed: int, *, steps: int = GUARDED_STEPS, mutant: str | None = None) -> Tally:
    without, _ = run_guarded(seed, steps=steps, guarding=False)
    outcome, driver = run_guarded(seed, steps=steps, margins=margins_of(seed, mutant))
    tally = Tally(
        seeds=1, steps=len(outcome.steps), checks=outcome.checks, foretold=int(driver.excused_for_good),
        faults=outcome.faults, actions=driver.guard.actions,
    )  # fmt: skip
    if without.finding is not None:
        tally.corrupt_without[without.finding.kind] += 1
        tally.prevented = int(outcome.finding is None and not driver.excused_for_good)
    if outcome.finding is not None:
        tally.violations.append(Violation(seed=seed, at_step=outcome.at_step, finding=outcome.finding))
    return tally


def margins_of(seed: int, mutant: str | None) -> Margins:
    """At the last moment in every other seed, and in those of mutants: there nothing is in reserve."""
    if mutant is not None:
        return MUTANTS[mutant]
    return MARGINS if seed % 2 == 0 else AT_THE_LAST_MOMENT
