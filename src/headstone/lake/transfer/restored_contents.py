"""What was sent to a partition, and what came back, as digests: compared share by share, with neither of them in memory.

A row is a key's digest and its value's, 32 bytes. Rows are written in chunks, in the order of the log: in memory while they are
few, then in a temporary file. A chunk has the newest row of each of its keys, sorted, so that a share of the keys is contiguous
in it: every row is read once, however many shares there are. The newest rows of a share make its table. Knows nothing about
clusters and the lake.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import SEEK_END, BytesIO
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import IO

import numpy as np
import numpy.typing as npt

ROW = np.dtype([("key_high", "<u8"), ("key_low", "<u8"), ("value_high", "<u8"), ("value_low", "<u8")])
DIGEST_BYTES = 16
NO_VALUE = bytes(DIGEST_BYTES)
"""Of a tombstone."""
MEMORY_BYTES = 64 << 20
"""Rows of one side that stay in memory before they go into a file: two million records."""
SHARE_BYTES = 64 << 20
"""Rows of one side and one share. Sorting takes several times as much, 0.5 GB in all."""
CHUNK_ROWS = 1 << 20
BUCKETS = 1024
"""Of keys, by their digests: a share is some of them. With 2 billion keys in one partition shares become larger."""

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    keys: int
    """Number of sent keys with a value."""
    wrong: int
    """Keys that are on one side only, or have another value on the other."""
    first_wrong: bytes | None
    """The digest of one of them."""


class Contents:
    """A context manager that removes its file at the end. `kept`: rows and order, for comparing; else it only counts."""

    def __init__(self, *, kept: bool, memory_bytes: int = MEMORY_BYTES, chunk_rows: int = CHUNK_ROWS) -> None:
        self.records = self.tombstones = 0
        self._kept = kept
        self._order = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._memory_bytes, self._chunk_bytes = memory_bytes, chunk_rows * ROW.itemsize
        self._stack = ExitStack()
        self._file: IO[bytes] = BytesIO()
        self._chunk = bytearray()
        self._edges: list[npt.NDArray[np.int64]] = []
        """For each chunk: the rows of the file where its buckets begin, and where the last one ends."""

    def __enter__(self) -> Contents:
        self._file = self._stack.enter_context(SpooledTemporaryFile(max_size=self._memory_bytes))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def put(self, key: bytes | None, value: bytes | None) -> None:
        self.records += 1
        self.tombstones += value is None
        if not self._kept:
            return
        for part in (key, value):
            self._order.update(b"-" if part is None else b"+%d:" % len(part) + part)
        if key is not None:
            self._chunk += digest_of(key) + (NO_VALUE if value is None else digest_of(value))
            if len(self._chunk) >= self._chunk_bytes:
                self._write_chunk()

    def _write_chunk(self) -> None:
        rows = _newest(np.frombuffer(bytes(self._chunk), dtype=ROW))
        self._chunk.clear()
        begins = self._edges[-1][-1] if self._edges else 0
        self._edges.append(begins + np.searchsorted(_bucket(rows), np.arange(BUCKETS + 1, dtype=np.uint64)))
        self._file.seek(0, SEEK_END)
        self._file.write(rows.tobytes())

    def completed(self) -> int:
        """No more records come; returns the number of rows."""
        if self._chunk:
            self._write_chunk()
        return int(self._edges[-1][-1]) if self._edges else 0

    @property
    def order(self) -> bytes:
        """Digest of all keys and values in order."""
        return self._order.digest()

    def table(self, share: int, shares: int) -> Rows:
        """The newest row of each key of the share, sorted by keys; deleted keys are absent."""
        rows = _newest(np.concatenate([np.zeros(0, dtype=ROW), *self._of_share(share, shares)]))
        valued: npt.NDArray[np.bool_] = (rows["value_high"] != 0) | (rows["value_low"] != 0)
        return rows[valued]

    def _of_share(self, share: int, shares: int) -> Iterator[Rows]:
        first, end = share * BUCKETS // shares, (share + 1) * BUCKETS // shares
        for edges in self._edges:
            self._file.seek(int(edges[first]) * ROW.itemsize)
            yield np.frombuffer(self._file.read(int(edges[end] - edges[first]) * ROW.itemsize), dtype=ROW)


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def compared(sent: Contents, consumed: Contents, *, share_bytes: int = SHARE_BYTES) -> Comparison:
    """Compares the tables of both."""
    shares = min(max(1, -(-max(sent.completed(), consumed.completed()) * ROW.itemsize // share_bytes)), BUCKETS)
    keys = wrong = 0
    first_wrong = None
    for share in range(shares):
        table = sent.table(share, shares)
        keys += table.size
        unmatched = _unmatched(np.concatenate([table, consumed.table(share, shares)]))
        if unmatched.size:
            wrong += unmatched.size - int(_same_keys(unmatched).sum())
            first_wrong = first_wrong or unmatched[0].tobytes()[:DIGEST_BYTES]
    return Comparison(keys=keys, wrong=wrong, first_wrong=first_wrong)


def _bucket(rows: Rows) -> npt.NDArray[np.uint64]:
    bucket: npt.NDArray[np.uint64] = rows["key_high"] // np.uint64(2**64 // BUCKETS)
    return bucket


def _newest(rows: Rows) -> Rows:
    """The newest row of each key, sorted by keys, and so by buckets. A frequently written key takes up room only once."""
    rows = rows[np.lexsort((rows["key_low"], rows["key_high"]))]  # stable: the newest row of a key comes last
    newest = np.ones(rows.size, dtype=np.bool_)
    newest[:-1] = ~_same_keys(rows)
    return rows[newest]


def _unmatched(rows: Rows) -> Rows:
    """Rows that only one of the two tables has, sorted by keys."""
    rows = rows[np.lexsort((rows["value_low"], rows["value_high"], rows["key_low"], rows["key_high"]))]
    pairs = np.flatnonzero(
        _same_keys(rows)
        & (rows["value_high"][1:] == rows["value_high"][:-1])
        & (rows["value_low"][1:] == rows["value_low"][:-1])
    )
    matched = np.zeros(rows.size, dtype=np.bool_)
    matched[pairs] = matched[pairs + 1] = True
    return rows[~matched]


def _same_keys(rows: Rows) -> npt.NDArray[np.bool_]:
    """For each row but the last, whether the next one has its key."""
    same: npt.NDArray[np.bool_] = (rows["key_high"][1:] == rows["key_high"][:-1]) & (
        rows["key_low"][1:] == rows["key_low"][:-1]
    )
    return same
