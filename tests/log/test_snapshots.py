"""Producer snapshots: the oracle's bytes, each way in which a file can be wrong, and that a bad one is passed over."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from headstone.errors import CorruptLog
from headstone.log.directory import as_partition
from headstone.log.snapshots import ProducerEntry, read_snapshot, snapshot_bytes, write_snapshot
from headstone.pipeline.planning import survey_directory
from tests.logs import write_log
from tests.oracle import files
from tests.oracle.batches import crc32c

ENTRIES = [
    ProducerEntry(producer_id=2**40, epoch=32767, last_sequence=2**31 - 1, last_offset=2**50, offset_delta=4,
                  timestamp=1_700_000_000_000, coordinator_epoch=9, txn_first_offset=2**50 - 4),
    ProducerEntry(producer_id=0, epoch=0, last_sequence=-1, last_offset=-1, offset_delta=0, timestamp=-1,
                  coordinator_epoch=-1, txn_first_offset=-1),
]  # fmt: skip


def oracle_bytes() -> bytes:
    return files.write_snapshot(
        [
            files.SnapshotEntry(
                producer_id=e.producer_id, producer_epoch=e.epoch, last_sequence=e.last_sequence, last_offset=e.last_offset,
                offset_delta=e.offset_delta, timestamp=e.timestamp, coordinator_epoch=e.coordinator_epoch,
                txn_first_offset=e.txn_first_offset,
            )
            for e in ENTRIES
        ]
    )  # fmt: skip


def test_snapshots_are_written_and_read_as_the_oracle_does(tmp_path: Path) -> None:
    path = tmp_path / "x.snapshot"
    write_snapshot(path, ENTRIES)
    assert path.read_bytes() == oracle_bytes()
    assert read_snapshot(path) == ENTRIES


def test_a_snapshot_of_nobody_is_ten_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.snapshot"
    write_snapshot(path, [])
    assert path.read_bytes() == files.write_snapshot([])
    assert (len(snapshot_bytes([])), read_snapshot(path)) == (10, [])


def sealed(body: bytes, version: int = 1) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "too short for a producer snapshot"),
        (oracle_bytes()[:9], "too short for a producer snapshot"),
        (sealed(oracle_bytes()[6:], version=2), "unknown producer snapshot version 2"),
        (oracle_bytes()[:-1] + b"\0", "wrong CRC-32C in a producer snapshot"),
        (oracle_bytes()[:-1], "wrong CRC-32C in a producer snapshot"),
        (sealed(oracle_bytes()[6:-1]), "says 2 producers but has 101 bytes"),
        (sealed(struct.pack(">i", -1)), "says -1 producers but has 10 bytes"),
    ],
)
def test_a_snapshot_that_cannot_be_right_is_an_error(content: bytes, found: str, tmp_path: Path) -> None:
    path = tmp_path / "x.snapshot"
    path.write_bytes(content)
    with pytest.raises(CorruptLog) as caught:
        read_snapshot(path)
    assert (caught.value.file, caught.value.problem) == (str(path), found)


def test_an_unreadable_snapshot_is_passed_over_for_an_older_one(tmp_path: Path) -> None:
    """Replay from the older one gives the same state; the reader is told."""
    path = write_log(tmp_path, "P1[a] | P1[b] C1 | P2[c] | N[z]", snapshots=True) / "t-0"
    directory = as_partition(path)
    assert directory is not None
    whole, notes = survey_directory(directory)
    assert notes == ()
    newest = path / "00000000000000000004.snapshot"
    newest.write_bytes(newest.read_bytes()[:-1])
    without, notes = survey_directory(directory)
    assert without.producers.entries() == whole.producers.entries()
    assert without.lso == whole.lso == 3
    assert notes == (
        f"{newest}, position 0, offset -1: wrong CRC-32C in a producer snapshot; an older snapshot will be used instead",
    )
