"""The stages as DataFrames: small functions DataFrame in, DataFrame out, around the bodies in `work`.

Two paths over the same bodies: one task per partition, or index, newest, rewrite with a shuffle of digests and ordinals in
between. Only DataFrame APIs, so that they run on classic Spark and on Spark Connect alike.
"""

from __future__ import annotations

import gc
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError, PythonException
from pyspark.sql import DataFrame, Row, SparkSession

from headstone.errors import HeadstoneError, Unfinished
from headstone.pipeline.progress import Board, BoardAddress, Meter, reporting
from headstone.pipeline.work import (
    IndexUnit,
    PartitionWork,
    TaskResult,
    answers,
    index_unit,
    index_units,
    newest_of_bucket,
    rewrite_group,
)
from headstone.spark.failures import reason_of

BUCKET_BYTES = 64 << 20
ENTRY_BYTES = 24

RESULT = "result binary"
INDEXED = "bucket int, unit int, blob binary, lost long, error binary"
WINNERS = "group int, blob binary, lost long, keys long, error binary"
_INDEXED_ARROW = pa.schema(
    [("bucket", pa.int32()), ("unit", pa.int32()), ("blob", pa.binary()), ("lost", pa.int64()), ("error", pa.binary())]
)
_WINNERS_ARROW = pa.schema(
    [("group", pa.int32()), ("blob", pa.binary()), ("lost", pa.int64()), ("keys", pa.int64()), ("error", pa.binary())]
)

Batches = Iterator[pa.RecordBatch]
Body = Callable[[Any, Meter], Any]


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """One row and one task a number."""
    return spark.range(0, count, 1, count)


def _result(task: int, number: int, answer: Any, meter: Meter) -> pa.RecordBatch:
    """What a task answered of the work with this number, and how much it has counted."""
    pickled = pickle.dumps((task, number, answer, meter.size, meter.records))
    return pa.RecordBatch.from_pydict({"result": [pickled]}, schema=pa.schema([("result", pa.binary())]))


def _ids(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _calm() -> None:
    """Spark's worker collects garbage after each task: let it not walk through the compiled kernels every time."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Where the tasks of a stage report: the board's address, if there is one, and the first of their numbers there."""

    address: BoardAddress | None
    first: int

    def meter(self, task: int) -> AbstractContextManager[Meter]:
        return reporting(self.address, self.first + task)


def each(spark: SparkSession, body: Body, pickled_tasks: Sequence[bytes], counted: Counted) -> DataFrame:
    """One Spark task for each of the tasks: (index, answer), or the error that the body met, pickled.

    An error travels as a value: a task must not lose the file and position it found.
    """

    def answered(i: int) -> pa.RecordBatch:
        with counted.meter(i) as meter:
            try:
                answer = body(pickle.loads(pickled_tasks[i]), meter)
            except (HeadstoneError, OSError) as error:
                answer = error
        return _result(i, i, answer, meter)

    def run(batches: Batches) -> Batches:
        for i in _ids(batches):
            yield answered(i)
        _calm()

    return numbers(spark, len(pickled_tasks)).mapInArrow(run, RESULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleJob:
    """The shuffle path's work, numbered through: units, buckets and groups of all its partitions."""

    works: tuple[bytes, ...]
    units: tuple[bytes, ...]
    unit_partition: tuple[int, ...]
    bucket_partition: tuple[int, ...]
    first_bucket: tuple[int, ...]
    bucket_count: tuple[int, ...]
    group_partition: tuple[int, ...]
    first_group: tuple[int, ...]
    group_edges: tuple[tuple[int, ...], ...]


def shuffle_job(works: Sequence[PartitionWork], *, parallelism: int) -> ShuffleJob:
    units: list[IndexUnit] = []
    counts, first_bucket, first_group = [], [], []
    bucket_partition: list[int] = []
    group_partition: list[int] = []
    for p, work in enumerate(works):
        mine = index_units(work, p)
        wanted = max(-(-work.records * ENTRY_BYTES // BUCKET_BYTES), min(parallelism, len(mine)), 1)
        first_bucket.append(len(bucket_partition))
        first_group.append(len(group_partition))
        counts.append(wanted)
        bucket_partition += [p] * wanted
        group_partition += [p] * len(work.groups)
        units += mine
    return ShuffleJob(
        works=tuple(pickle.dumps(work) for work in works), units=tuple(pickle.dumps(unit) for unit in units),
        unit_partition=tuple(unit.partition for unit in units), bucket_partition=tuple(bucket_partition),
        first_bucket=tuple(first_bucket), bucket_count=tuple(counts), group_partition=tuple(group_partition),
        first_group=tuple(first_group), group_edges=tuple(work.group_edges for work in works),
    )  # fmt: skip


def indexed(spark: SparkSession, job: ShuffleJob, counted: Counted) -> DataFrame:
    def index_one(i: int) -> pa.RecordBatch:
        p = job.unit_partition[i]
        count, first = job.bucket_count[p], job.first_bucket[p]
        with counted.meter(i) as meter:
            try:
                blobs, lost = index_unit(pickle.loads(job.works[p]), pickle.loads(job.units[i]), count, meter)
                error = None
            except (HeadstoneError, OSError) as problem:
                blobs, lost, error = [b""] * count, 0, pickle.dumps(problem)
        rows = {
            "bucket": list(range(first, first + count)),
            "unit": [i] * count,
            "blob": blobs,
            "lost": [lost] + [0] * (count - 1),
            "error": [error] * count,
        }
        return pa.RecordBatch.from_pydict(rows, schema=_INDEXED_ARROW)

    def run(batches: Batches) -> Batches:
        for i in _ids(batches):
            yield index_one(i)
        _calm()

    return numbers(spark, len(job.units)).mapInArrow(run, INDEXED)


def winners(entries: DataFrame, job: ShuffleJob) -> DataFrame:
    def run(batches: Batches) -> Batches:
        for bucket, rows in sorted(_gathered(batches, "bucket").items()):
            p = job.bucket_partition[bucket]
            edges = np.array(job.group_edges[p], dtype=np.int64)
            rows.sort(key=lambda row: -row["unit"])
            error = next((row["error"] for row in rows if row["error"] is not None), None)
            blobs, found, lost = newest_of_bucket([row["blob"] for row in rows], edges)
            first, count = job.first_group[p], edges.size - 1
            lost += sum(row["lost"] for row in rows)
            columns = {
                "group": list(range(first, first + count)),
                "blob": blobs,
                "lost": [lost] + [0] * (count - 1),
                "keys": [found] + [0] * (count - 1),
                "error": [error] * count,
            }
            yield pa.RecordBatch.from_pydict(columns, schema=_WINNERS_ARROW)
        _calm()

    return by_id(entries, "bucket", len(job.bucket_partition)).mapInArrow(run, WINNERS)


def rewritten(survivors: DataFrame, job: ShuffleJob, counted: Counted) -> DataFrame:
    def rewrite_one(g: int, rows: list[dict[str, Any]], meter: Meter) -> TaskResult:
        p = job.group_partition[g]
        for row in rows:
            if row["error"] is not None:
                raise pickle.loads(row["error"])
        if len(rows) != job.bucket_count[p]:
            raise Unfinished(f"group {g} got {len(rows)} of {job.bucket_count[p]} buckets; run the same command again")
        work = pickle.loads(job.works[p])
        group = work.groups[g - job.first_group[p]]
        result = rewrite_group(work, group, [row["blob"] for row in rows], meter)
        return TaskResult(
            groups=(result,),
            keys=sum(row["keys"] for row in rows),
            tombstones_lost=sum(row["lost"] for row in rows),
        )

    def run(batches: Batches) -> Batches:
        for g, rows in sorted(_gathered(batches, "group").items()):
            with counted.meter(g) as meter:
                try:
                    answer: Any = rewrite_one(g, rows, meter)
                except (HeadstoneError, OSError) as error:
                    answer = error
            yield _result(g, job.group_partition[g], answer, meter)
        _calm()

    return by_id(survivors, "group", len(job.group_partition)).mapInArrow(run, RESULT)


def by_id(frame: DataFrame, column: str, count: int) -> DataFrame:
    """Each id its own task where Spark can do so (4.1 and later); else by hash, where ids may share a task."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, frame[column])
    return frame.repartition(count, frame[column])


def _gathered(batches: Batches, column: str) -> dict[int, list[dict[str, Any]]]:
    gathered: dict[int, list[dict[str, Any]]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            gathered.setdefault(row[column], []).append(row)
    return gathered


def results(frame: DataFrame, board: Board | None, counted: Counted) -> list[tuple[int, Any]]:
    """Evaluates the frame once: (number, answer or the error that a task met, with its file and position)."""
    found = []
    for row in collected(frame):
        task, number, answer, size, records = pickle.loads(bytes(row["result"]))
        found.append((number, answer))
        if board is not None:
            board.note(counted.first + task, size, records)
    return found


def collected(frame: DataFrame) -> list[Row]:
    try:
        return frame.collect()
    except PythonException:
        raise  # of our own code: whoever mends it needs all of it
    except (PySparkException, Py4JError, OSError) as error:
        raise Unfinished(f"Spark did not finish, run the same command again: {reason_of(error)}") from error


def host_for_tasks(spark: SparkSession) -> str | None:
    """How tasks reach this process: the driver's own address, or on Spark Connect the one that faces the server."""
    try:
        server = spark.client.host
    except PySparkRuntimeError:  # it is the driver itself
        return spark.conf.get("spark.driver.host", None)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as facing:
            facing.connect((server, 1))  # sends nothing
            return str(facing.getsockname()[0])
    except OSError:
        return None


class OnSpark:
    """The stages on a Spark session, which may still be starting: it is asked for only when a stage runs."""

    def __init__(
        self, session: Callable[[], SparkSession], *, parallelism: int, begin: Callable[[], None] | None = None
    ) -> None:
        self._session = session
        self._parallelism = parallelism
        self._begin = begin

    def begin(self) -> None:
        """Stages will follow: a session that starts on a thread may start now."""
        if self._begin is not None:
            self._begin()

    def each(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        return answers(self.outcomes(body, tasks, board))

    def outcomes(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        if not tasks:
            return []
        counted = self._counted(board, len(tasks))
        frame = each(self._session(), body, [pickle.dumps(task) for task in tasks], counted)
        return [answer for _, answer in sorted(results(frame, board, counted), key=lambda pair: pair[0])]

    def split(
        self, works: Sequence[PartitionWork], board: Board | None = None
    ) -> list[tuple[int, TaskResult | Exception]]:
        job = shuffle_job(works, parallelism=self._parallelism)
        units, groups = self._counted(board, len(job.units)), self._counted(board, len(job.group_partition))
        entries = indexed(self._session(), job, units)
        return results(rewritten(winners(entries, job), job, groups), board, groups)

    def _counted(self, board: Board | None, tasks: int) -> Counted:
        if board is None:
            return Counted(address=None, first=0)
        host = host_for_tasks(self._session())
        return Counted(address=board.address(host) if host else None, first=board.numbers(tasks)[0])
