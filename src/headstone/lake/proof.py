"""The proof that a key's values are erased: every object that is in the store is read, whoever points at it, and searched.

Reads only. What can't be read proves nothing: an answer is "erased", "found" or "unknown". Lists of keys hold digests under the
lake's secret and lists of dead records hold offsets; both are read, but no value is in them. Versions that a bucket keeps of
deleted objects, and parts of uploads that were given up, are the store's own and not seen from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headstone.errors import CorruptLog
from headstone.lake.commits import Extent
from headstone.lake.dead import dead_of
from headstone.lake.keyindex import halves_bytes, halves_of, keys_of
from headstone.lake.lake import MARKER, Lake
from headstone.lake.objects import FOOTER, MAGIC, Range, object_path, place_of, read_dead, read_index
from headstone.log.columns import KEY_AT, KEY_SIZE, OFFSET, VALUE_SIZE, decode
from headstone.log.reading import Payloads, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.retention.keys import HashKey, siphash_spans
from headstone.storage.stores import MissingObject

LISTINGS_MAX = 5
"""Tries to list what has come since: a copy that is made while its original is deleted must not be missed."""
ERASED, FOUND, UNKNOWN = "erased", "found", "unknown"
LIVE, DEAD, UNREFERENCED = "live", "dead", "unreferenced"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A record of the key. `state`: live and dead ones are in an extent of the log, unreferenced ones only in an object."""

    object_id: str
    partition: int
    offset: int
    tombstone: bool
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """An object that was read from its first byte to its last. `state` is the metastore's word for it."""

    object_id: str
    state: str
    bytes: int
    sha256: str
    records: int
    """Of the topic."""
    digests: int
    """Entries of lists of keys that are this key's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    path: str
    why: str


@dataclass(slots=True, kw_only=True)
class Proof:
    topic: str
    key: bytes
    searched: list[Searched] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """A tombstone is what says that the key is deleted, so it is no value; it goes in its own time."""
        if any(not sighting.tombstone for sighting in self.sightings):
            return FOUND
        return UNKNOWN if self.unread else ERASED


def prove_erased(lake: Lake, topic: str, key: bytes) -> Proof:
    """Every object of the store, read whole, and those that come meanwhile."""
    proof, seen = Proof(topic=topic, key=key), {MARKER}
    for _ in range(LISTINGS_MAX):
        fresh = [path for path in lake.store.list() if path not in seen]
        states = {row.object_id: row.state for row in lake.metastore.objects().values()} if fresh else {}
        for path in fresh:
            _search(lake, path, states, proof)
        seen.update(fresh)
        if not fresh:
            break
    else:
        proof.unread.append(Unread(path=lake.store.url, why="objects come faster than they are read: stop the writers"))
    proof.unread += [
        Unread(path=path, why="a part of an upload that is on its way or was killed; `lake gc` deletes the latter")
        for path in lake.store.staged()
    ]
    return proof


def _search(lake: Lake, path: str, states: Mapping[str, str], proof: Proof) -> None:
    object_id = path.rpartition("/")[2]
    try:
        if path != object_path(object_id):
            raise CorruptLog(file=path, position=0, offset=-1, found="not an object of the lake")
        data = lake.store.read(path, 0, lake.store.size(path))
        ranges = read_index(lake.store, object_id)
        _expect_all_told(path, object_id, data, ranges)
        parts = [part for part in ranges if part.topic == proof.topic and part.extent.object_id == object_id]
        sightings, records, digests = [], 0, 0
        for part in parts:
            hits, count = _records_of(path, data, part, proof.key)
            sightings += [(part, offset, tombstone) for offset, tombstone in hits]
            records += count
            digests += _digests_of(path, data, part, proof.key, lake.metastore.hash_key)
    except MissingObject:
        return  # collected since it was listed
    except CorruptLog as error:
        proof.unread.append(Unread(path=path, why=str(error)))
        return
    proof.searched.append(
        Searched(
            object_id=object_id, state=states.get(object_id, ORPHAN), bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(), records=records, digests=digests,
        )
    )  # fmt: skip
    proof.sightings += _judged(lake, proof.topic, sightings)


def _expect_all_told(path: str, object_id: str, data: bytes, ranges: list[Range]) -> None:
    """No byte in front of the index that it does not tell about; lists of dead records are what they say."""
    end = len(MAGIC)
    for part in ranges:
        start, stop = place_of(part, object_id)
        if start != end:
            break
        end = stop
        if part.extent.object_id != object_id and dead_of(data[start:stop], part.extent.dead, part.extent.span) is None:
            raise CorruptLog(file=path, position=start, offset=-1, found="wrong CRC-32C of a list of dead records")
    index_bytes, *_ = FOOTER.unpack(data[-FOOTER.size :])
    if end != len(data) - FOOTER.size - index_bytes:
        raise CorruptLog(file=path, position=end, offset=-1, found="bytes that its index does not tell about")


def _records_of(path: str, data: bytes, part: Range, key: bytes) -> tuple[list[tuple[int, bool]], int]:
    """(offset, is it a tombstone) of the key's records in one range, and how many records there are in all."""
    extent, hash_key, payloads = part.extent, HashKey.random(), Payloads()
    if not extent.length:
        return [], 0
    chunk = chunk_of(path, data[extent.position : extent.position + extent.length])
    hits: list[tuple[int, bool]] = []
    for arena, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), payloads):
        same = spans[spans[:, KEY_SIZE] == len(key)]
        digests = siphash_spans(arena, same[:, KEY_AT], same[:, KEY_SIZE], hash_key)
        matching = same[(digests == _digest(key, hash_key)).all(axis=1)]
        hits += [(int(row[OFFSET]), bool(row[VALUE_SIZE] < 0)) for row in matching]
    return hits, int(chunk.batches["count"].sum(dtype=np.int64))


def _digests_of(path: str, data: bytes, part: Range, key: bytes, hash_key: HashKey) -> int:
    extent = part.extent
    if extent.keys < 0:
        return 0
    start, end = extent.position + extent.length, place_of(part, extent.object_id)[1]
    border = start + halves_bytes(extent.keys)
    halves = halves_of(data[start:border])
    keys = keys_of(halves, data[border:end]) if halves is not None else None
    if keys is None:
        raise CorruptLog(file=path, position=start, offset=-1, found="wrong CRC-32C of a list of keys")
    return int((keys.digests == _digest(key, hash_key)).all(axis=1).sum())


def _digest(key: bytes, hash_key: HashKey) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    data = np.frombuffer(key or b"\0", dtype=np.uint8)
    return siphash_spans(data, np.array([0]), np.array([len(key)]), hash_key)


def _judged(lake: Lake, topic: str, found: list[tuple[Range, int, bool]]) -> Iterator[Sighting]:
    for range_, offset, tombstone in found:
        extent = _pointing_at(lake, topic, range_)
        state = UNREFERENCED if extent is None else DEAD if offset in read_dead(lake.store, extent) else LIVE
        yield Sighting(
            object_id=range_.extent.object_id,
            partition=range_.partition,
            offset=offset,
            tombstone=tombstone,
            state=state,
        )


def _pointing_at(lake: Lake, topic: str, found: Range) -> Extent | None:
    """The extent of the log whose bytes these are."""
    extents = lake.metastore.partition(TopicPartition(topic, found.partition)).extents
    place = (found.extent.object_id, found.extent.position)
    return next((extent for extent in extents if (extent.object_id, extent.position) == place and extent.length), None)
