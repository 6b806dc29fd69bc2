"""Puts finished outputs in place on a disk: a swap inside a partition directory, or a new log directory. Driver only.

Before this there are only work files; from here on every step may be the last one before a crash. Also has what a sink needs to
know about a finished partition, wherever its new log goes (`new_objects.py`: into an object store).
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstone import units
from headstone.errors import UsageError
from headstone.log import checkpoints
from headstone.log.checkpoints import write_atomically, write_offsets
from headstone.log.directory import (
    CLEANED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    UNFINISHED,
    PartitionDir,
    is_broker_directory,
    numbered,
    refuse_broker_directory,
    refuse_inside_broker_directory,
    was_stopped_cleanly,
)
from headstone.log.failpoint import reach
from headstone.log.ownership import take_after
from headstone.log.snapshots import write_snapshot
from headstone.log.swap import remove_segments, replace_segments, uncovered_base
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.outputs import OutputSegment, attempt_path
from headstone.pipeline.planning import Candidate
from headstone.pipeline.work import GroupResult, PartitionWork
from headstone.retention import verdicts
from headstone.retention.ranges import RetainedSegment, deletable, largest_timestamp
from headstone.retention.survey import SegmentSurvey
from headstone.storage.durable import sync_directory
from headstone.storage.places import Place, children, local
from headstone.storage.stores import is_remote
from headstone.storage.uploads import copy_whole, write_whole

WORK_PREFIX = ".headstone-w"
"""The letter keeps a name of digits from looking like a partition."""
REMOVALS_MAX = 8
"""Attempts to remove a work directory; 2.5 s in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One partition with all its outputs written. `work` is None if nothing had to be rewritten."""

    candidate: Candidate
    work: PartitionWork | None
    groups: tuple[GroupResult, ...]
    dirty_end: int

    @property
    def first_dirty(self) -> int:
        """For the cleaner checkpoint, which is this replica's MCCO: it rises only over what was cleaned without a gap."""
        before = self.candidate.first_dirty
        return before if self.work is None or self.candidate.range.dirty_start > before else self.dirty_end

    @property
    def outputs(self) -> list[OutputSegment]:
        return [output for group in self.groups for output in group.outputs]

    @property
    def outputs_with_source(self) -> list[tuple[OutputSegment, int]]:
        """Each with the base of the first old segment of its group."""
        return [(output, group.outputs[0].base) for group in self.groups for output in group.outputs]

    @property
    def rewritten_bases(self) -> list[int]:
        return [segment.base for group in self.work.groups for segment in group.segments] if self.work else []

    @property
    def rewritten(self) -> range:
        """Offsets whose producer snapshots go with the old segments, wherever a broker took them. For a snapshot from inside a
        transaction, that transaction is open: what follows would be plain data in it, or its marker would be gone."""
        bases = self.rewritten_bases
        return range(bases[0], self.carried[0].base) if bases else range(0)

    @property
    def carried(self) -> list[SegmentSurvey]:
        """The segments that stay as they are; the oldest ones are rewritten."""
        return list(self.candidate.survey.segments[len(self.rewritten_bases) :])

    @property
    def bases(self) -> list[int]:
        """Of all segments after the rewrite, before retention."""
        return [output.base for output in self.outputs] + [segment.base for segment in self.carried]


def deleted_by_retention(done: Finished) -> list[int]:
    """Bases of segments that compact,delete or the log start offset removes after the rewrite."""
    survey = done.candidate.survey
    segments = [
        RetainedSegment(
            base=output.base,
            size=output.size,
            largest_timestamp=output.largest_timestamp if output.largest_timestamp >= 0 else output.mtime_ms,
        )
        for output in done.outputs
    ]
    segments += [
        RetainedSegment(base=s.base, size=s.size, largest_timestamp=largest_timestamp(s)) for s in done.carried
    ]
    return deletable(
        segments,
        done.candidate.policy,
        log_start=survey.log_start,
        log_end=survey.log_end,
        high_watermark=survey.high_watermark,
    )


def changes(done: Finished) -> bool:
    """Whether there is anything to commit in place: new segments, segments to delete, or a checkpoint to reset."""
    return done.work is not None or bool(done.candidate.range.reset) or bool(deleted_by_retention(done))


def commit_in_place(done: Finished) -> int:
    """Swaps the outputs in; returns the log start offset afterwards. The checkpoints are the caller's next step."""
    directory = local(done.candidate.directory.path)
    if done.work is not None and done.groups:
        _snapshot_at_end(done, directory)
        _stage_cleaned(done, directory)
        new = [output.base for output in done.outputs]
        extra = uncovered_base([(o.base, o.next_offset) for o in done.outputs], done.rewritten_bases)
        if extra is not None:
            _empty_segment(directory, extra, CLEANED, done.candidate.survey.active.file.path)
            new.append(extra)
        replace_segments(directory, new_bases=new, old_bases=done.rewritten_bases, stale_snapshots=done.rewritten)
    gone = deleted_by_retention(done)
    if gone:
        if len(gone) == len(done.bases):
            # In a swap of its own: after a crash, indexes alone would look like a lost segment.
            _empty_segment(directory, done.candidate.survey.log_end, CLEANED, done.candidate.survey.active.file.path)
            replace_segments(
                directory, new_bases=[done.candidate.survey.log_end], old_bases=[], stale_snapshots=range(0)
            )
        remove_segments(directory, gone)
    return start_after(done, gone)


def commit_to(out: Path, done: Finished, work_dir: Path) -> int:
    """Completes the partition's folder in the work directory and renames it into `out`: it appears whole or not at all.

    A marker file in it says that the checkpoints may lack it, until the caller removes the file."""
    directory = done.candidate.directory
    for output, base in done.outputs_with_source:
        for suffix in output.suffixes:
            source = local(attempt_path(work_dir, output.base, suffix, output.attempt))
            own_as(source, directory.path / numbered(base, LOG))
            os.replace(source, work_dir / numbered(output.base, suffix))
    finals = {numbered(output.base, suffix) for output in done.outputs for suffix in output.suffixes}
    for lost_attempt in [path for path in work_dir.iterdir() if path.name not in finals]:
        lost_attempt.unlink()
    sizes = carried_sizes(done)
    for file in [*carried_files(done), *accompanying_files(done)]:
        copy_owned(file, work_dir / file.name, size=sizes.get(file.name))
    _snapshot_at_end(done, work_dir)
    gone = deleted_by_retention(done)
    if gone and len(gone) == len(done.bases):
        _empty_segment(work_dir, done.candidate.survey.log_end, "", done.candidate.survey.active.file.path)
    if gone:
        remove_segments(work_dir, gone)
    own_as(work_dir, directory.path)
    write_whole(work_dir / UNFINISHED, b"")
    sync_directory(work_dir)
    reach(f"rename {work_dir} to {out / directory.name}")
    os.rename(work_dir, out / directory.name)
    return start_after(done, gone)


class CheckpointBook:
    """The checkpoint files of one log directory that is ours alone: changed in memory, written once for many partitions."""

    def __init__(self, log_dir: Place) -> None:
        self._log_dir = log_dir
        self._offsets: dict[str, dict[TopicPartition, int]] = {}
        self._changed: set[str] = set()

    def put(self, file: str, partition: TopicPartition, offset: int | None) -> None:
        """None removes the entry."""
        if file not in self._offsets:
            self._offsets[file] = dict(checkpoints.read_offsets(self._log_dir / file))
        offsets = self._offsets[file]
        if offsets.get(partition) == offset:
            return
        self._changed.add(file)
        if offset is None:
            del offsets[partition]
        else:
            offsets[partition] = offset

    def write(self) -> None:
        for file in sorted(self._changed):
            write_offsets(self._log_dir / file, self._offsets[file])
        self._changed.clear()


def note_cleaned(book: CheckpointBook, done: Finished, start: int) -> None:
    """First dirty offset and log start of a partition."""
    name = done.candidate.directory.topic_partition
    book.put(checkpoints.CLEANER, name, max(done.first_dirty, start))
    book.put(checkpoints.LOG_START, name, _log_start_entry(done, start))


def note_new(book: CheckpointBook, done: Finished, start: int) -> None:
    """Also its recovery point (every file of the output is on disk) and the high watermark that the input had."""
    directory = done.candidate.directory
    note_cleaned(book, done, start)
    book.put(checkpoints.RECOVERY_POINT, directory.topic_partition, done.candidate.survey.log_end)
    highs = checkpoints.read_offsets(directory.log_dir / checkpoints.HIGH_WATERMARK)
    if directory.topic_partition in highs:
        book.put(checkpoints.HIGH_WATERMARK, directory.topic_partition, highs[directory.topic_partition])


def _log_start_entry(done: Finished, start: int) -> int | None:
    """As a broker has it: an entry if log start is not the first segment's base. It lies above that base if records of the
    segment were deleted, and below it if older segments are in remote storage."""
    entry = done.candidate.log_start_entry
    if entry is not None and entry < done.candidate.survey.segments[0].base:
        return entry
    return start if start > _first_base(done, deleted_by_retention(done)) else None


def _first_base(done: Finished, gone: Sequence[int]) -> int:
    return min(set(done.bases) - set(gone), default=done.candidate.survey.log_end)


def start_after(done: Finished, gone: Sequence[int]) -> int:
    return max(done.candidate.survey.log_start, _first_base(done, gone))


def _stage_cleaned(done: Finished, directory: Path) -> None:
    assert done.work is not None
    for output, base in done.outputs_with_source:
        for suffix in output.suffixes:
            source = local(attempt_path(done.work.work_dir, output.base, suffix, output.attempt))
            target = directory / (numbered(output.base, suffix) + CLEANED)
            take_after(source, directory / numbered(base, LOG))
            reach(f"rename {source.name} to {target.name}")
            os.replace(source, target)


def _snapshot_at_end(done: Finished, directory: Path) -> None:
    """What a broker writes when it stops: without it, a clean start would forget open transactions and epochs."""
    survey = done.candidate.survey
    target = directory / numbered(survey.log_end, SNAPSHOT)
    entries = survey.producers.entries()
    if target.exists() or not entries:
        return
    temporary = target.with_name(target.name + ".tmp")
    write_snapshot(temporary, entries)
    if not is_remote(survey.active.file.path):
        take_after(temporary, Path(survey.active.file.path))
    reach(f"rename {temporary.name}")
    os.replace(temporary, target)


def _empty_segment(directory: Path, base: int, stage: str, model: str) -> None:
    for suffix in (INDEX, TIME_INDEX, LOG):
        reach(f"create {numbered(base, suffix)}{stage}")
        path = directory / (numbered(base, suffix) + stage)
        path.write_bytes(b"")
        if not is_remote(model):
            take_after(path, Path(model))


def carried_files(done: Finished) -> list[Place]:
    """Files of the segments that stay as they are."""
    names = [numbered(segment.base, suffix) for segment in done.carried for suffix in SEGMENT_SUFFIXES]
    files = (done.candidate.directory.path / name for name in names)
    return [file for file in files if file.exists()]


def carried_sizes(done: Finished) -> dict[str, int]:
    """Sizes of their logs, by name. What a running broker has appended since the survey is not part of this moment, and was not
    checked."""
    return {numbered(segment.base, LOG): segment.size for segment in done.carried}


def accompanying_files(done: Finished) -> list[Place]:
    """Other files that belong to the partition afterwards: epochs, topic id, and snapshots of what was not rewritten."""
    snapshots = {*(segment.base for segment in done.carried), done.candidate.survey.log_end}
    names = [checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA]
    names += [numbered(offset, SNAPSHOT) for offset in sorted(snapshots)]
    files = (done.candidate.directory.path / name for name in names)
    return [file for file in files if file.exists()]


def copy_owned(source: Place, target: Path, *, size: int | None = None) -> None:
    copy_whole(source, target, size=size)
    own_as(target, source)


def own_as(path: Path, model: Place) -> None:
    """If the model is an object, there is no owner to copy."""
    if isinstance(model, Path):
        take_after(path, model)


def copy_broker_files(sources: Sequence[Place], out: Path, *, clean: bool) -> None:
    """What a broker expects in its log directory beside partitions: without meta.properties it does not start. The sign of a
    clean stop comes last."""
    for source in sources:
        for name in (
            checkpoints.BOOTSTRAP,
            checkpoints.META_PROPERTIES,
            *([checkpoints.CLEAN_SHUTDOWN] if clean else []),
        ):
            if (source / name).exists() and not (out / name).exists():
                write_atomically(out / name, (source / name).read_bytes())
                own_as(out / name, source / name)
        for name in (path.name for path in out.glob("*-checkpoint")):
            own_as(out / name, source / name if (source / name).exists() else source)


def is_clean_with(out: Path, sources: Sequence[Place], *, own: Collection[str]) -> bool:
    """Whether everything that `out` will hold comes from brokers that stopped cleanly; if not, removes its clean-stop file.

    `own`: folders that an earlier run of the same command has made from these sources."""
    empty = not any(child.is_dir() and child.name not in own for child in out.iterdir())
    clean = all(map(was_stopped_cleanly, sources)) and (empty or was_stopped_cleanly(out))
    if not clean and was_stopped_cleanly(out):
        (out / checkpoints.CLEAN_SHUTDOWN).unlink()
    return clean


def refuse_keyless(done: Finished) -> None:
    """Compaction drops records without a key. Brokers refuse them on compacted topics, so this is probably not one."""
    lost = sum(group.reasons[verdicts.BY_KEYLESS] for group in done.groups)
    if lost and is_broker_directory(done.candidate.directory.log_dir):
        raise UsageError(
            f"{done.candidate.directory.path}: {units.count(lost, 'record')} without a key would be dropped; if the "
            "topic's cleanup.policy is "
            "compact say --drop-keyless (drop_keyless in a program), else name only compacted topics"
        )


def copy_untouched(directory: PartitionDir, out: Path) -> None:
    """A partition that is not compacted appears whole or not at all, with the marker file that `commit_to` leaves."""
    copy = out / (WORK_PREFIX + secrets.token_hex(6))
    try:
        _copy_folder(directory.path, copy)
        write_whole(copy / UNFINISHED, b"")
        sync_directory(copy)
        reach(f"rename {copy} to {out / directory.name}")
        os.rename(copy, out / directory.name)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _copy_folder(source: Place, target: Path) -> None:
    target.mkdir()
    for child in children(source):
        if child.name.startswith(WORK_PREFIX):
            continue
        if child.is_dir():
            _copy_folder(child, target / child.name)
        else:
            copy_owned(child, target / child.name)
    own_as(target, source)
    sync_directory(target)


def note_untouched(book: CheckpointBook, directories: Sequence[PartitionDir]) -> None:
    for directory in directories:
        for file in (
            checkpoints.CLEANER,
            checkpoints.LOG_START,
            checkpoints.RECOVERY_POINT,
            checkpoints.HIGH_WATERMARK,
        ):
            offsets = checkpoints.read_offsets(directory.log_dir / file)
            book.put(file, directory.topic_partition, offsets.get(directory.topic_partition))
    book.write()


def refuse_inside_inputs(out: Place, directories: Sequence[PartitionDir]) -> None:
    """Inputs are never written to."""
    inputs = {directory.log_dir for directory in directories}
    inputs |= {
        directory.path.resolve()
        for directory in directories
        if isinstance(directory.path, Path) and directory.path.is_symlink()
    }
    for above in _with_parents(out.resolve() if isinstance(out, Path) else out):
        if above in inputs:
            raise UsageError(f"the output {out} lies inside the input {above}; name a directory elsewhere")


def refuse_foreign_broker_directory(out: Path, sources: Sequence[Place], *, own: bool) -> None:
    """A broker starts from an output, so an output looks like a broker's directory. It is ours if it says so, or if it has a
    source's identity."""
    refuse_inside_broker_directory(out, instead="name a directory elsewhere")
    identity = out / checkpoints.META_PROPERTIES
    if own or not identity.exists():
        return
    copies = (source / checkpoints.META_PROPERTIES for source in sources)
    if not any(copy.exists() and copy.read_bytes() == identity.read_bytes() for copy in copies):
        refuse_broker_directory(out, instead="name a directory elsewhere")


def _with_parents(place: Place) -> Iterator[Place]:
    yield place
    while place.parent != place:
        place = place.parent
        yield place


def remove_work_dirs(directory: Path) -> None:
    """Removes the work directories that killed runs have left in `directory`."""
    for leftover in directory.glob(WORK_PREFIX + "*"):
        remove_work_dir(leftover)


def remove_folder(folder: Path) -> None:
    """Removes a partition's folder from our output by one rename, so that it is never there in part."""
    doomed = folder.parent / (WORK_PREFIX + secrets.token_hex(6))
    reach(f"rename {folder.name} to {doomed.name}")
    os.rename(folder, doomed)
    remove_work_dir(doomed)


def remove_work_dir(place: Path) -> None:
    """Tries more than once: tasks of an interrupted job may still write a file into it until they are stopped."""
    for attempt in range(REMOVALS_MAX):
        shutil.rmtree(place, ignore_errors=True)
        if not place.exists():
            return
        time.sleep(0.01 * 2**attempt)
