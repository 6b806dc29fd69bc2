"""Values as tables: Arrow with a written schema, shown as a pandas or a Spark DataFrame, or in a notebook.

Knows nothing about the content.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from headstone.api.running import session_of
from headstone.errors import not_installed

if TYPE_CHECKING:
    import pandas as pd

    from headstone.spark.session import DataFrame, SparkSession


def arrow_table(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """The columns of the schema, in its order; other fields of a row are left out, missing ones are null."""
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


@overload
def frame(table: pa.Table, spark: None) -> pd.DataFrame: ...
@overload
def frame(table: pa.Table, spark: SparkSession) -> DataFrame: ...
def frame(table: pa.Table, spark: SparkSession | None) -> pd.DataFrame | DataFrame:
    """A Spark DataFrame on this session, or a pandas one, whose integers stay integers even if some are missing."""
    if spark is not None:
        return session_of(spark).createDataFrame(table)
    try:
        import pandas as pd
    except ImportError as error:
        raise not_installed("pandas is", "spark", instead="pass spark=, for a Spark DataFrame") from error
    kept = {
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.string(): pd.StringDtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    return table.to_pandas(types_mapper=kept.get)


def html_table(table: pa.Table, caption: str) -> str:
    """What a notebook shows of a value."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.column_names)
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape('' if value is None else str(value))}</td>" for value in row.values())
        + "</tr>"
        for row in table.to_pylist()
    )
    return f"<p>{html.escape(caption)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
