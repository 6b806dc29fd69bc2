"""Rows of a micro-batch from a live Kafka cluster become objects and extents: the body of the task, and the commit.

Tasks write what read_committed consumers get into a few objects of a reasonable size, whose ids the driver has registered. The
driver appends all partitions of a micro-batch in one commit that expects the lake to end where the batch began. The lake itself
is the checkpoint: a restart continues at next_offset, so a crash anywhere loses and duplicates nothing. Gaps (markers, aborted
data, records that Kafka has compacted away) are kept. Does not know who runs the tasks (`spark/lake_stream.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

import pyarrow as pa

from headstone.errors import UsageError
from headstone.lake.format.extents import Extent, oldest
from headstone.lake.format.keyindex import keys_in
from headstone.lake.format.objects import ObjectWriter, Stored, write_once
from headstone.lake.format.spans import SPREAD_MAX, Span
from headstone.lake.jobs.key_search import with_remembered
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append
from headstone.log.arrow_batches import Written, batches_of
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Meter
from headstone.retention.keys import HashKey
from headstone.storage.stores import Store

RECORD_BYTES_GUESS = 1000
"""Size of a record in the lake before the first has come."""
OBJECT_BYTES_MAX = 512 << 20
"""What a task holds in memory."""

Clock = Callable[[], int]
Ends = Mapping[TopicPartition, int]
"""For each partition the offset after the last that a batch has looked at."""


def offsets_between(starts: Mapping[TopicPartition, int], ends: Ends) -> int:
    """Number of offsets before the ends; for a partition without a start, all of them."""
    return sum(max(0, end - starts.get(partition, 0)) for partition, end in ends.items())


class FollowedTopics:
    """Topics while a run appends to them: where the lake's logs end according to its own appends.

    The lake is asked again, and has to agree. If another writer appended to a log, or it was dropped and created again, the end
    alone could look as if Kafka's next records continued it."""

    def __init__(self, lake: Lake, starts: Mapping[TopicPartition, int]) -> None:
        """`starts`: where Kafka's logs begin. Partitions that are added later begin at 0."""
        self._lake = lake
        logs = lake.metastore.log_ends(starts)
        self._nexts = {partition: end for partition, (_, end) in logs.items()}
        self._log_starts = {partition: starts[partition] for partition, (start, end) in logs.items() if start == end}
        """Only of logs that are still empty."""

    def nexts(self, ends: Ends) -> dict[TopicPartition, int]:
        """Where the lake's logs end. First adds partitions that Kafka has got since the run began."""
        fresh = sorted(partition for partition in ends if partition not in self._nexts)
        for topic, some in groupby(fresh, key=lambda partition: partition.topic):
            self._lake.metastore.add_partitions(topic, 1 + max(partition.number for partition in some))
        expected = {**self._nexts, **dict.fromkeys(fresh, 0)}
        present = self._lake.metastore.next_offsets()
        for partition, end in expected.items():
            if partition not in present:
                raise UsageError(
                    f"{partition} was dropped from the lake while it was ingested: nothing more was appended; run the same "
                    "command again to ingest it from the start"
                )
            if present[partition] != end:
                raise UsageError(
                    f"{partition}: the lake ends at {present[partition]}, but this run left it at {end}: another process has "
                    "written to it, or it was dropped and created again. Nothing was appended; run only one ingest of a "
                    "partition at a time, then run the same command again"
                )
        self._nexts = expected
        return dict(expected)

    def unread(self) -> dict[TopicPartition, int]:
        """Where to read Kafka's logs: if the lake has nothing of a partition yet, it takes what Kafka still has."""
        return {partition: max(end, self._log_starts.get(partition, 0)) for partition, end in self._nexts.items()}

    def append(self, landed: Sequence[Stored], ends: Ends, clock: Clock) -> dict[TopicPartition, int]:
        """Appends all that a micro-batch's tasks have uploaded, in one commit. Returns the records added, by partition."""
        by_partition: dict[TopicPartition, list[Extent]] = {}
        for stored in landed:
            for part in stored.ranges:
                by_partition.setdefault(TopicPartition(part.topic, part.partition), []).append(part.extent)
        appends = {
            partition: self._append_of(partition, sorted(by_partition[partition], key=_start), ends.get(partition, 0))
            for partition in sorted(by_partition)
        }
        appends = with_remembered(self._lake, appends)
        self._lake.metastore.append(appends, {stored.object_id: stored.size for stored in landed}, now_ms=clock)
        for partition, append in appends.items():
            self._nexts[partition] = append.extents[-1].span.end
            self._log_starts.pop(partition, None)
        return {partition: sum(extent.records for extent in append.extents) for partition, append in appends.items()}

    def _append_of(self, partition: TopicPartition, extents: Sequence[Extent], end: int) -> Append:
        """With the log start, if these are the first records and it lies above the end of the lake's log."""
        next_offset, log_start = self._nexts[partition], self._log_starts.get(partition, 0)
        return Append(
            expected_next=next_offset, extents=_tiled(next_offset, extents, end), from_kafka=True,
            log_start=log_start if log_start > next_offset else None,
        )  # fmt: skip


def _start(extent: Extent) -> int:
    return extent.span.start


def _tiled(start: int, extents: Sequence[Extent], end: int) -> tuple[Extent, ...]:
    """Each begins where the last one ended: a gap belongs to the extent after it, the last gap to the last extent."""
    tiled: list[Extent] = []
    for extent in extents:
        tiled.append(replace(extent, span=Span(start, extent.span.end)))
        start = extent.span.end
    tiled[-1] = replace(tiled[-1], span=Span(tiled[-1].span.start, max(start, end)))
    return tuple(tiled)


@dataclass(slots=True)
class ObjectSize:
    """How many offsets make an object of the wanted size, judged by the size of the records in the lake so far."""

    object_bytes: int
    records: int = 1
    bytes: int = RECORD_BYTES_GUESS
    offsets_max: int | None = None
    """The most that a task may be given, whatever the records' size."""

    @property
    def offsets(self) -> int:
        worth = max(1, self.object_bytes * self.records // self.bytes)
        return worth if self.offsets_max is None else min(worth, self.offsets_max)

    def learn(self, landed: Sequence[Stored]) -> None:
        """Only the newest micro-batch counts: topics change slowly."""
        extents = [found.extent for stored in landed for found in stored.ranges]
        self.records = sum(extent.records for extent in extents) or self.records
        self.bytes = sum(extent.length for extent in extents) or self.bytes

    def objects(self, nexts: Mapping[TopicPartition, int], ends: Ends) -> int:
        """Number of objects for a micro-batch: few, so that each has a good size, and none too large for a task's memory."""
        return max(1, -(-offsets_between(nexts, ends) // self.offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class LandTask:
    """The body of a task: takes rows of Spark's Kafka source, makes one object in memory and uploads it.

    `object_ids` by number of the task: a task that runs again, or beside its twin, makes the same object."""

    store: Store
    lake_id: str
    hash_key: HashKey
    object_ids: tuple[str, ...]
    nexts: Mapping[TopicPartition, int]
    codec: int
    extent_bytes: int

    def land(self, number: int, batches: Iterator[pa.RecordBatch], meter: Meter) -> Stored | None:
        """None if nothing is new; then nothing is uploaded. The meter counts offsets."""
        fresh = self._new(batches)
        first = next(fresh, None)
        if first is None:
            return None

        def fill(writer: ObjectWriter) -> None:
            waiting: list[Written] = []
            topic_partition = first[0]
            for where, batch in chain([first], fresh):
                for written in batches_of(batch, codec=self.codec):
                    if where != topic_partition or not _fits(waiting, written, self.extent_bytes):
                        self._flush(writer, topic_partition, waiting)
                        waiting, topic_partition = [], where
                    waiting.append(written)
                _refuse_much(writer.size + sum(len(one.data) for one in waiting))
                meter.add(_reach(batch), batch.num_rows)
            self._flush(writer, topic_partition, waiting)

        return write_once(self.store, self.object_ids[number], self.lake_id, fill)

    def _new(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
        """Runs of one partition's rows, without what is in the lake already."""
        for batch in batches:
            for where, run in _runs(batch):
                offsets = run.column("offset").to_numpy()
                landed_before = int((offsets < self.nexts[where]).sum())
                if landed_before < run.num_rows:
                    yield where, run.slice(landed_before)

    def _flush(self, writer: ObjectWriter, topic_partition: TopicPartition, waiting: Sequence[Written]) -> None:
        if not waiting:
            return
        chunks = [one.data for one in waiting]
        keys = keys_in((chunk_of(str(topic_partition), chunk) for chunk in chunks), self.hash_key)
        writer.add(
            topic_partition.topic, topic_partition.number, Span(waiting[0].base_offset, waiting[-1].last_offset + 1), chunks,
            records=sum(one.records for one in waiting),
            max_timestamp_ms=max(one.max_timestamp_ms for one in waiting),
            oldest_timestamp_ms=oldest(one.oldest_timestamp_ms for one in waiting), keys=keys,
        )  # fmt: skip


def _reach(batch: pa.RecordBatch) -> int:
    """Number of offsets from the first to the last of these rows, which are of one partition."""
    offsets = batch.column("offset")
    return int(offsets[-1].as_py()) - int(offsets[0].as_py()) + 1


def _refuse_much(size: int) -> None:
    if size > OBJECT_BYTES_MAX:
        raise UsageError(
            f"a task has more than {OBJECT_BYTES_MAX >> 20} MiB for one object: the records are large; set a smaller "
            "--offsets-per-task"
        )


def _fits(waiting: Sequence[Written], batch: Written, extent_bytes: int) -> bool:
    """Whether it fits into one extent: not too many bytes, no offset beyond a segment's reach from the first, in order."""
    if not waiting:
        return True
    full = sum(len(one.data) for one in waiting) >= extent_bytes
    wide = batch.last_offset - waiting[0].base_offset > SPREAD_MAX
    return not full and not wide and batch.base_offset > waiting[-1].last_offset


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Cut where the partition changes; a task of Spark's Kafka source has just one."""
    topics, numbers = batch.column("topic").to_pylist(), batch.column("partition").to_pylist()
    start = 0
    for i in range(1, batch.num_rows + 1):
        if i == batch.num_rows or (topics[i], numbers[i]) != (topics[start], numbers[start]):
            yield TopicPartition(topics[start], numbers[start]), batch.slice(start, i - start)
            start = i
