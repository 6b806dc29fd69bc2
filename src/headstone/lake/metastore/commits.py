"""The rules by which a partition of the lake may change: appends, replacements, claims. Pure: state in, new state out.

Owns every reason to refuse a commit. A refused commit has changed nothing. The metastore calls this inside a transaction;
nothing here knows about SQL or object storage. docs/rfcs/0002-lake.md says why the rules are what they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from headstone.errors import HeadstoneError, UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span, Spans, normal, overlap, touching, without
from headstone.log.shown import visible
from headstone.log.topic_partition import TopicPartition
from headstone.retention.settings import SOURCE, SOURCE_LAKE
from headstone.spelling import instead


class CommitRefused(HeadstoneError):
    """Another writer was first, or the proposal does not fit the log: nothing was changed. Look again and start over."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneRange:
    """A cleaned range that still has tombstones, and when it was cleaned."""

    span: Span
    cleaned_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Everything that commits look at. `extents` tile the log from at or below start_offset to next_offset."""

    start_offset: int
    next_offset: int
    compaction_epoch: int
    extents: tuple[Extent, ...]
    cleaned: Spans
    """No record below the end of one of these has a newer record of its key inside that range."""
    tombstones: tuple[TombstoneRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a compaction claims: it went over `processed`, and these ranges are clean now."""

    processed: Span
    cleaned: Spans
    tombstones: Spans = ()
    """Those of the cleaned ranges that still have tombstones, to be tracked from now on."""
    tombstones_removed: Spans = ()
    """No longer tracked: the tombstones were removed, or `tombstones` tracks them anew."""


class LowestHold(NamedTuple):
    """The hold of the reader farthest behind on a partition: tombstones from `held_from` on stay."""

    reader: str
    held_from: int


EMPTY = Partition(start_offset=0, next_offset=0, compaction_epoch=0, extents=(), cleaned=(), tombstones=())


def appended(
    partition: Partition, expected_next: int, extents: Sequence[Extent], *, log_start: int | None = None
) -> Partition:
    """Appends extents. Never conflicts with compaction. If two writers append the same offsets, the second is refused.

    `log_start`: where an empty log begins; extents wholly below it are left out."""
    if expected_next != partition.next_offset:
        raise CommitRefused(f"append at {expected_next}, but the log ends at {partition.next_offset}")
    span = _contiguous(extents)
    _refuse_dead(extents)
    if span.start != partition.next_offset:
        raise CommitRefused(f"append of {span} leaves a gap or overlaps: the log ends at {partition.next_offset}")
    after = replace(partition, next_offset=span.end, extents=(*partition.extents, *extents))
    if log_start is None:
        return after
    if partition.start_offset < partition.next_offset:
        raise CommitRefused(
            f"append would start the log at {log_start}, but the log is already [{partition.start_offset}, "
            f"{partition.next_offset})"
        )
    return started_at(after, log_start)


def refuse_lakes_own(topic: str, settings: Mapping[str, object]) -> None:
    """Refuses an ingest from Kafka into a topic with offsets of the lake's own: Kafka's same offsets are other records."""
    if settings.get(SOURCE) == SOURCE_LAKE:
        raise UsageError(
            f"{topic}: records were written to it in the lake (`lake erase --write-tombstone`), so its offsets are no longer "
            "those of any Kafka topic: ingest into a new lake; this one stays as it is"
        )


def replaced(
    partition: Partition, expected_epoch: int, extents: Sequence[Extent], claim: Claim | None, *, now_ms: int = 0,
    tombstones_below: int = 0, hold: LowestHold | None = None,
) -> Partition:  # fmt: skip
    """A compaction's result: other extents for the same spans, or more dead records in them, and what is clean now.

    Raises the epoch. `extents` may be empty: a claim alone, or no claim either (nothing had to be rewritten). Ranges that
    become clean are clean since `now_ms`. `tombstones_below`: tombstones below this offset may be gone, claimed or not.
    """
    _expect_epoch(partition, expected_epoch)
    _refuse_held(claim, tombstones_below, hold)
    by_span = {extent.span: extent for extent in partition.extents}
    proposed = [
        _marked(by_span.get(extent.span), extent, now_ms)
        if extent.dead_object is not None and extent.span.end > partition.start_offset
        else extent
        for extent in extents
    ]
    swapped = _swapped(partition, proposed)
    if claim is not None:
        swapped = _claimed(swapped, claim, now_ms)
    return replace(swapped, compaction_epoch=expected_epoch + 1)


def leveled(
    partition: Partition, expected_epoch: int, extents: Sequence[Extent], *, worked_on_by: str | None = None
) -> Partition:
    """Merges small extents. Removes only dead records, so the epoch stays.

    A running compaction would find its extents gone, so leveling is refused while another worker has the partition."""
    _expect_epoch(partition, expected_epoch)
    if worked_on_by is not None:
        raise CommitRefused(f"{worked_on_by} is working on this partition: leveling waits for it")
    _refuse_dead(extents)
    return _swapped(partition, extents)


def started_at(partition: Partition, start_offset: int) -> Partition:
    """Retention: removes extents wholly below `start_offset`. Claims nothing about the rest, so the epoch stays."""
    if not partition.start_offset <= start_offset <= partition.next_offset:
        raise CommitRefused(
            f"start offset {start_offset} is not in [{partition.start_offset}, {partition.next_offset}]"
        )
    below = [Span(0, start_offset)] if start_offset else []
    kept = tuple(extent for extent in partition.extents if extent.span.end > start_offset)
    ranges = [
        TombstoneRange(span=left, cleaned_at_ms=known.cleaned_at_ms)
        for known in partition.tombstones
        for left in without([known.span], below)
    ]
    cleaned = without(partition.cleaned, below)
    return replace(partition, start_offset=start_offset, extents=kept, cleaned=cleaned, tombstones=tuple(ranges))


def _refuse_held(claim: Claim | None, tombstones_below: int, hold: LowestHold | None) -> None:
    """A hold may be taken while a job is running that was planned without it."""
    removed = [span.end for span in claim.tombstones_removed] if claim is not None else []
    if hold is not None and max([tombstones_below, *removed]) > hold.held_from:
        raise CommitRefused(f"{hold.reader} holds tombstones from offset {hold.held_from} on, set since this job began")


def _expect_epoch(partition: Partition, expected: int) -> None:
    if partition.compaction_epoch != expected:
        raise CommitRefused(
            f"stale compaction epoch {expected}, current {partition.compaction_epoch}: another worker has compacted this "
            "partition"
        )


def _refuse_dead(extents: Sequence[Extent]) -> None:
    for extent in extents:
        if extent.dead_object is not None:
            raise CommitRefused(f"extent {extent.span} is new but has dead records: leave them out")


def _marked(old: Extent | None, extent: Extent, now_ms: int) -> Extent:
    """The existing extent with more dead records. Dead since now, or since its first one was marked."""
    if old is None or replace(old, **_marks(extent)) != extent or extent.dead <= old.dead:
        raise CommitRefused(f"dead records of {extent.span} are marked in an extent that no longer exists")
    if extent.records + extent.dead != old.records + old.dead:
        raise CommitRefused(
            f"{extent.span}: {extent.dead} dead records and {extent.records} others do not add up to the extent"
        )
    return replace(extent, dead_since_ms=old.dead_since_ms if old.dead else now_ms)


def _marks(extent: Extent) -> dict[str, Any]:
    names = ("records", "dead", "dead_object", "dead_position", "dead_checksum")
    return {name: getattr(extent, name) for name in names}


def _contiguous(extents: Sequence[Extent]) -> Span:
    if not extents:
        raise CommitRefused("no extents")
    for extent in extents:
        if extent.span.start >= extent.span.end:
            raise CommitRefused(f"extent {extent.span} is empty or inverted")
    for before, after in pairwise(extents):
        if before.span.end != after.span.start:
            raise CommitRefused(f"extents {before.span} and {after.span} leave a gap or overlap")
    return Span(extents[0].span.start, extents[-1].span.end)


def runs(extents: Sequence[Extent]) -> list[list[Extent]]:
    """Splits extents where their spans do not meet."""
    groups: list[list[Extent]] = []
    for extent in extents:
        if groups and groups[-1][-1].span.end == extent.span.start:
            groups[-1].append(extent)
        else:
            groups.append([extent])
    return groups


def _swapped(partition: Partition, extents: Sequence[Extent]) -> Partition:
    """Each run of new extents replaces whole old ones. Its left edge may lie below a start that has moved since."""
    old, kept, end = partition.extents, list[Extent](), 0
    ordered = sorted(extents, key=lambda extent: extent.span.start)
    for run in runs([extent for extent in ordered if extent.span.end > partition.start_offset]):
        span = _contiguous(run)
        first = bisect_right(old, span.start, key=lambda extent: extent.span.end)
        last = bisect_left(old, span.end, lo=first, key=lambda extent: extent.span.start)
        there = old[first:last]
        if (
            not there
            or there[-1].span.end != span.end
            or not _left_edge_fits(partition, there[0].span, span)
            or first < end
        ):
            edges = ", ".join(str(extent.span) for extent in there) or "none"
            raise CommitRefused(f"new extents cover {span}, which does not match the existing extents: {edges}")
        kept += [*old[end:first], *run]
        end = last
    return replace(partition, extents=(*kept, *old[end:]))


def _left_edge_fits(partition: Partition, old: Span, new: Span) -> bool:
    return old.start == new.start or (new.start < old.start and old.start <= partition.start_offset)


def _claimed(partition: Partition, claim: Claim, now_ms: int) -> Partition:
    start, cleaned = partition.start_offset, normal(claim.cleaned)
    if cleaned and claim.processed.start > start:
        raise CommitRefused(
            f"a clean claim must reach down to the log start {start}; but only {claim.processed} was processed"
        )
    for span in cleaned:
        if span.end > claim.processed.end or span.end > partition.next_offset:
            raise CommitRefused(f"claim {span} extends beyond the processed range {claim.processed} or the log end")
    tracked, removed = [known.span for known in partition.tombstones], normal(claim.tombstones_removed)
    for span in without(claim.tombstones, cleaned):
        raise CommitRefused(f"tombstone range {span} is not among the ranges claimed clean")
    for span in overlap(claim.tombstones, without(tracked, removed)):
        raise CommitRefused(f"tombstone range {span} overlaps an existing one")
    for span in without(removed, tracked):
        if span.end > start:
            raise CommitRefused(f"tombstones of {span} are claimed removed, but none are tracked there")
    left = [
        TombstoneRange(span=piece, cleaned_at_ms=known.cleaned_at_ms)
        for known in partition.tombstones
        for piece in without([known.span], touching(removed, known.span))
    ]
    left += [TombstoneRange(span=span, cleaned_at_ms=now_ms) for span in normal(claim.tombstones)]
    below = [Span(0, start)] if start else []
    return replace(
        partition,
        cleaned=without(normal([*partition.cleaned, *cleaned]), below),
        tombstones=tuple(sorted(left, key=lambda known: known.span)),
    )


def violations(partition: Partition) -> list[str]:
    """What is wrong with a partition's metadata, in words; empty if all is as commits leave it."""
    faults = []
    extents, start, end = partition.extents, partition.start_offset, partition.next_offset
    if not 0 <= start <= end:
        faults.append(f"start offset {start}, next offset {end}")
    if not extents and start != end:
        faults.append(f"no extents for [{start}, {end})")
    if extents:
        if not extents[0].span.start <= start < extents[0].span.end:
            faults.append(f"the first extent {extents[0].span} does not hold the start offset {start}")
        if extents[-1].span.end != end:
            faults.append(f"the last extent {extents[-1].span} does not end at the next offset {end}")
    for before, after in pairwise(extents):
        if before.span.end != after.span.start:
            faults.append(f"extents {before.span} and {after.span} do not meet")
    faults += [
        f"extent {extent.span} is empty or inverted" for extent in extents if extent.span.start >= extent.span.end
    ]
    faults += [
        f"extent {extent.span}: {extent.dead} dead records, listed in {extent.dead_object}, {extent.records} others"
        for extent in extents
        if extent.records < 0 or extent.dead < 0 or (extent.dead > 0) != (extent.dead_object is not None)
    ]
    if partition.cleaned != normal(partition.cleaned):
        faults.append(f"cleaned ranges are not in order: {', '.join(map(str, partition.cleaned))}")
    faults += [
        f"cleaned range {span} is outside the log" for span in partition.cleaned if span.start < start or span.end > end
    ]
    spans = [known.span for known in partition.tombstones]
    if sum(span.end - span.start for span in spans) != sum(span.end - span.start for span in normal(spans)):
        faults.append("tombstone ranges overlap")
    faults += [f"tombstone range {span} is not cleaned" for span in without(spans, partition.cleaned)]
    return faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Extents for the end of one partition's log."""

    expected_next: int
    extents: tuple[Extent, ...]
    log_start: int | None = None
    """Where an empty log begins. In the same commit, because what lies below must never be served."""
    from_kafka: bool = False
    """Its offsets are those of a Kafka topic: refused once the lake has assigned offsets of its own."""
    remembered: frozenset[str] = frozenset()
    """Digests of its keys for which an erasure was ever requested."""


def no_topic(topic: str, topics: Iterable[str]) -> UsageError:
    """`topics`: the existing ones."""
    return UsageError(f"the lake has no topic {visible(topic) or repr(topic)}{instead(topic, topics, what='it has')}")


def expect_topics(wanted: Collection[str], topics: Collection[str]) -> None:
    for topic in sorted(wanted):
        if topic not in topics:
            raise no_topic(topic, topics)


def gone(topic_partition: TopicPartition) -> UsageError:
    return UsageError(f"the lake has no partition {topic_partition}")


class OtherVersion(UsageError):
    """The tables have another version than the program: nothing was changed."""
