"""Follows Kafka topics with Structured Streaming and Spark's own Kafka source, one function call per micro-batch.

Owns what may go wrong with a query: the caller's errors come back as they were raised, Spark's in a few words. Checkpoints are
temporary: the caller knows where to continue.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.pipeline.engine import Stop
from headstone.spark.failures import AGAIN, failure, text_of
from headstone.spark.jvm_output import failure_is_told

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
POLL_SECONDS = 0.2
TOLD_MAX = 2000

Ends = Mapping[tuple[str, int], int]
"""By topic and partition: the offset after the last that a batch has looked at."""


def follow_kafka(
    spark: SparkSession,
    options: Mapping[str, str],
    columns: Sequence[str],
    land: Callable[[DataFrame, int, Ends], None],
    *,
    every_ms: int | None,
    stop: Stop,
) -> bool:
    """What is there now, in one or more batches; with `every_ms`, continuously. False: stopped, after the current batch."""
    errors: list[Exception] = []
    left_out: list[int] = []
    stopped = False
    in_hand = threading.Lock()

    def noted(kind: object, error: BaseException | None, trace: object) -> None:
        """Spark reports it in its own words, and not at all if the query was stopped."""
        if isinstance(error, Exception):
            errors.append(error)

    def landed(batch: DataFrame, number: int) -> None:
        with in_hand:
            if stop():  # whoever runs it again reads this batch: the checkpoint goes with this run
                left_out.append(number)
                return
            with ExitStack() as batch_in_hand:
                batch_in_hand.push(noted)
                land(batch, number, _ends(Path(work) / "offsets" / str(number)))

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
            if not errors:
                errors.append(error)
    if errors:
        explained = _explained(errors[0])
        if explained is None:
            raise errors[0]
        failure_is_told()
        raise explained from errors[0]
    return not (stopped or left_out)


def _ends(planned: Path) -> Ends:
    """Where a batch ends, from what Spark wrote down before it began: that may be after its last record."""
    ends = json.loads(planned.read_text().splitlines()[-1])
    return {(topic, int(number)): int(end) for topic, numbers in ends.items() for number, end in numbers.items()}


def _explained(error: Exception) -> HeadstoneError | None:
    """None: the error is reported as it is, as ours or as a bug in our own code."""
    explained = failure(error) if isinstance(error, PySparkException | Py4JError) else None
    text = text_of(error)
    if "Failed to find data source: kafka" in text:
        return UsageError(
            f"this Spark has no Kafka source: add --spark-conf spark.jars.packages={CONNECTOR}:SPARK_VERSION, "
            "or its jars with --spark-conf spark.jars=..."
        )
    if explained is not None and AGAIN in str(explained):
        return Unfinished(f"the stream ended; {AGAIN} to go on: {text.strip()[:TOLD_MAX]}")
    return explained
