"""The port to what runs the tasks: threads of this process (`inprocess.py`) or Spark (`spark/engine.py`).

A body takes its own work as data and returns values. It may run twice, anywhere, beside a dead twin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from headstone.pipeline.progress import Board, Meter
from headstone.pipeline.splitting import Splittable

Stop = Callable[[], bool]
"""Once true it stays true: no new task begins, running ones finish, and the answers end there."""


def never() -> bool:
    """The stop that never comes."""
    return False


class LocalStop:
    """A stop that bodies ask themselves. A task in another process does not see it: its engine lets it end, or cancels it."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def __call__(self) -> bool:
        return self._stop()

    def __reduce__(self) -> tuple[object, ...]:
        return LocalStop, (never,)


class Engine(Protocol):
    """`each`, `outcomes` and `as_they_end` run a body once per task; `split` runs the stages of the shuffle path."""

    def begin(self) -> None: ...

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""
        ...

    def each(self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None) -> list[Any]:
        """The answers; raises the first error of a body."""
        ...

    def outcomes(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None
    ) -> list[Any]:
        """The answers; an error of a body takes the place of its answer."""
        ...

    def as_they_end(
        self, body: Callable[[Any, Meter], Any], tasks: Sequence[Any], board: Board | None = None, *, stop: Stop = never
    ) -> Iterator[tuple[int, Any]]:
        """(number of the task, its answer or its error), as each one ends.

        `stop`: tasks that had not begun give no answer."""
        ...

    def split(
        self, works: Sequence[Splittable], board: Board | None = None, *, parts_at_once: int | None = None,
        stop: Stop = never,
    ) -> Iterator[tuple[int, Any]]:  # fmt: skip
        """(number of the work, a part's answer or error).

        `parts_at_once`: answers come each time this many parts are done, oldest first; None: all at the end. `stop`: as in
        `as_they_end`, for parts."""
        ...
