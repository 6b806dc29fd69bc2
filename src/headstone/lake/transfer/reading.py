"""What the lake holds as of one moment: a partition's extents are looked up once and then read.

All records in offset order; the table is `table_view`. Extents that compaction replaces meanwhile, and the past, stay readable
for garbage collection's time of grace, and longer for readers that have pinned them (`pins`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headstone.lake.format.dead import is_live
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import Offsets
from headstone.lake.format.objects import read_chunk, read_dead
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition
from headstone.log.columns import (
    BATCH_INDEX,
    HEADER_TYPE,
    KEY_AT,
    KEY_SIZE,
    OFFSET,
    TIMESTAMP,
    VALUE_AT,
    VALUE_SIZE,
    binary_column,
    decode,
    header_column,
)
from headstone.log.layout import LOG_APPEND_TIME
from headstone.log.listing import RecordEntry, record_entries
from headstone.log.reading import Chunk, Payloads
from headstone.log.topic_partition import TopicPartition
from headstone.storage.stores import Store

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
    ]
)
ALWAYS = ("offset", "timestamp_ms")
TIMESTAMP_TYPES = pa.array(["CreateTime", "LogAppendTime"], pa.string())

Columns = Collection[str] | None
"""Wanted names of `SCHEMA`; other names are ignored. None: all."""


def snapshot(lake: Lake, topic_partition: TopicPartition, as_of_ms: int | None = None) -> Partition:
    """What the log consists of, now or at a moment that garbage collection has not passed yet."""
    return (
        lake.metastore.partition(topic_partition)
        if as_of_ms is None
        else lake.metastore.partition_as_of(topic_partition, as_of_ms)
    )


def snapshots(
    lake: Lake, partitions: Sequence[TopicPartition], as_of_ms: int | None = None
) -> dict[TopicPartition, Partition]:
    """As `snapshot`, for many partitions."""
    if as_of_ms is None:
        return lake.metastore.snapshot(partitions)
    return {
        topic_partition: lake.metastore.partition_as_of(topic_partition, as_of_ms) for topic_partition in partitions
    }


def records(
    lake: Lake, topic_partition: TopicPartition, *, offset_start: int = 0, as_of_ms: int | None = None
) -> Iterator[RecordEntry]:
    """In offset order, from the log start on."""
    partition = snapshot(lake, topic_partition, as_of_ms)
    return records_in(lake.store, partition.extents, max(partition.start_offset, offset_start))


def records_in(store: Store, extents: Sequence[Extent], start: int) -> Iterator[RecordEntry]:
    """Records of these extents, from `start` on, in offset order."""
    payloads = Payloads()
    for chunk, dead in _chunks(store, extents, start):
        for data, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), payloads):
            yield from record_entries(chunk.batches, data, spans[_shown(spans, start, dead)])


def record_batches(
    store: Store, topic_partition: TopicPartition, extents: Sequence[Extent], start: int, columns: Columns = None
) -> Iterator[pa.RecordBatch]:
    """The records of these extents from `start` on, in offset order, as Arrow."""
    payloads = Payloads()
    for chunk, dead in _chunks(store, extents, start):
        for data, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), payloads):
            yield arrow_rows(topic_partition, chunk, data, spans[_shown(spans, start, dead)], columns)


def table(lake: Lake, topic_partition: TopicPartition, *, as_of_ms: int | None = None) -> dict[bytes, RecordEntry]:
    """The table as a dictionary by key, for a person or a test."""
    newest = {entry.key: entry for entry in records(lake, topic_partition, as_of_ms=as_of_ms) if entry.key is not None}
    return {key: entry for key, entry in newest.items() if entry.value is not None}


def _chunks(store: Store, extents: Sequence[Extent], start: int) -> Iterator[tuple[Chunk, Offsets]]:
    """Each with its dead records."""
    for extent in extents:
        if extent.span.end > start and extent.length > 0:
            yield read_chunk(store, extent), read_dead(store, extent)


def _shown(spans: Any, start: int, dead: Offsets) -> Any:
    """Records from `start` on that are not dead."""
    return (spans[:, OFFSET] >= start) & is_live(spans[:, OFFSET], dead)


def arrow_rows(
    topic_partition: TopicPartition, chunk: Chunk, data: Any, spans: Any, wanted: Columns = None
) -> pa.RecordBatch:
    """A chunk's decoded records (`columns.decode`). Only wanted columns are built; offsets and times always are."""
    columns = np.ascontiguousarray(spans.T)
    appended = chunk.batches["attributes"][columns[BATCH_INDEX]] & LOG_APPEND_TIME != 0
    made: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.repeat(pa.scalar(topic_partition.topic, pa.string()), len(spans)),
        "partition": lambda: pa.repeat(pa.scalar(topic_partition.number, pa.int32()), len(spans)),
        "offset": lambda: pa.array(columns[OFFSET]),
        "timestamp_ms": lambda: pa.array(columns[TIMESTAMP]),
        "timestamp_type": lambda: TIMESTAMP_TYPES.take(pa.array(appended.astype(np.int8))),
        "key": lambda: binary_column(data, columns[KEY_AT], columns[KEY_SIZE]),
        "value": lambda: binary_column(data, columns[VALUE_AT], columns[VALUE_SIZE]),
        "headers": lambda: header_column(data, spans),
    }
    fields = [field for field in SCHEMA if wanted is None or field.name in wanted or field.name in ALWAYS]
    return pa.RecordBatch.from_arrays([made[field.name]() for field in fields], schema=pa.schema(fields))
