"""Keeps blobs on disk from the stage that makes them until the one that reads them, so that a shuffle need not fit in memory.

One file without a name, which the system removes when the process ends, however it ends. Threads may share it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from headstone.errors import Unfinished


class SpooledBlob(NamedTuple):
    start: int
    size: int


class BlobSpool:
    """A context manager: its content is gone at the end."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="headstone-blobs-")  # noqa: SIM115 - closed by __exit__
        self._lock = threading.Lock()

    def __enter__(self) -> BlobSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, blobs: Sequence[bytes]) -> list[SpooledBlob]:
        """Returns where each of them is."""
        with self._lock:
            start = self._file.seek(0, os.SEEK_END)
            self._file.writelines(blobs)
            self._file.flush()
        places = []
        for blob in blobs:
            places.append(SpooledBlob(start, len(blob)))
            start += len(blob)
        return places

    def read(self, place: SpooledBlob) -> bytes:
        blob = os.pread(self._file.fileno(), place.size, place.start)
        if len(blob) != place.size:
            raise Unfinished(f"a temporary file lost {place.size - len(blob)} bytes; run the same command again")
        return blob
