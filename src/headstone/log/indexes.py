"""The three indexes of a segment: `.index`, `.timeindex`, `.txnindex`. Layouts, and the rule by which entries are made.

Entries are made batch by batch as Kafka does when it rebuilds a segment's indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.errors import CorruptLog
from headstone.log.intrinsics import kernel
from headstone.storage.places import Place

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
ABORTED_ENTRY = np.dtype(
    [("version", ">i2"), ("producer_id", ">i8"), ("first_offset", ">i8"), ("last_offset", ">i8"), ("lso", ">i8")]
)
assert (OFFSET_ENTRY.itemsize, TIME_ENTRY.itemsize, ABORTED_ENTRY.itemsize) == (8, 12, 34)

INDEX_INTERVAL_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AbortedTxn:
    """One aborted transaction; `last_offset` is that of its ABORT marker."""

    last_offset: int
    first_offset: int
    producer_id: int
    lso: int


@kernel
def _index_entries(
    state: Any, sizes: Any, last_offsets: Any, max_timestamps: Any, interval: Any, offset_out: Any, time_out: Any
) -> Any:
    """state: [position, position of last entry, max timestamp, its offset, last timestamp written]."""
    n_offset = 0
    n_time = 0
    for i in range(sizes.size):
        if max_timestamps[i] > state[2]:
            state[2] = max_timestamps[i]
            state[3] = last_offsets[i]
        if state[0] - state[1] > interval:
            offset_out[n_offset, 0] = last_offsets[i]
            offset_out[n_offset, 1] = state[0]
            n_offset += 1
            if state[2] > state[4]:
                time_out[n_time, 0] = state[2]
                time_out[n_time, 1] = state[3]
                state[4] = state[2]
                n_time += 1
            state[1] = state[0]
        state[0] += sizes[i]
    return n_offset, n_time


class IndexBuilder:
    """Makes the offset and time index of one segment while its batches are written."""

    def __init__(self, base: int, interval_bytes: int = INDEX_INTERVAL_BYTES) -> None:
        self._base = base
        self._interval = interval_bytes
        self._state = np.array([0, 0, -1, -1, -1], dtype=np.int64)
        self._offset_parts: list[npt.NDArray[np.int64]] = []
        self._time_parts: list[npt.NDArray[np.int64]] = []

    @property
    def largest_timestamp(self) -> int:
        return int(self._state[2])

    def append(
        self, sizes: npt.NDArray[np.int64], last_offsets: npt.NDArray[np.int64], max_timestamps: npt.NDArray[np.int64]
    ) -> None:
        offset_out = np.zeros((sizes.size, 2), dtype=np.int64)
        time_out = np.zeros((sizes.size, 2), dtype=np.int64)
        n_offset, n_time = _index_entries(
            self._state, sizes, last_offsets, max_timestamps, self._interval, offset_out, time_out
        )
        self._offset_parts.append(offset_out[:n_offset].copy())
        self._time_parts.append(time_out[:n_time].copy())

    def offset_index(self) -> bytes:
        rows = np.concatenate([np.zeros((0, 2), np.int64), *self._offset_parts])
        entries = np.zeros(len(rows), dtype=OFFSET_ENTRY)
        entries["relative_offset"] = rows[:, 0] - self._base
        entries["position"] = rows[:, 1]
        return entries.tobytes()

    def time_index(self) -> bytes:
        """With the closing entry that holds the segment's largest timestamp."""
        last = [(self._state[2], self._state[3])] if self._state[2] > self._state[4] else []
        rows = np.concatenate([np.zeros((0, 2), np.int64), *self._time_parts, np.array(last, np.int64).reshape(-1, 2)])
        entries = np.zeros(len(rows), dtype=TIME_ENTRY)
        entries["timestamp"] = rows[:, 0]
        entries["relative_offset"] = rows[:, 1] - self._base
        return entries.tobytes()


def read_offset_index(path: Path) -> npt.NDArray[Any]:
    return _entries(path, OFFSET_ENTRY)


def read_time_index(path: Path) -> npt.NDArray[Any]:
    return _entries(path, TIME_ENTRY)


def read_aborted(path: Place) -> list[AbortedTxn]:
    """Entries of a `.txnindex`; a missing file has none."""
    if not path.exists():
        return []
    entries = _entries(path, ABORTED_ENTRY)
    if (entries["version"] != 0).any():
        raise CorruptLog(
            file=str(path), position=0, offset=-1, problem="unknown .txnindex entry version", advice=_REBUILD
        )
    return [
        AbortedTxn(
            producer_id=int(entry["producer_id"]),
            first_offset=int(entry["first_offset"]),
            last_offset=int(entry["last_offset"]),
            lso=int(entry["lso"]),
        )
        for entry in entries
    ]


def aborted_bytes(entries: Sequence[AbortedTxn]) -> bytes:
    rows = [(0, entry.producer_id, entry.first_offset, entry.last_offset, entry.lso) for entry in sorted(entries)]
    return np.array(rows, dtype=ABORTED_ENTRY).tobytes()


_REBUILD = "remove the file: aborted transactions are found from the log itself"


def _entries(path: Place, entry: np.dtype[Any]) -> npt.NDArray[Any]:
    content = path.read_bytes()
    if len(content) % entry.itemsize:
        raise CorruptLog(
            file=str(path), position=len(content) - len(content) % entry.itemsize, offset=-1,
            problem=f"{len(content)} bytes is not a whole number of {entry.itemsize}-byte entries", advice=_REBUILD,
        )  # fmt: skip
    return np.frombuffer(content, dtype=entry)
