"""The cleaner of a simulated broker: the rules of `retention/`, over a log in memory.

The same survey, range, index and verdicts as `headstone compact`; only the source of the bytes differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headstone.log.indexes import AbortedTxn
from headstone.log.layout import LENGTH_AT
from headstone.log.reading import Batches, Chunk, SegmentFile
from headstone.log.snapshots import ProducerEntry
from headstone.retention import keys
from headstone.retention.passes import CleaningPass, Indexer, Piece, PieceReader, PieceRewriter, bounded_end
from headstone.retention.policy import Policy
from headstone.retention.producers import PRODUCER, active_producers
from headstone.retention.ranges import clean_range, group_segments
from headstone.retention.survey import PartitionSurvey, SegmentSurvey, survey_partition
from headstone.sim.batches import Batch, decode
from headstone.sim.partition_log import PartitionLog, Rows, Segment, walk_bytes

HASH_KEY = keys.HashKey(0, 0)
"""A simulation must be deterministic, and no keys are forged in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """`reasons` counts by `verdicts.REASONS`."""

    dirty_start: int
    dirty_end: int
    reasons: tuple[int, ...]


class MemoryPieces(PieceReader):
    """Each segment of a log in memory is one piece; headers are walked once."""

    def __init__(self, log: PartitionLog) -> None:
        super().__init__()
        self._data: dict[int, tuple[bytes, Batches]] = {}
        self.files = []
        for segment in log.segments:
            raw = b"".join(batch.raw for batch in segment.batches)
            self._data[segment.base] = (raw, walk_bytes(raw, len(segment.batches)))
            self.files.append(
                SegmentFile(
                    base=segment.base, path=str(segment.base), size=len(raw), mtime_ms=0, index_bytes=0,
                    time_index_bytes=0,
                )
            )  # fmt: skip

    def walk(self, file: SegmentFile, previous: int) -> Iterator[Batches]:
        _, table = self._data[file.base]
        if table.size:
            yield table

    def pieces(self, segment: SegmentSurvey, *, backwards: bool) -> Iterator[Piece]:
        raw, table = self._data[segment.base]
        if table.size:
            counts = table["count"].astype(np.int64)
            chunk = Chunk(path=segment.file.path, position=0, data=np.frombuffer(raw, dtype=np.uint8), batches=table)
            yield Piece(
                chunk=chunk, roles=segment.roles(), ordinals=np.cumsum(counts) - counts, record=0,
                records=segment.records,
            )  # fmt: skip


def clean(log: PartitionLog, policy: Policy, *, debt: bool) -> Cleaned | None:
    """One pass; None if there is nothing to clean. `debt`: also clean a log that has no dirty part but may owe removals."""
    if not _worth_a_look(log, debt=debt):
        return None
    pieces = MemoryPieces(log)
    survey = survey_partition(
        pieces.files, log_start=log.log_start, high_watermark=log.high_watermark,
        snapshot=(log.log_end, _entries(log.producer_rows())),
        indexed_aborted=[entry for segment in log.segments for entry in segment.aborted], walk=pieces.walk,
    )  # fmt: skip
    cleaning = _pass_over(survey, log, policy, pieces, debt=debt)
    if cleaning is None:
        return None
    rewritten = [segment for segment in survey.segments[:-1] if segment.base < cleaning.dirty_end]
    if not rewritten:
        return None
    states = _judged(rewritten, cleaning, pieces)
    rewriter = PieceRewriter(cleaning)
    new = []
    for group in group_segments(rewritten, policy, uncleanable=cleaning.uncleanable):
        new.append(_rewrite(group, survey, states, rewriter, pieces, log))
    below = max(segment.base for segment in rewritten) + 1
    merged = {s.base for s in log.segments if s.base < below} - {segment.base for segment in new}
    log.replace_cleaned(new, below=below, first_dirty=cleaning.dirty_end)
    log.snapshots = {at: rows for at, rows in log.snapshots.items() if at not in merged}
    return Cleaned(
        dirty_start=cleaning.dirty_start, dirty_end=cleaning.dirty_end, reasons=tuple(int(n) for n in rewriter.reasons)
    )


def _worth_a_look(log: PartitionLog, *, debt: bool) -> bool:
    """A cheap check, so that most passes cost nothing: a new closed segment, or something clean that may have to go."""
    stable = log.last_stable_offset()
    if any(log.first_dirty < segment.base <= stable for segment in log.segments[1:]):
        return True
    if not debt:
        return False
    return any(
        batch.transactional or not batch.records or any(record.value is None for record in batch.records)
        for segment in log.segments[:-1] for batch in segment.batches
    )  # fmt: skip


def _entries(rows: Rows) -> list[ProducerEntry]:
    return [ProducerEntry(**{name: int(row[name]) for name in PRODUCER.names or ()}) for row in rows]


def _pass_over(
    survey: PartitionSurvey, log: PartitionLog, policy: Policy, pieces: MemoryPieces, *, debt: bool
) -> CleaningPass | None:
    chosen = clean_range(survey, policy, checkpoint=log.first_dirty)
    dirty_start, uncleanable = chosen.dirty_start, chosen.uncleanable
    if chosen.empty:
        if not debt:
            return None
        bound = max(min(dirty_start, survey.lso), survey.segments[0].base)
        dirty_start = uncleanable = max(segment.base for segment in survey.segments if segment.base <= bound)
    active = active_producers(
        survey.producers.rows, now_ms=policy.now_ms, expiration_ms=policy.producer_id_expiration_ms
    )
    cleaning = CleaningPass(
        policy=policy, hash_key=HASH_KEY, dirty_start=dirty_start, dirty_end=uncleanable, uncleanable=uncleanable,
        active=active,
    )  # fmt: skip
    if policy.index_keys_max is None or chosen.empty:
        return cleaning
    ends = [*(segment.base for segment in survey.segments[1:]), survey.log_end]
    dirty = [s for s, end in zip(survey.segments, ends, strict=True) if end > dirty_start and s.base < uncleanable]
    end, _ = bounded_end(dirty, cleaning, policy.index_keys_max, pieces)
    return CleaningPass(
        policy=policy, hash_key=HASH_KEY, dirty_start=dirty_start, dirty_end=end, uncleanable=uncleanable,
        active=active,
    )  # fmt: skip


def _judged(segments: list[SegmentSurvey], cleaning: CleaningPass, pieces: MemoryPieces) -> np.ndarray:
    """A state byte for every record, newest segment first."""
    last = segments[-1]
    states = np.zeros(last.record + last.records, dtype=np.uint8)
    table = keys.new_table(states.size)
    indexer = Indexer(cleaning)
    for segment in reversed(segments):
        for piece in pieces.pieces(segment, backwards=True):
            piece_states = states[segment.record : segment.record + segment.records]
            entries = indexer.index(piece, piece_states)
            dirty = entries.offsets >= cleaning.dirty_start
            keys.mark_newest(table, entries.digests, dirty, entries.ordinals, piece_states)
    return states


def _rewrite(
    group: list[SegmentSurvey], survey: PartitionSurvey, states: np.ndarray, rewriter: PieceRewriter,
    pieces: MemoryPieces, log: PartitionLog,
) -> Segment:  # fmt: skip
    before = {batch.base: batch for segment in log.segments for batch in segment.batches}
    made: list[Batch] = []
    for segment in group:
        for piece in pieces.pieces(segment, backwards=False):
            new = rewriter.rewrite(piece, states[segment.record : segment.record + segment.records])
            raw, position = new.data.tobytes(), 0
            for size in new.sizes.tolist():
                made.append(_batch(raw[position : position + size], before))
                position += size
    start, end = group[0].base, group[-1].next_offset
    return Segment(base=start, batches=made, aborted=_still_needed(survey.aborted_seen, start, end))


def _batch(raw: bytes, before: dict[int, Batch]) -> Batch:
    """Keeps the old batch object if nothing changed: batches are shared, not copied."""
    old = before[int.from_bytes(raw[:LENGTH_AT], "big")]
    return old if old.raw == raw else decode(raw)


def _still_needed(aborted: tuple[AbortedTxn, ...], start: int, end: int) -> list[AbortedTxn]:
    return [entry for entry in aborted if start <= entry.last_offset < end]
