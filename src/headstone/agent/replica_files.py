"""What one replica's files show while its broker runs: where its log begins and ends, how far it is clean, how far plain.

Reads only, and never reports more than is true: files appear, grow, shrink, are swapped and vanish meanwhile, and what cannot
be known is left out. Reads by position, because truncating a mapped file would kill its reader. Reads only headers, and only of
what has changed since the last time. Knows nothing of guards and networks.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

import numpy as np

from headstone.coordination.watermarks import ReplicaWatermarks
from headstone.errors import CorruptLog, HeadstoneError
from headstone.log import checkpoints
from headstone.log.columns import OFFSET, decode
from headstone.log.directory import LOG, SWAP, PartitionDir
from headstone.log.intrinsics import crc32c
from headstone.log.layout import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LOG_OVERHEAD,
    TRANSACTIONAL,
)
from headstone.log.reading import PAYLOAD_BYTES_MAX, Payloads, chunk_of
from headstone.storage.places import local

_HEAD = struct.Struct(">qiibIhi")
"""The front of a batch header: base offset, length, leader epoch, magic, checksum, attributes, last offset delta."""
assert _HEAD.size == LAST_OFFSET_DELTA_AT + 4
MAGIC = 2
WINDOW_BYTES = 4096
"""A page: reading less from disk costs the same, and reading more would fill the broker's page cache with values."""
OFFSET_DIGITS = 20
ATTEMPTS = 3
"""The broker swaps segments by a few renames. If this reader meets a swap every time, it tries again for the next report."""
SWAPPED = ": a swap of segments is under way"
HEADERS_MAX = 1_000_000
"""Of closed segments, in one look at a partition: takes some seconds. The next look continues from there."""


class Unsettled(HeadstoneError):
    """The files changed while they were read, or are not a log: nothing is known of this replica now. Look again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """`high_watermark` and `cleaner_checkpoint` are None if the broker has written none.

    `life` changes when there is another log in this place, even if nothing else shows it: a folder that was deleted and created
    again.
    """

    life: tuple[int, ...]
    topic_id: str | None
    log_start: int
    log_end: int
    high_watermark: int | None
    cleaner_checkpoint: int | None
    free_until: int
    """Below this offset it was seen that there is no transactional data batch."""

    @property
    def watermarks(self) -> ReplicaWatermarks:
        """What these files prove (docs/rfcs/0001-coordinated-compaction.md). Never more than what was committed."""
        checkpoint = self.cleaner_checkpoint
        fits = checkpoint is not None and self.log_start <= checkpoint <= self.log_end
        mcco = checkpoint if checkpoint is not None and fits else self.log_start
        return ReplicaWatermarks(mcco=mcco, mxfo=max(self.log_start, self.free_until))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A segment's file as it was listed."""

    name: str
    inode: int
    size: int
    mtime_ns: int

    @property
    def identity(self) -> tuple[str, int]:
        return self.name, self.inode

    @property
    def base(self) -> int:
        return int(self.name[:OFFSET_DIGITS])

    def same_as(self, other: LogFile) -> bool:
        return (self.inode, self.size) == (other.inode, other.size)


def segments(directory: PartitionDir) -> list[LogFile]:
    """In offset order. Raises Unsettled while a swap is under way: then no listing is the log."""
    files = []
    with os.scandir(local(directory.path)) as entries:
        for entry in entries:
            digits, rest = entry.name[:OFFSET_DIGITS], entry.name[OFFSET_DIGITS:]
            if not digits.isdecimal() or len(digits) < OFFSET_DIGITS:
                continue
            if rest.startswith(LOG) and rest.endswith(SWAP):
                raise Unsettled(f"{directory.path}{SWAPPED}")
            if rest == LOG:
                status = entry.stat()
                files.append(
                    LogFile(name=entry.name, inode=status.st_ino, size=status.st_size, mtime_ns=status.st_mtime_ns)
                )
    if not files:
        raise Unsettled(f"{directory.path}: no segment")
    return sorted(files, key=lambda file: file.base)


@dataclass(slots=True, kw_only=True)
class _Scan:
    """How far the headers of one file were read. `last` is the position of its last whole batch, -1 if there is none."""

    file: LogFile
    next_offset: int
    position: int = 0
    last: int = -1
    last_front: bytes = b""
    transactional: int | None = None
    """Base offset of its first transactional data batch."""


@dataclass(slots=True)
class ReplicaReader:
    """Looks at one partition's folder repeatedly."""

    directory: PartitionDir
    headers_max: int = HEADERS_MAX
    _scans: dict[str, _Scan] = field(default_factory=dict)
    _before: FileFacts | None = None

    def look(self) -> FileFacts:
        """Raises Unsettled if the files keep changing, OSError if they are gone."""
        for attempt in range(ATTEMPTS):
            try:
                return self._attempt()
            except (Unsettled, FileNotFoundError) as error:
                if not local(self.directory.path).is_dir():
                    raise
                if attempt == ATTEMPTS - 1:
                    raise Unsettled(f"{self.directory.path}{SWAPPED}") from error
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self) -> FileFacts:
        """Reads checkpoints first: what they say was already true of the log when it is read."""
        clean, start, high = (
            self._checkpoint(name) for name in (checkpoints.CLEANER, checkpoints.LOG_START, checkpoints.HIGH_WATERMARK)
        )
        life = self._life()
        files = segments(self.directory)
        self._scans = {file.name: self._scan_of(file) for file in files}
        active = self._scans[files[-1].name]
        self._read(active, headers_max=None)
        frontier = self._frontier([self._scans[file.name] for file in files], active.next_offset)
        if not _same_log(files, segments(self.directory)) or self._life() != life:
            raise Unsettled(f"{self.directory.path}: segments were swapped while they were read")
        facts = FileFacts(
            life=life,
            topic_id=checkpoints.read_topic_id(self.directory.path / checkpoints.PARTITION_METADATA),
            log_start=max(files[0].base, start or 0),
            log_end=active.next_offset,
            high_watermark=high,
            cleaner_checkpoint=clean,
            free_until=self._free_until(life, active.next_offset, high, frontier),
        )
        self._before = facts
        return facts

    def _checkpoint(self, name: str) -> int | None:
        return checkpoints.read_offsets(self.directory.log_dir / name).get(self.directory.topic_partition)

    def _life(self) -> tuple[int, ...]:
        """Inode numbers are reused, so this includes the time of a file that is written only once, with a new log."""
        path = local(self.directory.path)
        folder = path.stat()
        try:
            born = (path / checkpoints.PARTITION_METADATA).stat()
        except FileNotFoundError:
            return folder.st_dev, folder.st_ino
        return folder.st_dev, folder.st_ino, born.st_ino, born.st_mtime_ns

    def _scan_of(self, file: LogFile) -> _Scan:
        """Keeps what is known of the file if it is the same one and has only grown."""
        old_scan = self._scans.get(file.name)
        if old_scan is None or old_scan.file.inode != file.inode or old_scan.position > file.size:
            return _Scan(file=file, next_offset=file.base)
        if (old_scan.file.size, old_scan.file.mtime_ns) != (file.size, file.mtime_ns) and not self._continues(old_scan):
            return _Scan(file=file, next_offset=file.base)
        old_scan.file = file
        return old_scan

    def _continues(self, scan: _Scan) -> bool:
        """Whether the last batch that was read is still there: a log may be truncated and grow again."""
        if scan.last < 0:
            return False
        with opened(self.directory, scan.file) as descriptor:
            return os.pread(descriptor, _HEAD.size, scan.last) == scan.last_front

    def _frontier(self, scans: list[_Scan], log_end: int) -> int:
        """Up to which offset the log is known to have no transactional data, from its first segment on."""
        left = self.headers_max
        for number, scan in enumerate(scans):
            if scan.transactional is None and number < len(scans) - 1:
                left -= self._read(scan, headers_max=left)
            if scan.transactional is not None:
                return scan.transactional
            if scan.position < scan.file.size and number < len(scans) - 1:
                return scan.next_offset
        return log_end

    def _free_until(self, life: tuple[int, ...], log_end: int, high: int | None, frontier: int) -> int:
        """A batch never becomes transactional later, so what was proved of this log stays proved until a transactional batch is
        seen."""
        free = min(frontier, high or 0)
        before = self._before
        if before is None or before.life != life or before.free_until > log_end:
            return free
        transactional = [scan.transactional for scan in self._scans.values() if scan.transactional is not None]
        return min([max(free, before.free_until), *transactional])

    def _read(self, scan: _Scan, *, headers_max: int | None) -> int:
        """Reads up to `headers_max` more headers; in the active segment (None) all of them, and checks its last batch."""
        if scan.position >= scan.file.size:
            return 0
        with opened(self.directory, scan.file) as descriptor:
            size = os.fstat(descriptor).st_size
            if headers_max is None:
                count = self._walk(scan, descriptor, size, headers_max=size)
                _drop_torn(scan, descriptor)
                return count
            return self._walk(scan, descriptor, size, headers_max=headers_max)

    def _walk(self, scan: _Scan, descriptor: int, size: int, *, headers_max: int) -> int:
        window, start, count = b"", 0, 0
        while count < headers_max and scan.position + HEADER_BYTES <= size:
            position = scan.position - start
            if position + _HEAD.size > len(window):
                window, start, position = os.pread(descriptor, WINDOW_BYTES, scan.position), scan.position, 0
                if len(window) < _HEAD.size:
                    break
            offset, length, _, magic, _, attributes, delta = _HEAD.unpack_from(window, position)
            end = scan.position + LOG_OVERHEAD + length
            if magic != MAGIC or length < HEADER_BYTES - LOG_OVERHEAD or end > size or delta < 0:
                break
            if offset < scan.next_offset:
                break
            scan.last, scan.last_front = scan.position, window[position : position + _HEAD.size]
            scan.position, scan.next_offset = end, offset + delta + 1
            count += 1
            if attributes & TRANSACTIONAL and not attributes & CONTROL and scan.transactional is None:
                scan.transactional = offset
        return count

    def holds(self, offset: int) -> bool | None:
        """Whether there is a record or a marker with that offset; None if that cannot be known now."""
        try:
            files = segments(self.directory)
            below = [file for file in files if file.base <= offset]
            held = _holds(self.directory, below[-1], offset) if below else False
            settled = _same_log(files, segments(self.directory))
        except (OSError, Unsettled, CorruptLog):
            return None
        facts = self._before
        if facts is None or not settled or offset >= facts.log_end:
            return None
        return False if offset < facts.log_start else held


class opened:
    """A descriptor of exactly the file that was listed."""

    def __init__(self, directory: PartitionDir, file: LogFile) -> None:
        self._path = local(directory.path) / file.name
        self._inode = file.inode
        self._descriptor = -1

    def __enter__(self) -> int:
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        if os.fstat(self._descriptor).st_ino != self._inode:
            os.close(self._descriptor)
            raise Unsettled(f"{self._path}: the file was replaced meanwhile")
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _same_log(before: list[LogFile], after: list[LogFile]) -> bool:
    """The same files in the same places; at its end, the log may have grown and rolled."""
    *inactive, active = before
    after_by_name = {file.name: file for file in after}
    same = all(file.name in after_by_name and after_by_name[file.name].same_as(file) for file in inactive)
    same = same and active.name in after_by_name and after_by_name[active.name].inode == active.inode
    names_before = {file.name for file in before}
    return same and all(file.base > active.base for file in after if file.name not in names_before)


def _drop_torn(scan: _Scan, descriptor: int) -> None:
    """After a crash the file may be longer than what was written: a last batch with a wrong checksum does not count."""
    if scan.last < 0:
        return
    body = np.frombuffer(os.pread(descriptor, scan.position - scan.last, scan.last), dtype=np.uint8)
    offset, _, _, _, crc, _, _ = _HEAD.unpack(scan.last_front)
    if body.size == scan.position - scan.last and int(crc32c(body, ATTRIBUTES_AT, body.size)) == crc:
        return
    scan.position, scan.next_offset, scan.last = scan.last, offset, -1
    if scan.transactional == offset:
        scan.transactional = None


def _holds(directory: PartitionDir, file: LogFile, offset: int) -> bool:
    with opened(directory, file) as descriptor:
        size = os.fstat(descriptor).st_size
        position = 0
        while position + HEADER_BYTES <= size:
            front = os.pread(descriptor, _HEAD.size, position)
            base, length, _, magic, _, attributes, delta = _HEAD.unpack(front)
            if magic != MAGIC or not 0 <= length <= PAYLOAD_BYTES_MAX or base > offset:
                return False
            if base + delta >= offset:
                content = os.pread(descriptor, LOG_OVERHEAD + length, position)
                return _offset_in(
                    f"{directory.path}/{file.name}", content, offset, is_control=bool(attributes & CONTROL)
                )
            position += LOG_OVERHEAD + length
    return False


def _offset_in(name: str, content: bytes, offset: int, *, is_control: bool) -> bool:
    chunk = chunk_of(name, content)
    if not chunk.batches.size or int(chunk.batches[0]["count"]) == 0:
        return False
    if is_control:
        return int(chunk.batches[0]["base_offset"]) == offset
    runs = decode(chunk, np.zeros(1, dtype=np.int64), Payloads())
    return any(bool((spans[:, OFFSET] == offset).any()) for _, spans in runs)
