"""What an unfinished output of `compact --out` says about itself: which command makes it, and what is done, from which input.

It is a file at the top of the output, from before the first partition until the last. The same command finds it and continues;
another one is refused. It tells our output from a user's directory: a folder that it does not name, or that has changed since,
is never touched. Knows nothing about disks and stores beyond their places.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstone.errors import UsageError
from headstone.log import checkpoints
from headstone.log.checkpoints import replace_whole
from headstone.log.directory import UNFINISHED, PartitionDir
from headstone.storage.places import Place, children

OUTPUT_RECORD = ".headstone-output"
VERSION = 1
ANEW = "name another output directory, or delete this one"

Command = Mapping[str, Any]
"""The parts of a command that decide about the bytes of its output, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DonePartition:
    """Digests of the input from which it was made, and of the folder that it became."""

    made_of: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a run finds of an earlier one. Everything else of the input is still to be done."""

    finished: frozenset[str]
    outdated: tuple[str, ...]
    """Done by the earlier run, from an input that has changed since: to be removed and done again."""


class OutputRecord:
    def __init__(self, out: Place, command: Command) -> None:
        self._file = out / OUTPUT_RECORD
        self._command = json.loads(json.dumps(command))
        self._made_of: dict[str, str] = {}
        self._done: dict[str, DonePartition] = {}

    def resume(self, there: Place, everything: Sequence[PartitionDir]) -> Resumption:
        """`there`: the output as it is now. Refuses an output that another command has begun, and a folder that was changed."""
        self._made_of = {directory.name: state_of(directory) for directory in everything}
        self._done = {
            name: done for name, done in self._earlier(there / OUTPUT_RECORD).items() if _is_whole(there / name)
        }
        for name, done in self._done.items():
            if done.folder != shape_of(there / name):
                raise UsageError(
                    f"{there / name} is not as an earlier run of this command left it; move it away, or {ANEW}"
                )
        outdated = tuple(
            name for name, done in sorted(self._done.items()) if self._made_of.get(name, done.made_of) != done.made_of
        )
        return Resumption(finished=frozenset(self._done) - frozenset(outdated), outdated=outdated)

    def begin(self, resumption: Resumption) -> None:
        """From here on, a run that ends early can be continued."""
        self._done = {name: self._done[name] for name in sorted(resumption.finished)}
        self._write()

    def note(self, folders: Iterable[Place]) -> None:
        """These folders are complete, and so are their entries in the checkpoints."""
        for folder in folders:
            self._done[folder.name] = DonePartition(made_of=self._made_of[folder.name], folder=shape_of(folder))
        self._write()

    @property
    def has_any(self) -> bool:
        return bool(self._done)

    def _write(self) -> None:
        done = {name: {"made_of": entry.made_of, "folder": entry.folder} for name, entry in sorted(self._done.items())}
        document = {"version": VERSION, "command": self._command, "done": done}
        replace_whole(self._file, json.dumps(document, indent=1).encode())

    def _earlier(self, file: Place) -> dict[str, DonePartition]:
        if not file.exists():
            return {}
        try:
            document = json.loads(file.read_bytes())
            done = {name: DonePartition(**entry) for name, entry in document["done"].items()}
            version, command = document["version"], dict(document["command"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"{file} cannot be read, so the progress of this output is unknown; {ANEW}") from error
        if done and (version, command) != (VERSION, self._command):
            names = sorted(
                key for key in command.keys() | self._command.keys() if command.get(key) != self._command.get(key)
            )
            raise UsageError(
                f"{file.parent} is the unfinished output of another command (different: {', '.join(names) or 'version'}): "
                f"run that one again, {ANEW}"
            )
        return done


def _is_whole(folder: Place) -> bool:
    return folder.is_dir() and not (folder / UNFINISHED).exists()


def refuse_twice(directories: Sequence[PartitionDir]) -> None:
    """No partition of an output has two origins."""
    names = Counter(directory.name for directory in directories)
    twice = sorted(name for name, times in names.items() if times > 1)
    if twice:
        raise UsageError(
            f"{twice[0]} was found in more than one input; compact the replicas one log directory at a time"
        )


def refuse_existing(out: Place, directories: Sequence[PartitionDir], resumption: Resumption) -> None:
    """Overwrites nothing but what an earlier run of the same command has left."""
    own = {*resumption.finished, *resumption.outdated}
    for folder in (out / directory.name for directory in directories if directory.name not in own):
        if folder.exists() and not (folder / UNFINISHED).exists():
            raise UsageError(f"{folder} already exists; name an empty directory")


def state_of(directory: PartitionDir) -> str:
    """Of an input: a file with another name, size or time is another state, and so are other checkpoint entries."""
    rows = []
    for file in _files(directory.path):
        try:
            status = file.stat()
        except FileNotFoundError:  # a running broker has just removed it
            continue
        tag = status.st_ino if isinstance(status.st_ino, str) else ""
        rows.append((file.name, status.st_size, status.st_mtime_ns, tag))
    return _digest([rows, *_checkpoints_of(directory)])


def _checkpoints_of(directory: PartitionDir) -> list[object]:
    try:
        return [
            checkpoints.read_offsets(directory.log_dir / file).get(directory.topic_partition)
            for file in (checkpoints.HIGH_WATERMARK, checkpoints.LOG_START, checkpoints.CLEANER)
        ]
    except UsageError as error:  # reported when the partition is surveyed
        return [str(error)]


def shape_of(folder: Place) -> str:
    """Of an output: names and sizes."""
    return _digest([(file.name, file.stat().st_size) for file in _files(folder) if file.name != UNFINISHED])


def _files(folder: Place) -> list[Place]:
    return [child for child in children(folder) if not child.is_dir()]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
