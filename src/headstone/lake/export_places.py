"""Where an export goes: a log directory on a disk, or one of objects. A partition appears there whole or not at all.

Tasks write below a work directory, under names of their attempts; the commit gives files their final names and adds what a
broker looks for: leader epochs, the topic's id, checkpoints. Knows nothing of where the records come from.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headstone.errors import UsageError
from headstone.lake.leader_epochs import Epochs
from headstone.log import checkpoints
from headstone.log.checkpoints import leader_epochs_text, sync_directory, topic_id_text
from headstone.log.directory import INDEX, LOG, METADATA_TOPIC, TIME_INDEX, exclusive, numbered, was_stopped_cleanly
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.commit import WORK_PREFIX, CheckpointBook, remove_work_dir, remove_work_dirs
from headstone.pipeline.new_objects import NewObjects
from headstone.pipeline.outputs import OutputSegment, attempt_path
from headstone.storage.places import ObjectPlace, Place, local
from headstone.storage.uploads import write_whole

Tell = Callable[[str], None]
CLEAN = b'{"version":0,"brokerEpoch":-2}'
"""Of `.kafka_cleanshutdown`: every file of these logs is on the disk. A controller takes a broker out of the replicas in sync
(KIP-966) unless it names the epoch of its last registration; -2 is that of a broker which has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartition:
    partition: TopicPartition
    topic_id: str
    start_offset: int
    next_offset: int
    leader_epochs: Epochs
    first_dirty: int | None
    outputs: tuple[OutputSegment, ...]
    """None: the log holds no offset, and an empty segment says where it goes on."""


class ExportPlace(Protocol):
    def held(self, partitions: Sequence[TopicPartition], tell: Tell) -> AbstractContextManager[None]:
        """Nobody else writes there meanwhile; none of the partitions is there already."""
        ...

    def work_dirs(
        self, partitions: Sequence[TopicPartition]
    ) -> AbstractContextManager[Mapping[TopicPartition, Place]]: ...

    def commit(self, new: NewPartition, work_dir: Place) -> None: ...

    def settle(self) -> None:
        """The checkpoints of what was committed since the last time."""
        ...

    def complete(self) -> None:
        """After the last partition."""
        ...


def export_place(place: Place, *, clean: bool) -> ExportPlace:
    """`clean`: what a killed export has left in an object store is removed, whoever it was."""
    return ObjectDirectory(place, clean=clean) if isinstance(place, ObjectPlace) else LogDirectory(place)


def _is_clean(out: Place) -> bool:
    """Whether a broker need not go over what is there already: it stopped cleanly, or there is nothing."""
    folders = [child.name for child in out.iterdir() if child.is_dir()]
    return was_stopped_cleanly(out) or not any(not name.startswith(METADATA_TOPIC) for name in folders)


def _refuse_existing(out: Place, partitions: Sequence[TopicPartition]) -> None:
    for partition in partitions:
        if (out / str(partition)).exists():
            raise UsageError(
                f"{out / str(partition)} exists already: nothing is overwritten; move it away, or name another place"
            )


def _note(book: CheckpointBook, new: NewPartition) -> None:
    """All of it is on the disk, all of it was replicated once, and this much of it is clean."""
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
    """On a disk: a partition's folder appears by one rename."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._book = CheckpointBook(out)
        self._clean = False

    @contextmanager
    def held(self, partitions: Sequence[TopicPartition], tell: Tell) -> Iterator[None]:
        del tell
        _refuse_existing(self._out, partitions)
        self._out.mkdir(parents=True, exist_ok=True)
        with exclusive(self._out):
            remove_work_dirs(self._out)
            self._clean = _is_clean(self._out)
            yield

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
        """What a task that ran twice has left beside goes."""
        folder = local(work_dir)
        kept = set(_small_files(new))
        for source, name in _moves(new, folder):
            os.replace(local(source), folder / name)
            kept.add(name)
        for name, content in _small_files(new).items():
            write_whole(folder / name, content)
        for stray in [path for path in folder.iterdir() if path.name not in kept]:
            stray.unlink()
        sync_directory(folder)
        os.rename(folder, self._out / str(new.partition))
        sync_directory(self._out)
        _note(self._book, new)

    def settle(self) -> None:
        self._book.write()

    def complete(self) -> None:
        """A broker that finds this sign neither goes over the logs once more nor looks for producers in them."""
        if self._clean and not was_stopped_cleanly(self._out):
            write_whole(self._out / checkpoints.CLEAN_SHUTDOWN, CLEAN)
            sync_directory(self._out)


class ObjectDirectory:
    """In an object store: a sign in the partition's folder hides it until all of it is there."""

    def __init__(self, out: ObjectPlace, *, clean: bool) -> None:
        self._out = out
        self._objects = NewObjects(out, clean=clean)
        self._book = CheckpointBook(out)
        self._clean = False

    @contextmanager
    def held(self, partitions: Sequence[TopicPartition], tell: Tell) -> Iterator[None]:
        with self._objects.locked(tell):
            there = self._objects.listed()
            self._objects.remove_leftovers(there, tell)
            there = self._objects.listed()
            _refuse_existing(there, partitions)
            self._clean = _is_clean(there)
            self._book = CheckpointBook(there)
            yield

    @contextmanager
    def work_dirs(self, partitions: Sequence[TopicPartition]) -> Iterator[Mapping[TopicPartition, Place]]:
        job = self._out / (WORK_PREFIX + secrets.token_hex(6))
        try:
            yield {partition: job / str(partition) for partition in partitions}
        finally:
            self._objects.remove(job)

    def commit(self, new: NewPartition, work_dir: Place) -> None:
        folder = self._out / str(new.partition)
        with self._objects.unfinished(folder):
            self._objects.copy_all([(source, folder / name) for source, name in _moves(new, work_dir)])
            for name, content in _small_files(new).items():
                write_whole(folder / name, content)
        _note(self._book, new)

    def settle(self) -> None:
        self._book.write()

    def complete(self) -> None:
        if self._clean:
            write_whole(self._out / checkpoints.CLEAN_SHUTDOWN, CLEAN)
