"""Which partitions are worth compacting now, why, and in which order. Pure: metadata and a clock in, reasons out.

Lag is a deadline, not only a condition: what somebody asked for comes first, then what is overdue, then expired tombstones,
then the dirtiest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headstone.lake.commits import Partition
from headstone.lake.spans import Span, Spans, overlap, touching, without
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT, dirty_enough, overdue
from headstone.retention.settings import CLEANUP_POLICY, setting_of

POLICY, POLICY_UNKNOWN = CLEANUP_POLICY, "unknown"
"""Of a topic without that setting: compact. Unknown: its source did not tell."""


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


def not_compacted(settings: Mapping[str, object]) -> str | None:
    """Why the records of a topic are all kept; None if it is compacted."""
    policy = str(settings.get(POLICY, "compact"))
    if policy == POLICY_UNKNOWN:
        return f"{POLICY} is not known: say it with `lake ingest --cleanup-policy`"
    return None if "compact" in policy.split(",") else f"{POLICY} is {policy or 'empty'}: every record is kept"


def dirty_spans(partition: Partition) -> Spans:
    log = [Span(partition.start_offset, partition.next_offset)]
    return without(log, partition.cleaned) if partition.next_offset > partition.start_offset else ()


def compactable(partition: Partition, settings: Mapping[str, object], *, now_ms: int) -> Spans:
    """The dirty spans below the first dirty extent that is younger than min.compaction.lag.ms.

    Without a lag nothing is too young, whatever its timestamps say."""
    dirty, lag_ms = dirty_spans(partition), setting_of(settings, "min.compaction.lag.ms")
    young = (extent.span.start for extent in partition.extents if extent.max_timestamp_ms > now_ms - lag_ms)
    young = (start for start in young if dirty and dirty[-1].end > start)
    limit = min(young, default=NO_LIMIT) if lag_ms > 0 else NO_LIMIT
    return overlap(dirty, [Span(0, limit)]) if limit > 0 else ()


def due_tombstones(partition: Partition, settings: Mapping[str, object], *, now_ms: int, held_from: int) -> Spans:
    """Where tombstones may go now: tracked for delete.retention.ms, no reader behind, nothing below that must wait.

    Dirty data and younger ranges below keep what is above them: one offset is enough to say how far removal may go."""
    dirty, last = dirty_spans(partition), now_ms - setting_of(settings, "delete.retention.ms")
    waiting = [known.span.start for known in partition.tombstones if known.cleaned_at_ms > last]
    limit = min([held_from, *(span.start for span in dirty[:1]), *waiting[:1]])
    return overlap([known.span for known in partition.tombstones], [Span(0, limit)]) if limit > 0 else ()


def eligibility(
    partition: Partition, settings: Mapping[str, object], *, now_ms: int, requested: bool = False,
    held_from: int = NO_LIMIT,
) -> Eligibility:  # fmt: skip
    if reason := not_compacted(settings):
        return ineligible(reason, requested=requested)
    total = sum(extent.length for extent in partition.extents)
    spans = compactable(partition, settings, now_ms=now_ms)
    dirty = [extent for extent in partition.extents if touching(spans, extent.span)]
    dirty_bytes = sum(extent.length for extent in dirty)
    ratio = dirty_bytes / total if total else 0.0
    needed = setting_of(settings, "min.cleanable.dirty.ratio")
    lag_ms = setting_of(settings, "max.compaction.lag.ms")
    due = len(due_tombstones(partition, settings, now_ms=now_ms, held_from=held_from))
    oldest = min((extent.oldest_timestamp_ms for extent in dirty if extent.oldest_timestamp_ms > 0), default=None)
    deadline = oldest + lag_ms if oldest is not None and lag_ms < NO_LIMIT - oldest else None
    eligible, reason = True, ""
    if requested and (dirty_bytes or due):
        reason = "requested"
    elif deadline is not None and overdue(now_ms, deadline):
        reason = f"max.compaction.lag.ms expired {now_ms - deadline} ms ago"
    elif due:
        reason = f"tombstones of {due} ranges have had their time"
    elif dirty_bytes and dirty_enough(ratio, needed):
        reason = f"dirty ratio {ratio:.3f} is above {needed:g}"
    else:
        eligible = False
        young = "nothing is old enough" if dirty_spans(partition) else "nothing is dirty"
        reason = f"dirty ratio {ratio:.3f} is not above {needed:g}" if dirty_bytes else young
    return Eligibility(
        eligible=eligible, requested=requested, reason=reason, dirty_ratio=ratio, dirty_bytes=dirty_bytes, tombstones_due=due,
        deadline_ms=deadline,
    )  # fmt: skip


def ineligible(reason: str, *, requested: bool = False) -> Eligibility:
    return Eligibility(
        eligible=False, requested=requested, reason=reason, dirty_ratio=0.0, dirty_bytes=0, tombstones_due=0, deadline_ms=None
    )  # fmt: skip


def queue(
    states: Iterable[tuple[TopicPartition, Eligibility]], *, now_ms: int
) -> list[tuple[TopicPartition, Eligibility]]:
    """The eligible ones, most urgent first."""

    def urgency(item: tuple[TopicPartition, Eligibility]) -> tuple[int, float, TopicPartition]:
        topic_partition, state = item
        if state.requested:
            return -1, 0.0, topic_partition
        if state.deadline_ms is not None and overdue(now_ms, state.deadline_ms):
            return 0, state.deadline_ms, topic_partition
        return (
            (1, -state.tombstones_due, topic_partition)
            if state.tombstones_due
            else (2, -state.dirty_ratio, topic_partition)
        )

    return sorted(((topic_partition, state) for topic_partition, state in states if state.eligible), key=urgency)
