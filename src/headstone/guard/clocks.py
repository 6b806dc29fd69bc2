"""How far brokers' clocks are known to be apart, from what brokers tell of them without meaning to.

A reading bounds one broker's clock against the guard's. What cannot be learnt over the wire is in docs/rfcs/0003-guard.md: a
margin, and agents, stand in for it. Asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One broker's clock less the guard's: no less than earliest_ms, no more than latest_ms; None: nothing is known."""

    earliest_ms: int | None
    latest_ms: int | None


def largest_difference_ms(readings: Sequence[Reading]) -> int:
    """That two clocks differ by at least, if those of which nothing is known are right, as the guard's is."""
    ahead_ms = max((reading.earliest_ms for reading in readings if reading.earliest_ms is not None), default=0)
    behind_ms = min((reading.latest_ms for reading in readings if reading.latest_ms is not None), default=0)
    return max(ahead_ms, 0) - min(behind_ms, 0)
