"""Record batches to Arrow columns: every field of every record, for looking into a log with SQL.

Compiled decode into spans, then one gather a column. Compaction does not use it, because it never needs values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headstone.log import kernels
from headstone.log.intrinsics import copy_bytes, kernel
from headstone.log.kernels import read_record, read_varint
from headstone.log.layout import LOG_APPEND_TIME
from headstone.log.reading import Bytes, Chunk, Ints, Payloads, corrupt_record

OFFSET, TIMESTAMP, KEY_AT, KEY_SIZE, VALUE_AT, VALUE_SIZE, HEADERS_AT, HEADERS_END, BATCH_INDEX, SPAN_FIELDS = range(10)
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@kernel
def _decode(data: Any, starts: Any, ends: Any, batches: Any, chosen: Any, spans: Any) -> Any:
    """One row of spans a record: (rows, error code, batch, record)."""
    n = 0
    for k in range(chosen.size):
        batch = batches[chosen[k]]
        i = starts[k]
        for r in range(batch.count):
            i, delta, offset_delta, key_at, key_size, value_at, value_size = read_record(data, i, ends[k])
            if i < 0:
                return n, kernels.BAD_RECORD, k, r
            row = spans[n]
            row[OFFSET] = batch.base_offset + offset_delta
            row[TIMESTAMP] = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else batch.base_timestamp + delta
            row[KEY_AT] = key_at
            row[KEY_SIZE] = key_size
            row[VALUE_AT] = value_at
            row[VALUE_SIZE] = value_size
            row[HEADERS_AT] = value_at + max(value_size, 0)
            row[HEADERS_END] = i
            row[BATCH_INDEX] = chosen[k]
            n += 1
        if i != ends[k]:
            return n, kernels.TRAILING_BYTES, k, batch.count
    return n, kernels.OK, 0, 0


@kernel
def _gather(data: Any, starts: Any, sizes: Any, offsets: Any, out: Any) -> None:
    position = 0
    for i in range(starts.size):
        offsets[i] = position
        if sizes[i] > 0:
            copy_bytes(out, position, data, starts[i], sizes[i])
            position += sizes[i]
    offsets[starts.size] = position


@kernel
def _count_headers(data: Any, spans: Any) -> Any:
    total = 0
    for i in range(spans.shape[0]):
        count, _ = read_varint(data, spans[i, HEADERS_AT], spans[i, HEADERS_END])
        total += count
    return total


@kernel
def _header_spans(data: Any, spans: Any, offsets: Any, out: Any) -> None:
    """out rows: key start, key size, value start, value size. Records were checked by read_record before."""
    n = 0
    for i in range(spans.shape[0]):
        offsets[i] = n
        end = spans[i, HEADERS_END]
        count, position = read_varint(data, spans[i, HEADERS_AT], end)
        for _ in range(count):
            for k in range(2):
                size, position = read_varint(data, position, end)
                out[n, 2 * k] = position
                out[n, 2 * k + 1] = size
                position += max(size, 0)
            n += 1
    offsets[spans.shape[0]] = n


def decode(chunk: Chunk, chosen: Ints, payloads: Payloads) -> Iterator[tuple[Bytes, Ints]]:
    """(data, spans) of the records of the chosen batches, in runs; spans point into data."""
    for some, data, starts, ends in payloads.runs(chunk, chosen):
        spans = np.zeros((int(chunk.batches["count"][some].sum()), SPAN_FIELDS), dtype=np.int64)
        n, code, k, r = _decode(data, starts, ends, chunk.batches, some, spans)
        if code != kernels.OK:
            raise corrupt_record(chunk.path, chunk.in_file(int(some[k])), code, int(r))
        yield data, spans[:n]


def binary_column(data: Bytes, starts: Ints, sizes: Ints, kind: Any = None) -> Any:
    """An Arrow binary (or string) column of the spans; a size of -1 is null."""
    offsets = np.zeros(starts.size + 1, dtype=np.int32)
    out = np.zeros(int(np.maximum(sizes, 0).sum()), dtype=np.uint8)
    _gather(data, starts, sizes, offsets, out)
    missing = sizes < 0
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(kind or pa.binary(), starts.size, buffers)


def header_column(data: Bytes, spans: Ints) -> Any:
    rows = np.zeros((_count_headers(data, spans), 4), dtype=np.int64)
    offsets = np.zeros(len(spans) + 1, dtype=np.int32)
    _header_spans(data, spans, offsets, rows)
    rows = np.ascontiguousarray(rows.T)
    names = binary_column(data, rows[0], rows[1], pa.string())
    values = binary_column(data, rows[2], rows[3])
    items = pa.StructArray.from_arrays([names, values], names=["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=HEADER_TYPE)
