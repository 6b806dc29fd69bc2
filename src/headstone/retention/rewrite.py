"""Applies verdicts to bytes: a chunk of batches in, the chunk of the new log out.

Batches that lose nothing are copied byte for byte. Rebuilt ones keep base offset, last offset, producer, epoch, sequence and
leader epoch. Record timestamps never change, even if the base timestamp does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.errors import CorruptLog
from headstone.log import codecs
from headstone.log.intrinsics import copy_bytes, crc32c, kernel
from headstone.log.kernels import put_be, put_header, read_varint, varint_size, write_varint
from headstone.log.layout import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from headstone.log.reading import Bytes, Chunk, Payloads
from headstone.retention.transactions import COMMITTED, Roles
from headstone.retention.verdicts import COPY, COPY_AS_PLAIN, EMPTY, REBUILD, horizon_passed, survives

BUFFER_BYTES = 64 << 20
GROWTH_PER_RECORD = 20
"""A record may grow when its timestamp delta is taken against a horizon: ten bytes of delta and the longer length."""


# How a record section loses records without being encoded again.
#
# A record begins with its length, then a byte of attributes, then its timestamp as a difference to the batch's base
# timestamp, then its offset as a difference to the base offset, key, value, headers; all numbers are varints. The
# base offset never changes, so everything behind the timestamp stays as it is, and so does the timestamp unless the
# base does. Then most of a section is copied in long runs: `pending` is where the bytes begin that were kept but not
# copied yet. They are copied when a record goes, when a record has to change, and at the end. A section that loses
# one record of a thousand is two copies.
#
# The base timestamp changes in two cases. Kafka keeps a batch's delete horizon in that field, so a batch that is
# stamped (horizon >= 0) has the horizon for its base. Otherwise the base is the timestamp of the first record that is
# left, as a producer would have written it, and that differs if the first record went, or if the old base was a
# horizon. Then each record is written anew up to its timestamp, whose varint may be longer (GROWTH_PER_RECORD bounds
# how much), and copied from there. With LogAppendTime the batch's max timestamp is every record's.
#
# The loop trusts nothing: it runs over bytes that were indexed before, by another read. Lengths that leave the
# section mean that the file has changed since, and the answer is -1.
@kernel
def _squeeze(data: Any, start: int, end: int, batch: Any, states: Any, ordinal: int, keep_all: Any, expired: Any,
             horizon: Any, out: Any, written: int) -> Any:  # fmt: skip
    """Survivors of one record section to out[written:]: (end, records, base timestamp, max timestamp).

    end is -1 if the section is not the one that was indexed: the file changed in between.
    """
    i = start
    kept = 0
    base = horizon
    latest = np.int64(-1)
    pending = i
    for r in range(batch.count):
        record_at = i
        size, i = read_varint(data, i, end)
        if i < 0 or size < 0 or size > end - i:
            return -1, 0, base, latest
        stop = i + size
        if not keep_all and not survives(states[ordinal + r], expired):
            copy_bytes(out, written, data, pending, record_at - pending)
            written += record_at - pending
            pending = stop
            i = stop
            continue
        delta, rest = read_varint(data, i + 1, stop)
        timestamp = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else batch.base_timestamp + delta
        if kept == 0 and horizon < 0:
            base = timestamp
        if kept == 0 or timestamp > latest:
            latest = timestamp
        kept += 1
        if timestamp - base != delta:
            copy_bytes(out, written, data, pending, record_at - pending)
            written += record_at - pending
            written = write_varint(out, written, 1 + varint_size(timestamp - base) + (stop - rest))
            out[written] = data[i]
            written = write_varint(out, written + 1, timestamp - base)
            copy_bytes(out, written, data, rest, stop - rest)
            written += stop - rest
            pending = stop
        i = stop
    copy_bytes(out, written, data, pending, i - pending)
    return written + (i - pending), kept, base, latest


@kernel
def _rebuilt_attributes(batch: Any, horizon: Any, plain: Any) -> Any:
    attributes = batch.attributes & ~DELETE_HORIZON
    if horizon >= 0:
        attributes |= DELETE_HORIZON
    if plain:
        attributes &= ~TRANSACTIONAL
    return attributes


@kernel
def _max_timestamp(batch: Any, latest: Any) -> Any:
    return batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else latest


@kernel
def squeeze_sections(data: Any, starts: Any, ends: Any, chosen: Any, batches: Any, states: Any, ordinals: Any,
                     horizons: Any, now_ms: Any, out: Any, spans: Any, heads: Any) -> Any:  # fmt: skip
    """Survivors of decompressed sections, back to back in out; spans are (start, end), heads (count, base, max)."""
    written = 0
    for k in range(chosen.size):
        i = chosen[k]
        batch = batches[i]
        expired = horizon_passed(batch, now_ms)
        control = batch.attributes & CONTROL != 0
        spans[k, 0] = written
        written, heads[k, 0], heads[k, 1], heads[k, 2] = _squeeze(
            data, starts[k], ends[k], batch, states, ordinals[i], control, expired, horizons[i], out, written
        )
        if written < 0:
            return False
        spans[k, 1] = written
    return True


@kernel
def emit(data: Any, batches: Any, actions: Any, roles: Any, horizons: Any, states: Any, ordinals: Any, now_ms: Any,
         plain_below: Any, packed: Any, packed_spans: Any, packed_heads: Any, out: Any, sizes: Any, lasts: Any,
         stamps: Any, counts: Any) -> Any:  # fmt: skip
    """Writes the new chunk: (bytes, batches written). sizes, lasts, stamps, counts describe each batch."""
    written = 0
    n = 0
    next_packed = 0
    for i in range(batches.size):
        batch = batches[i]
        action = actions[i]
        start = written
        latest = batch.max_timestamp
        count = np.int64(0)
        plain = roles[i] == COMMITTED and batch.last_offset < plain_below
        if action == COPY or action == COPY_AS_PLAIN:
            copy_bytes(out, written, data, batch.position, batch.size)
            written += batch.size
            count = np.int64(batch.count)
            if action == COPY_AS_PLAIN:
                out[start + ATTRIBUTES_AT + 1] &= np.uint8(0xFF & ~TRANSACTIONAL)
                put_be(out, start + CRC_AT, crc32c(out, start + ATTRIBUTES_AT, written), 4)
        elif action == EMPTY:
            attributes = batch.attributes & (LOG_APPEND_TIME | CONTROL | (0 if plain else TRANSACTIONAL))
            written += HEADER_BYTES
            put_header(out, start, batch, HEADER_BYTES, attributes, -1, batch.max_timestamp, 0)
        elif action == REBUILD:
            if batch.codec == 0:
                expired = horizon_passed(batch, now_ms)
                control = batch.attributes & CONTROL != 0
                written, count, base, latest = _squeeze(
                    data, batch.position + HEADER_BYTES, batch.position + batch.size, batch, states, ordinals[i],
                    control, expired, horizons[i], out, written + HEADER_BYTES,
                )  # fmt: skip
                if written < 0:
                    return -1, n
            else:
                span = packed_spans[next_packed]
                copy_bytes(out, written + HEADER_BYTES, packed, span[0], span[1] - span[0])
                written += HEADER_BYTES + span[1] - span[0]
                count = packed_heads[next_packed, 0]
                base = packed_heads[next_packed, 1]
                latest = packed_heads[next_packed, 2]
                next_packed += 1
            latest = _max_timestamp(batch, latest)
            attributes = _rebuilt_attributes(batch, horizons[i], plain)
            put_header(out, start, batch, written - start, attributes, base, latest, count)
        if written > start:
            sizes[n] = written - start
            lasts[n] = batch.last_offset
            stamps[n] = latest
            counts[n] = count
            n += 1
    return written, n


@dataclass(slots=True, kw_only=True)
class RewrittenChunk:
    """The new bytes of one chunk and what an index needs of each batch in it."""

    data: Bytes
    sizes: npt.NDArray[np.int64]
    lasts: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @property
    def records(self) -> int:
        return int(self.counts.sum())


class Rewriter:
    """Rewrites chunks one after the other into reused buffers: a result is valid until the next call."""

    def __init__(self, *, now_ms: int, plain_below: int) -> None:
        self._now_ms = now_ms
        self._plain_below = plain_below
        self._payloads = Payloads()
        self._out = np.zeros(0, dtype=np.uint8)
        self._scratch = np.zeros(0, dtype=np.uint8)

    def rewrite(self, chunk: Chunk, actions: npt.NDArray[np.uint8], roles: Roles, horizons: npt.NDArray[np.int64],
                states: npt.NDArray[np.uint8], ordinals: npt.NDArray[np.int64]) -> RewrittenChunk:  # fmt: skip
        batches = chunk.batches
        chosen = np.flatnonzero((actions == REBUILD) & (batches["codec"] != 0))
        packed, spans, heads = self._repacked(chunk, chosen, horizons, states, ordinals)
        plain = batches["count"][(actions == REBUILD) & (batches["codec"] == 0)]
        grown = int(plain.sum()) * GROWTH_PER_RECORD
        self._out = _with_room(self._out, chunk.data.size + grown + int(packed.size) + HEADER_BYTES)
        sizes, lasts, stamps, counts = (np.zeros(batches.size, dtype=np.int64) for _ in range(4))
        size, n = emit(
            chunk.data, batches, actions, roles, horizons, states, ordinals, self._now_ms, self._plain_below,
            packed, spans, heads, self._out, sizes, lasts, stamps, counts,
        )  # fmt: skip
        if size < 0:
            raise changed(chunk.path, chunk.position, int(chunk.batches[0]["base_offset"]))
        return RewrittenChunk(
            data=self._out[:size], sizes=sizes[:n], lasts=lasts[:n], stamps=stamps[:n], counts=counts[:n]
        )

    def _repacked(self, chunk: Chunk, chosen: npt.NDArray[np.int64], horizons: npt.NDArray[np.int64],
                  states: npt.NDArray[np.uint8], ordinals: npt.NDArray[np.int64]) -> tuple[Any, Any, Any]:  # fmt: skip
        """Rebuilt sections of compressed batches, compressed again by their own codec."""
        spans = np.zeros((chosen.size, 2), dtype=np.int64)
        heads = np.zeros((chosen.size, 3), dtype=np.int64)
        if not chosen.size:
            return np.zeros(0, dtype=np.uint8), spans, heads
        # One buffer, because zstd's results keep worst-case room for as long as they live.
        packed = bytearray()
        done = 0
        for some, data, starts, ends in self._payloads.runs(chunk, chosen):
            run = slice(done, done + some.size)
            done += some.size
            room = int((ends - starts).sum()) + int(chunk.batches["count"][some].sum()) * GROWTH_PER_RECORD
            self._scratch = _with_room(self._scratch, room)
            if not squeeze_sections(
                data, starts, ends, some, chunk.batches, states, ordinals, horizons, self._now_ms, self._scratch,
                spans[run], heads[run],
            ):  # fmt: skip
                raise changed(chunk.path, chunk.position, int(chunk.batches[0]["base_offset"]))
            self._pack(chunk, some, spans[run], packed)
        return np.frombuffer(packed, dtype=np.uint8), spans, heads

    def _pack(self, chunk: Chunk, some: npt.NDArray[np.int64], spans: Any, packed: bytearray) -> None:
        """Compresses the squeezed sections to the end of packed; spans then point into it."""
        view = self._scratch.data
        for k in range(some.size):
            codec = int(chunk.batches[some[k]]["attributes"]) & CODEC_MASK
            start = len(packed)
            packed += codecs.compress(codec, view[int(spans[k, 0]) : int(spans[k, 1])])
            spans[k] = start, len(packed)


def _with_room(buffer: Bytes, size: int) -> Bytes:
    """A buffer of at least that size; an oversized one is released when it is no longer needed."""
    if size <= buffer.size <= max(4 * size, BUFFER_BYTES):
        return buffer
    return np.zeros(size if size > BUFFER_BYTES else size + size // 4, dtype=np.uint8)


def changed(path: str, position: int, offset: int) -> CorruptLog:
    return CorruptLog(
        file=path,
        position=position,
        offset=offset,
        problem="the file changed while it was read",
        advice="stop whatever writes to this directory and run again",
    )
