"""`kafka-log` over an object store: the same rows as over the directory that was copied there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headstone.spark.log_stream import KafkaLogStream
from headstone.spark.source import FarPart
from headstone.storage.access import FROM_ENVIRONMENT
from headstone.storage.stores import Store, store_of
from testbed.s3 import BUCKET as BUCKET_ON_S3
from tests.logs import files_of, history_of, write_log
from tests.oracle.notation import History
from tests.spark.kafka_log import LOG, rows, rows_of, schema_of, source

BUCKET = "memory://kafka-log"


def copy(root: Path, prefix: str) -> str:
    """As a plain copy tool would: files with their names, those that are new or have another size."""
    store = store_of(BUCKET, FROM_ENVIRONMENT)
    there = {name: store.size(name) for name in store.list(prefix)}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = f"{prefix}/{path.relative_to(root)}"
        if there.get(name) != path.stat().st_size:
            store.put(name, path.read_bytes())
    return f"{BUCKET}/{prefix}"


@pytest.fixture
def history() -> History:
    return history_of(LOG)


@pytest.fixture
def url(history: History, tmp_path: Path) -> Iterator[str]:
    history.write_partition(tmp_path / "logs", "t-0")
    write_log(tmp_path / "logs", "N[a] P1[b] C1", "t-1")
    prefix = uuid.uuid4().hex
    yield copy(tmp_path / "logs", prefix)
    store = store_of(BUCKET, FROM_ENVIRONMENT)
    store.delete(store.list(prefix))


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ([], {}),
        ([], {"offsets": "4:9"}),
        (["offset", "key"], {}),
        (["offset", "value"], {"offsets": "8:9"}),
        (["partition", "segment", "batch_position"], {}),
        (["partition", "batch_position"], {"offsets": "1:9"}),
        (["partition", "visibility"], {}),
    ],
)
@pytest.mark.parametrize("window", [150, 8 << 20])
def test_rows_are_those_of_the_copied_directory(
    url: str, tmp_path: Path, columns: list[str], options: dict[str, str], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("headstone.storage.ranges", "headstone.log.reading"):
        monkeypatch.setattr(f"{module}.WINDOW_BYTES", window)
    here = rows(tmp_path / "logs", *columns, topic="t", **options)
    assert rows(url, *columns, topic="t", **options) == here
    assert rows(f"{url}/t-*", *columns, **options) == here
    assert here


def test_the_driver_lists_and_tasks_get_segments_unless_visibility_is_asked_for(url: str) -> None:
    def files(*columns: str, **options: str) -> list[str | None]:
        parts = source(f"{url}/t-0", **options).reader(schema_of(*columns)).partitions()
        found = [part.file for part in parts if isinstance(part, FarPart)]
        return [None if file is None else file.path.rpartition("/")[2] for file in found]

    assert files("offset") == [f"{base:020d}.log" for base in (0, 7, 12)]
    assert files("offset", offsets="7:12") == [f"{7:020d}.log"]
    assert files("offset", "visibility", offsets="7:12") == [None]


def test_a_stream_follows_objects_that_are_copied_again(url: str, history: History, tmp_path: Path) -> None:
    reader = source(url, partitions="0").streamReader(StructType())
    assert isinstance(reader, KafkaLogStream)
    first = reader.latestOffset(reader.initialOffset())
    planned = list(reader.partitions(reader.initialOffset(), first))
    history.append("C2 N[m] | N[n]")
    history.write_partition(tmp_path / "logs", "t-0")
    copy(tmp_path / "logs", url.removeprefix(f"{BUCKET}/"))
    second = reader.latestOffset(first)

    def offsets(parts: Iterable[InputPartition]) -> list[int]:
        return [row["offset"] for row in rows_of(reader, parts)]

    assert (first, second) == ({"t-0": 12}, {"t-0": 17})
    assert offsets(planned) == list(range(12)), "of segments that have grown since they were planned"
    assert offsets(reader.partitions(first, second)) == list(range(12, 17))


def test_a_stream_reads_headers_of_what_is_new_and_a_count_reads_once(tmp_path: Path) -> None:
    history = history_of("N[a,b,c] " * 50 + "| N[d]")
    prefix = uuid.uuid4().hex
    store = store_of(BUCKET, FROM_ENVIRONMENT)

    def read_by(action: Callable[[], object]) -> int:
        before = store.traffic.bytes_read
        action()
        return store.traffic.bytes_read - before

    def copied() -> list[int]:
        history.write_partition(tmp_path, "t-0")
        copy(tmp_path, prefix)
        return [path.stat().st_size for path in sorted((tmp_path / "t-0").glob("*.log"))]

    sizes = copied()
    reader = source(f"{BUCKET}/{prefix}").streamReader(StructType())
    assert isinstance(reader, KafkaLogStream)
    assert read_by(reader.latestOffset) == sum(sizes)
    assert read_by(reader.latestOffset) == 0
    history.append("| N[e]")
    assert read_by(lambda: (copied(), reader.latestOffset())) < sizes[0]
    assert reader.latestOffset() == {"t-0": 152}
    for columns in (["partition"], ["offset", "value"]):
        assert read_by(lambda columns=columns: rows(f"{BUCKET}/{prefix}", *columns)) == sum(copied())  # type: ignore[misc]


def test_spark_reads_and_streams_a_bucket(
    spark: SparkSession, history: History, moto_settings: Mapping[str, str], tmp_path: Path
) -> None:
    """Settings of the store travel as options: no task has them in its environment."""
    history.write_partition(tmp_path / "logs" / "broker-1", "t-0")
    url = f"s3://{BUCKET_ON_S3}/{uuid.uuid4().hex}"
    store = Store.open(url, moto_settings)
    for name, content in files_of(tmp_path / "logs").items():
        store.put(name, content)
    options = {f"store.{name}": value for name, value in moto_settings.items()}
    frame = spark.read.format("kafka-log").options(**options).load(f"{url}/*/t-*")
    here = spark.read.format("kafka-log").load(str(tmp_path / "logs" / "broker-1"))
    assert frame.orderBy("offset").collect() == here.orderBy("offset").collect()
    stream = spark.readStream.format("kafka-log").options(**options).load(f"{url}/broker-1")
    query = stream.writeStream.format("memory").queryName("bucket").trigger(availableNow=True).start()
    query.awaitTermination()
    seen = sorted(row.offset for row in spark.table("bucket").collect())
    assert seen == list(range(12)), "up to the open transaction"
