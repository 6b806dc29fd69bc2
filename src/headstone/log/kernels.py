"""Compiled loops over raw batches: walk headers, read varints, check a record, write header fields.

Buffers are uint8 arrays; nothing here allocates by what a file claims. Errors are codes plus a position; `reading` turns them
into messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headstone.log.codecs import RATIO_MAX
from headstone.log.intrinsics import crc32c, kernel
from headstone.log.layout import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    COUNT_AT,
    CRC_AT,
    EMPTIED,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    NOT_CONTROL,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_BYTES_MIN,
)

OK = 0
TORN = 1
BAD_LENGTH = 2
BAD_MAGIC = 3
BAD_CRC = 4
BACKWARDS = 5
BAD_COUNT = 6
BAD_CODEC = 7
BAD_CONTROL = 8
BAD_RECORD = 9
TRAILING_BYTES = 10
BAD_RECORD_OFFSET = 11

ZSTD = 4
MAGIC_SEEN_BYTES = MAGIC_AT + 1
LENGTH_MIN = 14
"""Smallest length of any format: anything shorter is not a batch, whatever its magic says."""


@kernel
def be16(data: Any, i: int) -> Any:
    return np.int16((np.uint16(data[i]) << np.uint16(8)) | np.uint16(data[i + 1]))


@kernel
def be32(data: Any, i: int) -> Any:
    value = np.uint32(0)
    for k in range(4):
        value = (value << np.uint32(8)) | np.uint32(data[i + k])
    return np.int32(value)


@kernel
def be64(data: Any, i: int) -> Any:
    value = np.uint64(0)
    for k in range(8):
        value = (value << np.uint64(8)) | np.uint64(data[i + k])
    return np.int64(value)


@kernel
def put_be(data: Any, i: int, value: Any, size: int) -> None:
    bits = np.uint64(value)
    for k in range(size - 1, -1, -1):
        data[i + k] = np.uint8(bits & np.uint64(0xFF))
        bits = bits >> np.uint64(8)


@kernel
def read_varint(data: Any, i: Any, end: Any) -> Any:
    """(value, next index); next is -1 if the bytes end or the number is longer than ten bytes."""
    if i < end and data[i] < 0x80:
        single = np.int64(data[i])
        return (single >> 1) ^ -(single & 1), i + 1
    if i + 1 < end and data[i + 1] < 0x80:
        double = np.int64(data[i] & 0x7F) | (np.int64(data[i + 1]) << 7)
        return (double >> 1) ^ -(double & 1), i + 2
    value = np.uint64(0)
    shift = np.uint64(0)
    while i < end and shift < np.uint64(70):
        byte = np.uint64(data[i])
        i += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), i
        shift += np.uint64(7)
    return np.int64(0), -1


@kernel
def varint_size(value: Any) -> Any:
    bits = np.uint64((np.int64(value) << 1) ^ (np.int64(value) >> 63))
    size = 1
    while bits >= np.uint64(0x80):
        bits = bits >> np.uint64(7)
        size += 1
    return size


@kernel
def write_varint(data: Any, i: int, value: Any) -> Any:
    """Index after the zig-zag varint."""
    bits = np.uint64((np.int64(value) << 1) ^ (np.int64(value) >> 63))
    while bits >= np.uint64(0x80):
        data[i] = np.uint8((bits & np.uint64(0x7F)) | np.uint64(0x80))
        bits = bits >> np.uint64(7)
        i += 1
    data[i] = np.uint8(bits)
    return i + 1


@kernel
def skip_headers(data: Any, i: int, end: int) -> Any:
    """Index after a record's headers, or -1 if they do not fit before end."""
    count, i = read_varint(data, i, end)
    if i < 0 or count < 0 or count > end - i:
        return -1
    for _ in range(count):
        for k in range(2):
            size, i = read_varint(data, i, end)
            if i < 0 or size < (0 if k == 0 else -1) or size > end - i:
                return -1
            if size > 0:
                i += size
    return i


@kernel
def read_record(data: Any, i: int, end: int) -> Any:
    """One record, strictly: (next, timestamp delta, offset delta, key start, key size, value start, value size).

    Sizes are -1 for null. next is -1 if the record does not fill exactly its declared length.
    """
    size, i = read_varint(data, i, end)
    if i < 0 or size < RECORD_BYTES_MIN - 1 or size > end - i:
        return -1, np.int64(0), np.int64(0), 0, 0, 0, 0
    stop = i + size
    timestamp_delta, i = read_varint(data, i + 1, stop)
    if i < 0:
        return -1, np.int64(0), np.int64(0), 0, 0, 0, 0
    offset_delta, i = read_varint(data, i, stop)
    if i < 0:
        return -1, np.int64(0), np.int64(0), 0, 0, 0, 0
    key_size, i = read_varint(data, i, stop)
    if i < 0 or key_size < -1 or key_size > stop - i:
        return -1, np.int64(0), np.int64(0), 0, 0, 0, 0
    key_at = i
    if key_size > 0:
        i += key_size
    value_size, i = read_varint(data, i, stop)
    if i < 0 or value_size < -1 or value_size > stop - i:
        return -1, np.int64(0), np.int64(0), 0, 0, 0, 0
    value_at = i
    if value_size > 0:
        i += value_size
    if i < stop and data[i] == 0:
        i += 1
    else:
        i = skip_headers(data, i, stop)
    if i != stop:
        return -1, np.int64(0), np.int64(0), 0, 0, 0, 0
    return stop, timestamp_delta, offset_delta, key_at, key_size, value_at, value_size


@kernel
def _control_records(data: Any, i: Any, end: Any, count: Any, last_delta: Any) -> Any:
    """(control type, coordinator epoch) of the first control record; type -3 if any is not one, or bytes are left."""
    kind = np.int64(-3)
    epoch = np.int64(-1)
    previous = np.int64(-1)
    for r in range(count):
        i, _, delta, key_at, key_size, value_at, value_size = read_record(data, i, end)
        if i < 0 or key_size < 4 or be16(data, key_at) < 0 or delta <= previous or delta > last_delta:
            return np.int64(-3), np.int64(0)
        previous = delta
        if r == 0:
            kind = np.int64(be16(data, key_at + 2))
            if kind == 0 or kind == 1:
                if value_size < 6:
                    return np.int64(-3), np.int64(0)
                epoch = np.int64(be32(data, value_at + 2))
    if i != end:
        return np.int64(-3), np.int64(0)
    return kind, epoch


@kernel
def _check_header(data: Any, position: int, end: int, previous_last: Any, payload_max: Any) -> Any:
    left = end - position
    if left < MAGIC_SEEN_BYTES:
        return TORN
    magic = np.int64(np.int8(data[position + MAGIC_AT]))
    size = np.int64(be32(data, position + LENGTH_AT)) + LOG_OVERHEAD
    if size < LENGTH_MIN + LOG_OVERHEAD:
        return BAD_LENGTH
    if magic != 2:
        return BAD_MAGIC
    if size < HEADER_BYTES:
        return BAD_LENGTH
    if size > left:
        return TORN
    delta = np.int64(be32(data, position + LAST_OFFSET_DELTA_AT))
    count = np.int64(be32(data, position + COUNT_AT))
    base = be64(data, position)
    codec = np.int64(data[position + ATTRIBUTES_AT + 1]) & CODEC_MASK
    if base <= previous_last:
        return BACKWARDS
    if delta < 0 or count < 0 or count > delta + 1 or base > np.int64(0x7FFFFFFFFFFFFFFF) - delta:
        return BAD_COUNT
    if codec > ZSTD:
        return BAD_CODEC
    room = (size - HEADER_BYTES) * RATIO_MAX[codec]
    if codec != 0 and room > payload_max:
        room = payload_max
    if count > room // RECORD_BYTES_MIN or (count == 0 and size > HEADER_BYTES):
        return BAD_COUNT
    return OK


@kernel
def walk(data: Any, position: Any, end: int, previous_last: Any, with_crc: bool, payload_max: Any, out: Any) -> Any:
    """Batches from `position` until `end` or until `out` is full: (batches, next position, error code)."""
    n = 0
    while position < end and n < out.size:
        error = _check_header(data, position, end, previous_last, payload_max)
        if error != OK:
            return n, position, error
        size = np.int64(be32(data, position + LENGTH_AT)) + LOG_OVERHEAD
        if with_crc and crc32c(data, position + ATTRIBUTES_AT, position + size) != np.uint32(
            be32(data, position + CRC_AT)
        ):
            return n, position, BAD_CRC
        row = out[n]
        row.position = position
        row.size = size
        row.crc = np.int64(np.uint32(be32(data, position + CRC_AT)))
        row.base_offset = be64(data, position)
        row.last_offset = row.base_offset + np.int64(be32(data, position + LAST_OFFSET_DELTA_AT))
        row.base_timestamp = be64(data, position + BASE_TIMESTAMP_AT)
        row.max_timestamp = be64(data, position + MAX_TIMESTAMP_AT)
        row.producer_id = be64(data, position + PRODUCER_ID_AT)
        row.producer_epoch = be16(data, position + PRODUCER_EPOCH_AT)
        row.base_sequence = be32(data, position + BASE_SEQUENCE_AT)
        row.leader_epoch = be32(data, position + LEADER_EPOCH_AT)
        row.count = be32(data, position + COUNT_AT)
        row.attributes = be16(data, position + ATTRIBUTES_AT)
        row.codec = row.attributes & CODEC_MASK
        row.coordinator_epoch = -1
        row.control_type = NOT_CONTROL
        if row.attributes & CONTROL:
            if row.count == 0:
                row.control_type = EMPTIED
            else:
                last_delta = row.last_offset - row.base_offset
                kind, epoch = _control_records(data, position + HEADER_BYTES, position + size, row.count, last_delta)
                if kind < 0 or row.codec != 0:
                    return n, position, BAD_CONTROL
                row.control_type = kind
                row.coordinator_epoch = epoch
        previous_last = row.last_offset
        position += size
        n += 1
    return n, position, OK


@kernel
def put_header(
    out: Any, position: int, batch: Any, size: int, attributes: Any, base_timestamp: Any, max_timestamp: Any, count: int
) -> None:
    """Header of a rebuilt batch at out[position:], records already behind it; CRC last."""
    put_be(out, position, batch.base_offset, 8)
    put_be(out, position + LENGTH_AT, size - LOG_OVERHEAD, 4)
    put_be(out, position + LEADER_EPOCH_AT, batch.leader_epoch, 4)
    out[position + MAGIC_AT] = 2
    put_be(out, position + ATTRIBUTES_AT, attributes, 2)
    put_be(out, position + LAST_OFFSET_DELTA_AT, batch.last_offset - batch.base_offset, 4)
    put_be(out, position + BASE_TIMESTAMP_AT, base_timestamp, 8)
    put_be(out, position + MAX_TIMESTAMP_AT, max_timestamp, 8)
    put_be(out, position + PRODUCER_ID_AT, batch.producer_id, 8)
    put_be(out, position + PRODUCER_EPOCH_AT, batch.producer_epoch, 2)
    put_be(out, position + BASE_SEQUENCE_AT, batch.base_sequence, 4)
    put_be(out, position + COUNT_AT, count, 4)
    put_be(out, position + CRC_AT, crc32c(out, position + ATTRIBUTES_AT, position + size), 4)
