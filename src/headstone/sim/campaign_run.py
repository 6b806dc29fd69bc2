"""One campaign as `headstone simulate` requests it: refuses bad requests, reports what was found and how to replay it.

`campaign.py` runs the seeds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from headstone import units
from headstone.errors import UsageError
from headstone.retention.policy import COORDINATED
from headstone.sim.campaign import CampaignSettings, campaign, shortened
from headstone.sim.checkers import CheckerFinding
from headstone.sim.guarded_runs import MUTANTS as MARGINS
from headstone.sim.mutants import MUTANTS
from headstone.sim.tallies import FIRST_SEED, GUARDED, GUARDED_STEPS, STEPS, Tally
from headstone.spelling import meant

FRESH_SEEDS = range(10**9, 2 * 10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignRun:
    settings: CampaignSettings
    first: int
    """The first seed."""
    tally: Tally
    seconds: float
    short: tuple[int, list[str], CheckerFinding] | None
    """For the first violation: number of steps drawn, the steps left, the finding that they lead to."""

    def replay(self, seed: int) -> str:
        """The command that replays the seed."""
        settings = self.settings
        parts = ["headstone simulate", f"--seed {seed} --seeds 1", f"--steps {settings.steps}"]
        if settings.mutant is None or settings.rules == GUARDED:
            parts.append(f"--rules {settings.rules}")
        if settings.mutant is not None:
            parts.append(f"--mutant {settings.mutant}")
        if settings.replicas is not None:
            parts.append(f"--replicas {settings.replicas}")
        return " ".join(parts)

    def as_json(self) -> dict[str, object]:
        tally, short = self.tally, self.short
        guarded = {
            "corrupt_without_guard": dict(sorted(tally.corrupt_without.items())), "prevented": tally.prevented,
            "foretold": tally.foretold, "actions": dict(sorted(tally.actions.items())),
        }  # fmt: skip
        return {
            "seeds": tally.seeds,
            "first_seed": self.first,
            "rules": self.settings.rules,
            "mutant": self.settings.mutant,
            "steps": tally.steps,
            "violations": [
                {
                    "seed": violation.seed, "kind": violation.finding.kind, "where": violation.finding.where,
                    "text": violation.finding.text, "at_step": violation.at_step, "replay": self.replay(violation.seed),
                }
                for violation in tally.violations
            ],
            "faults": dict(sorted(tally.faults.items())),
            "checks": tally.checks,
            "shrunk": None if short is None else {"drawn": short[0], "steps": short[1], "text": short[2].text},
            "seconds": round(self.seconds, 1),
        } | (guarded if self.settings.rules == GUARDED else {})  # fmt: skip


def settings_of(*, rules: str, steps: int | None, replicas: int | None, mutant: str | None) -> CampaignSettings:
    guarded = rules == GUARDED
    if guarded and replicas is not None:
        raise UsageError("guarded seeds draw two or three replicas each; leave --replicas out")
    mutants = MARGINS if guarded else MUTANTS
    if mutant is not None and mutant not in mutants:
        raise UsageError(
            f"unknown mutant {mutant!r} of the {rules} rules{meant(mutant, mutants) or ';'} "
            "`headstone simulate --mutant list` lists them"
        )
    if mutant is not None and rules not in (COORDINATED, GUARDED):
        raise UsageError("a mutant is one of the coordinated rules or of the guard; leave --rules out")
    return CampaignSettings(
        rules=rules, steps=steps or (GUARDED_STEPS if guarded else STEPS), replicas=replicas, mutant=mutant
    )


def known_mutants() -> dict[str, dict[str, str]]:
    """What each one does, for the coordinated rules and for the guard."""
    margins = dict.fromkeys(MARGINS, f"with --rules {GUARDED}: a guard without this margin")
    return {"mutants": {mutant.name: mutant.about for mutant in MUTANTS.values()}, GUARDED: margins}


def first_seed(given: int | None, *, fresh: bool) -> int:
    if given is not None:
        return given
    return random.SystemRandom().choice(FRESH_SEEDS) if fresh else FIRST_SEED


def run_campaign(
    settings: CampaignSettings, *, first: int, seeds: int, jobs: int, shrink: bool, tell: Callable[[Tally], None]
) -> CampaignRun:
    """With a mutant, stops at the first violation."""
    started = time.monotonic()
    tally = campaign(first, seeds, settings, jobs=jobs, stop_early=settings.mutant is not None, tell=tell)
    seconds = time.monotonic() - started
    short = shortened(tally.violations[0], settings) if shrink and tally.violations else None
    return CampaignRun(settings=settings, first=first, tally=tally, seconds=seconds, short=short)


def progress_line(tally: Tally, seeds: int, seconds: float) -> str:
    rate = tally.seeds / max(seconds, 1e-9)
    left = (seeds - tally.seeds) / max(rate, 1e-9)
    return (
        f"{tally.seeds:,} of {units.count(seeds, 'seed')}, {rate:.0f}/s, {units.duration(round(left) * 1000)} left, "
        f"{units.count(len(tally.violations), 'violation')}"
    )
