"""Log directories and partition directories: which files there are, what they are called, who holds them.

Owns file names and the question whether a broker may be using a directory. Changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headstone.errors import CorruptLog, UsageError
from headstone.log import checkpoints
from headstone.log.indexes import read_offset_index
from headstone.log.ownership import take_after
from headstone.log.reading import SegmentFile, whole_batches_end
from headstone.log.topic_partition import TOPIC_NAME, TopicPartition
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.places import ObjectPlace, Place, children, local, place

LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
UNFINISHED = ".headstone-unfinished"
"""In a partition's folder of an output, until it is complete and its checkpoint entries are written."""

METADATA_TOPIC = "__cluster_metadata"
"""KRaft's own log: snapshots, not compaction, keep it small, and a controller does not start on a compacted one."""

_PARTITION = re.compile(rf"(?P<topic>{TOPIC_NAME.pattern})-(?P<partition>\d+)")
_FUTURE = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)\.[0-9a-f]{32}-future")
_NAME_LENGTH_MAX = 255
"""A broker shortens a topic's name where the name of its future copy would be longer."""
_STRAY = re.compile(r".+-(delete|future|stray)$")
_NUMBERED = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_FLOCK_BYTES = 64
"""More than `struct flock` takes on any system."""
_FLOCK_TYPE = struct.Struct("h")
_FLOCK_TYPE_AT = 20 if sys.platform == "darwin" else 0
"""macOS has start, length and process before it. Zeros in the other fields: from the start to the end of the file."""
_LOCKING = threading.Lock()
_HELD: set[tuple[int, int]] = set()
"""Device and inode of the locks that this process holds."""
_OWNERS_FILES = (
    checkpoints.META_PROPERTIES,
    checkpoints.LOCK,
    checkpoints.CLEAN_SHUTDOWN,
    checkpoints.CLEANER,
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.HIGH_WATERMARK,
)
"""Files that make a directory the log directory of its partitions: the lock, and what is known about them."""


_BROKER_FILES = tuple(name for name in _OWNERS_FILES if name != checkpoints.LOCK)
KAFKA = (
    "is the log directory of a Kafka broker, or a part of one (it has {sign}): a folder in it keeps it from starting"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDir:
    """One partition's folder; `topic_partition` as the checkpoint files name it."""

    path: Place
    topic: str
    partition: int
    segment: str | None = None
    """The name of the one requested `.log` file; None: all that are there."""

    @property
    def name(self) -> str:
        return self.path.name if self.segment is None else f"{self.path.name}/{self.segment}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def log_dir(self) -> Place:
        return self.path.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureCopy:
    """What a move of a partition between log directories has copied so far."""

    path: Place
    topic: str
    partition: int

    def is_of(self, directory: PartitionDir) -> bool:
        cut = len(self.path.name) == _NAME_LENGTH_MAX and directory.topic.startswith(self.topic)
        return directory.partition == self.partition and (directory.topic == self.topic or cut)


def future_copies(log_dir: Place) -> list[FutureCopy]:
    """Copies that a broker is moving into this log directory."""
    matches = (_FUTURE.fullmatch(child.name) for child in children(log_dir))
    return [
        FutureCopy(path=log_dir / match[0], topic=match["topic"], partition=int(match["partition"]))
        for match in matches
        if match
    ]


def numbered(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def as_partition(path: Place) -> PartitionDir | None:
    """None if its name is not a partition's, or if it holds partitions itself: a log directory may be called `kafka-1`.

    Also None for an incomplete one: its writer removes the marker file last."""
    if not _named_as_partition(path.name) or not path.is_dir() or (path / UNFINISHED).exists():
        return None
    if isinstance(path, Path):
        path = _owned_place(path)
    match = _PARTITION.fullmatch(path.name)
    if match is None or _holds_partitions(path):
        return None
    return PartitionDir(path=path, topic=match["topic"], partition=int(match["partition"]))


def _named_as_partition(name: str) -> bool:
    return _PARTITION.fullmatch(name) is not None and _STRAY.fullmatch(name) is None


def _holds_partitions(path: Place) -> bool:
    if isinstance(path, ObjectPlace):
        return _shows_partitions(path.iterdir())
    with os.scandir(path) as entries:
        return _shows_partitions(entries)


def _shows_partitions(entries: Iterable[os.DirEntry[str]] | Iterable[ObjectPlace]) -> bool:
    for child in entries:
        if child.name[:20].isdigit():
            return False
        if _named_as_partition(child.name) and child.is_dir():
            return True
    return False


def _owned_place(path: Path) -> Path:
    """Where a partition directory lies from its owner's point of view.

    A symbolic link leads from one log directory to another. The lock, the clean stop and the checkpoints that count are in the
    one that has such files; if none has, in the one with the segments.
    """
    places = [place for place in _link_places(path) if _named_as_partition(place.name)]
    owned = [place for place in places if any((place.parent / name).exists() for name in _OWNERS_FILES)]
    if len(owned) > 1:
        raise UsageError(
            f"{owned[0]} is a symbolic link to {owned[1]}, and both log directories have locks or checkpoints of their own; "
            f"name {owned[1]} itself if no broker uses it through the link"
        )
    return owned[0] if owned else places[-1]


def _link_places(path: Path) -> list[Path]:
    """The path and each one that its links lead to, down to the directory itself; parents are real."""
    places = [path.parent.resolve() / path.name]
    while places[-1].is_symlink():
        target = places[-1].parent / places[-1].readlink()
        places.append(target.parent.resolve() / target.name if target.name != ".." else target.resolve())
    return places


def find_partitions(paths: Sequence[str | Place], access: Access = FROM_ENVIRONMENT) -> list[PartitionDir]:
    """The partitions that each path is (a partition directory) or holds (a log directory), local or in an object store."""
    by_path: dict[Place, PartitionDir] = {}
    for given in paths:
        path = place(given, access)
        if not str(given) or not path.is_dir():
            missing = "no such file" if LOG in path.name else "no such directory"
            problem = "a file" if str(given) and path.is_file() else missing
            raise UsageError(f"{given or repr(given)}: {problem}; name a partition directory or a log directory")
        if isinstance(path, Path) and not _named_as_partition(path.name):
            path = path.resolve()
        here = as_partition(path) if _has_segments(path) else None
        inside = [here] if here else [as_partition(child) for child in children(path)]
        partitions = [partition for partition in inside if partition is not None]
        if not partitions and not future_copies(path):
            raise UsageError(f"{given}: no partition found; {_what_is_there(path)}")
        by_path.update({partition.path: partition for partition in partitions})
    if not by_path:
        raise UsageError(f"{', '.join(map(str, paths))}: nothing but copies of partitions that are being moved")
    return list(by_path.values())


def one_segment(path: Place) -> PartitionDir:
    """A partition with only this file. Its folder may have any name, as a copied file's has."""
    match = _NUMBERED.fullmatch(path.name)
    if match is None or match[2] != LOG:
        raise UsageError(f"{path}: {_what_file(path.name)}")
    if isinstance(path, Path) and not _named_as_partition(path.parent.name):
        path = path.parent.resolve() / path.name
    folder = as_partition(path.parent)
    return PartitionDir(
        path=path.parent, topic=folder.topic if folder else "", partition=folder.partition if folder else 0,
        segment=path.name,
    )  # fmt: skip


def _what_file(name: str) -> str:
    """For a file that is not a segment: what it is, and what to name instead."""
    numbered_file = _NUMBERED.fullmatch(name)
    if numbered_file:
        return f"an index or a snapshot; name {numbered_file[1]}{LOG} beside it, or the partition directory"
    if name.endswith((CLEANED, SWAP, DELETED)):
        return "left over from a compaction; name the partition directory"
    if name.endswith(LOG):
        return f"a segment's name is its first offset in 20 digits, such as {numbered(0, LOG)}; rename the file"
    return "not a segment file; name a .log file, a partition directory or a log directory"


def unfinished_folders(log_dir: Place) -> list[str]:
    """Partitions that were begun here and not finished."""
    return [child.name for child in children(log_dir) if (child / UNFINISHED).exists()]


def _has_segments(path: Place) -> bool:
    """Finished or not: `.log.cleaned` and the like count too."""
    return any(LOG in child.name and f"{LOG}." in f"{child.name}." for child in path.iterdir())


def _what_is_there(path: Place) -> str:
    unfinished = unfinished_folders(path)
    if unfinished:
        return f"{unfinished[0]} is unfinished: the command that wrote it was interrupted; run the same command again"
    log_dirs = [child.name for child in children(path) if child.is_dir() and _holds_partitions(child)]
    if log_dirs:
        return f"it holds log directories: name them one by one ({', '.join(log_dirs)})"
    return "expected folders named <topic>-<partition> with .log files"


def list_segments(partition: PartitionDir) -> list[SegmentFile]:
    """Segments in offset order; leftovers of an interrupted swap are an error, because the list would be half of two."""
    if partition.segment is not None:
        return [_segment(partition.path / partition.segment, int(partition.segment.removesuffix(LOG)))]
    names = sorted(child.name for child in partition.path.iterdir() if child.is_file() or _is_dangling(child))
    unfinished = [name for name in names if name.endswith((CLEANED, SWAP))]
    if unfinished:
        raise UsageError(
            f"{partition.path / unfinished[0]}: an interrupted compaction was left here; "
            "run `headstone compact --in-place` on this directory or start the broker, either finishes it"
        )
    segments = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match and match[2] == LOG:
            if _is_dangling(partition.path / name):
                raise UsageError(
                    f"{partition.path / name}: a link to a file that is not there; put it back, or take another replica"
                )
            segments.append(_segment(partition.path / name, int(match[1])))
    if not segments:
        raise UsageError(f"{partition.path}: no .log file; this is not a partition directory")
    _refuse_missing(partition, names)
    return segments


def _is_dangling(path: Place) -> bool:
    return isinstance(path, Path) and path.is_symlink() and not path.exists()


def readable_segments(partition: PartitionDir) -> list[SegmentFile]:
    """As `list_segments`; if the directory is in use, only whole batches: its owner may be in the middle of a write."""
    files = list_segments(partition)
    if is_in_use(partition.log_dir) and files[-1].base == _newest_base(partition):
        files[-1] = _whole_batches(partition, files[-1])
    return files


def _newest_base(partition: PartitionDir) -> int:
    """Of the segment to which its owner appends."""
    matches = (_NUMBERED.fullmatch(child.name) for child in partition.path.iterdir())
    return max((int(match[1]) for match in matches if match and match[2] == LOG), default=-1)


def _whole_batches(partition: PartitionDir, file: SegmentFile) -> SegmentFile:
    """The file without its last batch if that is half written. With more batches after it, it is not the last but damaged: then
    the file stays as it is, and its reader reports the damage."""
    whole = replace(file, size=whole_batches_end(file))
    if whole.size < file.size and _is_indexed(partition, file, behind=whole.size):
        later = _segment(partition.path / numbered(file.base, LOG), file.base)
        if whole_batches_end(later) == whole.size:  # still unfinished
            return file
    return whole


def _is_indexed(partition: PartitionDir, file: SegmentFile, *, behind: int) -> bool:
    """Whether the offset index, which is written after the log, has a batch after this position."""
    try:
        positions = read_offset_index(local(partition.path) / numbered(file.base, INDEX))["position"]
    except (OSError, CorruptLog):
        return False
    return bool(((positions > behind) & (positions < file.size)).any())


def _refuse_missing(partition: PartitionDir, names: Sequence[str]) -> None:
    """Indexes without their `.log` show that a segment was lost; a deleted one left a `.log.deleted`."""
    present = set(names)
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None or match[2] in (LOG, SNAPSHOT) or {match[1] + LOG, match[1] + LOG + DELETED} & present:
            continue
        raise CorruptLog(
            file=str(partition.path / (match[1] + LOG)), position=0, offset=int(match[1]),
            problem=f"the segment is missing, but its {match[2]} is there",
            advice="restore it from a replica; a broker that starts here forgets it without a word",
        )  # fmt: skip


def snapshot_offsets(partition: PartitionDir) -> list[int]:
    matches = (_NUMBERED.fullmatch(child.name) for child in partition.path.iterdir())
    return sorted(int(match[1]) for match in matches if match and match[2] == SNAPSHOT)


def _segment(path: Place, base: int) -> SegmentFile:
    status = path.stat()
    index, time_index = path.with_suffix(INDEX), path.with_suffix(TIME_INDEX)
    return SegmentFile(
        base=base,
        path=str(path),
        size=status.st_size,
        mtime_ms=status.st_mtime_ns // 1_000_000,
        index_bytes=index.stat().st_size if index.exists() else 0,
        time_index_bytes=time_index.stat().st_size if time_index.exists() else 0,
        access=path.access if isinstance(path, ObjectPlace) else FROM_ENVIRONMENT,
    )


def is_broker_directory(log_dir: Place) -> bool:
    """Whether it has a broker's meta.properties. A backup may lack that file."""
    return (log_dir / checkpoints.META_PROPERTIES).exists()


def kafka_sign(names: Collection[str]) -> str | None:
    """The name among these that shows a broker's log directory, or a partition's; None: it is neither."""
    for name in sorted(names):
        if name in _BROKER_FILES or name == checkpoints.PARTITION_METADATA:
            return name
    for name in sorted(names):
        if _named_as_partition(name) or _NUMBERED.fullmatch(name):
            return name
    return None


def broker_file_in(directory: Path) -> str | None:
    """A file that only a broker keeps in its log directory."""
    return next((name for name in _BROKER_FILES if (directory / name).exists()), None)


def partition_in(directory: Path) -> str | None:
    """A partition's file, or a folder that has one. The folder's name alone proves nothing."""
    for name in sorted(os.listdir(directory)):
        folder = directory / name
        if _NUMBERED.fullmatch(name):
            return name
        if _named_as_partition(name) and folder.is_dir() and any(map(_NUMBERED.fullmatch, os.listdir(folder))):
            return name
    return None


def refuse_broker_directory(directory: Path, *, instead: str) -> None:
    """Refuses a broker's log directory, and everything in it. `instead`: what to do."""
    if sign := broker_file_in(directory):
        raise UsageError(f"{directory} {KAFKA.format(sign=sign)}; {instead}")
    refuse_inside_broker_directory(directory, instead=instead)


def refuse_inside_broker_directory(directory: Path, *, instead: str) -> None:
    """Refuses a directory inside a broker's log directory. `instead`: what to do."""
    for outer in Path(os.path.realpath(directory)).parents:
        if sign := broker_file_in(outer):
            raise UsageError(f"{directory} lies in {outer}, which {KAFKA.format(sign=sign)}; {instead}")


def tells_high_watermarks(log_dir: Place) -> bool:
    """Whether a partition without an entry has no high watermark; in a backup without such a file everything was replicated."""
    return is_broker_directory(log_dir) or (log_dir / checkpoints.HIGH_WATERMARK).exists()


def was_stopped_cleanly(log_dir: Place) -> bool:
    return (log_dir / checkpoints.CLEAN_SHUTDOWN).exists()


def is_in_use(log_dir: Place) -> bool:
    """Whether another process holds the lock of a log directory, as a running broker does. Asks without taking it."""
    if isinstance(log_dir, ObjectPlace):
        return False
    lock = log_dir / checkpoints.LOCK
    with _LOCKING:
        try:
            if _file_of(lock.stat()) in _HELD:
                return False  # closing a second descriptor would release the lock
            descriptor = os.open(lock, os.O_RDONLY)
        except OSError:
            return False  # none, or we may not read it: then nothing is known
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _lock_question())
        except OSError:
            return False  # a file system without locks
        finally:
            os.close(descriptor)
    return bool(_FLOCK_TYPE.unpack_from(answer, _FLOCK_TYPE_AT)[0] != fcntl.F_UNLCK)


def _file_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _lock_question() -> bytes:
    """A `struct flock` that asks for the whole file."""
    question = bytearray(_FLOCK_BYTES)
    _FLOCK_TYPE.pack_into(question, _FLOCK_TYPE_AT, fcntl.F_WRLCK)
    return bytes(question)


@contextmanager
def exclusive(log_dir: Path) -> Iterator[None]:
    """Holds the lock that a broker would hold, so that none can start here meanwhile; refuses if one already holds it."""
    lock = log_dir / checkpoints.LOCK
    with open(lock, "a+b") as file:
        take_after(lock, log_dir)
        held = _file_of(os.fstat(file.fileno()))
        with _LOCKING:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UsageError(
                    f"{log_dir}: a running broker or another compaction holds {lock.name}; stop it first"
                ) from error
            _HELD.add(held)
        try:
            yield
        finally:
            _HELD.discard(held)
            if not is_broker_directory(log_dir):
                lock.unlink(missing_ok=True)
