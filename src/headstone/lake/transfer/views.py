"""A topic of the lake as record batches, for a reader in this process: every record, or the table, now or in the past.

What is read is decided once, at the beginning; a long read pins it (`pins`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headstone.lake.defaults import RECORDS
from headstone.lake.format.extents import Extent
from headstone.lake.jobs.keeping import name_of_worker
from headstone.lake.lake import Lake
from headstone.lake.metastore.pins import pinned
from headstone.lake.transfer.reading import SCHEMA, record_batches, snapshots
from headstone.lake.transfer.table_view import decided, rows_of_table
from headstone.log.shown import shown_bytes
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.progress import Board, Meter, meter_on
from headstone.storage.durable import sync_directory


@contextmanager
def pinned_view(
    lake: Lake, partitions: Sequence[TopicPartition], view: str, engine: Engine, *, as_of_ms: int | None = None,
    board: Board | None = None,
) -> Iterator[Iterator[pa.RecordBatch]]:  # fmt: skip
    """In offset order within a partition, in the columns of `reading.SCHEMA`; what is read stays while the block lasts."""
    with pinned(lake.metastore, name_of_worker("read"), as_of_ms=as_of_ms):
        yield view_batches(lake, partitions, view, engine, as_of_ms=as_of_ms, board=board)


def view_batches(
    lake: Lake, partitions: Sequence[TopicPartition], view: str, engine: Engine, *, as_of_ms: int | None = None,
    board: Board | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """As `pinned_view`, for callers that have pinned it."""
    states = snapshots(lake, partitions, as_of_ms)
    if view == RECORDS:
        meter = _meter(board, [extent for state in states.values() for extent in state.extents])
        for name, state in states.items():
            records = sum(extent.records for extent in state.extents)
            batches = record_batches(lake.store, name, state.extents, state.start_offset)
            yield from _metered(batches, state.extents, records, meter)
        return
    hash_key = lake.metastore.hash_key
    tables = decided(lake.store, hash_key, states, engine, board)
    meter = _meter(board, [part.extent for live in tables.values() for part in live])
    for name, live in tables.items():
        batches = rows_of_table(lake.store, hash_key, name, live)
        records = sum(part.records for part in live)
        yield from _metered(batches, [part.extent for part in live], records, meter)


def write_parquet(path: Path, batches: Iterator[pa.RecordBatch]) -> int:
    """Returns the number of records. Writes the whole file or nothing, also after a power loss."""
    partial, count = path.with_name(path.name + ".partial"), 0
    try:
        with open(partial, "wb") as file:
            with pq.ParquetWriter(file, SCHEMA) as writer:
                for batch in batches:
                    writer.write_batch(batch)
                    count += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_directory(path.parent)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _meter(board: Board | None, extents: Sequence[Extent]) -> Meter:
    """For a reader of these extents."""
    if board is not None:
        board.expect(sum(extent.length for extent in extents))
    return meter_on(board)


def _metered(
    batches: Iterator[pa.RecordBatch], extents: Sequence[Extent], records: int, meter: Meter
) -> Iterator[pa.RecordBatch]:
    """Bytes by the share of the records that come: a batch does not tell how many bytes it was made of."""
    size = sum(extent.length for extent in extents)
    for batch in batches:
        meter.add(size * batch.num_rows // max(records, 1), batch.num_rows)
        yield batch


def record_document(row: Mapping[str, Any]) -> dict[str, object]:
    """A record of a view, for JSON."""
    headers = [{"key": pair["key"], "value": shown_bytes(pair["value"])} for pair in row["headers"]]
    return {
        "partition": row["partition"], "offset": row["offset"], "timestamp_ms": row["timestamp_ms"],
        "key": shown_bytes(row["key"]), "value": shown_bytes(row["value"]), "headers": headers,
    }  # fmt: skip
