"""From a live Kafka cluster into the lake, with Spark Structured Streaming and Spark's own Kafka source.

Tasks write what read_committed consumers get into objects; the driver appends all partitions of a micro-batch in one commit
that expects the lake to end where the batch began. The lake itself is the checkpoint: whoever starts again goes on at
next_offset, so a crash anywhere loses nothing and doubles nothing. Gaps (markers, aborted data, what Kafka has compacted
away) are kept. Knows Spark's DataFrames, but not which kind of session it is given.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headstone.errors import UsageError
from headstone.lake.commits import Extent, oldest
from headstone.lake.ingest import EXTENT_BYTES
from headstone.lake.keyindex import keys_in
from headstone.lake.lake import Lake, LakeAddress
from headstone.lake.metastore import Append
from headstone.lake.objects import ObjectWriter, writing_object
from headstone.lake.rows import TopicPartition
from headstone.lake.spans import SPREAD_MAX, Span
from headstone.log import codecs
from headstone.log.arrow_batches import Written, batches_of
from headstone.log.reading import chunk_of
from headstone.retention.keys import HashKey
from headstone.spark.streams import Ends, follow_kafka

LANDED = "landed binary"
LANDED_ARROW = pa.schema([("landed", pa.binary())])
SELECTED = (
    "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms", "timestampType = 1 AS log_append_time",
    "key", "value", "headers",
)  # fmt: skip

Clock = Callable[[], int]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """`source` are options of Spark's Kafka source, with the cluster's address and security."""

    source: Mapping[str, str]
    continuous: bool = False
    every_ms: int = 1000
    """Between two micro-batches of a continuous run."""
    offsets_per_batch: int | None = None
    codec: int = codecs.ZSTD
    extent_bytes: int = EXTENT_BYTES
    stop: threading.Event = field(default_factory=threading.Event)
    before_commit: Callable[[], None] = lambda: None
    """Called when a batch is read and uploaded; what it raises ends the run before anything of the batch is in the lake."""


def stream(
    lake: Lake, address: LakeAddress, spark: Any, starts: Mapping[str, Sequence[int]], options: StreamOptions, *,
    clock: Clock, tell: Tell,
) -> dict[TopicPartition, int]:  # fmt: skip
    """All of these topics: what is committed now, or on and on until `stop`. Records added, by partition.

    `starts`: where the log of each partition begins in Kafka; those that are added later begin at 0."""
    if not starts:
        raise UsageError("no topic to ingest")
    first = {topic: _first_offsets(lake, topic, begins) for topic, begins in starts.items()}
    added: dict[TopicPartition, int] = {}

    def land(batch: Any, number: int, ends: Ends) -> None:
        found = _land(lake, address, batch, ends, options, clock)
        for at, records in found.items():
            added[at] = added.get(at, 0) + records
        if found:
            tell(f"batch {number}: {sum(found.values()):,} records of {len(found)} partitions")

    given = {"subscribe": ",".join(sorted(starts)), "kafka.isolation.level": "read_committed"}
    given |= {"includeHeaders": "true", "startingOffsets": json.dumps(first), "failOnDataLoss": "true"}
    if options.offsets_per_batch is not None:
        given["maxOffsetsPerTrigger"] = str(options.offsets_per_batch)
    every_ms = options.every_ms if options.continuous else None
    follow_kafka(spark, {**given, **options.source}, SELECTED, land, every_ms=every_ms, stop=options.stop)
    return added


def _first_offsets(lake: Lake, topic: str, begins: Sequence[int]) -> dict[str, int]:
    """Where the lake ends; a lake that has nothing of a partition yet takes what Kafka still has of it."""
    return {
        str(number): max(lake.metastore.partition(TopicPartition(topic, number)).next_offset, begin)
        for number, begin in enumerate(begins)
    }


def _land(
    lake: Lake, address: LakeAddress, batch: Any, ends: Ends, options: StreamOptions, clock: Clock
) -> dict[TopicPartition, int]:
    """One micro-batch: written by tasks, appended by one commit. What the lake has already (a batch again) is left out."""
    for topic in sorted({topic for topic, _ in ends}):  # partitions that Kafka has got since the run began
        lake.metastore.add_partitions(topic, 1 + max(number for name, number in ends if name == topic))
    nexts = {at: lake.metastore.partition(at).next_offset for at in lake.metastore.partitions()}
    task = LandTask(
        address=address, nexts=nexts, codec=options.codec, extent_bytes=options.extent_bytes, now_ms=clock()
    )
    rows = batch.mapInArrow(task, LANDED).collect()
    landed: list[Landed] = [pickle.loads(bytes(row["landed"])) for row in rows]
    if not landed:
        return {}
    sizes = {object_id: size for one in landed for object_id, size in one.sizes.items()}
    appends = {}
    for at in sorted({at for one in landed for at, _ in one.extents}):
        extents = sorted((extent for one in landed for where, extent in one.extents if where == at), key=_start)
        appends[at] = Append(expected_next=nexts[at], extents=_tiled(nexts[at], extents, ends.get(at, 0)))
    options.before_commit()
    lake.metastore.append(appends, sizes, now_ms=clock)
    return {at: sum(extent.records for extent in append.extents) for at, append in appends.items()}


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
            at: TopicPartition | None = None
            for where, batch in self._new(first, batches):
                for written in batches_of(batch, codec=self.codec):
                    if where != at or not _fits(waiting, written, self.extent_bytes):
                        self._flush(writer, landed, lake.metastore.hash_key, at, waiting)
                        waiting, at = [], where
                    waiting.append(written)
            self._flush(writer, landed, lake.metastore.hash_key, at, waiting)
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
        self, writer: ObjectWriter, landed: Landed, hash_key: HashKey, at: TopicPartition | None, waiting: list[Written]
    ) -> None:
        if at is None or not waiting:
            return
        chunks = [one.data for one in waiting]
        keys = keys_in((chunk_of(str(at), chunk) for chunk in chunks), hash_key)
        extent = writer.add(
            at.topic, at.number, Span(waiting[0].base_offset, waiting[-1].last_offset + 1), chunks,
            records=sum(one.records for one in waiting),
            max_timestamp_ms=max(one.max_timestamp_ms for one in waiting),
            oldest_timestamp_ms=oldest(one.max_timestamp_ms for one in waiting), keys=keys,
        )  # fmt: skip
        landed.extents.append((at, extent))


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
