"""A topic of the lake as log directories from which brokers start: the original offsets, in segments with their indexes.

A partition is cut into segments, each written by a task that reads its extents by range; only extents with dead records are
decoded. The log begins and ends where the lake's does. Where it has no record there, an empty batch holds the place, as Kafka's
own cleaner leaves one. `export_places` knows where the directories are, `log/bootstrap` how a broker gets its metadata.
"""

from __future__ import annotations

import base64
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headstone import units
from headstone.errors import UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import object_path, read_live
from headstone.lake.format.spans import SPREAD_MAX
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition, no_topic
from headstone.lake.metastore.leader_epochs import Epochs, known_leader_epochs, merged, within
from headstone.lake.metastore.scheduling import dirty_spans, not_compacted
from headstone.lake.transfer.export_places import ExportPlace, NewPartition
from headstone.lake.transfer.reading import snapshots
from headstone.log.encoding import BatchHead, batch_bytes
from headstone.log.reading import Chunk, chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.outputs import OutputSegment, OutputWriter
from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.work import answers
from headstone.retention.rewrite import RewrittenChunk
from headstone.retention.settings import setting_of
from headstone.storage.places import Place
from headstone.storage.stores import Store

Tell = Callable[[str], None]
WAVE_PARTITIONS = 256
WAVE_BYTES = 16 << 30
"""Tasks for this many bytes run at once; then the partitions of the wave take their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExport:
    """What to write of a partition, as the lake is at one moment."""

    partition: TopicPartition
    topic_id: str
    state: Partition
    leader_epochs: Epochs
    """Those that the metastore knows; batches may have others."""
    first_dirty: int | None
    """For the cleaner's checkpoint; None for a topic that is not compacted."""
    segment_bytes: int
    index_interval_bytes: int

    @property
    def records(self) -> int:
        return sum(extent.records for extent in self.state.extents)

    @property
    def bytes(self) -> int:
        return sum(extent.length for extent in self.state.extents)

    @property
    def extents_read(self) -> tuple[Extent, ...]:
        return tuple(
            extent for extent in self.state.extents if extent.length and extent.span.end > self.state.start_offset
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWork:
    """One task: these extents become one segment, or several if their offsets are too far apart for one."""

    store: Store
    directory: Place
    extents: tuple[Extent, ...]
    start_offset: int
    """Batches that end below are left out."""
    pinned_start: int | None
    """For the first segment: the offset at which, or below which, a segment must begin."""
    next_offset: int | None
    """For the last segment: where the log ends."""
    closing_epoch: int
    index_interval_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsWritten:
    outputs: tuple[OutputSegment, ...]
    leader_epochs: Epochs
    producer_id_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    partition: TopicPartition
    topic_id: str
    start_offset: int
    next_offset: int
    records: int
    bytes: int
    segments: int
    leader_epochs: Epochs
    producer_id_max: int
    """-1: no batch has a producer."""


def plan_export(
    lake: Lake, topics: Sequence[str], *, topic_ids: Mapping[str, str], as_of_ms: int | None = None
) -> list[PartitionExport]:
    """For every partition, at one moment. A topic without an id from Kafka gets a new one, the same for all its partitions."""
    settings = lake.metastore.topics()
    for topic in (*topics, *topic_ids):
        if topic not in settings:
            raise no_topic(topic, settings)
    planned = []
    kept = lake.metastore.kafka_ids()
    states = snapshots(lake, [one for one in lake.metastore.partitions() if one.topic in topics], as_of_ms)
    for topic in topics:
        topic_id = topic_ids.get(topic) or kept[topic] or fresh_topic_id()
        for partition, state in ((one, states[one]) for one in sorted(states) if one.topic == topic):
            dirty = dirty_spans(state) if as_of_ms is None else ()
            planned.append(
                PartitionExport(
                    partition=partition, topic_id=topic_id, state=state,
                    leader_epochs=known_leader_epochs(lake.metastore, partition),
                    first_dirty=None if not_compacted(settings[topic]) or as_of_ms is not None
                    else dirty[0].start if dirty else state.next_offset,
                    segment_bytes=int(setting_of(settings[topic], "segment.bytes")),
                    index_interval_bytes=int(setting_of(settings[topic], "index.interval.bytes")),
                )
            )  # fmt: skip
    return planned


def fresh_topic_id() -> str:
    """16 random bytes as Kafka writes them. Never with a dash first: tools would take it for an option."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not made.startswith("-"):
            return made


def export(
    lake: Lake, planned: Sequence[PartitionExport], place: ExportPlace, engine: Engine, *,
    board: Board | None = None, tell: Tell = lambda text: None, stop: Stop = never,
) -> Iterator[list[Exported]]:  # fmt: skip
    """Writes into a place that is held, in waves. Yields each wave once all its files and checkpoints are written for good.

    `stop`: finishes the current segments; partitions that are whole then are committed, the others are not."""
    count = 0
    for wave in _waves(planned):
        if stop():
            break
        with place.work_dirs([one.partition for one in wave]) as work_dirs:
            done = _export_wave(wave, lake.store, place, work_dirs, engine, board, stop)
        place.settle()
        count += len(done)
        if done:
            tell(f"{count} of {units.count(len(planned), 'partition')} written, the last is {done[-1].partition}")
        yield done
    if count == len(planned):
        place.complete()


def _waves(exports: Sequence[PartitionExport]) -> Iterator[list[PartitionExport]]:
    wave: list[PartitionExport] = []
    for planned in exports:
        if wave and (len(wave) >= WAVE_PARTITIONS or sum(other.bytes for other in wave) + planned.bytes > WAVE_BYTES):
            yield wave
            wave = []
        wave.append(planned)
    if wave:
        yield wave


def _export_wave(
    wave: Sequence[PartitionExport], store: Store, place: ExportPlace,
    work_dirs: Mapping[TopicPartition, Place], engine: Engine, board: Board | None, stop: Stop,
) -> list[Exported]:  # fmt: skip
    works = [segment_works(planned, store, work_dirs[planned.partition]) for planned in wave]
    ended = dict(engine.as_they_end(write_segments, [work for some in works for work in some], board, stop=stop))
    answers([ended[number] for number in sorted(ended)])
    numbers, done = iter(range(sum(map(len, works)))), []
    for planned, some in zip(wave, works, strict=True):
        own = [next(numbers) for _ in some]
        if not ended.keys() >= set(own):
            continue
        written = [ended[number] for number in own]
        exported = _exported(planned, written)
        outputs = [output for task in written for output in task.outputs]
        place.commit(_new_partition(planned, exported, outputs), work_dirs[planned.partition])
        done.append(exported)
    return done


def _exported(planned: PartitionExport, written: Sequence[SegmentsWritten]) -> Exported:
    state = planned.state
    epochs = merged(planned.leader_epochs, *(some.leader_epochs for some in written))
    return Exported(
        partition=planned.partition, topic_id=planned.topic_id, start_offset=state.start_offset,
        next_offset=state.next_offset, records=planned.records,
        bytes=sum(output.size for some in written for output in some.outputs),
        segments=sum(len(some.outputs) for some in written) or 1,
        leader_epochs=within(epochs, state.start_offset, state.next_offset),
        producer_id_max=max((some.producer_id_max for some in written), default=-1),
    )  # fmt: skip


def _new_partition(planned: PartitionExport, exported: Exported, outputs: Sequence[OutputSegment]) -> NewPartition:
    return NewPartition(
        partition=planned.partition, topic_id=planned.topic_id, start_offset=exported.start_offset,
        next_offset=exported.next_offset, leader_epochs=exported.leader_epochs, first_dirty=planned.first_dirty,
        outputs=tuple(outputs),
    )  # fmt: skip


def segment_works(planned: PartitionExport, store: Store, directory: Place) -> list[SegmentWork]:
    """Empty for a log without an offset."""
    state = planned.state
    if state.start_offset == state.next_offset:
        return []
    works = [
        SegmentWork(
            store=store, directory=directory, extents=group, start_offset=state.start_offset,
            pinned_start=None, next_offset=None,
            closing_epoch=max((epoch for epoch, start in planned.leader_epochs if start < state.next_offset), default=-1),
            index_interval_bytes=planned.index_interval_bytes,
        )
        for group in _groups(state.extents, planned.segment_bytes)
    ]  # fmt: skip
    works[0] = replace(works[0], pinned_start=state.start_offset)
    works[-1] = replace(works[-1], next_offset=state.next_offset)
    return works


def _groups(extents: Sequence[Extent], segment_bytes: int) -> Iterator[tuple[Extent, ...]]:
    """Up to a segment's bytes and reach; a larger extent is a segment of its own."""
    group: list[Extent] = []
    for extent in extents:
        full = sum(one.length for one in group) + extent.length > segment_bytes
        if group and (full or extent.span.end - group[0].span.start > SPREAD_MAX):
            yield tuple(group)
            group = []
        group.append(extent)
    if group:
        yield tuple(group)


def write_segments(work: SegmentWork, meter: Meter) -> SegmentsWritten:
    """The body of a task. One extent is in memory at a time."""
    _expect_same_disk(work.directory)
    segments = _Segments(work)
    try:
        for extent in work.extents:
            if extent.length and extent.span.end > work.start_offset:
                chunk = chunk_of(f"{work.store.url}/{object_path(extent.object_id)}", read_live(work.store, extent))
                segments.append(chunk)
                meter.add(extent.length, extent.records)
        return segments.finish()
    finally:
        segments.abandon()


def _expect_same_disk(directory: Place) -> None:
    """The driver has created it, under a random name: if it is missing, the task has another disk."""
    if isinstance(directory, Path) and not directory.is_dir():
        raise UsageError(
            f"{directory}: no such directory on {platform.node()}, where a task runs, although the driver created it: local "
            "--log-dirs must have the same path for the driver and for every executor (shared storage, or one machine); or "
            "export into object storage and copy, or with --engine process"
        )


class _Segments:
    """The segments of one task, one open at a time."""

    def __init__(self, work: SegmentWork) -> None:
        self._work = work
        self._open: OutputWriter | None = None
        self._base = self._end = -1
        self._newest_ms = -1
        self._done: list[OutputSegment] = []
        self._epochs: list[tuple[int, int]] = []
        self._producer_id_max = -1

    def append(self, chunk: Chunk) -> None:
        batches = chunk.batches[chunk.batches["last_offset"] >= self._work.start_offset]
        while batches.size:
            if self._open is None:
                self._begin(int(batches["base_offset"][0]))
            fitting = int((batches["last_offset"] - self._base <= SPREAD_MAX).sum())
            if not fitting:
                self._roll()
                continue
            self._write(chunk, batches[:fitting])
            batches = batches[fitting:]

    def _begin(self, first: int) -> None:
        """The first segment of a log begins at its start, or an empty batch there is a segment of its own."""
        base, pinned = first, self._work.pinned_start
        if pinned is not None and not self._done:
            base = min(first, pinned)
            if first - base > SPREAD_MAX // 2:  # so that what follows fits as well
                self._open_at(base)
                self._write_empty(base)
                self._roll()
                base = first
        self._open_at(base)

    def _open_at(self, base: int) -> None:
        self._open, self._base = OutputWriter(self._work.directory, base, self._work.index_interval_bytes), base

    def _write(self, chunk: Chunk, batches: np.ndarray) -> None:
        assert self._open is not None
        sizes = batches["size"].astype(np.int64)
        start = int(batches["position"][0])
        self._open.append(
            RewrittenChunk(
                data=chunk.data[start : start + int(sizes.sum())], sizes=sizes, lasts=batches["last_offset"].astype(np.int64),
                stamps=batches["max_timestamp"].astype(np.int64), counts=batches["count"].astype(np.int64),
            )
        )  # fmt: skip
        changes = np.flatnonzero(np.diff(batches["leader_epoch"], prepend=-2))
        self._epochs += [(int(batches["leader_epoch"][i]), int(batches["base_offset"][i])) for i in changes]
        self._end = int(batches["last_offset"][-1]) + 1
        self._newest_ms = max(self._newest_ms, int(batches["max_timestamp"].max()))
        self._producer_id_max = max(self._producer_id_max, int(batches["producer_id"].max()))

    def _write_empty(self, offset: int) -> None:
        """A batch without records."""
        epoch = max([self._work.closing_epoch, *(epoch for epoch, _ in self._epochs)])
        head = BatchHead(
            base_offset=offset, last_offset_delta=0, base_timestamp=-1, max_timestamp=-1, leader_epoch=epoch
        )
        chunk = chunk_of("an empty batch", batch_bytes(head, np.zeros(0, dtype=np.uint8), 0).tobytes())
        self._write(chunk, chunk.batches)

    def finish(self) -> SegmentsWritten:
        next_offset = self._work.next_offset
        if self._open is None and not self._done and self._work.pinned_start is not None and next_offset is None:
            self._open_at(self._work.pinned_start)
            self._write_empty(self._work.pinned_start)
        if next_offset is not None and self._end < next_offset:
            if self._open is None:
                self._begin(next_offset - 1)
            elif next_offset - 1 - self._base > SPREAD_MAX:
                self._roll()
                self._open_at(next_offset - 1)
            self._write_empty(next_offset - 1)
        if self._open is not None:
            self._roll()
        return SegmentsWritten(
            outputs=tuple(self._done), leader_epochs=merged(self._epochs), producer_id_max=self._producer_id_max
        )

    def _roll(self) -> None:
        """A broker takes records without timestamps to be as old as their file, so these get the youngest age possible."""
        assert self._open is not None
        with self._open as writer:
            self._done += writer.finish([], self._newest_ms if self._newest_ms >= 0 else time.time_ns() // 1_000_000)
        self._open, self._newest_ms = None, -1

    def abandon(self) -> None:
        if self._open is not None:
            with self._open:
                self._open = None
