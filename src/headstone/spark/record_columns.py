"""The columns of both data sources, in one order and with one type each, so that their DataFrames can be united.

A column that only one of them has is null in the other. Spark prunes no columns of a Python source (4.0 to 4.3), but it passes
the schema of `spark.read.schema(...)`: naming fewer columns there makes a source produce only these. Knows no source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from headstone import units
from headstone.errors import UsageError
from headstone.log.columns import HEADER_TYPE
from headstone.log.reading import Ints


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    spark: types.DataType
    arrow: pa.DataType


_HEADER = types.StructType(
    [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
)

COLUMNS = (
    Column("topic", types.StringType(), pa.string()),
    Column("partition", types.IntegerType(), pa.int32()),
    Column("offset", types.LongType(), pa.int64()),
    Column("timestamp", types.TimestampType(), pa.timestamp("us", tz="UTC")),
    Column("timestamp_ms", types.LongType(), pa.int64()),
    Column("timestamp_type", types.StringType(), pa.string()),
    Column("key", types.BinaryType(), pa.binary()),
    Column("value", types.BinaryType(), pa.binary()),
    Column("headers", types.ArrayType(_HEADER), HEADER_TYPE),
    Column("producer_id", types.LongType(), pa.int64()),
    Column("producer_epoch", types.IntegerType(), pa.int32()),
    Column("sequence", types.IntegerType(), pa.int32()),
    Column("transactional", types.BooleanType(), pa.bool_()),
    Column("control_type", types.StringType(), pa.string()),
    Column("visibility", types.StringType(), pa.string()),
    Column("segment", types.StringType(), pa.string()),
    Column("batch_position", types.LongType(), pa.int64()),
)
BY_NAME = {column.name: column for column in COLUMNS}
SCHEMA = types.StructType([types.StructField(column.name, column.spark) for column in COLUMNS])
COMMITTED = "committed"

TIMESTAMP_MS_MAX = units.MOMENT_MS_MAX
"""Later ones have a null `timestamp`, and their number in `timestamp_ms`."""


def chosen_columns(schema: types.StructType) -> tuple[str, ...]:
    """Those in the reader's schema, in its order; all if it names none."""
    for field in schema.fields:
        if field.name not in BY_NAME:
            raise UsageError(f"no column {field.name}; there are {', '.join(BY_NAME)}")
        kind = BY_NAME[field.name].spark
        if field.dataType != kind:
            raise UsageError(f"{field.name} is {kind.simpleString()}, not {field.dataType.simpleString()}")
    return tuple(field.name for field in schema.fields) or tuple(BY_NAME)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, BY_NAME[name].arrow) for name in columns])


def timestamps(stamps_ms: Ints) -> pa.Array:
    sane = (stamps_ms >= 0) & (stamps_ms <= TIMESTAMP_MS_MAX)
    return pa.array(np.where(sane, stamps_ms, 0) * 1000, mask=~sane).cast(BY_NAME["timestamp"].arrow)


def widened(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Rows of a lake, which has only committed data and knows neither producers nor segment files."""
    return pa.RecordBatch.from_arrays([_widened(batch, name) for name in columns], schema=arrow_schema(columns))


def _widened(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    if name == "timestamp":
        return timestamps(batch.column("timestamp_ms").to_numpy())
    if name == "visibility":
        return pa.repeat(pa.scalar(COMMITTED, pa.string()), batch.num_rows)
    if name == "transactional":
        return pa.repeat(pa.scalar(False), batch.num_rows)
    return pa.nulls(batch.num_rows, BY_NAME[name].arrow)


def within(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The rows whose `offset` is in [start, end)."""
    offsets = batch.column("offset")
    inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
    return batch if pc.all(inside).as_py() else batch.filter(inside)
