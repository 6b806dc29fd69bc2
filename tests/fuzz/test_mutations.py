"""Mutated log directories are refused with a message and nothing written, or read right: never a crash, never a guess.

`benchmarks/fuzz.py` runs as many more as one likes.
"""

from __future__ import annotations

import pytest

from tests.fuzz.workers import run_seeds

INPUTS = 3_000
SHARES = 6


@pytest.mark.parametrize("share", range(SHARES))
def test_mutated_logs_are_refused_or_read_right(share: int) -> None:
    first = share * INPUTS // SHARES
    found = run_seeds(first, first + INPUTS // SHARES, 1, lambda so_far: None)
    replays = [f"python benchmarks/fuzz.py --inputs 1 --seed {seed}   # {problem[:300]}" for seed, problem in found.problems]
    assert found.inputs == INPUTS // SHARES
    assert not replays, "\n" + "\n".join(replays)
    assert found.outcomes["accepted"] > found.inputs // 10, found.outcomes
    assert found.outcomes["refused"] > found.inputs // 10, found.outcomes
