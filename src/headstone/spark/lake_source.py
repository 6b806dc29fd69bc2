"""`spark.read.format("headstone").option("topic", T).load(LAKE)`: topics of the lake, in the columns of `kafka-log`.

LAKE is a directory or the URL of a metastore. Options: `topic` (one, or several with commas); `view`: "records" (the default),
or "table", the newest record of every key that is not deleted; `partitions` ("0,3"); `offsets` ("1000:2000"), `startingOffsets`
and `endingOffsets` (as Kafka's source takes them), for the view "records"; `asOf` (milliseconds since 1970, or "2026-11-15
10:00:00" in UTC): the past, as far as garbage collection has left it; `store.NAME` for settings of the store.

The extents are looked up once, for the first query of a DataFrame: a compaction at the same time changes nothing for it, and
later queries of the same DataFrame read the same past. Garbage collection leaves it for `pinMs` (six hours); after that it may
be gone. Load again for the newest records. `spark.readStream` is `lake_follow.py`.

A query's own filters choose nothing here, for the reason given in `source.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headstone.lake.defaults import TABLE
from headstone.lake.lake import LakeAddress
from headstone.lake.metastore.pins import Pins
from headstone.lake.transfer.reading import snapshots
from headstone.spark import lake_follow
from headstone.spark.lake_follow import LakeStream
from headstone.spark.lake_selection import (
    LakeSelection,
    RecordsPart,
    TablePart,
    address_of,
    record_parts,
    table_parts,
)
from headstone.spark.record_columns import SCHEMA, chosen_columns
from headstone.spark.source_options import refuse_unknown

if TYPE_CHECKING:
    from headstone.spark.session import DataFrame, SparkSession

NAME = "headstone"
NOT_FOUND = "DATA_SOURCE_NOT_FOUND"
"""Spark's error if no source of the name is registered or installed."""
OPTIONS = (
    "asOf", "endingOffsets", "lake", "offsets", "partitions", "path", "pinMs", "startingOffsets", "store.NAME", "topic", "view"
)  # fmt: skip


def lake_frame(spark: SparkSession, lake: str, options: Mapping[str, str]) -> DataFrame:
    """Registers the source only if Spark does not find it by itself: it warns of each registration that replaces another."""

    def frame() -> DataFrame:
        loaded = spark.read.format(NAME).options(**options).load(lake)
        _ = loaded.schema  # Spark Connect looks for the source only when it is used
        return loaded

    try:
        return frame()
    except (Py4JError, PySparkException) as error:
        if NOT_FOUND not in str(error):
            raise
    spark.dataSource.register(HeadstoneSource)
    return frame()


class HeadstoneSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_unknown(self.options, OPTIONS)
        made = LakeReader(address_of(self.options), LakeSelection.of(self.options), chosen_columns(schema))
        self._forget()
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        refuse_unknown(self.options, lake_follow.OPTIONS)
        made = LakeStream(
            address_of(self.options), LakeSelection.of(self.options), chosen_columns(schema), self.options
        )
        self._forget()
        return made

    def _forget(self) -> None:
        """Spark sends the source to the executors beside its reader, to ask its name: the options stay here."""
        self.options = {}


class LakeReader(DataSourceReader):
    """Plans where the driver is; executors get access to the store with each part, and none to the metastore."""

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
            chosen = selection.chosen(lake.metastore.partitions())
            # Before anything is looked up. A source does not learn when its queries are over: the pin lasts for its fixed time.
            Pins(lake.metastore).pin("spark", as_of_ms=selection.as_of_ms, for_ms=selection.pin_ms)
            states = snapshots(lake, chosen, selection.as_of_ms)
            if selection.view == TABLE:
                return list(table_parts(lake, states))
            parts: list[InputPartition] = []
            for topic_partition, state in states.items():
                start, end = selection.range_of(topic_partition, start=state.start_offset, end=state.next_offset)
                parts += record_parts(lake.store, topic_partition, state.extents, start, end)
            return parts
        finally:
            lake.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RecordsPart | TablePart):  # or what Spark makes of an empty list of partitions
            yield from partition.rows(self._columns)
