"""The port to whoever runs the tasks: threads of this process (`inprocess.py`) or Spark (`spark/engine.py`).

A body takes its own work as data and returns values; it may run twice, anywhere, beside a dead twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.work import PartitionWork, TaskResult


class Engine(Protocol):
    def begin(self) -> None: ...

    def each(self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        """The answers; the first error that a body met is raised."""
        ...

    def outcomes(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None
    ) -> list[Any]:
        """The answers, with the error that a body met in the place of its answer."""
        ...

    def split(
        self, works: Sequence[PartitionWork], board: Board | None = None
    ) -> list[tuple[int, TaskResult | Exception]]:
        """(which of the works, a result of it or an error that it met)."""
        ...
