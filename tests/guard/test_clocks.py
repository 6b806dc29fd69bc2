"""How far apart brokers' clocks are known to be."""

from __future__ import annotations

import pytest

from headstone.guard.clocks import Reading, largest_difference_ms

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("readings", "difference_ms"),
    [
        ([], 0),
        ([(-50, 20), (None, None)], 0),
        ([(HOUR_MS, None), (-50, 20)], HOUR_MS),
        ([(-HOUR_MS, None)], 0),
        ([(None, -HOUR_MS)], HOUR_MS),
        ([(HOUR_MS, None), (-2 * HOUR_MS, -HOUR_MS)], 2 * HOUR_MS),
    ],
    ids=["nothing told", "right as far as told", "ahead", "an old timestamp says nothing", "behind", "both"],
)
def test_only_what_is_certain_counts(readings: list[tuple[int | None, int | None]], difference_ms: int) -> None:
    bounds = [Reading(earliest_ms=earliest, latest_ms=latest) for earliest, latest in readings]
    assert largest_difference_ms(bounds) == difference_ms
