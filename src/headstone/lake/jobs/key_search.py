"""Where the records of some keys are: in which extents of a topic, at which offsets, shown to readers or not.

Reads the lists of keys, in tasks that know the store and no SQL; decodes only extents without a list. Keys are given by their
digest under the lake's secret, so callers that remember what to look for need not remember the key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt

from headstone.interruption import Threads
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import Halves, any_common, common, union
from headstone.lake.format.objects import list_bytes, read_chunk, read_dead, read_halves, read_keys
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.surveys import past_extents
from headstone.log.columns import KEY_AT, KEY_SIZE, OFFSET, VALUE_SIZE, decode
from headstone.log.reading import Chunk, Payloads
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Meter, ProgressLine
from headstone.retention.keys import HashKey, siphash_spans
from headstone.storage.stores import MissingObject, Store

LISTS_AT_ONCE = 8
"""Per task: waiting for a list takes longer than searching it."""
SHARE_BYTES = 64 << 20
"""Bytes of lists per task."""

Digests = npt.NDArray[np.uint64]
"""Two halves per row."""
Match = tuple[int, int, bool]
"""The row of the wanted digest, the offset, and whether it is a tombstone."""
Hit = tuple[str, int, bool, bool]
"""The digest, the offset, whether it is a tombstone, and whether it is dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A record of one of the keys. `shown` False: it is dead, or lies below the log start."""

    digest: str
    partition: TopicPartition
    extent: Extent
    offset: int
    tombstone: bool
    shown: bool


def digest_of(key: bytes, hash_key: HashKey) -> str:
    """128 bits in hexadecimal."""
    data = np.frombuffer(key or b"\0", dtype=np.uint8)
    low, high = siphash_spans(data, np.array([0]), np.array([len(key)]), hash_key)[0]
    return f"{int(low):016x}{int(high):016x}"


def digest_rows(digests: Collection[str]) -> Digests:
    return np.array([[int(text[:16], 16), int(text[16:], 16)] for text in digests], dtype=np.uint64).reshape(-1, 2)


def among(digests: Digests, wanted: Digests) -> npt.NDArray[np.int64]:
    """For each digest its row in `wanted`; -1 if it is not there."""
    rows = np.full(len(digests), -1, dtype=np.int64)
    halves = union([wanted[:, 0]])
    alike = np.flatnonzero(common(digests[:, 0], halves))
    if alike.size:
        by_digest = {(low, high): row for row, (low, high) in enumerate(wanted.tolist())}
        rows[alike] = [by_digest.get((low, high), -1) for low, high in digests[alike].tolist()]
    return rows


class KeySearch:
    """Finds the records of keys in the extents of a topic, by tasks of the engine.

    Remembers what it has read: a repeated search for some of the same keys reads only newer lists."""

    def __init__(self, lake: Lake, engine: Engine, *, progress: bool = False) -> None:
        self._lake, self._engine, self._progress = lake, engine, progress
        self._topic = ""
        self._digests: frozenset[str] = frozenset()
        self._hits: dict[Extent, list[Hit]] = {}

    def records(self, topic: str, digests: Collection[str]) -> list[KeyRecord]:
        """All of them, in order; a topic that is gone has none."""
        if not digests:
            return []
        if topic != self._topic or not self._digests.issuperset(digests):
            self._topic, self._digests, self._hits = topic, frozenset(digests), {}
        metastore = self._lake.metastore
        partitions = metastore.snapshot([name for name in metastore.partitions() if name.topic == topic])
        extents = [extent for partition in partitions.values() for extent in partition.extents if extent.length]
        self._search([extent for extent in extents if extent not in self._hits])
        self._hits = {extent: self._hits[extent] for extent in extents}
        wanted = frozenset(digests)
        return [
            KeyRecord(
                digest=digest, partition=topic_partition, extent=extent, offset=offset, tombstone=tombstone,
                shown=offset >= partition.start_offset and not dead,
            )
            for topic_partition, partition in sorted(partitions.items())
            for extent in partition.extents
            for digest, offset, tombstone, dead in self._hits.get(extent, ())
            if digest in wanted
        ]  # fmt: skip

    def in_the_past(self, topic: str, digests: Collection[str]) -> set[str]:
        """Which of the keys are in past extents of the topic's logs that still exist."""
        if not digests:
            return set()
        return found_in(self._lake, past_extents(self._lake.metastore, topic), sorted(digests))

    def _search(self, extents: Sequence[Extent]) -> None:
        names = sorted(self._digests)
        works = [
            SearchWork(
                store=self._lake.store, hash_key=self._lake.metastore.hash_key, wanted=digest_rows(names), extents=share
            )
            for share in _shares(extents)
        ]  # fmt: skip
        with ProgressLine(enabled=self._progress) as line:
            line.expect(sum(map(list_bytes, extents)))
            answers = self._engine.each(search, works, line.board)
        for work, matches_of_work in zip(works, answers, strict=True):
            for extent, matches in zip(work.extents, matches_of_work, strict=True):
                self._hits[extent] = [(names[row], offset, tombstone, dead) for row, offset, tombstone, dead in matches]


def found_in(lake: Lake, extents: Sequence[Extent], digests: Sequence[str]) -> set[str]:
    """Which of the keys have a record in one of these extents; searched in this process. Extents gone by now have none."""
    work = SearchWork(
        store=lake.store, hash_key=lake.metastore.hash_key, wanted=digest_rows(digests), extents=tuple(extents)
    )  # fmt: skip
    halves = union([work.wanted[:, 0]])

    def rows_in(extent: Extent) -> set[int]:
        try:
            return {row for row, *_ in _matching_in(work, halves, extent)}
        except MissingObject:
            return set()

    filled = [extent for extent in extents if extent.length]
    with Threads(LISTS_AT_ONCE) as pool:
        return {digests[row] for rows in pool.map(rows_in, filled) for row in rows}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchWork:
    """The lists that one task searches, and for what."""

    store: Store
    hash_key: HashKey
    wanted: Digests
    extents: tuple[Extent, ...]


def search(work: SearchWork, meter: Meter) -> list[list[tuple[int, int, bool, bool]]]:
    """The body of a task: for each extent the matches, and whether they are dead."""
    halves = union([work.wanted[:, 0]])
    answer = []
    with Threads(LISTS_AT_ONCE) as pool:
        for extent, matches in zip(
            work.extents, pool.map(partial(_in_extent, work, halves), work.extents), strict=True
        ):
            answer.append(matches)
            meter.add(list_bytes(extent), len(matches))
    return answer


def _in_extent(work: SearchWork, halves: Halves, extent: Extent) -> list[tuple[int, int, bool, bool]]:
    matches = list(_matching_in(work, halves, extent))
    dead = set(read_dead(work.store, extent).tolist()) if matches else set()
    return [(*match, match[1] in dead) for match in matches]


def _matching_in(work: SearchWork, halves: Halves, extent: Extent) -> Iterator[Match]:
    """Most lists hold none of the keys, and their first halves tell: the rest of them is not read."""
    if extent.keys < 0:
        chunk = read_chunk(work.store, extent)
        yield from matching(chunk, work.wanted, work.hash_key)
        return
    own = read_halves(work.store, extent)
    if not any_common(own, halves):
        return
    keys = read_keys(work.store, extent, own)
    rows = among(keys.digests, work.wanted)
    for i in np.flatnonzero(rows >= 0):
        yield int(rows[i]), int(keys.offsets[i]), bool(keys.tombstones[i])


def _shares(extents: Sequence[Extent]) -> Iterator[tuple[Extent, ...]]:
    """The extents that one task searches."""
    ends = np.cumsum([list_bytes(extent) for extent in extents])
    for _, share in groupby(zip(extents, ends.tolist(), strict=True), key=lambda pair: pair[1] // SHARE_BYTES):
        yield tuple(extent for extent, _ in share)


def matching(chunk: Chunk, wanted: Digests, hash_key: HashKey) -> Iterator[Match]:
    """Every record with one of the keys."""
    for arena, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), Payloads()):
        keyed = spans[spans[:, KEY_SIZE] >= 0]
        rows = among(siphash_spans(arena, keyed[:, KEY_AT], keyed[:, KEY_SIZE], hash_key), wanted)
        for i in np.flatnonzero(rows >= 0):
            yield int(rows[i]), int(keyed[i, OFFSET]), bool(keyed[i, VALUE_SIZE] < 0)


def note_seen(lake: Lake, topic: str) -> None:
    """Notes which keys with an open erasure the topic has. Later, as after a drop, this can't be found out."""
    erasures = Erasures(lake.metastore)
    unseen = [erasure.key_digest for erasure in erasures.open_of(topic) if not erasure.seen]
    if unseen:
        search = KeySearch(lake, InProcess())
        erasures.saw(
            topic, {found.digest for found in search.records(topic, unseen)} | search.in_the_past(topic, unseen)
        )


def with_remembered(lake: Lake, appends: Mapping[TopicPartition, Append]) -> dict[TopicPartition, Append]:
    """The appends, with the digests of their keys that were ever to be erased. Reads lists only where there are such keys."""
    erasures = Erasures(lake.metastore)
    asked = {topic: erasures.digests_of(topic) for topic in sorted({name.topic for name in appends})}
    return {
        name: replace(append, remembered=frozenset(found_in(lake, append.extents, asked[name.topic])))
        if asked[name.topic]
        else append
        for name, append in appends.items()
    }
