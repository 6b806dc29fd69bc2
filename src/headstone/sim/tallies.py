"""What many seeds came to: counts that add up, and violations by the seed that replays them.

The command line reads its names before anything is simulated: imports nothing that takes time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstone.sim.checkers import Finding

SEEDS, FIRST_SEED = 1000, 0
"""Of a campaign that nobody has given a number."""
STEPS, GUARDED_STEPS = 200, 16
"""Of each seed; some steps of a guarded one are long outages."""
GUARDED = "guarded"
"""Beside the rules of `retention.policy`: brokers follow Kafka's, and the guard takes the place of their coordination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    seed: int
    at_step: int
    finding: Finding


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was run and what was found. The second half is of guarded seeds, each of which is run without the guard too."""

    seeds: int = 0
    steps: int = 0
    checks: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    corrupt_without: Counter[str] = field(default_factory=Counter)
    """Seeds that corrupt without the guard, by kind."""
    prevented: int = 0
    """Corrupt without, and with the guard neither found nor foretold."""
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
