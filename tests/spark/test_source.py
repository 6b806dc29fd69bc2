"""`spark.read.format("kafka-log")` against the oracle's own parser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from headstone.errors import UsageError
from headstone.spark.source import KafkaLogSource
from tests.oracle.files import read_partition
from tests.oracle.notation import History

LOG = "N[a,b,~c] P1[a,b]/zstd P2[x]/lz4 A1 | I3[k]@5000 P1[c]/gzip C2 N[_]/snappy C1 | P2[q] N[z]/lat"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    history = History()
    history.append(LOG)
    history.write_partition(tmp_path / "logs", "t-0")
    history.write_partition(tmp_path / "logs", "t-0")
    return tmp_path / "logs"


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
    source = spark.read.format("kafka-log")
    frame = source.option("offsets", "4:8").load(str(log_dir))
    assert sorted(row.offset for row in frame.collect()) == [4, 5, 6, 7]
    assert {row.segment for row in frame.collect()} == {"0" * 20 + ".log", "00000000000000000007.log"}
    assert spark.read.format("kafka-log").option("partitions", "0").option("offsets", "4:").load(
        str(log_dir)
    ).count() == (len(expected(log_dir)) - 4)


def test_several_paths_are_read_as_one(spark: SparkSession, log_dir: Path) -> None:
    history = History()
    history.append("N[other]")
    history.write_partition(log_dir.parent / "more", "u-3")
    frame = spark.read.format("kafka-log").load([str(log_dir), str(log_dir.parent / "more")])
    assert {(row.topic, row.partition) for row in frame.collect()} == {("t", 0), ("u", 3)}
    chosen = spark.read.format("kafka-log").option("partitions", "3").load([str(log_dir), str(log_dir.parent / "more")])
    assert [(row.topic, row.partition, bytes(row.key)) for row in chosen.collect()] == [("u", 3, b"other")]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"pushFilters": "true"}, "unknown option pushfilters; there are offsets, partitions"),
        ({"offset": "4:8"}, "unknown option offset; there are offsets, partitions"),
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
    source = KafkaLogSource(CaseInsensitiveDict({"path": str(log_dir), **options}))
    with pytest.raises(UsageError, match=re.escape(why)):
        source.reader(StructType()).partitions()


def test_a_refusal_reaches_the_one_who_asks_spark(spark: SparkSession, log_dir: Path) -> None:
    with pytest.raises(PySparkException, match="unknown option pushfilters; there are offsets, partitions"):
        spark.read.format("kafka-log").option("pushFilters", "true").load(str(log_dir)).count()


def test_filters_of_one_query_change_no_other_of_the_same_frame(spark: SparkSession, log_dir: Path) -> None:
    """Spark keeps one plan for a DataFrame: with push-down it is that of the query that came first."""
    frame = spark.read.format("kafka-log").load(str(log_dir))
    assert frame.filter("offset = 1").count() == 1
    assert frame.count() == len(expected(log_dir))
    both = frame.filter("offset < 2").select("offset").union(frame.filter("offset >= 9").select("offset"))
    assert sorted(row.offset for row in both.collect()) == [row[0] for row in expected(log_dir) if not 2 <= row[0] < 9]  # type: ignore[operator]
