"""`--rules kafka` leaves what a real broker's cleaner leaves of the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.brokers.distribution import Distribution
from testbed.side_by_side import run


@pytest.mark.parametrize("tiny_map", [False, True], ids=["roomy map", "tiny map"])
def test_both_cleaners_leave_the_same_log(distribution: Distribution, tmp_path: Path, tiny_map: bool) -> None:
    """A new seed every day would be luck; `python -m testbed.side_by_side` is for many."""
    result = run(distribution, tmp_path, seed=3, rounds=3, tiny_map=tiny_map)
    print(result)
    assert result.differences == []
    assert result.removed > 1000
    assert result.stamped > 50
    assert result.passes > (100 if tiny_map else 30)
