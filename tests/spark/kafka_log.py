"""The source `kafka-log` without a session: what it plans, and the rows of that. And a log that has a bit of everything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import StructType

from headstone.spark.record_columns import SCHEMA
from headstone.spark.source import KafkaLogSource

LOG = "N[a,b,~c] P1[a,b]/zstd P2[x]/lz4 A1 | I3[k]@5000 P1[c]/gzip C2 N[_]/snappy C1 | P2[q] N[z]/lat"


def source(path: str | Path, **options: str) -> KafkaLogSource:
    return KafkaLogSource(CaseInsensitiveDict({"path": str(path), **options}))


def schema_of(*columns: str) -> StructType:
    return StructType([field for name in columns for field in SCHEMA.fields if field.name == name])


def rows_of(reader: Any, parts: Iterable[InputPartition]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def rows(path: str | Path, *columns: str, **options: str) -> list[dict[str, Any]]:
    reader = source(path, **options).reader(schema_of(*columns))
    return rows_of(reader, reader.partitions())


def check_that_filters_change_no_other_query(frame: DataFrame, offsets: list[int]) -> None:
    """Spark keeps one plan for a DataFrame: with push-down it is that of the query that came first."""
    first, low, high = offsets[0], offsets[1], offsets[-1]
    assert frame.filter(f"offset = {low}").count() == 1
    assert frame.count() == len(offsets)
    both = frame.filter(f"offset < {low}").union(frame.filter(f"offset >= {high}"))
    assert sorted(row.offset for row in both.collect()) == [first, high]
    early, late = frame.filter(f"offset < {high}").alias("early"), frame.filter(f"offset > {first}").alias("late")
    assert sorted(row.offset for row in early.join(late, on="offset").collect()) == offsets[1:-1]
    kept = frame.filter(f"offset = {low}").cache()
    assert [row.offset for row in kept.collect()] == [low]
    assert sorted(row.offset for row in frame.filter("partition = 0").collect()) == offsets
    kept.unpersist()
