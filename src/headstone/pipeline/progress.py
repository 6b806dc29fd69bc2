"""Progress of running tasks: each keeps two counters in a small file that the driver adds up.

Files, not accumulators: they work the same on local Spark, on a cluster with shared storage and on Spark Connect.
"""

from __future__ import annotations

import os
import secrets
import struct
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

COUNTERS = struct.Struct("<qq")
PREFIX = "progress-"
POLL_S = 0.5


class Meter:
    """A task's counters: bytes read and records rewritten so far."""

    def __init__(self, directory: str | None) -> None:
        self._bytes = self._records = 0
        self._file = -1
        if directory is not None:
            path = Path(directory) / (PREFIX + secrets.token_hex(6))
            self._file = os.open(path, os.O_CREAT | os.O_WRONLY)

    def add(self, size: int, records: int) -> None:
        self._bytes += size
        self._records += records
        if self._file >= 0:
            os.pwrite(self._file, COUNTERS.pack(self._bytes, self._records), 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def total(directory: Path) -> tuple[int, int]:
    """(bytes, records) of all tasks so far."""
    size = records = 0
    for path in directory.glob(PREFIX + "*"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # settled meanwhile
            continue
        if len(content) == COUNTERS.size:
            mine = COUNTERS.unpack(content)
            size, records = size + mine[0], records + mine[1]
    return size, records


class ProgressLine:
    """One line on stderr, rewritten on a terminal, repeated every few seconds elsewhere. Silent for short jobs."""

    QUIET_S = 2.0
    REPEAT_S = 5.0

    def __init__(self, directory: Path, *, bytes_total: int, enabled: bool) -> None:
        self._directory = directory
        self._bytes_total = max(bytes_total, 1)
        self._enabled = enabled
        self._settled = (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ProgressLine:
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._enabled:
            self._thread.join()

    def settle(self, size: int) -> None:
        """So many bytes more are dealt with: the counters of their tasks need not be looked at any longer."""
        records = total(self._directory)[1]
        self._settled = (self._settled[0] + size, self._settled[1] + records)
        for path in self._directory.glob(PREFIX + "*"):
            path.unlink()

    def _run(self) -> None:
        terminal = sys.stderr.isatty()
        started = time.monotonic()
        shown = False
        while not self._stop.wait(POLL_S if terminal or not shown else self.REPEAT_S):
            elapsed = time.monotonic() - started
            if elapsed < self.QUIET_S:
                continue
            size, records = (a + b for a, b in zip(self._settled, total(self._directory), strict=True))
            text = describe(size, self._bytes_total, records, elapsed)
            sys.stderr.write(f"\r\x1b[K{text}" if terminal else f"{text}\n")
            sys.stderr.flush()
            shown = True
        if shown and terminal:
            sys.stderr.write("\r\x1b[K")


def describe(size: int, total_bytes: int, records: int, elapsed_s: float) -> str:
    if size == 0:
        return f"starting Spark; {total_bytes / 1e6:,.0f} MB to read ({elapsed_s:.0f} s)"
    rate = size / elapsed_s
    left = f"{(total_bytes - size) / rate:.0f} s left"
    share = min(100, 100 * size // total_bytes)
    done = f"{size / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB"
    return f"{share:3d} %  {done}  {records:,} records  {rate / 1e6:,.0f} MB/s  {left}"
