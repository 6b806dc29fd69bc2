"""What the lake holds, record by record, as of one moment: a partition's extents are looked up once and then read.

Extents that compaction replaces meanwhile stay readable for the time of grace of garbage collection.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headstone.lake.lake import Lake
from headstone.lake.metastore import TopicPartition
from headstone.lake.objects import object_path, read_extent
from headstone.log.columns import decode
from headstone.log.kernels import OK, walk
from headstone.log.layout import BATCH, HEADER_BYTES
from headstone.log.listing import RecordEntry, record_entries
from headstone.log.reading import PAYLOAD_BYTES_MAX, Chunk, Payloads, corrupt


def records(lake: Lake, at: TopicPartition, *, offset_start: int = 0) -> Iterator[RecordEntry]:
    """In offset order, from the log start on."""
    partition = lake.metastore.partition(at)
    start = max(partition.start_offset, offset_start)
    payloads = Payloads()
    for extent in partition.extents:
        if extent.span.end <= start or extent.length == 0:
            continue
        chunk = _chunk(f"{lake.store.url}/{object_path(extent.object_id)}", read_extent(lake.store, extent))
        for data, spans in decode(chunk, np.flatnonzero(chunk.batches["count"] > 0), payloads):
            for entry in record_entries(chunk.batches, data, spans):
                if entry.offset >= start:
                    yield entry


def table(lake: Lake, at: TopicPartition) -> dict[bytes, RecordEntry]:
    """The newest record of every key that is not deleted."""
    newest = {entry.key: entry for entry in records(lake, at) if entry.key is not None}
    return {key: entry for key, entry in newest.items() if entry.value is not None}


def _chunk(path: str, content: bytes) -> Chunk:
    data = np.frombuffer(content, dtype=np.uint8)
    batches = np.zeros(data.size // HEADER_BYTES + 1, dtype=BATCH)
    count, at, error = walk(data, 0, data.size, -1, True, PAYLOAD_BYTES_MAX, batches)
    if error != OK or at != data.size:
        raise corrupt(path, data, at, data.size, error, file_position=at, previous=-1)
    return Chunk(path=path, position=0, data=data, batches=batches[:count])
