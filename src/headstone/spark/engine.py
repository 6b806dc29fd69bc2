"""The Engine on a Spark session: runs the stages as jobs, counts what comes back, and cancels them when it is interrupted.

Knows no kind of Spark in particular: a session may be local, on a cluster, or over Spark Connect.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PySparkRuntimeError, PythonException
from pyspark.sql import DataFrame, Row, SparkSession

from headstone.errors import Unfinished
from headstone.pipeline.progress import Board
from headstone.pipeline.splitting import Splittable, require_each_once, split_works
from headstone.pipeline.work import answers
from headstone.spark import stages
from headstone.spark.failures import reason_of
from headstone.spark.stages import Body, Counted

JOBS_MAX = 16
"""Jobs into which the tasks of a stage are cut where datagrams may not arrive: as each ends, the line moves."""
LOOPBACK = ("127.", "::1")


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
        ended = sorted(self._ended(body, tasks, board, job_size), key=lambda pair: pair[0])
        return [answer for _, answer in ended]

    def as_they_end(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> Iterator[tuple[int, Any]]:
        """In jobs of their own, some tasks each: Spark tells what a job has found when all of it has ended."""
        return self._ended(body, tasks, board, small_job_size)

    def _ended(
        self, body: Body, tasks: Sequence[Any], board: Board | None, size_of: Callable[..., int]
    ) -> Iterator[tuple[int, Any]]:
        if not tasks:
            return
        spark, counted = self._session(), self._counted(board, len(tasks))
        size = size_of(len(tasks), counted, parallelism=self._parallelism)
        frames = [
            stages.each(spark, body, tasks[first : first + size], counted, first=first)
            for first in range(0, len(tasks), size)
        ]
        yield from results(spark, frames, board, counted, tasks=range(len(tasks)))

    def split(
        self, works: Sequence[Splittable], board: Board | None = None, *, parts_at_once: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """In several jobs the survivors are kept on the executors from the first one on: nothing is indexed twice."""
        cut = split_works(works, parallelism=self._parallelism)
        units, groups = self._counted(board, len(cut.units)), self._counted(board, len(cut.groups))
        spark, count = self._session(), len(cut.groups)
        size = count if parts_at_once is None else max(parts_at_once, self._parallelism)
        sent = stages.survivors(spark, cut, units)
        jobs = [range(first, min(first + size, count)) for first in range(0, count, size)]
        with ExitStack() as kept:
            if len(jobs) > 1:
                sent = kept.enter_context(_persisted(sent))
            for numbers in jobs:
                frame = stages.rewritten(spark, sent, cut, groups, numbers)
                yield from results(spark, [frame], board, groups, tasks=numbers)
        if board is not None:
            for number, work in enumerate(cut.units):
                board.note(units.first + number, work.unit.size, 0)

    def _counted(self, board: Board | None, tasks: int) -> Counted:
        if board is None:
            return Counted(address=None, first=0)
        host = host_for_tasks(self._session())
        return Counted(address=board.address(host) if host else None, first=board.numbers(tasks)[0])


def job_size(tasks: int, counted: Counted, *, parallelism: int) -> int:
    """Tasks per job: all, where nobody counts, or where what they send arrives for sure."""
    if counted.address is None or counted.address.host.startswith(LOOPBACK):
        return tasks
    return max(parallelism, -(-tasks // JOBS_MAX))


def small_job_size(tasks: int, counted: Counted, *, parallelism: int) -> int:
    """Tasks per job where what each has done is wanted soon."""
    del counted
    return max(parallelism, -(-tasks // JOBS_MAX))


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    kept = frame.persist()
    try:
        yield kept
    finally:
        with suppress(PySparkException, Py4JError, OSError):  # a session that has gone keeps nothing
            kept.unpersist()


def results(
    spark: SparkSession, frames: Sequence[DataFrame], board: Board | None, counted: Counted, *, tasks: range
) -> Iterator[tuple[int, Any]]:
    """Of every task once: (number of its work, answer or the error that it met, with file and position)."""
    heard = []
    for row in rows(spark, frames):
        task, number, answer, size, records = pickle.loads(bytes(row["result"]))
        heard.append(task)
        if board is not None:
            board.note(counted.first + task, size, records)
        yield number, answer
    require_each_once(heard, tasks, who="the driver")


def rows(spark: SparkSession, frames: Sequence[DataFrame]) -> Iterator[Row]:
    """Evaluates each frame once, all of them at a time, and gives the rows of each as its job ends.

    Jobs run on threads: whoever presses Ctrl-C interrupts this thread alone, which can still cancel them. That is every
    job of the session, as Spark's own shell does it; a tag is known only to the thread that set it.
    """
    pool = ThreadPoolExecutor(len(frames), thread_name_prefix="spark-job")
    with ExitStack() as unfinished:
        unfinished.callback(pool.shutdown)
        unfinished.callback(_cancel, spark, pool)
        for job in as_completed([pool.submit(collected, frame) for frame in frames]):
            yield from job.result()
        unfinished.pop_all()
    pool.shutdown()


def _cancel(spark: SparkSession, pool: ThreadPoolExecutor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    with suppress(PySparkException, Py4JError, OSError):  # a JVM that has gone runs nothing
        spark.interruptAll()


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
