"""From directories to work: surveys each partition, decides range, groups and path, and says why.

Reads headers only. Threads of the driver survey local disks, because only headers are touched there. Tasks survey object
stores, because a header there costs the bytes around it. Changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headstone.coordination.watermarks import NEVER_HEARD, ReplicaWatermarks, group_watermarks
from headstone.errors import CorruptLog, UsageError
from headstone.log import checkpoints
from headstone.log.directory import (
    SNAPSHOT,
    TXN_INDEX,
    PartitionDir,
    as_partition,
    list_segments,
    numbered,
    readable_segments,
    snapshot_offsets,
    tells_high_watermarks,
)
from headstone.log.indexes import AbortedTxn, read_aborted
from headstone.log.reading import Batches, SegmentFile, with_loss
from headstone.log.snapshots import ProducerEntry, read_snapshot
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import NEAR_THREADS, InProcess, run_near_data
from headstone.pipeline.progress import Meter
from headstone.pipeline.work import GroupWork, PartitionWork
from headstone.retention.keys import HashKey
from headstone.retention.passes import CleaningPass
from headstone.retention.policy import Policy
from headstone.retention.producers import active_producers
from headstone.retention.ranges import (
    CleanRange,
    Eligibility,
    clean_range,
    dirty_segments,
    eligibility,
    first_dirty_offset,
    group_segments,
)
from headstone.retention.survey import PartitionSurvey, Walk, survey_partition, walk_file
from headstone.storage.places import ObjectPlace, Place

REMEMBERED_BYTES_MAX = 64 << 20
"""For the headers of one partition in an object store; a batch takes about a hundred bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A partition as found, before any decision about rewriting."""

    directory: PartitionDir
    survey: PartitionSurvey
    policy: Policy
    range: CleanRange
    first_dirty: int
    """Where the last pass ended by the checkpoint; log start if there is no usable checkpoint."""
    eligibility: Eligibility
    log_start_entry: int | None
    """Its entry in the log start checkpoint; the survey's log start is never below the first segment."""
    notes: tuple[str, ...]


Surveyed = tuple[PartitionSurvey, tuple[str, ...]]
"""A survey and notes for the user."""


def survey_all(directories: Sequence[PartitionDir], engine: Engine | None = None) -> list[Surveyed]:
    """Without an engine it uses threads of this process, even for remote files."""
    return [_or_raise(outcome) for outcome in survey_each(directories, engine or InProcess(NEAR_THREADS))]


def _or_raise(outcome: Surveyed | Exception) -> Surveyed:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def survey_each(directories: Sequence[PartitionDir], engine: Engine) -> list[Surveyed | Exception]:
    """The surveys; an error of a partition takes the place of its own."""

    def task_of(directory: PartitionDir) -> SurveyTask | Exception:
        try:
            return survey_task(directory)
        except (UsageError, CorruptLog, OSError) as error:
            return error

    tasks = [task_of(directory) for directory in directories]
    surveys = iter(run_near_data(survey, [task for task in tasks if isinstance(task, SurveyTask)], engine))
    return [task if isinstance(task, Exception) else next(surveys) for task in tasks]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyTask:
    """A partition, with what the checkpoint files beside it say."""

    directory: PartitionDir
    log_start: int | None
    high_watermark: int | None
    notes: tuple[str, ...]

    @property
    def is_far(self) -> bool:
        return isinstance(self.directory.path, ObjectPlace)


def survey_directory(directory: PartitionDir) -> Surveyed:
    """In this process, now."""
    return run_survey(survey_task(directory))


def survey_task(directory: PartitionDir) -> SurveyTask:
    high = checkpoints.read_offsets(directory.log_dir / checkpoints.HIGH_WATERMARK).get(directory.topic_partition)
    start = checkpoints.read_offsets(directory.log_dir / checkpoints.LOG_START).get(directory.topic_partition)
    notes: tuple[str, ...] = ()
    if directory.segment is not None:
        notes = ("one segment alone: how a transaction began or ended in another one is not known here",)
    elif high is None and tells_high_watermarks(directory.log_dir):
        high = max(start or 0, list_segments(directory)[0].base)
        notes = (f"no high watermark in {checkpoints.HIGH_WATERMARK}: it begins at log start {high}, as in a broker",)
    return SurveyTask(directory=directory, log_start=start, high_watermark=high, notes=notes)


def survey(task: SurveyTask, meter: Meter) -> Surveyed:
    """The body of a task."""
    del meter
    return run_survey(task)


def run_survey(task: SurveyTask, walk: Walk | None = None) -> Surveyed:
    """The survey of a partition directory with the files beside its log: checkpoints, snapshots, `.txnindex`."""
    directory = task.directory
    files = readable_segments(directory)
    walk = walk or (RememberedWalk() if task.is_far else walk_file)
    snapshot, notes = _newest_snapshot(directory, files, walk)
    try:
        survey = survey_partition(
            files,
            log_start=task.log_start,
            high_watermark=task.high_watermark,
            snapshot=snapshot,
            indexed_aborted=_indexed_aborted(directory, files),
            walk=walk,
        )
    except CorruptLog as error:
        raise with_loss(error, files) from error
    notes += task.notes
    if survey.aborted_lost:
        notes += (
            f"{survey.aborted_lost} aborted transactions are missing from .txnindex: found from the log itself; "
            "a broker would serve them as committed",
        )
    return survey, notes


class RememberedWalk:
    """A walk that keeps the headers of remote files: a second walk reads nothing again, up to a limit.

    A file with another size or time is another file."""

    def __init__(self) -> None:
        self._tables: dict[SegmentFile, list[Batches]] = {}
        self._bytes = 0

    def __call__(self, file: SegmentFile, previous: int) -> Iterator[Batches]:
        if file in self._tables:
            yield from self._tables[file]
            return
        tables: list[Batches] | None = []
        for table in walk_file(file, previous):
            if tables is not None:
                tables.append(table.copy())
                self._bytes += table.nbytes
            if self._bytes > REMEMBERED_BYTES_MAX:
                tables = None
            yield table
        if tables is not None:
            self._tables[file] = tables

    def keep_only(self, files: Sequence[SegmentFile]) -> None:
        self._tables = {file: self._tables[file] for file in files if file in self._tables}
        self._bytes = sum(table.nbytes for tables in self._tables.values() for table in tables)


def _newest_snapshot(
    directory: PartitionDir, files: Sequence[SegmentFile], walk: Walk
) -> tuple[tuple[int, list[ProducerEntry]] | None, tuple[str, ...]]:
    """Newest readable snapshot inside the log: one above its end describes records that were truncated since."""
    offsets = [offset for offset in snapshot_offsets(directory) if offset > files[0].base]
    if not offsets:
        return None, ()
    log_end = files[-1].base
    for table in walk(files[-1], files[-1].base - 1):
        log_end = int(table[-1]["last_offset"]) + 1
    notes: tuple[str, ...] = ()
    for offset in reversed(offsets):
        if offset > log_end:
            continue
        path = directory.path / numbered(offset, SNAPSHOT)
        try:
            return (offset, read_snapshot(path)), notes
        except CorruptLog as error:
            notes += (str(error),)
    return None, notes


def _indexed_aborted(directory: PartitionDir, files: Sequence[SegmentFile]) -> list[AbortedTxn]:
    return [
        entry for file in files for entry in read_aborted(directory.path / numbered(file.base, TXN_INDEX))
    ]  # fmt: skip


def replica_watermarks(directory: PartitionDir, survey: PartitionSurvey) -> ReplicaWatermarks:
    """What a stopped replica's files prove. Its cleaner checkpoint is its MCCO: below it the cleaner left no duplicate."""
    free_until = survey.log_end if survey.first_transactional is None else survey.first_transactional
    return ReplicaWatermarks(mcco=_first_dirty(directory, survey), mxfo=max(free_until, survey.log_start))


def _first_dirty(directory: PartitionDir, survey: PartitionSurvey) -> int:
    """The cleaner checkpoint, or log start if there is none, or none that fits the log."""
    checkpoint = checkpoints.read_offsets(directory.log_dir / checkpoints.CLEANER).get(directory.topic_partition)
    return first_dirty_offset(survey, checkpoint)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another replica of a partition; `directory` and `survey` are None if it does not have it."""

    place: Place
    directory: PartitionDir | None
    survey: PartitionSurvey | None

    @property
    def watermarks(self) -> ReplicaWatermarks:
        if self.directory is None or self.survey is None:
            return NEVER_HEARD
        return replica_watermarks(self.directory, self.survey)

    @property
    def lso(self) -> int:
        return 0 if self.survey is None else self.survey.lso


def survey_peers(
    directories: Sequence[PartitionDir], peers: Sequence[Place], engine: Engine
) -> dict[Place, tuple[Peer, ...]]:
    """By partition: what each peer has of it."""
    pairs = [(directory, peer, as_partition(peer / directory.name)) for directory in directories for peer in peers]
    having = [copy for _, _, copy in pairs if copy is not None]
    surveys = dict(zip(having, (survey for survey, _ in survey_all(having, engine)), strict=True))
    answers: dict[Place, tuple[Peer, ...]] = {}
    for directory, peer, copy in pairs:
        survey = None if copy is None else surveys[copy]
        answer = Peer(place=peer, directory=copy, survey=survey)
        answers[directory.path] = (*answers.get(directory.path, ()), answer)
    return answers


def allowed_by(policy: Policy, directory: PartitionDir, survey: PartitionSurvey, peers: Sequence[Peer]) -> Policy:
    """The policy with what this replica and its peers allow: MTRO, MXRO, and where data may become plain.

    The last is below every replica's last stable offset: there a replica knows how each transaction ended, for good. A replica
    that ends below may yet stop inside a transaction. A peer that lacks the partition counts as 0: nothing may go.
    """
    group = group_watermarks([replica_watermarks(directory, survey), *(peer.watermarks for peer in peers)])
    stable = min([survey.lso, *(peer.lso for peer in peers)])
    return replace(policy, tombstones_below=group.mtro, markers_below=group.mxro, plain_below=stable)


def as_candidate(
    directory: PartitionDir,
    surveyed: tuple[PartitionSurvey, tuple[str, ...]],
    policy: Policy,
    *,
    dirty_from: int | None,
    peers: Sequence[Peer],
) -> Candidate:
    survey, notes = surveyed
    if peers:
        absent = [peer.place for peer in peers if peer.directory is None]
        notes += tuple(f"the peer {place} has no {directory.name}: it counts as 0, nothing may go" for place in absent)
        policy = allowed_by(policy, directory, survey, peers)
    checkpoint = checkpoints.read_offsets(directory.log_dir / checkpoints.CLEANER).get(directory.topic_partition)
    start = checkpoints.read_offsets(directory.log_dir / checkpoints.LOG_START).get(directory.topic_partition)
    clean = clean_range(survey, policy, checkpoint=checkpoint if dirty_from is None else dirty_from)
    first_dirty = first_dirty_offset(survey, checkpoint)[0]
    if clean.dirty_start > first_dirty:
        notes += (
            f"a start at {dirty_from} leaves out offsets {first_dirty} to {dirty_from}: nothing has checked that they are "
            f"clean, so the checkpoint stays at {first_dirty}",
        )
    notes += _jumps(survey, first_dirty)
    return Candidate(
        directory=directory, survey=survey, policy=policy, range=clean, first_dirty=first_dirty,
        log_start_entry=start, eligibility=eligibility(survey, clean, policy),
        notes=notes + ((clean.reset,) if clean.reset else ()),
    )  # fmt: skip


def _jumps(survey: PartitionSurvey, first_dirty: int) -> tuple[str, ...]:
    """Offsets missing between segments where nothing was cleaned: appends leave no gaps."""
    borders = [(before.next_offset, after.base) for before, after in pairwise(survey.segments)]
    jumps = [(end, base) for end, base in borders if end < base and base > first_dirty]
    if not jumps:
        return ()
    end, base = jumps[0]
    more = f" (and {len(jumps) - 1} more such gaps)" if len(jumps) > 1 else ""
    return (
        f"no segment holds the offsets {end} to {base - 1}{more}, and no cleaner has been there (first dirty offset "
        f"{first_dirty}): a segment was lost, unless this replica was copied from a compacted one",
    )


def pass_over(candidate: Candidate, hash_key: HashKey, *, dirty_end: int | None = None) -> CleaningPass:
    producers = candidate.survey.producers.rows
    policy = candidate.policy
    return CleaningPass(
        policy=policy,
        hash_key=hash_key,
        dirty_start=candidate.range.dirty_start,
        dirty_end=candidate.range.uncleanable if dirty_end is None else dirty_end,
        uncleanable=candidate.range.uncleanable,
        active=active_producers(producers, now_ms=policy.now_ms, expiration_ms=policy.producer_id_expiration_ms),
    )


def partition_work(candidate: Candidate, cleaning: CleaningPass, work_dir: Place) -> PartitionWork:
    """Every segment below dirty_end, from the start of the log, in groups."""
    rewritten = [segment for segment in candidate.survey.segments[:-1] if segment.base < cleaning.dirty_end]
    groups = []
    aborted = sorted(candidate.survey.aborted_seen, key=lambda entry: entry.last_offset)
    ends = [entry.last_offset for entry in aborted]
    for group in group_segments(rewritten, candidate.policy, uncleanable=cleaning.uncleanable):
        in_group = slice(bisect_left(ends, group[0].base), bisect_left(ends, group[-1].next_offset))
        groups.append(GroupWork(segments=tuple(group), aborted=tuple(aborted[in_group])))
    dirty = [s for s in dirty_segments(candidate.survey, cleaning.dirty_start) if s.base < cleaning.dirty_end]
    return PartitionWork(
        path=str(candidate.directory.path),
        cleaning=cleaning,
        groups=tuple(groups),
        dirty_records=sum(segment.records for segment in dirty),
        work_dir=work_dir,
    )
