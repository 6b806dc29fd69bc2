"""Runs seeds, replays stories and shortens them.

A seed determines its scenario and its steps; `run_steps` carries them out. A failure is replayed from its seed alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from headstone.sim.broker import Parts
from headstone.sim.chaos import CHECK_EVERY, ChaosOutcome, Corrupt, Step
from headstone.sim.checkers import NOT_CONVERGED
from headstone.sim.healing import heal
from headstone.sim.ordeals import Ordeals
from headstone.sim.scenario import FAULTS, LONG_ACTIONS, WEIGHTS, Scenario, draw_scenario


def draw(seed: int, *, rules: str, replicas: int | None, steps: int) -> tuple[Scenario, list[Step]]:
    rng = random.Random(seed)
    scenario = draw_scenario(seed, rules=rules, replicas=replicas, rng=rng)
    names = rng.choices(list(WEIGHTS), weights=scenario.weights, k=steps)
    return scenario, [(name, rng.getrandbits(32)) for name in names]


def run_seed(seed: int, *, rules: str, replicas: int | None, steps: int, parts: Parts) -> ChaosOutcome:
    scenario, story = draw(seed, rules=rules, replicas=replicas, steps=steps)
    return run_steps(seed, scenario, story, parts)


def run_steps(seed: int, scenario: Scenario, story: list[Step], parts: Parts) -> ChaosOutcome:
    driver = Ordeals(scenario, parts)
    outcome = ChaosOutcome(seed=seed, steps=story, faults=Counter())
    step_number = 0
    try:
        for step_number, (name, number) in enumerate(story):
            if step_number == len(story) // 2:
                driver.upgrade()
            done = driver.do(name, number)
            if done and name in FAULTS:
                outcome.faults[name] += 1
            if step_number % CHECK_EVERY == 0 or name in LONG_ACTIONS:
                driver.check()
        step_number = len(story)
        heal(driver)
    except Corrupt as corrupt:
        outcome.finding, outcome.at_step = corrupt.finding, step_number
    except AssertionError as error:
        error.add_note(
            f"seed {seed}, step {step_number}: headstone simulate --seed {seed} --seeds 1 --rules {scenario.rules}"
        )
        raise
    outcome.checks = driver.checks
    return outcome


def shrink(outcome: ChaosOutcome, replay: Callable[[list[Step]], ChaosOutcome]) -> ChaosOutcome:
    """Leaves out steps, in ever smaller runs, as long as the same kind of corruption is found."""
    assert outcome.finding is not None
    kind = outcome.finding.kind
    best = outcome
    story = outcome.steps if kind == NOT_CONVERGED else outcome.steps[: outcome.at_step + 1]
    size = max(1, len(story) // 2)
    while size >= 1:
        start = 0
        while start < len(story):
            shorter = story[:start] + story[start + size :]
            tried = replay(shorter)
            if tried.finding is not None and tried.finding.kind == kind:
                story, best = shorter, tried
            else:
                start += size
        size //= 2
    return best
