"""One compaction of many partitions: plan, run the stages, commit, report. The verb `compact` calls this.

Owns the order of steps and what must be true before each. Spark is started while headers are surveyed. Partitions go
through the stages in waves and are committed after each, so that unfinished outputs take the room of a wave and not of
the run; one that cannot be compacted is reported, and the others go on.
"""

from __future__ import annotations

import errno
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.log.directory import (
    PartitionDir,
    exclusive,
    find_partitions,
    is_broker_directory,
    was_stopped_cleanly,
)
from headstone.log.ownership import refuse_foreign, take_after
from headstone.log.swap import recover
from headstone.pipeline.commit import (
    WORK_PREFIX,
    CheckpointBook,
    Finished,
    changes,
    commit_in_place,
    commit_to,
    copy_broker_files,
    copy_untouched,
    is_clean_with,
    note_cleaned,
    note_new,
    refuse_existing,
    refuse_keyless,
    remove_work_dir,
    remove_work_dirs,
)
from headstone.pipeline.memory import TASK_MEMORY_BYTES
from headstone.pipeline.planning import Candidate, candidate, partition_work, pass_over, survey_each, verify_each
from headstone.pipeline.progress import Board, Meter, ProgressLine
from headstone.pipeline.report import PartitionReport, partition_report
from headstone.pipeline.selection import Selection, refuse_wrong_clock, select
from headstone.pipeline.work import PartitionWork, TaskResult, bounded_map, compact_whole
from headstone.retention import keys
from headstone.retention.keys import HashKey
from headstone.retention.passes import CleaningPass
from headstone.retention.policy import Policy
from headstone.retention.ranges import dirty_segments
from headstone.retention.settings import with_settings

SHUFFLE_BYTES_MIN = 1 << 30
"""Below this, splitting a partition over tasks costs more than it gains."""
WAVE_PARTITIONS = 256
"""Partitions that are committed together: every task of a wave is sent the wave, and the checkpoint files are written
once for each."""
WAVE_BYTES = 4 << 30
"""And bytes of log, for each core: as much room may unfinished outputs take."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Tell = Callable[[str], None]


class Engine(Protocol):
    """Runs the stages: on Spark (`stages.OnSpark`) or in this process (`inprocess.InProcess`)."""

    def begin(self) -> None: ...

    def each(self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        """The answers; the first error that a body met is raised."""
        ...

    def outcomes(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None
    ) -> list[Any]:
        """The answers, with the error that a body met in the place of its answer."""
        ...

    def split(
        self, works: Sequence[PartitionWork], board: Board | None = None
    ) -> list[tuple[int, TaskResult | Exception]]:
        """(which of the works, a result of it or an error that it met)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    paths: tuple[str, ...]
    out: Path | None
    policy: Policy
    dirty_from: int | None = None
    peers: tuple[Path, ...] = ()
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
    everything = find_partitions(request.paths)
    selection = select(everything, paths=request.paths, topics=request.topics, all_topics=request.all_topics, tell=tell)
    directories = selection.wanted
    result = CompactionResult()
    with ExitStack() as stack:
        if request.out is None and not request.dry_run:
            _hold_in_place(directories, request.force_offline, stack, tell)
        elif request.out is not None and not request.dry_run:
            clean = _hold_out(request.out, everything, stack)
        if not request.dry_run:
            engine.begin()
        found = _candidates(selection, request, result.failed)
        for c in found:
            tell_choice(c, request, tell)
        chosen = {c.directory.path for c in found if not request.eligible_only or c.eligibility.eligible}
        if request.dry_run:
            result.partitions = [
                partition_report(c, None, (), c.survey.log_start, chosen=c.directory.path in chosen) for c in found
            ]
        else:
            _run(found, chosen, request, engine, result, tell)
            if request.out is not None:
                _complete_out(request.out, everything, selection.left, result, clean=clean)
    if result.failed and not result.partitions:
        raise result.failed[0].error
    result.seconds = time.monotonic() - started
    return result


def _complete_out(
    out: Path,
    everything: Sequence[PartitionDir],
    left: Sequence[PartitionDir],
    result: CompactionResult,
    *,
    clean: bool,
) -> None:
    """What a broker looks for beside what was compacted; without it none starts on an output that lacks a partition."""
    if result.failed:
        return
    copy_untouched(left, out)
    copy_broker_files(sorted({directory.log_dir for directory in everything}), out, clean=clean)


def tell_choice(found: Candidate, request: CompactionRequest, tell: Tell) -> None:
    name = found.directory.name
    for note in found.notes:
        tell(f"{name}: {note}")
    if request.eligible_only or request.dry_run:
        tell(f"{name}: {'chosen' if found.eligibility.eligible else 'not chosen'}: {found.eligibility.reason}")


def _hold_out(out: Path, directories: Sequence[PartitionDir], stack: ExitStack) -> bool:
    """The output directory is ours alone; what a killed run left in it goes. Whether it will be as after a clean stop."""
    refuse_existing(out, directories)
    sources = sorted({directory.log_dir for directory in directories})
    if not out.exists():
        out.mkdir(parents=True)
        take_after(out, sources[0])
    stack.enter_context(exclusive(out))
    remove_work_dirs(out)
    return is_clean_with(out, sources)


def _hold_in_place(directories: Sequence[PartitionDir], force: bool, stack: ExitStack, tell: Tell) -> None:
    """Locks each log directory, refuses one whose broker did not stop cleanly, finishes interrupted swaps."""
    for log_dir in sorted({directory.log_dir for directory in directories}):
        broker = is_broker_directory(log_dir)
        if broker:
            refuse_foreign(log_dir)
        stack.enter_context(exclusive(log_dir))
        if broker and not was_stopped_cleanly(log_dir):
            if not force:
                raise UsageError(
                    f"{log_dir}: the broker of this directory did not stop cleanly (no .kafka_cleanshutdown); start and "
                    "stop it once, or pass --force-offline if you are sure that it is down and its log is whole"
                )
            tell(f"warning: {log_dir}: no clean shutdown; going on because of --force-offline")
    for directory in directories:
        for line in recover(directory.path):
            tell(f"{directory.name}: recovered an interrupted swap: {line}")
        remove_work_dirs(directory.path)


def _candidates(selection: Selection, request: CompactionRequest, failed: list[FailedPartition]) -> list[Candidate]:
    found = []
    for directory, surveyed in zip(selection.wanted, survey_each(selection.wanted), strict=True):
        if isinstance(surveyed, Exception):
            failed.append(FailedPartition(partition=directory.name, error=surveyed))
        else:
            if request.clock_given:
                refuse_wrong_clock(directory, surveyed[0], request.policy.now_ms)
            settings = selection.settings.get(directory.path, {})
            policy = with_settings(request.policy, settings, request.settings_from_cluster)
            found.append(candidate(directory, surveyed, policy, dirty_from=request.dirty_from, peers=request.peers))
    if request.eligible_only:
        found.sort(key=lambda c: (not c.eligibility.eligible, -c.eligibility.dirty_ratio))
    return found


def _run(
    found: Sequence[Candidate],
    chosen: set[Path],
    request: CompactionRequest,
    engine: Engine,
    result: CompactionResult,
    tell: Tell,
) -> None:
    """Adds to the result, wave by wave; what is in it is committed."""
    hash_key = HashKey.random()
    total = 2 * sum(size_of(c) for c in found if c.directory.path in chosen and not c.range.empty)
    books = {
        place: CheckpointBook(place)
        for place in ({c.directory.log_dir for c in found} if request.out is None else {request.out})
    }
    with ProgressLine(enabled=request.progress) as line:
        line.expect(total)
        left = len(found)
        try:
            for wave in waves(found, request.parallelism):
                _run_wave(wave, _Run(request, engine, hash_key, chosen, books, line.board), result)
                line.settle(2 * sum(size_of(c) for c in wave if c.directory.path in chosen and not c.range.empty))
                left -= len(wave)
        finally:
            if left and result.partitions:
                tell(f"{len(result.partitions)} of {len(found)} partitions are done, the others are as they were")


def waves(found: Sequence[Candidate], parallelism: int) -> Iterator[list[Candidate]]:
    """Runs of candidates, in their order, that are worked on and committed together."""
    wave: list[Candidate] = []
    size = 0
    for c in found:
        if wave and (len(wave) == WAVE_PARTITIONS or size + size_of(c) > WAVE_BYTES * parallelism):
            yield wave
            wave, size = [], 0
        wave.append(c)
        size += size_of(c)
    if wave:
        yield wave


def size_of(found: Candidate) -> int:
    return sum(segment.size for segment in found.survey.segments)


@dataclass(frozen=True, slots=True)
class _Run:
    """What all waves of a run share."""

    request: CompactionRequest
    engine: Engine
    hash_key: HashKey
    chosen: set[Path]
    books: dict[Path, CheckpointBook]
    board: Board | None


def _run_wave(wave: Sequence[Candidate], run: _Run, result: CompactionResult) -> None:
    """Stages, then one commit after the other, then the checkpoints of all that were committed, whatever happened."""
    with _work_dirs(run.request, wave) as work_dirs:
        to_do = [c for c in wave if c.directory.path in run.chosen and not c.range.empty]
        works, errors = _works(to_do, run, work_dirs)
        answers = _run_stages(works, run)
        errors |= {path: answer for path, answer in answers.items() if isinstance(answer, Exception)}
        rest = [c for c in wave if c.directory.path not in errors]
        finished = [_finished(c, works.get(c.directory.path), answers.get(c.directory.path)) for c in rest]
        errors |= verify_each({done.found.directory.path: [s.file for s in done.carried] for done in finished})
        try:
            for done in finished:
                path = done.found.directory.path
                try:
                    if path not in errors:
                        result.partitions.append(_committed(done, run, work_dirs[path], answers.get(path)))
                except (UsageError, CorruptLog) as error:
                    errors[path] = error
        finally:
            for book in run.books.values():
                book.write()
    for met in errors.values():
        if _stops_the_run(met):
            raise met
    bad = [c.directory for c in wave if c.directory.path in errors]
    result.failed += [FailedPartition(partition=directory.name, error=errors[directory.path]) for directory in bad]


def _stops_the_run(error: Exception) -> bool:
    """It is not about this partition: the next one would meet it too."""
    return isinstance(error, Unfinished) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def _committed(
    done: Finished, run: _Run, work_dir: Path, tasks: Sequence[TaskResult] | Exception | None
) -> PartitionReport:
    """Retention and checkpoint resets concern also what was not chosen."""
    directory = done.found.directory
    chosen = directory.path in run.chosen
    assert not isinstance(tasks, Exception)
    if run.request.out is not None:
        start = commit_to(run.request.out, done, work_dir)
        note_new(run.books[run.request.out], done, start)
    else:
        if not run.request.drop_keyless:
            refuse_keyless(done)
        start = done.found.survey.log_start
        if chosen or changes(done):
            start = commit_in_place(done)
            note_cleaned(run.books[directory.log_dir], done, start)
    return partition_report(done.found, done, tuple(tasks or ()), start, chosen=chosen)


@contextmanager
def _work_dirs(request: CompactionRequest, wave: Sequence[Candidate]) -> Iterator[dict[Path, Path]]:
    """For each partition directory a folder for unfinished outputs; gone afterwards, whatever happens."""
    job = WORK_PREFIX + secrets.token_hex(6)
    if request.out is not None:
        places = {c.directory.path: request.out / job / c.directory.name for c in wave}
        made = [request.out / job]
    else:
        places = {c.directory.path: c.directory.path / job for c in wave}
        made = list(places.values())
    try:
        for place in places.values():
            place.mkdir(parents=True)
        yield places
    finally:
        for place in made:
            remove_work_dir(place)


def _works(
    to_do: Sequence[Candidate], run: _Run, work_dirs: dict[Path, Path]
) -> tuple[dict[Path, PartitionWork], dict[Path, Exception]]:
    """The work of each partition, by its path; and what a bounded map met where it could not be filled."""
    passes: dict[Path, CleaningPass | Exception] = {c.directory.path: pass_over(c, run.hash_key) for c in to_do}
    keys_max = run.request.policy.index_keys_max
    if keys_max is not None:
        tasks = []
        for c in to_do:
            dirty = [s for s in dirty_segments(c.survey, c.range.dirty_start) if s.base < c.range.uncleanable]
            tasks.append((dirty, passes[c.directory.path], keys_max))
        for c, end in zip(to_do, run.engine.outcomes(bounded_map, tasks), strict=True):
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


def _run_stages(works: dict[Path, PartitionWork], run: _Run) -> dict[Path, list[TaskResult] | Exception]:
    """By partition: what its tasks answered, or the first error that one of them met."""
    sizes = {path: work.size for path, work in works.items()}
    total = sum(sizes.values())
    by_size = sorted(works, key=lambda path: -sizes[path])
    whole = [path for path in by_size if takes_whole(works[path], total, run.request)]
    split = [path for path in works if path not in set(whole)]
    answers: dict[Path, list[TaskResult] | Exception] = {}
    outcomes = run.engine.outcomes(compact_whole, [works[path] for path in whole], run.board)
    for path, outcome in zip(whole, outcomes, strict=True):
        answers[path] = outcome if isinstance(outcome, Exception) else [outcome]
    started = time.monotonic()
    for number, answer in run.engine.split([works[path] for path in split], run.board) if split else ():
        mine = answers.setdefault(split[number], [])
        if isinstance(answer, Exception):
            answers[split[number]] = answer if not isinstance(mine, Exception) else mine
        elif not isinstance(mine, Exception):
            mine.append(replace(answer, seconds=0.0 if mine else time.monotonic() - started))
    return answers


def _finished(found: Candidate, work: PartitionWork | None, tasks: Sequence[TaskResult] | Exception | None) -> Finished:
    if work is None:
        return Finished(found=found, work=None, groups=(), dirty_end=found.range.dirty_start)
    assert tasks is not None
    assert not isinstance(tasks, Exception)
    groups = sorted((group for task in tasks for group in task.groups), key=lambda group: group.outputs[0].base)
    assert [group.outputs[0].base for group in groups] == [group.base for group in work.groups]
    return Finished(found=found, work=work, groups=tuple(groups), dirty_end=work.cleaning.dirty_end)
