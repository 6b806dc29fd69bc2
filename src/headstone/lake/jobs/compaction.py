"""Compaction of many partitions of the lake in one job: plan, let tasks decide and write, commit each when it is done.

The driver takes one snapshot of all partitions, registers ids for all objects, and commits the parts of each partition oldest
first, as soon as everything below them has ended. So a killed job keeps what it committed, and the next one continues there.
Tasks (`extent_work`) read lists of keys, write objects and know no SQL. Every commit carries the epoch: if another worker was
faster it is refused, and its uploads are garbage that no reader has seen. A partition that fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headstone import units
from headstone.errors import HeadstoneError
from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span, Spans, overlap, without
from headstone.lake.jobs.extent_work import (
    ExtentShare,
    Lists,
    Pass,
    Run,
    RunResult,
    SplitExtents,
    compact_share,
    refuse_keyless,
)
from headstone.lake.jobs.job import Check, Job, JobControl, Stopped, Told
from headstone.lake.jobs.job_plan import JobSettings, Plan, bounded, map_keys_max, numbered, plan_job, runs_of, tasks_of
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Claim, Partition, gone
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.scheduling import compactable, dirty_spans
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.progress import Board, ProgressLine
from headstone.retention.policy import NO_LIMIT

PARTS_AT_ONCE = 32
"""For a partition whose keys go through the buckets: this many runs are written, then committed, then the next.

A minimum: on a cluster it is two for every core, so that none waits for the slowest part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What one compaction did. `committed` False: there was nothing to do."""

    partition: TopicPartition
    committed: bool
    epoch: int
    dirty: Spans
    indexed: Span | None
    """The dirty part that this pass indexed; with a bounded map it takes several passes."""
    commits: int
    extents: int
    extents_read: int
    """Extents whose batches were read; the others' batches were not needed."""
    extents_rewritten: int
    extents_marked: int
    """Not read and not rewritten: their superseded records are listed as dead."""
    records_before: int
    records_after: int
    records_dead: int
    """Dead records in the bytes afterwards; not included in `records_after`."""
    bytes_before: int
    bytes_after: int
    bytes_read: int
    """Batches, lists of keys and of dead records."""
    bytes_written: int
    """Whole objects."""

    def as_line(self) -> str:
        if not self.committed:
            return f"{self.partition}: nothing to do"
        removed = self.bytes_before - self.bytes_after
        amplification = (
            f"{self.bytes_written / removed:.2f} bytes written for each removed" if removed else "no bytes removed"
        )
        return (
            f"{self.partition}: {self.records_before:,} -> {units.count(self.records_after, 'record')}, "
            f"{units.size(self.bytes_before)} -> {units.size(self.bytes_after)}, "
            f"{self.extents_read} of {units.count(self.extents, 'extent')} read, "
            f"{self.extents_rewritten} rewritten, {self.extents_marked} marked "
            f"({units.count(self.records_dead, 'dead record')} in "
            f"all), {amplification}"
        )


def compact_partition(
    lake: Lake, topic_partition: TopicPartition, engine: Engine, *, now_ms: int, settings: JobSettings | None = None,
    control: JobControl | None = None,
) -> Compacted:  # fmt: skip
    """Raises CommitRefused if another worker was faster; parts committed before that stay, without a claim."""
    outcomes = compact_partitions(lake, [topic_partition], engine, now_ms=now_ms, settings=settings, control=control)
    outcome = outcomes[topic_partition]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def compact_partitions(
    lake: Lake, wanted: Sequence[TopicPartition], engine: Engine, *, now_ms: int, settings: JobSettings | None = None,
    control: JobControl | None = None, check: Check = lambda topic_partition: None,
    done: Told[Compacted] = lambda topic_partition, outcome: None,
) -> dict[TopicPartition, Compacted | Exception]:  # fmt: skip
    """All of them in one job. Returns for each what was done, or why not. `check` may give up a partition before a commit.

    `done` is called for each as soon as it has ended."""
    settings, control = settings or JobSettings(), control or JobControl()
    clock = control.clock or (lambda: now_ms)
    job = Job[Sequence[RunResult], Compacted](lake=lake, clock=clock, done=done, renew_ms=settings.renew_ms)
    compaction = _Compaction(
        job=job, engine=engine, now_ms=now_ms, settings=settings, control=control, check=check
    )  # fmt: skip
    compaction.decide(wanted)
    if compaction.under_way:
        with ProgressLine(enabled=compaction.control.progress) as line:
            line.expect(sum(partition.plan.size for partition in compaction.under_way))
            compaction.run(line.board)
    return job.outcomes


@dataclass(slots=True, kw_only=True)
class _Compaction:
    """The caller says what is due. This decides what to do about it (`Plan`), runs it, and commits it."""

    job: Job[Sequence[RunResult], Compacted]
    engine: Engine
    now_ms: int
    settings: JobSettings
    control: JobControl
    check: Check
    under_way: list[_Partition] = field(default_factory=list)

    def decide(self, wanted: Sequence[TopicPartition]) -> None:
        """Makes a plan for each partition, or ends it: there is nothing to do, or an error."""
        metastore = self.job.lake.metastore
        settings = metastore.topics()
        snapshot = metastore.snapshot(wanted, present_only=True)
        for name in wanted:
            if name not in snapshot:
                self.job.end(name, gone(name))
        holds = Holds(metastore).lowest(now_ms=self.now_ms)  # the commits notice holds that are taken later
        for name, before in snapshot.items():
            if self.control.stop():
                self.job.end(name, Stopped("stopped before it was begun; run it again"))
                continue
            held_from = min(self.settings.held_from, holds.get(name, NO_LIMIT))
            try:
                plan = plan_job(before, settings[name.topic], now_ms=self.now_ms, held_from=held_from)
                partition = None if plan is None else self._begun(name, before, plan, settings[name.topic])
            except HeadstoneError as error:
                self.job.end(name, error)
                continue
            if partition is None:
                self.job.end(name, _idle(name, before))
                continue
            self.under_way.append(partition)
            self.job.under_way[name] = partition

    def _begun(
        self, name: TopicPartition, before: Partition, plan: Plan, settings: Mapping[str, object]
    ) -> _Partition:  # fmt: skip
        listed = [extent for extent in before.extents if extent.keys >= 0]
        refuse_keyless(name, sum(extent.records + extent.dead - extent.keys for extent in listed))
        partition = _Partition(compaction=self, name=name, before=before, plan=plan, epoch=before.compaction_epoch)
        if self.settings.map_bytes is not None and plan.index is not None:
            lists = Lists(partition.shared())
            newest = compactable(before, settings, now_ms=self.now_ms)[-1]
            partition.plan = bounded(before, plan, newest, map_keys_max(self.settings.map_bytes), lists)
            partition.bytes_read = lists.bytes_read
        return partition

    def run(self, board: Board | None) -> None:
        """Whole partitions and shares first, the largest first; then those whose keys go through the buckets."""
        cut = [(partition, runs_of(partition.plan.extents, self.settings.commit_bytes)) for partition in self.under_way]
        object_ids = self.job.register(sum(len(runs) for _, runs in cut))
        for partition, runs in cut:
            partition.runs = numbered(runs, [next(object_ids) for _ in runs])
        parallelism = self.settings.parallelism or self.engine.parallelism
        shares, split = self._tasks(sum(partition.plan.size for partition in self.under_way) / parallelism)
        self.control.check()
        self.job.hear(
            (partition.name, []) for partition in self.under_way if not partition.runs
        )  # without records: clean
        answers = self.engine.as_they_end(compact_share, shares, board, stop=self.control.stop)
        self.job.hear((shares[number].common.topic_partition, answer) for number, answer in answers)
        for work in split:
            if self.control.stop():
                break
            parts = self.engine.split(
                [work], board, parts_at_once=max(PARTS_AT_ONCE, 2 * parallelism), stop=self.control.stop
            )
            self.job.hear((work.common.topic_partition, _results(answer)) for _, answer in parts)
        if self.control.stop():
            self.job.stop()

    def _tasks(self, bytes_per_task: float) -> tuple[list[ExtentShare], list[SplitExtents]]:
        shares: list[ExtentShare] = []
        split: list[SplitExtents] = []
        for partition in sorted(self.under_way, key=lambda partition: -partition.plan.size):
            if partition.runs:
                tasks = tasks_of(partition.shared(), partition.plan, partition.runs, bytes_per_task, self.settings)
                if isinstance(tasks, SplitExtents):
                    split.append(tasks)
                else:
                    shares += tasks
        return shares, split


def _results(answer: RunResult | Exception) -> list[RunResult] | Exception:
    return answer if isinstance(answer, Exception) else [answer]


@dataclass(slots=True, kw_only=True)
class _Partition:
    """A partition whose compaction is under way (`job.Work`): runs are tasks, committed oldest first."""

    compaction: _Compaction
    name: TopicPartition
    before: Partition
    plan: Plan
    epoch: int
    runs: tuple[Run, ...] = ()
    results: dict[str, RunResult] = field(default_factory=dict)
    """By the id of the run's object; only those that are not committed yet."""
    next_run: int = 0
    held_back: RunResult | None = None
    """A result with changes waits for the next one, so that the claim can go with the last."""
    unused: list[str] = field(default_factory=list)
    """Ids of objects that were not written."""
    tombstones: list[Span] = field(default_factory=list)
    committed: list[Extent] = field(default_factory=list)
    rewritten: int = 0
    marked: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def parts(self) -> tuple[int, int]:
        return self.next_run, len(self.runs)

    def unwritten(self) -> Iterable[str]:
        used = {extent.dead_object or extent.object_id for extent in self.committed}
        return [run.object_id for run in self.runs if run.object_id not in used]

    def shared(self) -> Pass:
        """What all its tasks get."""
        lake = self.compaction.job.lake
        return Pass(
            store=lake.store, lake_id=lake.metastore.lake_id, hash_key=lake.metastore.hash_key, topic_partition=self.name,
            index=self.plan.index, due=self.plan.due, dead_share_max=self.compaction.settings.dead_share_max,
        )  # fmt: skip

    def take(self, answer: Sequence[RunResult]) -> Compacted | None:
        """Commits oldest first: a tombstone never goes while an older record of its key is still served."""
        self.results.update({result.object_id: result for result in answer})
        while self.next_run < len(self.runs) and self.runs[self.next_run].object_id in self.results:
            result = self.results.pop(self.runs[self.next_run].object_id)
            self.next_run += 1
            self.bytes_read += result.bytes_read
            self.tombstones += result.tombstones
            if result.stored is None:
                self.unused.append(result.object_id)
                continue
            if self.held_back is not None:
                self._commit(self.held_back, None)
            self.held_back = result
        if self.next_run < len(self.runs):
            return None
        self._commit(self.held_back, _claim(self.before, self.plan, self.tombstones))
        with suppress(HeadstoneError):  # garbage collection forgets them later
            self.compaction.job.lake.metastore.unregister(self.unused)
        return _summary(self.name, self)

    def finish_early(self) -> None:
        """Gives up parts that wait for one below them; their uploads are garbage that no reader has seen."""
        if self.held_back is not None:
            self._commit(self.held_back, None)

    def _commit(self, result: RunResult | None, claim: Claim | None) -> None:
        job, control = self.compaction.job, self.compaction.control
        job.renew()
        stored = result.stored if result is not None else None
        extents = stored.extents if stored is not None else []
        self.compaction.check(self.name)
        control.check()
        control.before_commit()
        job.lake.metastore.replace(
            self.name, self.epoch, extents, claim, {stored.object_id: stored.size} if stored is not None else {},
            tombstones_below=self.plan.tombstones_below, now_ms=job.clock,
        )  # fmt: skip
        self.epoch += 1
        self.committed += extents
        if result is not None and stored is not None:
            self.rewritten += result.rewritten
            self.marked += result.marked
            self.bytes_written += stored.size
        if claim is None and extents:
            end = extents[-1].span.end
            control.tell(
                f"{self.name}: committed up to offset {end}, {self.next_run} of {units.count(len(self.runs), 'part')}"
            )


def _claim(partition: Partition, plan: Plan, holding: Sequence[Span]) -> Claim:
    """The indexed range is clean now; some of it still holds tombstones. Ranges that were due are no longer tracked.

    Tombstones that are still left in those are tracked anew."""
    claimed = [plan.index] if plan.index is not None else []
    left = overlap(overlap(holding, [*claimed, *plan.due]), [*partition.cleaned, *claimed])
    tracked = without([known.span for known in partition.tombstones], plan.due)
    return Claim(
        processed=Span(partition.start_offset, max(span.end for span in (*claimed, *plan.due))),
        cleaned=(*claimed, *plan.due), tombstones=without(left, tracked), tombstones_removed=plan.due,
    )  # fmt: skip


def _idle(topic_partition: TopicPartition, partition: Partition) -> Compacted:
    extents = partition.extents
    records, size = sum(extent.records for extent in extents), sum(extent.length for extent in extents)
    return Compacted(
        partition=topic_partition, committed=False, epoch=partition.compaction_epoch, dirty=(), indexed=None, commits=0,
        extents=len(extents),
        extents_read=0, extents_rewritten=0, extents_marked=0, records_before=records, records_after=records,
        records_dead=sum(extent.dead for extent in extents), bytes_before=size, bytes_after=size, bytes_read=0, bytes_written=0,
    )  # fmt: skip


def _summary(topic_partition: TopicPartition, state: _Partition) -> Compacted:
    before, changed = state.before, {extent.span: extent for extent in state.committed}
    after = [changed.get(extent.span, extent) for extent in before.extents]
    return Compacted(
        partition=topic_partition, committed=True, epoch=state.epoch, dirty=dirty_spans(before), indexed=state.plan.index,
        commits=state.epoch - before.compaction_epoch, extents=len(before.extents), extents_read=state.rewritten,
        extents_rewritten=state.rewritten, extents_marked=state.marked,
        records_before=sum(extent.records for extent in before.extents),
        records_after=sum(extent.records for extent in after), records_dead=sum(extent.dead for extent in after),
        bytes_before=sum(extent.length for extent in before.extents), bytes_after=sum(extent.length for extent in after),
        bytes_read=state.bytes_read, bytes_written=state.bytes_written,
    )  # fmt: skip
