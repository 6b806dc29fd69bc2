"""Record batches from Arrow columns, the inverse of `columns`: offsets, timestamps, keys, values and headers survive.

Spans of the columns' own buffers are encoded by compiled kernels; no record becomes a Python object. Gaps between offsets stay
gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headstone.log import codecs
from headstone.log.encoding import BatchHead, Columns, batch_bytes, encode_section
from headstone.log.intrinsics import copy_bytes, kernel
from headstone.log.kernels import varint_size, write_varint
from headstone.log.reading import Bytes, Ints

RECORDS_MAX = 4096
BYTES_MAX = 1 << 20
"""Size of a batch before compression; a single record may be larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One batch."""

    data: bytes
    base_offset: int
    last_offset: int
    records: int
    max_timestamp_ms: int
    oldest_timestamp_ms: int
    """Of its records; -1 if none has a timestamp."""


def batches_of(table: pa.RecordBatch, *, codec: int = codecs.NONE) -> Iterator[Written]:
    """Rows in offset order with `offset`, `timestamp_ms`, `log_append_time`, `key`, `value` and `headers`."""
    offsets, stamps = (table.column(name).to_numpy() for name in ("offset", "timestamp_ms"))
    appended = table.column("log_append_time").to_numpy(zero_copy_only=False)
    keys, values = binary_spans(table.column("key")), binary_spans(table.column("value"))
    pool, starts, sizes = header_sections(table.column("headers"))
    room = np.cumsum(np.maximum(keys[2], 0) + np.maximum(values[2], 0) + sizes)
    start = 0
    while start < table.num_rows:
        end = _batch_end(start, offsets, stamps, appended, room)
        rows = slice(start, end)
        columns = Columns(
            timestamp_deltas=stamps[rows] - stamps[start], offset_deltas=offsets[rows] - offsets[start],
            key_pool=keys[0], key_starts=keys[1][rows], key_sizes=keys[2][rows],
            value_pool=values[0], value_starts=values[1][rows], value_sizes=values[2][rows],
            header_pool=pool, header_starts=starts[rows], header_sizes=sizes[rows],
        )  # fmt: skip
        newest = int(stamps[rows].max())
        head = BatchHead(
            base_offset=int(offsets[start]), last_offset_delta=int(offsets[end - 1] - offsets[start]),
            base_timestamp=int(stamps[start]), max_timestamp=newest, codec=codec, log_append_time=bool(appended[start]),
        )  # fmt: skip
        data = batch_bytes(head, encode_section(columns), end - start).tobytes()
        yield Written(
            data=data, base_offset=int(offsets[start]), last_offset=int(offsets[end - 1]), records=end - start,
            max_timestamp_ms=newest, oldest_timestamp_ms=oldest_stamp(stamps[rows]),
        )  # fmt: skip
        start = end


def oldest_stamp(stamps: Ints) -> int:
    """-1 if there is none. A record without a timestamp, or with 0, counts as old as its neighbours."""
    stamped = stamps[stamps > 0]
    return int(stamped.min()) if stamped.size else -1


def _batch_end(first: int, offsets: Ints, stamps: Ints, appended: Any, room: Ints) -> int:
    """A batch has one kind of timestamp, and one timestamp if the broker set it; its deltas are 32 bits wide."""
    used = int(room[first - 1]) if first else 0
    by_size = int(np.searchsorted(room, used + BYTES_MAX, side="right"))
    by_delta = int(np.searchsorted(offsets, offsets[first] + (1 << 31), side="left"))
    end = max(first + 1, min(first + RECORDS_MAX, by_size, by_delta))
    differs = appended[first:end] != appended[first]
    if appended[first]:
        differs |= stamps[first:end] != stamps[first]
    return first + int(np.argmax(differs)) if differs.any() else end


def binary_spans(column: Any) -> tuple[Bytes, Ints, Ints]:
    """(bytes, starts, sizes) of a binary or string column; null has size -1."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    _, edges, data = array.buffers()
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    offsets = np.frombuffer(edges, dtype=np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    starts = offsets[:-1].astype(np.int64)
    sizes = np.diff(offsets).astype(np.int64)
    if array.null_count:
        sizes = np.where(array.is_null().to_numpy(zero_copy_only=False), -1, sizes)
    pool = np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.zeros(1, dtype=np.uint8)
    return pool, starts, sizes


def header_sections(column: Any) -> tuple[Bytes, Ints, Ints]:
    """The encoded header section of every record, with its count; null and empty lists are a zero byte."""
    rows = len(column)
    items = column.flatten()
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    names = binary_spans(items.field("key")) if len(items) else (np.zeros(1, np.uint8), counts[:0], counts[:0])
    values = binary_spans(items.field("value")) if len(items) else names
    sizes = np.zeros(rows, dtype=np.int64)
    _header_sizes(counts, names[2], values[2], sizes)
    ends = np.cumsum(sizes)
    pool = np.zeros(int(ends[-1]) if rows else 1, dtype=np.uint8)
    _put_headers(counts, *names, *values, pool)
    return pool, ends - sizes, sizes


@kernel
def _header_sizes(counts: Any, name_sizes: Any, value_sizes: Any, sizes: Any) -> None:
    h = 0
    for r in range(counts.size):
        size = varint_size(counts[r])
        for _ in range(counts[r]):
            size += varint_size(name_sizes[h]) + max(name_sizes[h], 0)
            size += varint_size(value_sizes[h]) + max(value_sizes[h], 0)
            h += 1
        sizes[r] = size


@kernel
def _put_headers(counts: Any, names: Any, name_starts: Any, name_sizes: Any, values: Any, value_starts: Any, value_sizes: Any,
                 out: Any) -> None:  # fmt: skip
    position, h = 0, 0
    for r in range(counts.size):
        position = write_varint(out, position, counts[r])
        for _ in range(counts[r]):
            position = write_varint(out, position, name_sizes[h])
            if name_sizes[h] > 0:
                copy_bytes(out, position, names, name_starts[h], name_sizes[h])
                position += name_sizes[h]
            position = write_varint(out, position, value_sizes[h])
            if value_sizes[h] > 0:
                copy_bytes(out, position, values, value_starts[h], value_sizes[h])
                position += value_sizes[h]
            h += 1
