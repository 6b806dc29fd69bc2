"""`spark.read.format("headstone").option("topic", T).load(LAKE)`: a topic of the lake as a DataFrame.

LAKE is a directory or the URL of a metastore. Options: `topic`; `view`: "records" (the default), or "table", the newest
record of every key that is not deleted; `partitions` ("0,3"); `asOf` (milliseconds since 1970, or "2026-11-15 10:00:00" in
UTC): the past, as far as garbage collection has left it; `store.NAME` for settings of the object store. The extents are
looked up once, for the first query of a DataFrame: compaction that runs meanwhile changes nothing for it, and later queries
of the same DataFrame read the same past, for as long as garbage collection leaves it. Load again for the newest.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headstone.errors import UsageError
from headstone.lake.commits import Extent, Partition
from headstone.lake.lake import LakeAddress, metastore_url
from headstone.lake.reading import record_batches, snapshot, table_batches
from headstone.log.topic_partition import TopicPartition
from headstone.spark.source_options import partition_numbers, refuse_unknown, require_partitions

NAME = "headstone"
COLUMNS = (
    "topic string, partition int, offset long, timestamp_ms long, timestamp_type string, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
STORE = "store."
OPTIONS = ("asOf", "lake", "partitions", "path", f"{STORE}NAME", "topic", "view")
VIEWS = ("records", "table")
SPLIT_BYTES = 64 << 20


@dataclass
class LakePart(InputPartition):
    at: TopicPartition
    partition: Partition


class HeadstoneSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_unknown(self.options, OPTIONS)
        path, topic = self.options.get("path") or self.options.get("lake"), self.options.get("topic")
        if not path or not topic:
            raise UsageError('name a lake and a topic: .option("topic", "orders").load("LAKE")')
        view = self.options.get("view", "records")
        if view not in VIEWS:
            raise UsageError(f"view {view!r}: there are {' and '.join(VIEWS)}")
        given = {name.removeprefix(STORE): value for name, value in self.options.items() if name.startswith(STORE)}
        address = LakeAddress(metastore_url=metastore_url(path), store_settings=given)
        return LakeReader(address, topic, view, self.options)


class LakeReader(DataSourceReader):
    def __init__(self, address: LakeAddress, topic: str, view: str, options: Mapping[str, str]) -> None:
        self._address, self._topic, self._view = address, topic, view
        self._as_of_ms = moment_ms(options["asOf"]) if "asOf" in options else None
        chosen = options.get("partitions")
        self._numbers = None if chosen is None else partition_numbers(chosen)

    def partitions(self) -> Sequence[InputPartition]:
        lake = self._address.open()
        try:
            found = [at for at in lake.metastore.partitions() if at.topic == self._topic]
            if not found:
                raise UsageError(f"the lake has no topic {self._topic}")
            require_partitions(self._numbers or (), {at.number for at in found})
            parts: list[InputPartition] = []
            for at in found:
                if self._numbers is None or at.number in self._numbers:
                    partition = snapshot(lake, at, self._as_of_ms)
                    whole = self._view == "table"
                    parts += [LakePart(at=at, partition=one) for one in ([partition] if whole else _splits(partition))]
            return parts
        finally:
            lake.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LakePart):  # what Spark makes of an empty list of partitions
            return
        lake = self._address.open()
        try:
            if self._view == "table":
                yield from table_batches(lake, partition.at, partition.partition)
            else:
                state = partition.partition
                yield from record_batches(lake, partition.at, state.extents, state.start_offset)
        finally:
            lake.close()


def moment_ms(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"asOf {text!r}: milliseconds since 1970, or a time such as 2026-11-15 10:00:00 (UTC)"
        ) from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)


def _splits(partition: Partition) -> Iterator[Partition]:
    """Runs of extents for one task each."""
    run: list[Extent] = []
    for extent in partition.extents:
        if run and sum(one.length for one in run) + extent.length > SPLIT_BYTES:
            yield replace(partition, extents=tuple(run), cleaned=(), tombstones=())
            run = []
        run.append(extent)
    if run:
        yield replace(partition, extents=tuple(run), cleaned=(), tombstones=())
