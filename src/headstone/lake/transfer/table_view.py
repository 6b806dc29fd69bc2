"""The table of a partition: the newest record of every key that is not deleted. Lists of keys decide, batches are read after.

Owns the decision and the reading of the result. Each list is read once to decide. If the keys of a partition fit into one task,
it decides alone. Otherwise one task per run of extents sends its keys through the buckets of `pipeline`, and the survivors come
back by run. So memory is bounded by a bucket and a run, never by the partition. Tasks know no metastore: the caller has the
extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headstone.lake.format.dead import is_live
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import KeyList, Offsets
from headstone.lake.format.objects import keys_of_extent, list_bytes, read_chunk, read_dead
from headstone.lake.metastore.commits import Partition
from headstone.lake.transfer.reading import Columns, arrow_rows
from headstone.log.columns import OFFSET, decode
from headstone.log.reading import Payloads
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline import buckets
from headstone.pipeline.engine import Engine
from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.work import answers
from headstone.retention.keys import CODE_MASK, NEWEST, SUPERSEDED, TOMBSTONE, HashKey, mark_newest, new_table
from headstone.storage.stores import Store

TASK_KEYS_MAX = 16 << 20
"""Entries of the lists that one task decides alone: its table takes 23 bytes for each at most, some 370 MB."""
RUNS_PER_TASK = 4
"""A run whose keys go through the buckets is smaller by this factor: beside its table it has its entries in memory, twice."""

Bits = bytes
"""One per entry of an extent's list, in the list's order: whether it is in the table."""
States = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLists:
    """The lists of consecutive extents. `record`: the ordinal of their first entry in the partition.

    For a split partition it is both a `pipeline.splitting.Unit` and a `Part`."""

    store: Store
    hash_key: HashKey
    extents: tuple[Extent, ...]
    start_offset: int
    record: int = 0

    @property
    def entries(self) -> int:
        return sum(map(_entries, self.extents))

    @property
    def size(self) -> int:
        """Bytes of the lists to read."""
        return sum(map(list_bytes, self.extents))

    def newest_first(self, meter: Meter) -> Iterator[tuple[KeyList, npt.NDArray[np.int64], States]]:
        """For each extent, the last one first: its keys, which of them are shown, and a state for each.

        Records that are dead, or below the log start, supersede nothing. The rule is `mark_newest`'s."""
        table = new_table(self.entries)
        for extent in reversed(self.extents):
            keys = keys_of_extent(self.store, extent, self.hash_key)
            live = (keys.offsets >= self.start_offset) & is_live(keys.offsets, read_dead(self.store, extent))
            shown = np.flatnonzero(live)
            states = np.where(keys.tombstones, np.uint8(TOMBSTONE), np.uint8(SUPERSEDED))
            mark_newest(table, keys.digests[shown], np.ones(shown.size, dtype=np.bool_), shown, states)
            meter.add(list_bytes(extent), 0)
            yield keys, shown, states

    def index(self, bucket_count: int, meter: Meter) -> tuple[list[bytes], int]:
        parts, lost, record = [], 0, self.record + self.entries
        for extent, (keys, shown, states) in zip(reversed(self.extents), self.newest_first(meter), strict=True):
            record -= _entries(extent)
            everything = np.ones(shown.size, dtype=np.bool_)
            part, gone = buckets.survivors(keys.digests[shown], everything, shown, states, record)
            parts.append(part)
            lost += gone
        return buckets.split(parts, bucket_count), lost

    def rewrite(
        self, blobs: Sequence[bytes], meter: Meter, *, keys_found: int, tombstones_lost: int
    ) -> tuple[int, list[Bits]]:
        """The ordinal of the run, and the bits of each extent. Reads no list again."""
        states = np.zeros(self.entries, dtype=np.uint8)
        for blob in blobs:
            buckets.apply(blob, states)
        edges = np.cumsum([0, *map(_entries, self.extents)])
        return self.record, [_bits(states[start:end]) for start, end in pairwise(edges)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLists:
    """A partition whose keys are too many for a task: `pipeline.splitting.Splittable`."""

    runs: tuple[KeyLists, ...]

    @property
    def records(self) -> int:
        return self.runs[-1].record + self.runs[-1].entries

    @property
    def group_edges(self) -> tuple[int, ...]:
        return (*(run.record for run in self.runs), self.records)

    def units(self) -> tuple[KeyLists, ...]:
        return self.runs

    def parts(self) -> tuple[KeyLists, ...]:
        return self.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveExtent:
    """An extent with records of the table."""

    extent: Extent
    bits: Bits

    @property
    def records(self) -> int:
        """Number of its records in the table."""
        return int.from_bytes(self.bits, "little").bit_count()


def decided(
    store: Store, hash_key: HashKey, partitions: Mapping[TopicPartition, Partition], engine: Engine,
    board: Board | None = None, *, keys_max: int = TASK_KEYS_MAX,
) -> dict[TopicPartition, list[LiveExtent]]:  # fmt: skip
    """For each partition the extents with records of its table. The board counts the lists."""
    lists = {
        topic_partition: KeyLists(
            store=store, hash_key=hash_key, extents=_with_lists(partition), start_offset=partition.start_offset
        )
        for topic_partition, partition in partitions.items()
    }
    if board is not None:
        board.expect(sum(some.size for some in lists.values()))
    whole = [topic_partition for topic_partition, some in lists.items() if some.entries <= keys_max]
    bits = dict(zip(whole, engine.each(decide, [lists[name] for name in whole], board), strict=True))
    bits |= _split({name: some for name, some in lists.items() if name not in bits}, engine, board, keys_max)
    return {
        topic_partition: [
            LiveExtent(extent=extent, bits=extent_bits)
            for extent, extent_bits in zip(some.extents, bits[topic_partition], strict=True)
            if any(extent_bits)
        ]
        for topic_partition, some in lists.items()
    }


def _split(
    lists: Mapping[TopicPartition, KeyLists], engine: Engine, board: Board | None, keys_max: int
) -> dict[TopicPartition, list[Bits]]:
    """The bits of each extent, by way of the buckets."""
    if not lists:
        return {}
    works = [SplitLists(runs=tuple(_runs(some, max(keys_max // RUNS_PER_TASK, 1)))) for some in lists.values()]
    outcomes = list(engine.split(works, board))
    by_work: list[dict[int, list[Bits]]] = [{} for _ in works]
    for (number, _), (record, bits) in zip(outcomes, answers([answer for _, answer in outcomes]), strict=True):
        by_work[number][record] = bits
    return {
        topic_partition: [extent_bits for _, bits in sorted(by_run.items()) for extent_bits in bits]
        for topic_partition, by_run in zip(lists, by_work, strict=True)
    }


def decide(lists: KeyLists, meter: Meter) -> list[Bits]:
    """The body of a task that has all keys of a partition in memory: the bits of each extent."""
    return [_bits(states) for _, _, states in lists.newest_first(meter)][::-1]


def rows_of_table(
    store: Store,
    hash_key: HashKey,
    topic_partition: TopicPartition,
    extents: Sequence[LiveExtent],
    columns: Columns = None,
) -> Iterator[pa.RecordBatch]:
    """In offset order. Batches in which nothing is left are not decoded."""
    payloads = Payloads()
    for live_extent in extents:
        live = _offsets(keys_of_extent(store, live_extent.extent, hash_key), live_extent.bits)
        chunk = read_chunk(store, live_extent.extent)
        batches = chunk.batches
        first = np.searchsorted(live, batches["base_offset"])
        chosen = np.flatnonzero(
            (batches["count"] > 0) & (np.searchsorted(live, batches["last_offset"], "right") > first)
        )
        for data, spans in decode(chunk, chosen, payloads):
            yield arrow_rows(topic_partition, chunk, data, spans[~is_live(spans[:, OFFSET], live)], columns)


def _with_lists(partition: Partition) -> tuple[Extent, ...]:
    """Extents that may hold a shown record with a key."""
    return tuple(
        extent
        for extent in partition.extents
        if extent.span.end > partition.start_offset and extent.length and _entries(extent)
    )


def _runs(lists: KeyLists, entries_max: int) -> Iterator[KeyLists]:
    """Neighbours, up to this many entries, or one extent."""
    run: list[Extent] = []
    first = size = 0
    for extent in lists.extents:
        if run and size + _entries(extent) > entries_max:
            yield replace(lists, extents=tuple(run), record=first)
            run, first, size = [], first + size, 0
        run.append(extent)
        size += _entries(extent)
    yield replace(lists, extents=tuple(run), record=first)


def _entries(extent: Extent) -> int:
    """As many as its list has, or could have."""
    return extent.keys if extent.keys >= 0 else extent.records + extent.dead


def _bits(states: States) -> Bits:
    return np.packbits(states & (CODE_MASK | TOMBSTONE) == NEWEST).tobytes()


def _offsets(keys: KeyList, bits: Bits) -> Offsets:
    """Offsets of the entries whose bits are set, in order."""
    chosen = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=keys.offsets.size)
    return keys.offsets[np.flatnonzero(chosen)]
