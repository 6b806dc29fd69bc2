"""The proof that a key's values are erased: reads and searches every object in the store, whether anything points at it or not.

Reads only. What can't be read proves nothing: an answer is "erased", "not erased", "unproven"; or "never seen here" for a key
without any record and without a known erasure, such as a misspelt one. For a dropped topic the question may be about all of it:
whether any of its records is left. Lists of keys hold digests under the lake's secret and lists of dead records hold offsets;
both are read, but no value is in them. The journal remembers an erasure by the key's digest. These are counted: they are no
values either, and they show that the erasure was requested. Versions that a bucket keeps of deleted objects, and parts of
abandoned uploads, belong to the store and are not visible from here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from headstone.errors import CorruptLog
from headstone.lake.format.dead import dead_of
from headstone.lake.format.keyindex import halves_bytes, halves_of, keys_of
from headstone.lake.format.objects import FOOTER, MAGIC, Range, object_path, place_of, read_dead, read_index
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.jobs.key_search import Digests, digest_of, digest_rows, matching
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition
from headstone.lake.metastore.erasure_steps import WHOLE
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.journal import is_journal
from headstone.lake.metastore.object_accounts import accounts_of
from headstone.lake.metastore.object_states import REGISTERED
from headstone.log.columns import HEADERS_END, OFFSET, decode
from headstone.log.reading import Chunk, Payloads, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from headstone.storage.redaction import address
from headstone.storage.stores import MissingObject

LISTINGS_MAX = 5
"""Listings to find objects that have come since: a copy made while its original is deleted must not be missed."""
ERASED, FOUND, UNKNOWN, NEVER_SEEN = "erased", "not erased", "unproven", "never seen here"
LIVE, DEAD, UNREFERENCED = "live", "dead", "unreferenced"
ORPHAN = "orphan"
MENTIONS_MAX = 100
"""Mentions listed one by one; a short key may be everywhere."""


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
    """The key's bytes anywhere else: at this position of the object or, with an `offset`, in a compressed batch of the extent
    there."""

    object_id: str
    position: int
    offset: int | None
    """Of the record, if it is compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """Batches of a dropped topic. `state` is the metastore's, for the object."""

    object_id: str
    position: int
    partition: int
    records: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """An object that was read from its first byte to its last. `state` is the metastore's."""

    object_id: str
    state: str
    bytes: int
    sha256: str
    records: int
    """Of the topic."""
    digests: int
    """Entries of this key in lists of keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    path: str
    why: str


@dataclass(slots=True, kw_only=True)
class Proof:
    """`anywhere`: all bytes in the store were searched for the key, and neither these nor a tombstone may be left."""

    topic: str
    key: bytes | None
    """None: all of a dropped topic."""
    key_digest: str
    was_seen: bool
    """Records of it are known to have been here."""
    anywhere: bool
    started_ms: int
    partitions: dict[TopicPartition, Partition]
    """As they were when the proof began."""
    finished_ms: int = 0
    searched: list[Searched] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)
    remnants: list[Remnant] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    mentions_count: int = 0
    journal_objects: int = 0
    """Objects of the journal of commits: offsets, sizes, settings, and erasures by the digest of their key."""
    journal_digests: int = 0
    """Lines in these about this key's erasure: its request and its steps."""
    unread: list[Unread] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """A tombstone says that the key is deleted, so it is no value; it goes in its own time."""
        if any(self.anywhere or not sighting.tombstone for sighting in self.sightings) or self.mentions_count:
            return FOUND
        if self.remnants or self.unread:
            return FOUND if self.remnants else UNKNOWN
        was_seen = self.was_seen or self.sightings or any(searched.digests for searched in self.searched)
        return ERASED if was_seen else NEVER_SEEN

    @property
    def is_made_again(self) -> bool:
        """The proof is about a dropped topic, and a new topic has its name now: the verdict is not about the new one."""
        return self.key is None and bool(self.partitions)

    def mention(self, mention: Mention) -> None:
        self.mentions_count += 1
        if len(self.mentions) < MENTIONS_MAX:
            self.mentions.append(mention)


def sealed(document: Mapping[str, object]) -> dict[str, object]:
    """With the SHA-256 of all the rest, as JSON with sorted names and without spaces: an edited document has another one."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return {**rest, "sha256": hashlib.sha256(content).hexdigest()}


def proof_document(lake: Lake, proof: Proof, *, version: str) -> dict[str, object]:
    """Sealed. `version`: that of the program."""
    return sealed({
        "lake": lake.metastore.lake_id, "objects_url": address(lake.metastore.location), "version": version,
        "topic": proof.topic, "key_hex": None if proof.key is None else proof.key.hex(), "key_digest": proof.key_digest,
        "anywhere": proof.anywhere, "was_seen": proof.was_seen, "made_again": proof.is_made_again,
        "verdict": proof.verdict,
        "started_ms": proof.started_ms, "finished_ms": proof.finished_ms,
        "partitions": [
            {
                "partition": str(name), "start_offset": partition.start_offset, "next_offset": partition.next_offset,
                "compaction_epoch": partition.compaction_epoch, "extents": len(partition.extents),
            }
            for name, partition in sorted(proof.partitions.items())
        ],
        "bytes": sum(searched.bytes for searched in proof.searched),
        "found": [asdict(sighting) for sighting in proof.sightings],
        "remnants": [asdict(remnant) for remnant in proof.remnants],
        "mentions_count": proof.mentions_count, "mentions": [asdict(mention) for mention in proof.mentions],
        "objects": [asdict(searched) for searched in proof.searched],
        "journal": {"objects": proof.journal_objects, "digests": proof.journal_digests},
        "unread": [asdict(unread) for unread in proof.unread],
    })  # fmt: skip


def prove_erased(
    lake: Lake, topic: str, key: bytes | None, *, anywhere: bool = False, board: Board | None = None
) -> Proof:  # fmt: skip
    """Reads every object of the store completely, and those that come meanwhile. `anywhere`: not only records of the topic.

    `key` None: all of a dropped topic, but not a new one with its name."""
    key_digest = WHOLE if key is None else digest_of(key, lake.metastore.hash_key)
    asked = next((erasure for erasure in Erasures(lake.metastore).of(topic) if erasure.key_digest == key_digest), None)
    own = [partition for partition in lake.metastore.partitions() if partition.topic == topic]
    proof = Proof(
        topic=topic, key=key, key_digest=key_digest, anywhere=anywhere and bool(key),
        was_seen=asked is not None and asked.seen,
        started_ms=lake.metastore.clock(), partitions={partition: lake.metastore.partition(partition) for partition in own},
    )  # fmt: skip
    on_their_way, seen = _uploads(lake), {MARKER, OWNER}
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
    """Sizes of these objects, for progress; 0 for one that is gone already."""
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
        if is_journal(lake.store, path, lake.metastore.lake_id):
            content = lake.store.read(path, 0, lake.store.size(path))
            proof.journal_objects += 1
            asked = f'"{proof.key_digest}"' if proof.key is not None else f'["{proof.topic}","{WHOLE}"]'
            proof.journal_digests += content.count(asked.encode())
            return
        if path != object_path(object_id):
            raise CorruptLog(file=path, position=0, offset=-1, problem="not a lake object")
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
    proof.remnants += [replace(remnant, state=states.get(object_id, ORPHAN)) for remnant in looking.remnants]


class _Looking:
    """One object, range after range: only one range is in memory."""

    def __init__(self, lake: Lake, path: str, object_id: str, proof: Proof) -> None:
        self.hash = hashlib.sha256()
        self.records = self.digests = 0
        self.matches: list[tuple[Range, int, bool]] = []
        self._lake, self._path, self._object_id, self._proof = lake, path, object_id, proof
        self.remnants: list[Remnant] = []
        self._wanted = digest_rows([] if proof.key is None else [proof.key_digest])
        self._own_positions: set[int] | None = None
        self._position, self._tail = 0, b""

    def look(self) -> int:
        """Returns its length. Every byte is explained by the index, or is an error."""
        size = self._lake.store.size(self._path)
        ranges = read_index(self._lake.store, self._object_id, self._lake.metastore.lake_id)
        self._take(len(MAGIC))
        for part in ranges:
            start, stop = place_of(part, self._object_id)
            if start != self._position:
                break
            self._search(part, self._take(stop - start))
        index_bytes, *_ = FOOTER.unpack(self._lake.store.read(self._path, size - FOOTER.size, FOOTER.size))
        if self._position != size - FOOTER.size - index_bytes:
            raise CorruptLog(
                file=self._path, position=self._position, offset=-1, problem="bytes that are not in its index"
            )
        self._take(size - self._position)
        return size

    def _take(self, length: int) -> bytes:
        """The next bytes. Notes each place where the key's bytes begin in them, or began before them."""
        data = self._lake.store.read(self._path, self._position, length)
        self.hash.update(data)
        key = self._proof.key
        if self._proof.anywhere and key:
            joined, first = self._tail + data, self._position - len(self._tail)
            place = joined.find(key)
            while place >= 0:
                self._proof.mention(Mention(object_id=self._object_id, position=first + place, offset=None))
                place = joined.find(key, place + 1)
            self._tail = joined[len(joined) - len(key) + 1 :] if len(key) > 1 else b""
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
                records = int(chunk.batches["count"].sum(dtype=np.int64))
                self.records += records
                if self._proof.key is None:
                    self._remains(part, records)
                else:
                    hits = matching(chunk, self._wanted, self._lake.metastore.hash_key)
                    self.matches += [(part, offset, tombstone) for _, offset, tombstone in hits]
        if own and extent.keys >= 0:
            self.digests += self._listed(part, data[extent.length :])

    def _remains(self, part: Range, records: int) -> None:
        """Notes batches of a dropped topic, unless they belong to a new topic with its name, now or in its past."""
        if self._own_positions is None:
            accounts = accounts_of(self._lake.metastore, [self._object_id])
            ranges = accounts[self._object_id].ranges if accounts else ()
            self._own_positions = {listed.extent.position for listed in ranges if listed.topic == part.topic}
        position = part.extent.position
        if position not in self._own_positions:
            remnant = Remnant(
                object_id=self._object_id, position=position, partition=part.partition, records=records, state=""
            )  # fmt: skip
            self.remnants.append(remnant)

    def _listed(self, part: Range, section: bytes) -> int:
        extent = part.extent
        border = halves_bytes(extent.keys)
        halves = halves_of(section[:border])
        keys = keys_of(halves, section[border:]) if halves is not None else None
        if keys is None:
            raise self._wrong(extent.position + extent.length, "a list of keys")
        return _count(keys.digests, self._wanted) if self._proof.key is not None else 0

    def _mentions(self, chunk: Chunk, position: int) -> None:
        """In compressed batches; the others' bytes were searched as they are stored."""
        key = self._proof.key or b""
        packed = (chunk.batches["count"] > 0) & (chunk.batches["codec"] != 0)
        for arena, spans in decode(chunk, np.flatnonzero(packed), Payloads()) if packed.any() else ():
            content = arena[: int(spans[-1, HEADERS_END])].tobytes()
            place = content.find(key)
            while place >= 0:
                self._mention(spans, place, position)
                place = content.find(key, place + 1)

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
    """From the extent of the log with these bytes, if there is one."""
    topic_partition = TopicPartition(topic, listed.partition)
    exists = topic_partition in lake.metastore.partitions()
    place = (listed.extent.object_id, listed.extent.position)
    for extent in lake.metastore.partition(topic_partition).extents if exists else ():
        if extent.length and (extent.object_id, extent.position) == place:
            return DEAD if offset in read_dead(lake.store, extent) else LIVE
    return UNREFERENCED
