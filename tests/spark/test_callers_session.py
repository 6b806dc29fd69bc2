"""A verb that is called where Spark runs already, as in a notebook: it uses that session, and leaves it as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headstone.cli.main import main

CALLER = """
import os, signal, sys, threading
from pyspark.sql import SparkSession
import headstone as hs
from headstone.cli.main import main

logs, out = sys.argv[1:]
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = {builder}.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = builder.getOrCreate()
handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

def compacted(name, *more):
    code = main(["compact", logs, "--out", os.path.join(out, name), "--quiet", "--output", "json", *more])
    whole = os.path.exists(os.path.join(out, name, "cleaner-offset-checkpoint"))
    return code, whole

def on_threads(*names):
    codes = []
    threads = [threading.Thread(target=lambda name=name: codes.append(compacted(name))) for name in names]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return codes

sys.stdout, answers = open(os.devnull, "w"), sys.stdout
def say(*what): print(*what, file=answers, flush=True)

def refused():
    try:
        hs.compact(spark, logs, out=os.path.join(out, "never"))
    except hs.UsageError as error:
        say(error)

{body}
"""
CLASSIC = 'SparkSession.builder.master("local[1]").config("spark.app.name", "theirs")'
DONE = "(0, True)"
STOPPED = "spark: this session was stopped; pass a running one"


def called(body: str, logs: Path, out: Path, builder: str = CLASSIC) -> list[str]:
    program = CALLER.format(builder=builder, body=body)
    done = subprocess.run(
        [sys.executable, "-c", program, str(logs), str(out)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [*done.stdout.splitlines(), *(line for line in done.stderr.splitlines() if line.startswith("headstone "))]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("caller") / "logs"
    assert main(["synth", str(directory), "--records", "300", "--quiet"]) == 0
    return directory


def test_the_callers_session_is_used_on_any_thread_and_left_as_it_was(logs: Path, tmp_path: Path) -> None:
    """And once the caller has stopped it, a verb has its own, and so have two at once, one after the other."""
    lines = called(
        """
say(compacted("here"), on_threads("b", "c"))
say(compacted("d", "--master", "local[7]")[0], compacted("e", "--spark-remote", "sc://localhost:1")[0])
say(compacted("f", "--spark-conf", "spark.sql.shuffle.partitions=7")[0], compacted("g", "--master", "local[1]"))
active = SparkSession.getActiveSession() is spark and spark.sparkContext.appName == "theirs"
say(active, spark.range(3).count(), handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)])
spark.stop()
refused()
say(compacted("own"), on_threads("h", "i"))
say(builder.getOrCreate().range(4).count())
""",
        logs, tmp_path,
    )  # fmt: skip
    answers = [line for line in lines if not line.startswith("headstone ")]
    assert answers == [
        f"{DONE} [{DONE}, {DONE}]", "2 2", f"2 {DONE}", "True 3 True", STOPPED, f"{DONE} [{DONE}, {DONE}]", "4"
    ]  # fmt: skip
    refused = [line for line in lines if line.startswith("headstone compact: --")]
    assert ["already" in line and "leave" in line for line in refused] == [True] * 3


def test_a_session_over_spark_connect_is_used_and_not_replaced(logs: Path, tmp_path: Path) -> None:
    lines = called(
        """
say(compacted("here"), on_threads("b"))
say(compacted("d", "--master", "local[7]")[0])
say(SparkSession.getActiveSession() is spark, spark.range(3).count())
spark.stop()
refused()
""",
        logs, tmp_path, 'SparkSession.builder.remote("local[1]")',
    )  # fmt: skip
    assert lines[:4] == [f"{DONE} [{DONE}]", "2", "True 3", STOPPED]
    assert "leave out --master" in lines[4]


def test_executors_without_headstone_are_told_and_what_to_do(logs: Path, tmp_path: Path) -> None:
    """They have another Python: the same command would meet that again."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    words = [
        "compact", str(logs), "--out", str(tmp_path / "out"), "--quiet", "--master", "local[1]", "--spark-conf",
        f"spark.pyspark.python={bare}",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "headstone.cli.main", *words], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert line.startswith("headstone compact")
    assert "ModuleNotFoundError" in line
    assert "PYSPARK_PYTHON" in line
    assert "again" not in line
