"""The port to where new logs go, and the two sinks on a disk: in place, by Kafka's own swap, and a new log directory.

Tasks write new segments below the work directory of their partition, under names of their attempts. A sink commits in the
driver, once per partition; until then the old log stands. Checkpoints follow when a wave is done (`settle`), and the other
files that a broker expects when all are (`complete`). Into an object store: `new_objects.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from headstone.errors import UsageError
from headstone.log.directory import (
    UNFINISHED,
    PartitionDir,
    exclusive,
    is_broker_directory,
    unfinished_folders,
    was_stopped_cleanly,
)
from headstone.log.failpoint import reach
from headstone.log.ownership import refuse_foreign
from headstone.log.swap import recover
from headstone.pipeline.commit import (
    WORK_PREFIX,
    CheckpointBook,
    Finished,
    changes,
    commit_in_place,
    commit_to,
    copy_broker_files,
    copy_untouched,
    is_clean_with,
    note_cleaned,
    note_new,
    note_untouched,
    own_as,
    refuse_foreign_broker_directory,
    refuse_inside_inputs,
    refuse_keyless,
    remove_folder,
    remove_work_dir,
    remove_work_dirs,
)
from headstone.pipeline.engine import Engine
from headstone.pipeline.output_record import OUTPUT_RECORD, Command, OutputRecord, refuse_existing, refuse_twice
from headstone.pipeline.planning import Candidate
from headstone.pipeline.transfers import Transfer
from headstone.storage.durable import directory_of_run, sync_directory
from headstone.storage.places import Place, local

Tell = Callable[[str], None]
WorkDirs = dict[Place, Place]
"""By the path of the partition."""


class Sink(Protocol):
    def hold(
        self, wanted: Sequence[PartitionDir], everything: Sequence[PartitionDir], stack: ExitStack, tell: Tell
    ) -> frozenset[str]:
        """Makes sure that nothing else writes there until the stack ends, and removes incomplete files of a killed run.

        Returns the names of partitions that an earlier run of the same command has finished: they are not done again."""
        ...

    def work_dirs(self, wave: Sequence[Candidate]) -> AbstractContextManager[WorkDirs]:
        """Where tasks write; removed afterwards, whatever happens."""
        ...

    def transfers(self, done: Finished, work_dir: Place) -> list[Transfer]:
        """Files that tasks must read, check or copy before the commit, beside what they have rewritten."""
        ...

    def commit(self, done: Finished, work_dir: Place, *, chosen: bool) -> int:
        """Returns the partition's log start offset afterwards."""
        ...

    def settle(self) -> None:
        """Writes the checkpoints of what was committed since the last call."""
        ...

    def complete(
        self, left: Sequence[PartitionDir], everything: Sequence[PartitionDir], engine: Engine, *, failed: bool
    ) -> None:
        """Call after the last partition. `left` are those that are not compacted."""
        ...


class InPlace:
    """Swaps new segments in. Retention and checkpoint resets also apply to partitions that were not chosen."""

    def __init__(self, *, force_offline: bool, drop_keyless: bool) -> None:
        self._force_offline = force_offline
        self._drop_keyless = drop_keyless
        self._books: dict[Place, CheckpointBook] = {}

    def hold(
        self, wanted: Sequence[PartitionDir], everything: Sequence[PartitionDir], stack: ExitStack, tell: Tell
    ) -> frozenset[str]:
        """Locks each log directory, refuses one whose broker did not stop cleanly, finishes interrupted swaps."""
        del everything
        for log_dir in sorted({local(directory.log_dir) for directory in wanted}):
            self._hold_directory(log_dir, stack, tell)
            self._books[log_dir] = CheckpointBook(log_dir)
        for directory in wanted:
            path = local(directory.path)
            for line in recover(path):
                tell(f"{directory.name}: recovered an interrupted swap: {line}")
            remove_work_dirs(path)
        return frozenset()

    def _hold_directory(self, log_dir: Path, stack: ExitStack, tell: Tell) -> None:
        broker = is_broker_directory(log_dir)
        if broker:
            refuse_foreign(log_dir)
        stack.enter_context(exclusive(log_dir))
        if broker and not was_stopped_cleanly(log_dir):
            if not self._force_offline:
                raise UsageError(
                    f"{log_dir}: the broker of this directory did not stop cleanly (no .kafka_cleanshutdown); start and "
                    "stop it once, or say --force-offline (force_offline in a program) if you are sure that it is down and its "
                    "log is whole"
                )
            tell(f"warning: {log_dir}: no clean shutdown; going on, as asked")

    @contextmanager
    def work_dirs(self, wave: Sequence[Candidate]) -> Iterator[WorkDirs]:
        job = WORK_PREFIX + secrets.token_hex(6)
        places = {c.directory.path: local(c.directory.path) / job for c in wave}
        with _made(list(places.values())):
            yield dict(places)

    def transfers(self, done: Finished, work_dir: Place) -> list[Transfer]:
        del work_dir
        return [Transfer(check=segment.file) for segment in done.carried]

    def commit(self, done: Finished, work_dir: Place, *, chosen: bool) -> int:
        del work_dir
        if not self._drop_keyless:
            refuse_keyless(done)
        if not chosen and not changes(done):
            return done.candidate.survey.log_start
        start = commit_in_place(done)
        note_cleaned(self._books[done.candidate.directory.log_dir], done, start)
        return start

    def settle(self) -> None:
        for book in self._books.values():
            book.write()

    def complete(
        self, left: Sequence[PartitionDir], everything: Sequence[PartitionDir], engine: Engine, *, failed: bool
    ) -> None:
        """Everything is in its place already."""


class NewDirectory:
    """A log directory from which a broker starts. A partition's folder appears by one rename."""

    def __init__(self, out: Path, command: Command) -> None:
        self._out = out
        self._book = CheckpointBook(out)
        self._record = OutputRecord(out, command)
        self._signed: list[Path] = []
        """Folders that are there although the checkpoints may lack them."""
        self._clean = False

    def hold(
        self, wanted: Sequence[PartitionDir], everything: Sequence[PartitionDir], stack: ExitStack, tell: Tell
    ) -> frozenset[str]:
        del wanted
        refuse_inside_inputs(self._out, everything)
        refuse_twice(everything)
        file = next((place for place in (self._out, *self._out.parents) if place.is_file()), None)
        if file is not None:
            raise UsageError(f"the output {self._out}: {file} is a file; name a directory")
        sources = _log_dirs(everything)
        refuse_foreign_broker_directory(self._out, sources, own=(self._out / OUTPUT_RECORD).exists())
        if not self._out.exists():
            stack.enter_context(directory_of_run(self._out))
            own_as(self._out, sources[0])
        stack.enter_context(exclusive(self._out))
        resumption = self._record.resume(self._out, everything)
        refuse_existing(self._out, everything, resumption)
        remove_work_dirs(self._out)
        for name in (*resumption.outdated, *unfinished_folders(self._out)):
            tell(
                f"{self._out / name}: {'the input has changed since' if name in resumption.outdated else 'half done'}; again"
            )
            remove_folder(self._out / name)
        self._clean = is_clean_with(self._out, sources, own=resumption.finished)
        self._record.begin(resumption)
        stack.callback(self._forget_if_nothing_is_done)
        return resumption.finished

    def _forget_if_nothing_is_done(self) -> None:
        if not self._record.has_any:
            self._forget()

    def _forget(self) -> None:
        reach("remove the record")
        (self._out / OUTPUT_RECORD).unlink(missing_ok=True)
        sync_directory(self._out)

    @contextmanager
    def work_dirs(self, wave: Sequence[Candidate]) -> Iterator[WorkDirs]:
        job = self._out / (WORK_PREFIX + secrets.token_hex(6))
        places: WorkDirs = {c.directory.path: job / c.directory.name for c in wave}
        with _made([job, *map(local, places.values())]):
            yield places

    def transfers(self, done: Finished, work_dir: Place) -> list[Transfer]:
        del work_dir
        return [Transfer(check=segment.file) for segment in done.carried]

    def commit(self, done: Finished, work_dir: Place, *, chosen: bool) -> int:
        del chosen
        start = commit_to(self._out, done, local(work_dir))
        self._signed.append(self._out / done.candidate.directory.name)
        note_new(self._book, done, start)
        return start

    def settle(self) -> None:
        """Checkpoints, then the record, then the markers go: a folder without a marker is complete in every respect."""
        self._book.write()
        if not self._signed:
            return
        self._record.note(self._signed)
        for folder in self._signed:
            reach(f"finish {folder.name}")
            (folder / UNFINISHED).unlink()
            sync_directory(folder)
        self._signed = []

    def complete(
        self, left: Sequence[PartitionDir], everything: Sequence[PartitionDir], engine: Engine, *, failed: bool
    ) -> None:
        """The files that a broker expects beside partitions. Without them none starts on an output that lacks a partition."""
        if failed:
            return
        for directory in left:
            copy_untouched(directory, self._out)
            self._signed.append(self._out / directory.name)
        sync_directory(self._out)
        note_untouched(self._book, left)
        self.settle()
        copy_broker_files(_log_dirs(everything), self._out, clean=self._clean)
        self._forget()


def _log_dirs(directories: Sequence[PartitionDir]) -> list[Place]:
    return sorted({directory.log_dir for directory in directories}, key=str)


@contextmanager
def _made(places: Sequence[Path]) -> Iterator[None]:
    try:
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for place in places:
            remove_work_dir(place)
