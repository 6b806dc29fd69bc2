"""`spark.readStream.format("headstone")`: what comes into a lake, each record once, whatever compaction does meanwhile."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from headstone.errors import UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.metastore.pins import Pins
from headstone.spark.lake_source import HeadstoneSource
from tests.lake.scene import AT, Scene


@pytest.fixture
def scene(new_lake: Scene) -> Scene:
    new_lake.write("N[a,b]", now_ms=100)
    new_lake.write("N[a,c]", now_ms=200)
    new_lake.lake.metastore.give_clock(200)
    return new_lake


def follow(tmp_path: Path, **options: str) -> Any:
    given = CaseInsensitiveDict({"path": str(tmp_path / "lake"), "topic": "t", **options})
    return HeadstoneSource(given).streamReader(StructType())


def read(stream: Any, start: dict[str, int], end: dict[str, int]) -> list[int]:
    """By executors, which get a copy of the reader and their part."""
    sent = pickle.dumps((stream, stream.partitions(start, end)))
    assert b"metastore.db" not in sent
    reader, parts = pickle.loads(sent)
    return [offset for part in parts for batch in reader.read(part) for offset in batch.column("offset").to_pylist()]


def test_each_record_comes_once_while_the_log_grows_and_is_compacted(scene: Scene, tmp_path: Path) -> None:
    stream = follow(tmp_path)
    first = stream.initialOffset()
    second = stream.latestOffset(first)
    assert (first, second, read(stream, first, second)) == ({"t-0": 0}, {"t-0": 4}, [0, 1, 2, 3])
    scene.compact(now_ms=300)
    scene.write("N[d]", now_ms=400)
    third = stream.latestOffset(second)
    assert (third, read(stream, second, third), read(stream, {"t-0": 1}, third)) == ({"t-0": 5}, [4], [1, 2, 3, 4])


def test_what_a_batch_reads_is_pinned_until_the_next_is_planned(scene: Scene, tmp_path: Path) -> None:
    stream, pins = follow(tmp_path), Pins(scene.lake.metastore)
    parts = stream.partitions({"t-0": 0}, {"t-0": 4})
    scene.compact(now_ms=300)
    assert collect(scene.lake, garbage(scene.lake, now_ms=400, grace_ms=0)) == []
    assert [batch.num_rows for part in parts for batch in stream.read(part)] == [2, 2]
    stream.partitions({"t-0": 4}, {"t-0": 4})
    stream.commit({"t-0": 4})
    assert len(pins.all()) == 1
    stream.stop()
    assert pins.all() == []


def test_it_begins_where_it_is_told(scene: Scene, tmp_path: Path) -> None:
    assert follow(tmp_path, startingOffsets="latest").initialOffset() == {"t-0": 4}
    assert follow(tmp_path, startingOffsets=json.dumps({"t": {"0": 3}})).initialOffset() == {"t-0": 3}


def test_what_was_lost_unread_ends_the_stream_or_is_passed_over(scene: Scene, tmp_path: Path) -> None:
    scene.lake.metastore.start_at(AT, 2, now_ms=300)
    with pytest.raises(UsageError, match="t-0 begins at offset 2 now: those from 0 on are gone unread"):
        follow(tmp_path).partitions({"t-0": 0}, {"t-0": 4})
    with pytest.raises(UsageError, match="t-0 ends at offset 4 now, and was read up to 9"):
        follow(tmp_path).latestOffset({"t-0": 9})
    with pytest.raises(UsageError, match="t-5 is gone"):
        follow(tmp_path).partitions({"t-0": 2, "t-5": 0}, {"t-0": 4, "t-5": 1})
    assert read(follow(tmp_path, failOnDataLoss="false"), {"t-0": 0}, {"t-0": 4}) == [2, 3]


def test_the_table_is_no_stream(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a stream is of records"):
        follow(tmp_path, view="table")
    with pytest.raises(UsageError, match="unknown option asof"):
        follow(tmp_path, asOf="5")


def test_spark_streams_a_lake(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    rows = spark.readStream.format("headstone").option("topic", "t").option("maxOffsetsPerTrigger", "3")
    query = (
        rows.load(str(tmp_path / "lake")).select("offset", "key").writeStream.format("memory").queryName("followed")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(180)
    found = spark.sql("SELECT offset, CAST(key AS string) AS key FROM followed ORDER BY offset").collect()
    assert [tuple(row) for row in found] == [(0, "a"), (1, "b"), (2, "a"), (3, "c")]
