"""Within how many seeds is each mutant of the protocol and the rules found?

    python campaigns/sim_mutants.py [NAME...]

Prints the first seed that finds each; exit code 1 if one is not found.
"""

from __future__ import annotations

import argparse
import sys
import time

from headstone.retention.policy import COORDINATED
from headstone.sim.campaign import Settings, campaign
from headstone.sim.mutants import MUTANTS, SEEDS_MAX


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default all)")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help=f"look at this many (default {SEEDS_MAX})")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    missed = 0
    for name in arguments.names or [name for name, mutant in MUTANTS.items() if mutant.seed is not None]:
        started = time.monotonic()
        tally = campaign(
            0, arguments.seeds, Settings(rules=COORDINATED, steps=200, mutant=name),
            jobs=arguments.jobs, stop_early=True, tell=lambda tally: None,
        )  # fmt: skip
        seconds = time.monotonic() - started
        if tally.violations:
            first = tally.violations[0]
            print(f"{name:26} seed {first.seed:6}  {first.finding.kind:22} {seconds:6.0f} s", flush=True)
        else:
            missed += 1
            print(f"{name:26} NOT FOUND in {tally.seeds} seeds {seconds:6.0f} s", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
