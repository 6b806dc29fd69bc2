"""`spark.read.format("kafka-log")` against the oracle's own parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headstone.errors import CorruptLog, UsageError
from headstone.retention import survey
from headstone.spark.log_rows import HEADER_COLUMNS
from headstone.spark.record_columns import SCHEMA
from headstone.spark.source import QueryPart
from tests.logs import history_of, write_log
from tests.oracle.files import read_partition
from tests.spark.kafka_log import (
    LOG,
    check_that_filters_change_no_other_query,
    rows,
    rows_of,
    schema_of,
    source,
)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log(tmp_path / "logs", LOG)


def expected(log_dir: Path) -> list[tuple[object, ...]]:
    rows = []
    for segment in read_partition(log_dir / "t-0"):
        for batch in segment.batches:
            for record in batch.records:
                rows.append(
                    (
                        record.offset, record.timestamp, record.key, record.value,
                        [(name, value) for name, value in record.headers],
                        "LogAppendTime" if batch.log_append_time else "CreateTime",
                        batch.producer_id, batch.producer_epoch, batch.transactional,
                        batch.marker if batch.control else None, f"{segment.base:020d}.log",
                    )
                )  # fmt: skip
    return rows


def test_every_field_of_every_record(spark: SparkSession, log_dir: Path) -> None:
    frame = spark.read.format("kafka-log").load(str(log_dir))
    rows = [
        (
            r.offset, r.timestamp_ms, None if r.key is None else bytes(r.key), None if r.value is None else bytes(r.value),
            [(h.key, h.value) for h in r.headers], r.timestamp_type, r.producer_id, r.producer_epoch, r.transactional,
            r.control_type, r.segment,
        )
        for r in frame.orderBy("offset").collect()
    ]  # fmt: skip
    assert rows == expected(log_dir)


def test_visibility_is_what_a_read_committed_consumer_would_make_of_it(spark: SparkSession, log_dir: Path) -> None:
    rows = spark.read.format("kafka-log").load(str(log_dir)).orderBy("offset").collect()
    seen = {row.offset: row.visibility for row in rows}
    assert [seen[offset] for offset in range(3)] == ["committed"] * 3
    assert [seen[3], seen[4], seen[5]] == ["aborted", "aborted", "committed"]
    markers = [row.offset for row in rows if row.control_type is not None]
    assert [seen[offset] for offset in markers] == [None] * 3
    assert [row.visibility for row in rows if bytes(row.key or b"") == b"q"] == ["open"]


def test_options_read_only_what_they_name(spark: SparkSession, log_dir: Path) -> None:
    reader = spark.read.format("kafka-log")
    frame = reader.option("offsets", "4:8").load(str(log_dir))
    assert sorted(row.offset for row in frame.collect()) == [4, 5, 6, 7]
    assert {row.segment for row in frame.collect()} == {"0" * 20 + ".log", "00000000000000000007.log"}
    assert spark.read.format("kafka-log").option("partitions", "0").option("offsets", "4:").load(
        str(log_dir)
    ).count() == (len(expected(log_dir)) - 4)


def test_several_paths_are_read_as_one(spark: SparkSession, log_dir: Path) -> None:
    both = [str(log_dir), str(write_log(log_dir.parent / "more", "N[other]", "u-3"))]
    frame = spark.read.format("kafka-log").load(both)
    assert {(row.topic, row.partition) for row in frame.collect()} == {("t", 0), ("u", 3)}
    chosen = spark.read.format("kafka-log").option("partitions", "3").load(both)
    assert [(row.topic, row.partition, bytes(row.key)) for row in chosen.collect()] == [("u", 3, b"other")]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pushFilters": "true"}, "unknown option pushfilters; there are offsets, partitions"),
        ({"offset": "4:8"}, "unknown option offset; there are offsets, partitions"),
        ({"topic": "u"}, "no topic u; there is t"),
        ({"topic": "t,"}, "topic 't,': expected names, such as"),
        ({"upTo": "lso"}, "unknown option upto; there are offsets, partitions, path, paths, store.NAME, topic"),
        ({"partitions": "0,7"}, "no partition 7; there is 0"),
        ({"partitions": "-1"}, "-1 is not between 0 and 2147483647"),
        ({"partitions": ""}, 'expected numbers, such as "0,3"'),
        ({"offsets": "8:4"}, "8:4 is empty: the first offset must be below the second"),
        ({"offsets": "4:4"}, "4:4 is empty"),
        ({"offsets": "4"}, "4 is not A:B, such as 1000:2000 or 1000:"),
        ({"offsets": "-4:8"}, "-4 is not between 0 and 9223372036854775807"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_by_name(log_dir: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        source(log_dir, **options).reader(StructType()).partitions()


def test_a_refusal_reaches_the_one_who_asks_spark(spark: SparkSession, log_dir: Path) -> None:
    with pytest.raises(PySparkException, match="unknown option pushfilters; there are offsets, partitions"):
        spark.read.format("kafka-log").option("pushFilters", "true").load(str(log_dir)).count()


def test_filters_of_one_query_change_no_other_of_the_same_frame(spark: SparkSession, log_dir: Path) -> None:
    frame = spark.read.format("kafka-log").load(str(log_dir)).select("offset", "partition")
    check_that_filters_change_no_other_query(frame, [row["offset"] for row in rows(log_dir)])


def test_this_spark_gives_a_query_what_filters_of_another_left(spark: SparkSession) -> None:
    """Why the sources push no filters down. If this fails, Spark keeps a plan per scan now, and they can."""

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.numbers = [0, 1, 2]

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            for pushed in filters:
                if isinstance(pushed, EqualTo):
                    self.numbers = [pushed.value]
                yield pushed

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(number,) for number in self.numbers])

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushes-filters"

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Source)
    frame = spark.read.format("pushes-filters").load()
    assert frame.count() == 3
    frame = spark.read.format("pushes-filters").load()
    assert frame.filter("number = 1").count() == 1
    assert frame.count() == 1


def test_a_schema_chooses_columns_and_a_count_of_them_is_that_of_the_records(
    spark: SparkSession, log_dir: Path
) -> None:
    reader = spark.read.format("kafka-log").schema("visibility string, topic string")
    counts = reader.load(str(log_dir)).groupBy("topic", "visibility").count().collect()
    seen = [row["visibility"] for row in rows(log_dir)]
    assert {(row.topic, row.visibility): row["count"] for row in counts} == {
        ("t", kind): seen.count(kind) for kind in ("committed", "aborted", "open", None)
    }


def test_what_headers_tell_is_read_without_records(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is in the records is not looked at: not even their checksum."""
    told = [name for name in SCHEMA.names if name in HEADER_COLUMNS]
    whole = [{name: row[name] for name in told} for row in rows(log_dir)]
    assert len(told) == len(HEADER_COLUMNS)
    path = log_dir / "t-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)
    monkeypatch.setattr("headstone.spark.log_rows.HEADER_ROWS_MAX", 2)
    assert rows(log_dir, *told) == whole
    with pytest.raises(CorruptLog, match="wrong CRC-32C"):
        rows(log_dir, *told, "offset")


def test_headers_at_the_edge_of_a_range_are_counted_by_their_records(log_dir: Path) -> None:
    assert [row["batch_position"] for row in rows(log_dir, "batch_position", offsets="4:8")] == [
        row["batch_position"] for row in rows(log_dir) if 4 <= row["offset"] < 8  # type: ignore[operator]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (StructField("size", LongType()), "no column size; there are topic, partition, offset, timestamp,"),
        (StructField("offset", IntegerType()), "offset is bigint, not int"),
        (StructField("partition", StringType()), "partition is int, not string"),
    ],
)
def test_a_column_that_is_not_there_is_refused_by_name(log_dir: Path, field: StructField, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        source(log_dir).reader(StructType([field]))


def test_offsets_choose_chunks_before_anything_is_read(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "CHUNK_BYTES", 1)
    batches = [batch for segment in read_partition(log_dir / "t-0") for batch in segment.batches]
    for start in range(batches[-1].next_offset):
        for end in range(start + 1, batches[-1].next_offset + 1):
            planned = source(log_dir, offsets=f"{start}:{end}").reader(StructType()).partitions()
            cuts = [part.part.segment.cuts for part in planned if isinstance(part, QueryPart)]
            bases = [int(base) for chosen in cuts for base in chosen["offset"][:-1]]
            assert bases == [
                batch.base_offset for batch in batches if batch.next_offset > start and batch.base_offset < end
            ]


def test_a_log_that_grows_after_it_was_planned_is_read_as_it_was(tmp_path: Path) -> None:
    history = history_of("N[a]/zstd N[b] P1[c]")
    history.write_partition(tmp_path, "t-0")
    frames = [schema_of("offset"), schema_of("visibility")]
    readers = [source(tmp_path).reader(schema) for schema in frames]
    planned = [reader.partitions() for reader in readers]
    history.append("C1 N[d]")
    history.write_partition(tmp_path, "t-0")
    assert [rows_of(reader, parts) for reader, parts in zip(readers, planned, strict=True)] == [
        [{"offset": 0}, {"offset": 1}, {"offset": 2}],
        [{"visibility": "committed"}, {"visibility": "committed"}, {"visibility": "open"}],
    ]


@pytest.mark.parametrize("columns", [("offset",), ("partition",)])
def test_a_segment_that_is_another_than_planned_is_told(tmp_path: Path, columns: tuple[str, ...]) -> None:
    reader = source(write_log(tmp_path, "N[a] N[b] N[c]")).reader(schema_of(*columns))
    parts = reader.partitions()
    write_log(tmp_path, "N[x] N[b] N[c] N[d]")
    with pytest.raises(CorruptLog, match="the file changed"):
        list(reader.read(parts[0]))
