"""What to read of a lake: the options of the data source `headstone`, and the parts that tasks get.

Plans are made where the metastore is. A part gives access to the store, and none to the metastore. Reads no record itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headstone.errors import UsageError
from headstone.lake.defaults import RECORDS, TABLE, VIEWS
from headstone.lake.format.extents import Extent
from headstone.lake.lake import Lake, LakeAddress, metastore_url
from headstone.lake.metastore.commits import Partition
from headstone.lake.transfer.reading import record_batches
from headstone.lake.transfer.table_view import LiveExtent, decided, rows_of_table
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import NEAR_THREADS, InProcess
from headstone.retention.keys import HashKey
from headstone.retention.policy import NO_LIMIT
from headstone.spark.record_columns import widened, within
from headstone.spark.source_options import (
    EARLIEST,
    LATEST,
    OffsetPerPartition,
    duration_ms,
    moment_ms,
    offset_per_partition,
    offset_range,
    one_of,
    partition_numbers,
    require_partitions,
    require_topics,
    store_access,
    topic_names,
)
from headstone.storage.stores import Store

SPLIT_BYTES = 64 << 20
PIN_MS = 6 * 3_600_000

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSelection:
    """No partitions: all of them. From each partition [starting, ending), and of these offsets [offset_start, offset_end)."""

    topics: tuple[str, ...]
    view: str
    partitions: tuple[int, ...]
    offset_start: int
    offset_end: int
    starting: OffsetPerPartition
    ending: OffsetPerPartition
    as_of_ms: int | None
    pin_ms: int
    """How long a plan can be read, whatever garbage collection does."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LakeSelection:
        view = one_of("view", options.get("view", RECORDS), VIEWS)
        if view == TABLE and any(name in options for name in ("offsets", "startingOffsets", "endingOffsets")):
            raise UsageError("offsets are of records; the table is the newest record of every key, whatever its offset")
        start, end = offset_range(options["offsets"]) if "offsets" in options else (0, NO_LIMIT)
        return cls(
            topics=topic_names(options["topic"]),
            view=view,
            partitions=partition_numbers(options["partitions"]) if "partitions" in options else (),
            offset_start=start,
            offset_end=end,
            starting=offset_per_partition(
                "startingOffsets", options.get("startingOffsets", "earliest"), default=EARLIEST
            ),
            ending=offset_per_partition("endingOffsets", options.get("endingOffsets", "latest"), default=LATEST),
            as_of_ms=moment_ms("asOf", options["asOf"]) if "asOf" in options else None,
            pin_ms=duration_ms("pinMs", options["pinMs"]) if "pinMs" in options else PIN_MS,
        )

    def chosen(self, present: Sequence[TopicPartition]) -> list[TopicPartition]:
        """From the lake's partitions; a named one that does not exist is refused."""
        require_topics(self.topics, {partition.topic for partition in present})
        own = [partition for partition in present if partition.topic in self.topics]
        require_partitions(self.partitions, {partition.number for partition in own})
        for named in (*self.starting.named, *self.ending.named):
            if named not in own:
                raise UsageError(f"offsets of {TopicPartition(*named)}: there is no such partition among what is read")
        return [partition for partition in own if not self.partitions or partition.number in self.partitions]

    def range_of(self, topic_partition: TopicPartition, *, start: int, end: int) -> tuple[int, int]:
        """[first, last): what is wanted of a log that begins and ends there."""
        first = self.starting.of(topic_partition, earliest=start, latest=end)
        last = self.ending.of(topic_partition, earliest=start, latest=end)
        return max(first, self.offset_start, start), min(last, self.offset_end, end)


def address_of(options: Mapping[str, str]) -> LakeAddress:
    path = options.get("path") or options.get("lake")
    if not path or not options.get("topic"):
        raise UsageError('name a lake and a topic: .option("topic", "orders").load("LAKE")')
    return LakeAddress(metastore_url=metastore_url(path), store_settings=dict(store_access(options).settings))


@dataclass
class RecordsPart(InputPartition):
    """A run of extents for one task, and which of their offsets are wanted."""

    store: Store
    partition: TopicPartition
    extents: tuple[Extent, ...]
    offset_start: int
    offset_end: int

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        batches = record_batches(self.store, self.partition, self.extents, self.offset_start, columns)
        return (widened(within(batch, self.offset_start, self.offset_end), columns) for batch in batches)


@dataclass
class TablePart(InputPartition):
    """A run of extents, with what is in the table of them."""

    store: Store
    hash_key: HashKey
    partition: TopicPartition
    extents: tuple[LiveExtent, ...]

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        batches = rows_of_table(self.store, self.hash_key, self.partition, self.extents, columns)
        return (widened(batch, columns) for batch in batches)


def record_parts(
    store: Store, topic_partition: TopicPartition, extents: Sequence[Extent], start: int, end: int
) -> Iterator[InputPartition]:
    """Runs of those extents that may hold offsets in [start, end)."""
    wanted = [extent for extent in extents if extent.span.end > start and extent.span.start < end]
    for run in runs(wanted, lambda extent: extent.length):
        yield RecordsPart(store, topic_partition, run, start, end)


def table_parts(lake: Lake, states: Mapping[TopicPartition, Partition]) -> Iterator[InputPartition]:
    """Decides here, from lists of keys, what is in the table; many tasks read a large partition.

    A Python data source plans in a process without a Spark session, so no task can decide. Each list is read once, and what
    does not fit into memory waits in a temporary file."""
    hash_key = lake.metastore.hash_key
    for topic_partition, live in decided(lake.store, hash_key, states, InProcess(NEAR_THREADS)).items():
        for run in runs(live, lambda found: found.extent.length):
            yield TablePart(lake.store, hash_key, topic_partition, run)


def runs(
    items: Sequence[Item], size: Callable[[Item], int], split_bytes: int = SPLIT_BYTES
) -> Iterator[tuple[Item, ...]]:
    """Neighbours to be read by one task."""
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
