"""Rewriting: neighbouring extents become one in an object of its own, without dead records.

The same offsets and the same log in another place. Leveling, purging and erasure choose what is rewritten; this writes it, in
tasks, and commits. No record changes: bytes are copied, lists of keys are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headstone.lake.format.dead import is_live, offsets_of, without_dead
from headstone.lake.format.extents import Extent, oldest
from headstone.lake.format.keyindex import KeyList, Offsets, joined
from headstone.lake.format.objects import (
    ObjectWriter,
    Stored,
    read_chunk,
    read_dead,
    read_extent,
    read_keys,
    write_once,
)
from headstone.lake.format.spans import Span
from headstone.lake.jobs.job import Check, Job, Told
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board, Meter
from headstone.storage.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """What to do with a partition: runs of its extents, as they are in this epoch; each run becomes one extent."""

    partition: Partition
    runs: Sequence[Sequence[Extent]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenExtents:
    extents: int = 0
    bytes_written: int = 0


@dataclass(slots=True, kw_only=True)
class _Rewriting:
    """A partition that is under way (`job.Work`): each of its runs is a task, and a commit of its own."""

    job: Job[Stored, RewrittenExtents]
    name: TopicPartition
    wanted: Rewriting
    worker: str | None
    check: Check
    waiting: dict[str, Sequence[Extent]]
    """The runs that are not committed yet, by their new object."""
    bytes_written: int = 0

    @property
    def parts(self) -> tuple[int, int]:
        of = len(self.wanted.runs)
        return of - len(self.waiting), of

    def unwritten(self) -> Iterable[str]:
        return self.waiting

    def tasks(self) -> Iterator[ExtentRewrite]:
        lake = self.job.lake
        for object_id, run in self.waiting.items():
            yield ExtentRewrite(
                store=lake.store, lake_id=lake.metastore.lake_id, topic_partition=self.name, object_id=object_id,
                extents=tuple(run), start_offset=self.wanted.partition.start_offset,
            )  # fmt: skip

    def take(self, answer: Stored) -> RewrittenExtents | None:
        self.job.renew()
        self.check(self.name)
        epoch, sizes = self.wanted.partition.compaction_epoch, {answer.object_id: answer.size}
        self.job.lake.metastore.level(
            self.name, epoch, answer.extents, sizes, worker=self.worker, now_ms=self.job.clock
        )
        del self.waiting[answer.object_id]
        self.bytes_written += answer.size
        if self.waiting:
            return None
        return RewrittenExtents(extents=sum(map(len, self.wanted.runs)), bytes_written=self.bytes_written)

    def finish_early(self) -> None:
        """Every run is committed as it comes."""


def rewrite_all(
    lake: Lake, wanted: Mapping[TopicPartition, Rewriting], *, clock: Callable[[], int], engine: Engine | None = None,
    worker: str | None = None, board: Board | None = None, stop: Stop = never,
    check: Check = lambda topic_partition: None, done: Told[RewrittenExtents] = lambda topic_partition, outcome: None,
) -> dict[TopicPartition, RewrittenExtents | Exception]:  # fmt: skip
    """The runs of many partitions are tasks of one job, each committed when it is done. Returns for each partition what was
    done, or why not; what was committed before that stays. A partition that fails or is refused costs the others nothing.

    `check` may give up a partition before a commit; `done` is called for each as soon as it has ended. `stop`: no further run
    is begun. Without an engine it runs in this process."""
    job = Job[Stored, RewrittenExtents](lake=lake, clock=clock, done=done)
    for name in [name for name, rewriting in wanted.items() if not rewriting.runs]:
        job.end(name, RewrittenExtents())
    named = {name: rewriting for name, rewriting in wanted.items() if rewriting.runs}
    object_ids = job.register(sum(len(rewriting.runs) for rewriting in named.values()))
    tasks: list[ExtentRewrite] = []
    for name, rewriting in named.items():
        work = _Rewriting(
            job=job, name=name, wanted=rewriting, worker=worker, check=check,
            waiting={next(object_ids): run for run in rewriting.runs},
        )  # fmt: skip
        job.under_way[name] = work
        tasks += work.tasks()
    # If all partitions of the job have failed, nothing more is written.
    answers = (engine or InProcess()).as_they_end(rewrite, tasks, board, stop=lambda: stop() or not job.under_way)
    job.hear((tasks[number].topic_partition, answer) for number, answer in answers)
    job.stop()
    return job.outcomes


def rewrite_runs(
    lake: Lake, topic_partition: TopicPartition, partition: Partition, runs: Sequence[Sequence[Extent]], *,
    clock: Callable[[], int], engine: Engine | None = None, worker: str | None = None, board: Board | None = None,
) -> RewrittenExtents:  # fmt: skip
    """As `rewrite_all`, for one partition; raises its error."""
    wanted = {topic_partition: Rewriting(partition=partition, runs=runs)}
    outcome = rewrite_all(lake, wanted, clock=clock, engine=engine, worker=worker, board=board)[topic_partition]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtentRewrite:
    """Neighbours that become one extent, in an object whose id is registered."""

    store: Store
    lake_id: str
    topic_partition: TopicPartition
    object_id: str
    extents: tuple[Extent, ...]
    start_offset: int


def rewrite(work: ExtentRewrite, meter: Meter) -> Stored:
    """The body of a task."""

    def fill(writer: ObjectWriter) -> None:
        live = []
        for extent in work.extents:
            live.append(_live(work.store, extent, work.start_offset))
            meter.add(extent.length, extent.records)
        writer.add(
            work.topic_partition.topic, work.topic_partition.number,
            Span(work.extents[0].span.start, work.extents[-1].span.end),
            [part.data for part in live if part.data],
            records=sum(part.records for part in live),
            max_timestamp_ms=max(extent.max_timestamp_ms for extent in work.extents),
            oldest_timestamp_ms=oldest(extent.oldest_timestamp_ms for extent in work.extents),
            keys=None if any(part.keys is None for part in live) else joined(part.keys for part in live if part.keys),
        )  # fmt: skip

    return write_once(work.store, work.object_id, work.lake_id, fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """What readers are shown of an extent."""

    data: bytes
    records: int
    keys: KeyList | None


def _live(store: Store, extent: Extent, start_offset: int) -> _Live:
    if not extent.length:
        return _Live(data=b"", records=0, keys=joined([]))
    hidden = shown_to_nobody(store, extent, start_offset)
    keys = read_keys(store, extent) if extent.keys >= 0 else None
    return _Live(
        data=without_dead(read_chunk(store, extent), hidden) if hidden.size else read_extent(store, extent),
        records=extent.records + extent.dead - hidden.size,
        keys=keys.only(is_live(keys.offsets, hidden)) if keys else None,
    )


def shown_to_nobody(store: Store, extent: Extent, start_offset: int) -> Offsets:
    """Offsets of its records that are dead, or below the log start."""
    dead = read_dead(store, extent)
    if extent.span.start >= start_offset:
        return dead
    offsets = offsets_of(read_chunk(store, extent))
    return np.union1d(dead, offsets[offsets < start_offset])
