"""The stages in this process, on threads: the speed of light that the benchmarks compare Spark with.

Also what small inspections and most tests run on: the same bodies, in the same order, without a JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from headstone.errors import HeadstoneError
from headstone.pipeline.engine import Engine
from headstone.pipeline.progress import Board, Meter
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
        def outcome(task: Any) -> Any:
            try:
                return body(task, _meter(board))
            except (HeadstoneError, OSError) as error:
                return error

        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(outcome, tasks))

    def split(
        self, works: Sequence[PartitionWork], board: Board | None = None
    ) -> list[tuple[int, TaskResult | Exception]]:
        found: list[tuple[int, TaskResult | Exception]] = []
        for p, work in enumerate(works):
            try:
                found.append((p, self._split_one(work, board)))
            except (HeadstoneError, OSError) as error:
                found.append((p, error))
        return found

    def _split_one(self, work: PartitionWork, board: Board | None) -> TaskResult:
        units = index_units(work)
        edges = np.array(work.group_edges, dtype=np.int64)

        def index(unit: IndexUnit) -> tuple[list[bytes], int]:
            return index_unit(work.cleaning, unit, BUCKETS, _meter(board))

        with ThreadPoolExecutor(self._threads) as pool:
            entries = list(pool.map(index, reversed(units)))
            won = list(pool.map(lambda b: newest_of_bucket([blobs[b] for blobs, _ in entries], edges), range(BUCKETS)))
            groups = list(
                pool.map(
                    lambda g: rewrite_group(work, work.groups[g], [blobs[g] for blobs, _, _ in won], _meter(board)),
                    range(len(work.groups)),
                )
            )
        lost = sum(lost for _, lost in entries) + sum(lost for _, _, lost in won)
        found = sum(found for _, found, _ in won)
        return TaskResult(groups=tuple(groups), keys=found, tombstones_lost=lost)


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
