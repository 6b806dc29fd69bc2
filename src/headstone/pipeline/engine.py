"""The port to whoever runs the tasks: threads of this process (`inprocess.py`) or Spark (`spark/engine.py`).

A body takes its own work as data and returns values; it may run twice, anywhere, beside a dead twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.splitting import Splittable

Stop = Callable[[], bool]
"""True, and from then on always: no new task is begun, what runs is finished, and the answers end there."""


def never() -> bool:
    """Nobody stops it."""
    return False


class LocalStop:
    """A stop for bodies that ask themselves. A task elsewhere hears nothing: its engine lets it end, or cancels it."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def __call__(self) -> bool:
        return self._stop()

    def __reduce__(self) -> tuple[object, ...]:
        return LocalStop, (never,)


class Engine(Protocol):
    def begin(self) -> None: ...

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        ...

    def each(self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        """The answers; the first error that a body met is raised."""
        ...

    def outcomes(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None
    ) -> list[Any]:
        """The answers, with the error that a body met in the place of its answer."""
        ...

    def as_they_end(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None, *, stop: Stop = never
    ) -> Iterator[tuple[int, Any]]:
        """(which of the tasks, its answer or the error that its body met), before the others have ended.

        `stop`: nothing is heard of tasks that had not begun."""
        ...

    def split(
        self, works: Sequence[Splittable], board: Board | None = None, *, parts_at_once: int | None = None,
        stop: Stop = never,
    ) -> Iterator[tuple[int, Any]]:  # fmt: skip
        """(which of the works, what a part of it answered or an error that it met).

        `parts_at_once`: answers come as so many parts are done, oldest first; None: all at the end.
        `stop`: as with `as_they_end`, of parts."""
        ...
