"""Which engine runs the work: `--engine auto|spark|process`, the same for every verb that works on logs.

The only place that makes an engine from options. The engines are in `pipeline/inprocess.py` and `spark/engine.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headstone import units
from headstone.cli.configuration import FromFile
from headstone.cli.options import pairs
from headstone.cli.output import Output
from headstone.errors import UsageError, not_installed
from headstone.pipeline.machine import SPARK_FROM_BYTES, cores
from headstone.spark.defaults import LOCAL_MASTER

if TYPE_CHECKING:
    from headstone.pipeline.engine import Engine
    from headstone.pipeline.progress import CountUnit, ProgressLine
    from headstone.spark.session import StartingSession

AUTO, SPARK, PROCESS = "auto", "spark", "process"
SMALL_BYTES = 64_000_000
"""Spark takes five seconds or more to start, while one process reads at least 67 MB a second with any codec
(docs/performance.md): up to here the process needs a fifth of the time, or less."""
BY_SIZE = f"Spark from {SPARK_FROM_BYTES >> 30} GiB of log or with --master or --spark-remote, else in this process"
ON_SPARK = "Spark"
IN_PROCESS = "in this process, or Spark with --master or --spark-remote"


def add_engine_arguments(parser: argparse.ArgumentParser, *, auto: str) -> None:
    """`auto`: what is chosen by default, in words."""
    group = add_spark_arguments(parser)
    group.add_argument(
        "--engine", choices=(AUTO, SPARK, PROCESS), default=AUTO, help=f"where the work runs (default auto: {auto})"
    )


def add_spark_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("engine")
    group.add_argument("--master", metavar="URL", help=f"Spark master (default {LOCAL_MASTER})")
    group.add_argument(
        "--spark-remote", metavar="URL", help="Spark Connect server, such as sc://host:15002 (default: none)"
    )
    group.add_argument(
        "--spark-conf", metavar="K=V", action="append", default=[], help="a Spark setting; may be repeated"
    )
    return group


def spark_conf(arguments: argparse.Namespace) -> Mapping[str, str]:
    if arguments.master and arguments.spark_remote:
        raise UsageError("--master and --spark-remote cannot be combined; name one")
    return pairs("--spark-conf", arguments.spark_conf)


def on_spark(arguments: argparse.Namespace, *, by_default: bool) -> bool:
    where = [
        flag for flag, given in (("--master", arguments.master), ("--spark-remote", arguments.spark_remote)) if given
    ]
    engine = arguments.engine
    if engine == PROCESS and where and isinstance(engine, FromFile):
        engine = AUTO  # a flag wins over the configuration file
    if engine == PROCESS and where:
        raise UsageError(f"--engine process runs without Spark; leave out {where[0]}")
    return engine == SPARK or (engine == AUTO and (by_default or bool(where)))


def tell_small(arguments: argparse.Namespace, output: Output, *, size: int, seconds: float) -> None:
    """After a run of this many bytes and seconds on local Spark that was chosen by default: nearly all of the time was Spark's
    start."""
    chosen = arguments.engine != AUTO or arguments.master or arguments.spark_remote or arguments.spark_conf
    if chosen or not 0 < size <= SMALL_BYTES or _is_callers():
        return
    output.tell(
        f"nearly all of these {seconds:.1f} s is Spark's start: for a log of this size --engine process takes a fifth of the "
        'time or less, with the same result; engine = "process" below [verbs.compact] in the configuration file makes it the '
        "default"
    )


def _is_callers() -> bool:
    from headstone.spark.session import is_submitted

    return is_submitted()


@contextmanager
def engine_of(arguments: argparse.Namespace, *, verb: str, spark_by_default: bool) -> Iterator[Engine]:
    """Starts Spark in the background while the verb looks at its input; it ends with the block."""
    conf = spark_conf(arguments)
    if not on_spark(arguments, by_default=spark_by_default):
        from headstone.pipeline.inprocess import InProcess

        yield InProcess(cores())
        return
    require_spark(instead="say --engine process, which needs no Spark")
    from headstone.spark.engine import OnSpark
    from headstone.spark.session import is_submitted

    with starting_session(arguments, verb=verb, conf=conf) as starting:
        here = not (arguments.master or arguments.spark_remote or "spark.master" in conf or is_submitted())
        yield OnSpark(starting.get, parallelism=cores() if here else None, begin=starting.begin)


def starting_session(arguments: argparse.Namespace, *, verb: str, conf: Mapping[str, str]) -> StartingSession:
    from headstone.spark.session import StartingSession

    return StartingSession(
        app_name=f"headstone {verb}", master=arguments.master, remote=arguments.spark_remote, conf=conf
    )


def require_spark(*, instead: str = "") -> None:
    """`instead`: what else the user can do, if anything."""
    if importlib.util.find_spec("pyspark") is None:
        raise not_installed("Spark is", "spark", instead=instead)


class CommandRunner:
    """Runs with the engine that the options choose, and the command line's own progress and remarks:
    `pipeline.runner.Runner`."""

    def __init__(
        self, arguments: argparse.Namespace, output: Output, *, verb: str, large: Callable[[int], bool]
    ) -> None:
        """`large`: whether Spark is the default for this many bytes."""
        self._arguments, self._output, self._verb, self._large = arguments, output, verb, large

    @contextmanager
    def engine(self, size: int) -> Iterator[Engine]:
        large = self._large(size)
        if size and large and on_spark(self._arguments, by_default=large):
            self.tell(f"{units.size(size)}: reading on Spark")
        with engine_of(self._arguments, verb=self._verb, spark_by_default=large) as engine:
            yield engine

    def progress(self, unit: CountUnit | None = None) -> ProgressLine:
        from headstone.pipeline.progress import BYTES, ProgressLine

        return ProgressLine(enabled=not self._output.quiet, unit=unit or BYTES)

    def tell(self, text: str) -> None:
        self._output.tell(text)

    def warn(self, text: str) -> None:
        self._output.warn(text)


def by_size(size: int) -> bool:
    return size >= SPARK_FROM_BYTES


def always_large(size: int) -> bool:
    """For work that goes to Spark by default."""
    del size
    return True


def never_large(size: int) -> bool:
    """For work that stays in this process by default, however large."""
    del size
    return False
