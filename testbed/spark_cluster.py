"""A Spark standalone cluster on loopback: a master, workers and optionally a Spark Connect server, from pip's pyspark.

Each is a machine of its own (`testbed.machines`): driver and executors share no path. Executors can be killed and halted,
workers added. Stops every process by its id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from headstone.brokers.ports import HOST, free_ports
from headstone.brokers.processes import wait_until
from testbed.machines import environment, machine

START_SECONDS_MAX = 300
STOP_SECONDS_MAX = 20
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"
EXECUTOR = b"CoarseGrainedExecutorBackend"
FIRST_WORKER = 2
"""The last number of its address."""
DAEMON_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Several JVMs start on two cores: the second compiler would cost more than it saves."""
APPLICATION_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": DAEMON_JAVA,
    "spark.python.daemon.module": "headstone.spark.daemon",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For an application on such a cluster: small executors that start quickly, everything on loopback."""

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.efficiency.enabled": "false",
}
"""A second attempt of every task that is a little slower than the others."""


class SparkCluster:
    """Workers are numbered in the order of their start. One core and 1 GB each: an application takes all there are.

    Each has its own address, because Spark runs no second attempt of a task on the host of the first."""

    def __init__(self, stack: ExitStack, front: Sequence[str], work_dir: str) -> None:
        self._stack = stack
        self._front = front
        self._work_dir = work_dir
        self._workers: list[int] = []
        line, _ = self._start([*_class(MASTER), *_at(HOST)], HOST, until="Starting Spark master at ")
        self.url = line.split("Starting Spark master at ")[1].strip()

    @property
    def workers(self) -> int:
        return len(self._workers)

    def add_worker(self) -> int:
        """Returns its number once the master knows it."""
        host = f"127.0.0.{FIRST_WORKER + len(self._workers)}"
        place = ["--cores", "1", "--memory", "1g", "--work-dir", f"{self._work_dir}/worker-{len(self._workers)}"]
        command = [*_class(WORKER), *_at(host), *place, self.url]
        _, process = self._start(command, host, until="Successfully registered with master")
        self._workers.append(process)
        return len(self._workers) - 1

    @contextmanager
    def connect_server(self, conf: Mapping[str, str] | None = None) -> Iterator[str]:
        """The sc:// URL of a Spark Connect server whose driver is on the cluster."""
        (port,) = free_ports(1)
        settings = {**APPLICATION_CONF, "spark.connect.grpc.binding.port": str(port), **(conf or {})}
        command = [_spark("spark-submit"), "--master", self.url, "--class", CONNECT]
        command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        with _daemon([*self._front, *command, "spark-internal"], HOST, until="Spark Connect server started at"):
            yield f"sc://{HOST}:{port}"

    def executors(self, worker: int) -> list[int]:
        """Process ids of the JVMs."""
        return [process for process in _descendants(self._workers[worker]) if EXECUTOR in _command_line(process)]

    def kill_executors(self, worker: int) -> int:
        """Kills them with their Python processes, as when the machine's memory runs out; returns how many there were."""
        executors = self.executors(worker)
        for executor in executors:
            _send(signal.SIGKILL, [executor, *_descendants(executor)])
        return len(executors)

    @contextmanager
    def halted(self, worker: int) -> Iterator[None]:
        """Its Python processes are suspended until the block ends; its JVMs keep telling the driver that all is well."""
        processes = self._python(worker)
        assert processes, f"no task has run on worker {worker}"
        _send(signal.SIGSTOP, processes)
        try:
            yield
        finally:
            _send(signal.SIGCONT, processes)

    def wait_for_tasks(self, worker: int) -> None:
        """Waits until the worker has begun its first task."""
        wait_until(lambda: bool(self._python(worker)), f"a task on worker {worker}", seconds_max=START_SECONDS_MAX)

    def _python(self, worker: int) -> list[int]:
        return [process for executor in self.executors(worker) for process in _descendants(executor)]

    def _start(self, command: list[str], host: str, *, until: str) -> tuple[str, int]:
        return self._stack.enter_context(_daemon([*self._front, *command], host, until=until))


@contextmanager
def spark_cluster(*, workers: int = 2, hidden: Sequence[Path]) -> Iterator[SparkCluster]:
    """Ready once every worker has registered. Each process is a machine of its own without the `hidden` folders."""
    front = machine(hidden)
    with tempfile.TemporaryDirectory(prefix="headstone-spark-", dir="/tmp") as work_dir, ExitStack() as stack:
        cluster = SparkCluster(stack, front, work_dir)
        for _ in range(workers):
            cluster.add_worker()
        yield cluster


def _spark(script: str) -> str:
    return str(Path(_find_spark_home()) / "bin" / script)


def _class(name: str) -> list[str]:
    return [_spark("spark-class"), name]


def _at(host: str) -> list[str]:
    return ["--host", host, "--port", "0", "--webui-port", "0"]


@contextmanager
def _daemon(command: list[str], host: str, *, until: str) -> Iterator[tuple[str, int]]:
    """Yields the log line that contains `until`, and the process id: all start scripts end in exec, so it is the JVM's."""
    variables = {"SPARK_LOCAL_IP": host, "SPARK_DAEMON_JAVA_OPTS": DAEMON_JAVA, "SPARK_DAEMON_MEMORY": "640m"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**environment(), "PYSPARK_PYTHON": sys.executable, **variables},
    )  # fmt: skip
    assert process.stderr is not None
    patience = threading.Timer(START_SECONDS_MAX, process.kill)
    patience.start()
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if until in line:
                break
        else:
            raise AssertionError(f"{command} ended before it said {until!r}:\n{''.join(lines[-40:])}")
        patience.cancel()
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield lines[-1], process.pid
    finally:
        patience.cancel()
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _descendants(process: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (parent := _parent(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
    descendants, open_ends = [], [process]
    while open_ends:
        born = children.get(open_ends.pop(), [])
        descendants += born
        open_ends += born
    return descendants


def _parent(process: int) -> int | None:
    try:
        # The command's name is in parentheses and may contain anything; state and parent follow it.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _send(number: signal.Signals, processes: Sequence[int]) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
