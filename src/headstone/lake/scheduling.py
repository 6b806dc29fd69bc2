"""Which partitions are worth compacting now, why, and in which order. Pure: metadata and a clock in, reasons out.

Lag is a deadline, not only a condition: what somebody asked for comes first, then what is overdue, then expired tombstones,
then the dirtiest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headstone.lake.commits import Extent, Partition
from headstone.lake.metastore import TopicPartition
from headstone.lake.spans import Span, overlap, without

DAY_MS = 86_400_000
NO_LIMIT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """`deadline_ms` is when max.compaction.lag.ms is over for the oldest dirty data; None without such data or limit."""

    eligible: bool
    requested: bool
    reason: str
    dirty_ratio: float
    dirty_bytes: int
    tombstones_due: int
    """Ranges of which the tombstones have had their time."""
    deadline_ms: int | None


def eligibility(
    partition: Partition, settings: Mapping[str, object], *, now_ms: int, requested: bool = False
) -> Eligibility:
    total = sum(extent.length for extent in partition.extents)
    dirty = [extent for extent in partition.extents if _is_dirty(extent, partition)]
    dirty_bytes = sum(extent.length for extent in dirty)
    ratio = dirty_bytes / total if total else 0.0
    needed = float(str(settings.get("min.cleanable.dirty.ratio", 0.5)))
    lag_ms = int(str(settings.get("max.compaction.lag.ms", NO_LIMIT)))
    retention_ms = int(str(settings.get("delete.retention.ms", DAY_MS)))
    due = sum(known.cleaned_at_ms <= now_ms - retention_ms for known in partition.tombstones)
    oldest = min((extent.max_timestamp_ms for extent in dirty if extent.records), default=None)
    deadline = oldest + lag_ms if oldest is not None and lag_ms < NO_LIMIT - oldest else None
    eligible, reason = True, ""
    if requested and (dirty_bytes or due):
        reason = "requested"
    elif deadline is not None and deadline <= now_ms:
        reason = f"max.compaction.lag.ms is over since {now_ms - deadline} ms"
    elif due:
        reason = f"tombstones of {due} ranges have had their time"
    elif dirty_bytes and ratio >= needed:
        reason = f"dirty ratio {ratio:.3f} has reached {needed:g}"
    else:
        eligible = False
        reason = f"dirty ratio {ratio:.3f} is below {needed:g}" if dirty_bytes else "nothing is dirty"
    return Eligibility(
        eligible=eligible, requested=requested, reason=reason, dirty_ratio=ratio, dirty_bytes=dirty_bytes, tombstones_due=due,
        deadline_ms=deadline,
    )  # fmt: skip


def _is_dirty(extent: Extent, partition: Partition) -> bool:
    live = overlap([extent.span], [Span(partition.start_offset, partition.next_offset)])
    return bool(without(live, partition.cleaned))


def queue(
    found: Iterable[tuple[TopicPartition, Eligibility]], *, now_ms: int
) -> list[tuple[TopicPartition, Eligibility]]:
    """The eligible ones, most urgent first."""

    def urgency(item: tuple[TopicPartition, Eligibility]) -> tuple[int, float, TopicPartition]:
        at, state = item
        if state.requested:
            return -1, 0.0, at
        if state.deadline_ms is not None and state.deadline_ms <= now_ms:
            return 0, state.deadline_ms, at
        return (1, -state.tombstones_due, at) if state.tombstones_due else (2, -state.dirty_ratio, at)

    return sorted(((at, state) for at, state in found if state.eligible), key=urgency)
