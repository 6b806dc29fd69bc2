"""Compaction of many partitions of the lake in one job: plan, let tasks decide and write, commit each as it gets done.

The driver takes one snapshot of all partitions, registers ids for all objects, and commits the parts of each partition oldest
first, as soon as everything below them has ended: a job that is killed has kept what it committed, and the next one goes on
there. Tasks (`extent_work`) read lists of keys, write objects and know no SQL. Every commit carries the epoch: if another
worker was faster it is refused, and what was uploaded for it is garbage that nobody has seen. One partition that fails does not
stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headstone import units
from headstone.errors import HeadstoneError, Unfinished
from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span, Spans, overlap, without
from headstone.lake.jobs.extent_work import (
    Lists,
    Pass,
    Run,
    RunResult,
    Share,
    SplitExtents,
    compact_share,
    refuse_keyless,
)
from headstone.lake.jobs.job_plan import JobSettings, Plan, bounded, map_keys_max, numbered, plan_job, runs_of, tasks_of
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Claim, Partition, gone
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.scheduling import compactable, dirty_spans
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.progress import Board, ProgressLine
from headstone.retention.policy import NO_LIMIT

PARTS_AT_ONCE = 32
"""Of a partition whose keys go through the buckets: so many runs are written, then committed, then the next.

At least: on a cluster two for every core, so that none waits for the slowest part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What one compaction did. `committed` False: there was nothing to do."""

    partition: TopicPartition
    committed: bool
    epoch: int
    dirty: Spans
    indexed: Span | None
    """The dirty part that this pass took on; a bounded map takes it in several."""
    commits: int
    extents: int
    extents_read: int
    """Their batches; those of the others were not needed."""
    extents_rewritten: int
    extents_marked: int
    """Not read and not rewritten: their superseded records are listed as dead."""
    records_before: int
    records_after: int
    records_dead: int
    """Dead records in the bytes afterwards; not among `records_after`."""
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


class Stopped(Unfinished):
    """Somebody said stop before all of it was done: what was committed stays, and the next compaction goes on there."""


Check = Callable[[TopicPartition], None]
Done = Callable[[TopicPartition, Compacted | Exception], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobControl:
    """Who stands beside a job: gives it the time, hears of it, and may end it."""

    clock: Callable[[], int] | None = None
    """For what happens during the job: uploads are registered and extents replaced then. None: all when it began."""
    check: Callable[[], None] = lambda: None
    """Called at every step; what it raises gives the job up."""
    before_commit: Callable[[], None] = lambda: None
    """Called when only a commit is left to do; what it raises gives the job up."""
    stop: Stop = never
    """Once it is true no part is begun any more; what is complete then is committed."""
    tell: Callable[[str], None] = lambda text: None
    progress: bool = False
    """Whether somebody watches."""


def compact_partition(
    lake: Lake, topic_partition: TopicPartition, engine: Engine, *, now_ms: int, settings: JobSettings | None = None,
    control: JobControl | None = None,
) -> Compacted:  # fmt: skip
    """Raises CommitRefused if another worker was faster; parts that were committed before stay, without a claim."""
    outcomes = compact_partitions(lake, [topic_partition], engine, now_ms=now_ms, settings=settings, control=control)
    outcome = outcomes[topic_partition]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def compact_partitions(
    lake: Lake, wanted: Sequence[TopicPartition], engine: Engine, *, now_ms: int, settings: JobSettings | None = None,
    control: JobControl | None = None, check: Check = lambda topic_partition: None,
    done: Done = lambda topic_partition, outcome: None,
) -> dict[TopicPartition, Compacted | Exception]:  # fmt: skip
    """All of them in one job; of each what was done, or why it was not. `check` may give up one of them before a commit.

    `done` is told of each as soon as it has ended."""
    job = _Job(
        lake=lake, engine=engine, now_ms=now_ms, settings=settings or JobSettings(), control=control or JobControl(),
        check=check, done=done,
    )  # fmt: skip
    for topic_partition, state in _planned(job, wanted).items():
        if isinstance(state, _Partition):
            job.under_way[topic_partition] = state
        else:
            job.end(topic_partition, state)
    if job.under_way:
        with ProgressLine(enabled=job.control.progress) as line:
            line.expect(sum(state.plan.size for state in job.under_way.values()))
            _run(job, line.board)
    return job.outcomes


@dataclass(slots=True, kw_only=True)
class _Partition:
    """A partition whose compaction is under way."""

    before: Partition
    plan: Plan
    epoch: int
    runs: tuple[Run, ...] = ()
    results: dict[str, RunResult] = field(default_factory=dict)
    """By the id of the run's object; those that are not committed yet."""
    next_run: int = 0
    held_back: list[RunResult] = field(default_factory=list)
    """One that changes something waits for the next such one, so that the claim can go with the last."""
    unused: list[str] = field(default_factory=list)
    """Ids of objects that nothing was written to."""
    tombstones: list[Span] = field(default_factory=list)
    committed: list[Extent] = field(default_factory=list)
    rewritten: int = 0
    marked: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(slots=True, kw_only=True)
class _Job:
    lake: Lake
    engine: Engine
    now_ms: int
    settings: JobSettings
    control: JobControl
    check: Check
    done: Done
    registered_ms: int = 0
    under_way: dict[TopicPartition, _Partition] = field(default_factory=dict)
    outcomes: dict[TopicPartition, Compacted | Exception] = field(default_factory=dict)

    @property
    def clock(self) -> Callable[[], int]:
        return self.control.clock or (lambda: self.now_ms)

    def end(self, topic_partition: TopicPartition, outcome: Compacted | Exception) -> None:
        self.under_way.pop(topic_partition, None)
        self.outcomes[topic_partition] = outcome
        self.done(topic_partition, outcome)


def _planned(job: _Job, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, _Partition | Compacted | Exception]:
    metastore = job.lake.metastore
    settings = metastore.topics()
    states: dict[TopicPartition, _Partition | Compacted | Exception] = {}
    snapshot = metastore.snapshot(wanted, present_only=True)
    states |= {topic_partition: gone(topic_partition) for topic_partition in wanted if topic_partition not in snapshot}
    holds = Holds(metastore).lowest(now_ms=job.now_ms)  # one that is taken from now on is noticed by the commits
    for topic_partition, partition in snapshot.items():
        if job.control.stop():
            states[topic_partition] = Stopped("stopped before it was begun; run it again")
            continue
        try:
            held_from = min(job.settings.held_from, holds.get(topic_partition, NO_LIMIT))
            planned = _plan(job, topic_partition, partition, settings[topic_partition.topic], held_from)
        except HeadstoneError as error:
            states[topic_partition] = error
            continue
        states[topic_partition] = planned or _idle(topic_partition, partition)
    return states


def _plan(
    job: _Job, topic_partition: TopicPartition, partition: Partition, settings: Mapping[str, object], held_from: int
) -> _Partition | None:
    plan = plan_job(partition, settings, now_ms=job.now_ms, held_from=held_from)
    if plan is None:
        return None
    listed = [extent for extent in partition.extents if extent.keys >= 0]
    refuse_keyless(topic_partition, sum(extent.records + extent.dead - extent.keys for extent in listed))
    state = _Partition(before=partition, plan=plan, epoch=partition.compaction_epoch)
    if job.settings.map_bytes is not None and plan.index is not None:
        lists = Lists(_common(job, topic_partition, plan))
        newest = compactable(partition, settings, now_ms=job.now_ms)[-1]
        state.plan = bounded(partition, plan, newest, map_keys_max(job.settings.map_bytes), lists)
        state.bytes_read = lists.bytes_read
    return state


def _common(job: _Job, topic_partition: TopicPartition, plan: Plan) -> Pass:
    return Pass(
        store=job.lake.store, lake_id=job.lake.metastore.lake_id, hash_key=job.lake.metastore.hash_key,
        topic_partition=topic_partition, index=plan.index, due=plan.due, dead_share_max=job.settings.dead_share_max,
    )  # fmt: skip


def _run(job: _Job, board: Board | None) -> None:
    """Whole partitions and shares first, the largest first; then those whose keys go through the buckets."""
    _number_runs(job)
    parallelism = job.settings.parallelism or job.engine.parallelism
    bytes_per_task = sum(state.plan.size for state in job.under_way.values()) / parallelism
    shares: list[Share] = []
    split: dict[TopicPartition, SplitExtents] = {}
    for topic_partition, state in sorted(job.under_way.items(), key=lambda item: -item[1].plan.size):
        if not state.runs:
            continue
        tasks = tasks_of(
            _common(job, topic_partition, state.plan), state.plan, state.runs, bytes_per_task, job.settings
        )
        if isinstance(tasks, SplitExtents):
            split[topic_partition] = tasks
        else:
            shares += tasks
    job.control.check()
    for topic_partition in [name for name, state in job.under_way.items() if not state.runs]:
        _take(job, topic_partition, [])  # without a record: it is clean all the same
    for number, answer in job.engine.as_they_end(compact_share, shares, board, stop=job.control.stop):
        _take(job, shares[number].common.topic_partition, answer)
    for topic_partition, work in split.items():
        if job.control.stop():
            break
        parts_at_once = max(PARTS_AT_ONCE, 2 * parallelism)
        for _, answer in job.engine.split([work], board, parts_at_once=parts_at_once, stop=job.control.stop):
            _take(job, topic_partition, answer if isinstance(answer, Exception) else [answer])
    if job.control.stop():
        for topic_partition, state in list(job.under_way.items()):
            _stop(job, topic_partition, state)


def _stop(job: _Job, topic_partition: TopicPartition, state: _Partition) -> None:
    """It is not complete. Parts that wait for one below them are given up; they are garbage that nobody has seen."""
    try:
        for result in state.held_back:
            _commit(job, topic_partition, state, result, None)
    except HeadstoneError as error:
        job.end(topic_partition, error)
        return
    parts = f"{state.next_run} of {units.count(len(state.runs), 'part')} done"
    job.end(topic_partition, Stopped(f"stopped: {parts}; run it again to continue"))


def _number_runs(job: _Job) -> None:
    """All objects that the job may write, in one registration."""
    cut = {
        topic_partition: runs_of(state.plan.extents, job.settings.commit_bytes)
        for topic_partition, state in job.under_way.items()
    }
    job.registered_ms = job.clock()
    object_ids = iter(job.lake.metastore.register(sum(map(len, cut.values())), now_ms=job.registered_ms))
    for topic_partition, runs in cut.items():
        job.under_way[topic_partition].runs = numbered(runs, [next(object_ids) for _ in runs])


def _renew(job: _Job) -> None:
    """A job may last longer than an upload may take."""
    if job.clock() - job.registered_ms >= job.settings.renew_ms:
        used = {
            extent.dead_object or extent.object_id for state in job.under_way.values() for extent in state.committed
        }
        waiting = [run.object_id for state in job.under_way.values() for run in state.runs if run.object_id not in used]
        job.lake.metastore.keep_registered(waiting, now_ms=job.clock())
        job.registered_ms = job.clock()


def _take(job: _Job, topic_partition: TopicPartition, answer: list[RunResult] | Exception) -> None:
    """What a task has answered; commits what is complete."""
    state = job.under_way.get(topic_partition)
    if state is None:  # it has failed before
        return
    if isinstance(answer, Exception):
        job.end(topic_partition, answer)
        return
    state.results.update({result.object_id: result for result in answer})
    try:
        _commit_prefix(job, topic_partition, state)
    except HeadstoneError as error:
        job.end(topic_partition, error)


def _commit_prefix(job: _Job, topic_partition: TopicPartition, state: _Partition) -> None:
    """Oldest first: a tombstone is never gone while an older record of its key is still served."""
    while state.next_run < len(state.runs) and state.runs[state.next_run].object_id in state.results:
        result = state.results.pop(state.runs[state.next_run].object_id)
        state.next_run += 1
        state.bytes_read += result.bytes_read
        state.tombstones += result.tombstones
        if result.stored is None:
            state.unused.append(result.object_id)
            continue
        for earlier in state.held_back:
            _commit(job, topic_partition, state, earlier, None)
        state.held_back = [result]
    if state.next_run == len(state.runs):
        claim = _claim(state.before, state.plan, state.tombstones)
        _commit(job, topic_partition, state, state.held_back[0] if state.held_back else None, claim)
        job.end(topic_partition, _summary(topic_partition, state))
        with suppress(HeadstoneError):  # garbage collection forgets them later
            job.lake.metastore.unregister(state.unused)


def _commit(
    job: _Job, topic_partition: TopicPartition, state: _Partition, result: RunResult | None, claim: Claim | None
) -> None:
    _renew(job)
    stored = result.stored if result is not None else None
    extents = stored.extents if stored is not None else []
    job.check(topic_partition)
    job.control.check()
    job.control.before_commit()
    job.lake.metastore.replace(
        topic_partition, state.epoch, extents, claim, {stored.object_id: stored.size} if stored is not None else {},
        tombstones_below=state.plan.tombstones_below, now_ms=job.clock,
    )  # fmt: skip
    state.epoch += 1
    state.committed += extents
    if result is not None and stored is not None:
        state.rewritten += result.rewritten
        state.marked += result.marked
        state.bytes_written += stored.size
    if claim is None and extents:
        end = extents[-1].span.end
        job.control.tell(
            f"{topic_partition}: committed up to offset {end}, {state.next_run} of {units.count(len(state.runs), 'part')}"
        )


def _claim(partition: Partition, plan: Plan, holding: Sequence[Span]) -> Claim:
    """What was indexed is clean now, and which of it still holds tombstones. Ranges that were due are done with.

    What is left in those all the same is tracked anew."""
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
