"""The proof that a key's values are erased: every object that is in the store is read, whoever points at it, and searched.

Reads only. What can't be read proves nothing: an answer is "erased", "not erased" or "unproven". Lists of keys hold digests
under the lake's secret and lists of dead records hold offsets; both are read, but no value is in them. The journal remembers
an erasure by the key's digest, which is counted: that is no value either, and what shows that the erasure was asked for.
Versions that a bucket keeps of deleted objects, and parts of uploads that were given up, are the store's own and not seen
from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headstone.errors import CorruptLog
from headstone.lake.changes import REGISTERED
from headstone.lake.commits import Partition
from headstone.lake.dead import dead_of
from headstone.lake.journal import is_journal
from headstone.lake.key_search import Digests, digest_of, digest_rows, matching
from headstone.lake.keyindex import halves_bytes, halves_of, keys_of
from headstone.lake.lake import MARKER, Lake
from headstone.lake.objects import FOOTER, MAGIC, Range, object_path, place_of, read_dead, read_index
from headstone.log.columns import HEADERS_END, OFFSET, decode
from headstone.log.reading import Chunk, Payloads, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from headstone.storage.stores import MissingObject

LISTINGS_MAX = 5
"""Tries to list what has come since: a copy that is made while its original is deleted must not be missed."""
ERASED, FOUND, UNKNOWN = "erased", "not erased", "unproven"
LIVE, DEAD, UNREFERENCED = "live", "dead", "unreferenced"
ORPHAN = "orphan"
MENTIONS_MAX = 100
"""That are told one by one; a short key may be everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A record of the key. `state`: live and dead ones are in an extent of the log, unreferenced ones only in an object."""

    object_id: str
    position: int
    """Of the batches that it is in."""
    partition: int
    offset: int
    tombstone: bool
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """The key's bytes somewhere else, in whatever: at this position of the object, or in a compressed batch behind it."""

    object_id: str
    position: int
    offset: int | None
    """Of the record, where it is compressed."""


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
    """`anywhere`: the key's bytes were searched for in all that there is, and neither they nor a tombstone may be left."""

    topic: str
    key: bytes
    key_digest: str
    anywhere: bool
    started_ms: int
    partitions: dict[TopicPartition, Partition]
    """As they were when it began."""
    finished_ms: int = 0
    searched: list[Searched] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    mentions_count: int = 0
    journal_objects: int = 0
    """Of the journal of commits: offsets, sizes, settings, and erasures by the digest of their key."""
    journal_digests: int = 0
    """Lines of these that are of this key's erasure: that it was asked for, and its steps."""
    unread: list[Unread] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """A tombstone is what says that the key is deleted, so it is no value; it goes in its own time."""
        if any(self.anywhere or not sighting.tombstone for sighting in self.sightings) or self.mentions_count:
            return FOUND
        return UNKNOWN if self.unread else ERASED

    def mention(self, mention: Mention) -> None:
        self.mentions_count += 1
        if len(self.mentions) < MENTIONS_MAX:
            self.mentions.append(mention)


def sealed(document: Mapping[str, object]) -> dict[str, object]:
    """With the SHA-256 of all the rest, as JSON of sorted names without spaces: whoever edits it has to make another one."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return {**rest, "sha256": hashlib.sha256(content).hexdigest()}


def prove_erased(lake: Lake, topic: str, key: bytes, *, anywhere: bool = False, board: Board | None = None) -> Proof:
    """Every object of the store, read whole, and those that come meanwhile. `anywhere`: not only records of the topic."""
    own = [partition for partition in lake.metastore.partitions() if partition.topic == topic]
    proof = Proof(
        topic=topic, key=key, key_digest=digest_of(key, lake.metastore.hash_key), anywhere=anywhere and key != b"",
        started_ms=lake.metastore.clock(), partitions={partition: lake.metastore.partition(partition) for partition in own},
    )  # fmt: skip
    on_their_way, seen = _uploads(lake), {MARKER}
    for _ in range(LISTINGS_MAX):
        fresh = [path for path in lake.store.list() if path not in seen]
        states = {row.object_id: row.state for row in lake.metastore.objects().values()} if fresh else {}
        sizes = _sizes(lake, fresh, board)
        for path in fresh:
            count = len(proof.searched)
            _search(lake, path, states, proof)
            if board is not None:
                records = sum(searched.records for searched in proof.searched[count:])
                board.note(board.numbers(1)[0], sizes[path], records)
        seen.update(fresh)
        if not fresh:
            break
    else:
        proof.unread.append(Unread(path=lake.store.url, why="objects come faster than they are read: stop the writers"))
    parts = "a part of an upload that is on its way or was killed; `lake gc` deletes the latter"
    proof.unread += [Unread(path=path, why=parts) for path in lake.store.staged()]
    upload = "an upload that has not ended since before the proof began; `lake gc` gives up those of killed writers"
    proof.unread += [
        Unread(path=object_path(object_id), why=upload)
        for object_id in sorted(on_their_way & _uploads(lake))
        if object_path(object_id) not in seen
    ]
    proof.finished_ms = lake.metastore.clock()
    return proof


def _sizes(lake: Lake, paths: Collection[str], board: Board | None) -> Mapping[str, int]:
    """Of these objects, for whoever shows how far it is; 0 for one that is gone already."""
    if board is None or not paths:
        return {}
    sizes = dict.fromkeys(paths, 0)
    sizes |= {entry.path: entry.size for entry in lake.store.entries() if entry.path in sizes}
    board.expect(sum(sizes.values()))
    return sizes


def _uploads(lake: Lake) -> set[str]:
    return {row.object_id for row in lake.metastore.objects().values() if row.state == REGISTERED}


def _search(lake: Lake, path: str, states: Mapping[str, str], proof: Proof) -> None:
    object_id = path.rpartition("/")[2]
    looking = _Looking(lake, path, object_id, proof)
    try:
        if is_journal(lake.store, path):
            content = lake.store.read(path, 0, lake.store.size(path))
            proof.journal_objects += 1
            proof.journal_digests += content.count(f'"{proof.key_digest}"'.encode())
            return
        if path != object_path(object_id):
            raise CorruptLog(file=path, position=0, offset=-1, problem="not an object of the lake")
        size = looking.look()
    except MissingObject:
        return  # collected since it was listed
    except CorruptLog as error:
        proof.unread.append(Unread(path=path, why=str(error)))
        return
    proof.searched.append(
        Searched(
            object_id=object_id, state=states.get(object_id, ORPHAN), bytes=size, sha256=looking.hash.hexdigest(),
            records=looking.records, digests=looking.digests,
        )
    )  # fmt: skip
    proof.sightings += _judged(lake, proof, looking.matches)


class _Looking:
    """One object, range after range: what is in memory is one of them."""

    def __init__(self, lake: Lake, path: str, object_id: str, proof: Proof) -> None:
        self.hash = hashlib.sha256()
        self.records = self.digests = 0
        self.matches: list[tuple[Range, int, bool]] = []
        self._lake, self._path, self._object_id, self._proof = lake, path, object_id, proof
        self._wanted = digest_rows([proof.key_digest])
        self._position, self._tail = 0, b""

    def look(self) -> int:
        """How long it is. Every byte is told by the index, or is an error."""
        size = self._lake.store.size(self._path)
        ranges = read_index(self._lake.store, self._object_id)
        self._take(len(MAGIC))
        for part in ranges:
            start, stop = place_of(part, self._object_id)
            if start != self._position:
                break
            self._search(part, self._take(stop - start))
        index_bytes, *_ = FOOTER.unpack(self._lake.store.read(self._path, size - FOOTER.size, FOOTER.size))
        if self._position != size - FOOTER.size - index_bytes:
            raise CorruptLog(
                file=self._path, position=self._position, offset=-1, problem="bytes that its index does not tell about"
            )
        self._take(size - self._position)
        return size

    def _take(self, length: int) -> bytes:
        """The next bytes; wherever the key's bytes begin in them, or have begun in front of them, is noted."""
        data = self._lake.store.read(self._path, self._position, length)
        self.hash.update(data)
        if self._proof.anywhere:
            joined, first = self._tail + data, self._position - len(self._tail)
            place = joined.find(self._proof.key)
            while place >= 0:
                self._proof.mention(Mention(object_id=self._object_id, position=first + place, offset=None))
                place = joined.find(self._proof.key, place + 1)
            self._tail = joined[len(joined) - len(self._proof.key) + 1 :] if len(self._proof.key) > 1 else b""
        self._position += length
        return data

    def _search(self, part: Range, data: bytes) -> None:
        extent, own = part.extent, part.topic == self._proof.topic
        if extent.object_id != self._object_id:
            if dead_of(data, extent.dead, extent.span) is None:
                raise self._wrong(extent.dead_position, "a list of dead records")
            return
        if extent.length and (own or self._proof.anywhere):
            chunk = chunk_of(self._path, data[: extent.length])
            if self._proof.anywhere:
                self._mentions(chunk, extent.position)
            if own:
                self.records += int(chunk.batches["count"].sum(dtype=np.int64))
                hash_key = self._lake.metastore.hash_key
                hits = matching(chunk, self._wanted, hash_key)
                self.matches += [(part, offset, tombstone) for _, offset, tombstone in hits]
        if own and extent.keys >= 0:
            self.digests += self._listed(part, data[extent.length :])

    def _listed(self, part: Range, section: bytes) -> int:
        extent = part.extent
        border = halves_bytes(extent.keys)
        halves = halves_of(section[:border])
        keys = keys_of(halves, section[border:]) if halves is not None else None
        if keys is None:
            raise self._wrong(extent.position + extent.length, "a list of keys")
        return _count(keys.digests, self._wanted)

    def _mentions(self, chunk: Chunk, position: int) -> None:
        """In batches that are compressed; what is not was seen as it lies there."""
        packed = (chunk.batches["count"] > 0) & (chunk.batches["codec"] != 0)
        for arena, spans in decode(chunk, np.flatnonzero(packed), Payloads()) if packed.any() else ():
            content = arena[: int(spans[-1, HEADERS_END])].tobytes()
            place = content.find(self._proof.key)
            while place >= 0:
                self._mention(spans, place, position)
                place = content.find(self._proof.key, place + 1)

    def _mention(self, spans: np.ndarray[tuple[int, int], np.dtype[np.int64]], place: int, position: int) -> None:
        row = int(np.searchsorted(spans[:, HEADERS_END], place, side="right"))
        offset = int(spans[min(row, len(spans) - 1), OFFSET])
        self._proof.mention(Mention(object_id=self._object_id, position=position, offset=offset))

    def _wrong(self, position: int, what: str) -> CorruptLog:
        return CorruptLog(file=self._path, position=position, offset=-1, problem=f"wrong CRC-32C of {what}")


def _count(digests: Digests, wanted: Digests) -> int:
    return int((digests == wanted).all(axis=1).sum())


def _judged(lake: Lake, proof: Proof, matches: list[tuple[Range, int, bool]]) -> Iterator[Sighting]:
    for listed, offset, tombstone in matches:
        state = _state(lake, proof.topic, listed, offset)
        yield Sighting(
            object_id=listed.extent.object_id, position=listed.extent.position, partition=listed.partition, offset=offset,
            tombstone=tombstone, state=state,
        )  # fmt: skip


def _state(lake: Lake, topic: str, listed: Range, offset: int) -> str:
    """By the extent of the log whose bytes these are, if there is one."""
    topic_partition = TopicPartition(topic, listed.partition)
    exists = topic_partition in lake.metastore.partitions()
    place = (listed.extent.object_id, listed.extent.position)
    for extent in lake.metastore.partition(topic_partition).extents if exists else ():
        if extent.length and (extent.object_id, extent.position) == place:
            return DEAD if offset in read_dead(lake.store, extent) else LIVE
    return UNREFERENCED
