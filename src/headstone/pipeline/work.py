"""What one task does: the bodies of the stages, over files and arrays. Knows nothing about Spark.

A whole partition in one task, or in three steps: index a run of segments, find the newest of a bucket of keys, rewrite a group
of segments. Outputs are written beside their final place under a name of this attempt; the driver commits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.errors import Unfinished
from headstone.log.indexes import AbortedTxn
from headstone.pipeline import buckets
from headstone.pipeline.outputs import OutputSegment, OutputWriter
from headstone.pipeline.progress import Meter
from headstone.retention import keys
from headstone.retention.passes import (
    CleaningPass,
    Indexer,
    Piece,
    PieceReader,
    PieceRewriter,
    States,
    bounded_end,
)
from headstone.retention.survey import SegmentSurvey
from headstone.storage.places import Place

UNIT_BYTES = 128 << 20
"""Bytes of log that one index task of the shuffle path reads: its entries are about a tenth of that."""
UNIT_RECORDS = 16 << 20
"""Records that it reads at most; each needs room in the task's table. Compressed ones may take almost no bytes of log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """Source segments that become one output segment, and the `.txnindex` entries it will have."""

    segments: tuple[SegmentSurvey, ...]
    aborted: tuple[AbortedTxn, ...]

    @property
    def base(self) -> int:
        return self.segments[0].base

    @property
    def record(self) -> int:
        return self.segments[0].record

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWork:
    path: str
    """The partition directory."""
    cleaning: CleaningPass
    groups: tuple[GroupWork, ...]
    dirty_records: int
    """Records at or after dirty_start: no more keys than that can be in the table."""
    work_dir: Place

    @property
    def segments(self) -> list[SegmentSurvey]:
        return [segment for group in self.groups for segment in group.segments]

    @property
    def group_edges(self) -> tuple[int, ...]:
        """The ordinals where the groups begin, and where the last one ends."""
        return (*(group.record for group in self.groups), self.groups[-1].record + self.groups[-1].records)

    @property
    def size(self) -> int:
        return sum(group.size for group in self.groups)

    @property
    def records(self) -> int:
        return sum(group.records for group in self.groups)

    def units(self) -> list[IndexUnit]:
        return index_units(self)

    def parts(self) -> list[GroupAlone]:
        return [GroupAlone(work=replace(self, groups=(group,))) for group in self.groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What became of a group: one output segment, or more if it grew beyond what one can hold."""

    outputs: tuple[OutputSegment, ...]
    bytes_read: int
    reasons: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task returns to the driver; `tombstones_lost` are superseded ones that the rewrite never saw."""

    groups: tuple[GroupResult, ...]
    keys: int = 0
    tombstones_lost: int = 0
    seconds: float = 0.0


def answers(outcomes: Sequence[Any]) -> list[Any]:
    """What tasks answered. Raises an error among them, bad data before unfinished work."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    for error in sorted(errors, key=lambda error: isinstance(error, Unfinished)):
        raise error
    return list(outcomes)


def compact_whole(work: PartitionWork, meter: Meter) -> TaskResult:
    """Index, deduplicate and rewrite one partition whose keys fit into memory."""
    started = time.monotonic()
    states = np.zeros(work.records, dtype=np.uint8)
    key_count = mark_all(work, states, meter)
    rewriter, reader = PieceRewriter(work.cleaning), PieceReader()
    groups = []
    for group in work.groups:
        group_states = states[group.record : group.record + group.records]
        groups.append(write_group(work, group, group_states, rewriter, reader, meter))
    return TaskResult(groups=tuple(groups), keys=key_count, seconds=time.monotonic() - started)


def bounded_map(task: tuple[list[SegmentSurvey], CleaningPass, int], meter: Meter) -> int:
    """Where Kafka's bounded offset map is full: the end of the range that this compaction maps."""
    segments, cleaning, keys_max = task
    return bounded_end(segments, cleaning, keys_max)[0]


def mark_all(work: PartitionWork, states: States, meter: Meter) -> int:
    """Indexes the whole partition, newest chunk first; returns the number of keys mapped."""
    table = keys.new_table(work.dirty_records)
    reader, indexer = PieceReader(), Indexer(work.cleaning)
    key_count = 0
    for segment in reversed(work.segments):
        for piece in reader.pieces(segment, backwards=True):
            first = segment.record + piece.record
            piece_states = states[first : first + piece.records]
            entries = indexer.index(piece, piece_states)
            dirty = entries.offsets >= work.cleaning.dirty_start
            key_count += keys.mark_newest(table, entries.digests, dirty, entries.ordinals, piece_states)
            meter.add(piece.chunk.data.size, 0)
    return key_count


def write_group(
    work: PartitionWork, group: GroupWork, states: States, rewriter: PieceRewriter, reader: PieceReader, meter: Meter
) -> GroupResult:
    before = rewriter.reasons.copy()
    with OutputWriter(work.work_dir, group.base, work.cleaning.policy.index_interval_bytes) as writer:
        for piece, piece_states in _pieces_with_states(group, states, reader):
            writer.append(rewriter.rewrite(piece, piece_states))
            meter.add(piece.chunk.data.size, piece.records)
        outputs = writer.finish(group.aborted, group.segments[-1].file.mtime_ms)
    return GroupResult(
        outputs=tuple(outputs), bytes_read=group.size, reasons=tuple(int(n) for n in rewriter.reasons - before)
    )


def _pieces_with_states(group: GroupWork, states: States, reader: PieceReader) -> Iterator[tuple[Piece, States]]:
    for segment in group.segments:
        first = segment.record - group.record
        for piece in reader.pieces(segment, backwards=False):
            start = first + piece.record
            yield piece, states[start : start + piece.records]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUnit:
    """Consecutive chunks of one partition that one index task reads; a segment here may be a part of one."""

    cleaning: CleaningPass
    segments: tuple[SegmentSurvey, ...]

    @property
    def size(self) -> int:
        return sum(int(segment.cuts[-1]["position"] - segment.cuts[0]["position"]) for segment in self.segments)

    def index(self, bucket_count: int, meter: Meter) -> tuple[list[bytes], int]:
        """Local dedupe, newest first: entries split by bucket, and the tombstones lost to newer records here."""
        table = keys.new_table(sum(int(s.cuts[-1]["record"] - s.cuts[0]["record"]) for s in self.segments))
        reader, indexer = PieceReader(), Indexer(self.cleaning)
        parts: list[buckets.Rows] = []
        lost = 0
        for segment in reversed(self.segments):
            for piece in reader.pieces(segment, backwards=True):
                states = np.zeros(piece.records, dtype=np.uint8)
                entries = indexer.index(piece, states)
                dirty = entries.offsets >= self.cleaning.dirty_start
                keys.mark_newest(table, entries.digests, dirty, entries.ordinals, states)
                part, lost_here = buckets.survivors(
                    entries.digests, dirty, entries.ordinals, states, segment.record + piece.record
                )
                parts.append(part)
                lost += lost_here
                meter.add(piece.chunk.data.size, 0)
        return buckets.split(parts, bucket_count), lost


def index_units(work: PartitionWork) -> list[IndexUnit]:
    units: list[list[SegmentSurvey]] = []
    room = room_records = 0
    for segment in work.segments:
        for part in _parts(segment):
            size, records = (int(part.cuts[-1][name] - part.cuts[0][name]) for name in ("position", "record"))
            if size > room or records > room_records:
                units.append([])
                room, room_records = UNIT_BYTES, UNIT_RECORDS
            units[-1].append(part)
            room, room_records = room - size, room_records - records
    return [IndexUnit(cleaning=work.cleaning, segments=tuple(unit)) for unit in units]


def _parts(segment: SegmentSurvey) -> Iterator[SegmentSurvey]:
    """The segment, or runs of its chunks if it is larger than a unit."""
    positions, records = segment.cuts["position"], segment.cuts["record"]
    start = 0
    while start < positions.size - 1:
        by_bytes = int(np.searchsorted(positions, positions[start] + UNIT_BYTES, side="right")) - 1
        by_records = int(np.searchsorted(records, records[start] + UNIT_RECORDS, side="right")) - 1
        end = max(min(by_bytes, by_records), start + 1)
        yield replace(segment, cuts=segment.cuts[start : end + 1])
        start = end


def newest_of_bucket(blobs: Sequence[bytes], edges: npt.NDArray[np.int64]) -> tuple[list[bytes], int, int]:
    """All entries of one bucket, newest unit first: survivors per rewrite group, keys, tombstones lost."""
    rows = [np.frombuffer(blob, dtype=np.uint64).reshape(-1, 3) for blob in blobs]
    table = keys.new_table(sum(len(part) for part in rows))
    words, key_count, lost = [], 0, 0
    for part in rows:
        survivors = np.zeros(len(part), dtype=np.uint64)
        n, added, gone = buckets.race(table, part, survivors)
        words.append(survivors[:n])
        key_count, lost = key_count + added, lost + gone
    return buckets.by_group(np.concatenate([np.zeros(0, np.uint64), *words]), edges), key_count, lost


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAlone:
    """One group of a partition, for the third step."""

    work: PartitionWork
    """With only this group."""

    def rewrite(self, blobs: Sequence[bytes], meter: Meter, *, keys_found: int, tombstones_lost: int) -> TaskResult:
        """The survivors of this group from every bucket, applied."""
        (group,) = self.work.groups
        states = np.zeros(group.records, dtype=np.uint8)
        for blob in blobs:
            buckets.apply(blob, states)
        result = write_group(self.work, group, states, PieceRewriter(self.work.cleaning), PieceReader(), meter)
        return TaskResult(groups=(result,), keys=keys_found, tombstones_lost=tombstones_lost)
