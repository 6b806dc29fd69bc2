"""Which offset a record of the lake has in a restored topic: runs of offsets that follow each other on both sides.

A file of one JSON document. It is written when a restore begins, with all that the next one must know to go on, and again when
it has ended, with the map. Knows nothing of clusters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from headstone.errors import UsageError
from headstone.lake.offset_runs import Runs, runs_in, translated


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    lake_id: str
    topic: str
    to_topic: str
    as_of_ms: int
    """The moment that is restored: whoever goes on restores the same."""
    starts: tuple[int, ...]
    """Where the log of each partition began in the lake."""
    bases: tuple[int, ...]
    """Where each partition of the topic ended before the first record came."""
    fingerprints: tuple[str, ...]
    """Of what the log of each partition was made of at that moment."""
    spoilt: str = ""
    """Why nobody can go on."""
    finished: bool = False
    runs: Mapping[int, Runs] = field(default_factory=dict)
    """By partition; none before it is finished."""

    def translate(self, partition: int, offset: int) -> int:
        assert self.finished, "nobody has kept the runs"
        return translated(self.runs.get(partition, Runs()), self.bases[partition], offset)

    def write(self, path: Path) -> None:
        """Whole, or as it was."""
        partial = path.with_name(path.name + ".partial")
        with open(partial, "w", encoding="utf-8") as file:
            file.writelines(self._texts())
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)

    def _texts(self) -> Iterator[str]:
        """Of the document, a chunk of runs at a time."""
        facts = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "runs"}
        yield json.dumps(facts)[:-1] + ', "runs": {'
        for i, (number, runs) in enumerate(self.runs.items()):
            yield f'{", " if i else ""}"{number}": ['
            for j, rows in enumerate(runs.chunks()):
                yield (", " if j else "") + json.dumps(rows.tolist())[1:-1]
            yield "]"
        yield "}}"


def read_map(path: Path) -> OffsetMap | None:
    """None if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        document: dict[str, Any] = json.loads(text)
        runs = {
            int(number): runs_in(np.array(some, np.int64).reshape(-1, 3))
            for number, some in document.pop("runs").items()
        }
        lists = {name: tuple(document[name]) for name in ("bases", "starts", "fingerprints")}
        return OffsetMap(**{**document, **lists}, runs=runs)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no offset map of a restore; name a file that is not there yet") from error
