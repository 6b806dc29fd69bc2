"""What the batch headers of one partition tell: segments, producers, transactions, LSO, where to cut the work.

Two walks over headers at most: one for producers and sizes, a second one for transaction roles if there are any transactions.
Reads through the given walk; decides nothing about records.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.errors import CorruptLog
from headstone.log.indexes import AbortedTxn
from headstone.log.layout import CONTROL, NOT_CONTROL, TRANSACTIONAL
from headstone.log.reading import Batches, SegmentFile, walk_segment
from headstone.log.snapshots import ProducerEntry
from headstone.retention.producers import ProducerState
from headstone.retention.transactions import OpenTxn, Roles, Tracker, merged_aborted

CUT = np.dtype([("position", "i8"), ("record", "i8"), ("batch", "i8"), ("seal", "u8"), ("offset", "i8")])
"""A batch boundary in a segment: file position; records, batches and the sum of `seals` of the segment before it; and the base
offset of the batch after it, or the segment's next offset at its end."""

CHUNK_BYTES = 2 << 20
"""Work is cut into chunks of about this size: large enough for a kernel call, small enough for the processor's cache."""

CHUNK_RECORDS = 4 << 20
"""And at most about this many records: compressed ones may be far smaller on disk than a task's memory for each."""

SEAL_CRC, SEAL_OFFSET, SEAL_EPOCH = (
    np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
)
"""Odd constants that spread what is sealed over 64 bits."""

REPLAY_BATCHES = 1 << 16

Walk = Callable[[SegmentFile, int], Iterator[Batches]]


def seals(batches: Batches) -> npt.NDArray[np.uint64]:
    """A number for each batch that stands for all its bytes: its checksum, and the fields that the checksum does not cover.

    The sums are compared between the reads of a file, to make sure that each read gets what was planned."""
    crc, base, size, epoch = (
        batches[name].astype(np.uint64) for name in ("crc", "base_offset", "size", "leader_epoch")
    )
    mixed = (crc << np.uint64(32) | size) * SEAL_CRC ^ (base + np.uint64(1)) * SEAL_OFFSET ^ epoch * SEAL_EPOCH
    sealed: npt.NDArray[np.uint64] = mixed ^ mixed >> np.uint64(29)
    return sealed


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSurvey:
    """One segment's facts; `record` is the partition-wide ordinal of its first record."""

    file: SegmentFile
    records: int
    batches: int
    record: int
    first_batch_timestamp: int
    largest_timestamp: int
    next_offset: int
    header_only: int
    codecs: tuple[int, ...]
    cuts: npt.NDArray[Any]
    packed_roles: bytes | None = None

    @property
    def base(self) -> int:
        return self.file.base

    @property
    def size(self) -> int:
        return self.file.size

    def roles(self) -> Roles:
        if self.packed_roles is None:
            return np.zeros(self.batches, dtype=np.uint8)
        return np.frombuffer(zlib.decompress(self.packed_roles), dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSurvey:
    segments: tuple[SegmentSurvey, ...]
    log_start: int
    log_end: int
    high_watermark: int
    lso: int
    producers: ProducerState
    open_txns: tuple[OpenTxn, ...]
    aborted: tuple[AbortedTxn, ...]
    aborted_seen: tuple[AbortedTxn, ...]
    aborted_lost: int
    """Aborted transactions missing in every `.txnindex`: Kafka itself would serve them as committed."""
    first_transactional: int | None
    """Base offset of the first transactional data batch: MXFO ends there."""

    @property
    def active(self) -> SegmentSurvey:
        return self.segments[-1]


@dataclass(slots=True)
class _SegmentTally:
    """Gathers one segment's facts table by table."""

    records: int = 0
    batches: int = 0
    first_batch_timestamp: int = -1
    largest_timestamp: int = -1
    next_offset: int = -1
    header_only: int = 0
    codecs: set[int] = field(default_factory=set)
    seal: int = 0
    cuts: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def add(self, table: Batches) -> None:
        if self.batches == 0:
            self.first_batch_timestamp = int(table[0]["max_timestamp"])
        before = np.cumsum(table["count"], dtype=np.int64) - table["count"]
        sealed = np.concatenate([np.zeros(1, np.uint64), np.cumsum(seals(table))]) + np.uint64(self.seal)
        cut = self._next_cut(table, before)
        while cut < table.size:
            position, record = int(table[cut]["position"]), self.records + int(before[cut])
            offset = int(table[cut]["base_offset"])
            self.cuts.append((position, record, self.batches + cut, int(sealed[cut]), offset))
            cut = self._next_cut(table, before)
        self.seal = int(sealed[-1])
        self.records += int(before[-1]) + int(table[-1]["count"])
        self.batches += table.size
        self.largest_timestamp = max(self.largest_timestamp, int(table["max_timestamp"].max()))
        self.next_offset = int(table[-1]["last_offset"]) + 1
        self.header_only += int(np.count_nonzero(table["count"] == 0))
        self.codecs.update(np.unique(table["codec"]).tolist())

    def _next_cut(self, table: Batches, before: npt.NDArray[np.int64]) -> int:
        """The row of the table that begins the next chunk; its size if none does."""
        if not self.cuts:
            return 0
        position, record, _, _, _ = self.cuts[-1]
        by_bytes = np.searchsorted(table["position"], position + CHUNK_BYTES)
        by_records = np.searchsorted(before, record + CHUNK_RECORDS - self.records)
        return int(min(by_bytes, by_records))

    def survey(self, file: SegmentFile, record: int) -> SegmentSurvey:
        following = self.next_offset if self.batches else file.base
        cuts = np.array([*self.cuts, (file.size, self.records, self.batches, self.seal, following)], dtype=CUT)
        return SegmentSurvey(
            file=file, records=self.records, batches=self.batches, record=record,
            first_batch_timestamp=self.first_batch_timestamp, largest_timestamp=self.largest_timestamp,
            next_offset=following, header_only=self.header_only,
            codecs=tuple(sorted(self.codecs)), cuts=cuts,
        )  # fmt: skip


def walk_file(file: SegmentFile, previous: int) -> Iterator[Batches]:
    return walk_segment(file.path, base=file.base, previous=previous, access=file.access, size=file.size)


def survey_partition(
    files: Sequence[SegmentFile],
    *,
    log_start: int | None,
    high_watermark: int | None,
    snapshot: tuple[int, Sequence[ProducerEntry]] | None,
    indexed_aborted: Sequence[AbortedTxn],
    walk: Walk = walk_file,
) -> PartitionSurvey:
    """`snapshot` is (offset, entries): the state of everything below that offset; None replays the whole log."""
    history = _History(snapshot, high_watermark)
    segments = _first_walk(files, walk, history)
    log_end = max(segments[-1].next_offset, segments[-1].base)
    high = log_end if high_watermark is None else min(high_watermark, log_end)
    current, replayed = history.finished(high)
    open_txns = tuple(
        OpenTxn(producer_id=int(row["producer_id"]), first_offset=int(row["txn_first_offset"]))
        for row in current.open_transactions()
    )
    aborted, lost = merged_aborted(indexed_aborted, replayed)
    seen: list[AbortedTxn] = []
    if history.has_transactions:
        tracker = Tracker(aborted, open_txns, history.producer_ids)
        segments = _second_walk(segments, walk, tracker)
        seen = tracker.seen_aborted()
    return PartitionSurvey(
        segments=tuple(segments), log_start=files[0].base if log_start is None else max(log_start, files[0].base),
        log_end=log_end, high_watermark=high, lso=current.last_stable_offset(log_end), producers=current,
        open_txns=open_txns, aborted=tuple(aborted), aborted_seen=tuple(seen), aborted_lost=lost,
        first_transactional=history.first_transactional,
    )  # fmt: skip


class _History:
    """Two replays in one walk: of the whole log for finished transactions, and from the snapshot for what is now."""

    def __init__(self, snapshot: tuple[int, Sequence[ProducerEntry]] | None, high_watermark: int | None) -> None:
        limit = 2**63 - 1 if high_watermark is None else high_watermark
        self.whole = ProducerState(high_watermark=limit)
        self.since = None if snapshot is None else ProducerState.starting_from(snapshot[1], high_watermark=limit)
        self.since_offset = 0 if snapshot is None else snapshot[0]
        self.producer_ids: set[int] = set()
        self.has_transactions = False
        self.first_transactional: int | None = None
        self._waiting: list[Batches] = []
        self._batches = 0

    def add(self, table: Batches) -> None:
        """Replays many tables together: each new producer makes the state be sorted anew, and segments may be tiny."""
        self._waiting.append(table.copy())
        self._batches += table.size
        if self._batches >= REPLAY_BATCHES:
            self._replay()

    def _replay(self) -> None:
        if not self._waiting:
            return
        table = np.concatenate(self._waiting)
        self._waiting, self._batches = [], 0
        ids = table["producer_id"]
        self.has_transactions |= bool((table["attributes"] & (TRANSACTIONAL | CONTROL)).any())
        if not (ids >= 0).any():
            return
        self.producer_ids.update(np.unique(ids[ids >= 0]).tolist())
        data = np.flatnonzero((table["attributes"] & TRANSACTIONAL != 0) & (table["control_type"] == NOT_CONTROL))
        if data.size and self.first_transactional is None:
            self.first_transactional = int(table[data[0]]["base_offset"])
        self.whole.replay(table)
        if self.since is not None:
            self.since.replay(table[table["base_offset"] >= self.since_offset])

    def finished(self, high_watermark: int) -> tuple[ProducerState, list[AbortedTxn]]:
        self._replay()
        current = self.whole if self.since is None else self.since
        current.high_watermark = high_watermark
        current.completed = self.whole.completed
        return current, self.whole.aborted()


def _first_walk(files: Sequence[SegmentFile], walk: Walk, history: _History) -> list[SegmentSurvey]:
    segments: list[SegmentSurvey] = []
    previous, record = files[0].base - 1, 0
    for file in files:
        if segments and file.base <= previous:
            raise CorruptLog(
                file=file.path, position=0, offset=file.base,
                problem=f"the segment begins inside the one before, which goes up to offset {previous}",
                advice="restore both files from a replica",
            )  # fmt: skip
        tally = _SegmentTally()
        for table in walk(file, previous):
            tally.add(table)
            history.add(table)
        segments.append(tally.survey(file, record))
        previous, record = max(previous, segments[-1].next_offset - 1), record + tally.records
    return segments


def _second_walk(segments: Sequence[SegmentSurvey], walk: Walk, tracker: Tracker) -> list[SegmentSurvey]:
    done = []
    for segment in segments:
        roles = [tracker.roles(table) for table in walk(segment.file, segment.base - 1)]
        packed = zlib.compress(np.concatenate(roles).tobytes(), 1) if roles else None
        done.append(replace(segment, packed_roles=packed))
    return done
