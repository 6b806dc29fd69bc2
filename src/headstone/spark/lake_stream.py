"""From a live Kafka cluster into the lake, with Structured Streaming and Spark's own Kafka source.

Owns the query and its micro-batches. What a task writes and what is committed is in `lake/transfer/landing.py`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from headstone import units
from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.lake.defaults import BATCH_OBJECTS, CODEC, EXTENT_BYTES, FLUSH_AGE_MS, OBJECT_BYTES, POLL_EVERY_MS
from headstone.lake.format.objects import Stored
from headstone.lake.lake import Lake
from headstone.lake.metastore.surveys import record_bytes
from headstone.lake.transfer.landing import (
    RECORD_BYTES_GUESS,
    Clock,
    Ends,
    FollowedTopics,
    LandTask,
    ObjectSize,
    offsets_between,
)
from headstone.log import codecs
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop, never
from headstone.pipeline.progress import Board
from headstone.pipeline.work import answers
from headstone.spark.engine import host_for_tasks
from headstone.spark.stages import Counted
from headstone.spark.streams import follow_kafka

LANDED = "landed binary"
LANDED_ARROW = pa.schema([("landed", pa.binary())])
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
    every_ms: int = POLL_EVERY_MS
    """Poll interval of a continuous run."""
    age_ms_max: int = FLUSH_AGE_MS
    """A continuous run writes an object when it has `object_bytes`, or at this age; 0: at once."""
    object_bytes: int = OBJECT_BYTES
    offsets_per_batch: int | None = None
    """None: as many as make `BATCH_OBJECTS`."""
    offsets_per_task: int | None = None
    """None: as many as make an object, with records of an ordinary size."""
    codec: int = codecs.NAMES.index(CODEC)
    extent_bytes: int = EXTENT_BYTES
    stop: Stop = never
    """The current batch is finished."""
    before_commit: Callable[[], None] = lambda: None
    """Called when a batch is read and uploaded. An exception ends the run before anything of the batch is in the lake."""


def stream(
    lake: Lake,
    spark: SparkSession,
    starts: Mapping[str, Sequence[int]],
    options: StreamOptions,
    *,
    clock: Clock,
    tell: Tell,
    board: Board | None = None,
) -> dict[TopicPartition, int]:
    """All of these topics: what is committed now, or continuously until `stop`. Returns the records added, by partition.

    `starts`: where the log of each partition begins in Kafka; those added later begin at 0. The board counts offsets.
    Unfinished if it was stopped before everything that is there now was ingested; what was committed stays."""
    if not starts:
        raise UsageError("no topic to ingest")
    begins = {
        TopicPartition(topic, number): start for topic, some in starts.items() for number, start in enumerate(some)
    }
    followed = FollowedTopics(lake, begins)
    reached = followed.unread()
    first = {topic: {str(name.number): reached[name] for name in reached if name.topic == topic} for topic in starts}
    added: dict[TopicPartition, int] = {}
    average_bytes = record_bytes(lake.metastore, starts) or RECORD_BYTES_GUESS
    size = ObjectSize(options.object_bytes, bytes=average_bytes, offsets_max=options.offsets_per_task)

    def land(batch: DataFrame, number: int, ends: Mapping[tuple[str, int], int]) -> None:
        read_until = {TopicPartition(topic, partition): end for (topic, partition), end in ends.items()}
        records = land_batch(lake, followed, batch, read_until, options, size, clock, partial(_counted, spark, board))
        if board is not None:
            board.settle(offsets_between(reached, read_until))
        reached.update(read_until)
        for partition, count in records.items():
            added[partition] = added.get(partition, 0) + count
        if records:
            tell(
                f"batch {number}: {units.count(sum(records.values()), 'record')} of {units.count(len(records), 'partition')}"
            )

    given = {"subscribe": ",".join(sorted(starts)), "kafka.isolation.level": "read_committed"}
    given |= {"includeHeaders": "true", "startingOffsets": json.dumps(first), "failOnDataLoss": "true"}
    every_ms = options.every_ms if options.continuous else None
    given |= batching(options, size.offsets)
    whole = follow_kafka(spark, {**given, **options.source}, SELECTED, land, every_ms=every_ms, stop=options.stop)
    if not whole and not options.continuous:
        raise Unfinished(
            f"stopped: {units.count(sum(added.values()), 'record')} more in the lake; run the same command again to continue"
        )
    return added


def _counted(spark: SparkSession, board: Board | None, tasks: int) -> Counted:
    """Where this many tasks report their progress."""
    host = host_for_tasks(spark) if board is not None else None
    if board is None or host is None:
        return _uncounted(tasks)
    return Counted(address=board.address(host), first=board.numbers(tasks)[0])


def _uncounted(tasks: int) -> Counted:
    del tasks
    return Counted(address=None, first=0)


def batching(options: StreamOptions, per_object: int) -> dict[str, str]:
    """How much Spark's Kafka source takes at once, and into how many tasks it cuts that, by the offsets of an object."""
    per_batch = options.offsets_per_batch or per_object * BATCH_OBJECTS
    given = {"maxRecordsPerPartition": str(per_object), "maxOffsetsPerTrigger": str(per_batch)}
    if options.continuous and options.age_ms_max:
        given["minOffsetsPerTrigger"] = str(min(per_object, per_batch))
        given["maxTriggerDelay"] = f"{options.age_ms_max}ms"
    return given


def land_batch(
    lake: Lake, followed: FollowedTopics, batch: DataFrame, ends: Ends, options: StreamOptions, size: ObjectSize, clock: Clock,
    counted: Callable[[int], Counted] = _uncounted,
) -> dict[TopicPartition, int]:  # fmt: skip
    """One micro-batch: written by tasks, appended by one commit. Skips what the lake has already (a repeated batch)."""
    nexts = followed.nexts(ends)
    objects = size.objects(followed.unread(), ends)
    task = LandTask(
        store=lake.store, lake_id=lake.metastore.lake_id, hash_key=lake.metastore.hash_key, nexts=nexts, codec=options.codec,
        object_ids=tuple(lake.metastore.register(objects, now_ms=clock)), extent_bytes=options.extent_bytes,
    )  # fmt: skip
    rows = batch.coalesce(objects).mapInArrow(landing(task, counted(objects)), LANDED).collect()
    outcomes: dict[int, Stored | HeadstoneError] = dict(pickle.loads(bytes(row["landed"])) for row in rows)
    # An id belongs to the number of a task. If it has no answer, there is no such task, or the task has read all its offsets
    # and found nothing new. A twin that is still alive, by speculation or on a machine that Spark has lost, reads the same
    # offsets and skips the same, so it uploads nothing either. (If Kafka's cleaner emptied them between the two, its object is
    # an orphan, which gc finds, and which every proof reads.) Ids with an answer, even an error, may have an upload: these
    # stay.
    lake.metastore.unregister([name for number, name in enumerate(task.object_ids) if number not in outcomes])
    landed: list[Stored] = answers(list(outcomes.values()))
    if not landed:
        return {}
    size.learn(landed)
    options.before_commit()
    return followed.append(landed, ends, clock)


def landing(task: LandTask, counted: Counted) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Yields the number of a task, and what it has stored, if anything, or its error."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "this runs in a task of Spark's"
        number = context.partitionId()
        answer: Stored | HeadstoneError | None
        with counted.meter(number) as meter:
            try:
                answer = task.land(number, batches, meter)
            except HeadstoneError as error:
                answer = error
        if answer is not None:
            yield pa.RecordBatch.from_pydict({"landed": [pickle.dumps((number, answer))]}, schema=LANDED_ARROW)

    return run
