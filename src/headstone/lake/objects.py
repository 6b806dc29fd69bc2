"""The objects of the lake: ranges of record batches in Kafka's own encoding, an index of them, a footer.

    magic (8)  ranges, back to back  index (JSON)  index length (4)  CRC-32C of the index (4)  magic (8)

A range is the batches of one extent and, behind them, the list of their keys (`keyindex`); or it is the list of dead records
of an extent that lies in another object (`dead`).

Written in one stream, read by range. The metastore knows where each range is, so readers do not need the index; it is
there so that an object explains itself. docs/rfcs/0002-lake.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c
import numpy as np

from headstone.errors import CorruptLog, Unfinished
from headstone.lake.commits import Extent
from headstone.lake.dead import NONE, dead_bytes, dead_of, dead_section, without_dead
from headstone.lake.keyindex import (
    NO_KEYS,
    Halves,
    KeyList,
    Offsets,
    halves_bytes,
    halves_of,
    key_section,
    keys_in,
    keys_of,
    rest_bytes,
    section_bytes,
)
from headstone.lake.spans import Span
from headstone.log.reading import Chunk, chunk_of
from headstone.retention.keys import HashKey
from headstone.storage.stores import PART_BYTES, Sink, Store

MAGIC = b"HEADST\x00\x04"
"""The last byte is the version."""
FOOTER = struct.Struct(">II8s")
assert FOOTER.size == 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What the index says of one extent: whose it is, and where. A list of dead records is an extent with its marks."""

    topic: str
    partition: int
    extent: Extent


def place_of(part: Range, object_id: str) -> tuple[int, int]:
    """The bytes of a range in this object, the list of keys behind them included."""
    extent = part.extent
    if extent.object_id != object_id:
        return extent.dead_position, extent.dead_position + dead_bytes(extent.dead, extent.span)
    return extent.position, extent.position + extent.length + section_bytes(extent.keys)


def object_path(object_id: str) -> str:
    """Spread by the first digits: stores partition their keys by prefix."""
    return f"objects/{object_id[:2]}/{object_id}"


class ObjectWriter:
    """Ranges of any number of partitions into one object. `size` is known when it is finished."""

    def __init__(self, object_id: str, sink: Sink) -> None:
        self.object_id = object_id
        self.ranges: list[Range] = []
        self.size = 0
        self._sink = sink
        self._write(MAGIC)

    def add(
        self, topic: str, partition: int, span: Span, chunks: Iterable[bytes], *, records: int, max_timestamp_ms: int,
        oldest_timestamp_ms: int | None = None, keys: KeyList | None = None,
    ) -> Extent:  # fmt: skip
        """chunks: whole record batches, in order; none at all is a span that holds no record.

        `oldest_timestamp_ms` None: the newest is the oldest, as in a single batch."""
        keys = keys if keys is not None and keys.fits else None
        position, checksum = self.size, 0
        for chunk in chunks:
            checksum = google_crc32c.extend(checksum, chunk)
            self._write(chunk)
        extent = Extent(
            span=span, object_id=self.object_id, position=position, length=self.size - position, records=records,
            max_timestamp_ms=max_timestamp_ms, checksum=checksum, keys=-1 if keys is None else keys.offsets.size,
            oldest_timestamp_ms=max_timestamp_ms if oldest_timestamp_ms is None else oldest_timestamp_ms,
        )  # fmt: skip
        if keys is not None:
            self._write(key_section(keys))
        self.ranges.append(Range(topic=topic, partition=partition, extent=extent))
        return extent

    def mark(self, topic: str, partition: int, extent: Extent, dead: Offsets) -> Extent:
        """The extent with these records dead; those that were dead before are among them."""
        marked = replace(
            extent, records=extent.records + extent.dead - dead.size, dead=dead.size, dead_object=self.object_id,
            dead_position=self.size,
        )  # fmt: skip
        self._write(dead_section(dead, extent.span))
        self.ranges.append(Range(topic=topic, partition=partition, extent=marked))
        return marked

    def finish(self) -> None:
        index = _index(self.ranges)
        self._write(index)
        self._write(FOOTER.pack(len(index), google_crc32c.value(index), MAGIC))

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self.size += len(data)


@contextmanager
def writing_object(store: Store, object_id: str, *, part_bytes: int = PART_BYTES) -> Iterator[ObjectWriter]:
    """The object is in the store, whole, when the block has ended well; else it is not there."""
    with store.writing(object_path(object_id), part_bytes=part_bytes) as sink:
        writer = ObjectWriter(object_id, sink)
        yield writer
        writer.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object that is in the store, and what its index says."""

    object_id: str
    size: int
    ranges: tuple[Range, ...]

    @property
    def extents(self) -> list[Extent]:
        return [listed.extent for listed in self.ranges]


def write_once(store: Store, object_id: str, fill: Callable[[ObjectWriter], None]) -> Stored:
    """For tasks, which may run twice: an object that is there is never replaced, and its own word counts.

    It goes up in one piece, since stores refuse only those if there is one. So it fits into memory."""
    pieces = _Pieces()
    writer = ObjectWriter(object_id, pieces)
    fill(writer)
    writer.finish()
    path = object_path(object_id)
    if store.put(path, b"".join(pieces.written), create=True):
        return Stored(object_id=object_id, size=writer.size, ranges=tuple(writer.ranges))
    twin = Stored(object_id=object_id, size=store.size(path), ranges=tuple(read_index(store, object_id)))
    if [_kept(listed) for listed in twin.ranges] != [_kept(listed) for listed in writer.ranges]:
        raise Unfinished(f"{store.url}/{path} holds something else than what this task was to write; run it again")
    return twin


class _Pieces:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def _kept(listed: Range) -> tuple[object, ...]:
    """What two writers of the same range agree on, whatever their codecs make of the bytes."""
    extent = listed.extent
    return listed.topic, listed.partition, extent.span, extent.records, extent.dead, extent.keys


def read_extent(store: Store, extent: Extent) -> bytes:
    """The record batches of an extent, their checksum verified; dead records are still in them."""
    return bytes(_view_of(store, extent))


def read_chunk(store: Store, extent: Extent) -> Chunk:
    """As `read_extent`, parsed. The checksum of all of it covers those of its batches, which were right when it was written."""
    return chunk_of(_file_of(store, extent), _view_of(store, extent), checksums=False)


def _view_of(store: Store, extent: Extent) -> memoryview:
    data = store.view(object_path(extent.object_id), extent.position, extent.length)
    # As an array: the library takes what it need not release.
    if google_crc32c.value(np.frombuffer(data, dtype=np.uint8)) != extent.checksum:
        raise CorruptLog(
            file=_file_of(store, extent), position=extent.position, offset=extent.span.start,
            problem="wrong CRC-32C: the bytes are not what was uploaded",
            advice="restore the object from a backup or a version",
        )  # fmt: skip
    return data


def _file_of(store: Store, extent: Extent) -> str:
    return f"{store.url}/{object_path(extent.object_id)}"


def read_live(store: Store, extent: Extent) -> bytes:
    """The record batches of an extent as if its dead records had been compacted away."""
    if not extent.dead:
        return read_extent(store, extent)
    return without_dead(read_chunk(store, extent), read_dead(store, extent))


def read_halves(store: Store, extent: Extent) -> Halves:
    """The first part of the list of an extent's keys, its checksum verified. The extent must have one."""
    path, position = object_path(extent.object_id), extent.position + extent.length
    halves = halves_of(store.read(path, position, halves_bytes(extent.keys)))
    if halves is None:
        raise _damaged(store, path, position, extent, "list of keys")
    return halves


def read_keys(store: Store, extent: Extent, halves: Halves | None = None) -> KeyList:
    """The list of an extent's keys, checksums verified; dead records are in it too. `halves`: what was read of it before."""
    if halves is None:
        halves = read_halves(store, extent)
    path, position = object_path(extent.object_id), extent.position + extent.length + halves_bytes(extent.keys)
    keys = keys_of(halves, store.read(path, position, rest_bytes(extent.keys)))
    if keys is None:
        raise _damaged(store, path, position, extent, "list of keys")
    return keys


def keys_of_extent(store: Store, extent: Extent, hash_key: HashKey) -> KeyList:
    """The list of its keys; made of its batches if it has none, because its offsets are too far apart."""
    if not extent.length:
        return NO_KEYS
    if extent.keys >= 0:
        return read_keys(store, extent)
    return keys_in([read_chunk(store, extent)], hash_key)


def list_bytes(extent: Extent) -> int:
    """What `keys_of_extent` reads."""
    return section_bytes(extent.keys) if extent.keys >= 0 else extent.length


def read_dead(store: Store, extent: Extent) -> Offsets:
    """Offsets of the dead records of an extent, in order, their checksum verified."""
    if extent.dead_object is None:
        return NONE
    path = object_path(extent.dead_object)
    section = store.read(path, extent.dead_position, dead_bytes(extent.dead, extent.span))
    dead = dead_of(section, extent.dead, extent.span)
    if dead is None:
        raise _damaged(store, path, extent.dead_position, extent, "list of dead records")
    return dead


def _damaged(store: Store, path: str, position: int, extent: Extent, what: str) -> CorruptLog:
    return CorruptLog(
        file=f"{store.url}/{path}", position=position, offset=extent.span.start, problem=f"wrong CRC-32C of the {what}",
        advice="restore the object from a backup or a version",
    )  # fmt: skip


def read_index(store: Store, object_id: str) -> list[Range]:
    """What an object says of itself."""
    path = object_path(object_id)
    size = store.size(path)
    if size < len(MAGIC) + FOOTER.size:
        raise _strange(store, path, size, "too short for an object of a lake")
    length, checksum, magic = FOOTER.unpack(store.read(path, size - FOOTER.size, FOOTER.size))
    index_start = size - FOOTER.size - length
    if magic != MAGIC or index_start < len(MAGIC):
        raise _strange(
            store, path, size, "no footer of this version: this is not an object of a lake, or one of another version"
        )
    index = store.read(path, index_start, length)
    if google_crc32c.value(index) != checksum:
        raise _strange(store, path, index_start, "wrong CRC-32C of the index")
    return [_range(object_id, entry) for entry in json.loads(index)]


def _strange(store: Store, path: str, position: int, problem: str) -> CorruptLog:
    return CorruptLog(file=f"{store.url}/{path}", position=position, offset=-1, problem=problem)


def size_of(ranges: Iterable[Range], ranges_end: int) -> int:
    """Of an object with these ranges and no other."""
    return ranges_end + len(_index(ranges)) + FOOTER.size


def _index(ranges: Iterable[Range]) -> bytes:
    return json.dumps([_entry(listed) for listed in ranges], separators=(",", ":")).encode()


def _entry(listed: Range) -> list[object]:
    """One field after the other, as `_range` reads them; a list of dead records has some more."""
    extent = listed.extent
    place = [extent.position, extent.length, extent.records, extent.max_timestamp_ms, extent.checksum, extent.keys]
    place.append(extent.oldest_timestamp_ms)
    dead = [extent.object_id, extent.dead, extent.dead_position] if extent.dead else []
    return [listed.topic, listed.partition, extent.span.start, extent.span.end, *place, *dead]


def _range(object_id: str, entry: list[Any]) -> Range:
    topic, partition, start, end, position, length, records, newest, checksum, keys, oldest, *dead = entry
    extent = Extent(
        span=Span(start, end), object_id=object_id, position=position, length=length, records=records,
        max_timestamp_ms=newest, checksum=checksum, keys=keys, oldest_timestamp_ms=oldest,
    )  # fmt: skip
    if dead:
        of, count, dead_position = dead
        extent = replace(extent, object_id=of, dead=count, dead_object=object_id, dead_position=dead_position)
    return Range(topic=topic, partition=partition, extent=extent)
