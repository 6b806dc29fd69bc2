"""Tombstones and transaction markers in the batches of a log: where they are, and what is left of them.

The only statement of what a replica can miss for good. Batches in, offsets out; the caller reads them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headstone.log.columns import OFFSET, VALUE_SIZE, decode
from headstone.log.layout import CONTROL
from headstone.log.reading import Chunk, Payloads

TOMBSTONE, MARKER, EMPTIED = range(3)
"""An emptied control batch is what a cleaner leaves of a marker."""


def deletions_in(chunk: Chunk) -> npt.NDArray[np.int64]:
    """Rows of offset and kind, in offset order. Raises CorruptLog if a batch cannot be read."""
    is_control = (chunk.batches["attributes"] & CONTROL) != 0
    control = chunk.batches[is_control]
    rows = [np.stack([control["last_offset"], np.where(control["count"] > 0, MARKER, EMPTIED)], axis=1)]
    for _, spans in decode(chunk, np.flatnonzero(~is_control), Payloads()):
        tombstones = spans[spans[:, VALUE_SIZE] < 0, OFFSET]
        rows.append(np.stack([tombstones, np.full(tombstones.size, TOMBSTONE)], axis=1))
    offsets = np.concatenate(rows).astype(np.int64)
    return offsets[np.argsort(offsets[:, 0], kind="stable")]
