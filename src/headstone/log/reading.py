"""Reads segment files: a header walk over the whole file, and chunks of whole batches with their bytes.

Owns the messages for what can be wrong with a `.log` file. A walk maps the file and touches only headers; a chunk is
read into memory, its checksums verified. Memory is bounded by the chunk, never by the file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.errors import CorruptLog
from headstone.log import codecs, kernels
from headstone.log.layout import BATCH, CODEC_MASK, HEADER_BYTES, LOG_OVERHEAD, RECORD_BYTES_MIN, WIRE

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

RECOVER = "start the broker once so that it recovers the log, or restore the file from a replica"
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
    base: int
    path: str
    size: int
    mtime_ms: int
    index_bytes: int
    time_index_bytes: int


def corrupt(path: str, data: Bytes, at: int, end: int, code: int, *, file_position: int, previous: int) -> CorruptLog:
    """What the header at data[at:] shows, as a message."""
    header = np.frombuffer(bytes(data[at : min(at + HEADER_BYTES, end)]).ljust(HEADER_BYTES, b"\0"), dtype=WIRE)[0]
    base = int(header["base_offset"])
    text, advice = FOUND[code]
    found = text.format(
        size=int(header["length"]) + LOG_OVERHEAD,
        left=end - at,
        magic=int(header["magic"]),
        base=base,
        previous=previous,
        codec=int(header["attributes"]) & CODEC_MASK,
    )
    offset = base if code != kernels.TORN or end - at >= kernels.MAGIC_SEEN_BYTES else previous + 1
    return CorruptLog(file=path, position=file_position, offset=offset, found=found, advice=advice)


def corrupt_record(path: str, batch: Any, code: int, record: int) -> CorruptLog:
    """A batch whose header and checksum are right, but whose records are not; `position` is that in the file."""
    text, advice = FOUND[code]
    return CorruptLog(
        file=path,
        position=int(batch["position"]),
        offset=int(batch["base_offset"]),
        found=text.format(record=record),
        advice=advice,
    )


def with_loss(error: CorruptLog, files: Sequence[SegmentFile]) -> CorruptLog:
    """The error with what recovery would cost: a broker cuts the log at the first bad batch, and what is behind is gone."""
    found = [number for number, file in enumerate(files) if file.path == error.file]
    if error.advice != RECOVER or not found:
        return error
    file, behind = files[found[0]], files[found[0] + 1 :]
    if behind:
        lost = f"{len(behind)} segments behind it, offsets from {behind[0].base} on"
        advice = f"restore the file from a replica: a broker that recovers the log cuts it here and deletes the {lost}"
    else:
        advice = f"{RECOVER}: recovery drops the {file.size - error.position} bytes from here on"
    return CorruptLog(file=error.file, position=error.position, offset=error.offset, found=error.found, advice=advice)


def walk_segment(path: str, *, base: int, previous: int | None = None, with_crc: bool = False) -> Iterator[Batches]:
    """Tables of the batches of one file, in order; each table is valid until the next one is asked for.

    previous is the last offset before this segment, if it is known to be above base - 1.
    """
    previous = base - 1 if previous is None else max(previous, base - 1)
    table = np.zeros(TABLE_ROWS, dtype=BATCH)
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        if end == 0:
            return
        mapped = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, dtype=np.uint8)
    at = 0
    while at < end:
        n, at, error = kernels.walk(data, at, end, previous, with_crc, PAYLOAD_BYTES_MAX, table)
        if n:
            previous = int(table[n - 1]["last_offset"])
            if previous - base > INT32_MAX:
                raise _too_far(path, table[:n], base)
            yield table[:n]
        if error != kernels.OK:
            raise corrupt(path, data, at, end, error, file_position=at, previous=previous)


def verify_segment(file: SegmentFile) -> None:
    """Reads a segment that will not be rewritten: its headers decide too, so its checksums must be right."""
    for _ in walk_segment(file.path, base=file.base, with_crc=True):
        pass


def _too_far(path: str, table: Batches, base: int) -> CorruptLog:
    row = table[int(np.argmax(table["last_offset"] - base > INT32_MAX))]
    return CorruptLog(
        file=path, position=int(row["position"]), offset=int(row["base_offset"]),
        found=f"offset {row['last_offset']} is more than 2^31 above the segment's base {base}", advice=RECOVER,
    )  # fmt: skip


def next_offset(path: str, base: int) -> int:
    """One past the last offset of a segment file; its base if it is empty."""
    following = base
    for table in walk_segment(path, base=base):
        following = int(table[-1]["last_offset"]) + 1
    return following


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Whole batches of one file: `batches` positions are those in `data`; `position` is that of data[0] in the file."""

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

    def read(self, file: Any, path: str, start: int, end: int, *, batches: int, previous: int, with_crc: bool) -> Chunk:
        size = end - start
        if self._buffer.size < size:
            self._buffer = np.zeros(size + size // 4, dtype=np.uint8)
        if self._table.size < batches:
            self._table = np.zeros(batches + batches // 4, dtype=BATCH)
        file.seek(start)
        data = self._buffer[:size]
        try:
            got = file.readinto(data.data)
        except OSError as failed:  # of a read it does not say the file
            raise OSError(failed.errno, failed.strerror, path) from failed
        if got != size:
            raise CorruptLog(
                file=path, position=start + got, offset=NO_OFFSET, found="the file became shorter while it was read",
                advice="stop whatever writes to this directory and run again",
            )  # fmt: skip
        n, at, error = kernels.walk(data, 0, size, previous, with_crc, PAYLOAD_BYTES_MAX, self._table[:batches])
        if error != kernels.OK:
            raise corrupt(path, data, at, size, error, file_position=start + at, previous=previous)
        return Chunk(path=path, position=start, data=data, batches=self._table[:n])


def chunk_of(path: str, content: bytes) -> Chunk:
    """Whole batches that are in memory already, checksums verified."""
    data = np.frombuffer(content, dtype=np.uint8)
    batches = np.zeros(data.size // HEADER_BYTES + 1, dtype=BATCH)
    count, at, error = kernels.walk(data, 0, data.size, -1, True, PAYLOAD_BYTES_MAX, batches)
    if error != kernels.OK or at != data.size:
        raise corrupt(path, data, at, data.size, error, file_position=at, previous=-1)
    return Chunk(path=path, position=0, data=data, batches=batches[:count])


class Payloads:
    """The record sections of chosen batches of a chunk, decompressed into one reused arena where they need it."""

    def __init__(self) -> None:
        self._arena = np.zeros(0, dtype=np.uint8)

    def runs(self, chunk: Chunk, chosen: Ints) -> Iterator[tuple[Ints, Bytes, Ints, Ints]]:
        """(some of chosen, data, starts, ends) until all had their turn; each is valid until the next is asked for.

        Plain batches stay where they are if all are plain. Others come in runs of about ARENA_BYTES: a chunk of a few
        megabytes may hold any number of batches that each expand to the largest size allowed.
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
                found=f"{codecs.NAMES[codec]} data that does not decompress: {error}",
                advice="restore the file from a replica",
            ) from error  # fmt: skip
        if len(section) < int(chunk.batches[i]["count"]) * RECORD_BYTES_MIN:
            raise corrupt_record(chunk.path, chunk.in_file(i), kernels.BAD_COUNT, 0)
        return section
