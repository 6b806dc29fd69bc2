"""Kafka's small text files: the checkpoints of a log directory, leader epochs, partition metadata.

All are rewritten whole: a temporary file, fsync, atomic rename, fsync of the directory. Does not know what the numbers mean to
a compaction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from headstone import units
from headstone.errors import UsageError
from headstone.log.failpoint import reach
from headstone.log.ownership import take_after
from headstone.log.topic_partition import TopicPartition
from headstone.storage.durable import sync_directory
from headstone.storage.places import ObjectPlace, Place
from headstone.storage.uploads import write_whole

CLEANER = "cleaner-offset-checkpoint"
RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
BOOTSTRAP = "bootstrap.checkpoint"
LOCK = ".lock"

VERSION = "0"
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
"""16 bytes as base64 for URLs, without the padding."""

NO_OFFSETS: Mapping[TopicPartition, int] = MappingProxyType({})


def write_atomically(path: Path, content: str | bytes) -> None:
    """After a power loss `path` has the old content or the new one. A replaced file's owner and mode stay."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    take_after(temporary, path if path.exists() else path.parent)
    reach(f"rename {temporary.name}")
    os.replace(temporary, path)
    sync_directory(path.parent)


def read_offsets(path: Place) -> Mapping[TopicPartition, int]:
    """Entries of a checkpoint; a missing or empty file has none. Parsed once, however many partitions ask."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return NO_OFFSETS
    return _offsets_of(path, status.st_ino, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _offsets_of(path: Place, inode: int | str | None, mtime_ns: int, size: int) -> Mapping[TopicPartition, int]:
    """Files are rewritten by rename, so new content has a new inode or time."""
    rows = _rows(path)
    offsets: dict[TopicPartition, int] = {}
    for number, fields in enumerate(rows, start=3):
        if len(fields) != 3:
            raise _malformed(path, number, "expected 'topic partition offset'")
        partition = TopicPartition(fields[0], _integer(path, number, fields[1]))
        offsets[partition] = _integer(path, number, fields[2])
    return MappingProxyType(offsets)


def write_offsets(path: Place, offsets: Mapping[TopicPartition, int]) -> None:
    lines = [VERSION, str(len(offsets))]
    lines += [f"{topic} {number} {offset}" for (topic, number), offset in sorted(offsets.items())]
    replace_whole(path, ("\n".join(lines) + "\n").encode())


def replace_whole(path: Place, content: bytes) -> None:
    """As `write_atomically`, also for objects."""
    if isinstance(path, ObjectPlace):
        write_whole(path, content)
    else:
        write_atomically(path, content)


def read_leader_epochs(path: Place) -> list[tuple[int, int]]:
    """(epoch, start offset) in order."""
    epochs = []
    for number, fields in enumerate(_rows(path), start=3):
        if len(fields) != 2:
            raise _malformed(path, number, "expected 'epoch offset'")
        epochs.append((_integer(path, number, fields[0]), _integer(path, number, fields[1])))
    return epochs


def leader_epochs_text(epochs: Sequence[tuple[int, int]]) -> str:
    lines = [VERSION, str(len(epochs))] + [f"{epoch} {start}" for epoch, start in epochs]
    return "\n".join(lines) + "\n"


def write_leader_epochs(path: Path, epochs: Sequence[tuple[int, int]]) -> None:
    write_atomically(path, leader_epochs_text(epochs))


def read_topic_id(path: Place) -> str | None:
    """The topic id of partition.metadata, None if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise _malformed(path, 1, "not text") from error
    for number, line in enumerate(text.splitlines(), start=1):
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            if not _TOPIC_ID.fullmatch(value.strip()):
                raise _malformed(path, number, f"{value.strip()!r} is not a topic id")
            return value.strip()
    raise _malformed(path, 1, "no topic_id")


def topic_id_text(topic_id: str) -> str:
    return f"version: 0\ntopic_id: {topic_id}"


def write_topic_id(path: Path, topic_id: str) -> None:
    write_atomically(path, topic_id_text(topic_id))


def _rows(path: Place) -> list[list[str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise _malformed(path, 1, "not text") from error
    if not lines:
        return []
    if lines[0].strip() != VERSION:
        raise _malformed(path, 1, f"unknown version {lines[0].strip()!r}")
    if len(lines) < 2:
        raise _malformed(path, 2, "no entry count")
    rows = [line.split() for line in lines[2:] if line.strip()]
    if len(rows) != _integer(path, 2, lines[1].strip()):
        raise _malformed(path, 2, f"says {lines[1].strip()} but has {units.count(len(rows), 'entry', 'entries')}")
    return rows


def _integer(path: Place, line: int, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not -(2**63) <= int(text) < 2**63:
        raise _malformed(path, line, f"{text!r} is not a number of 64 bits")
    return int(text)


def _malformed(path: Place, line: int, problem: str) -> UsageError:
    return UsageError(f"{path}, line {line}: {problem}; restore the file from a backup: what it says protects records")
