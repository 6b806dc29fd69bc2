"""Loses power at every telling moment of compactions, an export, the guard's journal and an embedded lake, and recovers.

    python -m campaigns.power_loss --states 2000 --seed 0 [--program NAME]
    python -m campaigns.power_loss --syncs [--program NAME]     # which syncs nobody would miss

Each program is recorded once, by strace; from the record come the states that a power loss may leave, and each must be the old
state or the new one. Exit code 0: all are; 1: some are not, with what was lost.

With --syncs each sync is taken out of the record by itself, and a state that is wrong without it is looked for.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.power.disks import Crash, Recording, Sync, crashes, sampled
from tests.power.recoveries import JUDGES, InPlace, Judge, interrupted_of_each_kind, interrupted_swaps, judged, recorded

SHARED_MEMORY = Path("/dev/shm")
SHOWN_MAX = 5
RECOVERIES = 12
"""Interrupted swaps whose recovery is interrupted too."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=1000, help="at most, of each program (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="which of them (default 0)")
    parser.add_argument("--program", action="append", choices=list(JUDGES), help="only this one; may be repeated")
    parser.add_argument("--syncs", action="store_true", help="which syncs are needed, instead")
    arguments = parser.parse_args()
    problems = 0
    for program in arguments.program or JUDGES:
        if arguments.syncs:
            missed_syncs(program, states=arguments.states, seed=arguments.seed)
        else:
            problems += campaign(program, states=arguments.states, seed=arguments.seed)
    return 1 if problems else 0


def campaign(program: str, *, states: int, seed: int) -> int:
    """Returns how many states are wrong."""
    work = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
    try:
        judge = JUDGES[program](work / "reference")
        recording = recorded(judge, work / "recorded")
        left = sampled(recording, seed=seed, limit=states)
        problems = judge_all(judge, recording, left, work / "recorded" / "disk")
        if isinstance(judge, InPlace):
            interrupted = interrupted_swaps(left)
            chosen = random.Random(seed).sample(interrupted, min(RECOVERIES, len(interrupted)))
            chosen += interrupted_of_each_kind(left).values()
            for number, crash in enumerate(chosen):
                again = judge.interrupted(crash)
                recovery = recorded(again, work / f"recovery-{number}")
                some = sampled(recovery, seed=seed, limit=states // RECOVERIES)
                problems += judge_all(again, recovery, some, work / f"recovery-{number}" / "disk")
        return problems
    finally:
        shutil.rmtree(work)


def missed_syncs(program: str, *, states: int, seed: int) -> None:
    """For each sync: the first wrong state, among as many states as are tried that only its loss makes possible."""
    work = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
    try:
        judge = JUDGES[program](work / "reference")
        recording = recorded(judge, work / "recorded")
        missed_of(judge, recording, work / "recorded" / "disk", states=states, seed=seed)
        if isinstance(judge, InPlace):
            for kind, crash in interrupted_of_each_kind(crashes(recording, random.Random(seed))).items():
                print(f"{program}, recovery: {kind}", flush=True)
                again = judge.interrupted(crash)
                recovery = recorded(again, work / kind)
                missed_of(again, recovery, work / kind / "disk", states=states, seed=seed)
    finally:
        shutil.rmtree(work)


def missed_of(judge: Judge, recording: Recording, disk: Path, *, states: int, seed: int) -> None:
    identities = {crash.identity for crash in crashes(recording, random.Random(seed))}
    for number, sync in enumerate(recording.steps):
        if isinstance(sync, Sync):
            without = crashes(recording.without(number), random.Random(seed))
            new = (crash for crash in without if crash.identity not in identities)
            problem = next((p for crash in islice(new, states) if (p := judged(judge, crash, disk))), "")
            print(f"{number} {sync.asked}: {problem or 'nobody would miss it'}", flush=True)


def judge_all(judge: Judge, recording: Recording, left: list[Crash], disk: Path) -> int:
    started = time.monotonic()
    problems = [problem for crash in left if (problem := judged(judge, crash, disk))]
    seconds = time.monotonic() - started
    print(
        f"{judge.program}: {len(recording.steps)} steps, {len(left)} states, {len(problems)} wrong, {seconds:.0f} s",
        flush=True,
    )
    for problem in problems[:SHOWN_MAX]:
        print(f"    {problem}", flush=True)
    return len(problems)


if __name__ == "__main__":
    sys.exit(main())
