"""The stages in this process, on threads: the speed of light that the benchmarks compare Spark with.

Small inspections and most tests also use it: the same bodies, in the same order, without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from enum import Enum
from typing import Any, Protocol

import numpy as np

from headstone.errors import HeadstoneError
from headstone.interruption import Threads, check
from headstone.pipeline.blob_spool import BlobSpool, SpooledBlob
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.progress import Board, Meter, meter_on
from headstone.pipeline.splitting import Splittable, Unit, buckets_of
from headstone.pipeline.work import answers, newest_of_bucket

BUCKETS = 4
"""At least this many, so that threads have something to share."""
NEAR_THREADS = 4
Body = Callable[[Any, Meter], Any]


class _Task(Enum):
    UNBEGUN = "unbegun"
    """In place of an answer: its turn came after the stop."""


class InProcess:
    """Kernels release the interpreter lock, so threads are enough."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    @property
    def parallelism(self) -> int:
        return self._threads

    def begin(self) -> None:
        """Threads need no start."""

    def each(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        return answers(self.outcomes(body, tasks, board))

    def outcomes(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        with self._mapping() as mapped:
            return list(mapped(lambda task: _outcome(body, task, board), tasks))

    def as_they_end(
        self, body: Body, tasks: Sequence[Any], board: Board | None = None, *, stop: Stop = never
    ) -> Iterator[tuple[int, Any]]:
        def outcome(task: Any) -> Any:
            return _Task.UNBEGUN if stop() else _outcome(body, task, board)

        if self._threads == 1:
            outcomes = ((number, outcome(task)) for number, task in enumerate(tasks))
            yield from (pair for pair in outcomes if pair[1] is not _Task.UNBEGUN)
            return
        pool = Threads(self._threads)
        try:
            numbers = {pool.submit(outcome, task): number for number, task in enumerate(tasks)}
            for ended in as_completed(numbers):
                if ended.result() is not _Task.UNBEGUN:
                    yield numbers[ended], ended.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def split(
        self, works: Sequence[Splittable], board: Board | None = None, *, parts_at_once: int | None = None,
        stop: Stop = never,
    ) -> Iterator[tuple[int, Any]]:  # fmt: skip
        del parts_at_once  # each comes when it is done
        for p, work in enumerate(works):
            try:
                for answer in self._split_one(work, board, stop):
                    yield p, answer
            except (HeadstoneError, OSError) as error:
                yield p, error

    def _split_one(self, work: Splittable, board: Board | None, stop: Stop) -> Iterator[Any]:
        """Entries and survivors wait on disk, so memory is bounded by what each thread works on."""
        edges = np.array(work.group_edges, dtype=np.int64)
        buckets = max(BUCKETS, buckets_of(work.records))

        def index(unit: Unit) -> tuple[list[SpooledBlob], int] | None:
            if stop():
                return None
            blobs, lost = unit.index(buckets, meter_on(board))
            return spool.put(blobs), lost

        def newest(bucket: int) -> tuple[list[SpooledBlob], int, int]:
            blobs, keys, lost = newest_of_bucket([spool.read(places[bucket]) for places, _ in entries], edges)
            return spool.put(blobs), keys, lost

        with BlobSpool() as spool, self._mapping() as mapped:
            entries = [entry for entry in mapped(index, reversed(work.units())) if entry is not None]
            if stop():
                return
            won = list(mapped(newest, range(buckets)))
            lost = sum(lost for _, lost in entries) + sum(lost for _, _, lost in won)
            keys = sum(keys for _, keys, _ in won)
            parts = work.parts()

            def rewrite(number: int) -> Any:
                if stop():
                    return _Task.UNBEGUN
                first = number == 0  # counts of all of them are reported once
                return parts[number].rewrite(
                    [spool.read(places[number]) for places, _, _ in won], meter_on(board), keys_found=keys if first else 0,
                    tombstones_lost=lost if first else 0,
                )  # fmt: skip

            yield from (answer for answer in mapped(rewrite, range(len(parts))) if answer is not _Task.UNBEGUN)

    @contextmanager
    def _mapping(self) -> Iterator[Callable[..., Iterator[Any]]]:
        """With one thread it is the caller's own: nothing runs beside it."""
        if self._threads == 1:
            yield map
            return
        with Threads(self._threads) as pool:
            yield pool.map


def _outcome(body: Body, task: Any, board: Board | None) -> Any:
    check()
    try:
        return body(task, meter_on(board))
    except (HeadstoneError, OSError) as error:
        return error


class CanBeFar(Protocol):
    @property
    def is_far(self) -> bool: ...


def run_near_data(body: Callable[[Any, Meter], Any], tasks: Sequence[CanBeFar], engine: Engine) -> list[Any]:
    """Outcomes in the order of the tasks. Local files are read by threads of the driver, remote ones by the engine."""
    near = InProcess(NEAR_THREADS).outcomes(body, [task for task in tasks if not task.is_far])
    far = engine.outcomes(body, [task for task in tasks if task.is_far])
    outcomes = {False: iter(near), True: iter(far)}
    return [next(outcomes[task.is_far]) for task in tasks]
