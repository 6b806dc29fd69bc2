"""What `lake status` tells, and that it reads rows and no extents for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from headstone.cli.main import main
from headstone.lake.format.spans import Span
from headstone.lake.lake import metastore_url
from headstone.lake.metastore.commits import Claim
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leases import FAILED, Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.status import PartitionStatus, Sums, lake_status
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from tests.lake.test_metastore import append


def sums(**more: int) -> Sums:
    none = Sums(partitions=1, due=0, extents=0, records=0, dead_records=0, bytes=0, dirty_bytes=0, dead_bytes=0)
    return replace(none, **more)


def test_totals_and_reasons_come_from_the_rows(metastore: Metastore) -> None:
    metastore.create_topic("orders", 2, {"min.cleanable.dirty.ratio": 0.4})
    metastore.create_topic("kept", 1, {"cleanup.policy": "delete"})
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    append(metastore, first, 0, 10)
    append(metastore, first, 10, 20)
    metastore.replace(first, 0, [], Claim(processed=Span(0, 10), cleaned=(Span(0, 10),)), {}, now_ms=2)
    (known, _) = metastore.partition(first).extents
    (made,) = metastore.register(1, now_ms=2)
    marked = replace(known, records=8, dead=2, dead_object=made)
    metastore.replace(first, 1, [marked], None, {made: 100}, now_ms=3)
    append(metastore, TopicPartition("kept", 0), 0, 5)
    board = Board()
    assert (metastore.check(board), board.expected, board.total()) == ([], 3, (3, 0))
    metastore.give_clock(50)
    statements: list[str] = []
    event.listen(metastore._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    status = lake_status(metastore)
    assert [text for text in statements if "extents" in text.partition("FROM")[2]] == []
    mine = sums(due=1, extents=2, records=18, dead_records=2, bytes=200, dirty_bytes=100, dead_bytes=20)
    kept = sums(extents=1, records=5, bytes=100, dirty_bytes=100)
    assert [(topic.topic, topic.sums) for topic in status.topics] == [
        ("kept", kept), ("orders", replace(mine, partitions=2)),
    ]  # fmt: skip
    assert status.sums == replace(mine, partitions=3, extents=3, records=23, bytes=300, dirty_bytes=200)
    assert status.topics[1].partitions[0] == PartitionStatus(
        partition=first, start_offset=0, next_offset=20, compaction_epoch=2, dirty_ratio=0.5, sums=mine, dead_since_ms=3,
        cleaned_ranges=(Span(0, 10),), tombstone_ranges=(), eligible=True, reason="dirty ratio 0.500 is above 0.4",
        waits_for="",
    )  # fmt: skip
    reasons = [partition.reason for topic in status.topics for partition in topic.partitions]
    assert reasons == [
        "cleanup.policy is delete: every record is kept", "dirty ratio 0.500 is above 0.4", "nothing is dirty",
    ]  # fmt: skip
    assert (status.now_ms, status.queue, status.working) == (50, (first,), {})
    assert second not in status.queue


def test_why_nobody_begins_is_told(metastore: Metastore) -> None:
    metastore.create_topic("t", 2)
    names, leases = metastore.partitions(), Leases(metastore)
    for name in names:
        append(metastore, name, 0, 10)
    leases.take(names[0], "worker", now_ms=10, lease_ms=100)
    leases.done(names[1], "worker", FAILED, {"why": "no disk"}, started_ms=5, now_ms=10, wait_ms=60)
    Holds(metastore).hold("reader", names[0], 4, expires_ms=99)
    metastore.give_clock(20)
    status = lake_status(metastore)
    assert [partition.waits_for for partition in status.topics[0].partitions] == [
        "worker works on it", "its last job failed: not before 1970-01-01 00:00:00 UTC, in 50 ms",
    ]  # fmt: skip
    assert (status.working, [hold.reader for hold in status.holds]) == ({names[0]: "worker"}, ["reader"])
    assert [(row.partition, row.outcome, row.details) for row in status.history] == [
        (names[1], FAILED, {"why": "no disk"})
    ]  # fmt: skip


def test_the_command_shows_totals_alone_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    metastore = Metastore.open(metastore_url(lake))
    metastore.create_topic("t", 2)
    append(metastore, TopicPartition("t", 0), 0, 10)
    metastore.close()
    capsys.readouterr()
    assert main(["lake", "status", lake, "--totals"]) == 0
    line = "2 partitions, 1 due; 10 records (and 0 dead), 100 bytes, 100 bytes dirty, in 1 extent"
    assert capsys.readouterr().out.splitlines() == [f"t: {line}", f"all: {line}", "queue: 1 partition"]
