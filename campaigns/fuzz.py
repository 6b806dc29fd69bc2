"""Runs mutated log directories through survey, inspection and compaction, each judged with the oracle of the tests.

    python campaigns/fuzz.py --inputs 100000 --seed 0 --jobs 2

Exit code 0: every input was refused with a message and nothing written, or read right; 1: some were not, with the
command that replays each.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.workers import Findings, run_seeds

SHOWN_MAX = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="how many (default 100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first input; the next ones follow it (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    arguments = parser.parse_args()
    started = time.monotonic()

    def tell(findings: Findings) -> None:
        rate = findings.inputs / (time.monotonic() - started)
        line = f"{findings.inputs} of {arguments.inputs} inputs, {rate:.0f}/s, {len(findings.problems)} problems"
        if sys.stderr.isatty():
            print(f"\r{line} ", end="", file=sys.stderr, flush=True)
        elif findings.inputs % 5_000 == 0:
            print(line, file=sys.stderr, flush=True)

    findings = run_seeds(arguments.seed, arguments.seed + arguments.inputs, arguments.jobs, tell)
    print(file=sys.stderr)
    show(findings, time.monotonic() - started)
    return 1 if findings.problems else 0


def show(findings: Findings, seconds: float) -> None:
    slowest, slowest_seed = findings.slowest
    print(f"{findings.inputs} inputs in {seconds:.0f} s; slowest {slowest:.1f} s (seed {slowest_seed}); "
          f"peak memory of a worker {findings.rss_bytes_max >> 20} MiB")  # fmt: skip
    counts: dict[str, int] = defaultdict(int)
    for outcome, count in findings.outcomes.items():
        counts[like(outcome)] += count
    for outcome, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        print(f"{count:8d}  {outcome}")
    kinds: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for seed, problem in findings.problems:
        kinds[like(problem)].append((seed, problem))
    for examples in sorted(kinds.values(), key=len, reverse=True):
        print(f"\n{len(examples)} times, for example:")
        for seed, problem in sorted(examples)[:SHOWN_MAX]:
            print(f"  python campaigns/fuzz.py --inputs 1 --seed {seed}\n      {problem[:600]}")


def like(text: str) -> str:
    """Problems that differ only in numbers and names are of one kind."""
    return re.sub(r"-?\d+", "#", re.sub(r"\(after .*\)|/\S*", "", text))[:90]


if __name__ == "__main__":
    sys.exit(main())
