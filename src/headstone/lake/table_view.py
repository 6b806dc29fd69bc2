"""The table of a partition: the newest record of every key that is not deleted. Lists of keys decide, batches are read after.

Owns the decision and the reading of what it leaves. A partition with more keys than one task may hold is decided in buckets of
digests, one task per bucket: each goes over all lists, newest extent first, and answers with a bit per entry of its bucket. So
memory is bounded by a bucket and an extent, never by the partition. Tasks know no metastore: who asks has the extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headstone.lake.commits import Extent, Partition
from headstone.lake.dead import is_live
from headstone.lake.keyindex import KeyList, Offsets, section_bytes
from headstone.lake.lake import Lake
from headstone.lake.objects import keys_of_extent, object_path, read_dead, read_extent
from headstone.lake.reading import Columns, arrow_rows
from headstone.log.columns import OFFSET, decode
from headstone.log.reading import Payloads, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board, Meter
from headstone.retention.keys import NEWEST, HashKey, mark_newest, new_table
from headstone.storage.stores import Store

BUCKET_KEYS_MAX = 16 << 20
"""Entries of the lists that one task decides: its table takes 23 bytes for each at most, some 370 MB."""
SPREAD_SIGMAS, SPREAD_FEW = 10, 1000
"""Digests are spread evenly, so a bucket holds its share and a little more: never so much that a table of it is full."""

Bits = bytes
"""One per entry of an extent's list that is in a bucket, in the list's order: whether it is in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideWork:
    """One bucket of a partition's keys."""

    store: Store
    hash_key: HashKey
    extents: tuple[Extent, ...]
    start_offset: int
    bucket: int
    buckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveExtent:
    """An extent with the bits of each bucket."""

    extent: Extent
    bits: tuple[Bits, ...]

    @property
    def is_empty(self) -> bool:
        return not any(any(some) for some in self.bits)


def buckets_of(extents: Sequence[Extent], keys_max: int = BUCKET_KEYS_MAX) -> int:
    return max(1, -(-_entries(extents) // keys_max))


def decided(
    store: Store, hash_key: HashKey, partitions: Mapping[TopicPartition, Partition], engine: Engine,
    board: Board | None = None, *, keys_max: int = BUCKET_KEYS_MAX,
) -> dict[TopicPartition, list[LiveExtent]]:  # fmt: skip
    """Of each partition those extents that hold a part of its table."""
    works = {
        topic_partition: [
            DecideWork(
                store=store, hash_key=hash_key, extents=partition.extents, start_offset=partition.start_offset,
                bucket=bucket, buckets=buckets,
            )
            for buckets in (buckets_of(partition.extents, keys_max),) for bucket in range(buckets)
        ]
        for topic_partition, partition in partitions.items()
    }  # fmt: skip
    answers = iter(engine.each(decide, [work for some in works.values() for work in some], board))
    live: dict[TopicPartition, list[LiveExtent]] = {}
    for topic_partition, some in works.items():
        by_bucket: list[list[Bits]] = [next(answers) for _ in some]
        by_extent = zip(partitions[topic_partition].extents, zip(*by_bucket, strict=True), strict=True)
        marked = [LiveExtent(extent=extent, bits=bits) for extent, bits in by_extent]
        live[topic_partition] = [each for each in marked if not each.is_empty]
    return live


def table_batches(
    lake: Lake, topic_partition: TopicPartition, partition: Partition, *, keys_max: int = BUCKET_KEYS_MAX
) -> Iterator[pa.RecordBatch]:
    """All of it in this process."""
    store, hash_key = lake.store, lake.metastore.hash_key
    live = decided(store, hash_key, {topic_partition: partition}, InProcess(), keys_max=keys_max)
    yield from rows_of_table(store, hash_key, topic_partition, live[topic_partition])


def decide(work: DecideWork, meter: Meter) -> list[Bits]:
    """The body of a task: the bits of each extent."""
    share = -(-_entries(work.extents) // work.buckets)
    seen = new_table(share + SPREAD_SIGMAS * int(share**0.5) + SPREAD_FEW)
    answer: list[Bits] = []
    for extent in reversed(work.extents):
        if extent.span.end <= work.start_offset or not extent.length:
            answer.append(b"")
            continue
        keys = keys_of_extent(work.store, extent, work.hash_key)
        keys = keys.only(_buckets(keys, work.buckets) == work.bucket)
        shown = (keys.offsets >= work.start_offset) & is_live(keys.offsets, read_dead(work.store, extent))
        states = np.zeros(keys.offsets.size, dtype=np.uint8)
        asked = np.flatnonzero(shown)
        mark_newest(seen, keys.digests[asked], np.ones(asked.size, dtype=np.bool_), asked, states)
        answer.append(np.packbits((states & NEWEST != 0) & ~keys.tombstones).tobytes())
        meter.add(section_bytes(extent.keys), 0)
    return answer[::-1]


def rows_of_table(
    store: Store,
    hash_key: HashKey,
    topic_partition: TopicPartition,
    extents: Sequence[LiveExtent],
    columns: Columns = None,
) -> Iterator[pa.RecordBatch]:
    """In offset order. Batches in which nothing is left are not decoded, extents in which nothing is are not read."""
    payloads = Payloads()
    for live_extent in extents:
        if live_extent.is_empty:
            continue
        live = _offsets(keys_of_extent(store, live_extent.extent, hash_key), live_extent.bits)
        chunk = chunk_of(
            f"{store.url}/{object_path(live_extent.extent.object_id)}", read_extent(store, live_extent.extent)
        )
        batches = chunk.batches
        first = np.searchsorted(live, batches["base_offset"])
        chosen = np.flatnonzero(
            (batches["count"] > 0) & (np.searchsorted(live, batches["last_offset"], "right") > first)
        )
        for data, spans in decode(chunk, chosen, payloads):
            yield arrow_rows(topic_partition, chunk, data, spans[~is_live(spans[:, OFFSET], live)], columns)


def _entries(extents: Sequence[Extent]) -> int:
    return sum(extent.keys if extent.keys >= 0 else extent.records + extent.dead for extent in extents)


def _buckets(keys: KeyList, buckets: int) -> npt.NDArray[np.uint64]:
    """By the upper digits of the digest; its place in a table goes by the lower ones."""
    upper = keys.digests[:, 0] >> np.uint64(32)
    chosen: npt.NDArray[np.uint64] = upper * np.uint64(buckets) >> np.uint64(32)
    return chosen


def _offsets(keys: KeyList, bits: Sequence[Bits]) -> Offsets:
    """Of the entries whose bits are set, in order."""
    buckets = _buckets(keys, len(bits))
    live = np.zeros(keys.offsets.size, dtype=np.bool_)
    for bucket, some in enumerate(bits):
        own = np.flatnonzero(buckets == bucket)
        packed = np.frombuffer(some, dtype=np.uint8)
        live[own[np.unpackbits(packed, count=own.size) != 0] if packed.size else own[:0]] = True
    return keys.offsets[live]
