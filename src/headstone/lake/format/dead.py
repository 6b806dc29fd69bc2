"""Dead records: superseded records that stay in their object for a while and that readers skip.

Where a compaction removes only a few records from an extent, it lists their offsets instead of rewriting all the others. The
list lies in an object of its own. Every reader leaves out the listed records, and every job that rewrites the extent, for
whatever reason, drops them. When too many are dead, compaction rewrites the extent.

A list is coded after Elias and Fano (P. Elias, JACM 21(2), 1974), with whole bytes for the low part of an offset:

    low bytes of every offset (0 to 7 each)  high parts, one bit set for each offset (bits)  CRC-32C (4)

The high part of the i-th offset is the position of the i-th set bit, minus i. The number of low bytes follows from the number
of offsets and the width of the extent. So does the length of the list, which is stored nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headstone import units
from headstone.errors import CorruptLog
from headstone.lake.format.keyindex import CHECKSUM_BYTES, Offsets, verified, with_checksum
from headstone.lake.format.spans import Span
from headstone.log.columns import OFFSET, decode
from headstone.log.reading import Chunk, Payloads
from headstone.retention.keys import SUPERSEDED, UNMAPPED
from headstone.retention.rewrite import Rewriter
from headstone.retention.transactions import DATA
from headstone.retention.verdicts import NOT_KEPT, REASONS, judge

OFFSET_BYTES = 8
NONE: Offsets = np.zeros(0, dtype=np.int64)


def dead_bytes(dead: int, span: Span) -> int:
    """Size of the list for `dead` offsets of an extent with this span; 0 if there is none."""
    if not dead:
        return 0
    low = _low_bytes(dead, span)
    return dead * low + _high_bytes(dead, span, low) + CHECKSUM_BYTES


def dead_section(offsets: Offsets, span: Span) -> bytes:
    """`offsets` are in order and all in the span."""
    low = _low_bytes(offsets.size, span)
    above = (offsets - span.start).astype("<u8")
    bits = np.zeros(_high_bits(offsets.size, span, low), dtype=np.uint8)
    bits[(above >> 8 * low).astype(np.int64) + np.arange(offsets.size)] = 1
    lows = above.view(np.uint8).reshape(-1, OFFSET_BYTES)[:, :low]
    return with_checksum(lows.tobytes() + np.packbits(bits, bitorder="little").tobytes())


def dead_of(section: bytes, dead: int, span: Span) -> Offsets | None:
    """Offsets in order. None if the checksum is wrong, or if this is not a list of `dead` offsets."""
    data = verified(section)
    if data is None or len(section) != dead_bytes(dead, span):
        return None
    low = _low_bytes(dead, span)
    above = np.zeros((dead, OFFSET_BYTES), dtype=np.uint8)
    above[:, :low] = np.frombuffer(data, dtype=np.uint8, count=dead * low).reshape(dead, low)
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8, offset=dead * low), bitorder="little")
    ones = np.flatnonzero(bits)
    if ones.size != dead:
        return None
    high = (ones - np.arange(dead)).astype(np.int64) << 8 * low
    return span.start + above.view("<u8")[:, 0].astype(np.int64) + high


def _low_bytes(dead: int, span: Span) -> int:
    """The number of low bytes that makes the list shortest."""
    return min(range(OFFSET_BYTES), key=lambda low: dead * low + _high_bytes(dead, span, low))


def _high_bytes(dead: int, span: Span, low: int) -> int:
    return (_high_bits(dead, span, low) + 7) // 8


def _high_bits(dead: int, span: Span, low: int) -> int:
    return dead + (span.end - span.start - 1 >> 8 * low)


def is_live(offsets: Offsets, dead: Offsets) -> npt.NDArray[np.bool_]:
    """`dead` is sorted."""
    if dead.size == 0:
        return np.ones(offsets.size, dtype=np.bool_)
    places = np.minimum(np.searchsorted(dead, offsets), dead.size - 1)
    return np.asarray(dead[places] != offsets)


def merged(first: Offsets, second: Offsets) -> Offsets:
    """Both arguments are sorted and without repetition; so is the result."""
    if first.size == 0 or second.size == 0:
        return first if second.size == 0 else second
    both = np.sort(np.concatenate((first, second)), kind="stable")
    return np.asarray(both[np.append(True, both[1:] != both[:-1])])


def offsets_of(chunk: Chunk) -> Offsets:
    """Offsets of all records, in order."""
    runs = decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), Payloads())
    return np.concatenate([NONE, *(spans[:, OFFSET] for _, spans in runs)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Living:
    """The batches of an extent without its dead records."""

    data: bytes
    records: int
    newest_ms: int


def rewriter() -> Rewriter:
    """For `living`. A job that writes many extents reuses one, with its buffers. Stamps nothing, makes nothing plain."""
    return Rewriter(now_ms=0, plain_below=0)


def living(chunk: Chunk, live: npt.NDArray[np.bool_], rewriter: Rewriter) -> Living:
    """The batches as if the dead records had been compacted away. A batch that loses nothing keeps its bytes.

    `live` covers all records, in order, as in the list of keys."""
    batches = chunk.batches
    counts = batches["count"].astype(np.int64)
    if live.size != int(counts.sum()):
        raise CorruptLog(
            file=chunk.path, position=0, offset=int(batches["base_offset"][0]),
            problem=f"{units.count(int(counts.sum()), 'record')}, but {live.size} in the list of keys",
        )  # fmt: skip
    states = np.where(live, np.uint8(UNMAPPED), np.uint8(SUPERSEDED))
    ordinals, roles = np.cumsum(counts) - counts, np.full(batches.size, DATA, dtype=np.uint8)
    actions, horizons = np.zeros(batches.size, dtype=np.uint8), np.full(batches.size, -1, dtype=np.int64)
    kept, reasons = np.full(batches.size, NOT_KEPT, dtype=np.uint8), np.zeros(len(REASONS), dtype=np.int64)
    judge(batches, roles, kept, ordinals, states, 0, -1, 0, 0, actions, horizons, reasons)
    new = rewriter.rewrite(chunk, actions, roles, horizons, states, ordinals)
    stamps = new.stamps[new.counts > 0]
    return Living(data=bytes(new.data), records=new.records, newest_ms=int(stamps.max(initial=-1)))


def without_dead(chunk: Chunk, dead: Offsets) -> bytes:
    """As `living`, for callers without a list of keys."""
    return living(chunk, is_live(offsets_of(chunk), dead), rewriter()).data
