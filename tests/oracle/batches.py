"""Owns the v2 record batch: Record and Batch as values, `encode` and the strict `parse_log`.

Knows nothing of segments, files or cleaning. A parsed batch carries its own bytes in `raw`, so that a copy is a copy;
a batch changed through `changed` loses them and is encoded anew.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from tests.oracle.compression import CODECS, compress, decompress

HEADER = struct.Struct(
    ">"
    "q"  # base offset
    "i"  # batch length
    "i"  # partition leader epoch
    "b"  # magic
    "I"  # crc
    "h"  # attributes
    "i"  # last offset delta
    "q"  # base timestamp
    "q"  # max timestamp
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # records count
)
HEADER_BYTES = 61
assert HEADER.size == HEADER_BYTES

CRC_AT = 17
ATTRIBUTES_AT = 21
LENGTH_BEFORE = 12
PREFIX_BYTES = 17

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
HORIZON = 0x40

MARKERS = {0: "ABORT", 1: "COMMIT"}
INT32_MAX = 2**31 - 1


class BadLog(ValueError):
    """The bytes are not a log of v2 batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`base_timestamp` is the header field; with a horizon it holds the same number as `horizon_ms`."""

    base_offset: int
    last_offset_delta: int
    records: tuple[Record, ...]
    count: int
    base_timestamp: int
    max_timestamp: int
    leader_epoch: int = 0
    codec: str = "none"
    log_append_time: bool = False
    transactional: bool = False
    control: bool = False
    horizon_ms: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    raw: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == -1:
            return -1
        return (self.base_sequence + self.last_offset_delta) % (INT32_MAX + 1)

    @property
    def marker(self) -> str | None:
        """ABORT, COMMIT or OTHER for a control batch with a record; None for data and emptied control batches."""
        if not self.control or not self.records:
            return None
        _version, kind = struct.unpack_from(">hh", self.records[0].key or b"")
        return MARKERS.get(kind, "OTHER")

    @property
    def coordinator_epoch(self) -> int:
        return int(struct.unpack_from(">hi", self.records[0].value or b"")[1])


def changed(batch: Batch, **fields: Any) -> Batch:
    return replace(batch, raw=None, **fields)


def attributes(batch: Batch) -> int:
    bits = CODECS.index(batch.codec)
    bits |= LOG_APPEND_TIME if batch.log_append_time else 0
    bits |= TRANSACTIONAL if batch.transactional else 0
    bits |= CONTROL if batch.control else 0
    bits |= HORIZON if batch.horizon_ms is not None else 0
    return bits


def to_bytes(batch: Batch) -> bytes:
    """The batch as it was read, or as it is encoded if it was made here."""
    return encode(batch) if batch.raw is None else batch.raw


def encode(batch: Batch) -> bytes:
    assert batch.horizon_ms in (None, batch.base_timestamp)
    assert batch.count == len(batch.records)
    plain = b"".join(encode_record(batch, record) for record in batch.records)
    body = compress(batch.codec, plain) if batch.records else b""
    tail = struct.pack(
        ">hiqqqhii",
        attributes(batch),
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.count,
    )
    tail += body
    length = PREFIX_BYTES - LENGTH_BEFORE + 4 + len(tail)
    return struct.pack(">qiibI", batch.base_offset, length, batch.leader_epoch, 2, crc32c(tail)) + tail


def without_transactional_bit(batch: Batch) -> Batch:
    """Only the attributes and the CRC change; compressed bytes stay as they are."""
    data = bytearray(to_bytes(batch))
    data[ATTRIBUTES_AT + 1] &= ~TRANSACTIONAL & 0xFF
    data[CRC_AT:ATTRIBUTES_AT] = struct.pack(">I", crc32c(bytes(data[ATTRIBUTES_AT:])))
    return replace(batch, transactional=False, raw=bytes(data))


def parse_log(data: bytes) -> list[Batch]:
    """Every batch of a log file; a partial batch at the end is left out quietly, any other fault raises BadLog."""
    batches, at = [], 0
    while len(data) - at >= PREFIX_BYTES:
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length < 14:
            raise BadLog(f"batch length {length} at {at}")
        if len(data) - at < LENGTH_BEFORE + length:
            break
        batches.append(parse_batch(data[at : at + LENGTH_BEFORE + length], at))
        at += LENGTH_BEFORE + length
    for earlier, later in pairwise(batches):
        if later.base_offset <= earlier.last_offset:
            raise BadLog(f"batch {later.base_offset} begins inside or before batch {earlier.base_offset}")
    return batches


def parse_batch(data: bytes, at: int = 0) -> Batch:
    if data[16] != 2:
        raise BadLog(f"magic {data[16]} at {at}")
    if len(data) < HEADER_BYTES:
        raise BadLog(f"{len(data)} bytes at {at} are no batch")
    base, _, leader, _, crc, bits, delta, base_ts, max_ts, pid, epoch, seq, count = HEADER.unpack_from(data)
    if crc != crc32c(data[ATTRIBUTES_AT:]):
        raise BadLog(f"crc of batch {base} at {at} is wrong")
    if bits & CODEC_MASK >= len(CODECS) or delta < 0 or count < 0:
        raise BadLog(f"header of batch {base} at {at} is wrong")
    codec = CODECS[bits & CODEC_MASK]
    append_time = bool(bits & LOG_APPEND_TIME)
    body = data[HEADER_BYTES:]
    plain = decompress(codec, body) if body else b""
    records = parse_records(plain, count, base, base_ts, max_ts if append_time else None)
    if any(not base <= record.offset <= base + delta for record in records):
        raise BadLog(f"a record of batch {base} lies outside it")
    return Batch(
        base_offset=base,
        last_offset_delta=delta,
        records=records,
        count=count,
        base_timestamp=base_ts,
        max_timestamp=max_ts,
        leader_epoch=leader,
        codec=codec,
        log_append_time=append_time,
        transactional=bool(bits & TRANSACTIONAL),
        control=bool(bits & CONTROL),
        horizon_ms=base_ts if bits & HORIZON else None,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=seq,
        raw=bytes(data),
    )


def encode_record(batch: Batch, record: Record) -> bytes:
    body = b"\x00" + varint(record.timestamp - batch.base_timestamp) + varint(record.offset - batch.base_offset)
    body += sized(record.key) + sized(record.value) + varint(len(record.headers))
    for name, value in record.headers:
        body += sized(name.encode()) + sized(value)
    return varint(len(body)) + body


def parse_records(
    data: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None
) -> tuple[Record, ...]:
    records, at = [], 0
    for _ in range(count):
        size, at = read_varint(data, at)
        body = data[at : at + size]
        if size < 0 or len(body) != size:
            raise BadLog(f"record of batch {base_offset} cut short")
        records.append(parse_record(body, base_offset, base_timestamp, append_time))
        at += size
    if at != len(data):
        raise BadLog(f"batch {base_offset} holds {len(data) - at} bytes after its records")
    return tuple(records)


def parse_record(body: bytes, base_offset: int, base_timestamp: int, append_time: int | None) -> Record:
    timestamp_delta, at = read_varint(body, 1)
    offset_delta, at = read_varint(body, at)
    key, at = read_sized(body, at)
    value, at = read_sized(body, at)
    header_count, at = read_varint(body, at)
    headers = []
    for _ in range(header_count):
        name, at = read_sized(body, at)
        header_value, at = read_sized(body, at)
        if name is None:
            raise BadLog(f"header without a name in batch {base_offset}")
        headers.append((name.decode(), header_value))
    if header_count < 0 or at != len(body):
        raise BadLog(f"record of batch {base_offset} is not as long as it says")
    return Record(
        offset=base_offset + offset_delta,
        timestamp=base_timestamp + timestamp_delta if append_time is None else append_time,
        key=key,
        value=value,
        headers=tuple(headers),
    )


def varint(number: int) -> bytes:
    """Zig-zag, base 128, lowest group first; 32 and 64 bit numbers encode alike."""
    rest = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise BadLog("varint cut short")
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def read_sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size == -1:
        return None, at
    if size < -1 or at + size > len(data):
        raise BadLog("field cut short")
    return data[at : at + size], at + size


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
