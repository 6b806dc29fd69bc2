"""What the lake keeps of a topic: which one it is, and whether it is compacted at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.urgencies import urgencies
from headstone.lake.jobs.worker import Worker
from headstone.lake.lake import Lake
from headstone.lake.metastore.leases import Leases
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records
from headstone.log import checkpoints
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import AT, Scene
from tests.oracle.notation import TOPIC_ID, History

EVENTS = TopicPartition("events", 0)
ANOTHER_ID = "BBBBBBBBQACAAAAAAAAAAQ"


def log_of(root: Path, topic: str, text: str, number: int = 0) -> Path:
    history = History()
    history.append(text + " |")
    history.write_partition(root, f"{topic}-{number}")
    return root / f"{topic}-{number}"


def identify(partition: Path, topic_id: str) -> None:
    checkpoints.write_topic_id(partition / checkpoints.PARTITION_METADATA, topic_id)


def test_a_topic_that_was_created_again_is_refused(lake: Lake, tmp_path: Path) -> None:
    """It is longer than the old one was: nothing but its id tells them apart."""
    ingest(lake, find_partitions([log_of(tmp_path / "old", "events", "N[a] N[b]")]), clock=lambda: 1)
    before = lake.metastore.partition(EVENTS)
    again = log_of(tmp_path / "new", "events", "N[x] N[y] N[z] N[a]")
    identify(again, ANOTHER_ID)
    with pytest.raises(UsageError, match=f"has the topic with ID {TOPIC_ID}, but this one .*ID {ANOTHER_ID}.*new lake"):
        ingest(lake, find_partitions([again]), clock=lambda: 2)
    assert lake.metastore.partition(EVENTS) == before
    identify(again, TOPIC_ID)
    ingest(lake, find_partitions([again]), clock=lambda: 3)
    assert lake.metastore.partition(EVENTS).next_offset == 4


def test_a_topic_whose_id_nobody_told_gets_it_from_the_next_log(lake: Lake, tmp_path: Path) -> None:
    partition = log_of(tmp_path, "events", "N[a]")
    (partition / checkpoints.PARTITION_METADATA).unlink()
    ingest(lake, find_partitions([partition]), clock=lambda: 1)
    for topic_id in (TOPIC_ID, TOPIC_ID):
        identify(partition, topic_id)
        ingest(lake, find_partitions([partition]), clock=lambda: 2)
    identify(partition, ANOTHER_ID)
    with pytest.raises(UsageError, match="created again"):
        ingest(lake, find_partitions([partition]), clock=lambda: 3)


def test_partitions_of_two_topics_of_one_name_are_refused(lake: Lake, tmp_path: Path) -> None:
    """What is left of a deleted one beside its successor, in two log directories."""
    found = [log_of(tmp_path / str(number), "events", "N[a]", number) for number in range(2)]
    identify(found[1], ANOTHER_ID)
    with pytest.raises(UsageError, match=r"events: partitions of different topics.*events-0: AAAA.*events-1: BBBB"):
        ingest(lake, find_partitions(found), clock=lambda: 1)
    assert lake.metastore.topics() == {}


@pytest.mark.parametrize("policy", ["delete", "unknown", ""])
def test_a_topic_that_is_not_compacted_keeps_every_record(scene: Scene, policy: str) -> None:
    """Whoever asks, however dirty it is; its records are served."""
    scene.lake.metastore.configure("t", {"cleanup.policy": policy, "max.compaction.lag.ms": 1})
    scene.write("N[a]", "T[a]", "N[a]", "U")
    Leases(scene.lake.metastore).request(AT, now_ms=10**6)
    (state,) = urgencies(scene.lake, now_ms=10**7).values()
    assert (state.eligible, state.reason.startswith("cleanup.policy is ")) == (False, True)
    worker = Worker(name="w", lake=scene.lake, engine=InProcess(1), clock=lambda: 10**7, tell=lambda text: None)
    assert (worker.work(), scene.compact(now_ms=10**7).committed) == (0, False)
    assert [(offset, key) for offset, key, _ in scene.held()] == [(0, b"a"), (1, b"a"), (2, b"a"), (3, None)]


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
def test_a_topic_that_is_compacted_among_others_is(scene: Scene, policy: str) -> None:
    scene.lake.metastore.configure("t", {"cleanup.policy": policy})
    scene.write("N[a]", "N[a]")
    assert scene.compact(now_ms=10).records_after == 1


def test_a_broker_tells_which_topics_it_compacts(lake: Lake, tmp_path: Path) -> None:
    """Its cleaner has an entry for them. Of the others nobody knows, until somebody says it; then it is kept."""
    for topic in ("events", "users", "never"):
        log_of(tmp_path, topic, "N[a] N[a]")
    (tmp_path / checkpoints.META_PROPERTIES).write_text("version=1\n")
    checkpoints.write_offsets(tmp_path / checkpoints.CLEANER, {("users", 3): 1})
    ends = {(topic, 0): 2 for topic in ("events", "users", "never")}
    checkpoints.write_offsets(tmp_path / checkpoints.HIGH_WATERMARK, ends)
    ingest(lake, find_partitions([tmp_path]), clock=lambda: 1)
    assert lake.metastore.topics() == {
        "events": {"cleanup.policy": "unknown"}, "never": {"cleanup.policy": "unknown"}, "users": {}
    }  # fmt: skip
    ingest(
        lake, find_partitions([tmp_path / "events-0"]), clock=lambda: 2, settings=LogIngestSettings(policy="compact")
    )
    ingest(lake, find_partitions([tmp_path]), clock=lambda: 3)
    done = [compact_partition(lake, at, InProcess(1), now_ms=9).committed for at in lake.metastore.partitions()]
    assert done == [True, False, True]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["lake", *arguments, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_only_the_topics_that_are_named_are_ingested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, logs = str(tmp_path / "lake"), str(tmp_path / "logs")
    for topic in ("orders", "users", "events"):
        log_of(tmp_path / "logs", topic, "N[a] N[a]")
    told(capsys, "init", lake)
    some = told(capsys, "ingest", lake, logs, "--topic", "orders", "--topic", "events", "--cleanup-policy", "delete")
    assert [one["partition"] for one in some["partitions"]] == ["events-0", "orders-0"]
    status = told(capsys, "status", lake)
    kept = "cleanup.policy is delete: every record is kept"
    reasons = [(one["topic"], one["partitions"][0]["reason"]) for one in status["topics"]]
    assert reasons == [("events", kept), ("orders", kept)]
    for wrong, said in (
        (["--topic", "nosuch"], "no partition of topic nosuch"),
        (
            ["--topic", "users", "--topic-conf", "orders:delete.retention.ms=1"],
            "orders is not among the ingested topics",
        ),
        (["--continuous"], "--continuous is for clusters"),
    ):
        assert main(["lake", "ingest", lake, logs, *wrong]) == 2
        assert said in capsys.readouterr().err
    assert [one["topic"] for one in told(capsys, "status", lake)["topics"]] == ["events", "orders"]


def test_the_time_before_a_topic_was_known_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty answer would say that there was nothing."""
    where, begun = str(tmp_path / "lake"), 1_800_000_000_000
    log_of(tmp_path / "logs", "orders", "N[a]")
    told(capsys, "init", where, "--now-ms", str(begun - 1000))
    told(capsys, "ingest", where, str(tmp_path / "logs"), "--now-ms", str(begun))
    for moment in (1, begun - 1):
        for view in ("records", "table"):
            assert main(["lake", "read", where, "orders", "--view", view, "--as-of", str(moment)]) == 2
            assert "the lake has no topic orders before 2027-01-15 08:00:00 UTC (18000" in capsys.readouterr().err
    assert main(["lake", "read", where, "orders", "--as-of", str(begun + 10**6)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_empty_partition_beside_others_was_empty_then(lake: Lake, tmp_path: Path) -> None:
    ingest(lake, find_partitions([log_of(tmp_path, "events", "N[a]")]), clock=lambda: 50)
    lake.metastore.add_partitions("events", 2)
    later = TopicPartition("events", 1)
    assert list(records(lake, later, as_of_ms=60)) == []
    with pytest.raises(UsageError, match=r"before 1970-01-01 00:00:00 UTC \(50\)"):
        list(records(lake, later, as_of_ms=49))
