"""The four stories with the guard on: in time, and only when everything was removed. Every other trouble by command:

python -m campaigns.guarded_outages
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.brokers.distribution import Distribution
from headstone.sim.variants import VARIANTS
from testbed.guarded_troubles import play_guarded


@pytest.mark.parametrize("trouble", ["undisturbed", "late"])
def test_with_the_guard_every_replica_ends_the_same_and_right(
    distribution: Distribution, tmp_path: Path, trouble: str
) -> None:
    result = play_guarded(distribution, tmp_path, trouble, tell=print)
    print(result.log)
    assert (result.removed, result.not_restored) == ([], [])
    assert [(outage.variant, outage.wrong) for outage in result.outages] == [(variant, []) for variant in VARIANTS]
