"""Sessions start quietly, end with their JVM, and obey the caller's settings; Java is found or asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PythonException

from headstone.errors import Unfinished, UsageError
from headstone.spark import reachable
from headstone.spark.engine import collected
from headstone.spark.failures import PYTHON_ADVICE, failure, reason_in, reason_of
from headstone.spark.java import Java, class_archive, require_java
from headstone.spark.jvm_output import JvmOutput
from headstone.spark.reachable import require_connect, require_master
from headstone.spark.session import QUICK_JVM, start_conf

JAVA = Java(path=Path("/usr/bin/java"), version="17.0.15+6")

# Each program is its own process: what a session leaves behind in one would hide what the next one needs.
PROGRAM = """
import os, sys
from pyspark import SparkContext
from headstone.spark.session import StartingSession, spark_session

def same(batches):
    yield from batches

def rows(spark, count=3):
    return sorted(row.id for row in spark.range(count).mapInArrow(same, "id long").collect())

def jvm():
    return SparkContext._gateway.proc.pid
"""


def run(body: str, *arguments: str, cache: Path | None = None) -> list[str]:
    """The program's lines; it must succeed and say nothing on stderr. Without a cache of its own it has the user's."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + textwrap.dedent(body), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **({} if cache is None else {"XDG_CACHE_HOME": str(cache)})},
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def fake_java(home: Path, script: str, release: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(release)
    return java


def test_local_sessions_whose_body_fails_follow_each_other_in_silence_and_leave_no_jvm() -> None:
    assert (
        run(
            """
        for _ in range(2):
            try:
                with spark_session(app_name="failing", archive=False) as spark:
                    print(rows(spark), spark.conf.get("spark.master"))
                    pid = jvm()
                    raise LookupError("of the body")
            except LookupError as error:
                print(error, os.path.exists(f"/proc/{pid}"))
        """
        )
        == ["[0, 1, 2] local[*]", "of the body False"] * 2
    )


JVM_ENDS = """
    import socket, threading
    from contextlib import suppress
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from headstone.interruption import Request, heard_as

    request = Request()
    with heard_as(request), spark_session(app_name="ends", master="local[1]", archive=False) as spark:
        rows(spark)  # so that the JVM is connected to the accumulators
        server, ends = spark.sparkContext._accumulatorServer, SparkContext._gateway.proc
        threading.Timer(0.5, request.give_up if sys.argv[1] == "given up" else ends.kill).start()
        with suppress(PySparkException, Py4JError, OSError):
            SparkContext._jvm.java.lang.Thread.sleep(60_000)  # somebody waits for its answer
        ends.wait()
        with socket.socket(socket.AF_UNIX) as after:  # one connection after the other
            after.connect(server.server_address)
            after.sendall(bytes(4))
            after.recv(1)
    """


def test_nothing_is_printed_of_a_jvm_that_was_ended_because_the_run_was_given_up() -> None:
    assert run(JVM_ENDS, "given up") == []


def test_what_is_printed_of_a_jvm_that_ends_otherwise_is_left() -> None:
    program = [sys.executable, "-c", PROGRAM + textwrap.dedent(JVM_ENDS), "killed"]
    said = subprocess.run(program, capture_output=True, text=True, check=True).stderr
    assert "EOFError" in said


def test_a_session_may_start_while_its_owner_works() -> None:
    assert run(
        """
        with StartingSession(app_name="starting", master="local[2]", remote=None, conf={}, archive=False) as starting:
            starting.begin()
            print(rows(starting.get()), starting.get() is starting.get())
        print(SparkContext._gateway)
        """
    ) == ["[0, 1, 2] True", "None"]


def refused(place: str, environment: str = "") -> list[str]:
    """The error's kind and text. In a process of its own: where a session runs, none is started."""
    return run(
        f"""
        {environment}
        from headstone.errors import HeadstoneError
        place = {{"master": None, "remote": None, {place}}}
        with StartingSession(app_name="refused", conf={{}}, **place) as starting:
            try:
                starting.get()
            except HeadstoneError as error:
                print(type(error).__name__, error)
        """
    )


def test_why_a_session_did_not_start_reaches_the_one_who_waits(tmp_path: Path) -> None:
    (text,) = refused("", f"os.environ['JAVA_HOME'] = {str(tmp_path)!r}")
    assert text.startswith("UsageError ")
    assert "no bin/java" in text


@contextmanager
def silent() -> Iterator[int]:
    """The port of something that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def closed_port() -> int:
    with silent() as port:
        return port


@pytest.mark.parametrize(
    "place", ["spark://127.0.0.1:{port}", "sc://127.0.0.1:{port}", "sc://127.0.0.1:{port}/;token=s3cret"]
)
def test_a_cluster_that_is_not_there_is_told_at_once_with_its_address_and_the_reason(place: str) -> None:
    url = place.format(port=closed_port())
    named = url.split("/;")[0]
    (text,) = refused(f"'{'remote' if url.startswith('sc:') else 'master'}': {url!r}")
    assert text.startswith("Unfinished ")
    assert named in text
    assert "Connection refused" in text
    assert "s3cret" not in text


def test_one_of_several_masters_is_enough() -> None:
    with silent() as port:
        require_master(f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}")


def test_spark_is_ended_when_it_has_given_up_its_masters() -> None:
    ended = threading.Event()
    output = JvmOutput()
    output.on_giving_up(ended.set)
    line = (
        "26/11/16 06:00:46 ERROR StandaloneSchedulerBackend: Killed. Reason: All masters are unresponsive! Giving up."
    )
    with output:
        os.write(output.writer, f"{line}\n".encode())
    assert ended.wait(60)
    assert reason_in(output.held()) == "Killed. Reason: All masters are unresponsive! Giving up."


def test_what_listens_and_is_no_connect_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "ANSWER_SECONDS_MAX", 0.5)
    with silent() as port, pytest.raises(Unfinished, match=f"sc://127.0.0.1:{port} does not answer as a Spark Connect"):
        require_connect(f"sc://127.0.0.1:{port}")


def test_why_the_jvm_did_not_start_is_one_line() -> None:
    (line,) = run(
        """
        from headstone.errors import Unfinished
        try:
            with spark_session(app_name="huge", master="local[1]", conf={"spark.driver.memory": "9999999g"}):
                print("started")
        except Unfinished as error:
            print(error)
        """
    )
    assert line.startswith("Spark did not start on local[1]: ")
    assert "object heap" in line


@pytest.mark.parametrize(
    "master", ["foo", "local[x]", "local[", "spark://host", "spark://host:0", "spark://a:7077,b:99999", ""]
)
def test_a_master_that_cannot_be_one_is_wrong_usage(master: str) -> None:
    with pytest.raises(UsageError, match=r"expected local\[N\]|is not HOST:PORT"):
        require_master(master)


@pytest.mark.parametrize(
    "remote", ["http://host", "sc://", "sc://host:99999", "sc://host:15002/path", "sc://h:1/;token"]
)
def test_a_remote_that_cannot_be_one_is_wrong_usage(remote: str) -> None:
    with pytest.raises(UsageError, match="expected sc://HOST:PORT"):
        require_connect(remote)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Job aborted\nError from python worker:\n  /usr/bin/python3: Error while finding module specification for "
            "'x' (ModuleNotFoundError: No module named 'headstone')\nPYTHONPATH was:\n  /a\n\tat x",
            "Spark's executors cannot run headstone: /usr/bin/python3: Error while finding module specification for 'x' "
            f"(ModuleNotFoundError: No module named 'headstone'); {PYTHON_ADVICE}",
        ),
        (
            'An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "w", line 1\n    '
            "raise X(\npyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.12 than that in driver: 3.11\nPlease check",
            "Spark's executors cannot run headstone: PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            f"different version: 3.12 than that in driver: 3.11; {PYTHON_ADVICE}",
        ),
        (
            'Lost task\njava.io.IOException: Cannot run program "/no/python": error=2, No such file or directory\n\tat x',
            'Spark\'s executors cannot run headstone: Cannot run program "/no/python": error=2, No such file or directory; '
            f"{PYTHON_ADVICE}",
        ),
        (
            "Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat x",
            "Spark did not finish, give the driver more memory: --spark-conf spark.driver.memory=4g: Java heap space",
        ),
        (
            "Job aborted\nCaused by: java.io.IOException: Connection reset by peer",
            "Spark did not finish, run the same command again: Connection reset by peer",
        ),
    ],
)
def test_a_failure_names_its_cause_and_what_helps(text: str, said: str) -> None:
    """What the same command would meet again is not answered with that advice."""
    assert str(failure(Exception(text))) == said


def test_an_error_of_our_own_code_in_a_task_is_told_whole() -> None:
    text = 'Traceback (most recent call last):\n  File "work.py", line 1\nKeyError: 3'
    assert failure(PythonException(text)) is None


def test_the_reason_in_a_stack_trace_is_its_innermost_cause() -> None:
    trace = """26/11/16 05:40:44 ERROR SparkContext: Error initializing SparkContext.
org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:603)
Caused by: java.io.IOException: first
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.nio.file.NoSuchFileException: /data/orders
\t... 3 more
"""
    assert reason_in(trace.splitlines()) == "/data/orders"
    assert reason_in(trace.splitlines()[:3]) == "Job aborted"
    assert reason_in(["Invalid maximum heap size", "Error: gone", ""]) == "Invalid maximum heap size; Error: gone"
    assert reason_in([]) == "it did not say why"


def test_an_error_whose_text_went_with_its_jvm_is_told_all_the_same() -> None:
    class Gone(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    class Lost:
        """As a DataFrame is whose JVM was killed."""

        sparkSession: Any = SimpleNamespace(addTag=lambda tag: None, removeTag=lambda tag: None)  # as of Connect

        def collect(self) -> None:
            raise Py4JNetworkError("Answer from Java side is empty")

    assert reason_of(Gone()) == "its JVM has gone"
    with pytest.raises(Unfinished, match="run the same command again: Answer from Java side is empty"):
        collected(Lost())  # type: ignore[arg-type]


def test_the_first_run_leaves_an_archive_that_the_second_maps(tmp_path: Path) -> None:
    program = """
        with spark_session(app_name="archive", master="local[1]", archive=True) as spark:
            rows(spark)
            print(*[a for a in open(f"/proc/{jvm()}/cmdline").read().split(chr(0)) if a.startswith("-XX:") and "Archive" in a])
            print(any(".jsa" in line for line in open(f"/proc/{jvm()}/maps") if "headstone" in line))
    """
    (made, mapped_first) = run(program, cache=tmp_path)
    (archive,) = (tmp_path / "headstone").iterdir()
    assert made.startswith(f"-XX:ArchiveClassesAtExit={archive.with_suffix('')}.")
    assert mapped_first == "False"
    assert run(program, cache=tmp_path) == [f"-XX:SharedArchiveFile={archive}", "True"]


def test_an_archive_that_cannot_be_kept_is_done_without(tmp_path: Path) -> None:
    cache = tmp_path / "a file"
    cache.write_text("")
    assert run(
        """
        with spark_session(app_name="no archive", master="local[1]", archive=True) as spark:
            print(rows(spark))
        """,
        cache=cache,
    ) == ["[0, 1, 2]"]


@pytest.mark.parametrize("where", ["master", "remote"])
def test_how_many_tasks_run_at_a_time_is_sparks_own_and_not_this_machines(where: str) -> None:
    """On a classic session and over Spark Connect, each of which ends with its JVM."""
    # Not `run`: of Connect, pyspark itself launches the JVM, and its greeting goes to stderr.
    body = textwrap.dedent(
        """
        from headstone.spark.engine import OnSpark
        with spark_session(app_name="asked", **{sys.argv[1]: "local[7]"}) as spark:
            print(OnSpark(lambda: spark).parallelism, OnSpark(lambda: spark, parallelism=2).parallelism)
        print(SparkContext._gateway)
        """
    )
    ended = subprocess.run([sys.executable, "-c", PROGRAM + body, where], capture_output=True, text=True, check=False)
    assert ended.stdout == "7 2\nNone\n", ended.stderr


def test_the_callers_conf_wins_over_every_local_setting() -> None:
    ours = start_conf("app", "local[*]", {}, QUICK_JVM)
    assert ours["spark.driver.memory"] == "2g"
    assert ours["spark.driver.bindAddress"] == "127.0.0.1"
    assert ours["spark.driver.extraJavaOptions"].split() == list(QUICK_JVM)
    theirs = {name: "theirs" for name in ours if name != "spark.master"} | {"spark.sql.ansi.enabled": "false"}
    assert start_conf("app", "local[*]", theirs, QUICK_JVM) == theirs | {"spark.master": "local[*]"}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host:443", "local-cluster[2,1,1024]"])
def test_a_cluster_gets_nothing_that_is_meant_for_this_machine(master: str) -> None:
    assert start_conf("app", master, {"spark.executor.memory": "4g"}, QUICK_JVM) == {
        "spark.app.name": "app",
        "spark.executor.memory": "4g",
        "spark.log.level": "ERROR",
        "spark.master": master,
        "spark.ui.showConsoleProgress": "false",
    }


def test_an_archive_belongs_to_one_java_one_set_of_jars_and_one_set_of_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "a.jar").write_bytes(b"a")
    first = class_archive(JAVA, jars, ["-x"])
    assert first == class_archive(JAVA, jars, ["-x"])
    others = [class_archive(Java(path=JAVA.path, version="21"), jars, ["-x"]), class_archive(JAVA, jars, ["-y"])]
    (jars / "a.jar").write_bytes(b"ab")
    others.append(class_archive(JAVA, jars, ["-x"]))
    assert len({archive.path for archive in [first, *others] if archive}) == 4


def test_only_a_whole_draft_takes_the_archives_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    archive = class_archive(JAVA, tmp_path, [])
    assert archive is not None
    assert archive.options(make=False) == []
    assert archive.options(make=True) == [f"-XX:ArchiveClassesAtExit={archive.draft}"]
    for whole in (False, True):
        archive.draft.write_bytes(b"classes")
        archive.publish(whole=whole)
        assert (archive.draft.exists(), archive.path.exists()) == (False, whole)
    assert archive.options(make=True) == [f"-XX:SharedArchiveFile={archive.path}"]


@pytest.mark.parametrize("cache", ["with space", "it's"])
def test_no_archive_where_spark_would_split_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    assert class_archive(JAVA, tmp_path, []) is None


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15+6-Debian-1deb12u1", 17), ("21", 21), ("22-ea", 22), ("1.8.0_402", 8)]
)
def test_java_versions_are_read_as_they_have_been_written(version: str, major: int) -> None:
    assert Java(path=JAVA.path, version=version).major == major


def test_java_home_goes_before_path_and_is_not_started_when_it_says_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = fake_java(tmp_path, "exit 1", 'JAVA_VERSION="21.0.2"\nJAVA_RUNTIME_VERSION="21.0.2+13-LTS"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == Java(path=java, version="21.0.2+13-LTS")


def test_java_on_path_is_asked_when_no_file_says_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = fake_java(tmp_path, """echo 'openjdk version "17.0.1" 2021-10-19' >&2""")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent))
    assert require_java() == Java(path=java, version="17.0.1")


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("""echo 'java version "1.8.0_402"' >&2""", "is Java 1.8.0_402, and Spark needs 17"),
        ("echo 'Unable to locate a Java Runtime.' >&2; exit 1", "Unable to locate a Java Runtime"),
    ],
)
def test_a_java_that_will_not_do_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, found: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, script).parent.parent))
    with pytest.raises(UsageError) as raised:
        require_java()
    message = str(raised.value)
    assert found in message
    assert "apt-get install openjdk-17-jre-headless" in message
    assert "brew install openjdk@17" in message


def test_no_java_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="none on PATH: install Java 17"):
        require_java()
