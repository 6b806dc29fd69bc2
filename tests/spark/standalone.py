"""A Spark standalone cluster on loopback: a master and its workers, each one process, as pip's pyspark brings them."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 20
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def standalone(work_dir: Path, *, workers: int = 2) -> Iterator[str]:
    """Yields the spark:// URL once every worker has registered; one core and 1 GB per worker, ports free ones."""
    loopback = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        line = stack.enter_context(_daemon([MASTER, *loopback], until="Starting Spark master at "))
        url = line.split("Starting Spark master at ")[1].strip()
        for worker in range(workers):
            place = ["--cores", "1", "--memory", "1g", "--work-dir", str(work_dir / f"worker-{worker}")]
            command = [WORKER, *loopback, *place, url]
            stack.enter_context(_daemon(command, until="Successfully registered with master"))
        yield url


@contextmanager
def _daemon(command: list[str], *, until: str) -> Iterator[str]:
    """The log line that contains `until`; spark-class ends in exec, so the process is the JVM itself."""
    process = subprocess.Popen(
        [Path(_find_spark_home()) / "bin" / "spark-class", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert process.stderr is not None
    patience = threading.Timer(START_SECONDS_MAX, process.kill)
    patience.start()
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if until in line:
                break
        else:
            raise AssertionError(f"{command[0]} ended before it said {until!r}:\n{''.join(said[-40:])}")
        patience.cancel()
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield said[-1]
    finally:
        patience.cancel()
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
