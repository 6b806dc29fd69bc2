"""Rows of one replica by shares of the keys, so that each share fits into memory: a file per share, or none for a single share.

Rows come in offset order and leave in offset order. The files are temporary: their rows can be read again from the log.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import IO

import numpy as np

from headstone.divergence.views import ROW, Rows
from headstone.log.scratch import scratch_directory


class RowSpool:
    """A context manager: its files are gone at the end."""

    def __init__(self, shares: int) -> None:
        self._shares = shares
        self._parts: list[Rows] = []
        self._files: list[IO[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> RowSpool:
        if self._shares > 1:
            folder = self._stack.enter_context(scratch_directory("audit-rows"))
            for share in range(self._shares):
                self._files.append(self._stack.enter_context((folder / str(share)).open("w+b")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, rows: Rows) -> None:
        if not self._files:
            self._parts.append(rows)
            return
        share = (rows["key_high"] % np.uint64(self._shares)).astype(np.int64)
        ordered = rows[np.argsort(share, kind="stable")]
        ends = np.cumsum(np.bincount(share, minlength=self._shares))
        for file, start, end in zip(self._files, [0, *ends[:-1]], ends, strict=True):
            file.write(ordered[start:end].data)

    def of_share(self, share: int) -> list[Rows]:
        """All rows of a share. Rows in memory are handed over and can't be read again."""
        if not self._files:
            parts, self._parts = self._parts, []
            return parts
        file = self._files[share]
        file.flush()
        file.seek(0)
        return [np.fromfile(file, dtype=ROW)]
