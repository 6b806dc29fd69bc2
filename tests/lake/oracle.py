"""Eligibility as it is said in words, over all extents of a partition: slow, and what a row's numbers are held against."""

from __future__ import annotations

from collections.abc import Mapping

from headstone.lake.format.spans import touching
from headstone.lake.metastore.commits import Partition
from headstone.lake.metastore.scheduling import (
    Standing,
    Urgency,
    compactable,
    dirty_spans,
    due_tombstones,
    ineligible,
    not_compacted,
    urgency_of,
)
from headstone.lake.metastore.totals import totals_of
from headstone.retention.choosing import Dirt
from headstone.retention.policy import NO_LIMIT
from headstone.retention.settings import setting_of
from headstone.units import count, exact_duration


def standing_of(partition: Partition, settings: Mapping[str, object], *, now_ms: int) -> Standing:
    totals = totals_of(partition.extents, dirty_spans(partition))
    spans = compactable(partition, settings, now_ms=now_ms)
    ripe = totals_of([extent for extent in partition.extents if touching(spans, extent.span)], spans)
    dirt = Dirt(clean_bytes=totals.clean_bytes, dirty_bytes=ripe.dirty_bytes, oldest_ms=ripe.oldest_dirty_ms)
    return Standing(partition=partition, totals=totals, dirt=dirt)


def eligibility_of(partition: Partition, settings: Mapping[str, object], *, now_ms: int) -> Urgency:
    """By the rule itself, on numbers that were counted just now."""
    return urgency_of(standing_of(partition, settings, now_ms=now_ms), settings, now_ms=now_ms)


def slow_eligibility(
    partition: Partition, settings: Mapping[str, object], *, now_ms: int, requested: bool = False,
    held_from: int = NO_LIMIT,
) -> Urgency:  # fmt: skip
    """Every number from the extents, every comparison written out."""
    if reason := not_compacted(settings):
        return ineligible(reason, requested=requested)
    spans = compactable(partition, settings, now_ms=now_ms)
    dirty = [extent for extent in partition.extents if touching(spans, extent.span)]
    clean = [extent for extent in partition.extents if not touching(dirty_spans(partition), extent.span)]
    dirty_bytes = sum(extent.length for extent in dirty)
    total = dirty_bytes + sum(extent.length for extent in clean)
    ratio = dirty_bytes / total if total else 0.0
    needed = setting_of(settings, "min.cleanable.dirty.ratio")
    lag_ms = setting_of(settings, "max.compaction.lag.ms")
    due = len(due_tombstones(partition, settings, now_ms=now_ms, held_from=held_from))
    oldest = min((extent.oldest_timestamp_ms for extent in dirty if extent.oldest_timestamp_ms > 0), default=None)
    deadline = oldest + lag_ms if oldest is not None and lag_ms < NO_LIMIT - oldest else None
    eligible, reason = True, ""
    if requested and (dirty_bytes or due):
        reason = "requested"
    elif dirty_bytes and deadline is not None and now_ms > deadline:
        reason = f"max.compaction.lag.ms expired {exact_duration(now_ms - deadline)} ago"
    elif due:
        reason = f"tombstones of {count(due, 'range')} have had their time"
    elif dirty_bytes and ratio > needed:
        reason = f"dirty ratio {ratio:.3f} is above {needed:g}"
    else:
        eligible = False
        young = "nothing is old enough" if dirty_spans(partition) else "nothing is dirty"
        reason = f"dirty ratio {ratio:.3f} is not above {needed:g}" if dirty_bytes else young
    return Urgency(
        eligible=eligible, requested=requested, reason=reason, dirty_ratio=ratio, dirty_bytes=dirty_bytes, tombstones_due=due,
        deadline_ms=deadline,
    )  # fmt: skip
