"""The results of many seeds: counts that add up, and violations with the seed that replays them.

The command line reads its names before anything is simulated, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstone.sim.checkers import CheckerFinding

SEEDS, FIRST_SEED = 1000, 0
"""The campaign's defaults."""
STEPS, GUARDED_STEPS = 200, 16
"""Steps of each seed; some steps of a guarded one are long outages."""
GUARDED = "guarded"
"""One more rule set, beside those of `retention.policy`: brokers follow Kafka's rule, and the guard replaces their
coordination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    seed: int
    at_step: int
    finding: CheckerFinding


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was run and what was found. The second half is for guarded seeds, each of which is also run without the guard."""

    seeds: int = 0
    steps: int = 0
    checks: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    corrupt_without: Counter[str] = field(default_factory=Counter)
    """Seeds that corrupt without the guard, by kind."""
    prevented: int = 0
    """Corrupt without the guard; with it, neither found nor announced as possible."""
    foretold: int = 0
    """Seeds in which the guard said that it may happen."""
    actions: Counter[str] = field(default_factory=Counter)

    def add(self, tally: Tally) -> None:
        self.seeds += tally.seeds
        self.steps += tally.steps
        self.checks += tally.checks
        self.faults += tally.faults
        self.violations += tally.violations
        self.corrupt_without += tally.corrupt_without
        self.prevented += tally.prevented
        self.foretold += tally.foretold
        self.actions += tally.actions
