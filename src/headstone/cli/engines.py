"""Who runs the work: `--engine auto|spark|process`, said the same way to every verb that works on logs.

The one place that makes an engine from options. What the engines are is in `pipeline/inprocess.py` and `spark/engine.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headstone.cli.options import pairs
from headstone.errors import UsageError

if TYPE_CHECKING:
    from headstone.pipeline.engine import Engine
    from headstone.spark.session import StartingSession

AUTO, SPARK, PROCESS = "auto", "spark", "process"
SPARK_FROM_BYTES = 4 << 30
"""Below this a few threads in this process are done before Spark has started."""
BY_SIZE = f"Spark from {SPARK_FROM_BYTES >> 30} GiB of log or with --master or --spark-remote, else in this process"
ON_SPARK = "Spark"
IN_PROCESS = "in this process, or Spark with --master or --spark-remote"


def add_engine_arguments(parser: argparse.ArgumentParser, *, auto: str) -> None:
    """auto: what is chosen where nobody chooses, in words."""
    group = add_spark_arguments(parser)
    group.add_argument(
        "--engine", choices=(AUTO, SPARK, PROCESS), default=AUTO, help=f"who runs the work (default auto: {auto})"
    )
    for alias, engine in (("--in-process", PROCESS), ("--on-spark", SPARK)):
        group.add_argument(alias, dest="engine", action="store_const", const=engine, help=argparse.SUPPRESS)


def add_spark_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("engine")
    group.add_argument("--master", metavar="URL", help="Spark master (default local[*])")
    group.add_argument(
        "--spark-remote", metavar="URL", help="Spark Connect server, such as sc://host:15002 (default: none)"
    )
    group.add_argument(
        "--spark-conf", metavar="K=V", action="append", default=[], help="a Spark setting; may be repeated"
    )
    return group


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spark_conf(arguments: argparse.Namespace) -> Mapping[str, str]:
    if arguments.master and arguments.spark_remote:
        raise UsageError("--master and --spark-remote exclude each other; name one")
    return pairs("--spark-conf", arguments.spark_conf)


def on_spark(arguments: argparse.Namespace, *, by_default: bool) -> bool:
    where = [
        flag for flag, given in (("--master", arguments.master), ("--spark-remote", arguments.spark_remote)) if given
    ]
    if arguments.engine == PROCESS and where:
        raise UsageError(f"--engine process runs without Spark; leave out {where[0]}")
    return arguments.engine == SPARK or (arguments.engine == AUTO and (by_default or bool(where)))


@contextmanager
def engine_of(arguments: argparse.Namespace, *, verb: str, spark_by_default: bool) -> Iterator[Engine]:
    """Begun on the way: Spark starts while the verb looks at its input, and ends with the block."""
    conf = spark_conf(arguments)
    if not on_spark(arguments, by_default=spark_by_default):
        from headstone.pipeline.inprocess import InProcess

        yield InProcess(cores())
        return
    require_spark()
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


def require_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise UsageError("Spark is not installed; pip install 'headstone[spark]', or say --engine process")
