"""Owns Segment and AbortedTxn as values, and how the two indexes of a segment follow from its batches.

Knows nothing of files, nor of which batches ought to be in a segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.batches import Batch, to_bytes

INDEX_INTERVAL_BYTES = 4096
INDEX_ENTRY_BYTES = 8
TIME_INDEX_ENTRY_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTxn:
    producer_id: int
    first_offset: int
    last_offset: int
    lso: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """`index` holds (offset, position), `time_index` (timestamp, offset), both absolute."""

    base: int
    batches: tuple[Batch, ...]
    mtime_ms: int
    index: tuple[tuple[int, int], ...] = ()
    time_index: tuple[tuple[int, int], ...] = ()
    aborted: tuple[AbortedTxn, ...] = ()

    @property
    def size(self) -> int:
        return sum(len(to_bytes(batch)) for batch in self.batches)

    @property
    def index_bytes(self) -> int:
        return len(self.index) * INDEX_ENTRY_BYTES

    @property
    def time_index_bytes(self) -> int:
        return len(self.time_index) * TIME_INDEX_ENTRY_BYTES

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.base

    @property
    def largest_timestamp(self) -> int:
        largest = max((batch.max_timestamp for batch in self.batches), default=-1)
        return largest if largest >= 0 else self.mtime_ms

    def batches_from(self, offset: int) -> list[Batch]:
        """The batches a scan meets that starts at the index position for `offset`."""
        start = max((position for entry, position in self.index if entry <= offset), default=0)
        met, position = [], 0
        for batch in self.batches:
            if position >= start:
                met.append(batch)
            position += len(to_bytes(batch))
        return met


def make_segment(*, base: int, batches: list[Batch], mtime_ms: int, aborted: list[AbortedTxn] | None = None) -> Segment:
    """A closed segment, indexed batch by batch as Kafka's segment recovery does."""
    index: list[tuple[int, int]] = []
    time_index: list[tuple[int, int]] = []
    position = indexed_at = 0
    newest = (-1, base)
    for batch in batches:
        if batch.max_timestamp > newest[0]:
            newest = (batch.max_timestamp, batch.last_offset)
        if position - indexed_at > INDEX_INTERVAL_BYTES:
            index.append((batch.last_offset, position))
            _append_newer(time_index, newest)
            indexed_at = position
        position += len(to_bytes(batch))
    _append_newer(time_index, newest)
    return Segment(
        base=base,
        batches=tuple(batches),
        mtime_ms=mtime_ms,
        index=tuple(index),
        time_index=tuple(time_index),
        aborted=tuple(aborted or ()),
    )


def _append_newer(time_index: list[tuple[int, int]], entry: tuple[int, int]) -> None:
    if entry[0] > (time_index[-1][0] if time_index else -1):
        time_index.append(entry)
