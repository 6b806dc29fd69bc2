"""Where an export goes: a log directory on a disk, or one of objects. A partition appears there whole or not at all.

Tasks write below a work directory, under names of their attempts; the commit gives files their final names and adds what a
broker expects: leader epochs, the topic's id, checkpoints. Does not know where the records come from.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headstone.errors import UsageError
from headstone.lake.metastore.leader_epochs import Epochs
from headstone.log import checkpoints
from headstone.log.checkpoints import leader_epochs_text, topic_id_text, write_atomically
from headstone.log.directory import (
    INDEX,
    LOG,
    METADATA_TOPIC,
    TIME_INDEX,
    UNFINISHED,
    exclusive,
    numbered,
    refuse_inside_broker_directory,
    was_stopped_cleanly,
)
from headstone.log.failpoint import reach
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.commit import WORK_PREFIX, CheckpointBook, remove_work_dir, remove_work_dirs
from headstone.pipeline.new_objects import NewObjects
from headstone.pipeline.outputs import OutputSegment, attempt_path
from headstone.storage.durable import directory_of_run, sync_directory
from headstone.storage.places import ObjectPlace, Place, local
from headstone.storage.uploads import write_whole

Tell = Callable[[str], None]
TopicIds = Mapping[TopicPartition, str]
ANEW = "to start over, empty the log directories, format them and export again"
CLEAN = b'{"version":0,"brokerEpoch":-2}'
"""Content of `.kafka_cleanshutdown`: every file of these logs is on the disk. A controller removes a broker from the in-sync
replicas (KIP-966) unless it names the epoch of its last registration; -2 is that of a broker without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartition:
    partition: TopicPartition
    topic_id: str
    start_offset: int
    next_offset: int
    leader_epochs: Epochs
    first_dirty: int | None
    outputs: tuple[OutputSegment, ...]
    """None: the log has no offset, and an empty segment says where it continues."""


class ExportPlace(Protocol):
    def held(self, tell: Tell) -> AbstractContextManager[None]:
        """Keeps others from writing there meanwhile. Removes incomplete files of a killed run."""
        ...

    def prepare(self, topic_ids: TopicIds, finished: Collection[TopicPartition] | None) -> None:
        """Call before the first partition. `finished`: partitions that an interrupted export has completed; the others it may
        have left are removed. None: there was no such export, and nothing with these names may be there."""
        ...

    def has_any(self, partitions: Collection[TopicPartition]) -> bool: ...

    def read_file(self, name: str) -> bytes | None:
        """None if there is no such file."""
        ...

    def write_file(self, name: str, content: bytes) -> None:
        """Atomic: the whole file, or the former one."""
        ...

    def remove_file(self, name: str) -> None: ...

    def work_dirs(
        self, partitions: Sequence[TopicPartition]
    ) -> AbstractContextManager[Mapping[TopicPartition, Place]]: ...

    def commit(self, new: NewPartition, work_dir: Place) -> None: ...

    def settle(self) -> None:
        """Writes the checkpoints of what was committed since the last call."""
        ...

    def complete(self) -> None:
        """Call after the last partition."""
        ...


def export_place(place: Place, *, clean: bool) -> ExportPlace:
    """`clean`: removes what killed exports, of any process, have left in an object store."""
    return ObjectDirectory(place, clean=clean) if isinstance(place, ObjectPlace) else LogDirectory(place)


def _is_clean(out: Place, exported: Collection[TopicPartition]) -> bool:
    """Whether a broker may skip checking what is there beside the export: it stopped cleanly, or there is nothing."""
    own = {str(partition) for partition in exported}
    folders = [child.name for child in out.iterdir() if child.is_dir() and child.name not in own]
    return was_stopped_cleanly(out) or not any(not name.startswith(METADATA_TOPIC) for name in folders)


def _leftovers(out: Place, topic_ids: TopicIds, finished: Collection[TopicPartition] | None) -> list[Place]:
    """Folders that an interrupted export has left unfinished; anything else in the way is refused."""
    leftovers = []
    for partition, topic_id in topic_ids.items():
        folder = out / str(partition)
        exists = folder.exists()
        foreign = exists and checkpoints.read_topic_id(folder / checkpoints.PARTITION_METADATA) != topic_id
        if exists and (finished is None or foreign):
            raise UsageError(f"{folder} already exists and is not overwritten; move it away, or name another directory")
        if finished is not None and partition in finished:
            if not exists:
                raise UsageError(f"{folder} was written by the interrupted export but is gone; {ANEW}")
        elif exists:
            leftovers.append(folder)
    return leftovers


def _note(book: CheckpointBook, new: NewPartition) -> None:
    """All of it is on the disk, all of it counts as replicated, and this much of it is clean."""
    book.put(checkpoints.RECOVERY_POINT, new.partition, new.next_offset)
    book.put(checkpoints.HIGH_WATERMARK, new.partition, new.next_offset)
    book.put(checkpoints.LOG_START, new.partition, new.start_offset)
    if new.first_dirty is not None:
        book.put(checkpoints.CLEANER, new.partition, new.first_dirty)


def _small_files(new: NewPartition) -> dict[str, bytes]:
    files = {
        checkpoints.LEADER_EPOCHS: leader_epochs_text(new.leader_epochs).encode(),
        checkpoints.PARTITION_METADATA: topic_id_text(new.topic_id).encode(),
    }
    if not new.outputs:
        files |= {numbered(new.next_offset, suffix): b"" for suffix in (LOG, INDEX, TIME_INDEX)}
    return files


def _moves(new: NewPartition, work_dir: Place) -> Iterator[tuple[Place, str]]:
    for output in new.outputs:
        for suffix in output.suffixes:
            yield attempt_path(work_dir, output.base, suffix, output.attempt), numbered(output.base, suffix)


class LogDirectory:
    """On a disk: a partition's folder appears by one rename, and is removed by one."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._book = CheckpointBook(out)
        self._clean = False

    @contextmanager
    def held(self, tell: Tell) -> Iterator[None]:
        del tell
        refuse_inside_broker_directory(self._out, instead="name a directory elsewhere")
        with directory_of_run(self._out), exclusive(self._out):
            remove_work_dirs(self._out)
            yield

    def prepare(self, topic_ids: TopicIds, finished: Collection[TopicPartition] | None) -> None:
        for folder in _leftovers(self._out, topic_ids, finished):
            doomed = self._out / (WORK_PREFIX + secrets.token_hex(6))
            reach(f"rename {folder.name} to {doomed.name}")
            os.rename(local(folder), doomed)
            remove_work_dir(doomed)
        self._clean = _is_clean(self._out, topic_ids)

    def has_any(self, partitions: Collection[TopicPartition]) -> bool:
        return any((self._out / str(partition)).exists() for partition in partitions)

    def read_file(self, name: str) -> bytes | None:
        return (self._out / name).read_bytes() if (self._out / name).exists() else None

    def write_file(self, name: str, content: bytes) -> None:
        write_atomically(self._out / name, content)

    def remove_file(self, name: str) -> None:
        reach(f"remove {name}")
        (self._out / name).unlink()
        sync_directory(self._out)

    @contextmanager
    def work_dirs(self, partitions: Sequence[TopicPartition]) -> Iterator[Mapping[TopicPartition, Place]]:
        job = self._out / (WORK_PREFIX + secrets.token_hex(6))
        try:
            for partition in partitions:
                (job / str(partition)).mkdir(parents=True)
            yield {partition: job / str(partition) for partition in partitions}
        finally:
            remove_work_dir(job)

    def commit(self, new: NewPartition, work_dir: Place) -> None:
        """Removes the files of tasks that ran twice."""
        folder = local(work_dir)
        kept = set(_small_files(new))
        for source, name in _moves(new, folder):
            reach(f"rename {source.name} to {name}")
            os.replace(local(source), folder / name)
            kept.add(name)
        for name, content in _small_files(new).items():
            write_whole(folder / name, content)
        for stray in [path for path in folder.iterdir() if path.name not in kept]:
            stray.unlink()
        sync_directory(folder)
        reach(f"rename {folder.name} into its place")
        os.rename(folder, self._out / str(new.partition))
        sync_directory(self._out)
        _note(self._book, new)

    def settle(self) -> None:
        self._book.write()

    def complete(self) -> None:
        """A broker that finds this file neither checks the logs again nor looks for producers in them."""
        if self._clean and not was_stopped_cleanly(self._out):
            reach("sign of a clean stop")
            write_atomically(self._out / checkpoints.CLEAN_SHUTDOWN, CLEAN)


class ObjectDirectory:
    """In an object store: a marker object in the partition's folder hides it until all of it is there."""

    def __init__(self, out: ObjectPlace, *, clean: bool) -> None:
        self._out = out
        self._objects = NewObjects(out, clean=clean)
        self._book = CheckpointBook(out)
        self._clean = False

    @contextmanager
    def held(self, tell: Tell) -> Iterator[None]:
        with self._objects.locked(tell):
            self._objects.remove_leftovers(self._objects.listed(), tell)
            yield

    def prepare(self, topic_ids: TopicIds, finished: Collection[TopicPartition] | None) -> None:
        there = self._objects.listed()
        for folder in _leftovers(there, topic_ids, finished):
            assert isinstance(folder, ObjectPlace)
            write_whole(folder / UNFINISHED, b"")
            reach(f"remove {folder.name}")
            self._objects.remove(folder)
        self._clean = _is_clean(there, topic_ids)
        self._book = CheckpointBook(there)

    def has_any(self, partitions: Collection[TopicPartition]) -> bool:
        there = self._objects.listed()
        return any((there / str(partition)).exists() for partition in partitions)

    def read_file(self, name: str) -> bytes | None:
        file = self._objects.listed() / name
        return file.read_bytes() if file.exists() else None

    def write_file(self, name: str, content: bytes) -> None:
        reach(f"write {name}")
        write_whole(self._out / name, content)

    def remove_file(self, name: str) -> None:
        reach(f"remove {name}")
        self._objects.remove_file(self._out / name)

    @contextmanager
    def work_dirs(self, partitions: Sequence[TopicPartition]) -> Iterator[Mapping[TopicPartition, Place]]:
        job = self._out / (WORK_PREFIX + secrets.token_hex(6))
        try:
            yield {partition: job / str(partition) for partition in partitions}
        finally:
            self._objects.remove(job)

    def commit(self, new: NewPartition, work_dir: Place) -> None:
        folder = self._out / str(new.partition)
        reach(f"begin {folder.name}")
        with self._objects.unfinished(folder):
            reach(f"copy {folder.name}")
            self._objects.copy_all([(source, folder / name) for source, name in _moves(new, work_dir)])
            for name, content in _small_files(new).items():
                write_whole(folder / name, content)
            reach(f"finish {folder.name}")
        _note(self._book, new)

    def settle(self) -> None:
        reach("write checkpoints")
        self._book.write()

    def complete(self) -> None:
        if self._clean:
            reach("sign of a clean stop")
            write_whole(self._out / checkpoints.CLEAN_SHUTDOWN, CLEAN)
