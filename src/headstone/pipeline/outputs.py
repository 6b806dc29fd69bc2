"""Writes the output segments of one group: bytes, indexes and abort entries, under a name of this attempt.

A group is planned to fit one segment, but stamped tombstones make batches longer. If it would outgrow what Kafka can address,
it continues in a second segment. Knows nothing about verdicts; the driver gives the files their final names.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headstone.log.directory import INDEX, LOG, TIME_INDEX, TXN_INDEX, numbered
from headstone.log.indexes import AbortedTxn, IndexBuilder, aborted_bytes
from headstone.retention.rewrite import RewrittenChunk
from headstone.storage.places import Place
from headstone.storage.uploads import open_upload, write_whole

SEGMENT_BYTES_MAX = (1 << 31) - 1
"""Positions in `.index` are Java ints, and a broker does not open a longer file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSegment:
    """One segment as written; `attempt` names its files until the driver commits them."""

    base: int
    attempt: str
    size: int
    records: int
    next_offset: int
    largest_timestamp: int
    mtime_ms: int
    suffixes: tuple[str, ...]


class _Writing:
    """The segment that batches are appended to."""

    def __init__(self, directory: Place, base: int, index_interval_bytes: int) -> None:
        self.base = base
        self.attempt = secrets.token_hex(6)
        self.size = 0
        self.records = 0
        self.next_offset = base
        self._directory = directory
        self._index = IndexBuilder(base, index_interval_bytes)
        self._upload = open_upload(self._place(LOG))

    def fitting(self, sizes: np.ndarray) -> int:
        """How many of the batches it can take; at least one if it is empty."""
        fits = int(np.searchsorted(np.cumsum(sizes), SEGMENT_BYTES_MAX - self.size, side="right"))
        return fits if self.size else max(fits, 1)

    def append(self, new: RewrittenChunk, start: int, end: int) -> None:
        """The batches numbered [start, end) of a chunk."""
        if start == end:
            return
        first = int(new.sizes[:start].sum())
        size = int(new.sizes[start:end].sum())
        self._upload.write(new.data[first : first + size].data)
        self._index.append(new.sizes[start:end], new.lasts[start:end], new.stamps[start:end])
        self.size += size
        self.records += int(new.counts[start:end].sum())
        self.next_offset = int(new.lasts[end - 1]) + 1

    def finish(self, aborted: Sequence[AbortedTxn], mtime_ms: int) -> OutputSegment:
        self._upload.finish()
        files = {INDEX: self._index.offset_index(), TIME_INDEX: self._index.time_index()}
        if aborted:
            files[TXN_INDEX] = aborted_bytes(aborted)
        for suffix, content in files.items():
            write_whole(self._place(suffix), content)
        log = self._place(LOG)
        if isinstance(log, Path):
            os.utime(log, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))
        return OutputSegment(
            base=self.base, attempt=self.attempt, size=self.size, records=self.records, next_offset=self.next_offset,
            largest_timestamp=self._index.largest_timestamp, mtime_ms=mtime_ms, suffixes=(LOG, *files),
        )  # fmt: skip

    def abandon(self) -> None:
        self._upload.abandon()

    def _place(self, suffix: str) -> Place:
        return attempt_path(self._directory, self.base, suffix, self.attempt)


class OutputWriter:
    """A context manager: takes rewritten chunks in order; `finish` returns the segments."""

    def __init__(self, directory: Place, base: int, index_interval_bytes: int) -> None:
        self._directory = directory
        self._interval = index_interval_bytes
        self._segments = [_Writing(directory, base, index_interval_bytes)]

    def append(self, new: RewrittenChunk) -> None:
        start = 0
        while start < new.sizes.size:
            end = start + self._segments[-1].fitting(new.sizes[start:])
            self._segments[-1].append(new, start, end)
            if end < new.sizes.size:
                self._segments.append(_Writing(self._directory, self._segments[-1].next_offset, self._interval))
            start = end

    def finish(self, aborted: Sequence[AbortedTxn], mtime_ms: int) -> list[OutputSegment]:
        """Each abort entry goes with the segment that has its marker, or had it."""
        done = []
        for i, segment in enumerate(self._segments):
            start = segment.base if i else -1
            end = self._segments[i + 1].base if i + 1 < len(self._segments) else None
            entries = [e for e in aborted if e.last_offset >= start and (end is None or e.last_offset < end)]
            done.append(segment.finish(entries, mtime_ms))
        return done

    def __enter__(self) -> OutputWriter:
        return self

    def __exit__(self, *why: object) -> None:
        for segment in self._segments:
            segment.abandon()


def attempt_path(directory: Place, base: int, suffix: str, attempt: str) -> Place:
    return directory / f"{numbered(base, suffix)}.{attempt}"
