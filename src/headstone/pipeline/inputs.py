"""What a caller's paths name: which partitions of which topics, how large they are, and who else is using them.

Looks at names, sizes and locks; reads no log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headstone.errors import CorruptLog, UsageError
from headstone.log.directory import LOG, PartitionDir, find_partitions, is_in_use, list_segments, one_segment
from headstone.spelling import instead
from headstone.storage.places import ObjectPlace, Place, place


def logs_in(paths: Iterable[str | Place]) -> list[PartitionDir]:
    """From log directories, partition directories, and single `.log` files, each of which is a log of one segment."""
    partitions: list[PartitionDir] = []
    for given in paths:
        may_be_file = str(given).endswith(LOG) if isinstance(given, ObjectPlace) else Path(given).is_file()
        here = place(given) if may_be_file else None
        if str(given).endswith(LOG) and "://" not in str(given) and not Path(str(given)).exists():
            raise UsageError(f"{given}: no such file; name a {LOG} file, a partition directory or a log directory")
        if here is not None and not here.is_dir() and here.is_file():
            partitions.append(one_segment(here))
        else:
            partitions += find_partitions([given])
    return list(dict.fromkeys(partitions))


def of_topics(
    directories: Sequence[PartitionDir], topics: Sequence[str], paths: Sequence[object]
) -> list[PartitionDir]:
    """Only partitions of the named topics, if any are named; an unknown topic is an error."""
    there = {directory.topic for directory in directories}
    for topic in sorted(set(topics) - there):
        raise UsageError(f"no partition of topic {topic} in {', '.join(map(str, paths))}{instead(topic, there)}")
    return [directory for directory in directories if not topics or directory.topic in topics]


def bytes_of(directories: Sequence[PartitionDir]) -> int:
    """Bytes of their segments; errors are reported when they are read."""
    return sum(map(_bytes_of, directories))


def _bytes_of(directory: PartitionDir) -> int:
    try:
        return sum(file.size for file in list_segments(directory))
    except (UsageError, CorruptLog, OSError):
        return 0


def in_use(log_dirs: Iterable[Place], what: str) -> Iterator[str]:
    """A warning for each that a broker is writing to. `what`: what the user is about to get, such as `what follows`."""
    for log_dir in sorted(set(log_dirs), key=str):
        if is_in_use(log_dir):
            yield (
                f"warning: {log_dir}: a running broker holds {log_dir / '.lock'}; {what} is a moment's view of a log that "
                "goes on changing; stop the broker, or take a snapshot of its disk, for one that stays true"
            )


def log_dirs_of(paths: Iterable[str | Place]) -> set[Place]:
    """Where a lock may be: each path may be a log directory, or a partition in one. On this machine only."""
    local = [Path(str(path)).resolve() for path in paths if "://" not in str(path)]
    return {*local, *(path.parent for path in local)}
