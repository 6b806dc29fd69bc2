"""Reads segment files: a header walk over the whole file, and chunks of whole batches with their bytes.

Owns the messages for everything that can be wrong with a `.log` file. A walk maps a local file and touches only headers; it
reads an object window by window. A chunk is read into memory, its checksums verified. Memory is bounded by the chunk, never by
the file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone import units
from headstone.errors import CorruptLog
from headstone.log import codecs, kernels
from headstone.log.layout import BATCH, CODEC_MASK, HEADER_BYTES, LENGTH_AT, LOG_OVERHEAD, RECORD_BYTES_MIN, WIRE
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.ranges import WINDOW_BYTES, Ranges, open_ranges
from headstone.storage.stores import is_remote

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Batches = npt.NDArray[Any]
"""Rows of `layout.BATCH`."""

PAYLOAD_BYTES_MAX = 256 << 20
"""Largest decompressed record section of one batch: Kafka's default batch limit is 1 MiB compressed, so this leaves a
ratio of 256 before a batch counts as a decompression bomb."""

ARENA_BYTES = 32 << 20
INT32_MAX = (1 << 31) - 1
TABLE_ROWS = 32768
NO_OFFSET = -1
OLDER_FORMATS = (0, 1)

RECOVER = "start the broker once so that it recovers the log, or restore the file from a replica"
NO_MAGIC = ("no batch of Kafka's: where a batch tells the version of its format, {magic} stands", RECOVER)
FOUND = {
    kernels.TORN: ("torn tail: the batch says {size} bytes but {left} are left in the file", RECOVER),
    kernels.BAD_LENGTH: ("wrong length: the batch says {size} bytes, less than a batch header", RECOVER),
    kernels.BAD_MAGIC: (
        "record format v{magic}: only v2 (Kafka 0.11 and later) is supported",
        "rewrite the topic with a current Kafka first",
    ),
    kernels.BAD_CRC: ("wrong CRC-32C: the batch is not what the broker wrote", "restore the file from a replica"),
    kernels.BACKWARDS: ("offsets go backwards: base offset {base} after offset {previous}", RECOVER),
    kernels.BAD_COUNT: ("impossible record count or offset delta in the batch header", RECOVER),
    kernels.BAD_CODEC: ("unknown codec {codec}", "restore the file from a replica"),
    kernels.BAD_CONTROL: ("control batch without a readable control record", "restore the file from a replica"),
    kernels.BAD_RECORD: (
        "record {record} of the batch does not fill its declared length",
        "restore the file from a replica",
    ),
    kernels.TRAILING_BYTES: ("bytes left over behind the last record of the batch", "restore the file from a replica"),
    kernels.BAD_RECORD_OFFSET: (
        "record {record} of the batch has an offset out of order",
        "restore the file from a replica",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """`path` is a path, or the URL of an object, which is reached by `access`."""

    base: int
    path: str
    size: int
    mtime_ms: int
    index_bytes: int
    time_index_bytes: int
    access: Access = FROM_ENVIRONMENT


def corrupt(
    path: str, data: Bytes, position: int, end: int, code: int, *, file_position: int, previous: int
) -> CorruptLog:
    """What the header at data[position:] shows, as a message."""
    header = np.frombuffer(
        bytes(data[position : min(position + HEADER_BYTES, end)]).ljust(HEADER_BYTES, b"\0"), dtype=WIRE
    )[0]
    base = int(header["base_offset"])
    magic = int(header["magic"])
    text, advice = NO_MAGIC if code == kernels.BAD_MAGIC and magic not in OLDER_FORMATS else FOUND[code]
    problem = text.format(
        size=int(header["length"]) + LOG_OVERHEAD,
        left=end - position,
        magic=magic,
        base=base,
        previous=previous,
        codec=int(header["attributes"]) & CODEC_MASK,
    )
    offset = base if code != kernels.TORN or end - position >= kernels.MAGIC_SEEN_BYTES else previous + 1
    return CorruptLog(file=path, position=file_position, offset=offset, problem=problem, advice=advice)


def corrupt_record(path: str, batch: Any, code: int, record: int) -> CorruptLog:
    """A batch whose header and checksum are right, but whose records are not; `position` is in the file."""
    text, advice = FOUND[code]
    return CorruptLog(
        file=path,
        position=int(batch["position"]),
        offset=int(batch["base_offset"]),
        problem=text.format(record=record),
        advice=advice,
    )


def with_loss(error: CorruptLog, files: Sequence[SegmentFile]) -> CorruptLog:
    """The error with what recovery would cost: a broker cuts the log at the first bad batch and loses everything after it."""
    numbers = [number for number, file in enumerate(files) if file.path == error.file]
    if error.advice != RECOVER or not numbers:
        return error
    file, behind = files[numbers[0]], files[numbers[0] + 1 :]
    if behind:
        lost = f"{units.count(len(behind), 'segment')} behind it, offsets from {behind[0].base} on"
        advice = f"restore the file from a replica: a broker that recovers the log cuts it here and deletes the {lost}"
    else:
        advice = f"{RECOVER}: recovery drops the {units.count(file.size - error.position, 'byte')} from here on"
    return CorruptLog(
        file=error.file, position=error.position, offset=error.offset, problem=error.problem, advice=advice
    )


def walk_segment(
    path: str,
    *,
    base: int,
    previous: int | None = None,
    with_crc: bool = False,
    access: Access = FROM_ENVIRONMENT,
    size: int | None = None,
) -> Iterator[Batches]:
    """Tables of the batches of one file, in order; each table is valid until the next one is requested.

    previous is the last offset before this segment, if it is known to be above base - 1. size: as it was listed; later appends
    are not looked at, and an object costs one request less.
    """
    previous = base - 1 if previous is None else max(previous, base - 1)
    if is_remote(path):
        tables = _walk_object(open_ranges(path, access, size=size), previous, with_crc)
    else:
        tables = _walk_file(path, previous, with_crc, size)
    for table in tables:
        if int(table[-1]["last_offset"]) - base > INT32_MAX:
            raise _too_far(path, table, base)
        yield table


def whole_batches_end(file: SegmentFile) -> int:
    """Where the last complete batch ends. What follows may just be being written."""
    end = 0
    for table in _walk_file(file.path, file.base - 1, False, file.size, may_be_torn=True):
        end = int(table[-1]["position"]) + int(table[-1]["size"])
    return end


def _walk_file(
    path: str, previous: int, with_crc: bool, size: int | None, *, may_be_torn: bool = False
) -> Iterator[Batches]:
    table = np.zeros(TABLE_ROWS, dtype=BATCH)
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        if size is not None and end < size:
            raise _shorter(path, end)
        end = end if size is None else size
        if end == 0:
            return
        mapped = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, dtype=np.uint8)
    position = 0
    while position < end:
        n, position, error = kernels.walk(data, position, end, previous, with_crc, PAYLOAD_BYTES_MAX, table)
        if n:
            previous = int(table[n - 1]["last_offset"])
            yield table[:n]
        if error == kernels.TORN and may_be_torn:
            return
        if error != kernels.OK:
            raise corrupt(path, data, position, end, error, file_position=position, previous=previous)


def _walk_object(opened: Ranges, previous: int, with_crc: bool) -> Iterator[Batches]:
    with opened as ranges:
        for chunk in _windows(ranges, previous, with_crc):
            chunk.batches["position"] += chunk.position
            yield chunk.batches


def chunks_of_object(file: SegmentFile) -> Iterator[Chunk]:
    """All batches with their bytes, checksums verified, for callers that need no survey: the object is read once.

    Each chunk is valid until the next one is requested."""
    with open_ranges(file.path, file.access, size=file.size) as ranges:
        yield from _windows(ranges, file.base - 1, with_crc=True)


def _windows(ranges: Ranges, previous: int, with_crc: bool) -> Iterator[Chunk]:
    """Window after window, each beginning with the batch that the last one cut off; a longer batch gets a longer window."""
    table = np.zeros(TABLE_ROWS, dtype=BATCH)
    buffer = np.zeros(0, dtype=np.uint8)
    start, size = 0, WINDOW_BYTES
    while start < ranges.size:
        size = min(size, ranges.size - start)
        if buffer.size < size:
            buffer = np.zeros(size, dtype=np.uint8)
        data = buffer[:size]
        read_exactly(ranges, start, data)
        n, walked, error = kernels.walk(data, 0, size, previous, with_crc, PAYLOAD_BYTES_MAX, table)
        if n:
            previous = int(table[n - 1]["last_offset"])
            yield Chunk(path=ranges.path, position=start, data=data, batches=table[:n])
        left = ranges.size - start - walked
        needed = _batch_bytes(data[walked:])
        if error == kernels.TORN and start + size < ranges.size and needed <= left:
            size = max(needed, WINDOW_BYTES)
        elif error != kernels.OK:
            raise corrupt(
                ranges.path, data, walked, walked + left, error, file_position=start + walked, previous=previous
            )
        start += walked


def _batch_bytes(data: Bytes) -> int:
    """The batch's length from its header, or as many bytes as are needed to know it."""
    if data.size < LOG_OVERHEAD:
        return LOG_OVERHEAD
    return int.from_bytes(data[LENGTH_AT:LOG_OVERHEAD].tobytes(), "big", signed=True) + LOG_OVERHEAD


def verify_segment(file: SegmentFile) -> None:
    """Reads a segment that will not be rewritten: its headers decide too, so its checksums must be right."""
    for _ in walk_segment(file.path, base=file.base, with_crc=True, access=file.access, size=file.size):
        pass


def _too_far(path: str, table: Batches, base: int) -> CorruptLog:
    row = table[int(np.argmax(table["last_offset"] - base > INT32_MAX))]
    return CorruptLog(
        file=path, position=int(row["position"]), offset=int(row["base_offset"]),
        problem=f"offset {row['last_offset']} is more than 2^31 above the segment's base {base}", advice=RECOVER,
    )  # fmt: skip


def next_offset(path: str, base: int, access: Access = FROM_ENVIRONMENT) -> int:
    """One past the last offset of a segment file; its base if it is empty."""
    following = base
    for table in walk_segment(path, base=base, access=access):
        following = int(table[-1]["last_offset"]) + 1
    return following


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Whole batches of one file: `batches` positions are in `data`; `position` is that of data[0] in the file."""

    path: str
    position: int
    data: Bytes
    batches: Batches

    def in_file(self, i: int) -> Any:
        row = self.batches[i].copy()
        row["position"] += self.position
        return row


class ChunkReader:
    """Reads [start, end) of a segment file, end and start at batch boundaries, into one reused buffer."""

    def __init__(self) -> None:
        self._buffer = np.zeros(0, dtype=np.uint8)
        self._table = np.zeros(256, dtype=BATCH)

    def read(self, ranges: Ranges, start: int, end: int, *, batches: int, previous: int, with_crc: bool) -> Chunk:
        size, path = end - start, ranges.path
        if self._buffer.size < size:
            self._buffer = np.zeros(size + size // 4, dtype=np.uint8)
        if self._table.size < batches:
            self._table = np.zeros(batches + batches // 4, dtype=BATCH)
        data = self._buffer[:size]
        read_exactly(ranges, start, data)
        n, walked, error = kernels.walk(data, 0, size, previous, with_crc, PAYLOAD_BYTES_MAX, self._table[:batches])
        if error != kernels.OK:
            raise corrupt(path, data, walked, size, error, file_position=start + walked, previous=previous)
        return Chunk(path=path, position=start, data=data, batches=self._table[:n])


def read_exactly(ranges: Ranges, start: int, data: Bytes) -> None:
    got = ranges.read_into(start, data.data)
    if got != data.size:
        raise _shorter(ranges.path, start + got)


def _shorter(path: str, position: int) -> CorruptLog:
    return CorruptLog(
        file=path, position=position, offset=NO_OFFSET, problem="the file became shorter while it was read",
        advice="stop whatever writes to this directory and run again",
    )  # fmt: skip


def chunk_of(path: str, content: bytes | memoryview, *, checksums: bool = True) -> Chunk:
    """Whole batches that are in memory already. `checksums` False: a checksum of the whole was verified."""
    data = np.frombuffer(content, dtype=np.uint8)
    batches = np.zeros(data.size // HEADER_BYTES + 1, dtype=BATCH)
    count, walked, error = kernels.walk(data, 0, data.size, -1, checksums, PAYLOAD_BYTES_MAX, batches)
    if error != kernels.OK or walked != data.size:
        raise corrupt(path, data, walked, data.size, error, file_position=walked, previous=-1)
    return Chunk(path=path, position=0, data=data, batches=batches[:count])


def batch_at(file: SegmentFile, position: int) -> Chunk:
    """One batch, which begins there; its positions are in the chunk."""

    def read(size: int) -> bytes:
        content = np.zeros(size, dtype=np.uint8)
        with open_ranges(file.path, file.access, size=file.size, within=(position, position + size)) as ranges:
            read_exactly(ranges, position, content)
        return content.tobytes()

    head = np.frombuffer(read(LOG_OVERHEAD), dtype=np.uint8)
    return chunk_of(file.path, read(min(_batch_bytes(head), file.size - position)))


class Payloads:
    """The record sections of chosen batches of a chunk, decompressed where needed into one reused arena."""

    def __init__(self) -> None:
        self._arena = np.zeros(0, dtype=np.uint8)

    def runs(self, chunk: Chunk, chosen: Ints) -> Iterator[tuple[Ints, Bytes, Ints, Ints]]:
        """(some of chosen, data, starts, ends) until all are done; each is valid until the next is requested.

        Plain batches stay where they are if all are plain. Others come in runs of about ARENA_BYTES: a chunk of a few megabytes
        may hold any number of batches that each expand to the largest size allowed.
        """
        batches = chunk.batches
        starts = batches["position"][chosen] + HEADER_BYTES
        ends = batches["position"][chosen] + batches["size"][chosen]
        packed = batches["codec"][chosen]
        if not packed.any():
            yield chosen, chunk.data, starts, ends
            return
        used = first = 0
        view = chunk.data.data
        for k in range(chosen.size):
            section = self._unpack(chunk, int(chosen[k]), int(packed[k]), view[int(starts[k]) : int(ends[k])])
            size = len(section)
            if used and used + size > ARENA_BYTES:
                yield chosen[first:k], self._arena, starts[first:k], ends[first:k]
                used, first = 0, k
            self._make_room(used, size)
            self._arena[used : used + size] = np.frombuffer(section, dtype=np.uint8)
            starts[k], ends[k] = used, used + size
            used += size
        yield chosen[first:], self._arena, starts[first:], ends[first:]

    def _make_room(self, used: int, size: int) -> None:
        """Grows the arena by doubling up to ARENA_BYTES, beyond that just as far as one section needs, and back again."""
        if used + size > self._arena.size or (self._arena.size > ARENA_BYTES and used + size <= ARENA_BYTES):
            arena = np.zeros(max(used + size, min(2 * (used + size), ARENA_BYTES)), dtype=np.uint8)
            arena[:used] = self._arena[:used]
            self._arena = arena

    def _unpack(self, chunk: Chunk, i: int, codec: int, payload: memoryview) -> Any:
        if codec == codecs.NONE:
            return payload
        try:
            section = codecs.decompress(codec, payload, PAYLOAD_BYTES_MAX)
        except codecs.CodecError as error:
            row = chunk.in_file(i)
            raise CorruptLog(
                file=chunk.path, position=int(row["position"]), offset=int(row["base_offset"]),
                problem=f"{codecs.NAMES[codec]} data that does not decompress: {error}",
                advice="restore the file from a replica",
            ) from error  # fmt: skip
        if len(section) < int(chunk.batches[i]["count"]) * RECORD_BYTES_MIN:
            raise corrupt_record(chunk.path, chunk.in_file(i), kernels.BAD_COUNT, 0)
        return section
