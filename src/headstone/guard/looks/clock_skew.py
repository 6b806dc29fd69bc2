"""How far brokers' clocks are known to be apart, from what brokers tell of them without meaning to.

A reading bounds one broker's clock against the guard's. The coordinators' own topics are stamped by the brokers that lead
them: a timestamp in the future proves a clock ahead, when it is first seen; one that came between two looks and is older than
the first of them proves a clock behind. What cannot be learnt over the wire is in docs/rfcs/0003-guard.md: a margin, and
agents, stand in for it. Asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headstone.log.topic_partition import TopicPartition

STAMPED_BY_BROKERS = ("__consumer_offsets", "__transaction_state")
KEPT_MS, KEPT_POLLS = 3_600_000, 10
"""What was proved is told to every look for so long, whichever is longer: the one that proved it may have been at one topic, or
was thrown away, and some topics may be unknown for a while. Each topic then remembers it by its own rule."""
UNCOMMITTED_MS = 30_000
"""A record that is new to a look may have been written this long before the look before: it shows once the ISR has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One broker's clock less the guard's: no less than earliest_ms, no more than latest_ms; None: nothing is known."""

    earliest_ms: int | None
    latest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """The newest timestamp of each partition that a broker leads, and the guard's time before and after the question."""

    newest_ms: Mapping[TopicPartition, int]
    asked_ms: int
    answered_ms: int


class Clocks:
    """What looks before have shown; an empty one knows nothing of clocks that are behind."""

    def __init__(self, *, poll_ms: int = 0) -> None:
        self._before: dict[TopicPartition, tuple[int, int]] = {}
        self._kept_ms = max(KEPT_MS, KEPT_POLLS * poll_ms)
        self._proved: list[tuple[int, tuple[int, int]]] = []

    def difference_ms(self, readings: Sequence[Reading], now_ms: int) -> int:
        """By this look and by those of just before, whatever they were of. Now may be before then: clocks are set."""
        self._proved = [(ms, sides) for ms, sides in self._proved if abs(now_ms - ms) <= self._kept_ms]
        sides = _sides_ms(readings)
        if any(sides):
            # One that proves no more, and is forgotten sooner, is not kept beside it.
            kept = [known for known in self._proved if known[1][0] > sides[0] or known[1][1] > sides[1]]
            self._proved = [*kept, (now_ms, sides)]
        ahead_ms = max((known[0] for _, known in self._proved), default=0)
        return ahead_ms + max((known[1] for _, known in self._proved), default=0)

    def reading(self, stamps: Stamps) -> Reading:
        """A stamp counts when it is first seen: its record may outlive by years the clock that was wrong."""
        ahead_ms: list[int] = []
        behind_ms: list[int] = []
        for partition, newest in stamps.newest_ms.items():
            before = self._before.get(partition)
            if before is None or newest > before[0]:
                ahead_ms.append(newest - stamps.answered_ms)
            if before is not None and newest > before[0]:
                behind_ms.append(newest - before[1] + UNCOMMITTED_MS)
            self._before[partition] = newest, stamps.asked_ms
        return Reading(earliest_ms=max(ahead_ms, default=None), latest_ms=min(behind_ms, default=None))


def largest_difference_ms(readings: Sequence[Reading]) -> int:
    """That two clocks differ by at least, if those of which nothing is known are right, as the guard's is."""
    ahead_ms, behind_ms = _sides_ms(readings)
    return ahead_ms + behind_ms


def _sides_ms(readings: Sequence[Reading]) -> tuple[int, int]:
    """By how much some clock is ahead of the guard's, and some clock behind it."""
    ahead_ms = max((reading.earliest_ms for reading in readings if reading.earliest_ms is not None), default=0)
    behind_ms = min((reading.latest_ms for reading in readings if reading.latest_ms is not None), default=0)
    return max(ahead_ms, 0), max(-behind_ms, 0)
