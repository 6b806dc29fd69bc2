"""Logs captured from real brokers (tests/captured/README.md): read as Kafka itself reads them, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.log.directory import as_partition, list_segments
from headstone.log.indexes import aborted_bytes, read_aborted, read_offset_index, read_time_index
from headstone.log.listing import BatchEntry, list_batches
from headstone.log.reading import SegmentFile
from headstone.log.snapshots import read_snapshot, snapshot_bytes
from testbed.dumps import as_dumped
from tests.oracle.files import read_partition

CAPTURED = Path(__file__).resolve().parent.parent / "captured"
PARTITIONS = sorted(path.parent for path in CAPTURED.glob("*/*/dump.txt"))


def segments(path: Path) -> list[SegmentFile]:
    partition = as_partition(path)
    assert partition is not None
    return list_segments(partition)


def batches(path: Path) -> list[BatchEntry]:
    return [batch for file in segments(path) for batch in list_batches(file, with_records=True)]


def test_there_are_two_versions_of_every_partition() -> None:
    names = sorted(path.name for path in PARTITIONS)
    assert names == sorted(2 * [*(f"plain-{n}" for n in range(6)), "appended-0", "gone-0", "txn-0", "txn-1", "txn-2"])


@pytest.mark.parametrize("path", PARTITIONS, ids=lambda path: f"{path.parent.name}-{path.name}")
class TestCaptured:
    def test_every_field_is_what_kafka_dumped(self, path: Path) -> None:
        lines = [line for batch in batches(path) for line in as_dumped(batch.as_json())]
        assert lines == (path / "dump.txt").read_text().splitlines()

    def test_the_slow_reader_sees_the_same_records(self, path: Path) -> None:
        slow = [
            (record.offset, record.timestamp, record.key, record.value, record.headers)
            for segment in read_partition(path)
            for batch in segment.batches
            for record in batch.records
        ]
        fast = [
            (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
            for batch in batches(path)
            for record in batch.records or ()
        ]
        assert fast == slow

    def test_snapshots_and_abort_indexes_are_written_as_they_were_read(self, path: Path) -> None:
        for file in path.glob("*.snapshot"):
            assert snapshot_bytes(read_snapshot(file)) == file.read_bytes()
        for file in path.glob("*.txnindex"):
            assert aborted_bytes(read_aborted(file)) == file.read_bytes()

    def test_indexes_point_at_batches(self, path: Path) -> None:
        for file in segments(path):
            found = list(list_batches(file, with_records=False))
            starts = {batch.position: batch for batch in found}
            times = [batch.max_timestamp_ms for batch in found]
            for entry in read_offset_index(Path(file.path).with_suffix(".index")):
                batch = starts[int(entry["position"])]
                assert file.base + int(entry["relative_offset"]) >= batch.base_offset
            for entry in read_time_index(Path(file.path).with_suffix(".timeindex")):
                assert int(entry["timestamp"]) in times


def test_inspect_lists_what_is_around_an_offset(capsys: pytest.CaptureFixture[str]) -> None:
    path = CAPTURED / "kafka-4.3.1" / "txn-0"
    marker = next(batch for batch in batches(path) if batch.control == "ABORT")
    at = marker.base_offset
    assert main(["inspect", str(path), "--records", "--offsets", f"{at}:{at + 1}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = [line.strip() for line in lines[lines.index(next(x for x in lines if "open txns" in x)) + 1 :]]
    listed = [line for line in listed if not line.startswith("note")]
    assert listed[0].startswith(f"[{at}, {at}] 1 record, transactional ABORT")
    assert f"crc {marker.crc}, {Path(marker.file).name} position {marker.position}, {marker.size} bytes" in listed[0]
    assert listed[1].startswith(f"{at}: marker, time ")
    assert len(listed) == 2
