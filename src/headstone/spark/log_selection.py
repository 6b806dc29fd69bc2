"""Which part of which logs a reader of `kafka-log` asks for: paths, patterns, topics, partitions, offsets.

Owns what these options mean. Looks for directories each time, because a log directory grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headstone.errors import UsageError
from headstone.log.directory import PartitionDir, as_partition, find_partitions
from headstone.retention.policy import NO_LIMIT
from headstone.spark.source_options import (
    offset_range,
    partition_numbers,
    require_partitions,
    require_topics,
    store_access,
    topic_names,
)
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.places import Place, children, place

OPTIONS = ("offsets", "partitions", "path", "paths", "store.NAME", "topic")
WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSelection:
    """No topics or no partitions: all of them. Offsets: [offset_start, offset_end) of each partition."""

    paths: tuple[str, ...]
    access: Access = FROM_ENVIRONMENT
    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    offset_start: int = 0
    offset_end: int = NO_LIMIT

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LogSelection:
        start, end = offset_range(options["offsets"]) if "offsets" in options else (0, NO_LIMIT)
        return cls(
            paths=_paths(options),
            access=store_access(options),
            topics=topic_names(options["topic"]) if "topic" in options else (),
            partitions=partition_numbers(options["partitions"]) if "partitions" in options else (),
            offset_start=start,
            offset_end=end,
        )

    def directories(self) -> list[PartitionDir]:
        places = [folder for path in self.paths for folder in matching(path, self.access)]
        everything = find_partitions(places)
        require_topics(self.topics, {directory.topic for directory in everything})
        chosen = [directory for directory in everything if not self.topics or directory.topic in self.topics]
        require_partitions(self.partitions, {directory.partition for directory in chosen})
        return [directory for directory in chosen if not self.partitions or directory.partition in self.partitions]


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """Spark passes several paths as one option, a JSON list."""
    paths = [options["path"]] if options.get("path") else json.loads(options.get("paths") or "[]")
    if not paths:
        raise UsageError('name a log directory or a partition directory: .load("PATH")')
    return tuple(str(path) for path in paths)


def matching(path: str, access: Access = FROM_ENVIRONMENT) -> list[Place]:
    """The place of this name, or the partition and log directories that match a pattern such as `logs/*/orders-*`."""
    names = path.split("/")
    plain = next((number for number, name in enumerate(names) if WILDCARDS & set(name)), len(names))
    whole = place(path, access)
    if plain == len(names) or whole.is_dir():
        return [whole]
    root = place("/".join(names[:plain]) or ("/" if path.startswith("/") else "."), access)
    folders = [root] if root.is_dir() else []
    for name in filter(None, names[plain:]):
        folders = [child for folder in folders for child in _folders(folder) if fnmatchcase(child.name, name)]
    # Directories that a broker is about to delete match many patterns too, but are not partitions any more.
    folders = [folder for folder in folders if _is_log(folder) or any(map(_is_log, _folders(folder)))]
    if not folders:
        raise UsageError(f"{path}: no partition directory and no log directory matches")
    return folders


def _folders(folder: Place) -> list[Place]:
    return [child for child in children(folder) if child.is_dir()]


def _is_log(folder: Place) -> bool:
    return as_partition(folder) is not None
