"""Starting and stopping Spark: the shortest honest start of a local one, a plain start of every other.

Owns the settings of a local driver, and makes sure that no JVM outlives its session. A caller's session, as in a notebook, is
used and never replaced, changed or stopped. The only file that may touch the classic API (context, gateway): jobs get a
SparkSession and must not know which kind it is.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame as DataFrame  # noqa: PLC0414 - for rooms that name the types
from pyspark.sql import SparkSession as SparkSession  # noqa: PLC0414

from headstone.errors import Unfinished, UsageError
from headstone.interruption import Threads, cancelling, check, given_up, result_of
from headstone.spark.defaults import LOCAL_MASTER
from headstone.spark.failures import reason_in
from headstone.spark.given_up import silence_accumulators, silence_finalizer, silence_py4j
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
# The JVM only moves blobs between tasks. On two busy cores neither the second compiler nor a parallel collector moved them
# measurably faster; more cores were not tried. Its own warnings (a stale archive) are not the user's business.
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
)
UNIX_SOCKETS_SINCE = (4, 1)
BRING_JARS = (
    "; Spark fetches it from Maven: where it cannot, say --spark-conf spark.jars=A.jar,B.jar, with all that it needs"
)
EXIT_SECONDS_MAX = 20
GIVEN_UP_SECONDS_MAX = 2
ARCHIVE_SECONDS_MAX = 120
WAKE_SECONDS = 0.05


@contextmanager
def spark_session(
    *,
    app_name: str,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    package: str | None = None,
    archive: bool = False,
) -> Iterator[SparkSession]:
    """A session on `remote` (Spark Connect), or on `master` (default local[*]); `conf` wins over every setting here.

    If the caller or the platform has already started Spark (a notebook, spark-submit), returns that session unchanged;
    UsageError if it has another master or other settings. `package`: of Spark's own version, for a session started here, unless
    `conf` brings jars or packages. `archive` lets the first local run leave a class archive (150 MB) when it exits: 18 to 25 s
    once, measured on two busy cores, for shorter starts later.
    """
    conf = conf or {}
    running = callers_session()
    if running is not None:
        _require_as_asked(running, master=master, remote=remote, conf=conf)
        yield running
        return
    opened: AbstractContextManager[SparkSession]
    if remote is not None:
        opened = _connected(app_name, remote, conf)
    elif "PYSPARK_GATEWAY_PORT" in os.environ:
        opened = _submitted(app_name, conf)
    else:
        conf = conf if package is None else _with_package(conf, package)
        opened = _launched(app_name, master or conf.get("spark.master") or LOCAL_MASTER, conf, archive=archive)
    with opened as spark:
        yield spark


def is_submitted() -> bool:
    """Whether the platform, or the caller, has started Spark."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or callers_session() is not None


_noted: ContextVar[SparkSession | None] = ContextVar("callers_session", default=None)
_own_session = threading.Lock()
"""Held while a `StartingSession` has a session of its own, which it ends. A process can have only one classic session."""


def note_callers_session() -> SparkSession | None:
    """Call on the caller's thread before the work moves to another, where its session is not the active one."""
    with suppress(Unfinished):  # reported to the caller that wants to use it
        _noted.set(callers_session())
    return _noted.get()


def callers_session() -> SparkSession | None:
    """The active one of the caller's thread, else the process's; None if only our own session is running."""
    noted = _noted.get()
    if noted is not None and not was_stopped(noted):
        return noted
    return None if _own_session.locked() else _connect_session() or _classic_session()


def was_stopped(spark: SparkSession) -> bool:
    stopped = getattr(spark, "is_stopped", None)
    if isinstance(stopped, bool):  # over Spark Connect
        return stopped
    context = getattr(spark, "_sc", None)
    return context is not None and getattr(context, "_jsc", None) is None


def _connect_session() -> SparkSession | None:
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return None
    session: SparkSession | None = module.SparkSession.getActiveSession() or module.SparkSession._get_default_session()
    return session


def _classic_session() -> SparkSession | None:
    context = SparkContext._active_spark_context
    if context is None or getattr(context, "_jsc", None) is None:
        return None
    try:
        active = SparkSession.getActiveSession()
    except (PySparkException, Py4JError, OSError) as error:
        raise Unfinished(
            "the Spark session of this process does not answer any more: stop it (spark.stop()), and start another"
        ) from error
    return active or SparkSession._instantiatedSession or SparkSession(context)


def _require_as_asked(
    running: SparkSession, *, master: str | None, remote: str | None, conf: Mapping[str, str]
) -> None:
    """Refuses other wishes: they would get another Spark than requested, or break the running one."""
    asked = {**conf, **({} if master is None else {"spark.master": master})}
    for name, wanted in asked.items():
        value = running.conf.get(name, None)
        if value != wanted:
            flag = f"--master {master}" if name == "spark.master" and master is not None else f"--spark-conf {name}"
            raise UsageError(
                f"{flag}: this process has a Spark session already, with {value if value is not None else 'no value'} there; "
                f"leave out {flag.split(maxsplit=1)[0]} to use it, or stop it first (spark.stop())"
            )
    if remote is not None:
        raise UsageError(
            "--spark-remote: this process has a Spark session already; leave it out to use that one, or stop it first"
        )


class StartingSession:
    """A session that starts on a thread while its owner plans; `get` waits for it, or raises why it did not start."""

    def __init__(
        self, *, app_name: str, master: str | None, remote: str | None, conf: Mapping[str, str], archive: bool = False
    ) -> None:
        self._running = callers_session()
        self._session = spark_session(app_name=app_name, master=master, remote=remote, conf=conf, archive=archive)
        self._opened = ExitStack()
        self._starter = Threads(1, thread_name_prefix="spark-start")
        self._starting: Future[SparkSession] | None = None

    def begin(self) -> None:
        if self._starting is None:
            self._starting = self._starter.submit(self._open)

    def get(self) -> SparkSession:
        self.begin()
        assert self._starting is not None
        return result_of(self._starting)

    def _open(self) -> SparkSession:
        if self._running is not None:
            _noted.set(self._running)  # on this thread none is active
            return self._opened.enter_context(self._session)
        while not _own_session.acquire(timeout=WAKE_SECONDS):  # of a verb on another thread
            check()
        self._opened.callback(_own_session.release)
        return self._opened.enter_context(self._session)

    def __enter__(self) -> StartingSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if given_up() and self._starting is not None:
            # A session that is still starting is ended as soon as it can be, without waiting for it.
            self._starter.shutdown(wait=False)
            run = copy_context()  # the pool's thread does not know the run otherwise
            self._starting.add_done_callback(lambda _: run.run(self._opened.close))
            return
        self._starter.shutdown()
        self._opened.close()


def context_of(spark: SparkSession) -> Any:
    """None on Spark Connect."""
    try:
        return spark.sparkContext
    except (PySparkException, AttributeError):
        return None


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def _with_package(conf: Mapping[str, str], package: str) -> dict[str, str]:
    if "spark.jars" in conf or "spark.jars.packages" in conf:
        return dict(conf)
    return {**conf, "spark.jars.packages": f"{package}:{pyspark.__version__}"}


def start_conf(app_name: str, master: str, conf: Mapping[str, str], jvm_options: Sequence[str]) -> dict[str, str]:
    """The driver's settings at the start: the caller's `conf` over ours, except for the master, which is already chosen."""
    defaults = dict(QUIET_CONF)
    if is_local(master):
        defaults |= LOCAL_CONF | {JVM_OPTIONS: " ".join(jvm_options)}
        if os.name == "posix" and _pyspark_version() >= UNIX_SOCKETS_SINCE:
            # Over TCP each Python task waits some 30 ms longer.
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
def _submitted(app_name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
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
        stack.enter_context(_gateway_of_its_own())
        stack.callback(_end, kept)
        with _environment(_local_environment(settings) if local else {}):
            spark = _start(settings, output, stack)
        output.pass_on()
        stack.callback(_stop, spark)
        stack.callback(output.end)
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


@contextmanager
def _gateway_of_its_own() -> Iterator[None]:
    """pyspark keeps the JVM of a stopped session for the next one. That JVM is its owner's, and may have other settings."""
    before = SparkContext._gateway, SparkContext._jvm
    SparkContext._gateway = SparkContext._jvm = None
    try:
        yield
    finally:
        SparkContext._gateway, SparkContext._jvm = before


def _start(settings: Mapping[str, str], output: JvmOutput, stack: ExitStack) -> SparkSession:
    threading.Thread(target=_import_early, daemon=True).start()
    silence_py4j()
    pairs = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        with output:
            gateway = launch_gateway(pairs, {"stdout": output.writer, "stderr": output.writer})  # type: ignore[no-untyped-call]
        silence_finalizer(gateway)
        output.on_giving_up(gateway.proc.kill)
        # The JVM stops its context and removes its files, and blocked callers learn that it has gone.
        stack.enter_context(cancelling(lambda: _terminate(gateway.proc, output)))
        silence_accumulators(SparkContext(conf=pairs, gateway=gateway))
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        # py4j's errors ask the JVM for their text, but it may have gone; its output is here.
        _end_jvm(EXIT_SECONDS_MAX)
        reason = reason_in(output.held())
        advice = BRING_JARS if "unresolved dependency" in reason else ""
        raise Unfinished(f"Spark did not start on {settings['spark.master']}: {reason}{advice}") from error


def _terminate(jvm: subprocess.Popen[bytes], output: JvmOutput) -> None:
    """The messages of the JVM and its Python workers about their end are dropped: the run was given up."""
    output.stop()
    jvm.terminate()


def _import_early() -> None:
    """pyspark imports pandas at its first call into the JVM; this imports it while the JVM is still starting."""
    with suppress(ImportError):
        importlib.import_module("pyspark.testing.utils")


def _stop(spark: SparkSession) -> None:
    done = threading.Event()
    accumulator = getattr(spark.sparkContext, "_javaAccumulator", None)
    wake = partial(copy_context().run, _wake, getattr(accumulator, "merge", None), accumulator, done)
    waker = threading.Thread(target=wake, daemon=True)
    waker.start()
    try:
        with suppress(Py4JError, OSError):  # a JVM that has gone has stopped
            spark.stop()
    finally:
        # pyspark forgets this if the JVM has gone: the next session would find a dead context.
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        done.set()
        waker.join(EXIT_SECONDS_MAX)


def _wake(merge: Callable[[Any], object] | None, accumulator: Any, done: threading.Event) -> None:
    """pyspark's accumulator server checks once a second whether to stop; an empty update makes it check now.

    A JVM that was ended refuses the connection, which is not a Py4JError."""
    while merge is not None and not done.wait(WAKE_SECONDS):
        with suppress(Py4JError, OSError):
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
        return process.wait(GIVEN_UP_SECONDS_MAX if given_up() else seconds_max)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
