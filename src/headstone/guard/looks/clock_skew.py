"""How far brokers' clocks are known to be apart, from what brokers reveal without being asked for their time.

A reading bounds one broker's clock against the guard's. The leaders of the coordinators' topics stamp their records. A
timestamp in the future proves, when it is first seen, that the clock is ahead. A timestamp that appeared between two looks but
is older than the first of them proves that the clock is behind. What the wire does not reveal is covered by a margin and by
agents (docs/rfcs/0003-guard.md). Asks no broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstone.log.topic_partition import TopicPartition

STAMPED_BY_BROKERS = ("__consumer_offsets", "__transaction_state")
KEPT_MS, KEPT_POLLS = 3_600_000, 10
"""Every look gets what was proved for this long, whichever is longer: the look that proved it may have covered one topic or
been thrown away, and some topics may be unknown for a while. Each topic then remembers it by its own rule."""
UNCOMMITTED_MS = 30_000
"""A record that is new to a look may have been written this long before the previous look: it shows only once the ISR has
it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One broker's clock minus the guard's is between `earliest_ms` and `latest_ms`; None: no bound is known."""

    earliest_ms: int | None
    latest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """The newest timestamp of each partition that a broker leads, and the guard's time before and after the question."""

    newest_ms: Mapping[TopicPartition, int]
    asked_ms: int
    answered_ms: int


class Clocks:
    """What previous looks have shown. A new one cannot yet recognise clocks that are behind."""

    def __init__(self, *, poll_ms: int = 0) -> None:
        self._before: dict[TopicPartition, tuple[int, int]] = {}
        self._kept_ms = max(KEPT_MS, KEPT_POLLS * poll_ms)
        self._proved: list[tuple[int, tuple[int, int]]] = []

    def difference_ms(self, readings: Sequence[ClockReading], now_ms: int) -> int:
        """By this look and by recent ones, whichever topics they covered. `now_ms` may be earlier than a recent look: clocks
        are set back."""
        self._proved = [(ms, sides) for ms, sides in self._proved if abs(now_ms - ms) <= self._kept_ms]
        sides = _sides_ms(readings)
        if any(sides):
            # Drop what proves no more than this and expires sooner.
            kept = [known for known in self._proved if known[1][0] > sides[0] or known[1][1] > sides[1]]
            self._proved = [*kept, (now_ms, sides)]
        ahead_ms = max((known[0] for _, known in self._proved), default=0)
        return ahead_ms + max((known[1] for _, known in self._proved), default=0)

    def reading(self, stamps: Stamps) -> ClockReading:
        """A timestamp counts only when it is first seen: its record may outlive the wrong clock by years."""
        ahead_ms: list[int] = []
        behind_ms: list[int] = []
        for partition, newest in stamps.newest_ms.items():
            before = self._before.get(partition)
            if before is None or newest > before[0]:
                ahead_ms.append(newest - stamps.answered_ms)
            if before is not None and newest > before[0]:
                behind_ms.append(newest - before[1] + UNCOMMITTED_MS)
            self._before[partition] = newest, stamps.asked_ms
        return ClockReading(earliest_ms=max(ahead_ms, default=None), latest_ms=min(behind_ms, default=None))


def largest_difference_ms(readings: Sequence[ClockReading]) -> int:
    """At least this much between two clocks, taking the guard's clock, and every clock without bounds, for right."""
    ahead_ms, behind_ms = _sides_ms(readings)
    return ahead_ms + behind_ms


def _sides_ms(readings: Sequence[ClockReading]) -> tuple[int, int]:
    """How far the furthest clock is ahead of the guard's, and how far the furthest is behind it."""
    ahead_ms = max((reading.earliest_ms for reading in readings if reading.earliest_ms is not None), default=0)
    behind_ms = min((reading.latest_ms for reading in readings if reading.latest_ms is not None), default=0)
    return max(ahead_ms, 0), max(-behind_ms, 0)
