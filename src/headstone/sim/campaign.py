"""Many seeds, on several processes: what `headstone simulate` runs.

Results come back in chunks and are added up; a violation carries the seed that replays it. Order does not matter.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from headstone.sim.broker import Parts
from headstone.sim.checkers import Finding
from headstone.sim.mutants import MUTANTS
from headstone.sim.runs import draw, run_seed, run_steps, shrink

CHUNK_SEEDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    rules: str
    steps: int
    replicas: int | None = None
    mutant: str | None = None

    def parts(self) -> Parts:
        return Parts() if self.mutant is None else MUTANTS[self.mutant].parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    seed: int
    at_step: int
    finding: Finding


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was run and what was found."""

    seeds: int = 0
    steps: int = 0
    checks: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, tally: Tally) -> None:
        self.seeds += tally.seeds
        self.steps += tally.steps
        self.checks += tally.checks
        self.faults += tally.faults
        self.violations += tally.violations


def run_chunk(first: int, last: int, settings: Settings) -> Tally:
    tally = Tally()
    for seed in range(first, last):
        outcome = run_seed(
            seed, rules=settings.rules, replicas=settings.replicas, steps=settings.steps, parts=settings.parts()
        )
        tally.seeds += 1
        tally.steps += len(outcome.steps)
        tally.checks += outcome.checks
        tally.faults += outcome.faults
        if outcome.finding is not None:
            tally.violations.append(Violation(seed=seed, at_step=outcome.at_step, finding=outcome.finding))
    return tally


def campaign(
    first: int, count: int, settings: Settings, *, jobs: int, stop_early: bool, tell: Callable[[Tally], None]
) -> Tally:
    """Seeds first to first + count; stop_early ends with the chunk of the first violation."""
    total = Tally()
    starts = range(first, first + count, CHUNK_SEEDS)
    chunks = ((start, min(start + CHUNK_SEEDS, first + count)) for start in starts)
    for tally in _results(chunks, settings, jobs):
        total.add(tally)
        tell(total)
        if stop_early and total.violations:
            break
    total.violations.sort(key=lambda violation: violation.seed)
    return total


def _results(chunks: Iterator[tuple[int, int]], settings: Settings, jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        for first, last in chunks:
            yield run_chunk(first, last, settings)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[Tally]] = set()
        try:
            for first, last in itertools.islice(chunks, 2 * jobs):
                running.add(pool.submit(run_chunk, first, last, settings))
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for first, last in itertools.islice(chunks, len(done)):
                    running.add(pool.submit(run_chunk, first, last, settings))
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def shortened(violation: Violation, settings: Settings) -> tuple[int, list[str], Finding]:
    """(steps drawn, the names of the steps that are left, what they lead to)."""
    scenario, story = draw(violation.seed, rules=settings.rules, replicas=settings.replicas, steps=settings.steps)
    outcome = run_steps(violation.seed, scenario, story, settings.parts())
    best = shrink(outcome, scenario, settings.parts())
    assert best.finding is not None
    return len(story), [name for name, _ in best.steps], best.finding
