"""Log directories and partition directories: which files there are, what they are called, who holds them.

Owns file names and the question whether a broker may be using a directory. Changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headstone.errors import CorruptLog, UsageError
from headstone.log import checkpoints
from headstone.log.ownership import take_after
from headstone.log.reading import SegmentFile
from headstone.log.topic_partition import TOPIC_NAME, TopicPartition
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.places import ObjectPlace, Place, children, place

LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
SEGMENT_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
UNFINISHED = ".headstone-unfinished"
"""In a partition's folder of an object store, as long as not all of it is there."""

METADATA_TOPIC = "__cluster_metadata"
"""KRaft's own log: snapshots, not compaction, keep it small, and a controller does not start on a compacted one."""

_PARTITION = re.compile(rf"(?P<topic>{TOPIC_NAME.pattern})-(?P<partition>\d+)")
_FUTURE = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)\.[0-9a-f]{32}-future")
_NAME_LENGTH_MAX = 255
"""A broker cuts a topic's name where the name of its future copy would be longer."""
_STRAY = re.compile(r".+-(delete|future|stray)$")
_NUMBERED = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")
_OWNERS_FILES = (
    checkpoints.META_PROPERTIES,
    checkpoints.LOCK,
    checkpoints.CLEAN_SHUTDOWN,
    checkpoints.CLEANER,
    checkpoints.RECOVERY_POINT,
    checkpoints.LOG_START,
    checkpoints.HIGH_WATERMARK,
)
"""What makes a directory the log directory of the partitions in it: who locks them, and what is known of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDir:
    """One partition's folder; `topic_partition` as the checkpoint files name it."""

    path: Place
    topic: str
    partition: int

    @property
    def name(self) -> str:
        return self.path.name

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
    matches = (_FUTURE.fullmatch(child.name) for child in children(log_dir))
    return [
        FutureCopy(path=log_dir / match[0], topic=match["topic"], partition=int(match["partition"]))
        for match in matches
        if match
    ]


def numbered(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def as_partition(path: Place) -> PartitionDir | None:
    """None for what is no partition by its name, or holds partitions itself: a log directory may be called `kafka-1`.

    Also for one in an object store that is not there yet: whoever writes it takes the sign away last."""
    if not _named_as_partition(path.name) or not path.is_dir():
        return None
    if isinstance(path, ObjectPlace):
        if (path / UNFINISHED).exists():
            return None
    else:
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
    """Where a partition directory lies by its owner's word.

    A symbolic link leads from one log directory to another. The lock, the clean stop and the checkpoints that count are in
    the one that has such files; if none has, in the one where the segments are.
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
            raise UsageError(
                f"{given or repr(given)}: no such directory; name a partition directory or a log directory"
            )
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


def _has_segments(path: Place) -> bool:
    """Finished or not: `.log.cleaned` and the like tell of a partition too."""
    return any(LOG in child.name and f"{LOG}." in f"{child.name}." for child in path.iterdir())


def _what_is_there(path: Place) -> str:
    unfinished = [child.name for child in path.iterdir() if (child / UNFINISHED).exists()]
    if unfinished:
        return f"{unfinished[0]} is unfinished: whoever wrote it was interrupted; run the same command again"
    log_dirs = [child.name for child in children(path) if child.is_dir() and _holds_partitions(child)]
    if log_dirs:
        return f"it holds log directories: name them one by one ({', '.join(log_dirs)})"
    return "expected folders named <topic>-<partition> with .log files"


def list_segments(partition: PartitionDir) -> list[SegmentFile]:
    """Segments in offset order; leftovers of an interrupted swap are an error, because the list would be half of two."""
    names = sorted(child.name for child in partition.path.iterdir() if child.is_file())
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
            segments.append(_segment(partition.path / name, int(match[1])))
    if not segments:
        raise UsageError(f"{partition.path}: no .log file; this is not a partition directory")
    _refuse_missing(partition, names)
    return segments


def _refuse_missing(partition: PartitionDir, names: Sequence[str]) -> None:
    """Indexes without their `.log` tell of a segment that was lost; one that was deleted left a `.log.deleted`."""
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
    return (log_dir / checkpoints.META_PROPERTIES).exists()


def tells_high_watermarks(log_dir: Place) -> bool:
    """Whether a partition without a high watermark has none; in a backup without such a file all there is was replicated."""
    return is_broker_directory(log_dir) or (log_dir / checkpoints.HIGH_WATERMARK).exists()


def was_stopped_cleanly(log_dir: Place) -> bool:
    return (log_dir / checkpoints.CLEAN_SHUTDOWN).exists()


@contextmanager
def exclusive(log_dir: Path) -> Iterator[None]:
    """Holds the lock that a broker would hold, so that none can start here meanwhile; refuses if one does hold it."""
    lock = log_dir / checkpoints.LOCK
    with open(lock, "a+b") as file:
        take_after(lock, log_dir)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UsageError(
                f"{log_dir}: a running broker or another compaction holds {lock.name}; stop it first"
            ) from error
        try:
            yield
        finally:
            if not is_broker_directory(log_dir):
                lock.unlink(missing_ok=True)
