"""The port to whoever runs the tasks: threads of this process (`inprocess.py`) or Spark (`spark/engine.py`).

A body takes its own work as data and returns values; it may run twice, anywhere, beside a dead twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.splitting import Splittable


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

    def as_they_end(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None
    ) -> Iterator[tuple[int, Any]]:
        """(which of the tasks, its answer or the error that its body met), before the others have ended."""
        ...

    def split(
        self, works: Sequence[Splittable], board: Board | None = None, *, parts_at_once: int | None = None
    ) -> Iterator[tuple[int, Any]]:
        """(which of the works, what a part of it answered or an error that it met).

        `parts_at_once`: answers come as so many parts are done, oldest first; None: all at the end."""
        ...
