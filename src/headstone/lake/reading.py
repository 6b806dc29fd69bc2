"""What the lake holds, record by record, as of one moment: a partition's extents are looked up once and then read.

Extents that compaction replaces meanwhile stay readable for the time of grace of garbage collection.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headstone.lake.commits import Partition
from headstone.lake.keyindex import chunk_of
from headstone.lake.lake import Lake
from headstone.lake.metastore import TopicPartition
from headstone.lake.objects import object_path, read_extent
from headstone.log.columns import decode
from headstone.log.listing import RecordEntry, record_entries
from headstone.log.reading import Payloads


def snapshot(lake: Lake, at: TopicPartition, as_of_ms: int | None = None) -> Partition:
    """What the log is made of, now or at a moment that garbage collection has not passed yet."""
    return lake.metastore.partition(at) if as_of_ms is None else lake.metastore.partition_as_of(at, as_of_ms)


def records(
    lake: Lake, at: TopicPartition, *, offset_start: int = 0, as_of_ms: int | None = None
) -> Iterator[RecordEntry]:
    """In offset order, from the log start on."""
    partition = snapshot(lake, at, as_of_ms)
    start = max(partition.start_offset, offset_start)
    payloads = Payloads()
    for extent in partition.extents:
        if extent.span.end <= start or extent.length == 0:
            continue
        chunk = chunk_of(f"{lake.store.url}/{object_path(extent.object_id)}", read_extent(lake.store, extent))
        for data, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), payloads):
            for entry in record_entries(chunk.batches, data, spans):
                if entry.offset >= start:
                    yield entry


def table(lake: Lake, at: TopicPartition, *, as_of_ms: int | None = None) -> dict[bytes, RecordEntry]:
    """The newest record of every key that is not deleted."""
    newest = {entry.key: entry for entry in records(lake, at, as_of_ms=as_of_ms) if entry.key is not None}
    return {key: entry for key, entry in newest.items() if entry.value is not None}
