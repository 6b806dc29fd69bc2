"""Follows Kafka topics with Structured Streaming and Spark's own Kafka source, one function call per micro-batch.

Owns what may go wrong with a query: an error of the caller's comes back as it was raised, one of Spark's in a few words.
Checkpoints are temporary: whoever calls this knows where to go on.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.pipeline.engine import Stop

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
POLL_SECONDS = 0.2
TOLD_MAX = 2000

Ends = Mapping[tuple[str, int], int]
"""By topic and partition: the offset behind the last that a batch has looked at."""


def follow_kafka(
    spark: SparkSession,
    options: Mapping[str, str],
    columns: Sequence[str],
    land: Callable[[DataFrame, int, Ends], None],
    *,
    every_ms: int | None,
    stop: Stop,
) -> bool:
    """What is there now, in one or more batches; with `every_ms` on and on. False: `stop`, after the batch in hand."""
    errors: list[HeadstoneError] = []
    left_out: list[int] = []
    stopped = False
    in_hand = threading.Lock()

    def landed(batch: DataFrame, number: int) -> None:
        with in_hand:
            if stop():  # whoever runs it again reads this batch: the checkpoint goes with this run
                left_out.append(number)
                return
            try:
                land(batch, number, _ends(Path(work) / "offsets" / str(number)))
            except HeadstoneError as error:
                errors.append(error)
                raise

    with tempfile.TemporaryDirectory(prefix="headstone-stream-") as work:
        try:
            rows = spark.readStream.format("kafka").options(**options).load().selectExpr(*columns)
            # With its scheme: without one Spark asks its default file system, which may be a bucket or HDFS.
            writer = rows.writeStream.foreachBatch(landed).option("checkpointLocation", Path(work).as_uri())
            writer = (
                writer.trigger(availableNow=True)
                if every_ms is None
                else writer.trigger(processingTime=f"{every_ms} milliseconds")
            )
            query = writer.start()
            while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
                if stop():
                    with in_hand:  # not while the query stops: that waits for whoever waits here
                        pass
                    query.stop()
                    stopped = True
                    break
        except PySparkException as error:
            raise errors[0] if errors else _explained(str(error)) from error
    if errors:  # Spark does not tell it of a query that was stopped
        raise errors[0]
    return not (stopped or left_out)


def _ends(planned: Path) -> Ends:
    """Where a batch ends, from what Spark has written down before it began: it may end behind its last record."""
    ends = json.loads(planned.read_text().splitlines()[-1])
    return {(topic, int(number)): int(end) for topic, numbers in ends.items() for number, end in numbers.items()}


def _explained(text: str) -> HeadstoneError:
    if "Failed to find data source: kafka" in text:
        return UsageError(
            f"this Spark has no Kafka source: add --spark-conf spark.jars.packages={CONNECTOR}:SPARK_VERSION, "
            "or its jars with --spark-conf spark.jars=..."
        )
    return Unfinished(f"the stream ended; run the same command again to go on: {text.strip()[:TOLD_MAX]}")
