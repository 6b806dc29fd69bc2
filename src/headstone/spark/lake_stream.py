"""From a live Kafka cluster into the lake, with Structured Streaming and Spark's own Kafka source.

Owns the query and its micro-batches; what a task writes and what is committed is `lake/landing.py`.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from headstone.errors import UsageError
from headstone.lake.ingest import EXTENT_BYTES
from headstone.lake.lake import Lake, LakeAddress
from headstone.lake.landing import Clock, Ends, Landed, LandTask, append_landed, first_offsets, next_offsets
from headstone.log import codecs
from headstone.log.topic_partition import TopicPartition
from headstone.spark.streams import follow_kafka

LANDED = "landed binary"
SELECTED = (
    "topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms", "timestampType = 1 AS log_append_time",
    "key", "value", "headers",
)  # fmt: skip

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """`source` are options of Spark's Kafka source, with the cluster's address and security."""

    source: Mapping[str, str]
    continuous: bool = False
    every_ms: int = 1000
    """Between two micro-batches of a continuous run."""
    offsets_per_batch: int | None = None
    codec: int = codecs.ZSTD
    extent_bytes: int = EXTENT_BYTES
    stop: threading.Event = field(default_factory=threading.Event)
    before_commit: Callable[[], None] = lambda: None
    """Called when a batch is read and uploaded; what it raises ends the run before anything of the batch is in the lake."""


def stream(
    lake: Lake, address: LakeAddress, spark: SparkSession, starts: Mapping[str, Sequence[int]], options: StreamOptions, *,
    clock: Clock, tell: Tell,
) -> dict[TopicPartition, int]:  # fmt: skip
    """All of these topics: what is committed now, or on and on until `stop`. Records added, by partition.

    `starts`: where the log of each partition begins in Kafka; those that are added later begin at 0."""
    if not starts:
        raise UsageError("no topic to ingest")
    first = {
        topic: {str(number): offset for number, offset in first_offsets(lake, topic, begins).items()}
        for topic, begins in starts.items()
    }
    added: dict[TopicPartition, int] = {}

    def land(batch: DataFrame, number: int, ends: Mapping[tuple[str, int], int]) -> None:
        read_until = {TopicPartition(topic, partition): end for (topic, partition), end in ends.items()}
        records = land_batch(lake, address, batch, read_until, options, clock)
        for partition, count in records.items():
            added[partition] = added.get(partition, 0) + count
        if records:
            tell(f"batch {number}: {sum(records.values()):,} records of {len(records)} partitions")

    given = {"subscribe": ",".join(sorted(starts)), "kafka.isolation.level": "read_committed"}
    given |= {"includeHeaders": "true", "startingOffsets": json.dumps(first), "failOnDataLoss": "true"}
    if options.offsets_per_batch is not None:
        given["maxOffsetsPerTrigger"] = str(options.offsets_per_batch)
    every_ms = options.every_ms if options.continuous else None
    follow_kafka(spark, {**given, **options.source}, SELECTED, land, every_ms=every_ms, stop=options.stop)
    return added


def land_batch(
    lake: Lake, address: LakeAddress, batch: DataFrame, ends: Ends, options: StreamOptions, clock: Clock
) -> dict[TopicPartition, int]:
    """One micro-batch: written by tasks, appended by one commit. What the lake has already (a batch again) is left out."""
    nexts = next_offsets(lake, ends)
    task = LandTask(
        address=address, nexts=nexts, codec=options.codec, extent_bytes=options.extent_bytes, now_ms=clock()
    )
    rows = batch.mapInArrow(task, LANDED).collect()
    landed: list[Landed] = [pickle.loads(bytes(row["landed"])) for row in rows]
    if not landed:
        return {}
    options.before_commit()
    return append_landed(lake, landed, nexts, ends, clock)
