"""Runs many seeds on several processes: what `headstone simulate` does.

Results come back in chunks and are added up; a violation carries the seed that replays it. Order does not matter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from headstone.coordination.danger import Margins
from headstone.interruption import Interrupted, check
from headstone.sim.broker import Parts
from headstone.sim.chaos import ChaosOutcome, Step
from headstone.sim.checkers import CheckerFinding
from headstone.sim.guarded_runs import draw_guarded, margins_of, run_both_ways, run_story
from headstone.sim.mutants import MUTANTS
from headstone.sim.runs import draw, run_seed, run_steps, shrink
from headstone.sim.scenario import Scenario
from headstone.sim.tallies import GUARDED, Tally, Violation

CHUNK_SEEDS = 20
LOOK_S = 0.2
"""After giving up, a chunk is awaited no longer than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSettings:
    """For guarded runs a mutant is a missing margin (`guarded_runs.MUTANTS`), and each seed draws its number of replicas."""

    rules: str
    steps: int
    replicas: int | None = None
    mutant: str | None = None

    def parts(self) -> Parts:
        return Parts() if self.mutant is None else MUTANTS[self.mutant].parts


def run_chunk(first: int, last: int, settings: CampaignSettings) -> Tally:
    tally = Tally()
    for seed in range(first, last):
        tally.add(_one(seed, settings))
    return tally


def _one(seed: int, settings: CampaignSettings) -> Tally:
    if settings.rules == GUARDED:
        return run_both_ways(seed, steps=settings.steps, mutant=settings.mutant)
    outcome = run_seed(
        seed, rules=settings.rules, replicas=settings.replicas, steps=settings.steps, parts=settings.parts()
    )
    tally = Tally(seeds=1, steps=len(outcome.steps), checks=outcome.checks, faults=outcome.faults)
    if outcome.finding is not None:
        tally.violations.append(Violation(seed=seed, at_step=outcome.at_step, finding=outcome.finding))
    return tally


def campaign(
    first: int, count: int, settings: CampaignSettings, *, jobs: int, stop_early: bool, tell: Callable[[Tally], None]
) -> Tally:
    """Runs seeds `first` to `first + count`, exclusive; `stop_early` ends after the chunk with the first violation."""
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


def _results(chunks: Iterator[tuple[int, int]], settings: CampaignSettings, jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        for first, last in chunks:
            check()
            yield run_chunk(first, last, settings)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[Tally]] = set()
        try:
            for first, last in itertools.islice(chunks, 2 * jobs):
                running.add(pool.submit(run_chunk, first, last, settings))
            while running:
                check()
                done, running = wait(running, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                for first, last in itertools.islice(chunks, len(done)):
                    running.add(pool.submit(run_chunk, first, last, settings))
                for future in done:
                    yield future.result()
        except Interrupted:
            for process in (pool._processes or {}).values():  # they know nothing that is still needed
                process.kill()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def shortened(violation: Violation, settings: CampaignSettings) -> tuple[int, list[str], CheckerFinding]:
    """(number of steps drawn, the names of the steps left, the finding that they lead to)."""
    seed = violation.seed
    if settings.rules == GUARDED:
        scenario, story = draw_guarded(seed, settings.steps)
        margins = margins_of(seed, settings.mutant)
        replay = partial(_guarded_outcome, seed, scenario, margins)
    else:
        scenario, story = draw(seed, rules=settings.rules, replicas=settings.replicas, steps=settings.steps)
        replay = partial(_outcome, seed, scenario, settings.parts())
    best = shrink(replay(story), replay)
    assert best.finding is not None
    return len(story), [name for name, _ in best.steps], best.finding


def _outcome(seed: int, scenario: Scenario, parts: Parts, story: list[Step]) -> ChaosOutcome:
    return run_steps(seed, scenario, story, parts)


def _guarded_outcome(seed: int, scenario: Scenario, margins: Margins, story: list[Step]) -> ChaosOutcome:
    return run_story(seed, scenario, story, margins)[0]
