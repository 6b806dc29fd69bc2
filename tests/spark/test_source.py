"""`spark.read.format("kafka-log")` against the oracle's own parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
    assert spark.read.format("kafka-log").option("partitions", "7").load(str(log_dir)).count() == 0


def test_pushed_filters_prune_and_do_not_change_the_answer(spark: SparkSession, log_dir: Path) -> None:
    def load() -> object:
        return spark.read.format("kafka-log").option("pushFilters", "true").load(str(log_dir))

    wanted = [row.offset for row in load().filter("offset >= 4 and offset < 7").orderBy("offset").collect()]  # type: ignore[attr-defined]
    assert wanted == [4, 5, 6]
    assert load().filter("partition = 3").count() == 0  # type: ignore[attr-defined]


def test_one_query_does_not_narrow_the_next(spark: SparkSession, log_dir: Path) -> None:
    frame = spark.read.format("kafka-log").load(str(log_dir))
    everything = frame.count()
    assert frame.filter("offset = 1").count() == 1
    assert frame.count() == everything
