"""The objects of the lake: ranges of record batches in Kafka's own encoding, an index of them, a footer.

    magic (8)  ranges, back to back  index (JSON)  index length (4)  CRC-32C of the index (4)  magic (8)

A range holds the batches of one extent followed by the list of their keys (`keyindex`), or the list of dead records of an
extent that lies in another object (`dead`).

Written in one stream, read by range. The metastore knows where each range is and the checksum of every part of it, so
readers do not need the index. The index makes an object explain itself: it names its lake and itself. Bytes whose checksum
differs from the metastore's are refused; the index then tells whether they are damaged or belong to another object.
docs/rfcs/0002-lake.md.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from headstone.errors import CorruptLog, HeadstoneError, Unfinished
from headstone.lake.format.dead import NONE, dead_bytes, dead_of, dead_section, without_dead
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import (
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
    section_checksum,
)
from headstone.lake.format.spans import Span
from headstone.log.reading import Chunk, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.retention.keys import HashKey
from headstone.storage.stores import PART_BYTES, ByteSink, MissingObject, Store

MAGIC = b"HEADST\x00\x05"
"""The last byte is the version."""
FOOTER = struct.Struct(">II8s")
assert FOOTER.size == 16
OBJECT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PUT_BACK = (
    "restore this object from a backup or from the bucket's version history; `headstone lake status LAKE --check --deep` lists "
    "all damaged objects, and docs/lake.md says what to do without a backup"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The index entry of one extent: its partition and its place. A list of dead records is an extent with its marks."""

    topic: str
    partition: int
    extent: Extent


def place_of(part: Range, object_id: str) -> tuple[int, int]:
    """Position and length of a range in this object, including the list of keys behind it."""
    extent = part.extent
    if extent.object_id != object_id:
        return extent.dead_position, extent.dead_position + dead_bytes(extent.dead, extent.span)
    return extent.position, extent.position + extent.length + section_bytes(extent.keys)


def object_path(object_id: str) -> str:
    """Spread by the first digits: stores partition their keys by prefix."""
    return f"objects/{object_id[:2]}/{object_id}"


def is_object_path(path: str) -> bool:
    """Whether a path may be an object's, judged by its name alone."""
    object_id = path.rpartition("/")[2]
    return path == object_path(object_id) and OBJECT_ID.fullmatch(object_id) is not None


class ObjectWriter:
    """Writes ranges of any number of partitions into one object. `size` is known once it is finished."""

    def __init__(self, object_id: str, lake_id: str, sink: ByteSink) -> None:
        self.object_id = object_id
        self.lake_id = lake_id
        self.ranges: list[Range] = []
        self.size = 0
        self._sink = sink
        self._write(MAGIC)

    def add(
        self, topic: str, partition: int, span: Span, chunks: Iterable[bytes], *, records: int, max_timestamp_ms: int,
        oldest_timestamp_ms: int | None = None, keys: KeyList | None = None,
    ) -> Extent:  # fmt: skip
        """`chunks`: whole record batches, in order; none makes a span without records.

        `oldest_timestamp_ms` None: the newest is also the oldest, as in a single batch."""
        keys = keys if keys is not None and keys.fits else None
        halves, rest = (b"", b"") if keys is None else key_section(keys)
        position, checksum = self.size, 0
        for chunk in chunks:
            checksum = google_crc32c.extend(checksum, chunk)
            self._write(chunk)
        extent = Extent(
            span=span, object_id=self.object_id, position=position, length=self.size - position, records=records,
            max_timestamp_ms=max_timestamp_ms, checksum=checksum, keys=-1 if keys is None else keys.offsets.size,
            oldest_timestamp_ms=max_timestamp_ms if oldest_timestamp_ms is None else oldest_timestamp_ms,
            halves_checksum=section_checksum(halves), rest_checksum=section_checksum(rest),
        )  # fmt: skip
        self._write(halves)
        self._write(rest)
        self.ranges.append(Range(topic=topic, partition=partition, extent=extent))
        return extent

    def mark(self, topic: str, partition: int, extent: Extent, dead: Offsets) -> Extent:
        """The extent with these records dead. `dead` includes the records that were dead before."""
        section = dead_section(dead, extent.span)
        marked = replace(
            extent, records=extent.records + extent.dead - dead.size, dead=dead.size, dead_object=self.object_id,
            dead_position=self.size, dead_checksum=section_checksum(section),
        )  # fmt: skip
        self._write(section)
        self.ranges.append(Range(topic=topic, partition=partition, extent=marked))
        return marked

    def finish(self) -> None:
        index = _index(self.lake_id, self.object_id, self.ranges)
        self._write(index)
        self._write(FOOTER.pack(len(index), google_crc32c.value(index), MAGIC))

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self.size += len(data)


@contextmanager
def writing_object(
    store: Store, object_id: str, lake_id: str, *, part_bytes: int = PART_BYTES
) -> Iterator[ObjectWriter]:
    """The whole object is in the store when the block has ended without an error; otherwise it is not there."""
    with store.writing(object_path(object_id), part_bytes=part_bytes) as sink:
        writer = ObjectWriter(object_id, lake_id, sink)
        yield writer
        writer.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An object in the store, and its index."""

    object_id: str
    size: int
    ranges: tuple[Range, ...]

    @property
    def extents(self) -> list[Extent]:
        return [listed.extent for listed in self.ranges]


def write_once(store: Store, object_id: str, lake_id: str, fill: Callable[[ObjectWriter], None]) -> Stored:
    """For tasks, which may run twice: never replaces an object. If it exists, what its own index says counts.

    The object is uploaded in one piece, because only then can stores refuse to overwrite it. So it must fit into memory."""
    pieces = _Pieces()
    writer = ObjectWriter(object_id, lake_id, pieces)
    fill(writer)
    writer.finish()
    path = object_path(object_id)
    if store.put(path, b"".join(pieces.written), create=True):
        return Stored(object_id=object_id, size=writer.size, ranges=tuple(writer.ranges))
    twin = Stored(object_id=object_id, size=store.size(path), ranges=tuple(read_index(store, object_id, lake_id)))
    if [_kept(listed) for listed in twin.ranges] != [_kept(listed) for listed in writer.ranges]:
        raise Unfinished(f"{store.url}/{path} does not contain what this task wrote; run it again")
    return twin


class _Pieces:
    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


def _kept(listed: Range) -> tuple[object, ...]:
    """What two writers of the same range agree on, whatever bytes their codecs produce."""
    extent = listed.extent
    return listed.topic, listed.partition, extent.span, extent.records, extent.dead, extent.keys


def read_extent(store: Store, extent: Extent) -> bytes:
    """The record batches of an extent, with the checksum verified; dead records are still in them."""
    return bytes(_view_of(store, extent))


def read_chunk(store: Store, extent: Extent) -> Chunk:
    """As `read_extent`, parsed. The checksum of the whole covers those of its batches, which were right when it was written."""
    return chunk_of(_file_of(store, extent), _view_of(store, extent), checksums=False)


def _view_of(store: Store, extent: Extent) -> memoryview:
    data = _bytes_of(store, extent.object_id, extent.position, extent.length, extent)
    # As an array, which the library need not release.
    if google_crc32c.value(np.frombuffer(data, dtype=np.uint8)) != extent.checksum:
        raise _damaged(store, extent.object_id, extent.position, extent, "record batches")
    return data


def _bytes_of(store: Store, object_id: str, position: int, length: int, extent: Extent) -> memoryview:
    """An object that ends too early is damaged: asking again would not help."""
    path = object_path(object_id)
    try:
        return store.view(path, position, length)
    except MissingObject:
        raise
    except Unfinished:
        if store.size(path) >= position + length:
            raise
    raise CorruptLog(
        file=f"{store.url}/{path}", position=position, offset=extent.span.start,
        problem=f"the object is truncated: {store.size(path)} bytes, {position + length} expected at least", advice=PUT_BACK,
    )  # fmt: skip


def _file_of(store: Store, extent: Extent) -> str:
    return f"{store.url}/{object_path(extent.object_id)}"


def read_live(store: Store, extent: Extent) -> bytes:
    """The record batches of an extent as if its dead records had been compacted away."""
    if not extent.dead:
        return read_extent(store, extent)
    return without_dead(read_chunk(store, extent), read_dead(store, extent))


def read_halves(store: Store, extent: Extent) -> Halves:
    """The first part of an extent's list of keys, with the checksum verified. The extent must have a list."""
    position = extent.position + extent.length
    section = bytes(_bytes_of(store, extent.object_id, position, halves_bytes(extent.keys), extent))
    halves = halves_of(section) if section_checksum(section) == extent.halves_checksum else None
    if halves is None:
        raise _damaged(store, extent.object_id, position, extent, "list of keys")
    return halves


def read_keys(store: Store, extent: Extent, halves: Halves | None = None) -> KeyList:
    """The verified list of an extent's keys, dead records included. `halves`: its first part, if already read."""
    if halves is None:
        halves = read_halves(store, extent)
    position = extent.position + extent.length + halves_bytes(extent.keys)
    section = bytes(_bytes_of(store, extent.object_id, position, rest_bytes(extent.keys), extent))
    keys = keys_of(halves, section) if section_checksum(section) == extent.rest_checksum else None
    if keys is None:
        raise _damaged(store, extent.object_id, position, extent, "list of keys")
    return keys


def keys_of_extent(store: Store, extent: Extent, hash_key: HashKey) -> KeyList:
    """The list of an extent's keys; made from its batches if it has none, because its offsets are too far apart."""
    if not extent.length:
        return NO_KEYS
    if extent.keys >= 0:
        return read_keys(store, extent)
    return keys_in([read_chunk(store, extent)], hash_key)


def list_bytes(extent: Extent) -> int:
    """Bytes that `keys_of_extent` reads."""
    return section_bytes(extent.keys) if extent.keys >= 0 else extent.length


def read_dead(store: Store, extent: Extent) -> Offsets:
    """Offsets of the dead records of an extent, in order, with the checksum verified."""
    if extent.dead_object is None:
        return NONE
    length = dead_bytes(extent.dead, extent.span)
    section = bytes(_bytes_of(store, extent.dead_object, extent.dead_position, length, extent))
    dead = dead_of(section, extent.dead, extent.span) if section_checksum(section) == extent.dead_checksum else None
    if dead is None:
        raise _damaged(store, extent.dead_object, extent.dead_position, extent, "list of dead records")
    return dead


def _damaged(store: Store, object_id: str, position: int, extent: Extent, what: str) -> CorruptLog:
    """For bytes without the metastore's checksum: damaged, or part of another object, if its index says so."""
    changed = f"wrong CRC-32C of the {what}: the bytes are not what was uploaded"
    problem = stranger(store, object_id) or changed
    return CorruptLog(
        file=f"{store.url}/{object_path(object_id)}", position=position, offset=extent.span.start, problem=problem,
        advice=PUT_BACK,
    )  # fmt: skip


def stranger(store: Store, object_id: str) -> str | None:
    """A description of the object stored under this name, if its index says that it is another object."""
    try:
        lake_id, name, _ = _contents(store, object_id)
    except HeadstoneError:
        return None
    if name == object_id:
        return None
    return f"this is object {name} of lake {lake_id}: files were swapped, or another object's backup was restored here"


def is_of_another_lake(store: Store, object_id: str, lake_id: str) -> bool:
    """Whether an undamaged object says that it belongs to another lake. A truncated upload says nothing."""
    try:
        return _contents(store, object_id)[0] != lake_id
    except (CorruptLog, MissingObject):
        return False


def read_index(store: Store, object_id: str, lake_id: str) -> list[Range]:
    """The index of an object. An object with another name, or of another lake, is refused."""
    found_lake, name, entries = _contents(store, object_id)
    if (found_lake, name) != (lake_id, object_id):
        raise _strange(
            store, object_path(object_id), 0,
            f"this is object {name} of lake {found_lake}, and not {object_id} of lake {lake_id}: files were exchanged, or a "
            "backup of another object was put here",
        )  # fmt: skip
    return [_range(object_id, entry) for entry in entries]


def _contents(store: Store, object_id: str) -> tuple[str, str, list[list[Any]]]:
    """The lake and the object that it claims to be, and its ranges."""
    path = object_path(object_id)
    size = store.size(path)
    if size < len(MAGIC) + FOOTER.size:
        raise _strange(store, path, size, "too short for a lake object")
    length, checksum, magic = FOOTER.unpack(store.read(path, size - FOOTER.size, FOOTER.size))
    index_start = size - FOOTER.size - length
    if magic != MAGIC or index_start < len(MAGIC):
        raise _strange(store, path, size, "no footer of this version: not a lake object, or one of another version")
    index = store.read(path, index_start, length)
    if google_crc32c.value(index) != checksum:
        raise _strange(store, path, index_start, "wrong CRC-32C of the index")
    lake_id, name, entries = json.loads(index)
    return str(lake_id), str(name), entries


def _strange(store: Store, path: str, position: int, problem: str) -> CorruptLog:
    return CorruptLog(file=f"{store.url}/{path}", position=position, offset=-1, problem=problem, advice=PUT_BACK)


def size_of(lake_id: str, object_id: str, ranges: Iterable[Range], ranges_end: int) -> int:
    """Size of an object with exactly these ranges."""
    return ranges_end + len(_index(lake_id, object_id, ranges)) + FOOTER.size


def _index(lake_id: str, object_id: str, ranges: Iterable[Range]) -> bytes:
    return json.dumps([lake_id, object_id, [_entry(listed) for listed in ranges]], separators=(",", ":")).encode()


def _entry(listed: Range) -> list[object]:
    """The fields in the order in which `_range` reads them. A list of dead records has some more."""
    extent = listed.extent
    place = [extent.position, extent.length, extent.records, extent.max_timestamp_ms, extent.checksum, extent.keys]
    place += [extent.oldest_timestamp_ms, extent.halves_checksum, extent.rest_checksum]
    dead = [extent.object_id, extent.dead, extent.dead_position, extent.dead_checksum] if extent.dead else []
    return [listed.topic, listed.partition, extent.span.start, extent.span.end, *place, *dead]


def _range(object_id: str, entry: list[Any]) -> Range:
    topic, partition, start, end, position, length, records, newest, checksum, keys, *more = entry
    oldest, halves_checksum, rest_checksum, *dead = more
    extent = Extent(
        span=Span(start, end), object_id=object_id, position=position, length=length, records=records,
        max_timestamp_ms=newest, checksum=checksum, keys=keys, oldest_timestamp_ms=oldest, halves_checksum=halves_checksum,
        rest_checksum=rest_checksum,
    )  # fmt: skip
    if dead:
        of, count, dead_position, dead_checksum = dead
        extent = replace(
            extent,
            object_id=of,
            dead=count,
            dead_object=object_id,
            dead_position=dead_position,
            dead_checksum=dead_checksum,
        )
    return Range(topic=topic, partition=partition, extent=extent)


class NamedBytes(NamedTuple):
    """A range of bytes in an object, and what it holds."""

    start: int
    end: int
    what: str


def places(topic_partition: TopicPartition, extent: Extent) -> Iterator[tuple[str, NamedBytes]]:
    """Where an extent's bytes are, by object: its batches with the list of keys, and the list of dead records."""
    end = extent.position + extent.length + section_bytes(extent.keys)
    yield extent.object_id, NamedBytes(extent.position, end, f"{topic_partition} {extent.span}")
    if extent.dead_object is not None:
        end = extent.dead_position + dead_bytes(extent.dead, extent.span)
        yield (
            extent.dead_object,
            NamedBytes(extent.dead_position, end, f"dead records of {topic_partition} {extent.span}"),
        )
