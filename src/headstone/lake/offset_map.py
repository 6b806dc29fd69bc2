"""Which offset a record of the lake has in a restored topic: runs of offsets that follow each other on both sides.

A file of one JSON document. It is written when a restore begins, with all that the next one must know to go on, and again when
it has ended, with the map. Knows nothing of clusters.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headstone.errors import UsageError

Run = tuple[int, int, int]
"""First offset in the lake, first offset in the topic, how many follow each other on both sides."""


def runs_of(offsets: Iterable[int], base: int) -> tuple[Run, ...]:
    """Of records that were sent one after the other, the first of them to the offset `base`."""
    runs: list[list[int]] = []
    for position, offset in enumerate(offsets, start=base):
        if runs and offset == runs[-1][0] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([offset, position, 1])
    return tuple((first, position, count) for first, position, count in runs)


def translated(runs: tuple[Run, ...], base: int, offset: int) -> int:
    """Where whoever stood at this offset of the lake goes on: at the first record that is not below it."""
    i = bisect_right(runs, offset, key=lambda run: run[0]) - 1
    if i < 0:
        return base
    first, position, count = runs[i]
    return position + min(offset - first, count)


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
    finished: bool = False
    runs: Mapping[int, tuple[Run, ...]] = field(default_factory=dict)
    """By partition."""

    def translate(self, partition: int, offset: int) -> int:
        return translated(self.runs.get(partition, ()), self.bases[partition], offset)

    def write(self, path: Path) -> None:
        """Whole, or as it was."""
        document = {**asdict(self), "runs": {str(number): some for number, some in self.runs.items()}}
        partial = path.with_name(path.name + ".partial")
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def read_map(path: Path) -> OffsetMap | None:
    """None if there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        document: dict[str, Any] = json.loads(text)
        runs = {
            int(number): tuple((run[0], run[1], run[2]) for run in some)
            for number, some in document.pop("runs").items()
        }
        return OffsetMap(
            **{**document, "bases": tuple(document["bases"]), "starts": tuple(document["starts"])}, runs=runs
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no offset map of a restore; name a file that is not there yet") from error
