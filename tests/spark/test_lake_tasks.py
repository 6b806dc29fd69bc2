"""What a lake asks of lists of keys, by tasks of Spark: the answers that this process gives itself."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from headstone.lake.jobs import key_search
from headstone.lake.jobs.key_search import KeySearch, digest_of
from headstone.lake.transfer.reading import snapshots
from headstone.lake.transfer.table_view import TASK_KEYS_MAX, decided
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board
from headstone.spark.engine import OnSpark
from tests.lake.scene import AT, Scene


@pytest.fixture
def scene(new_lake: Scene) -> Scene:
    """With a dead record."""
    made = new_lake
    made.write(*(f"N[k{i}]" for i in range(10)))
    made.compact(now_ms=100)
    made.write("N[k1]", "T[k2]", "N[e]/lz4", now_ms=200)
    assert made.compact(now_ms=300).extents_marked == 1
    made.write("N[d]", "T[e]", "N[f]", now_ms=400)
    return made


@pytest.mark.parametrize("keys_max", [1, TASK_KEYS_MAX])
def test_the_table_is_decided_by_tasks(spark: SparkSession, scene: Scene, keys_max: int) -> None:
    """By one task, or by one per extent with a shuffle behind."""
    store, hash_key, states = scene.lake.store, scene.lake.metastore.hash_key, snapshots(scene.lake, [AT])
    expected, board = decided(store, hash_key, states, InProcess()), Board()
    assert sum(live.records for live in expected[AT]) == len(scene.table()) > 0
    engine = OnSpark(lambda: spark, parallelism=2)
    assert decided(store, hash_key, states, engine, board, keys_max=keys_max) == expected
    assert board.total()[0] == board.expected > 0
    board.close()


def test_keys_are_searched_by_tasks(spark: SparkSession, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_search, "SHARE_BYTES", 1)
    digests = [digest_of(key, scene.lake.metastore.hash_key) for key in (b"k1", b"k2", b"e", b"nobody")]
    here, there = (
        KeySearch(scene.lake, engine).records("t", digests)
        for engine in (InProcess(), OnSpark(lambda: spark, parallelism=2))
    )
    assert [(hit.offset, hit.tombstone, hit.shown) for hit in here] == [
        (1, False, False), (2, False, False), (10, False, True), (11, True, True), (12, False, True), (14, True, True)
    ]  # fmt: skip
    assert there == here
