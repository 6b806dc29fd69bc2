"""Starting and stopping Spark: the shortest honest start of a local one, a plain start of every other.

Owns the settings of a local driver and that no JVM outlives its session. The only file that may touch the classic
API (context, gateway): jobs get a SparkSession and must not know which kind it is.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headstone.errors import Unfinished
from headstone.spark.failures import reason_in
from headstone.spark.java import ClassArchive, class_archive, require_java
from headstone.spark.jvm_output import JvmOutput
from headstone.spark.reachable import require_connect, require_master

LOOPBACK = "127.0.0.1"
QUIET_CONF = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.memory": "2g",
    "spark.python.daemon.module": "headstone.spark.daemon",
    # Plans are a range and some Python: compiling them costs more than it gains.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
JVM_OPTIONS = "spark.driver.extraJavaOptions"
# The JVM only moves blobs between tasks. On two busy cores neither the second compiler nor a parallel collector was
# seen to move them faster; more cores were not tried. Its own warnings (a stale archive) are not the user's business.
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
)
UNIX_SOCKETS_SINCE = (4, 1)
EXIT_SECONDS_MAX = 20
ARCHIVE_SECONDS_MAX = 120
WAKE_SECONDS = 0.05


@contextmanager
def spark_session(
    *,
    app_name: str,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    archive: bool = False,
) -> Iterator[SparkSession]:
    """A session on `remote` (Spark Connect), or on `master` (default local[*]); `conf` wins over every setting here.

    Where the platform has already started Spark (spark-submit, a notebook), its session, which is left running.
    `archive` lets the first local run leave a class archive (150 MB) when it exits: 18 to 25 s once, measured on two
    busy cores, for shorter starts later.
    """
    conf = conf or {}
    opened: AbstractContextManager[SparkSession]
    if remote is not None:
        opened = _connected(app_name, remote, conf)
    elif is_submitted():
        opened = _found(app_name, conf)
    else:
        opened = _launched(app_name, master or conf.get("spark.master") or "local[*]", conf, archive=archive)
    with opened as spark:
        yield spark


def is_submitted() -> bool:
    """Whether the platform has started Spark, or somebody in this process has."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkSession.getActiveSession() is not None


class StartingSession:
    """A session that starts on a thread while its owner plans; `get` waits for it, or raises why it did not start."""

    def __init__(
        self, *, app_name: str, master: str | None, remote: str | None, conf: Mapping[str, str], archive: bool = False
    ) -> None:
        self._session = spark_session(app_name=app_name, master=master, remote=remote, conf=conf, archive=archive)
        self._opened = ExitStack()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="spark-start")
        self._starting: Future[SparkSession] | None = None

    def begin(self) -> None:
        if self._starting is None:
            self._starting = self._starter.submit(self._opened.enter_context, self._session)

    def get(self) -> SparkSession:
        self.begin()
        assert self._starting is not None
        return self._starting.result()

    def __enter__(self) -> StartingSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._starter.shutdown()
        self._opened.close()


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def with_package(conf: Mapping[str, str], package: str) -> dict[str, str]:
    """A package of Spark's own version, fetched at its start; unless the caller brings jars or packages."""
    if "spark.jars" in conf or "spark.jars.packages" in conf:
        return dict(conf)
    return {**conf, "spark.jars.packages": f"{package}:{pyspark.__version__}"}


def start_conf(app_name: str, master: str, conf: Mapping[str, str], jvm_options: Sequence[str]) -> dict[str, str]:
    """What the driver starts with; the caller's `conf` over ours, but for the master that was already chosen."""
    defaults = dict(QUIET_CONF)
    if is_local(master):
        defaults |= LOCAL_CONF | {JVM_OPTIONS: " ".join(jvm_options)}
        if os.name == "posix" and _pyspark_version() >= UNIX_SOCKETS_SINCE:
            # Over TCP each Python task waits some 30 ms more.
            defaults["spark.python.unix.domain.socket.enabled"] = "true"
    return defaults | {"spark.app.name": app_name} | dict(conf) | {"spark.master": master}


def _pyspark_version() -> tuple[int, ...]:
    return tuple(int(part) for part in pyspark.__version__.split(".")[:2])


@contextmanager
def _connected(app_name: str, remote: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    in_process = is_local(remote)
    if in_process:
        require_java()
    else:
        require_connect(remote)
    builder = SparkSession.builder.appName(app_name).remote(remote).config(map=dict(conf))
    try:
        with _environment(_local_environment(conf) if in_process else {}):
            spark = builder.getOrCreate()
        spark.version  # noqa: B018 - the first answer of the server
    except PySparkException as error:
        raise Unfinished(f"Spark Connect did not start a session: {reason_in(str(error).splitlines())}") from error
    try:
        yield spark
    finally:
        spark.stop()
        if in_process:
            _end_jvm(EXIT_SECONDS_MAX)


@contextmanager
def _found(app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    yield SparkSession.builder.appName(app_name).config(map=dict(conf)).getOrCreate()


@contextmanager
def _launched(app_name: str, master: str, conf: Mapping[str, str], *, archive: bool) -> Iterator[SparkSession]:
    java = require_java()
    require_master(master)
    local = is_local(master)
    kept = (
        class_archive(java, Path(_find_spark_home()) / "jars", QUICK_JVM) if local and JVM_OPTIONS not in conf else None
    )
    options = [*QUICK_JVM, *(kept.options(make=archive) if kept else [])]
    settings = start_conf(app_name, master, conf, options)
    output = JvmOutput()
    with ExitStack() as stack:
        stack.callback(_end, kept)
        with _environment(_local_environment(settings) if local else {}):
            spark = _start(settings, output)
        output.pass_on()
        stack.callback(_stop, spark)
        stack.callback(output.stop)
        yield spark


def _local_environment(settings: Mapping[str, str]) -> dict[str, str]:
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    launcher = os.environ.get("SPARK_LAUNCHER_OPTS") or " ".join(QUICK_JVM[:4])
    return {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": LOOPBACK, "SPARK_LAUNCHER_OPTS": launcher}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """pyspark and its scripts take these only from the environment, and only while they start."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start(settings: Mapping[str, str], output: JvmOutput) -> SparkSession:
    threading.Thread(target=_import_early, daemon=True).start()
    pairs = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        with output:
            gateway = launch_gateway(pairs, {"stdout": output.writer, "stderr": output.writer})  # type: ignore[no-untyped-call]
        output.on_giving_up(gateway.proc.kill)
        SparkContext(conf=pairs, gateway=gateway)
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        # py4j's errors ask the JVM for their text, which may have gone; what it has said is here.
        _end_jvm(EXIT_SECONDS_MAX)
        raise Unfinished(f"Spark did not start on {settings['spark.master']}: {reason_in(output.held())}") from error


def _import_early() -> None:
    """pyspark imports pandas at its first call into the JVM; here it does while the JVM is still starting."""
    with suppress(ImportError):
        importlib.import_module("pyspark.testing.utils")


def _stop(spark: SparkSession) -> None:
    done = threading.Event()
    accumulator = getattr(spark.sparkContext, "_javaAccumulator", None)
    waker = threading.Thread(target=_wake, args=(getattr(accumulator, "merge", None), accumulator, done), daemon=True)
    waker.start()
    try:
        with suppress(Py4JError, OSError):  # a JVM that has gone has stopped
            spark.stop()
    finally:
        done.set()
        waker.join(EXIT_SECONDS_MAX)


def _wake(merge: Callable[[Any], object] | None, accumulator: Any, done: threading.Event) -> None:
    """pyspark's accumulator server looks once a second whether it should stop; an empty update makes it look now."""
    while merge is not None and not done.wait(WAKE_SECONDS):
        with suppress(Py4JError):
            merge(accumulator)


def _end(kept: ClassArchive | None) -> None:
    code = _end_jvm(ARCHIVE_SECONDS_MAX if kept and not kept.path.is_file() else EXIT_SECONDS_MAX)
    if kept:
        kept.publish(whole=code == 0)


def _end_jvm(seconds_max: float) -> int | None:
    """Waits for the JVM behind pyspark's gateway and returns its exit code; None if there was none.

    A JVM that is still there after `seconds_max` is killed. The next session launches a new one.
    """
    gateway = SparkContext._gateway
    SparkContext._gateway = None
    SparkContext._jvm = None
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return None
    gateway.shutdown()
    if process.stdin:
        process.stdin.close()
    try:
        return process.wait(seconds_max)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
