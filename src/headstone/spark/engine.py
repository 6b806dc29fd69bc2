"""The Engine on a Spark session: runs the stages as jobs, counts what comes back, and cancels them when interrupted.

Works with any kind of Spark: a session may be local, on a cluster, or over Spark Connect.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, Row, SparkSession, functions

from headstone.interruption import Threads, cancelling, check
from headstone.pipeline.engine import Stop, never
from headstone.pipeline.progress import Board
from headstone.pipeline.splitting import Splittable, require_each_once, split_works
from headstone.pipeline.work import answers
from headstone.spark import stages
from headstone.spark.failures import failure
from headstone.spark.inheriting import inheriting
from headstone.spark.jvm_output import failure_is_told
from headstone.spark.stages import Body, Counted
from headstone.spark.tags import cancel, new_tag, tagged

JOBS_MAX = 16
"""Jobs per stage where datagrams may not arrive: the line moves as each ends."""
SMALL_JOBS_MAX = 64
"""Jobs of a stage whose answers are wanted soon, and which may be stopped: a job that has begun is finished."""
SMALL_JOBS_AT_ONCE = 2
"""Each fills the cluster: while the last tasks of one run, those of the next use the free cores."""
ROWS_ASKED = 100_000
"""More than a cluster has cores: a partition without a row reports nothing."""
LOOPBACK = ("127.", "::1")


class OnSpark:
    """The stages on a Spark session, which may still be starting: it is waited for only when a stage runs."""

    def __init__(
        self, session: Callable[[], SparkSession], *, parallelism: int | None = None,
        begin: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """`parallelism` None: Spark is asked when it is first needed."""
        self._session = session
        self._parallelism = parallelism
        self._begin = begin

    @property
    def parallelism(self) -> int:
        if self._parallelism is None:
            self._parallelism = parallelism_of(self._session())
        return self._parallelism

    def begin(self) -> None:
        """Stages will follow: a session that starts on a thread may start now."""
        if self._begin is not None:
            self._begin()

    def each(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        return answers(self.outcomes(body, tasks, board))

    def outcomes(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        ended = sorted(self._ended(body, tasks, board, size_of=job_size), key=lambda pair: pair[0])
        return [answer for _, answer in ended]

    def as_they_end(
        self, body: Body, tasks: Sequence[Any], board: Board | None = None, *, stop: Stop = never
    ) -> Iterator[tuple[int, Any]]:
        """In several jobs of some tasks each: Spark returns a job's results only when the whole job has ended."""
        return self._ended(body, tasks, board, size_of=small_job_size, at_once=SMALL_JOBS_AT_ONCE, stop=stop)

    def _ended(
        self, body: Body, tasks: Sequence[Any], board: Board | None, *, size_of: Callable[..., int],
        at_once: int | None = None, stop: Stop = never,
    ) -> Iterator[tuple[int, Any]]:  # fmt: skip
        if not tasks:
            return
        spark, counted = self._session(), self._counted(board, len(tasks))
        size = size_of(len(tasks), counted, parallelism=self.parallelism)
        jobs = [
            SparkJob(
                frame=stages.each(spark, body, tasks[first : first + size], counted, first=first),
                tasks=range(first, min(first + size, len(tasks))),
            )
            for first in range(0, len(tasks), size)
        ]
        yield from results(spark, jobs, board, counted, at_once=at_once, stop=stop)

    def split(
        self, works: Sequence[Splittable], board: Board | None = None, *, parts_at_once: int | None = None,
        stop: Stop = never,
    ) -> Iterator[tuple[int, Any]]:  # fmt: skip
        """With several jobs, survivors are kept on the executors from the first one on: nothing is indexed twice."""
        cut = split_works(works, parallelism=self.parallelism)
        units, groups = self._counted(board, len(cut.units)), self._counted(board, len(cut.groups))
        spark, count = self._session(), len(cut.groups)
        size = count if parts_at_once is None else max(parts_at_once, self.parallelism)
        sent = stages.survivors(spark, cut, units)
        jobs = [range(first, min(first + size, count)) for first in range(0, count, size)]
        with ExitStack() as kept:
            if len(jobs) > 1:
                sent = kept.enter_context(_persisted(sent))
            for numbers in jobs:
                if stop():
                    return
                job = SparkJob(frame=stages.rewritten(spark, sent, cut, groups, numbers), tasks=numbers)
                yield from results(spark, [job], board, groups)
        if board is not None:
            for number, work in enumerate(cut.units):
                board.note(units.first + number, work.unit.size, 0)

    def _counted(self, board: Board | None, tasks: int) -> Counted:
        if board is None:
            return Counted(address=None, first=0)
        host = host_for_tasks(self._session())
        return Counted(address=board.address(host) if host else None, first=board.numbers(tasks)[0])


def parallelism_of(spark: SparkSession) -> int:
    """The number of tasks into which Spark cuts data by default: the cores of all its executors, unless configured otherwise.

    Asked through a DataFrame, the only way that works on a cluster and over Spark Connect. Twice: executors of a standalone
    cluster come with the first job."""
    numbered = spark.range(ROWS_ASKED).select(functions.spark_partition_id().alias("partition"))
    counts = [collected(numbered.agg(functions.max("partition").alias("last"))) for _ in range(2)]
    return max(int(rows[0]["last"]) + 1 for rows in counts)


def job_size(tasks: int, counted: Counted, *, parallelism: int) -> int:
    """Tasks per job: all of them if nothing is counted, or if reports are sure to arrive."""
    if counted.address is None or counted.address.host.startswith(LOOPBACK):
        return tasks
    return max(parallelism, -(-tasks // JOBS_MAX))


def small_job_size(tasks: int, counted: Counted, *, parallelism: int) -> int:
    """Tasks per job if each task's result is wanted soon."""
    del counted
    return max(parallelism, -(-tasks // SMALL_JOBS_MAX))


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist()
    try:
        yield kept
    finally:
        with suppress(PySparkException, Py4JError, OSError):  # a session that has gone keeps nothing
            kept.unpersist()


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """A frame that is not evaluated yet, and the numbers of the tasks that its rows report on."""

    frame: DataFrame
    tasks: range


def results(
    spark: SparkSession, jobs: Sequence[SparkJob], board: Board | None, counted: Counted, *, at_once: int | None = None,
    stop: Stop = never,
) -> Iterator[tuple[int, Any]]:  # fmt: skip
    """For every task of a job that was begun, once: (number of its work, answer or error)."""
    for job, rows in ended_jobs(spark, jobs, at_once=at_once or len(jobs), stop=stop):
        answered = [pickle.loads(bytes(row["result"])) for row in rows]
        require_each_once([task for task, *_ in answered], job.tasks, who="the driver")
        for task, number, answer, size, records in answered:
            if board is not None:
                board.note(counted.first + task, size, records)
            yield number, answer


def ended_jobs(
    spark: SparkSession, jobs: Sequence[SparkJob], *, at_once: int, stop: Stop = never
) -> Iterator[tuple[SparkJob, list[Row]]]:
    """Evaluates each frame once, `at_once` at a time, and yields the rows of each as its job ends; begins none after `stop`.

    Jobs run on threads, under a tag by which they are cancelled: the caller may run other jobs in the same session.
    """
    tag = new_tag()

    def rows(job: SparkJob) -> list[Row] | None:
        return None if stop() else collected(job.frame, tag)

    inherited = inheriting(spark, rows)
    pool = Threads(at_once, thread_name_prefix="spark-job")
    with ExitStack() as unfinished:
        unfinished.callback(pool.shutdown)
        unfinished.callback(cancel, spark, tag)
        unfinished.callback(pool.shutdown, wait=False, cancel_futures=True)
        submitted = {pool.submit(inherited, job): job for job in jobs}
        for ended in as_completed(submitted):
            answer = ended.result()
            if answer is not None:
                yield submitted[ended], answer
        unfinished.pop_all()
    pool.shutdown()


def collected(frame: DataFrame, tag: str | None = None) -> list[Row]:
    """Its rows, from one job under this tag. The caller may give up without waiting for Spark."""
    check()
    spark, name = frame.sparkSession, tag or new_tag()
    try:
        with cancelling(lambda: cancel(spark, name)), tagged(spark, name):
            return frame.collect()
    except (PySparkException, Py4JError, OSError) as error:
        check()
        explained = failure(error)
        if explained is None:
            raise
        failure_is_told()
        raise explained from error


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
