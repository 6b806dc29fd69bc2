"""Record batches as the simulated brokers hold them: real v2 bytes, and what a reader would make of them.

Decoding is plain Python on purpose: readers and checkers must not share a parser with the compaction that they check. Values
are immutable and shared between replicas, as a fetch copies bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headstone.log.encoding import NO_HEADERS, BatchHead, Columns, batch_bytes, encode_section, marker_bytes, pool
from headstone.log.layout import CONTROL, DELETE_HORIZON, HEADER_BYTES, TRANSACTIONAL

_HEADER = struct.Struct(">qiibIhiqqqhii")
assert _HEADER.size == HEADER_BYTES
_CONTROL_KEY = struct.Struct(">hh")

DATA = "data"
COMMIT = "COMMIT"
ABORT = "ABORT"
EMPTIED = "emptied"
_MARKERS = {0: ABORT, 1: COMMIT}


class Record(NamedTuple):
    """A value of None is a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """`kind` is data, a marker's type, or emptied for a control batch that lost its record."""

    raw: bytes
    base: int
    last: int
    leader_epoch: int
    timestamp: int
    horizon: int | None
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    kind: str
    records: tuple[Record, ...]

    @property
    def is_data(self) -> bool:
        return self.kind == DATA


def decode(raw: bytes) -> Batch:
    base, _, epoch, _, _, attributes, delta, first_ts, max_ts, pid, pid_epoch, sequence, count = _HEADER.unpack_from(
        raw
    )
    records = []
    kind = DATA
    if attributes & CONTROL:
        kind = EMPTIED if count == 0 else _MARKERS[_CONTROL_KEY.unpack(_records(raw, base, count)[0].key)[1]]
    else:
        records = _records(raw, base, count)
    return Batch(
        raw=raw, base=base, last=base + delta, leader_epoch=epoch, timestamp=max_ts,
        horizon=first_ts if attributes & DELETE_HORIZON else None, producer_id=pid, producer_epoch=pid_epoch,
        sequence=sequence, transactional=bool(attributes & TRANSACTIONAL), kind=kind, records=tuple(records),
    )  # fmt: skip


def _records(raw: bytes, base: int, count: int) -> list[Record]:
    records = []
    position = HEADER_BYTES
    for _ in range(count):
        size, position = _varint(raw, position)
        end = position + size
        _, position = _varint(raw, position + 1)
        delta, position = _varint(raw, position)
        key, position = _sized(raw, position)
        value, position = _sized(raw, position)
        records.append(Record(base + delta, key or b"", value))
        position = end
    return records


def _sized(raw: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(raw, position)
    return (None, position) if size < 0 else (raw[position : position + size], position + size)


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def data_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    *,
    base: int,
    leader_epoch: int,
    timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
) -> Batch:
    keys, key_starts, key_sizes = pool([key for key, _ in records])
    values, value_starts, value_sizes = pool([value for _, value in records])
    zeros = np.zeros(len(records), dtype=np.int64)
    columns = Columns(
        timestamp_deltas=zeros, offset_deltas=np.arange(len(records), dtype=np.int64), key_pool=keys,
        key_starts=key_starts, key_sizes=key_sizes, value_pool=values, value_starts=value_starts,
        value_sizes=value_sizes, header_pool=NO_HEADERS, header_starts=zeros, header_sizes=zeros + 1,
    )  # fmt: skip
    head = BatchHead(
        base_offset=base, last_offset_delta=len(records) - 1, base_timestamp=timestamp, max_timestamp=timestamp,
        transactional=transactional, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence,
        leader_epoch=leader_epoch,
    )  # fmt: skip
    return decode(batch_bytes(head, encode_section(columns), len(records)).tobytes())


def marker_batch(
    *, commit: bool, base: int, leader_epoch: int, timestamp: int, producer_id: int, producer_epoch: int
) -> Batch:
    raw = marker_bytes(
        commit=commit, offset=base, timestamp=timestamp, producer_id=producer_id, producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
    )  # fmt: skip
    return decode(raw.tobytes())
