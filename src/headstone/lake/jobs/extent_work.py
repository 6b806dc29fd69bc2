"""What one task of a compaction of the lake does: decides by lists of keys which records are dead, and writes the changes.

A task gets a share of a partition's extents. It reads the lists of the keys that decide, leaves extents that lose nothing,
marks the dead records of those that lose few, and rewrites the others. If the deciding keys are too many for a task, they go
through the buckets of `pipeline`, and a task gets the survivors of its run. A task returns all that a commit needs. Knows the
store, but no SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headstone import units
from headstone.errors import UsageError
from headstone.lake.format.dead import NONE, dead_bytes, is_live, living, merged, rewriter
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import (
    NO_KEYS,
    Halves,
    KeyList,
    Offsets,
    any_common,
    halves_bytes,
    rest_bytes,
    union,
)
from headstone.lake.format.objects import (
    ObjectWriter,
    Stored,
    keys_of_extent,
    read_chunk,
    read_dead,
    read_halves,
    read_keys,
    write_once,
)
from headstone.lake.format.spans import Span, Spans, touching
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline import buckets
from headstone.pipeline.progress import Meter
from headstone.retention import keys as index
from headstone.retention.keys import CODE_MASK, NEWEST, SUPERSEDED, TOMBSTONE, UNMAPPED, HashKey
from headstone.retention.verdicts import mark_survivors
from headstone.storage.stores import Store

States = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive extents. Their changes go into one object, whose id is registered."""

    object_id: str
    extents: tuple[Extent, ...]
    record: int
    """The ordinal of its first record."""

    @property
    def records(self) -> int:
        return sum(map(records_of, self.extents))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What all tasks of a partition share."""

    store: Store
    lake_id: str
    hash_key: HashKey
    topic_partition: TopicPartition
    index: Span | None
    """Keys of records in it decide over everything below its end. None: only tombstones go."""
    due: Spans
    """Ranges whose tombstones have had their time."""
    dead_share_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """`stored` None: nothing has changed, and there is no such object."""

    object_id: str
    stored: Stored | None
    rewritten: int
    marked: int
    tombstones: tuple[Span, ...]
    """Extents that were looked at and hold tombstones now."""
    bytes_read: int


def records_of(extent: Extent) -> int:
    """As many as its list has entries, or could have."""
    return max(extent.keys, extent.records + extent.dead)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentShare:
    """Runs that one task works on, and all extents that the index overlaps."""

    common: Pass
    runs: tuple[Run, ...]
    indexed: tuple[Extent, ...]


def compact_share(share: ExtentShare, meter: Meter) -> list[RunResult]:
    """The body of a task that has the deciding keys in memory."""
    lists = Lists(share.common)
    inside = {extent.span for run in share.runs for extent in run.extents}
    newer = NewerKeys(share.common.index, share.indexed, lists, kept=inside)
    results = []
    for run in share.runs:
        judged = {extent.span: newer.judged(extent) for extent in run.extents}
        results.append(write_run(share.common, run, judged, lists, meter))
    return results


@dataclass(frozen=True, slots=True, eq=False)
class JudgedExtent:
    """The list of an extent's keys, and their states. None: no key of it decides, and it was not read completely."""

    keys: KeyList
    states: States


class Lists:
    """Lists of keys and of dead records as a task reads them; counts the bytes."""

    def __init__(self, common: Pass) -> None:
        self.bytes_read = 0
        self._common = common

    def keys(self, extent: Extent, halves: Halves | None = None) -> KeyList:
        """Includes dead records. If offsets are too far apart for a list, their batches are read instead."""
        if not extent.length:
            return NO_KEYS
        if extent.keys < 0:
            self.bytes_read += extent.length
            keys = keys_of_extent(self._common.store, extent, self._common.hash_key)
            refuse_keyless(self._common.topic_partition, extent.records + extent.dead - keys.offsets.size)
            return keys
        if halves is None:
            halves = self.halves(extent)
        self.bytes_read += rest_bytes(extent.keys)
        return read_keys(self._common.store, extent, halves)

    def halves(self, extent: Extent) -> Halves:
        self.bytes_read += halves_bytes(extent.keys)
        return read_halves(self._common.store, extent)

    def dead(self, extent: Extent) -> Offsets:
        self.bytes_read += dead_bytes(extent.dead, extent.span)
        return read_dead(self._common.store, extent)


def refuse_keyless(topic_partition: TopicPartition, lost: int) -> None:
    """Compaction drops records without a key. A compacted topic should have none, so they were not meant to be lost."""
    if lost:
        raise UsageError(
            f"{topic_partition}: {units.count(lost, 'record')} without a key would be lost: this is not a compacted topic; "
            "nothing was changed"
        )


class NewerKeys:
    """The keys of a whole index in memory, and what they supersede. The rule is `mark_newest`'s."""

    def __init__(self, span: Span | None, indexed: Sequence[Extent], lists: Lists, *, kept: set[Span]) -> None:
        """`kept`: extents that will be asked for."""
        self._span = span
        self._lists = lists
        self._table = index.new_table(sum(map(records_of, indexed)))
        self._judged: dict[Span, JudgedExtent] = {}
        self._unsorted: list[Halves] = []
        self._halves: Halves | None = None
        for extent in reversed(indexed):
            keys = lists.keys(extent)
            states = marked(self._table, keys, span)
            self._unsorted.append(keys.digests[:, 0].copy())
            if extent.span in kept:
                self._judged[extent.span] = JudgedExtent(keys, states)

    def judged(self, extent: Extent) -> JudgedExtent | None:
        """For an extent below the index, or one that it overlaps."""
        if extent.span in self._judged or self._span is None or not extent.length:
            return self._judged.pop(extent.span, None)
        halves = None
        if extent.keys >= 0:
            halves = self._lists.halves(extent)
            if self._halves is None:
                self._halves = union(self._unsorted)
            if not any_common(halves, self._halves):
                return None
        keys = self._lists.keys(extent, halves)
        states = marked(self._table, keys, self._span)
        return JudgedExtent(keys, states)


def marked(table: npt.NDArray[np.uint64], keys: KeyList, span: Span | None) -> States:
    """A state for every entry of a list; the lists above it were marked before. From the end of the index on: unmapped."""
    states = np.where(keys.tombstones, np.uint8(TOMBSTONE), np.uint8(SUPERSEDED))
    below = keys.offsets.size if span is None else int(np.searchsorted(keys.offsets, span.end))
    states[below:] |= np.uint8(UNMAPPED)
    start = 0 if span is None else span.start
    ordinals = np.arange(below)
    index.mark_newest(table, keys.digests[:below], keys.offsets[:below] >= start, ordinals, states)
    return states


@dataclass(slots=True)
class _Changes:
    """What will be written for a run."""

    writes: list[tuple[Extent, KeyList, npt.NDArray[np.bool_]]] = field(default_factory=list)
    """With the keys of all its records, and which of them stay."""
    marks: list[tuple[Extent, Offsets]] = field(default_factory=list)
    tombstones: list[Span] = field(default_factory=list)


def write_run(
    common: Pass, run: Run, judged: Mapping[Span, JudgedExtent | None], lists: Lists, meter: Meter
) -> RunResult:
    """Leaves, marks or rewrites each extent. Hashes nothing again, and reads only what is rewritten."""
    changes = _Changes()
    for extent in run.extents:
        _look_at(common, extent, judged[extent.span], lists, changes)
        meter.add(extent.length, records_of(extent))
    stored = None
    if changes.writes or changes.marks:
        stored = write_once(
            common.store, run.object_id, common.lake_id, lambda writer: _fill(common, run, writer, changes, lists)
        )
    read, lists.bytes_read = lists.bytes_read, 0
    return RunResult(
        object_id=run.object_id, stored=stored, rewritten=len(changes.writes), marked=len(changes.marks),
        tombstones=tuple(changes.tombstones), bytes_read=read,
    )  # fmt: skip


def _look_at(common: Pass, extent: Extent, judged: JudgedExtent | None, lists: Lists, changes: _Changes) -> None:
    """Dead are records that do not survive the rules of `retention`, and those that were dead before."""
    due = touching(common.due, extent.span)
    if judged is None and due and extent.length:
        keys = lists.keys(extent)
        judged = JudgedExtent(keys, np.where(keys.tombstones, np.uint8(NEWEST | TOMBSTONE), np.uint8(NEWEST)))
    if judged is None:
        return
    keys, dead_before = judged.keys, lists.dead(extent) if extent.dead else NONE
    gone = ~_stays(judged.states, _within(keys.offsets, due))
    live = is_live(keys.offsets, dead_before)
    if bool((keys.tombstones & live & ~gone).any()):
        changes.tombstones.append(extent.span)
    gets_list = extent.keys < 0 and keys.fits  # once: without a list every pass would have to read its batches
    if not gets_list and not bool((gone & live).any()):
        return
    dead = merged(dead_before, keys.offsets[gone])
    if gets_list or dead.size > common.dead_share_max * (extent.records + extent.dead):
        changes.writes.append((extent, keys, live & ~gone))
    else:
        changes.marks.append((extent, dead))


def _stays(states: States, expired: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    stays = np.empty(states.size, dtype=np.bool_)
    mark_survivors(states, expired, stays)
    return stays


def _within(offsets: Offsets, spans: Spans) -> npt.NDArray[np.bool_]:
    inside = np.zeros(offsets.size, dtype=np.bool_)
    for span in spans:
        inside[np.searchsorted(offsets, span.start) : np.searchsorted(offsets, span.end)] = True
    return inside


def _fill(common: Pass, run: Run, writer: ObjectWriter, changes: _Changes, lists: Lists) -> None:
    """In the order of the log."""
    topic, number = common.topic_partition.topic, common.topic_partition.number
    marks = {extent.span: dead for extent, dead in changes.marks}
    writes = {extent.span: (keys, stay) for extent, keys, stay in changes.writes}
    shared = rewriter()
    for extent in run.extents:
        if extent.span in marks:
            writer.mark(topic, number, extent, marks[extent.span])
        elif extent.span in writes:
            keys, stay = writes[extent.span]
            lists.bytes_read += extent.length
            chunk = read_chunk(common.store, extent)
            live = living(chunk, stay, shared)
            writer.add(
                topic, number, extent.span, [live.data] if live.data else [], records=live.records,
                max_timestamp_ms=live.newest_ms, oldest_timestamp_ms=extent.oldest_timestamp_ms,
                keys=keys.only(stay),
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentUnit:
    """Extents whose keys one task sends to the buckets. `record` is the ordinal of the first record."""

    common: Pass
    extents: tuple[Extent, ...]
    record: int

    @property
    def size(self) -> int:
        return 0  # reads are counted where it is rewritten

    def index(self, bucket_count: int, meter: Meter) -> tuple[list[bytes], int]:
        table = index.new_table(sum(map(records_of, self.extents)))
        lists, parts, lost = Lists(self.common), [], 0
        record = self.record + sum(map(records_of, self.extents))
        for extent in reversed(self.extents):
            record -= records_of(extent)
            keys = lists.keys(extent)
            states = marked(table, keys, self.common.index)
            mapped = np.flatnonzero(states & CODE_MASK != UNMAPPED)
            dirty = keys.offsets[mapped] >= (0 if self.common.index is None else self.common.index.start)
            part, gone = buckets.survivors(keys.digests[mapped], dirty, mapped, states, record)
            parts.append(part)
            lost += gone
        return buckets.split(parts, bucket_count), lost


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAlone:
    """One run, for the task that gets its survivors."""

    common: Pass
    run: Run

    def rewrite(self, blobs: Sequence[bytes], meter: Meter, *, keys_found: int, tombstones_lost: int) -> RunResult:
        states = np.zeros(self.run.records, dtype=np.uint8)
        for blob in blobs:
            buckets.apply(blob, states)
        lists, first = Lists(self.common), 0
        judged: dict[Span, JudgedExtent | None] = {}
        for extent in self.run.extents:
            extent_states = states[first : first + records_of(extent)]
            first += records_of(extent)
            if not extent.length:
                judged[extent.span] = None
                continue
            keys = lists.keys(extent)
            judged[extent.span] = JudgedExtent(keys, extent_states[: keys.offsets.size])
        return write_run(self.common, self.run, judged, lists, meter)


UNIT_RECORDS = 4 << 20
"""Entries that a task sends to the buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitExtents:
    """A partition whose keys are too many for a task: `pipeline.splitting.Splittable`."""

    common: Pass
    runs: tuple[Run, ...]

    @property
    def records(self) -> int:
        return self.runs[-1].record + self.runs[-1].records

    @property
    def group_edges(self) -> tuple[int, ...]:
        return (*(run.record for run in self.runs), self.records)

    def units(self) -> list[ExtentUnit]:
        return list(self._units())

    def _units(self) -> Iterator[ExtentUnit]:
        extents: list[Extent] = []
        first = size = 0
        for extent in (extent for run in self.runs for extent in run.extents):
            if extents and size + records_of(extent) > UNIT_RECORDS:
                yield ExtentUnit(common=self.common, extents=tuple(extents), record=first)
                first, size = first + size, 0
                extents = []
            extents.append(extent)
            size += records_of(extent)
        yield ExtentUnit(common=self.common, extents=tuple(extents), record=first)

    def parts(self) -> list[RunAlone]:
        return [RunAlone(common=self.common, run=run) for run in self.runs]
