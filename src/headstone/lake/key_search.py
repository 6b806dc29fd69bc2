"""Where the records of some keys are: in which extents of a topic, at which offsets, shown to readers or not.

Asks the lists of keys, and decodes only extents that have none. Keys are told by their digest under the lake's
secret, so that whoever remembers what to look for need not remember the key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from headstone.lake.commits import Extent
from headstone.lake.lake import Lake
from headstone.lake.objects import object_path, read_dead, read_extent, read_keys
from headstone.log.columns import KEY_AT, KEY_SIZE, OFFSET, VALUE_SIZE, decode
from headstone.log.reading import Chunk, Payloads, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.retention.keys import HashKey, siphash_spans

LISTS_AT_ONCE = 8

Digests = npt.NDArray[np.uint64]
"""Two halves per row."""
Match = tuple[int, int, bool]
"""The row of the digest that was looked for, the offset, and whether it is a tombstone."""


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
    """For each digest the row of `wanted` that it is; -1 if it is none of them."""
    rows = np.full(len(digests), -1, dtype=np.int64)
    for i in np.flatnonzero(np.isin(digests[:, 0], wanted[:, 0])):
        same = np.flatnonzero((wanted == digests[i]).all(axis=1))
        rows[i] = same[0] if same.size else -1
    return rows


def records_of(lake: Lake, topic: str, digests: Collection[str]) -> list[KeyRecord]:
    """All of them in the extents of a topic, in order; a topic that is gone has none."""
    names = sorted(digests)
    hits: list[KeyRecord] = []
    for topic_partition in lake.metastore.partitions():
        if topic_partition.topic == topic:
            partition = lake.metastore.partition(topic_partition)
            extents = [extent for extent in partition.extents if extent.length]
            search = partial(_in_extent, lake, topic_partition, partition.start_offset, names)
            with ThreadPoolExecutor(LISTS_AT_ONCE) as pool:
                hits += [record for records in pool.map(search, extents) for record in records]
    return hits


def _in_extent(
    lake: Lake, topic_partition: TopicPartition, start_offset: int, names: Sequence[str], extent: Extent
) -> list[KeyRecord]:
    matches = list(_matching_in(lake, digest_rows(names), extent))
    dead = set(read_dead(lake.store, extent).tolist()) if matches else set()
    return [
        KeyRecord(
            digest=names[row], partition=topic_partition, extent=extent, offset=offset, tombstone=tombstone,
            shown=offset >= start_offset and offset not in dead,
        )
        for row, offset, tombstone in matches
    ]  # fmt: skip


def _matching_in(lake: Lake, wanted: Digests, extent: Extent) -> Iterator[Match]:
    if extent.keys < 0:
        chunk = chunk_of(object_path(extent.object_id), read_extent(lake.store, extent))
        yield from matching(chunk, wanted, lake.metastore.hash_key)
        return
    keys = read_keys(lake.store, extent)
    rows = among(keys.digests, wanted)
    for i in np.flatnonzero(rows >= 0):
        yield int(rows[i]), int(keys.offsets[i]), bool(keys.tombstones[i])


def matching(chunk: Chunk, wanted: Digests, hash_key: HashKey) -> Iterator[Match]:
    """Every record that has one of the keys."""
    for arena, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), Payloads()):
        keyed = spans[spans[:, KEY_SIZE] >= 0]
        rows = among(siphash_spans(arena, keyed[:, KEY_AT], keyed[:, KEY_SIZE], hash_key), wanted)
        for i in np.flatnonzero(rows >= 0):
            yield int(rows[i]), int(keyed[i, OFFSET]), bool(keyed[i, VALUE_SIZE] < 0)
