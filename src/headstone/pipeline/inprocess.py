"""The stages in this process, on threads: the speed of light that the benchmarks compare Spark with.

Also what small inspections and most tests run on: the same bodies, in the same order, without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol

import numpy as np

from headstone.errors import HeadstoneError
from headstone.pipeline.engine import Engine
from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.splitting import Splittable, Unit
from headstone.pipeline.work import answers, newest_of_bucket

BUCKETS = 4
NEAR_THREADS = 4
Body = Callable[[Any, Meter], Any]


class InProcess:
    """Kernels release the interpreter lock, so threads are enough."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def begin(self) -> None:
        """Threads need no start."""

    def each(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        return answers(self.outcomes(body, tasks, board))

    def outcomes(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        if self._threads == 1:
            return [_outcome(body, task, board) for task in tasks]
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(lambda task: _outcome(body, task, board), tasks))

    def as_they_end(self, body: Body, tasks: Sequence[Any], board: Board | None = None) -> Iterator[tuple[int, Any]]:
        if self._threads == 1:
            yield from ((number, _outcome(body, task, board)) for number, task in enumerate(tasks))
            return
        pool = ThreadPoolExecutor(self._threads)
        try:
            numbers = {pool.submit(_outcome, body, task, board): number for number, task in enumerate(tasks)}
            for ended in as_completed(numbers):
                yield numbers[ended], ended.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def split(
        self, works: Sequence[Splittable], board: Board | None = None, *, parts_at_once: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        del parts_at_once  # each comes when it is done
        for p, work in enumerate(works):
            try:
                for answer in self._split_one(work, board):
                    yield p, answer
            except (HeadstoneError, OSError) as error:
                yield p, error

    def _split_one(self, work: Splittable, board: Board | None) -> Iterator[Any]:
        edges = np.array(work.group_edges, dtype=np.int64)

        def index(unit: Unit) -> tuple[list[bytes], int]:
            return unit.index(BUCKETS, _meter(board))

        with ThreadPoolExecutor(self._threads) as pool:
            entries = list(pool.map(index, reversed(work.units())))
            won = list(pool.map(lambda b: newest_of_bucket([blobs[b] for blobs, _ in entries], edges), range(BUCKETS)))
            lost = sum(lost for _, lost in entries) + sum(lost for _, _, lost in won)
            keys = sum(keys for _, keys, _ in won)
            parts = work.parts()

            def rewrite(number: int) -> Any:
                first = number == 0  # what is counted of all of them is told once
                return parts[number].rewrite(
                    [blobs[number] for blobs, _, _ in won], _meter(board), keys_found=keys if first else 0,
                    tombstones_lost=lost if first else 0,
                )  # fmt: skip

            yield from pool.map(rewrite, range(len(parts)))


def _outcome(body: Body, task: Any, board: Board | None) -> Any:
    try:
        return body(task, _meter(board))
    except (HeadstoneError, OSError) as error:
        return error


def _meter(board: Board | None) -> Meter:
    return Meter() if board is None else board.meter(board.numbers(1)[0])


class CanBeFar(Protocol):
    @property
    def is_far(self) -> bool: ...


def outcomes_where_they_lie(body: Callable[[Any, Meter], Any], tasks: Sequence[CanBeFar], engine: Engine) -> list[Any]:
    """In the order of the tasks. What is on a disk is for threads of the driver, what is far away for the engine's machines."""
    near = InProcess(NEAR_THREADS).outcomes(body, [task for task in tasks if not task.is_far])
    far = engine.outcomes(body, [task for task in tasks if task.is_far])
    outcomes = {False: iter(near), True: iter(far)}
    return [next(outcomes[task.is_far]) for task in tasks]
