"""Lives of lakes, long ones: random sequences of all that may happen to one, compared with a dictionary after each step.

    python -m campaigns.lake_sequences [--steps 500] [--seed N] [--seeds 1] [--database sqlite|postgresql]

What happens, and what must hold, is in `tests/lake/lives.py`. On SQLite the lake is one directory, which is also copied, moved
and put back. A seed and a number of steps are one sequence. Exit code 0: the lake was right, or said what was wrong, after each
step; 1: it was not, and the seed is printed with its command.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from headstone.errors import HeadstoneError
from testbed.postgres import postgres
from tests.lake.lives import EMBEDDED, ON_A_SERVER, Life
from tests.lake.mortal import Databases, lowered


def lived(seed: int, steps: int, server: str | None) -> tuple[Counter[str], int]:
    """What happened, and after how many steps something was wrong; all of them if nothing was."""
    with tempfile.TemporaryDirectory() as directory, lowered(seed):
        root = Path(directory)
        life = Life(seed, root, Databases(root, server), **(EMBEDDED if server is None else ON_A_SERVER))
        try:
            life.live(steps)
        except (AssertionError, HeadstoneError, MemoryError):
            traceback.print_exc(limit=-4)
            return life.counts, sum(life.counts[body.__name__] for _, body in life.steps)
        finally:
            life.lake.close()
    return life.counts, steps + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="of each sequence (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--seeds", type=int, default=1, help="how many sequences (default 1)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="(default sqlite)")
    given = parser.parse_args()
    counts, failed, started = Counter[str](), list[int](), time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(postgres()) if given.database == "postgresql" else None
        for seed in range(given.seed, given.seed + given.seeds):
            happened, steps = lived(seed, given.steps, server)
            counts += happened
            if steps <= given.steps:
                failed.append(seed)
                print(
                    f"step {steps}: python -m campaigns.lake_sequences --steps {given.steps} --seed {seed} --database "
                    f"{given.database}",
                    flush=True,
                )
    for name, count in sorted(counts.items()):
        print(f"{count:9,} {name}")
    seconds = time.monotonic() - started
    print(f"{given.seeds} x {given.steps} steps on {given.database} in {seconds:.0f} s, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
