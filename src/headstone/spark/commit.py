"""Puts finished outputs in place: a swap inside a partition directory, or a new log directory. Driver only.

Up to here nothing but work files exists; from here on every step may be the last one before a crash.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstone.errors import UsageError
from headstone.log import checkpoints
from headstone.log.checkpoints import sync_directory, write_offsets
from headstone.log.directory import (
    CLEANED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    PartitionDir,
    is_broker_directory,
    numbered,
)
from headstone.log.failpoint import reach
from headstone.log.snapshots import write_snapshot
from headstone.log.swap import remove_segments, replace_segments, uncovered_base
from headstone.retention import verdicts
from headstone.retention.ranges import RetainedSegment, deletable, largest_timestamp
from headstone.spark.planning import Candidate
from headstone.spark.work import GroupResult, PartitionWork, attempt_path

WORK_PREFIX = ".headstone-w"
"""The letter keeps a name of digits from looking like a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One partition with all its outputs written. `work` is None if nothing had to be rewritten."""

    found: Candidate
    work: PartitionWork | None
    groups: tuple[GroupResult, ...]
    next_dirty: int

    @property
    def rewritten_bases(self) -> list[int]:
        return [segment.base for segment in self.work.segments] if self.work else []

    @property
    def stale_snapshots(self) -> list[int]:
        """Offsets whose producer snapshots go with the old segments: those merged away; and, where committed data became
        plain, all of them, because one taken inside a transaction would meet plain data of an open transaction."""
        if self.found.policy.plain_below > 0:
            return self.rewritten_bases
        return sorted(set(self.rewritten_bases) - {group.base for group in self.groups})

    @property
    def carried(self) -> list[int]:
        gone = set(self.rewritten_bases)
        return [segment.base for segment in self.found.survey.segments if segment.base not in gone]


def deleted_by_retention(done: Finished) -> list[int]:
    """Bases that compact,delete or the log start offset take away after the rewrite."""
    survey = done.found.survey
    carried = {segment.base: segment for segment in survey.segments if segment.base in set(done.carried)}
    mtimes = {g.base: g.segments[-1].file.mtime_ms for g in (done.work.groups if done.work else ())}
    segments = [
        RetainedSegment(
            base=g.base,
            size=g.bytes_written,
            largest_timestamp=g.largest_timestamp if g.largest_timestamp >= 0 else mtimes[g.base],
        )
        for g in done.groups
    ]
    segments += [
        RetainedSegment(base=base, size=s.size, largest_timestamp=largest_timestamp(s)) for base, s in carried.items()
    ]
    return deletable(
        segments,
        done.found.policy,
        log_start=survey.log_start,
        log_end=survey.log_end,
        high_watermark=survey.high_watermark,
    )


def changes(done: Finished) -> bool:
    """Whether there is anything to commit in place: new segments, segments to delete, or a checkpoint to reset."""
    return done.work is not None or bool(done.found.range.reset) or bool(deleted_by_retention(done))


def commit_in_place(done: Finished) -> int:
    """Swaps the outputs in; returns the log start offset afterwards."""
    directory = done.found.directory
    if done.work is not None and done.groups:
        _snapshot_at_end(done, directory.path)
        _stage_cleaned(done, directory.path)
        new = [group.base for group in done.groups]
        extra = uncovered_base([(g.base, g.next_offset) for g in done.groups], done.rewritten_bases)
        if extra is not None:
            _empty_segment(directory.path, extra, CLEANED)
            new.append(extra)
        replace_segments(
            directory.path, new_bases=new, old_bases=done.rewritten_bases, stale_snapshots=done.stale_snapshots
        )
    gone = deleted_by_retention(done)
    start = _start_after(done, gone)
    if gone:
        if len(gone) == len(done.groups) + len(done.carried):
            _empty_segment(directory.path, done.found.survey.log_end, "")
        remove_segments(directory.path, gone)
    update_checkpoints(directory.log_dir, [(done, start)])
    return start


def commit_to(out: Path, done: Finished, work_dir: Path) -> int:
    """Completes the partition's folder in the work directory and renames it into `out`: it appears whole or not at all."""
    directory = done.found.directory
    for group in done.groups:
        for suffix in group.suffixes:
            os.replace(
                attempt_path(str(work_dir), group.base, suffix, group.attempt), work_dir / numbered(group.base, suffix)
            )
    finals = {numbered(group.base, suffix) for group in done.groups for suffix in group.suffixes}
    for lost_attempt in [path for path in work_dir.iterdir() if path.name not in finals]:
        lost_attempt.unlink()
    for base in done.carried:
        _copy_segment(directory, base, work_dir)
    kept_bases = {group.base for group in done.groups} | set(done.carried)
    snapshots = (kept_bases | {done.found.survey.log_end}) - set(done.stale_snapshots)
    _copy_rest(directory, work_dir, snapshots)
    _snapshot_at_end(done, work_dir)
    gone = deleted_by_retention(done)
    if gone and len(gone) == len(kept_bases):
        _empty_segment(work_dir, done.found.survey.log_end, "")
    remove_segments(work_dir, gone)
    sync_directory(work_dir)
    reach(f"rename {work_dir} to {out / directory.name}")
    os.rename(work_dir, out / directory.name)
    sync_directory(out)
    return _start_after(done, gone)


def update_checkpoints(log_dir: Path, partitions: Sequence[tuple[Finished, int]]) -> None:
    """First dirty offset and log start of these partitions, beside what the files say of others."""
    cleaner = checkpoints.read_offsets(log_dir / checkpoints.CLEANER)
    starts = checkpoints.read_offsets(log_dir / checkpoints.LOG_START)
    for done, start in partitions:
        name = done.found.directory.topic_partition
        cleaner[name] = max(done.next_dirty, start)
        starts.pop(name, None)
        entry = _log_start_entry(done, start)
        if entry is not None:
            starts[name] = entry
    _write_changed(log_dir / checkpoints.CLEANER, cleaner)
    _write_changed(log_dir / checkpoints.LOG_START, starts)


def write_new_checkpoints(out: Path, partitions: Sequence[tuple[Finished, int]]) -> None:
    """Also recovery points (every file in `out` is on disk) and the high watermarks that the inputs had."""
    update_checkpoints(out, partitions)
    ends = checkpoints.read_offsets(out / checkpoints.RECOVERY_POINT)
    highs = checkpoints.read_offsets(out / checkpoints.HIGH_WATERMARK)
    for done, _ in partitions:
        directory = done.found.directory
        ends[directory.topic_partition] = done.found.survey.log_end
        theirs = checkpoints.read_offsets(directory.log_dir / checkpoints.HIGH_WATERMARK)
        if directory.topic_partition in theirs:
            highs[directory.topic_partition] = theirs[directory.topic_partition]
        copy_broker_files(directory.log_dir, out)
    _write_changed(out / checkpoints.RECOVERY_POINT, ends)
    _write_changed(out / checkpoints.HIGH_WATERMARK, highs)


def _write_changed(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    if offsets != checkpoints.read_offsets(path):
        write_offsets(path, offsets)


def _log_start_entry(done: Finished, start: int) -> int | None:
    """As a broker has it: an entry where log start is not the first segment's base. It lies above where records of that
    segment were deleted, and below where older segments are in remote storage."""
    entry = done.found.log_start_entry
    if entry is not None and entry < done.found.survey.segments[0].base:
        return entry
    return start if start > _first_base(done, deleted_by_retention(done)) else None


def _first_base(done: Finished, gone: Sequence[int]) -> int:
    left = ({group.base for group in done.groups} | set(done.carried)) - set(gone)
    return min(left, default=done.found.survey.log_end)


def _start_after(done: Finished, gone: Sequence[int]) -> int:
    return max(done.found.survey.log_start, _first_base(done, gone))


def _stage_cleaned(done: Finished, directory: Path) -> None:
    assert done.work is not None
    for group in done.groups:
        for suffix in group.suffixes:
            source = attempt_path(done.work.work_dir, group.base, suffix, group.attempt)
            target = directory / (numbered(group.base, suffix) + CLEANED)
            reach(f"rename {source.name} to {target.name}")
            os.replace(source, target)


def _snapshot_at_end(done: Finished, directory: Path) -> None:
    """What a broker writes when it stops: without it, a clean start would forget open transactions and epochs."""
    survey = done.found.survey
    target = directory / numbered(survey.log_end, SNAPSHOT)
    entries = survey.producers.entries()
    if target.exists() or not entries:
        return
    temporary = target.with_name(target.name + ".tmp")
    write_snapshot(temporary, entries)
    reach(f"rename {temporary.name}")
    os.replace(temporary, target)


def _empty_segment(directory: Path, base: int, stage: str) -> None:
    for suffix in (INDEX, TIME_INDEX, LOG):
        reach(f"create {numbered(base, suffix)}{stage}")
        (directory / (numbered(base, suffix) + stage)).write_bytes(b"")


def _copy_segment(directory: PartitionDir, base: int, target: Path) -> None:
    for suffix in SEGMENT_SUFFIXES:
        source = directory.path / numbered(base, suffix)
        if source.exists():
            _copy_synced(source, target / source.name)


def _copy_rest(directory: PartitionDir, target: Path, snapshots: set[int]) -> None:
    for name in (checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA):
        if (directory.path / name).exists():
            _copy_synced(directory.path / name, target / name)
    for offset in snapshots:
        source = directory.path / numbered(offset, SNAPSHOT)
        if source.exists():
            _copy_synced(source, target / source.name)


def _copy_synced(source: Path, target: Path) -> None:
    shutil.copy2(source, target)
    with open(target, "rb+") as file:
        os.fsync(file.fileno())


def copy_broker_files(source: Path, out: Path) -> None:
    """What a broker looks for in its log directory beside partitions."""
    for name in (checkpoints.META_PROPERTIES, checkpoints.CLEAN_SHUTDOWN, checkpoints.BOOTSTRAP):
        if (source / name).exists() and not (out / name).exists():
            _copy_synced(source / name, out / name)


def refuse_keyless(done: Finished) -> None:
    """Compaction drops records without a key; brokers take none on compacted topics, so this topic is probably not one."""
    lost = sum(group.reasons[verdicts.BY_KEYLESS] for group in done.groups)
    if lost and is_broker_directory(done.found.directory.log_dir):
        raise UsageError(
            f"{done.found.directory.path}: {lost} records without a key would be dropped; if the topic's cleanup.policy is "
            "compact pass --drop-keyless, else name only compacted topics with --topic"
        )


def copy_untouched(directory: PartitionDir, out: Path) -> None:
    """A partition that is never compacted, whole."""
    shutil.copytree(directory.path, out / directory.name)


def refuse_existing(out: Path, directories: Sequence[PartitionDir]) -> None:
    inputs = {directory.log_dir for directory in directories}
    inputs |= {directory.path.resolve() for directory in directories if directory.path.is_symlink()}
    for place in (out.resolve(), *out.resolve().parents):
        if place in inputs:
            raise UsageError(f"--out {out} lies inside the input {place}; name a directory elsewhere")
    names = [directory.name for directory in directories]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"{twice[0]} was found in more than one input; compact the replicas one log directory at a time"
        )
    for name in names:
        if (out / name).exists():
            raise UsageError(f"{out / name} exists already; name an empty --out directory")


def remove_work_dirs(directory: Path) -> None:
    for leftover in directory.glob(WORK_PREFIX + "*"):
        shutil.rmtree(leftover, ignore_errors=True)
