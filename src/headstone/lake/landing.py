"""Rows of a micro-batch from a live Kafka cluster become objects and extents: the body of the task, and the commit.

Tasks write what read_committed consumers get into objects; the driver appends all partitions of a micro-batch in one commit
that expects the lake to end where the batch began. The lake itself is the checkpoint: whoever starts again goes on at
next_offset, so a crash anywhere loses nothing and doubles nothing. Gaps (markers, aborted data, what Kafka has compacted
away) are kept. Who runs the tasks is not known here (`spark/lake_stream.py`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headstone.lake.commits import Extent, oldest
from headstone.lake.keyindex import keys_in
from headstone.lake.lake import Lake, LakeAddress
from headstone.lake.metastore import Append
from headstone.lake.objects import ObjectWriter, writing_object
from headstone.lake.spans import SPREAD_MAX, Span
from headstone.log.arrow_batches import Written, batches_of
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.retention.keys import HashKey

LANDED_ARROW = pa.schema([("landed", pa.binary())])

Clock = Callable[[], int]
Ends = Mapping[TopicPartition, int]
"""Of each partition the offset behind the last that a batch has looked at."""


def first_offsets(lake: Lake, topic: str, begins: Sequence[int]) -> dict[int, int]:
    """Where the lake ends; a lake that has nothing of a partition yet takes what Kafka still has of it."""
    return {
        number: max(lake.metastore.partition(TopicPartition(topic, number)).next_offset, begin)
        for number, begin in enumerate(begins)
    }


def next_offsets(lake: Lake, ends: Ends) -> dict[TopicPartition, int]:
    """Where every partition of the lake ends; those that Kafka has got since the run began are added first."""
    for topic in sorted({partition.topic for partition in ends}):
        numbers = [partition.number for partition in ends if partition.topic == topic]
        lake.metastore.add_partitions(topic, 1 + max(numbers))
    return {partition: lake.metastore.partition(partition).next_offset for partition in lake.metastore.partitions()}


def append_landed(
    lake: Lake, landed: Sequence[Landed], nexts: Mapping[TopicPartition, int], ends: Ends, clock: Clock
) -> dict[TopicPartition, int]:
    """All that the tasks of a micro-batch have uploaded, in one commit. Records added, by partition."""
    sizes = {object_id: size for task in landed for object_id, size in task.sizes.items()}
    by_partition: dict[TopicPartition, list[Extent]] = {}
    for task in landed:
        for partition, extent in task.extents:
            by_partition.setdefault(partition, []).append(extent)
    appends = {
        partition: Append(
            expected_next=nexts[partition],
            extents=_tiled(nexts[partition], sorted(by_partition[partition], key=_start), ends.get(partition, 0)),
        )
        for partition in sorted(by_partition)
    }
    lake.metastore.append(appends, sizes, now_ms=clock)
    return {partition: sum(extent.records for extent in append.extents) for partition, append in appends.items()}


def _start(extent: Extent) -> int:
    return extent.span.start


def _tiled(start: int, extents: Sequence[Extent], end: int) -> tuple[Extent, ...]:
    """Each begins where the last one ended: gaps belong to the extent behind them, and the last gap to the last extent."""
    tiled: list[Extent] = []
    for extent in extents:
        tiled.append(replace(extent, span=Span(start, extent.span.end)))
        start = extent.span.end
    tiled[-1] = replace(tiled[-1], span=Span(tiled[-1].span.start, max(start, end)))
    return tuple(tiled)


@dataclass(slots=True, kw_only=True)
class Landed:
    """What one task has uploaded; nobody sees it before the driver's commit."""

    extents: list[tuple[TopicPartition, Extent]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandTask:
    """The body of a task: rows of Spark's Kafka source in, one object out."""

    address: LakeAddress
    nexts: Mapping[TopicPartition, int]
    codec: int
    extent_bytes: int
    now_ms: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return
        lake = self.address.open()
        (object_id,) = lake.metastore.register(1, now_ms=self.now_ms)
        landed = Landed()
        with writing_object(lake.store, object_id) as writer:
            waiting: list[Written] = []
            topic_partition: TopicPartition | None = None
            for where, batch in self._new(first, batches):
                for written in batches_of(batch, codec=self.codec):
                    if where != topic_partition or not _fits(waiting, written, self.extent_bytes):
                        self._flush(writer, landed, lake.metastore.hash_key, topic_partition, waiting)
                        waiting, topic_partition = [], where
                    waiting.append(written)
            self._flush(writer, landed, lake.metastore.hash_key, topic_partition, waiting)
        landed.sizes[object_id] = writer.size
        lake.close()
        if landed.extents:
            yield pa.RecordBatch.from_pydict({"landed": [pickle.dumps(landed)]}, schema=LANDED_ARROW)

    def _new(
        self, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]
    ) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        """Runs of one partition's rows, without what is in the lake already."""
        for batch in (first, *others):
            for where, run in _runs(batch):
                offsets = run.column("offset").to_numpy()
                known = int((offsets < self.nexts[where]).sum())
                if known < run.num_rows:
                    yield where, run.slice(known)

    def _flush(
        self, writer: ObjectWriter, landed: Landed, hash_key: HashKey, topic_partition: TopicPartition | None,
        waiting: list[Written],
    ) -> None:  # fmt: skip
        if topic_partition is None or not waiting:
            return
        chunks = [one.data for one in waiting]
        keys = keys_in((chunk_of(str(topic_partition), chunk) for chunk in chunks), hash_key)
        extent = writer.add(
            topic_partition.topic, topic_partition.number, Span(waiting[0].base_offset, waiting[-1].last_offset + 1), chunks,
            records=sum(one.records for one in waiting),
            max_timestamp_ms=max(one.max_timestamp_ms for one in waiting),
            oldest_timestamp_ms=oldest(one.max_timestamp_ms for one in waiting), keys=keys,
        )  # fmt: skip
        landed.extents.append((topic_partition, extent))


def _fits(waiting: Sequence[Written], batch: Written, extent_bytes: int) -> bool:
    """Into one extent: not too many bytes, and no offset further from the first than a segment reaches."""
    full = sum(len(one.data) for one in waiting) >= extent_bytes
    return not waiting or (not full and batch.last_offset - waiting[0].base_offset <= SPREAD_MAX)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Cut where the partition changes; a task of Spark's Kafka source has one."""
    topics, numbers = batch.column("topic").to_pylist(), batch.column("partition").to_pylist()
    start = 0
    for i in range(1, batch.num_rows + 1):
        if i == batch.num_rows or (topics[i], numbers[i]) != (topics[start], numbers[start]):
            yield TopicPartition(topics[start], numbers[start]), batch.slice(start, i - start)
            start = i
