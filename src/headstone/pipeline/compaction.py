"""One compaction of many partitions: plan, run the stages, commit, report. The verb `compact` calls this.

Owns the order of steps and what must be true before each. Spark is started while headers are surveyed. Partitions go
through the stages in waves and are committed after each, so that unfinished outputs take the room of a wave and not of
the run; one that cannot be compacted is reported, and the others go on.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.log.directory import find_partitions
from headstone.pipeline.commit import Finished
from headstone.pipeline.engine import Engine
from headstone.pipeline.memory import TASK_MEMORY_BYTES
from headstone.pipeline.new_objects import NewObjects
from headstone.pipeline.planning import Candidate, as_candidate, partition_work, pass_over, survey_each, survey_peers
from headstone.pipeline.progress import Board, ProgressLine
from headstone.pipeline.report import PartitionReport, partition_report
from headstone.pipeline.selection import Selection, refuse_wrong_clock, select
from headstone.pipeline.sinks import InPlace, NewDirectory, Sink, WorkDirs
from headstone.pipeline.transfers import run_transfers
from headstone.pipeline.work import PartitionWork, TaskResult, bounded_map, compact_whole
from headstone.retention import keys
from headstone.retention.keys import HashKey
from headstone.retention.passes import CleaningPass
from headstone.retention.policy import Policy
from headstone.retention.ranges import dirty_segments
from headstone.retention.settings import with_settings
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.places import ObjectPlace, Place

SHUFFLE_BYTES_MIN = 1 << 30
"""Below this, splitting a partition over tasks costs more than it gains."""
WAVE_PARTITIONS = 256
"""Partitions that are committed together: the checkpoint files are written once for each wave."""
WAVE_BYTES = 4 << 30
"""And bytes of log, for each core: as much room may unfinished outputs take."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    paths: tuple[str | Place, ...]
    """Local directories, or prefixes of object stores; those that are named by a URL are reached by `access`."""
    out: Place | None
    """None: in place."""
    policy: Policy
    access: Access = FROM_ENVIRONMENT
    clean: bool = False
    """Take over an output in an object store from a run that may still be at work."""
    dirty_from: int | None = None
    peers: tuple[Place, ...] = ()
    topics: tuple[str, ...] = ()
    """Only these; none named: every compacted one."""
    all_topics: bool = False
    """Also those that nothing in a broker's directory tells to be compacted."""
    eligible_only: bool = False
    settings_from_cluster: frozenset[str] = frozenset()
    """Fields of the policy that a topic's own settings replace, where KRaft's metadata log tells them."""
    clock_given: bool = False
    """The policy's clock came from the caller: it is checked against the records."""
    drop_keyless: bool = False
    force_offline: bool = False
    dry_run: bool = False
    path: str = "auto"
    """auto, whole (one task per partition) or shuffle."""
    task_memory_bytes: int = TASK_MEMORY_BYTES
    parallelism: int = 2
    progress: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPartition:
    """A partition that is as it was, in place, or not in the output."""

    partition: str
    error: Exception


@dataclass(slots=True, kw_only=True)
class CompactionResult:
    partitions: list[PartitionReport] = field(default_factory=list)
    failed: list[FailedPartition] = field(default_factory=list)
    seconds: float = 0.0


def compact(request: CompactionRequest, engine: Engine, tell: Tell) -> CompactionResult:
    """Raises what the first partition met if none could be compacted; else those that could not are in the result."""
    started = time.monotonic()
    everything = find_partitions(request.paths, request.access)
    paths = tuple(map(str, request.paths))
    selection = select(everything, paths=paths, topics=request.topics, all_topics=request.all_topics, tell=tell)
    result = CompactionResult()
    sink = sink_of(request)
    with ExitStack() as stack:
        if not request.dry_run:
            sink.hold(selection.wanted, everything, stack, tell)
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
            _run(candidates, _Run(request, engine, sink, HashKey.random(), chosen), result, tell)
            sink.complete(selection.left, everything, engine, failed=bool(result.failed))
    if result.failed and not result.partitions:
        raise result.failed[0].error
    result.seconds = time.monotonic() - started
    return result


def sink_of(request: CompactionRequest) -> Sink:
    if request.out is None:
        return InPlace(force_offline=request.force_offline, drop_keyless=request.drop_keyless)
    if isinstance(request.out, ObjectPlace):
        return NewObjects(request.out, clean=request.clean)
    return NewDirectory(request.out)


def tell_choice(candidate: Candidate, request: CompactionRequest, tell: Tell) -> None:
    name = candidate.directory.name
    for note in candidate.notes:
        tell(f"{name}: {note}")
    if request.eligible_only or request.dry_run:
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
class _Run:
    """What all waves of a run share."""

    request: CompactionRequest
    engine: Engine
    sink: Sink
    hash_key: HashKey
    chosen: set[Place]


def _run(candidates: Sequence[Candidate], run: _Run, result: CompactionResult, tell: Tell) -> None:
    """Adds to the result, wave by wave; what is in it is committed."""
    total = 2 * sum(size_of(c) for c in candidates if c.directory.path in run.chosen and not c.range.empty)
    with ProgressLine(enabled=run.request.progress) as line:
        line.expect(total)
        left = len(candidates)
        try:
            for wave in waves(candidates, run.request.parallelism):
                _run_wave(wave, run, result, line.board)
                line.settle(2 * sum(size_of(c) for c in wave if c.directory.path in run.chosen and not c.range.empty))
                left -= len(wave)
        finally:
            if left and result.partitions:
                tell(f"{len(result.partitions)} of {len(candidates)} partitions are done, the others are as they were")


def waves(candidates: Sequence[Candidate], parallelism: int) -> Iterator[list[Candidate]]:
    """Runs of candidates, in their order, that are worked on and committed together."""
    wave: list[Candidate] = []
    size = 0
    for c in candidates:
        if wave and (len(wave) == WAVE_PARTITIONS or size + size_of(c) > WAVE_BYTES * parallelism):
            yield wave
            wave, size = [], 0
        wave.append(c)
        size += size_of(c)
    if wave:
        yield wave


def size_of(candidate: Candidate) -> int:
    return sum(segment.size for segment in candidate.survey.segments)


def _run_wave(wave: Sequence[Candidate], run: _Run, result: CompactionResult, board: Board | None) -> None:
    """Stages, then one commit after the other, then the checkpoints of all that were committed, whatever happened."""
    with run.sink.work_dirs(wave) as work_dirs:
        to_do = [c for c in wave if c.directory.path in run.chosen and not c.range.empty]
        works, errors = _works(to_do, run, work_dirs)
        answers = _run_stages(works, run, board)
        errors |= {path: answer for path, answer in answers.items() if isinstance(answer, Exception)}
        rest = [c for c in wave if c.directory.path not in errors]
        finished = [_finished(c, works.get(c.directory.path), answers.get(c.directory.path)) for c in rest]
        errors |= _transferred(finished, run, work_dirs)
        try:
            for done in finished:
                path = done.candidate.directory.path
                try:
                    if path not in errors:
                        result.partitions.append(_committed(done, run, work_dirs[path], answers.get(path)))
                except (UsageError, CorruptLog) as error:
                    errors[path] = error
        finally:
            run.sink.settle()
    for met in errors.values():
        if _stops_the_run(met):
            raise met
    bad = [c.directory for c in wave if c.directory.path in errors]
    result.failed += [FailedPartition(partition=directory.name, error=errors[directory.path]) for directory in bad]


def _transferred(finished: Sequence[Finished], run: _Run, work_dirs: WorkDirs) -> dict[Place, Exception]:
    """What is not rewritten is checked, and brought where the sink wants it; by partition, what went wrong first."""
    named = [
        (done.candidate.directory.path, task)
        for done in finished
        for task in run.sink.transfers(done, work_dirs[done.candidate.directory.path])
    ]
    outcomes = run_transfers([task for _, task in named], run.engine)
    errors: dict[Place, Exception] = {}
    for (path, _), outcome in zip(named, outcomes, strict=True):
        if outcome is not None:
            errors.setdefault(path, outcome)
    return errors


def _stops_the_run(error: Exception) -> bool:
    """It is not about this partition: the next one would meet it too."""
    return isinstance(error, Unfinished) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def _committed(
    done: Finished, run: _Run, work_dir: Place, tasks: Sequence[TaskResult] | Exception | None
) -> PartitionReport:
    chosen = done.candidate.directory.path in run.chosen
    assert not isinstance(tasks, Exception)
    start = run.sink.commit(done, work_dir, chosen=chosen)
    return partition_report(done.candidate, done, tuple(tasks or ()), start, chosen=chosen)


def _works(
    to_do: Sequence[Candidate], run: _Run, work_dirs: WorkDirs
) -> tuple[dict[Place, PartitionWork], dict[Place, Exception]]:
    """The work of each partition, by its path; and what a bounded map met where it could not be filled."""
    passes: dict[Place, CleaningPass | Exception] = {c.directory.path: pass_over(c, run.hash_key) for c in to_do}
    keys_max = run.request.policy.index_keys_max
    if keys_max is not None:
        tasks = []
        for c in to_do:
            dirty = [s for s in dirty_segments(c.survey, c.range.dirty_start) if s.base < c.range.uncleanable]
            tasks.append((dirty, passes[c.directory.path], keys_max))
        for c, end in zip(to_do, run.engine.outcomes(bounded_map, tasks, None), strict=True):
            passes[c.directory.path] = end if isinstance(end, Exception) else pass_over(c, run.hash_key, dirty_end=end)
    works = {}
    for c in to_do:
        cleaning = passes[c.directory.path]
        if not isinstance(cleaning, Exception):
            works[c.directory.path] = partition_work(c, cleaning, work_dirs[c.directory.path])
    return works, {path: error for path, error in passes.items() if isinstance(error, Exception)}


def takes_whole(work: PartitionWork, bytes_total: int, request: CompactionRequest) -> bool:
    """One task for the whole partition: its keys fit into the task's memory, and it does not hold up the others."""
    if request.path != "auto":
        return request.path == "whole"
    memory = keys.table_bytes(work.dirty_records) + work.records
    share = bytes_total / request.parallelism
    size = work.size
    return memory <= request.task_memory_bytes and (size <= share * 1.5 or size < SHUFFLE_BYTES_MIN)


def _run_stages(
    works: dict[Place, PartitionWork], run: _Run, board: Board | None
) -> dict[Place, list[TaskResult] | Exception]:
    """By partition: what its tasks answered, or the first error that one of them met."""
    sizes = {path: work.size for path, work in works.items()}
    total = sum(sizes.values())
    by_size = sorted(works, key=lambda path: -sizes[path])
    whole = [path for path in by_size if takes_whole(works[path], total, run.request)]
    split = [path for path in works if path not in set(whole)]
    answers: dict[Place, list[TaskResult] | Exception] = {}
    outcomes = run.engine.outcomes(compact_whole, [works[path] for path in whole], board)
    for path, outcome in zip(whole, outcomes, strict=True):
        answers[path] = outcome if isinstance(outcome, Exception) else [outcome]
    started = time.monotonic()
    for number, answer in run.engine.split([works[path] for path in split], board) if split else ():
        so_far = answers.setdefault(split[number], [])
        if isinstance(answer, Exception):
            answers[split[number]] = answer if not isinstance(so_far, Exception) else so_far
        elif not isinstance(so_far, Exception):
            so_far.append(replace(answer, seconds=0.0 if so_far else time.monotonic() - started))
    return answers


def _finished(
    candidate: Candidate, work: PartitionWork | None, tasks: Sequence[TaskResult] | Exception | None
) -> Finished:
    if work is None:
        return Finished(candidate=candidate, work=None, groups=(), dirty_end=candidate.range.dirty_start)
    assert tasks is not None
    assert not isinstance(tasks, Exception)
    groups = sorted((group for task in tasks for group in task.groups), key=lambda group: group.outputs[0].base)
    assert [group.outputs[0].base for group in groups] == [group.base for group in work.groups]
    return Finished(candidate=candidate, work=work, groups=tuple(groups), dirty_end=work.cleaning.dirty_end)
