"""Exact facts of partitions: the verb `inspect` and `headstone.inspect`.

Owns which logs are meant and which engine reads them. `pipeline/inspection.py` finds the facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

import pyarrow as pa

from headstone.api.running import CallersRunner, Paths, interruptible, reached, some
from headstone.api.settings import INSPECTION_LAG_MS, INSPECTION_NOW_MS
from headstone.api.tables import arrow_table, frame
from headstone.bounds import DURATION_MS, MOMENT_MS, several
from headstone.pipeline.inputs import bytes_of, in_use, logs_in, of_topics
from headstone.pipeline.inspection import Inspection, inspect_each
from headstone.pipeline.runner import Runner
from headstone.retention.policy import Policy
from headstone.storage.places import Place

if TYPE_CHECKING:
    import pandas as pd

    from headstone.spark.session import DataFrame, SparkSession

NUMBERS = (
    "log_start", "log_end", "high_watermark", "lso", "records", "keys", "tombstones", "markers", "aborted_records",
    "open_records", "keyless_records", "header_only_batches", "batches", "segments", "bytes", "open_transactions",
    "aborted_transactions", "producers", "first_dirty", "cleanable_to",
)  # fmt: skip
FACTS = pa.schema(
    [
        ("partition", pa.string()),
        ("directory", pa.string()),
        *((name, pa.int64()) for name in NUMBERS),
        ("dirty_ratio", pa.float64()),
        ("codecs", pa.list_(pa.string())),
        ("horizon_batches", pa.int64()),
        ("horizon_first_ms", pa.int64()),
        ("horizon_last_ms", pa.int64()),
        ("notes", pa.list_(pa.string())),
        ("error", pa.string()),
    ]
)
"""A row for each partition. For an unreadable one only its name and `error` are known."""


@overload
def inspect(
    paths: Paths, *, spark: None = None, topics: Sequence[str] = (), now_ms: int = ..., min_compaction_lag_ms: int = ...,
    store: Mapping[str, str] | None = None, progress: bool = True,
) -> pd.DataFrame: ...  # fmt: skip
@overload
def inspect(
    paths: Paths, *, spark: SparkSession, topics: Sequence[str] = (), now_ms: int = ..., min_compaction_lag_ms: int = ...,
    store: Mapping[str, str] | None = None, progress: bool = True,
) -> DataFrame: ...  # fmt: skip
def inspect(
    paths: Paths, *, spark: SparkSession | None = None, topics: Sequence[str] = (), now_ms: int = INSPECTION_NOW_MS,
    min_compaction_lag_ms: int = INSPECTION_LAG_MS, store: Mapping[str, str] | None = None, progress: bool = True,
) -> pd.DataFrame | DataFrame:  # fmt: skip
    """Exact facts of every partition found, a row each (columns: `FACTS`); every checksum and every record is checked.

    paths: log directories, partition directories or single .log files, also s3://BUCKET/PREFIX. Returns a pandas DataFrame, or
    with `spark` a Spark DataFrame, made on that session. A log that cannot be read whole is a row with `error`.
    store: settings of object stores by obstore's names; secrets may be env:NAME or file:PATH.
    """

    several("topics", topics)
    MOMENT_MS.expect("now_ms", now_ms)
    DURATION_MS.expect("min_compaction_lag_ms", min_compaction_lag_ms)

    def work() -> Inspection:
        places = [reached(path, store) for path in some(paths)]
        policy = Policy(now_ms=now_ms, min_compaction_lag_ms=min_compaction_lag_ms)
        return inspect_logs(places, topics, policy, CallersRunner(spark=spark, shows_progress=progress))

    return frame(as_table(interruptible(work, spark, left_behind="it has changed nothing")), spark)


def inspect_logs(places: Sequence[str | Place], topics: Sequence[str], policy: Policy, runner: Runner) -> Inspection:
    """What the verb and the library share. Warns of log directories that a broker is writing to."""
    directories = of_topics(logs_in(places), topics, places)
    for text in in_use([directory.log_dir for directory in directories], "what follows"):
        runner.warn(text)
    with runner.engine(bytes_of(directories)) as engine, runner.progress() as progress:
        engine.begin()
        return inspect_each(directories, policy, engine, progress.board)


def as_table(inspection: Inspection) -> pa.Table:
    rows: list[dict[str, object]] = []
    for facts in inspection.facts:
        document = facts.as_json()
        horizons = {f"horizon_{name}": value for name, value in document["horizons"].items()}
        rows.append({**document, **horizons})
    rows += [{"partition": failure.partition, "error": failure.text} for failure in inspection.failed]
    return arrow_table(rows, FACTS)
