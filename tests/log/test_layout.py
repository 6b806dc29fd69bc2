"""The wire layout as data, and a batch captured byte by byte from its specification."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np

from headstone.log import layout
from headstone.log.kernels import OK, walk
from headstone.log.layout import BATCH, EMPTIED, NOT_CONTROL, WIRE
from headstone.log.reading import PAYLOAD_BYTES_MAX
from tests.logs import history_of
from tests.oracle.batches import HEADER, Batch, changed, crc32c, encode
from tests.oracle.cleaner import header_only

FIELDS = {
    "base_offset": (0, 8),
    "length": (8, 4),
    "leader_epoch": (12, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last_offset_delta": (23, 4),
    "base_timestamp": (27, 8),
    "max_timestamp": (35, 8),
    "producer_id": (43, 8),
    "producer_epoch": (51, 2),
    "base_sequence": (53, 4),
    "count": (57, 4),
}


def test_the_header_is_laid_out_as_kafka_lays_it_out() -> None:
    assert WIRE.fields is not None
    assert {name: (at, field.itemsize) for name, (field, at) in WIRE.fields.items()} == FIELDS
    assert WIRE.itemsize == HEADER.size == layout.HEADER_BYTES


def test_attributes_are_the_bits_that_kafka_gives_them() -> None:
    """Of DefaultRecordBatch; types of control records of ControlRecordType."""
    bits = (layout.CODEC_MASK, layout.LOG_APPEND_TIME, layout.TRANSACTIONAL, layout.CONTROL, layout.DELETE_HORIZON)
    assert bits == (0x07, 0x08, 0x10, 0x20, 0x40)
    assert (layout.ABORT, layout.COMMIT) == (0, 1)


def rows(*batches: Batch) -> list[dict[str, int]]:
    data = np.frombuffer(b"".join(encode(batch) for batch in batches), dtype=np.uint8)
    table = np.zeros(len(batches), dtype=BATCH)
    assert walk(data, 0, data.size, -1, True, PAYLOAD_BYTES_MAX, table) == (len(batches), data.size, OK)
    return [{name: int(row[name]) for name in BATCH.names or ()} for row in table]


def test_a_walk_reads_every_field_of_a_header() -> None:
    """Each field has a value that no other field has, some of them negative or wide."""
    batch = Batch(
        base_offset=2**40 + 5, last_offset_delta=9, records=(), count=0, base_timestamp=-3, max_timestamp=2**41,
        leader_epoch=-2, codec="zstd", log_append_time=True, transactional=True, producer_id=2**50, producer_epoch=32767,
        base_sequence=2**31 - 1,
    )  # fmt: skip
    assert rows(batch) == [
        {
            "position": 0,
            "base_offset": 2**40 + 5,
            "last_offset": 2**40 + 14,
            "base_timestamp": -3,
            "max_timestamp": 2**41,
            "producer_id": 2**50,
            "size": 61,
            "crc": crc32c(encode(batch)[21:]),
            "leader_epoch": -2,
            "base_sequence": 2**31 - 1,
            "count": 0,
            "coordinator_epoch": -1,
            "attributes": 4 | 8 | 16,
            "producer_epoch": 32767,
            "control_type": NOT_CONTROL,
            "codec": 4,
        }
    ]


def test_control_batches_tell_their_type_and_coordinator() -> None:
    _, commit, abort, emptied = history_of("P1[a] C1 A1 A1").segments[0].batches
    other_epoch = changed(commit, records=(replace(commit.records[0], value=struct.pack(">hi", 0, 77)),))
    found = [(row["control_type"], row["coordinator_epoch"]) for row in rows(other_epoch, abort, header_only(emptied))]
    assert found == [(layout.COMMIT, 77), (layout.ABORT, 0), (EMPTIED, -1)]


def test_a_walk_goes_on_where_the_table_was_full() -> None:
    batches = history_of(" ".join(f"N[k{i}]" for i in range(7))).segments[0].batches
    data = np.frombuffer(b"".join(map(encode, batches)), dtype=np.uint8)
    table, found, at, previous = np.zeros(3, dtype=BATCH), [], 0, -1
    while at < data.size:
        n, at, error = walk(data, at, data.size, previous, True, PAYLOAD_BYTES_MAX, table)
        assert error == OK
        previous = int(table[n - 1]["last_offset"])
        found += table["base_offset"][:n].tolist()
    assert found == list(range(7))
