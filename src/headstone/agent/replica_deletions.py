"""Which tombstones and markers one replica has in a span of offsets, from its files while its broker runs: count and digest.

A returned replica has what it missed if it has the same ones in the span as its leader. Reads a limited number of bytes and
continues at the next call, because a span may cover a day of writes. Reads only; if files are swapped meanwhile, it starts
again. `guard/agents/verification.py` asks, and interprets the answer.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass, field

from headstone.agent.deletions import EMPTIED, deletions_in
from headstone.agent.replica_files import LogFile, Unsettled, opened, segments
from headstone.coordination.guard_values import OffsetSpan
from headstone.errors import CorruptLog
from headstone.log.directory import PartitionDir
from headstone.log.layout import HEADER_BYTES, LAST_OFFSET_DELTA_AT, LENGTH_AT, LOG_OVERHEAD
from headstone.log.reading import PAYLOAD_BYTES_MAX, chunk_of

WINDOW_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionsDigest:
    """Replicas with equal digests have the same tombstones and markers in the span. `emptied` counts markers that a cleaner has
    already removed."""

    count: int
    emptied: int
    digest: str


@dataclass(slots=True)
class DeletionsScan:
    """Of one replica and one span."""

    directory: PartitionDir
    span: OffsetSpan
    _file: LogFile | None = None
    _position: int = 0
    _next_offset: int = 0
    _count: int = 0
    _emptied: int = 0
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def read_to(self) -> int:
        """The offset up to which it has read."""
        return self._next_offset

    def go_on(self, bytes_max: int) -> DeletionsDigest | None:
        """None if more is to be read, if the log does not reach the span's end, or if it keeps changing; call again."""
        try:
            return self._go_on(bytes_max)
        except (OSError, Unsettled, CorruptLog):
            self._begin_anew()
            return None

    def _begin_anew(self) -> None:
        self._file, self._position, self._next_offset, self._count, self._emptied = None, 0, 0, 0, 0
        self._hash = hashlib.sha256()

    def _go_on(self, bytes_max: int) -> DeletionsDigest | None:
        left = bytes_max
        files = self._files()
        for file in files:
            with opened(self.directory, file) as descriptor:
                while left > 0 and self._next_offset < self.span.end and (size := self._read(descriptor, file)):
                    left -= size
                unread = os.fstat(descriptor).st_size - self._position
            if self._next_offset >= self.span.end:
                return DeletionsDigest(count=self._count, emptied=self._emptied, digest=self._hash.hexdigest())
            if left <= 0:
                return None
            if unread and file is not files[-1]:
                raise Unsettled(f"{self.directory.path}/{file.name}: the {unread} bytes at the end are not a batch")
        return None

    def _files(self) -> list[LogFile]:
        """Files from the one that was read last on, or from the one in which the span begins."""
        files = segments(self.directory)
        if self._file is not None:
            numbers = [number for number, file in enumerate(files) if (file.name, file.inode) == self._file.identity]
            if not numbers:
                raise Unsettled(f"{self.directory.path}: segments were swapped between two reports")
            return files[numbers[0] :]
        first = max((number for number, file in enumerate(files) if file.base <= self.span.start), default=0)
        return files[first:]

    def _read(self, descriptor: int, file: LogFile) -> int:
        """Reads whole batches from the current position; returns how many bytes they have."""
        if self._file is None or self._file.identity != file.identity:
            self._file, self._position = file, 0
        window = os.pread(descriptor, WINDOW_BYTES, self._position)
        size, next_offset = _whole_batches(window)
        if size == 0 and len(window) >= HEADER_BYTES:
            (length,) = struct.unpack_from(">i", window, LENGTH_AT)
            if not WINDOW_BYTES - LOG_OVERHEAD < length <= PAYLOAD_BYTES_MAX:
                return 0
            window = os.pread(descriptor, LOG_OVERHEAD + length, self._position)
            size, next_offset = _whole_batches(window)
        if size == 0:
            return 0
        rows = deletions_in(chunk_of(f"{self.directory.path}/{file.name}", window[:size]))
        rows = rows[(rows[:, 0] >= self.span.start) & (rows[:, 0] < self.span.end)]
        self._hash.update(rows.astype(">i8").tobytes())
        self._count += len(rows)
        self._emptied += int((rows[:, 1] == EMPTIED).sum())
        self._position, self._next_offset = self._position + size, next_offset
        return size


def _whole_batches(window: bytes) -> tuple[int, int]:
    """The length of the whole batches at the window's beginning, and the offset behind the last one."""
    position, next_offset = 0, 0
    while position + HEADER_BYTES <= len(window):
        base, length = struct.unpack_from(">qi", window, position)
        if length < HEADER_BYTES - LOG_OVERHEAD or position + LOG_OVERHEAD + length > len(window):
            break
        (delta,) = struct.unpack_from(">i", window, position + LAST_OFFSET_DELTA_AT)
        position += LOG_OVERHEAD + length
        next_offset = base + delta + 1
    return position, next_offset
