"""Topics and their settings from KRaft's metadata log: captured from brokers, and records made by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headstone.errors import CorruptLog
from headstone.log.cluster_metadata import (
    ClusterMetadata,
    meta_properties,
    node_id,
    read_cluster_metadata,
    rename_in_meta_properties,
)
from headstone.log.directory import as_partition
from tests.logs import batch_of
from tests.oracle.batches import Record, to_bytes

CAPTURED = Path(__file__).resolve().parent.parent / "captured"
VERSIONS = ("3.9.2", "4.3.1")
NAME = "__cluster_metadata-0"
BROKERS = {"delete.retention.ms": "777", "segment.bytes": "2000000"}
TOPICS = {
    "table": {**BROKERS, "cleanup.policy": "compact", "delete.retention.ms": "1234", "min.compaction.lag.ms": "6"},
    "events": {**BROKERS, "cleanup.policy": "delete", "retention.ms": "99"},
    "both": {**BROKERS, "cleanup.policy": "compact,delete"},
    "plain": BROKERS,
    "gone": {**BROKERS, "cleanup.policy": "delete"},
}
"""`gone` was compacted, deleted and created anew; `table` was altered; the rest is the dynamic default of all brokers."""


def read(path: Path) -> ClusterMetadata:
    directory = as_partition(path)
    assert directory is not None
    return read_cluster_metadata(directory)


def settings_of(metadata: ClusterMetadata, broker: str | None = "1") -> dict[str, dict[str, str]]:
    return {topic: metadata.topic_settings(topic, broker=broker) for topic in metadata.topic_ids}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_brokers_topics_and_their_settings(version: str) -> None:
    assert settings_of(read(CAPTURED / f"metadata-{version}" / NAME)) == TOPICS


@pytest.mark.parametrize("version", VERSIONS)
def test_any_snapshot_and_the_records_behind_it_tell_the_same_as_the_log_alone(version: str, tmp_path: Path) -> None:
    source = CAPTURED / f"metadata-{version}" / NAME
    snapshots = sorted(path.name for path in source.glob("*.checkpoint"))
    whole = read(source)
    assert len(snapshots) == 3
    for kept in (None, *snapshots):
        copy = tmp_path / str(kept) / NAME
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*(name for name in snapshots if name != kept)))
        assert read(copy) == whole
    (copy / f"{0:020d}.log").write_bytes(b"")
    assert settings_of(read(copy)) == TOPICS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_whose_beginning_no_snapshot_tells_is_not_believed(version: str, tmp_path: Path) -> None:
    copy = tmp_path / NAME
    shutil.copytree(CAPTURED / f"metadata-{version}" / NAME, copy, ignore=shutil.ignore_patterns("*.checkpoint"))
    for file in copy.glob("0" * 20 + ".*"):
        file.rename(file.with_name(f"{3:020d}{file.suffix}"))
    with pytest.raises(CorruptLog, match="the records from 0 on are missing"):
        read(copy)


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def topic(name: str, number: int) -> bytes:
    return b"\x01\x02\x00" + text(name) + bytes(15) + bytes([number]) + b"\0"


def config(kind: int, resource: str, name: str, value: str | None) -> bytes:
    return b"\x01\x04\x00" + bytes([kind]) + text(resource) + text(name) + text(value) + b"\0"


def removed(number: int) -> bytes:
    return b"\x01\x09\x00" + bytes(15) + bytes([number]) + b"\0"


BEGIN, END, ABORT, NO_OP = b"\x01\x17\x00\0", b"\x01\x18\x00\0", b"\x01\x19\x00\0", b"\x01\x14\x00\0"


def written(root: Path, *values: bytes) -> Path:
    """Two records per batch; the last may be alone."""
    path = root / NAME
    path.mkdir()
    records = [Record(offset=n, timestamp=1000, key=None, value=value) for n, value in enumerate(values)]
    pairs = [tuple(records[n : n + 2]) for n in range(0, len(records), 2)]
    (path / f"{0:020d}.log").write_bytes(b"".join(to_bytes(batch_of(*pair)) for pair in pairs))
    return path


def test_the_nearest_setting_wins_and_null_takes_it_away(tmp_path: Path) -> None:
    configs = [
        (4, "", "log.retention.ms", "1"),
        (4, "", "log.index.interval.bytes", "2"),
        (4, "7", "log.retention.ms", "3"),
        (2, "a", "index.interval.bytes", "4"),
        (2, "a", "cleanup.policy", "compact"),
        (2, "b", "cleanup.policy", "delete"),
        (2, "a", "cleanup.policy", None),
    ]
    metadata = read(written(tmp_path, topic("a", 1), NO_OP, *(config(*each) for each in configs)))
    assert metadata.topic_settings("a", broker="7") == {"retention.ms": "3", "index.interval.bytes": "4"}
    assert metadata.topic_settings("a", broker="8") == {"retention.ms": "1", "index.interval.bytes": "4"}
    assert metadata.topic_settings("a", broker=None) == {"retention.ms": "1", "index.interval.bytes": "4"}


def test_a_topic_that_was_removed_takes_its_settings_along(tmp_path: Path) -> None:
    compacted = config(2, "a", "cleanup.policy", "compact")
    metadata = read(written(tmp_path, topic("a", 1), topic("b", 2), compacted, removed(1), removed(9), topic("a", 3)))
    assert settings_of(metadata) == {"b": {}, "a": {}}
    assert metadata.topic_ids["a"] == "AAAAAAAAAAAAAAAAAAAAAw"


def test_records_of_a_transaction_count_when_it_has_ended(tmp_path: Path) -> None:
    values = (
        BEGIN, topic("a", 1), END,
        BEGIN, topic("b", 2), ABORT,
        topic("c", 3),
        BEGIN, topic("d", 4),
    )  # fmt: skip
    assert sorted(read(written(tmp_path, *values)).topic_ids) == ["a", "c"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"\x02\x02\x00", "frame version 2"),
        (b"\x01\x02\x01" + text("a") + bytes(17), "version 1 of record type 2"),
        (topic("a", 1)[:-2], "a record that is too short"),
        (b"\x01\x04\x00\x02" + text("a") + text(None), "a missing name"),
        (b"\x01\x02\x00\x02\xff" + bytes(17), "a text that is not UTF-8"),
        (b"\x01\xff", "a record that is too short"),
        (b"", "a record that is too short"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(value: bytes, found: str, tmp_path: Path) -> None:
    path = written(tmp_path, topic("a", 1), topic("b", 2), value)
    with pytest.raises(CorruptLog) as raised:
        read(path)
    assert raised.value.problem == f"{found} in the metadata log"
    assert (raised.value.file, raised.value.offset) == (str(path / f"{0:020d}.log"), 2)


@pytest.mark.parametrize(
    ("properties", "number"),
    [("version=1\nnode.id=7\n", "7"), ("#x\nversion=0\nbroker.id=3\n", "3"), ("version=1\n", None), (None, None)],
)
def test_the_broker_of_a_directory(properties: str | None, number: str | None, tmp_path: Path) -> None:
    if properties is not None:
        (tmp_path / "meta.properties").write_text(properties)
    assert node_id(tmp_path) == number


def test_a_directory_is_renamed_by_what_its_release_knows(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("#\n#Thu Nov 19 2026\nversion=1\ncluster.id=old\nnode.id=1\n")
    rename_in_meta_properties(tmp_path, {"cluster.id": "new", "node.id": "2", "directory.id": "unknown to it"})
    assert meta_properties(tmp_path) == {"version": "1", "cluster.id": "new", "node.id": "2"}
