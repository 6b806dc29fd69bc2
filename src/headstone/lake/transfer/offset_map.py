"""Which offset a record of the lake has in a restored topic: runs of offsets that are consecutive on both sides.

A file of one JSON document. It is written when a restore begins, with all that the next run needs to continue, and again when
the restore has ended, with the map. Knows nothing about clusters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from headstone.errors import UsageError
from headstone.lake.transfer.offset_runs import Rows, Runs, packed_runs, translated
from headstone.storage.durable import sync_directory

CHARACTERS_AT_ONCE = 1 << 20
"""Read from a file at once: some tens of thousands of runs."""
RUNS = ', "runs": {'
"""Comes after all other facts. Inside a text of theirs the quotes would be escaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    lake_id: str
    topic: str
    to_topic: str
    as_of_ms: int
    """The moment that is restored: the next run restores the same."""
    starts: tuple[int, ...]
    """Where the log of each partition began in the lake."""
    bases: tuple[int, ...]
    """Where each partition of the topic ended before the first record came."""
    fingerprints: tuple[str, ...]
    """Of what the log of each partition consisted of at that moment."""
    not_resumable: str = ""
    """Why it cannot be continued; empty if it can."""
    finished: bool = False
    runs: Mapping[int, Runs] = field(default_factory=dict)
    """By partition; empty until the restore is finished."""

    @property
    def partitions(self) -> range:
        """Those that were restored."""
        return range(len(self.bases))

    def translate(self, partition: int, offset: int) -> int:
        assert self.finished, "nobody has kept the runs"
        return translated(self.runs.get(partition, Runs()), self.bases[partition], offset)

    def write(self, path: Path) -> None:
        """Atomic: the whole file, or the former one."""
        partial = path.with_name(path.name + ".partial")
        with open(partial, "w", encoding="utf-8") as file:
            file.writelines(self._texts())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_directory(path.parent)

    def _texts(self) -> Iterator[str]:
        """The document in pieces, a chunk of runs at a time."""
        facts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "runs"}
        yield json.dumps(facts)[:-1] + RUNS
        for i, (number, runs) in enumerate(self.runs.items()):
            yield f'{", " if i else ""}"{number}": ['
            for j, rows in enumerate(runs.chunks()):
                yield (", " if j else "") + json.dumps(rows.tolist())[1:-1]
            yield "]"
        yield "}}"


def read_map(path: Path) -> OffsetMap | None:
    """None if there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return _map_in(_Text(file))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not an offset map; name a file that does not exist yet") from error


class _Text:
    """A document written by `OffsetMap`, read some characters at a time: there may be billions of runs."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._text = file, ""

    def up_to(self, mark: str) -> str:
        """What comes before the next mark, which is skipped."""
        while (end := self._text.find(mark)) < 0:
            self._read()
        return self._passed(end, mark)

    def begins_with(self, mark: str) -> bool:
        while len(self._text) < len(mark):
            self._read()
        return self._text.startswith(mark)

    def rows(self) -> Iterator[Rows]:
        """The rows of one list of runs, which is skipped."""
        if self.begins_with("]"):
            self._passed(0, "]")
            return
        while (end := self._text.find("]]")) < 0:
            if (whole := self._text.rfind("], ")) >= 0:
                yield _rows_in(self._passed(whole, "], "))
            self._read()
        yield _rows_in(self._passed(end, "]]"))

    def _passed(self, end: int, mark: str) -> str:
        before, self._text = self._text[:end], self._text[end + len(mark) :]
        return before

    def _read(self) -> None:
        some = self._file.read(CHARACTERS_AT_ONCE)
        if not some:
            raise ValueError("the document ends early")
        self._text += some


def _rows_in(text: str) -> Rows:
    """Rows of consecutive runs, without the last bracket."""
    return np.array(json.loads(f"[{text}]]"), np.int64).reshape(-1, 3)


def _map_in(text: _Text) -> OffsetMap:
    facts: dict[str, Any] = json.loads(text.up_to(RUNS) + "}")
    lists = {name: tuple(facts[name]) for name in ("bases", "starts", "fingerprints")}
    runs: dict[int, Runs] = {}
    while not text.begins_with("}}"):
        number = int(text.up_to('": [').rpartition('"')[2])
        runs[number] = packed_runs(text.rows())
    return OffsetMap(**{**facts, **lists}, runs=runs)
