"""Whether the amount or the age of dirty data is reason enough to clean a log: one rule for segments and a lake's extents.

Pure. Others decide what is dirty, and what of it may be cleaned now (`ranges` for segments, the lake for its extents), and what
else makes a log worth a visit.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstone.retention.policy import NO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirt:
    """What a cleaner weighs. `oldest_ms`: the oldest dirty timestamp, by the newest record of a batch; -1 if there is none."""

    clean_bytes: int
    dirty_bytes: int
    """What may be cleaned now: data younger than min.compaction.lag.ms is neither clean nor dirty."""
    oldest_ms: int

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """`deadline_ms` is when max.compaction.lag.ms expires for the oldest; None without a timestamp or without such a limit."""

    dirty_ratio: float
    dirty_enough: bool
    deadline_ms: int | None
    overdue: bool

    @property
    def chosen(self) -> bool:
        return self.dirty_enough or self.overdue


def choose(dirt: Dirt, *, now_ms: int, ratio_min: float, lag_ms_max: int) -> Choice:
    """Both limits are strict, as in Kafka's cleaner: above the ratio, later than the deadline. Nothing dirty, not chosen."""
    limited = dirt.oldest_ms > 0 and lag_ms_max < NO_LIMIT - dirt.oldest_ms
    deadline_ms = dirt.oldest_ms + lag_ms_max if limited else None
    return Choice(
        dirty_ratio=dirt.ratio,
        dirty_enough=dirt.dirty_bytes > 0 and dirt.ratio > ratio_min,
        deadline_ms=deadline_ms,
        overdue=dirt.dirty_bytes > 0 and deadline_ms is not None and now_ms > deadline_ms,
    )
