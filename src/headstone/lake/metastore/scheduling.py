"""Which partitions are worth compacting now, why, and in which order. Pure: metadata and a clock in, reasons out.

From what is due to what was committed, a noun each:

    Totals      what a partition's extents come to: the numbers on its row (`totals`)
    Standing    a partition with its totals, and with the dirt that is old enough
    Urgency     whether it is worth a compaction now, why, and before which others; QueueKeys is what an index knows of that
    Plan        what a compaction of it will do (`jobs/job_plan`)
    Job         what runs, for many partitions (`jobs/job`)
    Compacted   what was committed (`jobs/compaction`)

Lag is a deadline, not only a condition. The order is: requested partitions, overdue ones, expired tombstones, then the
dirtiest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headstone import units
from headstone.errors import UsageError
from headstone.lake.format.spans import Span, Spans, overlap, without
from headstone.lake.metastore.commits import Partition
from headstone.lake.metastore.totals import Totals, dirty_among
from headstone.log.topic_partition import TopicPartition
from headstone.retention.choosing import Dirt, choose
from headstone.retention.policy import NO_LIMIT, has_passed, horizon_after
from headstone.retention.settings import CLEANUP_POLICY, retention_limits, setting_of

POLICY, POLICY_UNKNOWN = CLEANUP_POLICY, "unknown"
"""A topic without this setting counts as compact. Unknown: its source did not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A partition without its extents (`partition` has none), and what they come to."""

    partition: Partition
    totals: Totals
    dirt: Dirt
    """The dirt older than min.compaction.lag.ms, and the clean bytes."""
    more_at_ms: int | None = None
    """When more of the dirt is old enough; None if all is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgency:
    """`deadline_ms` is when max.compaction.lag.ms expires for the oldest dirty data; None without such data or limit."""

    eligible: bool
    requested: bool
    reason: str
    dirty_ratio: float
    dirty_bytes: int
    tombstones_due: int
    """Number of ranges whose tombstones have had their time."""
    deadline_ms: int | None


def not_compacted(settings: Mapping[str, object]) -> str | None:
    """Why a topic is not compacted; None if it is."""
    policy = str(settings.get(POLICY, "compact"))
    if policy == POLICY_UNKNOWN:
        return f"{POLICY} is not known: say it with `lake ingest --cleanup-policy`"
    if "compact" in policy.split(","):
        return None
    limited = retention_limits(settings) != (None, None)
    kept = "records are kept until retention takes them" if limited else "every record is kept"
    return f"{POLICY} is {policy or 'empty'}: {kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The settings of a topic that say when it is compacted."""

    ratio_min: float
    lag_ms_min: int
    lag_ms_max: int
    retention_ms: int


def limits_of(settings: Mapping[str, object]) -> TopicLimits:
    """UsageError if one of them is not a number."""
    return TopicLimits(
        ratio_min=setting_of(settings, "min.cleanable.dirty.ratio"),
        lag_ms_min=setting_of(settings, "min.compaction.lag.ms"),
        lag_ms_max=setting_of(settings, "max.compaction.lag.ms"),
        retention_ms=setting_of(settings, "delete.retention.ms"),
    )


def dirty_spans(partition: Partition) -> Spans:
    """The log without its cleaned ranges."""
    log = [Span(partition.start_offset, partition.next_offset)]
    return without(log, partition.cleaned) if partition.next_offset > partition.start_offset else ()


def compactable(partition: Partition, settings: Mapping[str, object], *, now_ms: int) -> Spans:
    """The dirty spans below the first dirty extent that is younger than min.compaction.lag.ms.

    Without a lag nothing is too young, whatever its timestamps say."""
    dirty, lag_ms = dirty_spans(partition), setting_of(settings, "min.compaction.lag.ms")
    soiled = dirty_among(partition.extents, dirty)
    young = (extent.span.start for extent in soiled if extent.max_timestamp_ms > now_ms - lag_ms)
    limit = min(young, default=NO_LIMIT) if lag_ms > 0 else NO_LIMIT
    return overlap(dirty, [Span(0, limit)]) if limit > 0 else ()


def due_tombstones(partition: Partition, settings: Mapping[str, object], *, now_ms: int, held_from: int) -> Spans:
    """Where tombstones may be removed now: their horizon has passed, no reader is behind, nothing below has to wait.

    Dirty data and younger ranges keep everything above them: one offset is enough to say how far removal may go."""
    if not partition.tombstones:
        return ()
    dirty, retention_ms = dirty_spans(partition), setting_of(settings, "delete.retention.ms")
    waiting = [
        known.span.start
        for known in partition.tombstones
        if not has_passed(horizon_after(known.cleaned_at_ms, retention_ms), now_ms)
    ]
    limit = min([held_from, *(span.start for span in dirty[:1]), *waiting[:1]])
    return overlap([known.span for known in partition.tombstones], [Span(0, limit)]) if limit > 0 else ()


def urgency_of(
    standing: Standing,
    settings: Mapping[str, object],
    *,
    now_ms: int,
    requested: bool = False,
    held_from: int = NO_LIMIT,
) -> Urgency:
    if reason := not_compacted(settings):
        return ineligible(reason, requested=requested)
    limits = limits_of(settings)
    choice = choose(standing.dirt, now_ms=now_ms, ratio_min=limits.ratio_min, lag_ms_max=limits.lag_ms_max)
    due = due_tombstones(standing.partition, settings, now_ms=now_ms, held_from=held_from)
    eligible, reason = True, ""
    if requested and (standing.dirt.dirty_bytes or due):
        reason = "requested"
    elif choice.overdue and choice.deadline_ms is not None:
        reason = f"max.compaction.lag.ms expired {units.exact_duration(now_ms - choice.deadline_ms)} ago"
    elif due:
        reason = f"tombstones of {units.count(len(due), 'range')} have had their time"
    elif choice.dirty_enough:
        reason = f"dirty ratio {choice.dirty_ratio:.3f} is above {limits.ratio_min:g}"
    else:
        eligible = False
        young = "nothing is old enough" if dirty_spans(standing.partition) else "nothing is dirty"
        little = f"dirty ratio {choice.dirty_ratio:.3f} is not above {limits.ratio_min:g}"
        reason = little if standing.dirt.dirty_bytes else young
    return Urgency(
        eligible=eligible, requested=requested, reason=reason, dirty_ratio=choice.dirty_ratio,
        dirty_bytes=standing.dirt.dirty_bytes, tombstones_due=len(due), deadline_ms=choice.deadline_ms,
    )  # fmt: skip


def ineligible(reason: str, *, requested: bool = False) -> Urgency:
    return Urgency(
        eligible=False, requested=requested, reason=reason, dirty_ratio=0.0, dirty_bytes=0, tombstones_due=0, deadline_ms=None
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueKeys:
    """What the queue's indexes know of a partition: never later, and never less, than what `urgency_of` finds."""

    overdue_from_ms: int = NO_LIMIT
    """When max.compaction.lag.ms expires for the oldest dirty data."""
    tombstones_due_ms: int = NO_LIMIT
    """When the lowest range of tombstones has had its time, readers' holds aside."""
    dirty_ratio: float = 0.0
    """0 if it is too low for a compaction."""


def queue_keys(partition: Partition, totals: Totals, settings: Mapping[str, object]) -> QueueKeys:
    """Looks at no extents of the partition. A topic with invalid settings is no candidate."""
    try:
        if not_compacted(settings):
            return QueueKeys()
        limits = limits_of(settings)
    except UsageError:
        return QueueKeys()
    choice = choose(all_dirt(totals), now_ms=0, ratio_min=limits.ratio_min, lag_ms_max=limits.lag_ms_max)
    dirty, ranges = dirty_spans(partition), partition.tombstones[:1]
    removable = [
        horizon_after(known.cleaned_at_ms, limits.retention_ms)
        for known in ranges
        if not dirty or known.span.start < dirty[0].start
    ]
    return QueueKeys(
        overdue_from_ms=NO_LIMIT if choice.deadline_ms is None else choice.deadline_ms + 1,
        tombstones_due_ms=min((horizon for horizon in removable if horizon >= 0), default=NO_LIMIT),
        dirty_ratio=choice.dirty_ratio if choice.dirty_enough else 0.0,
    )


def all_dirt(totals: Totals) -> Dirt:
    """Ignores min.compaction.lag.ms."""
    return Dirt(clean_bytes=totals.clean_bytes, dirty_bytes=totals.dirty_bytes, oldest_ms=totals.oldest_dirty_ms)


def next_look_ms(standing: Standing, urgency: Urgency) -> int:
    """When to look again at a partition whose dirt is not due. Only a compaction, a merge or new settings make it due earlier.

    Appends do not: cleaning stops at what is too young, and they come after that."""
    if standing.more_at_ms is None:
        return 0
    return min(standing.more_at_ms, NO_LIMIT if urgency.deadline_ms is None else urgency.deadline_ms + 1)


def queue(urgencies: Iterable[tuple[TopicPartition, Urgency]], *, now_ms: int) -> list[tuple[TopicPartition, Urgency]]:
    """The eligible ones, most urgent first."""

    def rank(item: tuple[TopicPartition, Urgency]) -> tuple[int, float, TopicPartition]:
        name, urgency = item
        if urgency.requested:
            return -1, 0.0, name
        if urgency.deadline_ms is not None and now_ms > urgency.deadline_ms:
            return 0, urgency.deadline_ms, name
        return (1, -urgency.tombstones_due, name) if urgency.tombstones_due else (2, -urgency.dirty_ratio, name)

    return sorted(((name, urgency) for name, urgency in urgencies if urgency.eligible), key=rank)
