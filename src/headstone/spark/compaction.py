"""One compaction of many partitions: plan, run the stages, commit, report. The verb `compact` calls this.

Owns the order of steps and what must be true before each. Spark is started while headers are surveyed.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from headstone.errors import UsageError
from headstone.log.directory import (
    METADATA_TOPIC,
    PartitionDir,
    exclusive,
    find_partitions,
    is_broker_directory,
    was_stopped_cleanly,
)
from headstone.log.swap import recover
from headstone.retention import keys
from headstone.retention.keys import HashKey
from headstone.retention.passes import Round
from headstone.retention.policy import Policy
from headstone.retention.ranges import dirty_segments
from headstone.spark.commit import (
    WORK_PREFIX,
    Finished,
    changes,
    commit_in_place,
    commit_to,
    copy_untouched,
    refuse_existing,
    refuse_keyless,
    remove_work_dirs,
    write_new_checkpoints,
)
from headstone.spark.planning import Candidate, candidate, partition_work, round_of, survey_all, verify_all
from headstone.spark.progress import Meter, ProgressLine
from headstone.spark.report import PartitionReport, partition_report
from headstone.spark.work import PartitionWork, TaskResult, bounded_map, compact_whole

TASK_MEMORY_BYTES = 1 << 30
SHUFFLE_BYTES_MIN = 1 << 30
"""Below this, splitting a partition over tasks costs more than it gains."""

Tell = Callable[[str], None]


class Engine(Protocol):
    """Runs the stages: on Spark (`stages.OnSpark`) or in this process (`inprocess.InProcess`)."""

    def begin(self) -> None: ...

    def each(self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], progress_dir: str | None) -> list[Any]: ...

    def split(self, works: Sequence[PartitionWork], progress_dir: str) -> list[TaskResult]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    paths: tuple[str, ...]
    out: Path | None
    policy: Policy
    dirty_from: int | None = None
    peers: tuple[Path, ...] = ()
    topics: tuple[str, ...] = ()
    """Only these; none named: all."""
    eligible_only: bool = False
    drop_keyless: bool = False
    force_offline: bool = False
    dry_run: bool = False
    path: str = "auto"
    """auto, whole (one task a partition) or shuffle."""
    task_memory_bytes: int = TASK_MEMORY_BYTES
    parallelism: int = 2
    progress: bool = True


@dataclass(slots=True, kw_only=True)
class CompactionResult:
    partitions: list[PartitionReport] = field(default_factory=list)
    seconds: float = 0.0


def compact(request: CompactionRequest, engine: Engine, tell: Tell) -> CompactionResult:
    started = time.monotonic()
    everything = find_partitions(request.paths)
    directories = _wanted(everything, request, tell)
    result = CompactionResult()
    with ExitStack() as stack:
        if request.out is None and not request.dry_run:
            _hold_in_place(directories, request.force_offline, stack, tell)
        elif request.out is not None and not request.dry_run:
            _hold_out(request.out, everything, stack)
        if not request.dry_run:
            engine.begin()
        found = _candidates(directories, request, tell)
        chosen = [c for c in found if not request.eligible_only or c.eligibility.eligible]
        for c in found:
            tell_choice(c, request, tell)
        if request.dry_run:
            result.partitions = [
                partition_report(c, None, (), c.survey.log_start, chosen=any(c is other for other in chosen))
                for c in found
            ]
        else:
            result.partitions = _run(found, chosen, request, engine)
            if request.out is not None:
                for directory in (d for d in everything if d.topic == METADATA_TOPIC):
                    copy_untouched(directory, request.out)
    result.seconds = time.monotonic() - started
    return result


def _wanted(everything: Sequence[PartitionDir], request: CompactionRequest, tell: Tell) -> list[PartitionDir]:
    """The partitions of the topics named, never KRaft's metadata log."""
    unknown = sorted(set(request.topics) - {directory.topic for directory in everything})
    if unknown:
        raise UsageError(f"no partition of topic {unknown[0]} in {', '.join(request.paths)}")
    wanted = [d for d in everything if d.topic != METADATA_TOPIC and (not request.topics or d.topic in request.topics)]
    if any(directory.topic == METADATA_TOPIC for directory in everything):
        tell(f"{METADATA_TOPIC} is left as it is: snapshots, not compaction, keep it small")
    if not wanted:
        raise UsageError(f"{', '.join(request.paths)}: nothing to compact")
    return wanted


def tell_choice(found: Candidate, request: CompactionRequest, tell: Tell) -> None:
    name = found.directory.name
    for note in found.notes:
        tell(f"{name}: {note}")
    if request.eligible_only or request.dry_run:
        tell(f"{name}: {'chosen' if found.eligibility.eligible else 'not chosen'}: {found.eligibility.reason}")


def _hold_out(out: Path, directories: Sequence[PartitionDir], stack: ExitStack) -> None:
    """The output directory is ours alone; what a killed run left in it goes."""
    refuse_existing(out, directories)
    out.mkdir(parents=True, exist_ok=True)
    stack.enter_context(exclusive(out))
    remove_work_dirs(out)


def _hold_in_place(directories: Sequence[PartitionDir], force: bool, stack: ExitStack, tell: Tell) -> None:
    """Locks each log directory, refuses one whose broker did not stop cleanly, finishes interrupted swaps."""
    for log_dir in sorted({directory.log_dir for directory in directories}):
        broker = is_broker_directory(log_dir)
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


def _candidates(directories: Sequence[PartitionDir], request: CompactionRequest, tell: Tell) -> list[Candidate]:
    surveys = survey_all(directories)
    found = [
        candidate(directory, surveyed, request.policy, dirty_from=request.dirty_from, peers=request.peers)
        for directory, surveyed in zip(directories, surveys, strict=True)
    ]
    if request.eligible_only:
        found.sort(key=lambda c: (not c.eligibility.eligible, -c.eligibility.dirty_ratio))
    return found


def _run(
    found: Sequence[Candidate], chosen: Sequence[Candidate], request: CompactionRequest, engine: Engine
) -> list[PartitionReport]:
    hash_key = HashKey.random()
    to_do = [c for c in chosen if not c.range.empty]
    with _work_dirs(request, found) as work_dirs:
        works = _works(to_do, request, hash_key, work_dirs, engine)
        answers = _run_stages(works, request, engine) if works else []
        finished = [_finished(c, works, answers) for c in found]
        for done in finished if request.out is None and not request.drop_keyless else ():
            refuse_keyless(done)
        verify_all([s.file for done in finished for s in done.found.survey.segments if s.base in done.carried])
        names = {c.directory.path for c in chosen}
        starts = _commit(finished, request, work_dirs, names)
    tasks = {work.path: tuple(mine) for work, mine in zip(works, answers, strict=True)}
    return [
        partition_report(
            done.found,
            done,
            tasks.get(str(done.found.directory.path), ()),
            start,
            chosen=done.found.directory.path in names,
        )
        for done, start in zip(finished, starts, strict=True)
    ]


@contextmanager
def _work_dirs(request: CompactionRequest, found: Sequence[Candidate]) -> Iterator[dict[Path, Path]]:
    """For each partition directory a folder for unfinished outputs; gone afterwards, whatever happens."""
    job = WORK_PREFIX + secrets.token_hex(6)
    if request.out is not None:
        places = {c.directory.path: request.out / job / c.directory.name for c in found}
        made = [request.out / job]
    else:
        places = {c.directory.path: c.directory.path / job for c in found}
        made = list(places.values())
    try:
        for place in places.values():
            place.mkdir(parents=True)
        yield places
    finally:
        for place in made:
            shutil.rmtree(place, ignore_errors=True)


def _works(
    to_do: Sequence[Candidate],
    request: CompactionRequest,
    hash_key: HashKey,
    work_dirs: dict[Path, Path],
    engine: Engine,
) -> list[PartitionWork]:
    rounds = [round_of(c, hash_key) for c in to_do]
    if request.policy.index_keys_max is not None and to_do:
        rounds = _bounded_rounds(to_do, rounds, request.policy.index_keys_max, hash_key, engine)
    return [partition_work(c, r, work_dirs[c.directory.path]) for c, r in zip(to_do, rounds, strict=True)]


def _bounded_rounds(
    to_do: Sequence[Candidate], rounds: Sequence[Round], keys_max: int, hash_key: HashKey, engine: Engine
) -> list[Round]:
    tasks = []
    for c, r in zip(to_do, rounds, strict=True):
        dirty = [s for s in dirty_segments(c.survey, r.dirty_start) if s.base < r.uncleanable]
        tasks.append((dirty, r, keys_max))
    ends = engine.each(bounded_map, tasks, None)
    return [round_of(c, hash_key, mapped_end=end) for c, end in zip(to_do, ends, strict=True)]


def takes_whole(work: PartitionWork, works: Sequence[PartitionWork], request: CompactionRequest) -> bool:
    """One task for the whole partition: its keys fit into the task's memory, and it does not hold up the others."""
    if request.path != "auto":
        return request.path == "whole"
    memory = keys.table_bytes(work.dirty_records) + work.records
    share = sum(w.size for w in works) / request.parallelism
    return memory <= request.task_memory_bytes and (work.size <= share * 1.5 or work.size < SHUFFLE_BYTES_MIN)


def _run_stages(works: Sequence[PartitionWork], request: CompactionRequest, engine: Engine) -> list[list[TaskResult]]:
    """Results per work, in the order of works."""
    work_dir = Path(works[0].work_dir)
    progress_dir = work_dir if request.out is None else work_dir.parent
    whole = [i for i, work in enumerate(works) if takes_whole(work, works, request)]
    split = [i for i in range(len(works)) if i not in set(whole)]
    answers: list[list[TaskResult]] = [[] for _ in works]
    total = 2 * sum(work.size for work in works)
    with ProgressLine(progress_dir, bytes_total=total, enabled=request.progress):
        by_size = sorted(whole, key=lambda i: -works[i].size)
        for i, answer in zip(
            by_size, engine.each(compact_whole, [works[i] for i in by_size], str(progress_dir)), strict=True
        ):
            answers[i].append(answer)
        started = time.monotonic()
        for answer in engine.split([works[i] for i in split], str(progress_dir)) if split else ():
            mine = answers[split[answer.partition]]
            mine.append(replace(answer, seconds=0.0 if mine else time.monotonic() - started))
    return answers


def _finished(found: Candidate, works: Sequence[PartitionWork], answers: Sequence[Sequence[TaskResult]]) -> Finished:
    for work, mine in zip(works, answers, strict=True):
        if work.path == str(found.directory.path):
            groups = sorted((group for task in mine for group in task.groups), key=lambda group: group.base)
            assert [group.base for group in groups] == [group.base for group in work.groups]
            return Finished(found=found, work=work, groups=tuple(groups), next_dirty=work.round.mapped_end)
    return Finished(found=found, work=None, groups=(), next_dirty=found.range.dirty_start)


def _commit(
    finished: Sequence[Finished], request: CompactionRequest, work_dirs: dict[Path, Path], chosen: set[Path]
) -> list[int]:
    """Log start offsets afterwards. Retention and checkpoint resets concern also what was not chosen."""
    if request.out is None:
        return [
            commit_in_place(done)
            if done.found.directory.path in chosen or changes(done)
            else done.found.survey.log_start
            for done in finished
        ]
    starts = [commit_to(request.out, done, work_dirs[done.found.directory.path]) for done in finished]
    write_new_checkpoints(request.out, list(zip(finished, starts, strict=True)))
    return starts
