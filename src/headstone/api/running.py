"""Calls of a program or notebook: what it passes, and how they run (`pipeline/runner.py`).

Its own Spark session is used as it is, and never stopped, replaced or reconfigured. The command line makes an engine from
options (`cli/engines.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headstone.api.stopping import run_heard
from headstone.bounds import by_name, of_kind, several
from headstone.errors import UsageError
from headstone.interruption import Interrupted
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.machine import cores
from headstone.pipeline.progress import BYTES, CountUnit, ProgressLine
from headstone.storage.places import Place, answering
from headstone.storage.secrets import resolved_setting
from headstone.storage.stores import is_remote

if TYPE_CHECKING:
    from headstone.cluster.connection import Connection
    from headstone.spark.session import SparkSession

LOG = logging.getLogger("headstone")
BEGUN = "what it had begun to change is finished or undone by the next call, the rest is as it was"
S = TypeVar("S")
T = TypeVar("T")

Paths = str | Path | Sequence[str | Path]
"""One path or URL (s3://, gs://, az://), or several."""


Reach = Callable[[str | Path], str | Place]
"""From the caller's path or URL to a place with access to its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallersRunner:
    """For a library call. Without a session threads of this process do the work. Remarks go to the logger `headstone`."""

    spark: SparkSession | None = None
    shows_progress: bool = True

    @contextmanager
    def engine(self, size: int) -> Iterator[Engine]:
        del size
        if self.spark is None:
            yield InProcess(cores())
            return
        from headstone.spark.engine import OnSpark

        session = session_of(self.spark)
        yield OnSpark(lambda: session)

    def progress(self, unit: CountUnit = BYTES) -> ProgressLine:
        return ProgressLine(enabled=self.shows_progress, unit=unit)

    def tell(self, text: str) -> None:
        LOG.info("%s", text)

    def warn(self, text: str) -> None:
        LOG.warning("%s", text)


def session_of(spark: SparkSession) -> SparkSession:
    """Arguments in the wrong order are reported as such, and so is a session that has ended."""
    if not hasattr(spark, "createDataFrame"):
        raise UsageError(f"spark: expected a SparkSession or None, found {type(spark).__name__}")
    from headstone.spark.session import was_stopped

    if was_stopped(spark):
        raise UsageError("spark: this session was stopped; pass a running one")
    return spark


def interruptible(work: Callable[[], T], spark: SparkSession | None, *, left_behind: str = BEGUN) -> T:
    """Ctrl-C, and a notebook's stop button, end it at its next safe point; nothing is raised inside a lock.

    Whatever the thread, jobs on `spark` are in the caller's job group and have its tags."""
    if spark is not None:
        from headstone.spark.inheriting import inheriting

        work = inheriting(session_of(spark), work)
    try:
        return run_heard(work, left_behind=lambda: f"interrupted; {left_behind}")
    except Interrupted:
        raise KeyboardInterrupt from None


def listed(paths: object) -> tuple[str | Path, ...]:
    """May be empty, if a call has another source."""
    if isinstance(paths, str | Path):
        return (paths,)
    if isinstance(paths, bytes) or not isinstance(paths, Iterable):
        raise UsageError(f"paths: expected one or more paths or URLs, found {paths!r}")
    given = tuple(paths)
    several("paths", given, (str, Path))
    return given


def some(paths: Paths | None) -> tuple[str | Path, ...]:
    """None: arguments in the wrong order."""
    given = () if paths is None or (isinstance(paths, str) and not paths) else listed(paths)
    if not given:
        raise UsageError(f"paths: expected one or more paths or URLs, found {paths!r}")
    return given


def settings_of(kind: type[S], given: S | None) -> S:
    """The defaults if none are given."""
    if given is None:
        return kind()
    if not isinstance(given, kind):
        raise UsageError(f"settings: expected {kind.__name__}, found {type(given).__name__}")
    return given


def resolved(name: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    """For example of a store; secrets may be references (env:NAME, file:PATH)."""
    by_name(name, settings or {})
    return {key: resolved_setting(key, value) for key, value in (settings or {}).items()}


def connected(bootstrap: str, settings: Mapping[str, str] | None) -> Connection:
    """How to reach a cluster; opens nothing."""
    from headstone.cluster.connection import Connection

    of_kind("bootstrap", bootstrap, str)
    return Connection.parse(bootstrap, resolved("kafka", settings))


def reached(given: str | Path, settings: Mapping[str, str] | None) -> str | Place:
    """A path of this machine as it is; a URL as a place with access to its object store.

    `settings`: of the store."""
    texts = resolved("store", settings)
    return answering(str(given), texts) if is_remote(str(given)) else given
