"""Runs of offsets that are consecutive both in the lake and in a restored topic: built as records pass, a few bytes each.

A compacted log may have as many runs as records, and there may be billions. So runs are packed in chunks as soon as they are
complete, and unpacked one chunk at a time, wherever they are used. Knows nothing about files and clusters.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Run = tuple[int, int, int]
"""First offset in the lake, first offset in the topic, number of consecutive offsets."""
Rows = npt.NDArray[np.int64]
"""One run per row."""

RUNS_PER_CHUNK = 1 << 14
OFFSETS_AT_ONCE = 1 << 16
NO_ROWS: Rows = np.empty((0, 3), np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """In the order of offsets. Every chunk but the last has RUNS_PER_CHUNK of them: the same runs are the same bytes."""

    packed: tuple[bytes, ...] = ()

    def chunks(self) -> Iterator[Rows]:
        for chunk in self.packed:
            steps = np.frombuffer(zlib.decompress(chunk), np.int64).reshape(3, -1)
            yield np.cumsum(steps, axis=1).T

    def __iter__(self) -> Iterator[Run]:
        for rows in self.chunks():
            yield from map(tuple, rows.tolist())


def runs_in(rows: Rows) -> Runs:
    starts = range(0, len(rows), RUNS_PER_CHUNK)
    return Runs(packed=tuple(_packed(rows[start : start + RUNS_PER_CHUNK]) for start in starts))


def packed_runs(pieces: Iterable[Rows]) -> Runs:
    """From complete runs in pieces of any size: the same as if they came at once."""
    packed, left = list[bytes](), NO_ROWS
    for rows in pieces:
        left = np.concatenate((left, rows))
        whole = len(left) // RUNS_PER_CHUNK * RUNS_PER_CHUNK
        packed += runs_in(left[:whole]).packed
        left = left[whole:]
    return Runs(packed=(*packed, *runs_in(left).packed))


def _packed(rows: Rows) -> bytes:
    """Steps from run to run are small, so most of their bytes are zero."""
    return zlib.compress(np.diff(rows.T, axis=1, prepend=0).tobytes(), 1)


class GrowingRuns:
    """Of records sent one after the other, the first of them to the offset `base`."""

    def __init__(self, base: int) -> None:
        self._position = base
        self._offsets = array("q")
        self._rows = NO_ROWS
        """Those that are not packed yet; the last may still grow."""
        self._packed: list[bytes] = []

    def put(self, offset: int) -> None:
        self._offsets.append(offset)
        if len(self._offsets) == OFFSETS_AT_ONCE:
            self._take()

    def ended(self) -> Runs:
        """All of them. No more records come."""
        self._take()
        return Runs(packed=(*self._packed, *runs_in(self._rows).packed))

    def _take(self) -> None:
        offsets = np.array(self._offsets, np.int64)
        if not len(offsets):
            return
        starts = np.flatnonzero(np.diff(offsets, prepend=offsets[0]) != 1)
        counts = np.diff(starts, append=len(offsets))
        fresh = np.column_stack((offsets[starts], self._position + starts, counts))
        self._position += len(offsets)
        self._offsets = array("q")
        if len(self._rows) and self._rows[-1, 0] + self._rows[-1, 2] == fresh[0, 0]:
            self._rows[-1, 2] += fresh[0, 2]
            fresh = fresh[1:]
        self._rows = np.concatenate((self._rows, fresh))
        while len(self._rows) > RUNS_PER_CHUNK:
            self._packed.append(_packed(self._rows[:RUNS_PER_CHUNK]))
            self._rows = self._rows[RUNS_PER_CHUNK:]


def translated(runs: Runs, base: int, offset: int) -> int:
    """Where a reader at this offset of the lake continues: at the first record that is not below it."""
    position_after = base
    for rows in runs.chunks():
        i = int(np.searchsorted(rows[:, 0], offset, side="right")) - 1
        if i < 0:
            break
        first, position, count = (int(number) for number in rows[i])
        position_after = position + min(offset - first, count)
    return position_after
