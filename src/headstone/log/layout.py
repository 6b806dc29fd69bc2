"""RecordBatch v2 as data: the 61 header bytes on the wire, and the table row that a walk makes of one batch.

Owns field order, sizes, attribute bits and control types. Reads and writes nothing.
"""

from __future__ import annotations

import numpy as np

HEADER_BYTES = 61
RECORD_BYTES_MIN = 7
"""Smallest legal record: length, attributes, timestamp, offset, key length, value length, header count."""

WIRE = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
assert WIRE.itemsize == HEADER_BYTES

AT = {name: WIRE.fields[name][1] for name in WIRE.names}  # type: ignore[index,union-attr]

LENGTH_AT: int = AT["length"]
LEADER_EPOCH_AT: int = AT["leader_epoch"]
MAGIC_AT: int = AT["magic"]
CRC_AT: int = AT["crc"]
ATTRIBUTES_AT: int = AT["attributes"]
LAST_OFFSET_DELTA_AT: int = AT["last_offset_delta"]
BASE_TIMESTAMP_AT: int = AT["base_timestamp"]
MAX_TIMESTAMP_AT: int = AT["max_timestamp"]
PRODUCER_ID_AT: int = AT["producer_id"]
PRODUCER_EPOCH_AT: int = AT["producer_epoch"]
BASE_SEQUENCE_AT: int = AT["base_sequence"]
COUNT_AT: int = AT["count"]
LOG_OVERHEAD = 12
"""Bytes before and including the length field: what `length` does not count."""

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""KIP-534: base_timestamp holds the time after which tombstones or the marker of this batch may go."""

ABORT = 0
COMMIT = 1
NOT_CONTROL = -1
EMPTIED = -2
"""Control type of a control batch that lost its record: it decides nothing any more."""

BATCH = np.dtype(
    [
        ("position", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("producer_id", "i8"),
        ("size", "i8"),
        ("crc", "i8"),
        ("leader_epoch", "i4"),
        ("base_sequence", "i4"),
        ("count", "i4"),
        ("coordinator_epoch", "i4"),
        ("attributes", "i2"),
        ("producer_epoch", "i2"),
        ("control_type", "i2"),
        ("codec", "i2"),
    ]
)
"""One walked batch; `position` is in the buffer that was walked."""
