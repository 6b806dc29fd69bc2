"""The sink into an object store: a log directory of objects, from which a copy tool makes one that a broker starts from.

Stores have no rename. Tasks upload under names of their attempts in a prefix of the run. The commit puts a marker object into
the partition's folder, lets the store copy everything to its final name, and removes the marker. While it is there, none of our
readers sees the partition. A lock object keeps two runs apart; the next run removes what a killed one left.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from headstone.errors import UsageError
from headstone.interruption import Threads
from headstone.log import checkpoints
from headstone.log.directory import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    UNFINISHED,
    PartitionDir,
    numbered,
    was_stopped_cleanly,
)
from headstone.log.failpoint import reach
from headstone.log.snapshots import snapshot_bytes
from headstone.pipeline.commit import (
    WORK_PREFIX,
    CheckpointBook,
    Finished,
    accompanying_files,
    carried_files,
    carried_sizes,
    deleted_by_retention,
    note_new,
    note_untouched,
    refuse_inside_inputs,
    start_after,
)
from headstone.pipeline.engine import Engine
from headstone.pipeline.output_record import OUTPUT_RECORD, Command, OutputRecord, refuse_existing, refuse_twice
from headstone.pipeline.outputs import attempt_path
from headstone.pipeline.planning import Candidate
from headstone.pipeline.sinks import Tell, WorkDirs
from headstone.pipeline.transfers import Transfer, run_transfers
from headstone.storage.places import ObjectPlace, Place, children, object_place, place
from headstone.storage.stores import store_of
from headstone.storage.uploads import copy_whole, write_whole

LOCK = ".headstone-lock"
COPIES_AT_ONCE = 8


class NewObjects:
    def __init__(self, out: ObjectPlace, *, clean: bool, command: Command | None = None) -> None:
        """`clean`: removes what another run has left even if that may still be at work. `command`: of a sink."""
        self._out = object_place(str(out), out.access)
        self._store = store_of(out.bucket, out.access)
        self._book = CheckpointBook(self._out)
        self._record = OutputRecord(self._out, command or {})
        self._signed: list[ObjectPlace] = []
        """Folders that are there although the checkpoints may lack them."""
        self._take_over = clean
        self._clean_stop = False
        self._copied: dict[Place, Place] = {}

    def hold(
        self, wanted: Sequence[PartitionDir], everything: Sequence[PartitionDir], stack: ExitStack, tell: Tell
    ) -> frozenset[str]:
        del wanted
        refuse_inside_inputs(self._out, everything)
        refuse_twice(everything)
        stack.enter_context(self.locked(tell))
        resumption = self._record.resume(self.listed(), everything)
        refuse_existing(self.listed(), everything, resumption)
        self.remove_leftovers(self.listed(), tell)
        for name in resumption.outdated:
            tell(f"{self._out / name}: the input has changed since; again")
            write_whole(self._out / name / UNFINISHED, b"")
            self.remove(self._out / name)
        there = self.listed()
        before = [child for child in children(there) if child.is_dir() and child.name not in resumption.finished]
        stopped = all(was_stopped_cleanly(log_dir) for log_dir in {directory.log_dir for directory in everything})
        self._clean_stop = stopped and (not before or was_stopped_cleanly(there))
        if not self._clean_stop and was_stopped_cleanly(there):
            self._store.delete([(self._out / checkpoints.CLEAN_SHUTDOWN).key])
        self._book = CheckpointBook(there)
        self._record.begin(resumption)
        stack.callback(self._forget_if_nothing_is_done)
        return resumption.finished

    def _forget_if_nothing_is_done(self) -> None:
        if not self._record.has_any:
            self.remove_file(self._out / OUTPUT_RECORD)

    # Lock, leftovers and markers work the same for every other writer of log directories of objects.

    def listed(self) -> ObjectPlace:
        there = place(str(self._out), self._out.access)
        assert isinstance(there, ObjectPlace)
        return there

    @contextmanager
    def locked(self, tell: Tell) -> Iterator[None]:
        """A killed run leaves its lock. The next takes it over with `clean`, or if that was a process here that has ended."""
        self._lock(tell)
        try:
            yield
        finally:
            self._store.delete([(self._out / LOCK).key])

    def _lock(self, tell: Tell) -> None:
        own_lock = json.dumps(
            {"host": socket.gethostname(), "process": os.getpid(), "run": secrets.token_hex(8)}
        ).encode()
        key = (self._out / LOCK).key
        if self._store.put(key, own_lock, create=True):
            return
        tag = self._store.tag(key)
        holder = _holder(self._store.read(key, 0, self._store.size(key)))
        if not self._take_over and not _is_dead(holder):
            raise UsageError(
                f"{self._out}: {_named(holder)} is writing there; if it was killed, say --clean (clean in a program), "
                "which removes what it left"
            )
        if not self._store.replace(key, own_lock, tag=tag):
            raise UsageError(f"{self._out}: another run was faster to go on in the place of {_named(holder)}")
        tell(f"{self._out}: {_named(holder)} was killed here; going on in its place")

    def remove_leftovers(self, there: ObjectPlace, tell: Tell) -> None:
        """Of killed runs: uploads of tasks, and unfinished partitions."""
        garbage = [child for child in children(there) if child.name.startswith(WORK_PREFIX)]
        garbage += [child for child in children(there) if (child / UNFINISHED).exists()]
        for folder in garbage:
            tell(f"{folder} was left by a run that was killed: removed")
            assert isinstance(folder, ObjectPlace)
            self.remove(folder)

    def remove(self, folder: ObjectPlace) -> None:
        """The marker of an unfinished partition goes last."""
        keys = [entry.path for entry in self._store.entries(folder.key)]
        self._store.delete(sorted(keys, key=lambda key: key.endswith(UNFINISHED)))

    def remove_file(self, file: ObjectPlace) -> None:
        self._store.delete([file.key])

    @contextmanager
    def work_dirs(self, wave: Sequence[Candidate]) -> Iterator[WorkDirs]:
        job = self._out / (WORK_PREFIX + secrets.token_hex(6))
        try:
            yield {c.directory.path: job / c.directory.name for c in wave}
        finally:
            self.remove(job)

    def transfers(self, done: Finished, work_dir: Place) -> list[Transfer]:
        """Tasks upload files from another store or a disk; the store copies its own at the commit."""
        gone = set(deleted_by_retention(done))
        checks = {segment.file.path: segment.file for segment in done.carried}
        tasks = [Transfer(check=file) for file in checks.values()]
        sizes = carried_sizes(done)
        for file in carried_files(done):
            if not self._is_ours(file) and int(file.name[:20]) not in gone:
                tasks.append(Transfer(source=file, target=work_dir / file.name, size=sizes.get(file.name)))
                self._copied[file] = work_dir / file.name
        return tasks

    def _is_ours(self, file: Place) -> bool:
        return isinstance(file, ObjectPlace) and (file.bucket, file.access) == (self._out.bucket, self._out.access)

    def commit(self, done: Finished, work_dir: Place, *, chosen: bool) -> int:
        del chosen
        folder = self._out / done.candidate.directory.name
        gone = set(deleted_by_retention(done))
        copies: list[tuple[Place, ObjectPlace]] = [
            (attempt_path(work_dir, output.base, suffix, output.attempt), folder / numbered(output.base, suffix))
            for output in done.outputs
            for suffix in output.suffixes
            if output.base not in gone
        ]
        copies += [
            (self._copied.get(file, file), folder / file.name)
            for file in carried_files(done)
            if int(file.name[:20]) not in gone
        ]
        rest = accompanying_files(done)
        copies += [(file, folder / file.name) for file in rest]
        reach(f"begin {folder.name}")
        write_whole(folder / UNFINISHED, b"")
        reach(f"copy {folder.name}")
        self.copy_all(copies)
        snapshot = numbered(done.candidate.survey.log_end, SNAPSHOT)
        entries = done.candidate.survey.producers.entries()
        if entries and snapshot not in {file.name for file in rest}:
            write_whole(folder / snapshot, snapshot_bytes(entries))
        if len(gone) == len(done.bases):
            for suffix in (INDEX, TIME_INDEX, LOG):
                write_whole(folder / numbered(done.candidate.survey.log_end, suffix), b"")
        self._signed.append(folder)
        start = start_after(done, sorted(gone))
        note_new(self._book, done, start)
        return start

    @contextmanager
    def unfinished(self, folder: ObjectPlace) -> Iterator[None]:
        """The marker stays if the block fails: the next run removes all of it."""
        write_whole(folder / UNFINISHED, b"")
        yield
        self._store.delete([(folder / UNFINISHED).key])

    def copy_all(self, copies: Sequence[tuple[Place, ObjectPlace]]) -> None:
        with Threads(COPIES_AT_ONCE) as pool:
            list(pool.map(lambda copy: copy_whole(*copy), copies))

    def settle(self) -> None:
        """Checkpoints, then the record, then the markers go: a folder without a marker is complete in every respect."""
        reach("write checkpoints")
        self._book.write()
        if not self._signed:
            return
        reach("write the record")
        there = self.listed()
        self._record.note(there / folder.name for folder in self._signed)
        reach("finish")
        self._store.delete([(folder / UNFINISHED).key for folder in self._signed])
        self._signed = []

    def complete(
        self, left: Sequence[PartitionDir], everything: Sequence[PartitionDir], engine: Engine, *, failed: bool
    ) -> None:
        if failed:
            return
        for directory in left:
            folder = self._out / directory.name
            reach(f"bring {folder.name}")
            write_whole(folder / UNFINISHED, b"")
            files = _files_below(directory.path)
            for error in run_transfers([Transfer(source=file, target=folder / name) for name, file in files], engine):
                if error is not None:
                    raise error
            self._signed.append(folder)
        note_untouched(self._book, left)
        self.settle()
        names = [checkpoints.META_PROPERTIES, checkpoints.BOOTSTRAP]
        names += [checkpoints.CLEAN_SHUTDOWN] if self._clean_stop else []
        for log_dir in sorted({directory.log_dir for directory in everything}, key=str):
            self.copy_all([(log_dir / name, self._out / name) for name in names if (log_dir / name).exists()])
        reach("remove the record")
        self.remove_file(self._out / OUTPUT_RECORD)


def _files_below(folder: Place, prefix: str = "") -> Iterator[tuple[str, Place]]:
    for child in children(folder):
        if child.name.startswith(WORK_PREFIX):
            continue
        if child.is_dir():
            yield from _files_below(child, f"{prefix}{child.name}/")
        else:
            yield prefix + child.name, child


def _holder(content: bytes) -> Mapping[str, object]:
    """Empty if the lock is not ours."""
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _named(holder: Mapping[str, object]) -> str:
    return f"process {holder['process']} on {holder['host']}" if {"process", "host"} <= holder.keys() else "somebody"


def _is_dead(holder: Mapping[str, object]) -> bool:
    """Whether it was a process of this machine that has ended; about other machines nothing is known."""
    process = holder.get("process")
    if holder.get("host") != socket.gethostname() or not isinstance(process, int):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
