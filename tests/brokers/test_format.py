"""Logs of real producers, some of them cleaned by the real cleaner: we read what Kafka's own dump reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headstone.brokers.client import READ_COMMITTED, READ_UNCOMMITTED, Consumed, JavaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Cluster
from headstone.cli.main import main
from headstone.log.listing import RecordEntry
from testbed.consuming import consume, table
from testbed.dumps import as_dumped, dump
from testbed.workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Written:
    log_dir: Path
    partitions: list[str]
    everything: dict[str, list[Consumed]]
    committed: dict[str, list[Consumed]]


@pytest.fixture(scope="module")
def written(
    distribution: Distribution, java: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Written]:
    """Written, cleaned twice so that horizons have passed, and written again; the broker is stopped."""
    with Cluster(distribution, tmp_path_factory.mktemp("format")) as cluster:
        workload = Workload(cluster, java.connect(cluster.bootstrap), seed=11)
        workload.create()
        for _ in range(3):
            workload.write(records=150)
            workload.clean()
        workload.write(records=60)
        everything = consume(cluster.bootstrap, workload.partitions, isolation=READ_UNCOMMITTED)
        committed = consume(cluster.bootstrap, workload.partitions, isolation=READ_COMMITTED)
        cluster.stop()
        yield Written(
            log_dir=cluster.brokers[1].log_dir,
            partitions=workload.partitions,
            everything=everything,
            committed=committed,
        )


def files_of(written: Written, *partitions: str) -> list[Path]:
    return [file for name in partitions for file in sorted((written.log_dir / name).glob("*.log"))]


def inspected(written: Written, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict[str, Any]]:
    paths = [str(written.log_dir / name) for name in written.partitions]
    assert main(["inspect", *paths, *options, "--output", "json"]) == 0
    return {found["partition"]: found for found in json.loads(capsys.readouterr().out)["partitions"]}


def test_every_field_of_every_batch_and_record_is_what_kafka_dumps(
    distribution: Distribution, written: Written, capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    files = files_of(written, *written.partitions)
    dumped = dump(distribution, files, work)
    found: dict[str, list[str]] = {str(file): [] for file in files}
    for partition in inspected(written, capsys, "--records").values():
        for batch in partition["batch_list"]:
            found[batch["file"]] += as_dumped(batch)
    assert found == dumped


def test_the_logs_hold_every_shape(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the comparison above: it says nothing about shapes that are not there."""
    batches = [batch for found in inspected(written, capsys, "--records").values() for batch in found["batch_list"]]
    records = [record for batch in batches for record in batch["records"] if batch["control"] is None]
    assert {batch["codec"] for batch in batches} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert {batch["control"] for batch in batches if batch["count"]} == {None, "COMMIT", "ABORT"}
    assert {batch["timestamp_type"] for batch in batches} == {"CreateTime", "LogAppendTime"}
    assert any(batch["delete_horizon_ms"] is not None and batch["control"] for batch in batches)
    assert any(batch["delete_horizon_ms"] is not None and not batch["control"] for batch in batches)
    assert any(batch["count"] == 0 for batch in batches)
    assert any(batch["producer_id"] >= 0 and not batch["transactional"] for batch in batches)
    assert any(batch["producer_id"] < 0 for batch in batches)
    assert {None, ""} <= {record["value"] for record in records if not isinstance(record["value"], dict)}
    assert any(record["key"] == "" for record in records)
    assert any(isinstance(record["value"], dict) for record in records)
    headers = [header for record in records for header in record["headers"]]
    assert {header["key"] for header in headers} == {"h", "trace-id", "é", ""}
    assert None in {header["value"] for header in headers}


def test_the_counts_are_those_of_the_batches_that_kafka_dumps(
    distribution: Distribution, written: Written, capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    dumped = dump(distribution, files_of(written, *written.partitions), work)
    for name, found in inspected(written, capsys).items():
        files = files_of(written, name)
        lines = [line for file in files for line in dumped[str(file)]]
        batches = [line for line in lines if line.startswith("base")]
        records = [line for line in lines if line.startswith("|")]
        assert found["batches"] == len(batches)
        assert found["header_only_batches"] == sum("count: 0 " in line for line in batches)
        assert found["records"] == len(records)
        assert found["markers"] == sum("endTxnMarker" in line for line in records)
        assert found["tombstones"] == sum("valueSize: -1 " in line for line in records)
        assert found["codecs"] == sorted({line.split("compresscodec: ")[1].split()[0] for line in batches}, key=ORDER)
        assert found["horizons"]["batches"] == sum("OptionalLong[" in line for line in batches)
        assert found["segments"] == len(files)
        assert found["bytes"] == sum(file.stat().st_size for file in files)


ORDER = ["none", "gzip", "snappy", "lz4", "zstd"].index


def test_offsets_keys_and_transactions_are_what_consumers_see(
    written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, found in inspected(written, capsys).items():
        visible, everything = written.committed[name], written.everything[name]
        stable = [record for record in everything if record.offset < found["lso"]]
        assert found["keys"] == len(table(visible))
        assert found["aborted_records"] == len({r.offset for r in stable} - {r.offset for r in visible})
        assert found["open_transactions"] == (1 if name == "txn-2" else 0)
        assert found["open_records"] == (5 if name == "txn-2" else 0)
        assert (found["lso"] < found["log_end"]) == (name == "txn-2")


def test_records_are_what_consumers_get_headers_and_all(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    from headstone.log.directory import as_partition, list_segments
    from headstone.log.listing import list_batches

    for name in written.partitions:
        partition = as_partition(written.log_dir / name)
        assert partition is not None
        batches = [batch for file in list_segments(partition) for batch in list_batches(file, with_records=True)]
        records = [as_consumed(record) for batch in batches if batch.control is None for record in batch.records or ()]
        assert records == written.everything[name]


def as_consumed(record: RecordEntry) -> Consumed:
    return Consumed(
        offset=record.offset,
        key=record.key,
        value=record.value,
        timestamp_ms=record.timestamp_ms,
        headers=record.headers,
    )


def test_markers_carry_the_epoch_that_the_version_gives_them(
    distribution: Distribution, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before transactions v2 that of the data, after it one more, where the client takes part (KIP-890)."""
    bumps: Counter[int] = Counter()
    for found in inspected(written, capsys, "--records").values():
        epochs: dict[int, int] = {}
        for batch in found["batch_list"]:
            if batch["control"] in ("COMMIT", "ABORT") and batch["producer_id"] in epochs:
                bumps[batch["producer_epoch"] - epochs.pop(batch["producer_id"])] += 1
            elif batch["transactional"] and batch["control"] is None:
                epochs[batch["producer_id"]] = batch["producer_epoch"]
    print(f"Kafka {distribution.version}: marker epoch - data epoch: {dict(bumps)}")
    expected = {0} if distribution.release < (4,) else {0, 1}
    assert set(bumps) == expected
