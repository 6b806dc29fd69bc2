"""Random clusters: Kafka's rule is caught by itself, the coordinated one is not, and every mutant is.

The seeds here are fixed; `make test` adds a fresh random slice. Larger runs: `headstone simulate`.
"""

from __future__ import annotations

import random

import pytest

from headstone.retention.policy import COORDINATED, KAFKA
from headstone.sim.broker import Parts
from headstone.sim.campaign import CampaignSettings, campaign, shortened
from headstone.sim.checkers import CORRUPTIONS
from headstone.sim.mutants import MUTANTS
from headstone.sim.ordeals import Ordeals
from headstone.sim.runs import draw, run_seed, run_steps, shrink
from headstone.sim.scenario import FAULTS, WEIGHTS
from headstone.sim.tallies import Tally

STEPS = 200


def ran(first: int, count: int, settings: CampaignSettings, *, stop_early: bool = False) -> Tally:
    return campaign(first, count, settings, jobs=2, stop_early=stop_early, tell=lambda tally: None)


def test_kafkas_rule_shows_all_four_corruptions() -> None:
    tally = ran(0, 500, CampaignSettings(rules=KAFKA, steps=STEPS))
    assert {violation.finding.kind for violation in tally.violations} == set(CORRUPTIONS)


def test_the_coordinated_rule_shows_none() -> None:
    tally = ran(0, 300, CampaignSettings(rules=COORDINATED, steps=STEPS))
    assert tally.violations == []
    assert tally.seeds == 300
    assert set(tally.faults) == FAULTS


def test_the_coordinated_rule_shows_none_on_fresh_seeds() -> None:
    first = random.SystemRandom().randrange(10**9, 2 * 10**9)
    tally = ran(first, 150, CampaignSettings(rules=COORDINATED, steps=STEPS))
    replays = [f"headstone simulate --seed {v.seed} --seeds 1 --steps {STEPS}: {v.finding}" for v in tally.violations]
    assert replays == []


@pytest.mark.parametrize("replicas", [1, 2, 5, 9])
def test_any_number_of_replicas(replicas: int) -> None:
    assert ran(0, 20, CampaignSettings(rules=COORDINATED, steps=STEPS, replicas=replicas)).violations == []


@pytest.mark.parametrize("name", sorted(name for name, mutant in MUTANTS.items() if mutant.seed is not None))
def test_a_mutant_is_found_by_its_seed(name: str) -> None:
    """Looking for the seed again, after the simulator has changed: campaigns/sim_mutants.py."""
    mutant = MUTANTS[name]
    assert mutant.seed is not None
    outcome = run_seed(mutant.seed, rules=COORDINATED, replicas=None, steps=STEPS, parts=mutant.parts)
    assert outcome.finding is not None
    unchanged = run_seed(mutant.seed, rules=COORDINATED, replicas=None, steps=STEPS, parts=Parts())
    assert unchanged.finding is None


def test_a_seed_is_one_story() -> None:
    settings = {"rules": KAFKA, "replicas": None, "steps": STEPS}
    scenario, story = draw(7, rules=KAFKA, replicas=None, steps=STEPS)
    assert draw(7, rules=KAFKA, replicas=None, steps=STEPS) == (scenario, story)
    logs = []
    for _ in range(2):
        driver = Ordeals(scenario, Parts())
        for name, number in story:
            driver.do(name, number)
        logs.append([[batch.raw for batch in broker.log.batches()] for broker in driver.cluster.brokers])
    assert logs[0] == logs[1]
    assert any(logs[0])
    assert settings["steps"] == len(story)


def test_a_violation_shrinks_to_a_shorter_story_of_the_same_kind() -> None:
    found = ran(0, 200, CampaignSettings(rules=KAFKA, steps=STEPS), stop_early=True).violations[0]
    scenario, story = draw(found.seed, rules=KAFKA, replicas=None, steps=STEPS)
    outcome = run_steps(found.seed, scenario, story, Parts())
    best = shrink(outcome, lambda shorter: run_steps(found.seed, scenario, shorter, Parts()))
    assert best.finding is not None
    assert outcome.finding is not None
    assert best.finding.kind == outcome.finding.kind
    assert len(best.steps) < 40
    drawn, names, finding = shortened(found, CampaignSettings(rules=KAFKA, steps=STEPS))
    assert (drawn, names, finding) == (STEPS, [name for name, _ in best.steps], best.finding)


def test_every_weight_is_an_action() -> None:
    assert all(callable(getattr(Ordeals, name)) for name in WEIGHTS)
    assert set(WEIGHTS) >= FAULTS
