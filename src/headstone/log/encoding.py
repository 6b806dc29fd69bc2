"""Writes record batches from columns: the inverse of reading, compiled over whole batches.

Used where logs are made (samples, simulations), not where they are compacted: there bytes are kept, not re-made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.log import codecs
from headstone.log.intrinsics import copy_bytes, kernel
from headstone.log.kernels import put_header, varint_size, write_varint
from headstone.log.layout import ABORT, BATCH, COMMIT, CONTROL, HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL
from headstone.log.reading import Bytes

Ints = npt.NDArray[np.int64]
RECORD_OVERHEAD = 40
NO_HEADERS = np.zeros(1, dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Records of one batch as spans into byte pools; a size of -1 is null. Deltas are against the batch's bases.

    headers holds, per record, the encoded header section including its count (a single zero byte for none).
    """

    timestamp_deltas: Ints
    offset_deltas: Ints
    key_pool: Bytes
    key_starts: Ints
    key_sizes: Ints
    value_pool: Bytes
    value_starts: Ints
    value_sizes: Ints
    header_pool: Bytes
    header_starts: Ints
    header_sizes: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """The identity of a batch to be written; -1 is Kafka's 'none'."""

    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    codec: int = codecs.NONE
    transactional: bool = False
    control: bool = False
    log_append_time: bool = False
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    leader_epoch: int = 0


@kernel
def _sized(out: Any, position: int, pool: Any, start: Any, size: Any) -> Any:
    position = write_varint(out, position, size)
    if size > 0:
        copy_bytes(out, position, pool, start, size)
        position += size
    return position


@kernel
def _encode(timestamps: Any, offsets: Any, key_pool: Any, key_starts: Any, key_sizes: Any, value_pool: Any,
            value_starts: Any, value_sizes: Any, header_pool: Any, header_starts: Any, header_sizes: Any,
            out: Any) -> Any:  # fmt: skip
    position = 0
    for r in range(timestamps.size):
        key_size, value_size = key_sizes[r], value_sizes[r]
        size = (
            1 + varint_size(timestamps[r]) + varint_size(offsets[r]) + varint_size(key_size) + varint_size(value_size)
        )
        size += max(key_size, 0) + max(value_size, 0) + header_sizes[r]
        position = write_varint(out, position, size)
        out[position] = 0
        position = write_varint(out, position + 1, timestamps[r])
        position = write_varint(out, position, offsets[r])
        position = _sized(out, position, key_pool, key_starts[r], key_size)
        position = _sized(out, position, value_pool, value_starts[r], value_size)
        copy_bytes(out, position, header_pool, header_starts[r], header_sizes[r])
        position += header_sizes[r]
    return position


def encode_section(columns: Columns) -> Bytes:
    """The record section, uncompressed."""
    c = columns
    room = int(np.maximum(c.key_sizes, 0).sum() + np.maximum(c.value_sizes, 0).sum() + c.header_sizes.sum())
    out = np.zeros(room + RECORD_OVERHEAD * c.offset_deltas.size, dtype=np.uint8)
    size = _encode(
        c.timestamp_deltas, c.offset_deltas, c.key_pool, c.key_starts, c.key_sizes, c.value_pool, c.value_starts,
        c.value_sizes, c.header_pool, c.header_starts, c.header_sizes, out,
    )  # fmt: skip
    return out[:size]


def batch_bytes(head: BatchHead, section: Bytes, count: int) -> Bytes:
    """The whole batch: section compressed by head.codec, header, checksum."""
    if head.codec != codecs.NONE:
        section = np.frombuffer(codecs.compress(head.codec, section.data), dtype=np.uint8)
    row = np.zeros(1, dtype=BATCH)
    row["base_offset"] = head.base_offset
    row["last_offset"] = head.base_offset + head.last_offset_delta
    for name in ("producer_id", "producer_epoch", "base_sequence", "leader_epoch"):
        row[name] = getattr(head, name)
    attributes = head.codec | LOG_APPEND_TIME * head.log_append_time
    attributes |= TRANSACTIONAL * head.transactional | CONTROL * head.control
    out = np.zeros(HEADER_BYTES + section.size, dtype=np.uint8)
    out[HEADER_BYTES:] = section
    put_header(out, 0, row[0], out.size, attributes, head.base_timestamp, head.max_timestamp, count)
    return out


def pool(items: Sequence[bytes | None]) -> tuple[Bytes, Ints, Ints]:
    """(bytes, starts, sizes) of a list; None has size -1."""
    sizes = np.array([-1 if item is None else len(item) for item in items], dtype=np.int64)
    ends = np.cumsum(np.maximum(sizes, 0))
    data = b"".join(item for item in items if item is not None) or b"\0"
    return np.frombuffer(data, dtype=np.uint8), ends - np.maximum(sizes, 0), sizes


def marker_bytes(*, commit: bool, offset: int, timestamp: int, producer_id: int, producer_epoch: int,
                 coordinator_epoch: int = 0, leader_epoch: int = 0) -> Bytes:  # fmt: skip
    """A COMMIT or ABORT marker batch."""
    kind = COMMIT if commit else ABORT
    key = (0).to_bytes(2, "big") + kind.to_bytes(2, "big")
    value = (0).to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big", signed=True)
    keys, key_starts, key_sizes = pool([key])
    values, value_starts, value_sizes = pool([value])
    zero, record = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    columns = Columns(
        timestamp_deltas=zero, offset_deltas=zero, key_pool=keys, key_starts=key_starts, key_sizes=key_sizes,
        value_pool=values, value_starts=value_starts, value_sizes=value_sizes, header_pool=NO_HEADERS,
        header_starts=zero, header_sizes=record,
    )  # fmt: skip
    head = BatchHead(
        base_offset=offset, last_offset_delta=0, base_timestamp=timestamp, max_timestamp=timestamp, transactional=True,
        control=True, producer_id=producer_id, producer_epoch=producer_epoch, leader_epoch=leader_epoch,
    )  # fmt: skip
    return batch_bytes(head, encode_section(columns), 1)
