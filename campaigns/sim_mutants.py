"""Within how many seeds does the simulator find each mutant: of the protocol and the rules, and of the guard?

    python -m campaigns.sim_mutants [NAME...] [--seeds N] [--jobs N]

Three kinds: `sim/mutants.py`, the margins of `sim/guarded_runs.py`, and the entries of `campaigns/mutants/*.toml` whose names
begin with `simulated-`, each in a copy of the package that is changed so. Prints the first seed that finds each; exit code 1 if
one is not found. The tree itself is never changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from campaigns.mutant_lists import Mutant, read_lists
from headstone.retention.policy import COORDINATED
from headstone.sim.campaign import CampaignSettings, campaign
from headstone.sim.guarded_runs import MUTANTS as MARGINS
from headstone.sim.mutants import MUTANTS, SEEDS_MAX
from headstone.sim.tallies import GUARDED, GUARDED_STEPS

ROOT = Path(__file__).resolve().parent.parent
SIMULATED = "simulated-"
HEADSTONE = "import sys; from headstone.cli.main import main; sys.exit(main())"
CHUNK_SEEDS = 200
"""Seeds of one run in a changed copy, which ends after the first that finds something."""
Found = tuple[int, str]
"""The first seed, and what it found."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default all)")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help=f"look at this many (default {SEEDS_MAX})")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    code_mutants = {mutant.name: mutant for mutant in read_lists(ROOT)[0] if mutant.name.startswith(SIMULATED)}
    protocol = [name for name, mutant in MUTANTS.items() if mutant.seed is not None]
    missed = 0
    for name in arguments.names or [*protocol, *MARGINS, *code_mutants]:
        started = time.monotonic()
        if name in code_mutants:
            violation = _in_changed_copy(code_mutants[name], arguments.seeds, arguments.jobs)
        else:
            violation = _in_this_tree(name, arguments.seeds, arguments.jobs)
        seconds = time.monotonic() - started
        what = (
            f"NOT FOUND in {arguments.seeds} seeds"
            if violation is None
            else f"seed {violation[0]:6}  {violation[1]:22}"
        )
        missed += violation is None
        print(f"{name:66} {what} {seconds:6.0f} s", flush=True)
    return 1 if missed else 0


def _in_this_tree(name: str, seeds: int, jobs: int) -> Found | None:
    guarded = name in MARGINS
    settings = CampaignSettings(
        rules=GUARDED if guarded else COORDINATED, steps=GUARDED_STEPS if guarded else 200, mutant=name
    )
    tally = campaign(0, seeds, settings, jobs=jobs, stop_early=True, tell=lambda tally: None)
    return (tally.violations[0].seed, tally.violations[0].finding.kind) if tally.violations else None


def _in_changed_copy(mutant: Mutant, seeds: int, jobs: int) -> Found | None:
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory) / "src"
        shutil.copytree(ROOT / "src", package, ignore=shutil.ignore_patterns("__pycache__"))
        changed = Path(directory) / mutant.file
        changed.write_text(mutant.applied(changed.read_text(encoding="utf-8")), encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(Path(directory) / "numba")}
        for first in range(0, seeds, CHUNK_SEEDS):
            count = min(CHUNK_SEEDS, seeds - first)
            command = [sys.executable, "-c", HEADSTONE, "simulate", "--rules", GUARDED, "--output", "json"]
            command += ["--seed", str(first), "--seeds", str(count), "--jobs", str(jobs)]
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode not in (0, 1):
                raise SystemExit(f"{mutant.name}: simulate ended with {done.returncode}")
            violations = json.loads(done.stdout)["violations"]
            if violations:
                return violations[0]["seed"], violations[0]["kind"]
    return None


if __name__ == "__main__":
    sys.exit(main())
