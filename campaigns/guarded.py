"""Brokers that follow Kafka's rule, in random clusters with faults: with the guard, without it, and with a broken guard.

    python -m campaigns.guarded [--seeds N] [--seed FIRST] [--jobs N]
    python -m campaigns.guarded --margins [NAME...]

Prints what the same seeds come to without and with the guard's decisions; with --margins within how many seeds the guard
without one of its margins is found. Exit code 0: nothing that the guard's promise covers, or every mutant was found; 1
otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from headstone.sim.guarded_runs import MUTANTS, GuardedTally, run_both_ways, run_guarded

CHUNK_SEEDS = 50
TOLD_EVERY_S = 30.0
MUTANT_SEEDS_MAX = 300


def chunk(seeds: range) -> GuardedTally:
    tally = GuardedTally()
    for seed in seeds:
        tally.add(run_both_ways(seed))
    return tally


def both_ways(first: int, count: int, jobs: int) -> int:
    started = told = time.monotonic()
    total = GuardedTally()
    chunks = [
        range(start, min(start + CHUNK_SEEDS, first + count)) for start in range(first, first + count, CHUNK_SEEDS)
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for tally in pool.map(chunk, chunks):
            total.add(tally)
            if time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                print(f"{total.seeds}/{count} seeds, {len(total.found)} found", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    corrupt = sum(total.corrupt_without.values())
    print(f"{total.seeds:,} seeds from {first} ({seconds:.0f} s, {total.seeds / seconds:.1f} seeds/s, both ways)")
    print(f"without the guard: {corrupt:,} corrupt: {_counts(total.corrupt_without)}")
    print(f"with it: {len(total.found):,} found; {total.excused:,} seeds in which somebody was told that it may happen")
    print(f"corrupt without, and neither found nor excused with it: {total.prevented:,}")
    print(f"checks made: {total.checks:,}; faults: {_counts(total.faults)}")
    print(f"actions: {_counts(total.actions)}")
    for outcome in total.found:
        replay = f"python -m campaigns.guarded --seed {outcome.seed} --seeds 1"
        print(f"  seed {outcome.seed}, step {outcome.at_step}: {outcome.finding}\n    {replay}")
    return 1 if total.found else 0


def _counts(counter: dict[str, int]) -> str:
    return (
        ", ".join(f"{name} {count:,}" for name, count in sorted(counter.items(), key=lambda item: -item[1])) or "none"
    )


def margins(names: list[str], seeds: range) -> int:
    missed = 0
    for name in names or MUTANTS:
        started = time.monotonic()
        outcomes = (run_guarded(seed, margins=MUTANTS[name])[0] for seed in seeds)
        outcome = next((outcome for outcome in outcomes if outcome.finding is not None), None)
        missed += outcome is None
        verdict = "NOT FOUND" if outcome is None else f"seed {outcome.seed}, {outcome.finding}"
        print(f"without {name}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, help=f"how many (default 1000; with --margins {MUTANT_SEEDS_MAX})")
    parser.add_argument("--seed", type=int, default=0, metavar="FIRST")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--margins", nargs="*", choices=list(MUTANTS), metavar="NAME", help="which (default all)")
    arguments = parser.parse_args()
    if arguments.margins is not None:
        count = arguments.seeds or MUTANT_SEEDS_MAX
        return margins(arguments.margins, range(arguments.seed, arguments.seed + count))
    return both_ways(arguments.seed, arguments.seeds or 1000, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
