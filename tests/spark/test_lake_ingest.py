"""An ingest on Spark: the same extents as in one process, whose objects the executors have uploaded."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from headstone.lake.lake import Lake, create_lake
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.spark.engine import OnSpark


def made(root: Path, name: str) -> Lake:
    return create_lake(f"sqlite:///{root / name}.db", f"file://{root / name}", now_ms=0)


def extents(lake: Lake) -> dict[str, list[tuple[object, ...]]]:
    return {
        str(at): [(one.span, one.position, one.length, one.checksum) for one in lake.metastore.partition(at).extents]
        for at in lake.metastore.partitions()
    }


def test_an_ingest_on_spark_is_the_same(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    here, there = made(tmp_path, "here"), made(tmp_path, "there")
    logs = find_partitions([sample])
    for lake, engine in ((here, InProcess(1)), (there, OnSpark(lambda: spark, parallelism=2))):
        ingest(lake, logs, clock=lambda: 1, engine=engine, settings=LogIngestSettings(object_bytes=1_000_000))
    # Keys are digested under each lake's own secret, so only lists of keys differ, and those come behind the batches.
    assert extents(there) == extents(here)
    assert there.metastore.check() == []
    assert len(there.metastore.objects()) > 3
