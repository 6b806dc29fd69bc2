"""`spark.read.format("headstone")`: records, the table, the past, while compaction goes on."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from headstone.errors import UsageError
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.transfer.reading import records
from headstone.spark.engine import OnSpark
from headstone.spark.lake_selection import RecordsPart, runs
from headstone.spark.lake_source import HeadstoneSource
from tests.lake.scene import AT, RETENTION_MS, Scene
from tests.spark.kafka_log import check_that_filters_change_no_other_query, rows_of, schema_of


@pytest.fixture
def scene(new_lake: Scene) -> Scene:
    new_lake.write("N[a,b]/zstd", "N[~c]", "N[d]/lat", now_ms=100)
    new_lake.write("N[a]", "T[b]", "N[e]/lz4", now_ms=200)
    return new_lake


def load(spark: SparkSession, tmp_path: Path, **options: str) -> list[Any]:
    reader = spark.read.format("headstone").option("topic", "t").options(**options)
    return reader.load(str(tmp_path / "lake")).orderBy("partition", "offset").collect()


def test_records_are_those_of_the_lake(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    rows = [
        (row.offset, row.key, row.value, row.timestamp_ms, [(pair.key, pair.value) for pair in row.headers])
        for row in load(spark, tmp_path)
    ]
    assert rows == [
        (one.offset, one.key, one.value, one.timestamp_ms, list(one.headers)) for one in records(scene.lake, AT)
    ]
    assert {row.timestamp_type for row in load(spark, tmp_path)} == {"CreateTime", "LogAppendTime"}


def test_rows_of_the_lake_and_of_its_log_are_the_same_columns(
    spark: SparkSession, scene: Scene, tmp_path: Path
) -> None:
    """What the lake does not know is null there: who produced a record, and in which segment it was."""
    lake = spark.read.format("headstone").option("topic", "t").load(str(tmp_path / "lake"))
    log = spark.read.format("kafka-log").option("topic", "t").load(str(tmp_path / "log"))
    assert lake.schema == log.schema
    unknown = ("producer_id", "producer_epoch", "sequence", "segment", "batch_position")
    known = [name for name in log.columns if name not in unknown]
    both = lake.union(log).select(*known).groupBy(*known).count().collect()
    assert {row["count"] for row in both} == {2}
    by_name = lake.unionByName(log).filter("segment IS NULL").select("offset", *unknown).collect()
    assert sorted(tuple(row) for row in by_name) == [(offset, None, None, None, None, None) for offset in range(7)]


@pytest.mark.parametrize("view", ["records", "table"])
def test_filters_of_one_query_change_no_other_of_the_same_frame(
    spark: SparkSession, scene: Scene, tmp_path: Path, view: str
) -> None:
    offsets = [row.offset for row in load(spark, tmp_path, view=view)]
    assert len(offsets) == (7 if view == "records" else len(scene.table())) > 2
    reader = spark.read.format("headstone").option("topic", "t").option("view", view)
    frame = reader.load(str(tmp_path / "lake")).select("offset", "partition")
    check_that_filters_change_no_other_query(frame, offsets)


def test_offsets_and_columns_are_chosen_by_the_reader(scene: Scene, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "lake"), "topic": "t", "offsets": "1:5"}
    schema = schema_of("partition", "offset")
    reader = HeadstoneSource(CaseInsensitiveDict(options)).reader(schema)
    assert rows_of(reader, reader.partitions()) == [{"partition": 0, "offset": offset} for offset in range(1, 5)]
    named = {**options, "startingOffsets": '{"t": {"0": 3}}', "endingOffsets": '{"t": {"0": -1}}'}
    reader = HeadstoneSource(CaseInsensitiveDict(named)).reader(schema)
    assert [row["offset"] for row in rows_of(reader, reader.partitions())] == [3, 4]
    late = HeadstoneSource(CaseInsensitiveDict({**options, "offsets": "4:"})).reader(schema).partitions()
    assert [extent.span.start for part in late if isinstance(part, RecordsPart) for extent in part.extents] == [4]


def test_the_table_is_the_newest_of_every_key(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    expected = scene.table()
    assert {bytes(row.key): bytes(row.value) for row in load(spark, tmp_path, view="table")} == expected
    scene.compact(now_ms=300)
    assert {bytes(row.key): bytes(row.value) for row in load(spark, tmp_path, view="table")} == expected


def test_a_large_partition_is_many_parts_that_know_no_metastore(scene: Scene, tmp_path: Path) -> None:
    scene.write("N[f,g]", now_ms=300)
    for view in ("records", "table"):
        options = {"path": str(tmp_path / "lake"), "topic": "t", "view": view}
        source = HeadstoneSource(CaseInsensitiveDict(options))
        reader = source.reader(StructType())
        sent = pickle.dumps((source, reader, reader.partitions()))
        assert b"metastore.db" not in sent
        assert b"objects" in sent
    assert list(runs([3, 4, 5, 9, 1], int, 8)) == [(3, 4), (5,), (9,), (1,)]


def test_the_past_and_a_plan_that_a_compaction_overtakes(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    reader = spark.read.format("headstone").option("topic", "t")
    scene.compact(now_ms=300)
    scene.compact(now_ms=300 + RETENTION_MS)
    now = [row.offset for row in load(spark, tmp_path)]
    assert [row.offset for row in load(spark, tmp_path, asOf="250")] == list(range(7))
    for moment in ("1970-01-01 00:00:00.150", "1970-01-01T02:00:00.150+02:00"):
        assert [row.offset for row in load(spark, tmp_path, asOf=moment)] == list(range(4))
    assert len(now) < 7
    assert reader.option("partitions", "0").load(str(tmp_path / "lake")).count() == len(now)


def test_what_was_planned_is_pinned_for_as_long_as_it_is_told(scene: Scene, tmp_path: Path) -> None:
    scene.lake.metastore.give_clock(300)
    options = {"path": str(tmp_path / "lake"), "topic": "t", "pinMs": "5000"}
    reader = HeadstoneSource(CaseInsensitiveDict(options)).reader(StructType())
    parts = reader.partitions()
    scene.compact(now_ms=400)
    assert collect(scene.lake, garbage(scene.lake, now_ms=5299, grace_ms=0)) == []
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 7
    assert collect(scene.lake, garbage(scene.lake, now_ms=5300, grace_ms=0)) != []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"topic": "none"}, "no topic none; there is t"),
        ({"offsets": "9:3"}, "9:3 is empty"),
        ({"offsets": "0:3", "view": "table"}, "offsets are of records"),
        ({"view": "best"}, "records and table"),
        ({"startingOffsets": "first"}, "startingOffsets 'first': earliest, latest, or offsets by topic and partition"),
        ({"endingOffsets": '{"t": {"0": -3}}'}, "endingOffsets"),
        ({"startingOffsets": '{"t": {"7": 0}}'}, "offsets of t-7: there is no such partition"),
        ({"asOf": "yesterday"}, "milliseconds since 1970"),
        ({"asOf": "-1"}, "milliseconds since 1970"),
        ({"partitions": "x"}, "expected numbers"),
        ({"partitions": "0,1"}, "no partition 1; there is 0"),
        ({"partition": "0"}, "unknown option partition; there are asOf, endingOffsets, lake, offsets, partitions, "),
    ],
)
def test_what_is_wrong_is_said(scene: Scene, tmp_path: Path, options: dict[str, str], why: str) -> None:
    source = HeadstoneSource(CaseInsensitiveDict({"path": str(tmp_path / "lake"), "topic": "t", **options}))
    with pytest.raises(UsageError, match=why):
        source.reader(StructType()).partitions()


def test_a_compaction_on_spark_is_the_same(spark: SparkSession, scene: Scene, tmp_path: Path) -> None:
    engine = OnSpark(lambda: spark, parallelism=2)
    expected = scene.table()
    done = compact_partition(scene.lake, AT, engine, now_ms=300)
    assert (done.committed, scene.table(), scene.lake.metastore.check()) == (True, expected, [])
    assert [key for _, key, _ in scene.held()] == [b"c", b"d", b"a", b"b", b"e"]
