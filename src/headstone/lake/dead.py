"""Dead records: superseded ones that stay in their object for a while and that nobody is shown any more.

Where a compaction takes few records from an extent it lists their offsets instead of writing all the others once more. The
list lies in an object of its own; every reader leaves out what is in it, and whoever writes the extent again, for whatever
reason, writes it without them. When too many are dead, compaction rewrites the extent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headstone.lake.keyindex import CHECKSUM_BYTES, Offsets, verified, with_checksum
from headstone.log.columns import OFFSET, decode
from headstone.log.reading import Chunk, Payloads
from headstone.retention.keys import SUPERSEDED, UNMAPPED
from headstone.retention.rewrite import Rewriter
from headstone.retention.transactions import DATA
from headstone.retention.verdicts import NOT_KEPT, REASONS, judge

DEAD_SHARE_MAX = 0.3
"""Of an extent's records. Iceberg rewrites a file for the same share of deleted rows."""
OFFSET_BYTES = 8
NONE: Offsets = np.zeros(0, dtype=np.int64)


def dead_bytes(dead: int) -> int:
    """What the list takes; 0 if there is none."""
    return dead * OFFSET_BYTES + CHECKSUM_BYTES if dead else 0


def dead_section(offsets: Offsets) -> bytes:
    return with_checksum(offsets.astype("<i8").tobytes())


def dead_of(section: bytes) -> Offsets | None:
    """None if the checksum is wrong."""
    data = verified(section)
    return None if data is None else np.frombuffer(data, dtype="<i8").astype(np.int64)


def is_live(offsets: Offsets, dead: Offsets) -> npt.NDArray[np.bool_]:
    """`dead` is sorted."""
    if dead.size == 0:
        return np.ones(offsets.size, dtype=np.bool_)
    at = np.minimum(np.searchsorted(dead, offsets), dead.size - 1)
    return np.asarray(dead[at] != offsets)


def offsets_of(chunk: Chunk) -> Offsets:
    """Of all records, in order."""
    runs = decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), Payloads())
    return np.concatenate([NONE, *(spans[:, OFFSET] for _, spans in runs)])


def without_dead(chunk: Chunk, dead: Offsets) -> bytes:
    """The batches as if the dead records had been compacted away; those that lose nothing are the same bytes."""
    batches = chunk.batches
    counts = batches["count"].astype(np.int64)
    states = np.full(int(counts.sum()), UNMAPPED, dtype=np.uint8)
    done = 0
    for _, spans in decode(chunk, np.flatnonzero(counts > 0), Payloads()):
        states[done : done + len(spans)][~is_live(spans[:, OFFSET], dead)] = SUPERSEDED
        done += len(spans)
    ordinals, roles = np.cumsum(counts) - counts, np.full(batches.size, DATA, dtype=np.uint8)
    actions, horizons = np.zeros(batches.size, dtype=np.uint8), np.full(batches.size, -1, dtype=np.int64)
    kept, reasons = np.full(batches.size, NOT_KEPT, dtype=np.uint8), np.zeros(len(REASONS), dtype=np.int64)
    judge(batches, roles, kept, ordinals, states, 0, -1, 0, 0, actions, horizons, reasons)
    return bytes(Rewriter(now_ms=0, plain_below=0).rewrite(chunk, actions, roles, horizons, states, ordinals).data)
