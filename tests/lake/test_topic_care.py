"""`headstone lake topics` and `retain`: made, described, altered, dropped, let go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, make_lakes_own, request_erasure
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.catalog import PartitionRow
from headstone.lake.metastore.erasure_steps import ERASED
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leases import Leases
from headstone.lake.topics import alter_topic, create_topic, drop_topic
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import records
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.oracle.notation import TOPIC_ID, History

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)


def filled(lake: Lake, root: Path) -> None:
    """Two topics that share an object, and a compaction that leaves another one."""
    for topic, text in (("orders", "N[a] N[a] N[b]"), ("users", "N[c] N[d]")):
        history = History()
        history.append(text + " |")
        history.write_partition(root / "logs", f"{topic}-0")
    ingest(lake, find_partitions([root / "logs"]), clock=lambda: 5)
    compact_partition(lake, ORDERS, InProcess(1), now_ms=10)


@pytest.fixture
def any_lake(metastore_url: str, tmp_path: Path) -> Lake:
    return create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)


def test_a_dropped_topic_is_forgotten_and_its_objects_are_garbage(any_lake: Lake, tmp_path: Path) -> None:
    """Those that another topic shares stay; requests, leases and the past go along."""
    filled(any_lake, tmp_path)
    shared = {extent.object_id for extent in any_lake.metastore.partition(USERS).extents}
    Leases(any_lake.metastore).request(ORDERS, now_ms=11)
    assert Leases(any_lake.metastore).take(ORDERS, "worker", now_ms=11)
    assert drop_topic(any_lake, "orders", now_ms=20) == 1
    assert [row.topic for row in any_lake.metastore.topic_rows()] == ["users"]
    assert any_lake.metastore.partitions() == [USERS]
    with pytest.raises(UsageError, match="no partition orders-0"):
        any_lake.metastore.partition(ORDERS)
    assert garbage(any_lake, now_ms=100, grace_ms=100).rows == []
    collect(any_lake, garbage(any_lake, now_ms=100, grace_ms=50))
    assert set(any_lake.metastore.objects()) == shared
    assert [entry.key for entry in records(any_lake, USERS)] == [b"c", b"d"]
    assert any_lake.metastore.check() == []
    with pytest.raises(UsageError, match="no topic orders"):
        drop_topic(any_lake, "orders", now_ms=21)
    create_topic(any_lake, "orders", 2, {})
    empty = {"start_offset": 0, "next_offset": 0, "compaction_epoch": 0, "extents": 0, "records": 0, "bytes": 0}
    assert any_lake.metastore.topic_rows()[0].partitions == tuple(
        PartitionRow(partition=number, **empty) for number in range(2)
    )


def test_what_is_made_and_altered_is_checked(lake: Lake) -> None:
    create_topic(lake, "orders", 3, {"delete.retention.ms": "60", "cleanup.policy": "compact,delete"})
    alter_topic(lake, "orders", {"retention.ms": "1000", "delete.retention.ms": "70"})
    (row,) = lake.metastore.topic_rows()
    assert (row.kafka_id, len(row.partitions)) == (None, 3)
    assert row.settings == {"delete.retention.ms": "70", "cleanup.policy": "compact,delete", "retention.ms": "1000"}
    for settings, said in (
        ({"retention": "1"}, "no topic setting retention; did you mean retention.ms"),
        ({"retention.ms": "-2"}, "between -1 and"),
        ({"retention.ms": "soon"}, "not a duration"),
        ({"cleanup.policy": "compact,erase"}, "compact, delete or compact,delete"),
        ({"cleanup.policy": ""}, "compact, delete or compact,delete"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "between 0 and 1"),
    ):
        with pytest.raises(UsageError, match=said):
            alter_topic(lake, "orders", settings)
        with pytest.raises(UsageError, match=said):
            create_topic(lake, "others", 1, settings)
    for name in ("", "..", "a b", "x" * 250):
        with pytest.raises(UsageError, match="not a valid topic name"):
            create_topic(lake, name, 1, {})
    with pytest.raises(UsageError, match="no topic users"):
        alter_topic(lake, "users", {"retention.ms": "1"})
    assert lake.metastore.topic_rows() == [row]


def test_offsets_that_were_given_away_do_not_come_back(lake: Lake) -> None:
    create_topic(lake, "orders", 1, {})
    make_lakes_own(lake, "orders")
    alter_topic(lake, "orders", {"retention.ms": "1", "headstone.source": "lake"})
    with pytest.raises(UsageError, match="cannot be taken back"):
        alter_topic(lake, "orders", {"headstone.source": "kafka"})


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert main(["lake", *arguments, "--output", "json"]) == code
    said = capsys.readouterr().out
    return json.loads(said) if said else None


def test_topics_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(tmp_path / "lake")
    told(capsys, "init", where, "--now-ms", "0")
    lake = create_lake(f"sqlite:///{tmp_path / 'other.db'}", f"file://{tmp_path / 'other'}", now_ms=0)
    filled(lake, tmp_path)
    told(capsys, "ingest", where, str(tmp_path / "logs"))
    told(capsys, "topics", where, "create", "events", "--partitions", "2", "--conf", "cleanup.policy=delete")
    listed = told(capsys, "topics", where)["topics"]
    assert [(row["topic"], row["kafka_id"], row["cleanup_policy"], len(row["partitions"])) for row in listed] == [
        ("events", None, "delete", 2), ("orders", TOPIC_ID, "compact", 1), ("users", TOPIC_ID, "compact", 1)
    ]  # fmt: skip
    settings = ("--conf", "cleanup.policy=compact,delete", "--conf", "retention.ms=100")
    altered = told(capsys, "topics", where, "alter", "orders", *settings)
    assert altered == told(capsys, "topics", where, "describe", "orders")
    assert [(part["next_offset"], part["extents"], part["records"]) for part in altered["partitions"]] == [(3, 1, 3)]
    expired = told(capsys, "retain", where, "--now-ms", "2000")
    assert ([part["start_after"] for part in expired["partitions"]], expired["applied"]) == ([3], False)
    assert told(capsys, "topics", where, "describe", "orders") == altered
    told(capsys, "retain", where, "--topic", "orders", "--apply")
    (log,) = told(capsys, "topics", where, "describe", "orders")["partitions"]
    assert (log["start_offset"], log["next_offset"], log["records"]) == (3, 3, 0)
    assert told(capsys, "retain", where, "--apply")["partitions"] == []
    assert told(capsys, "topics", where, "drop", "orders", "--dry-run")["dropped"] is False
    told(capsys, "topics", where, "drop", "orders", code=2)
    assert [row["topic"] for row in told(capsys, "topics", where)["topics"]] == ["events", "orders", "users"]
    assert told(capsys, "topics", where, "drop", "orders", "--yes")["dropped"] is True
    for wrong in (["describe"], ["describe", "orders"], ["alter", "users"], ["drop", "orders", "--yes"]):
        told(capsys, "topics", where, *wrong, code=2)
    told(capsys, "retain", where, "--topic", "orders", code=2)
    for verb in ([], ["describe", "users"]):
        assert main(["lake", "topics", where, *verb]) == 0
        assert "users" in capsys.readouterr().out


def test_keys_of_a_dropped_topic_are_erased_too(lake: Lake, tmp_path: Path) -> None:
    """Another topic's extent keeps the object; the erasure, which was asked for before, empties it."""
    filled(lake, tmp_path)
    lake.metastore.create_topic("others", 1)
    request_erasure(lake, "orders", [b"b"], deadline_ms=10**6, clock=lambda: 11)
    drop_topic(lake, "orders", now_ms=12)
    assert [sighting.state for sighting in prove_erased(lake, "orders", b"b").sightings] == ["unreferenced"] * 2
    for now_ms in (20, 200):
        carry_on_erasures(Tools(lake=lake, engine=InProcess(1), clock=lambda moment=now_ms: moment, grace_ms=100))
    assert [erasure.step for erasure in Erasures(lake.metastore).all()] == [ERASED, ERASED]
    assert prove_erased(lake, "orders", b"b").verdict == "erased"
    assert [entry.key for entry in records(lake, USERS)] == [b"c", b"d"]


def test_records_before_an_offset_are_deleted_when_somebody_says_yes(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(lake, tmp_path)
    command = ["lake", "topics", f"sqlite:///{tmp_path / 'lake.db'}", "delete-records", "users", "--partition", "0"]

    def shown() -> list[bytes | None]:
        return [entry.key for entry in records(lake, USERS)]

    assert main([*command, "--before", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "users-0: would begin at 1, it begins at 0; nothing was changed\n"
    assert main([*command, "--before", "1"]) == 2
    assert ("use --yes to skip the question" in capsys.readouterr().err, shown()) == (True, [b"c", b"d"])
    assert main([*command, "--before", "1", "--yes"]) == 0
    assert (capsys.readouterr().out, shown()) == ("users-0: now starts at 1, before at 0\n", [b"d"])
    assert main([*command, "--before", "0", "--yes", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "partition": "users-0", "start_before": 1, "start_after": 1, "applied": False,
    }  # fmt: skip
    assert main([*command, "--before", "3", "--yes"]) == 2
    assert "users-0 ends at 2: cannot delete records before offset 3" in capsys.readouterr().err
    assert main([*command[:-1], "7", "--before", "1", "--yes"]) == 2
    assert "the lake has no users-7" in capsys.readouterr().err
    assert main([*command, "--yes"]) == 2
    assert ("--before OFFSET" in capsys.readouterr().err, shown()) == (True, [b"d"])


def test_records_that_a_reader_holds_are_not_deleted(
    lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(lake, tmp_path)
    Holds(lake.metastore).hold("reader", USERS, 1, expires_ms=10**9)
    command = [
        "lake",
        "topics",
        f"sqlite:///{tmp_path / 'lake.db'}",
        "delete-records",
        "users",
        "--partition",
        "0",
        "--yes",
    ]
    assert main([*command, "--before", "2"]) == 3
    assert "reader holds users-0 from offset 1" in capsys.readouterr().err
    assert main([*command, "--before", "1"]) == 0
