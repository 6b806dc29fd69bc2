"""`spark.read.format("headstone").option("topic", T).load(LAKE)`: topics of the lake, in the columns of `kafka-log`.

LAKE is a directory or the URL of a metastore. Options: `topic` (one, or several with commas); `view`: "records" (the default),
or "table", the newest record of every key that is not deleted; `partitions` ("0,3"); `offsets` ("1000:2000", of the view
"records"); `asOf` (milliseconds since 1970, or "2026-11-15 10:00:00" in UTC): the past, as far as garbage collection has left
it; `store.NAME` for settings of the object store. The extents are looked up once, for the first query of a DataFrame:
compaction that runs meanwhile changes nothing for it, and later queries of the same DataFrame read the same past, for as long
as garbage collection leaves it. Load again for the newest.

A query's own filters choose nothing here, for the reason that `source.py` tells.
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
from headstone.retention.policy import NO_LIMIT
from headstone.spark.record_columns import SCHEMA, chosen_columns, widened, within
from headstone.spark.source_options import (
    offset_range,
    one_of,
    partition_numbers,
    refuse_unknown,
    require_partitions,
    require_topics,
    store_access,
    topic_names,
)

NAME = "headstone"
OPTIONS = ("asOf", "lake", "offsets", "partitions", "path", "store.NAME", "topic", "view")
RECORDS, TABLE = "records", "table"
SPLIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSelection:
    """No partitions: all of them. Offsets: [offset_start, offset_end) of each partition."""

    topics: tuple[str, ...]
    view: str
    partitions: tuple[int, ...]
    offset_start: int
    offset_end: int
    as_of_ms: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LakeSelection:
        view = one_of("view", options.get("view", RECORDS), (RECORDS, TABLE))
        if view == TABLE and "offsets" in options:
            raise UsageError("offsets are of records; the table is the newest record of every key, whatever its offset")
        start, end = offset_range(options["offsets"]) if "offsets" in options else (0, NO_LIMIT)
        return cls(
            topics=topic_names(options["topic"]),
            view=view,
            partitions=partition_numbers(options["partitions"]) if "partitions" in options else (),
            offset_start=start,
            offset_end=end,
            as_of_ms=moment_ms(options["asOf"]) if "asOf" in options else None,
        )


@dataclass
class LakePart(InputPartition):
    partition: TopicPartition
    state: Partition


class HeadstoneSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_unknown(self.options, OPTIONS)
        path = self.options.get("path") or self.options.get("lake")
        if not path or not self.options.get("topic"):
            raise UsageError('name a lake and a topic: .option("topic", "orders").load("LAKE")')
        settings = dict(store_access(self.options).settings)
        address = LakeAddress(metastore_url=metastore_url(path), store_settings=settings)
        return LakeReader(address, LakeSelection.of(self.options), chosen_columns(schema))


class LakeReader(DataSourceReader):
    def __init__(self, address: LakeAddress, selection: LakeSelection, columns: Sequence[str]) -> None:
        self._address, self._selection, self._columns = address, selection, columns

    def partitions(self) -> Sequence[InputPartition]:
        selection = self._selection
        lake = self._address.open()
        try:
            present = lake.metastore.partitions()
            require_topics(selection.topics, {partition.topic for partition in present})
            chosen = [partition for partition in present if partition.topic in selection.topics]
            require_partitions(selection.partitions, {partition.number for partition in chosen})
            parts: list[InputPartition] = []
            for partition in chosen:
                if not selection.partitions or partition.number in selection.partitions:
                    state = snapshot(lake, partition, selection.as_of_ms)
                    states = [state] if selection.view == TABLE else _splits(state, selection)
                    parts += [LakePart(partition=partition, state=some) for some in states]
            return parts
        finally:
            lake.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LakePart):  # what Spark makes of an empty list of partitions
            return
        lake = self._address.open()
        try:
            state = partition.state
            if self._selection.view == TABLE:
                batches = table_batches(lake, partition.partition, state)
            else:
                batches = self._records(record_batches(lake, partition.partition, state.extents, state.start_offset))
            for batch in batches:
                yield widened(batch, self._columns)
        finally:
            lake.close()

    def _records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield within(batch, self._selection.offset_start, self._selection.offset_end)


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


def _splits(state: Partition, selection: LakeSelection) -> Iterator[Partition]:
    """Runs of those extents that may hold wanted offsets, for one task each."""
    start, end = selection.offset_start, selection.offset_end
    run: list[Extent] = []
    for extent in state.extents:
        if extent.span.end <= start or extent.span.start >= end:
            continue
        if run and sum(other.length for other in run) + extent.length > SPLIT_BYTES:
            yield replace(state, extents=tuple(run), cleaned=(), tombstones=())
            run = []
        run.append(extent)
    if run:
        yield replace(state, extents=tuple(run), cleaned=(), tombstones=())
