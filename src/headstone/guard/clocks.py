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
    """What the look before has shown; an empty one knows nothing of clocks that are behind."""

    def __init__(self) -> None:
        self._before: dict[TopicPartition, tuple[int, int]] = {}

    def reading(self, stamps: Stamps) -> Reading:
        """A stamp counts when it is first seen: its record may outlive by years the clock that was wrong, and what it proved is
        remembered for as long as it matters by whoever asks."""
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
    ahead_ms = max((reading.earliest_ms for reading in readings if reading.earliest_ms is not None), default=0)
    behind_ms = min((reading.latest_ms for reading in readings if reading.latest_ms is not None), default=0)
    return max(ahead_ms, 0) - min(behind_ms, 0)
