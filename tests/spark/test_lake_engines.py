"""Leveling, export and restore by tasks of Spark: what this process makes of the same lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headstone.lake.jobs.leveling import Leveled, level_partitions
from headstone.lake.lake import Lake, create_lake
from headstone.lake.transfer.export_cluster import brokers_of
from headstone.lake.transfer.export_run import requested, run_export
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board
from headstone.spark.engine import OnSpark
from headstone.storage.places import place
from tests.lake.restoring import restored
from tests.lake.test_export_interrupted import tree
from tests.lake.twin import TwinOnDisk

EXTENT_BYTES, LEVELED_BYTES = 20_000, 1_000_000


def made(root: Path, sample: Path) -> Lake:
    """Three topics of one partition each, in extents that are small."""
    root.mkdir()
    lake = create_lake(f"sqlite:///{root / 'lake.db'}", f"file://{root / 'objects'}", now_ms=0)
    ingest(lake, find_partitions([sample]), clock=lambda: 1, settings=LogIngestSettings(extent_bytes=EXTENT_BYTES))
    return lake


@pytest.fixture
def lake(sample: Path, tmp_path: Path) -> Iterator[Lake]:
    lake = made(tmp_path / "lake", sample)
    yield lake
    lake.close()


@pytest.fixture
def engines(spark: SparkSession) -> dict[str, Engine]:
    return {"here": InProcess(1), "there": OnSpark(lambda: spark, parallelism=2)}


def test_an_export_is_the_same(lake: Lake, engines: dict[str, Engine], tmp_path: Path) -> None:
    ids = {f"t{number}": f"AAAAAAAAQACAAAAAAAAAA{number}" for number in range(3)}
    for name in ids:
        lake.metastore.configure(name, {"segment.bytes": 100_000})
    for name, engine in engines.items():
        brokers, board = brokers_of([place(str(tmp_path / name))]), Board()
        done = run_export(
            lake, requested(brokers, [], topic_ids=ids), brokers, engine, reader=name, board=board
        ).exported  # fmt: skip
        assert [exported.segments > 1 for exported in done] == [True] * 3
        assert board.total()[0] == board.expected > 0
        board.close()
    assert tree(tmp_path / "there") == tree(tmp_path / "here")


def test_leveling_is_the_same(sample: Path, engines: dict[str, Engine], tmp_path: Path) -> None:
    """Keys are digested under each lake's own secret, so only lists of keys differ, and those come behind the batches."""
    outcomes = {}
    for name, engine in engines.items():
        lake, board = made(tmp_path / name, sample), Board()
        names = lake.metastore.partitions()
        before = [list(records(lake, partition)) for partition in names]
        done = level_partitions(
            lake, names, clock=lambda: 2, extent_bytes=LEVELED_BYTES, engine=engine, board=board
        )  # fmt: skip
        leveled = [outcome for outcome in done.values() if isinstance(outcome, Leveled)]
        assert len(leveled) == len(names)
        assert ([list(records(lake, partition)) for partition in names], lake.metastore.check()) == (before, [])
        outcomes[name] = (
            [(merged.extents_before, merged.extents_after) for merged in leveled],
            [(one.span, one.length, one.checksum) for at in names for one in lake.metastore.partition(at).extents],
            board.total(),
        )
        assert board.total()[0] == board.expected
        lake.close()
    assert outcomes["there"] == outcomes["here"]
    assert any(after < before for before, after in outcomes["here"][0])


def test_a_restore_is_the_same(lake: Lake, engines: dict[str, Engine], tmp_path: Path) -> None:
    answers = {}
    for name, engine in engines.items():
        cluster, board = TwinOnDisk(tmp_path / name), Board()
        done, offsets = restored(lake, "t0", "again", cluster, engine=engine, board=board)
        answers[name] = (done, offsets, cluster.log(TopicPartition("again", 0)), board.total())
        board.close()
    assert answers["there"] == answers["here"]
    assert answers["here"][2] == list(records(lake, TopicPartition("t0", 0)))
