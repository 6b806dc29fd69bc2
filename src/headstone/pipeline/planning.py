"""From directories to work: surveys each partition, decides range, groups and path, and says why.

Runs in the driver, over headers only. Changes nothing on disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

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
    snapshot_offsets,
    tells_high_watermarks,
)
from headstone.log.indexes import AbortedTxn, read_aborted
from headstone.log.reading import SegmentFile, next_offset, verify_segment, with_loss
from headstone.log.snapshots import ProducerEntry, read_snapshot
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
from headstone.retention.survey import PartitionSurvey, survey_partition

SURVEY_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A partition as found, before anything is decided to be rewritten."""

    directory: PartitionDir
    survey: PartitionSurvey
    policy: Policy
    range: CleanRange
    first_dirty: int
    """Where the last pass ended by the checkpoint; log start if there is none to trust."""
    eligibility: Eligibility
    log_start_entry: int | None
    """What the log start checkpoint says of it; the survey's log start is never below the first segment."""
    notes: tuple[str, ...]


Surveyed = tuple[PartitionSurvey, tuple[str, ...]]
"""A survey and notes for the user."""


def survey_all(directories: Sequence[PartitionDir]) -> list[Surveyed]:
    with ThreadPoolExecutor(SURVEY_THREADS) as pool:
        return list(pool.map(survey_directory, directories))


def survey_each(directories: Sequence[PartitionDir]) -> list[Surveyed | Exception]:
    """The surveys, with what is wrong with a partition in the place of its own."""

    def survey(directory: PartitionDir) -> Surveyed | Exception:
        try:
            return survey_directory(directory)
        except (UsageError, CorruptLog, OSError) as error:
            return error

    with ThreadPoolExecutor(SURVEY_THREADS) as pool:
        return list(pool.map(survey, directories))


def verify_each(files: Mapping[Path, Sequence[SegmentFile]]) -> dict[Path, Exception]:
    """Checks every batch of every file; the first thing found wrong, by partition."""

    def verify(named: tuple[Path, SegmentFile]) -> tuple[Path, Exception | None]:
        try:
            verify_segment(named[1])
        except (CorruptLog, OSError) as error:
            return named[0], error
        return named[0], None

    with ThreadPoolExecutor(SURVEY_THREADS) as pool:
        found = pool.map(verify, [(path, file) for path, mine in files.items() for file in mine])
        return {path: error for path, error in reversed(list(found)) if error is not None}


def survey_directory(directory: PartitionDir) -> tuple[PartitionSurvey, tuple[str, ...]]:
    """The survey of a partition directory with what its neighbours tell: checkpoints, snapshots, `.txnindex`."""
    files = list_segments(directory)
    high = checkpoints.read_offsets(directory.log_dir / checkpoints.HIGH_WATERMARK).get(directory.topic_partition)
    start = checkpoints.read_offsets(directory.log_dir / checkpoints.LOG_START).get(directory.topic_partition)
    snapshot, notes = _newest_snapshot(directory, files)
    if high is None and tells_high_watermarks(directory.log_dir):
        high = max(start or 0, files[0].base)
        notes += (f"no high watermark in {checkpoints.HIGH_WATERMARK}: it begins at log start {high}, as in a broker",)
    try:
        survey = survey_partition(
            files,
            log_start=start,
            high_watermark=high,
            snapshot=snapshot,
            indexed_aborted=_indexed_aborted(directory, files),
        )
    except CorruptLog as error:
        raise with_loss(error, files) from error
    if survey.aborted_lost:
        notes += (
            f"{survey.aborted_lost} aborted transactions are missing from .txnindex: found from the log itself; "
            "a broker would serve them as committed",
        )
    return survey, notes


def _newest_snapshot(
    directory: PartitionDir, files: Sequence[SegmentFile]
) -> tuple[tuple[int, list[ProducerEntry]] | None, tuple[str, ...]]:
    """Newest readable snapshot inside the log: one above its end tells of records that were truncated since."""
    offsets = [offset for offset in snapshot_offsets(directory) if offset > files[0].base]
    if not offsets:
        return None, ()
    log_end = next_offset(files[-1].path, files[-1].base)
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
    known = checkpoints.read_offsets(directory.log_dir / checkpoints.CLEANER).get(directory.topic_partition)
    return first_dirty_offset(survey, known)[0]


def allowed_by(policy: Policy, directory: PartitionDir, survey: PartitionSurvey, peers: Sequence[Path]) -> Policy:
    """The policy with what this replica and its peers allow: MTRO, MXRO, and where data may become plain.

    That is below every replica's last stable offset: there it knows how each transaction ended, and keeps knowing it. One
    that ends below may yet stop inside a transaction. A peer that does not have the partition was never heard of.
    """
    members, stable = [replica_watermarks(directory, survey)], [survey.lso]
    for peer in peers:
        theirs = as_partition(peer / directory.name)
        if theirs is None:
            members.append(NEVER_HEARD)
            stable.append(0)
        else:
            theirs_survey, _ = survey_directory(theirs)
            members.append(replica_watermarks(theirs, theirs_survey))
            stable.append(theirs_survey.lso)
    group = group_watermarks(members)
    return replace(policy, tombstones_below=group.mtro, markers_below=group.mxro, plain_below=min(stable))


def candidate(
    directory: PartitionDir,
    surveyed: tuple[PartitionSurvey, tuple[str, ...]],
    policy: Policy,
    *,
    dirty_from: int | None,
    peers: Sequence[Path],
) -> Candidate:
    survey, notes = surveyed
    if peers:
        absent = [peer for peer in peers if as_partition(peer / directory.name) is None]
        notes += tuple(f"--peer {peer} has no {directory.name}: it counts as 0, nothing may go" for peer in absent)
        policy = allowed_by(policy, directory, survey, peers)
    known = checkpoints.read_offsets(directory.log_dir / checkpoints.CLEANER).get(directory.topic_partition)
    start = checkpoints.read_offsets(directory.log_dir / checkpoints.LOG_START).get(directory.topic_partition)
    clean = clean_range(survey, policy, checkpoint=known if dirty_from is None else dirty_from)
    first_dirty = first_dirty_offset(survey, known)[0]
    if clean.dirty_start > first_dirty:
        notes += (
            f"--dirty-from {dirty_from} leaves out offsets {first_dirty} to {dirty_from}: nothing has checked that they are "
            f"clean, so the checkpoint stays at {first_dirty}",
        )
    notes += _jumps(survey, first_dirty)
    return Candidate(
        directory=directory, survey=survey, policy=policy, range=clean, first_dirty=first_dirty,
        log_start_entry=start, eligibility=eligibility(survey, clean, policy),
        notes=notes + ((clean.reset,) if clean.reset else ()),
    )  # fmt: skip


def _jumps(survey: PartitionSurvey, first_dirty: int) -> tuple[str, ...]:
    """Offsets that are missing between segments where nothing was cleaned: appends leave no gap there."""
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


def pass_over(found: Candidate, hash_key: HashKey, *, dirty_end: int | None = None) -> CleaningPass:
    producers = found.survey.producers.rows
    policy = found.policy
    return CleaningPass(
        policy=policy,
        hash_key=hash_key,
        dirty_start=found.range.dirty_start,
        dirty_end=found.range.uncleanable if dirty_end is None else dirty_end,
        uncleanable=found.range.uncleanable,
        active=active_producers(producers, now_ms=policy.now_ms, expiration_ms=policy.producer_id_expiration_ms),
    )


def partition_work(found: Candidate, cleaning: CleaningPass, work_dir: Path) -> PartitionWork:
    """Every segment below dirty_end, from the start of the log, in groups."""
    rewritten = [segment for segment in found.survey.segments[:-1] if segment.base < cleaning.dirty_end]
    groups = []
    aborted = sorted(found.survey.aborted_seen, key=lambda entry: entry.last_offset)
    ends = [entry.last_offset for entry in aborted]
    for group in group_segments(rewritten, found.policy, uncleanable=cleaning.uncleanable):
        mine = slice(bisect_left(ends, group[0].base), bisect_left(ends, group[-1].next_offset))
        groups.append(GroupWork(segments=tuple(group), aborted=tuple(aborted[mine])))
    dirty = [s for s in dirty_segments(found.survey, cleaning.dirty_start) if s.base < cleaning.dirty_end]
    return PartitionWork(
        path=str(found.directory.path),
        cleaning=cleaning,
        groups=tuple(groups),
        dirty_records=sum(segment.records for segment in dirty),
        work_dir=str(work_dir),
    )
