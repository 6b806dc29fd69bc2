"""Rewriting: neighbouring extents become one in an object of its own, without dead records.

The same offsets and the same log in another place: leveling, purging and erasure choose what is rewritten, this writes it, as
tasks, and commits. No record changes: bytes are copied, lists of keys become one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headstone import units
from headstone.errors import HeadstoneError
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
from headstone.lake.jobs.compaction import Stopped
from headstone.lake.jobs.job_plan import RENEW_MS
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board, Meter
from headstone.storage.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """What is wanted of a partition: runs of its extents, as they are in this epoch; each becomes one."""

    partition: Partition
    runs: Sequence[Sequence[Extent]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    extents: int = 0
    bytes_written: int = 0


Outcome = Rewritten | Exception
Check = Callable[[TopicPartition], None]
Done = Callable[[TopicPartition, Outcome], None]


@dataclass(slots=True, kw_only=True)
class _Job:
    lake: Lake
    clock: Callable[[], int]
    worker: str | None
    check: Check
    done: Done
    under_way: dict[TopicPartition, Rewriting]
    runs_done: Counter[TopicPartition] = field(default_factory=Counter)
    bytes_written: Counter[TopicPartition] = field(default_factory=Counter)
    outcomes: dict[TopicPartition, Outcome] = field(default_factory=dict)
    registered_ms: int = 0

    def end(self, name: TopicPartition, outcome: Outcome) -> None:
        del self.under_way[name]
        self.outcomes[name] = outcome
        self.done(name, outcome)

    def works(self) -> list[RewriteWork]:
        """A task for each run, and all objects in one registration. Partitions without a run have ended."""
        for name in [name for name, wanted in self.under_way.items() if not wanted.runs]:
            self.end(name, Rewritten())
        runs = [(name, wanted.partition, run) for name, wanted in self.under_way.items() for run in wanted.runs]
        self.registered_ms = self.clock()
        object_ids = self.lake.metastore.register(len(runs), now_ms=self.registered_ms)
        return [
            RewriteWork(
                store=self.lake.store, lake_id=self.lake.metastore.lake_id, topic_partition=name, object_id=object_id,
                extents=tuple(run), start_offset=partition.start_offset,
            )
            for (name, partition, run), object_id in zip(runs, object_ids, strict=True)
        ]  # fmt: skip

    def take(self, name: TopicPartition, answer: Stored | Exception) -> None:
        """What a task has answered."""
        if name not in self.under_way:  # it has failed before
            return
        if isinstance(answer, Exception):
            self.end(name, answer)
            return
        try:
            self._commit(name, answer)
        except HeadstoneError as error:
            self.end(name, error)
            return
        self.runs_done[name] += 1
        self.bytes_written[name] += answer.size
        runs = self.under_way[name].runs
        if self.runs_done[name] == len(runs):
            self.end(name, Rewritten(extents=sum(map(len, runs)), bytes_written=self.bytes_written[name]))

    def _commit(self, name: TopicPartition, stored: Stored) -> None:
        self.check(name)
        epoch, sizes = self.under_way[name].partition.compaction_epoch, {stored.object_id: stored.size}
        self.lake.metastore.level(name, epoch, stored.extents, sizes, worker=self.worker, now_ms=self.clock)

    def renew(self, waiting: Iterable[RewriteWork]) -> None:
        """A job may last longer than an upload may take."""
        now_ms = self.clock()
        if now_ms - self.registered_ms >= RENEW_MS:
            ids = [work.object_id for work in waiting if work.topic_partition in self.under_way]
            self.lake.metastore.keep_registered(ids, now_ms=now_ms)
            self.registered_ms = now_ms


def rewrite_all(
    lake: Lake, wanted: Mapping[TopicPartition, Rewriting], *, clock: Callable[[], int], engine: Engine | None = None,
    worker: str | None = None, board: Board | None = None, stop: Stop = never,
    check: Check = lambda topic_partition: None, done: Done = lambda topic_partition, outcome: None,
) -> dict[TopicPartition, Outcome]:  # fmt: skip
    """The runs of many partitions are tasks of one job, and a commit each, as they get done; of each partition what was done,
    or why it was not, and what was committed before stays. One that fails or is refused costs the others nothing.

    `check` may give up a partition before a commit; `done` is told of each as soon as it has ended. `stop`: no run is begun any
    more. Without an engine in this process."""
    job = _Job(lake=lake, clock=clock, worker=worker, check=check, done=done, under_way=dict(wanted))
    works = dict(enumerate(job.works()))
    # Of partitions that have all failed no more is written.
    answers = (engine or InProcess()).as_they_end(
        rewrite, list(works.values()), board, stop=lambda: stop() or not job.under_way
    )
    for number, answer in answers:
        job.renew(works.values())
        job.take(works.pop(number).topic_partition, answer)
    for name, unfinished in list(job.under_way.items()):
        parts = f"{job.runs_done[name]} of {units.count(len(unfinished.runs), 'part')} done"
        job.end(name, Stopped(f"stopped: {parts}; run it again to continue"))
    return job.outcomes


def rewrite_runs(
    lake: Lake, topic_partition: TopicPartition, partition: Partition, runs: Sequence[Sequence[Extent]], *,
    clock: Callable[[], int], engine: Engine | None = None, worker: str | None = None, board: Board | None = None,
) -> Rewritten:  # fmt: skip
    """As `rewrite_all`, of one partition: what it met is raised."""
    wanted = {topic_partition: Rewriting(partition=partition, runs=runs)}
    outcome = rewrite_all(lake, wanted, clock=clock, engine=engine, worker=worker, board=board)[topic_partition]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteWork:
    """Neighbours that become one extent, in an object whose id is registered."""

    store: Store
    lake_id: str
    topic_partition: TopicPartition
    object_id: str
    extents: tuple[Extent, ...]
    start_offset: int


def rewrite(work: RewriteWork, meter: Meter) -> Stored:
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
