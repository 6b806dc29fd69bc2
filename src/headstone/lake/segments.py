"""Extents as the segment files of a log directory, for the shared pipeline: laid down before it runs, found again behind it.

An extent is one segment, named by where its span begins. Offsets in a segment are 32 bits above its base, those of a span are
not: one that is wider, because of a gap in front of its records or within them, is as many segments as that takes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from headstone.lake.spans import SPREAD_MAX, Span
from headstone.log.directory import LOG, numbered
from headstone.log.reading import chunk_of


def lay_down(directory: Path, span: Span, data: bytes) -> None:
    """The batches of one extent."""
    if not is_wide(span) or not data:
        (directory / numbered(span.start, LOG)).write_bytes(data)
        return
    batches = chunk_of(str(directory), data).batches
    start, base = 0, int(batches["base_offset"][0])
    for batch in batches:
        if batch["last_offset"] - base > SPREAD_MAX:
            (directory / numbered(base, LOG)).write_bytes(data[start : int(batch["position"])])
            start, base = int(batch["position"]), int(batch["base_offset"])
    (directory / numbered(base, LOG)).write_bytes(data[start:])


def files_of(directory: Path, span: Span) -> list[tuple[int, Path]]:
    """The segments of an extent and their bases, in order; one that lost everything may be gone."""
    if not is_wide(span):
        path = directory / numbered(span.start, LOG)
        return [(span.start, path)] if path.exists() else []
    found = sorted((int(path.stem), path) for path in directory.glob("*" + LOG))
    return [(base, path) for base, path in found if span.start <= base < span.end]


def oldest_stamp(stamps: npt.NDArray[np.int64]) -> int:
    """As `commits.oldest`, of millions."""
    known = stamps[stamps > 0]
    return int(known.min()) if known.size else -1


def is_wide(span: Span) -> bool:
    return span.end - span.start > SPREAD_MAX
