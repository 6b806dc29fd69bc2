"""One compaction of many partitions: plan, run the stages, commit, report. The verb `compact` calls this.

Owns the order of steps and what must be true before each. Spark starts while headers are surveyed. Partitions go through the
stages in waves and are committed after each, so that unfinished outputs need room for a wave and not for the run. A partition
that cannot be compacted is reported, and the others go on.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.log.directory import find_partitions
from headstone.pipeline.commit import Finished
from headstone.pipeline.engine import Engine
from headstone.pipeline.failed_partition import FailedPartition
from headstone.pipeline.machine import AUTO, TASK_MEMORY_BYTES
from headstone.pipeline.new_objects import NewObjects
from headstone.pipeline.output_record import Command
from headstone.pipeline.planning import Candidate, as_candidate, partition_work, pass_over, survey_each, survey_peers
from headstone.pipeline.progress import BYTES_READ_TWICE, Board, ProgressLine
from headstone.pipeline.report import PartitionReport, partition_report
from headstone.pipeline.selection import Selection, refuse_wrong_clock, select
from headstone.pipeline.sinks import InPlace, NewDirectory, Sink
from headstone.pipeline.splitting import takes_whole
from headstone.pipeline.transfers import run_transfers
from headstone.pipeline.work import PartitionWork, TaskResult, bounded_map, compact_whole
from headstone.retention import keys
from headstone.retention.keys import HashKey
from headstone.retention.policy import Policy
from headstone.retention.ranges import dirty_segments
from headstone.retention.settings import with_settings
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.places import ObjectPlace, Place
from headstone.storage.stores import is_remote
from headstone.units import count

WAVE_PARTITIONS = 256
"""Partitions that are committed together: the checkpoint files are written once for each wave."""
WAVE_BYTES = 4 << 30
"""Bytes of log per wave, for each core: unfinished outputs may take this much room."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    paths: tuple[str | Place, ...]
    """Local directories, or prefixes of object stores; URLs are reached by `access`."""
    out: Place | None
    """None: in place."""
    policy: Policy
    access: Access = FROM_ENVIRONMENT
    clean: bool = False
    """Take over an output in an object store from a run that may still be at work."""
    dirty_from: int | None = None
    peers: tuple[Place, ...] = ()
    topics: tuple[str, ...] = ()
    """Only these; empty for every compacted one."""
    all_topics: bool = False
    """Also topics that nothing in a broker's directory shows to be compacted."""
    eligible_only: bool = False
    settings_from_cluster: frozenset[str] = frozenset()
    """Fields of the policy that a topic's own settings replace, if KRaft's metadata log has them."""
    clock_given: bool = False
    """The caller gave the policy's clock: it is checked against the records."""
    drop_keyless: bool = False
    force_offline: bool = False
    dry_run: bool = False
    path: str = AUTO
    task_memory_bytes: int = TASK_MEMORY_BYTES
    progress: bool = True

    @property
    def has_watermarks(self) -> bool:
        """Whether any tombstone or marker may go because of its age. Under the `kafka` rules, without watermarks, all may."""
        return bool(self.peers) or self.policy.tombstones_below > 0 or self.policy.markers_below > 0


@dataclass(slots=True, kw_only=True)
class CompactionResult:
    partitions: list[PartitionReport] = field(default_factory=list)
    failed: list[FailedPartition] = field(default_factory=list)
    done_before: list[str] = field(default_factory=list)
    """Partitions of the output that an earlier run of the same command has finished."""
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "partitions": [partition.as_json() for partition in self.partitions],
            "failed": [failure.as_json() for failure in self.failed],
            "done_before": self.done_before,
            "seconds": round(self.seconds, 3),
        }


def compact(request: CompactionRequest, engine: Engine, tell: Tell) -> CompactionResult:
    """If no partition could be compacted, raises the first one's error; otherwise the failed ones are in the result."""
    started = time.monotonic()
    everything = find_partitions(request.paths, request.access)
    paths = tuple(map(str, request.paths))
    selection = select(everything, paths=paths, topics=request.topics, all_topics=request.all_topics, tell=tell)
    result = CompactionResult(failed=list(selection.failed))
    sink = sink_of(request)
    with ExitStack() as stack:
        if not request.dry_run:
            finished = sink.hold(selection.wanted, everything, stack, tell)
            selection, result.done_before = selection.without(finished), sorted(finished)
            engine.begin()
        candidates = _candidates(selection, request, engine, result.failed)
        for c in candidates:
            tell_choice(c, request, tell)
        chosen = {c.directory.path for c in candidates if not request.eligible_only or c.eligibility.eligible}
        if request.dry_run:
            result.partitions = [
                partition_report(c, None, (), c.survey.log_start, chosen=c.directory.path in chosen) for c in candidates
            ]
        else:
            _run(candidates, _WaveRun(request, engine, sink, HashKey.random(), chosen), result, tell)
            sink.complete(selection.left, everything, engine, failed=bool(result.failed))
    if result.failed and not result.partitions and not result.done_before:
        for failure in result.failed[1:]:
            tell(f"{failure.partition}: NOT compacted: {failure.text}")
        raise result.failed[0].error
    result.seconds = time.monotonic() - started
    return result


def sink_of(request: CompactionRequest) -> Sink:
    if request.out is None:
        return InPlace(force_offline=request.force_offline, drop_keyless=request.drop_keyless)
    if isinstance(request.out, ObjectPlace):
        return NewObjects(request.out, clean=request.clean, command=_command_of(request))
    return NewDirectory(request.out, _command_of(request))


def _command_of(request: CompactionRequest) -> Command:
    """What decides about the output. A clock that was not given may differ between two runs."""
    policy = asdict(request.policy)
    if not request.clock_given:
        del policy["now_ms"]
    return {
        "paths": sorted(map(_absolute, request.paths)), "peers": sorted(map(_absolute, request.peers)),
        "topics": sorted(request.topics), "all_topics": request.all_topics, "eligible": request.eligible_only,
        "dirty_from": request.dirty_from, "drop_keyless": request.drop_keyless,
        "settings_from_cluster": sorted(request.settings_from_cluster), **policy,
    }  # fmt: skip


def _absolute(given: str | Place) -> str:
    return str(given).rstrip("/") if is_remote(str(given)) else str(Path(str(given)).resolve())


def tell_choice(candidate: Candidate, request: CompactionRequest, tell: Tell) -> None:
    name = candidate.directory.name
    for note in candidate.notes:
        tell(f"{name}: {note}")
    if request.eligible_only and not request.dry_run:
        tell(f"{name}: {'chosen' if candidate.eligibility.eligible else 'not chosen'}: {candidate.eligibility.reason}")


def _candidates(
    selection: Selection, request: CompactionRequest, engine: Engine, failed: list[FailedPartition]
) -> list[Candidate]:
    candidates = []
    peers = survey_peers(selection.wanted, request.peers, engine)
    for directory, surveyed in zip(selection.wanted, survey_each(selection.wanted, engine), strict=True):
        if isinstance(surveyed, Exception):
            failed.append(FailedPartition(partition=directory.name, error=surveyed))
        else:
            if request.clock_given:
                refuse_wrong_clock(directory, surveyed[0], request.policy.now_ms)
            settings = selection.settings.get(directory.path, {})
            policy = with_settings(request.policy, settings, request.settings_from_cluster)
            own_peers = peers.get(directory.path, ())
            candidates.append(as_candidate(directory, surveyed, policy, dirty_from=request.dirty_from, peers=own_peers))
    if request.eligible_only:
        candidates.sort(key=lambda c: (not c.eligibility.eligible, -c.eligibility.dirty_ratio))
    return candidates


@dataclass(frozen=True, slots=True)
class _WaveRun:
    """What all waves of a run share."""

    request: CompactionRequest
    engine: Engine
    sink: Sink
    hash_key: HashKey
    chosen: set[Place]


def _run(candidates: Sequence[Candidate], run: _WaveRun, result: CompactionResult, tell: Tell) -> None:
    """Adds to the result, wave by wave; everything in it is committed."""
    total = 2 * sum(size_of(c) for c in candidates if c.directory.path in run.chosen and not c.range.empty)
    with ProgressLine(enabled=run.request.progress, unit=BYTES_READ_TWICE) as line:
        line.expect(total)
        left = len(candidates)
        try:
            for wave in waves(candidates, run.engine):
                _run_wave(wave, run, result, line.board)
                line.settle(2 * sum(size_of(c) for c in wave if c.directory.path in run.chosen and not c.range.empty))
                left -= len(wave)
        finally:
            if left and result.partitions:
                tell(
                    f"done: {len(result.partitions)} of {count(len(candidates), 'partition')}; the others are as they were"
                )


def waves(candidates: Sequence[Candidate], engine: Engine) -> Iterator[list[Candidate]]:
    """Consecutive candidates that are processed and committed together."""
    wave: list[Candidate] = []
    size = 0
    for c in candidates:
        if wave and (len(wave) == WAVE_PARTITIONS or _fills_wave(size + size_of(c), engine)):
            yield wave
            wave, size = [], 0
        wave.append(c)
        size += size_of(c)
    if wave:
        yield wave


def _fills_wave(size: int, engine: Engine) -> bool:
    """Asks Spark for its cores only if that matters."""
    return size > WAVE_BYTES and size > WAVE_BYTES * engine.parallelism


def size_of(candidate: Candidate) -> int:
    return sum(segment.size for segment in candidate.survey.segments)


@dataclass(slots=True)
class _PartitionRun:
    """How far one partition of a wave has come. `error`: its first error; nothing more is done with it then."""

    candidate: Candidate
    work_dir: Place
    chosen: bool
    work: PartitionWork | None = None
    answers: list[TaskResult] = field(default_factory=list)
    finished: Finished | None = None
    error: Exception | None = None


def _run_wave(wave: Sequence[Candidate], run: _WaveRun, result: CompactionResult, board: Board | None) -> None:
    """Stages, then one commit after the other, then the checkpoints of all committed ones, whatever happened."""
    with run.sink.work_dirs(wave) as work_dirs:
        partitions = [_PartitionRun(c, work_dirs[c.directory.path], c.directory.path in run.chosen) for c in wave]
        _plan([p for p in partitions if p.chosen and not p.candidate.range.empty], run)
        _run_stages([p for p in partitions if p.work is not None], run, board)
        for partition in partitions:
            if partition.error is None:
                partition.finished = _finished(partition)
        _transfer([p for p in partitions if p.finished is not None], run)
        try:
            for partition in partitions:
                if partition.error is None:
                    _commit(partition, run, result)
        finally:
            run.sink.settle()
    failed = [(p.candidate.directory.name, p.error) for p in partitions if p.error is not None]
    for _, error in failed:
        if _stops_the_run(error):
            raise error
    result.failed += [FailedPartition(partition=name, error=error) for name, error in failed]


def _transfer(partitions: Sequence[_PartitionRun], run: _WaveRun) -> None:
    """Checks what is not rewritten, and brings it where the sink wants it."""
    tasks = [
        (partition, task)
        for partition in partitions
        if partition.finished is not None
        for task in run.sink.transfers(partition.finished, partition.work_dir)
    ]
    outcomes = run_transfers([task for _, task in tasks], run.engine)
    for (partition, _), outcome in zip(tasks, outcomes, strict=True):
        partition.error = partition.error or outcome


def _stops_the_run(error: Exception) -> bool:
    """Errors that are not about this partition: the next one would meet them too."""
    return isinstance(error, Unfinished) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def _commit(partition: _PartitionRun, run: _WaveRun, result: CompactionResult) -> None:
    """An error in this partition's own files is this partition's; any other ends the run."""
    finished = partition.finished
    assert finished is not None
    try:
        start = run.sink.commit(finished, partition.work_dir, chosen=partition.chosen)
    except (UsageError, CorruptLog) as error:
        partition.error = error
        return
    report = partition_report(
        partition.candidate, finished, tuple(partition.answers), start, chosen=partition.chosen
    )  # fmt: skip
    result.partitions.append(report)


def _plan(partitions: Sequence[_PartitionRun], run: _WaveRun) -> None:
    """Plans the work of each. With a bounded map, first fills it to see how far it reaches."""
    keys_max = run.request.policy.index_keys_max
    ends: list[int | Exception | None] = [None] * len(partitions)
    if keys_max is not None:
        tasks = []
        for c in (partition.candidate for partition in partitions):
            dirty = [s for s in dirty_segments(c.survey, c.range.dirty_start) if s.base < c.range.uncleanable]
            tasks.append((dirty, pass_over(c, run.hash_key), keys_max))
        ends = run.engine.outcomes(bounded_map, tasks, None)
    for partition, end in zip(partitions, ends, strict=True):
        if isinstance(end, Exception):
            partition.error = end
            continue
        cleaning = pass_over(partition.candidate, run.hash_key, dirty_end=end)
        partition.work = partition_work(partition.candidate, cleaning, partition.work_dir)


def _takes_whole(work: PartitionWork, bytes_total: int, run: _WaveRun) -> bool:
    return takes_whole(
        run.request.path, memory=keys.table_bytes(work.dirty_records) + work.records,
        memory_max=run.request.task_memory_bytes, size=work.size, bytes_per_task=bytes_total / run.engine.parallelism,
    )  # fmt: skip


def _run_stages(partitions: Sequence[_PartitionRun], run: _WaveRun, board: Board | None) -> None:
    """Each gets its tasks' answers, or the first error of one of them."""
    total = sum(_work_of(partition).size for partition in partitions)
    by_size = sorted(partitions, key=lambda partition: -_work_of(partition).size)
    whole = [partition for partition in by_size if _takes_whole(_work_of(partition), total, run)]
    split = [partition for partition in partitions if not _takes_whole(_work_of(partition), total, run)]
    outcomes = run.engine.outcomes(compact_whole, [_work_of(partition) for partition in whole], board)
    for partition, outcome in zip(whole, outcomes, strict=True):
        _take(partition, outcome)
    started = time.monotonic()
    for number, answer in run.engine.split([_work_of(partition) for partition in split], board) if split else ():
        if not isinstance(answer, Exception):
            answer = replace(answer, seconds=0.0 if split[number].answers else time.monotonic() - started)
        _take(split[number], answer)


def _take(partition: _PartitionRun, answer: TaskResult | Exception) -> None:
    if isinstance(answer, Exception):
        partition.error = partition.error or answer
    else:
        partition.answers.append(answer)


def _work_of(partition: _PartitionRun) -> PartitionWork:
    assert partition.work is not None
    return partition.work


def _finished(partition: _PartitionRun) -> Finished:
    candidate, work = partition.candidate, partition.work
    if work is None:
        return Finished(candidate=candidate, work=None, groups=(), dirty_end=candidate.range.dirty_start)
    groups = sorted(
        (group for answer in partition.answers for group in answer.groups), key=lambda group: group.outputs[0].base
    )
    assert [group.outputs[0].base for group in groups] == [group.base for group in work.groups]
    return Finished(candidate=candidate, work=work, groups=tuple(groups), dirty_end=work.cleaning.dirty_end)
