"""The stages as DataFrames: small functions around the bodies in `pipeline`. Only DataFrame APIs: also for Spark Connect.

A task's work travels to it as a row, and the function that all tasks of a stage share holds nothing that grows with the job. In
a shuffle the work of the next task is one more row among those from its predecessors. Errors travel as values: a task must not
lose the file and position it found. The order of rows means nothing; a missing or extra row is noticed.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headstone.errors import HeadstoneError
from headstone.pipeline.progress import BoardAddress, Meter, reporting
from headstone.pipeline.splitting import BucketWork, IndexWork, RewriteWork, SplitWorks, require_each_once
from headstone.pipeline.work import newest_of_bucket

RESULT = "result binary"
MESSAGE = "id int, sender int, blob binary, lost long, keys long, error binary"
WORK_SENDER = -1
"""Sends a task its work; all other senders are numbers of tasks of the stage before."""
_RESULT_ARROW = pa.schema([("result", pa.binary())])
_WORK_ARROW = pa.schema([("id", pa.int32()), ("work", pa.binary())])
_MESSAGE_ARROW = pa.schema(
    [
        ("id", pa.int32()),
        ("sender", pa.int32()),
        ("blob", pa.binary()),
        ("lost", pa.int64()),
        ("keys", pa.int64()),
        ("error", pa.binary()),
    ]
)

Batches = Iterator[pa.RecordBatch]
Body = Callable[[Any, Meter], Any]
Stage = Callable[[Batches], Batches]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Where the tasks of a stage report: the board's address, if there is one, and the first of their numbers there."""

    address: BoardAddress | None
    first: int

    def meter(self, task: int) -> AbstractContextManager[Meter]:
        return reporting(self.address, self.first + task)


def each(spark: SparkSession, body: Body, works: Sequence[Any], counted: Counted, *, first: int = 0) -> DataFrame:
    """One Spark task per work, numbered from `first`: its answer, or the body's error."""
    return _works(spark, works, first).mapInArrow(answering(body, counted), RESULT)


def survivors(spark: SparkSession, works: SplitWorks, units: Counted) -> DataFrame:
    """Index, newest: one Spark task per unit, then per bucket, which sends each group its survivors."""
    entries = _works(spark, works.units, 0).mapInArrow(indexing(units), MESSAGE)
    return by_id(_with_works(spark, entries, works.buckets, 0), len(works.buckets)).mapInArrow(racing, MESSAGE)


def rewritten(spark: SparkSession, sent: DataFrame, works: SplitWorks, groups: Counted, numbers: range) -> DataFrame:
    """One Spark task for each of these groups. `numbers`: all groups, or consecutive ones."""
    if len(numbers) < len(works.groups):
        sent = sent.where((sent["id"] >= numbers.start) & (sent["id"] < numbers.stop))
    some = works.groups[numbers.start : numbers.stop]
    return by_id(_with_works(spark, sent, some, numbers.start), len(some)).mapInArrow(rewriting(groups), RESULT)


def _works(spark: SparkSession, works: Sequence[Any], first: int) -> DataFrame:
    rows = {"id": range(first, first + len(works)), "work": [pickle.dumps(work) for work in works]}
    frame = spark.createDataFrame(pa.Table.from_pydict(rows, schema=_WORK_ARROW))
    if hasattr(frame, "repartitionById"):
        return by_id(frame, len(works))
    return frame.repartitionByRange(len(works), "id")  # scans the rows twice, which costs nothing here


def _with_works(spark: SparkSession, messages: DataFrame, works: Sequence[Any], first: int) -> DataFrame:
    count = len(works)
    rows = {
        "id": range(first, first + count),
        "sender": [WORK_SENDER] * count,
        "blob": [pickle.dumps(work) for work in works],
        "lost": [0] * count,
        "keys": [0] * count,
        "error": [None] * count,
    }
    return messages.unionByName(spark.createDataFrame(pa.Table.from_pydict(rows, schema=_MESSAGE_ARROW)))


def by_id(frame: DataFrame, count: int) -> DataFrame:
    """Each id in its own task if Spark can (4.1 and later); else by hash, where ids may share a task."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, frame["id"])
    return frame.repartition(count, frame["id"])


def answering(body: Body, counted: Counted) -> Stage:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            for row in batch.to_pylist():
                with counted.meter(row["id"]) as meter:
                    try:
                        answer = body(pickle.loads(row["work"]), meter)
                    except (HeadstoneError, OSError) as error:
                        answer = error
                yield _result(row["id"], row["id"], answer, meter)
        _calm()

    return run


def indexing(counted: Counted) -> Stage:
    def run(batches: Batches) -> Batches:
        for batch in batches:
            for row in batch.to_pylist():
                with counted.meter(row["id"]) as meter:
                    yield _indexed(row["id"], pickle.loads(row["work"]), meter)
        _calm()

    return run


def _indexed(number: int, work: IndexWork, meter: Meter) -> pa.RecordBatch:
    try:
        blobs, lost = work.unit.index(len(work.buckets), meter)
    except (HeadstoneError, OSError) as error:
        return _failure(work.buckets, number, error)
    return _messages(work.buckets, number, blobs, lost=lost)


def racing(batches: Batches) -> Batches:
    """For each bucket the newest of every key. A bucket without work sends its groups nothing, and they notice."""
    for bucket, inbox in sorted(_inboxes(batches).items()):
        if inbox.work is not None:
            yield _raced(bucket, inbox.work, inbox.messages)
    _calm()


def _raced(bucket: int, work: BucketWork, messages: list[dict[str, Any]]) -> pa.RecordBatch:
    messages.sort(key=lambda message: -message["sender"])
    try:
        _open(messages, work.units, who=f"bucket {bucket}")
    except (HeadstoneError, OSError) as error:
        return _failure(work.groups, bucket, error)
    edges = np.array(work.edges, dtype=np.int64)
    blobs, key_count, lost = newest_of_bucket([message["blob"] for message in messages], edges)
    lost += sum(message["lost"] for message in messages)
    return _messages(work.groups, bucket, blobs, lost=lost, keys=key_count)


def rewriting(counted: Counted) -> Stage:
    def run(batches: Batches) -> Batches:
        for group, inbox in sorted(_inboxes(batches).items()):
            if inbox.work is not None:
                with counted.meter(group) as meter:
                    try:
                        answer: Any = _rewritten(group, inbox.work, inbox.messages, meter)
                    except (HeadstoneError, OSError) as error:
                        answer = error
                yield _result(group, inbox.work.partition, answer, meter)
        _calm()

    return run


def _rewritten(group: int, work: RewriteWork, messages: list[dict[str, Any]], meter: Meter) -> Any:
    _open(messages, work.buckets, who=f"group {group}")
    return work.part.rewrite(
        [message["blob"] for message in messages], meter, keys_found=sum(message["keys"] for message in messages),
        tombstones_lost=sum(message["lost"] for message in messages),
    )  # fmt: skip


@dataclass(slots=True)
class _Inbox:
    """What one task was sent: its work, and the messages of the stage before."""

    work: Any = None
    messages: list[dict[str, Any]] = field(default_factory=list)


def _inboxes(batches: Batches) -> dict[int, _Inbox]:
    inboxes: dict[int, _Inbox] = {}
    for batch in batches:
        for row in batch.to_pylist():
            inbox = inboxes.setdefault(row["id"], _Inbox())
            if row["sender"] == WORK_SENDER:
                inbox.work = pickle.loads(row["blob"])
            else:
                inbox.messages.append(row)
    return inboxes


def _open(messages: list[dict[str, Any]], senders: range, *, who: str) -> None:
    """Raises a sender's error."""
    for message in messages:
        if message["error"] is not None:
            raise pickle.loads(message["error"])
    require_each_once([message["sender"] for message in messages], senders, who=who)


def _messages(receivers: range, sender: int, blobs: Sequence[bytes], *, lost: int, keys: int = 0) -> pa.RecordBatch:
    """One per receiver; counts that cover all of them go to the first."""
    rest = [0] * (len(receivers) - 1)
    rows = {
        "id": receivers,
        "sender": [sender] * len(receivers),
        "blob": blobs,
        "lost": [lost, *rest],
        "keys": [keys, *rest],
        "error": [None] * len(receivers),
    }
    return pa.RecordBatch.from_pydict(rows, schema=_MESSAGE_ARROW)


def _failure(receivers: range, sender: int, error: Exception) -> pa.RecordBatch:
    count = len(receivers)
    rows = {
        "id": receivers,
        "sender": [sender] * count,
        "blob": [b""] * count,
        "lost": [0] * count,
        "keys": [0] * count,
        "error": [pickle.dumps(error)] * count,
    }
    return pa.RecordBatch.from_pydict(rows, schema=_MESSAGE_ARROW)


def _result(task: int, number: int, answer: Any, meter: Meter) -> pa.RecordBatch:
    """A task's answer to the work with this number, and how much it has counted."""
    pickled = pickle.dumps((task, number, answer, meter.size, meter.records))
    return pa.RecordBatch.from_pydict({"result": [pickled]}, schema=_RESULT_ARROW)


def _calm() -> None:
    """Spark's worker collects garbage after each task: it should not walk through the compiled kernels every time."""
    gc.collect()
    gc.freeze()
