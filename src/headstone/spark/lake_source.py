"""`spark.read.format("headstone").option("topic", T).load(LAKE)`: topics of the lake, in the columns of `kafka-log`.

LAKE is a directory or the URL of a metastore. Options: `topic` (one, or several with commas); `view`: "records" (the default),
or "table", the newest record of every key that is not deleted; `partitions` ("0,3"); `offsets` ("1000:2000", of the view
"records"); `asOf` (milliseconds since 1970, or "2026-11-15 10:00:00" in UTC): the past, as far as garbage collection has left
it; `store.NAME` for settings of the object store. The extents are looked up once, for the first query of a DataFrame:
compaction that runs meanwhile changes nothing for it, and later queries of the same DataFrame read the same past. Garbage
collection leaves it for `pinMs` (six hours), and then as long as it likes. Load again for the newest.

A query's own filters choose nothing here, for the reason that `source.py` tells.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headstone.errors import UsageError
from headstone.lake.commits import Extent, Partition
from headstone.lake.lake import Lake, LakeAddress, metastore_url
from headstone.lake.pins import Pins
from headstone.lake.reading import record_batches, snapshots
from headstone.lake.table_view import LiveExtent, decided, rows_of_table
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import NEAR_THREADS, InProcess
from headstone.retention.keys import HashKey
from headstone.retention.policy import NO_LIMIT
from headstone.spark.record_columns import SCHEMA, chosen_columns, widened, within
from headstone.spark.source_options import (
    offset_range,
    one_of,
    partition_numbers,
    positive,
    refuse_unknown,
    require_partitions,
    require_topics,
    store_access,
    topic_names,
)
from headstone.storage.stores import Store

NAME = "headstone"
OPTIONS = ("asOf", "lake", "offsets", "partitions", "path", "pinMs", "store.NAME", "topic", "view")
RECORDS, TABLE = "records", "table"
SPLIT_BYTES = 64 << 20
PIN_MS = 6 * 3_600_000

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSelection:
    """No partitions: all of them. Offsets: [offset_start, offset_end) of each partition."""

    topics: tuple[str, ...]
    view: str
    partitions: tuple[int, ...]
    offset_start: int
    offset_end: int
    as_of_ms: int | None
    pin_ms: int
    """How long what was planned can be read, whatever garbage collection does."""

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
            pin_ms=positive("pinMs", options["pinMs"]) if "pinMs" in options else PIN_MS,
        )


@dataclass
class RecordsPart(InputPartition):
    """A run of extents, for one task."""

    store: Store
    partition: TopicPartition
    extents: tuple[Extent, ...]
    start_offset: int


@dataclass
class TablePart(InputPartition):
    """A run of extents, with what of them is in the table."""

    store: Store
    hash_key: HashKey
    partition: TopicPartition
    extents: tuple[LiveExtent, ...]


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
        made = LakeReader(address, LakeSelection.of(self.options), chosen_columns(schema))
        # Spark sends the source to the executors beside its reader, to ask its name: what its options tell stays here.
        self.options = {}
        return made


class LakeReader(DataSourceReader):
    """Plans where the driver is; executors get the way to the store with each part, and none to the metastore."""

    def __init__(self, address: LakeAddress, selection: LakeSelection, columns: Sequence[str]) -> None:
        self._address: LakeAddress | None = address
        self._selection, self._columns = selection, columns

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_address": None}

    def partitions(self) -> Sequence[InputPartition]:
        assert self._address is not None, "parts are planned where the lake's address is"
        selection = self._selection
        lake = self._address.open()
        try:
            present = lake.metastore.partitions()
            require_topics(selection.topics, {partition.topic for partition in present})
            chosen = [partition for partition in present if partition.topic in selection.topics]
            require_partitions(selection.partitions, {partition.number for partition in chosen})
            # Before anything is looked up. Nobody tells a source when its queries are over: the pin lasts as it is told.
            Pins(lake.metastore).pin("spark", as_of_ms=selection.as_of_ms, for_ms=selection.pin_ms)
            states = snapshots(
                lake,
                [one for one in chosen if not selection.partitions or one.number in selection.partitions],
                selection.as_of_ms,
            )
            return list(
                _table_parts(lake, states) if selection.view == TABLE else _record_parts(lake, states, selection)
            )
        finally:
            lake.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What Spark makes of an empty list of partitions is none of both."""
        batches: Iterator[pa.RecordBatch] = iter(())
        if isinstance(partition, TablePart):
            batches = rows_of_table(partition.store, partition.hash_key, partition.partition, partition.extents)
        elif isinstance(partition, RecordsPart):
            found = record_batches(partition.store, partition.partition, partition.extents, partition.start_offset)
            batches = self._records(found)
        for batch in batches:
            yield widened(batch, self._columns)

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


def _record_parts(
    lake: Lake, states: Mapping[TopicPartition, Partition], selection: LakeSelection
) -> Iterator[InputPartition]:
    """Runs of those extents that may hold wanted offsets."""
    start, end = selection.offset_start, selection.offset_end
    for topic_partition, state in states.items():
        wanted = [extent for extent in state.extents if extent.span.end > start and extent.span.start < end]
        for run in runs(wanted, lambda extent: extent.length):
            yield RecordsPart(lake.store, topic_partition, run, state.start_offset)


def _table_parts(lake: Lake, states: Mapping[TopicPartition, Partition]) -> Iterator[InputPartition]:
    """What is in the table is decided here, from lists of keys; a large partition is read by many tasks."""
    hash_key = lake.metastore.hash_key
    for topic_partition, live in decided(lake.store, hash_key, states, InProcess(NEAR_THREADS)).items():
        for run in runs(live, lambda found: found.extent.length):
            yield TablePart(lake.store, hash_key, topic_partition, run)


def runs(
    items: Sequence[Item], size: Callable[[Item], int], split_bytes: int = SPLIT_BYTES
) -> Iterator[tuple[Item, ...]]:
    """Neighbours that are read by one task."""
    run: list[Item] = []
    total = 0
    for item in items:
        if run and total + size(item) > split_bytes:
            yield tuple(run)
            run, total = [], 0
        run.append(item)
        total += size(item)
    if run:
        yield tuple(run)
