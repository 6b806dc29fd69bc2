"""Throwaway KRaft clusters of real brokers on loopback: start, stop, kill, restart, and their logs.

Stops every process by its id and gives each its own ports; a failed start shows the tail of the broker's log. Knows nothing of
topics or clients.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO

from headstone.brokers.distribution import Distribution, write_logging
from headstone.brokers.membership import known_brokers
from headstone.brokers.ports import HOST, free_ports
from headstone.errors import Unfinished
from headstone.interruption import sleep
from headstone.log.cluster_metadata import rename_in_meta_properties

STARTED = "Kafka Server started"
START_SECONDS_MAX = 180
STOP_SECONDS_MAX = 60
STOPS_MAX = 3
TAIL_LINES = 40
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 180.0
"""For what a broker does in a moment, on a machine that does ten other things: only a failure takes this long."""

QUICK_JAVA = ("-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Without the second compiler, three brokers on two cores start in half the time. Not for measurements."""


def wait_until(
    true: Callable[[], bool], what: str, *, seconds_max: float = PATIENCE_SECONDS, every: float = POLL_SECONDS
) -> None:
    """Raises Unfinished that says what did not happen."""
    deadline = time.monotonic() + seconds_max
    while not true():
        if time.monotonic() > deadline:
            raise Unfinished(f"timed out after {seconds_max:g} s: {what}")
        sleep(every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one broker's Java process gets."""

    heap: str = "320m"
    java_options: Sequence[str] = QUICK_JAVA


class Broker:
    """One broker that is also a controller. Its directory outlives it. It does not outlive this process, even if that is
    killed."""

    def __init__(
        self, number: int, distribution: Distribution, root: Path, settings: Mapping[str, object], machine: Machine
    ) -> None:
        self.number = number
        self.root = root
        self.log_dir = Path(str(settings["log.dirs"]))
        self.settings = dict(settings)
        self.environment: dict[str, str] = {}
        """Of this broker only, in addition to what it inherits."""
        self._distribution = distribution
        self._machine = machine
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._start_at = 0
        root.mkdir(parents=True, exist_ok=True)

    @property
    def output(self) -> Path:
        return self.root / "broker.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def stopped_cleanly(self) -> bool:
        return (self.log_dir / ".kafka_cleanshutdown").exists()

    def format(self, cluster_id: str) -> None:
        """Writes what Kafka's own tool writes, with the ids of this cluster, this broker and this directory."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        for name, content in _formatted(self._distribution).items():
            (self.log_dir / name).write_bytes(content)
        names = {"cluster.id": cluster_id, "node.id": str(self.number), "directory.id": new_id()}
        rename_in_meta_properties(self.log_dir, names)

    def start(self, *, wait: bool = True) -> None:
        assert not self.running
        properties = self._write_properties()
        write_logging(self.root / "config")
        self._start_at = self.output.stat().st_size if self.output.exists() else 0
        self._output = open(self.output, "ab")  # noqa: SIM115 (the process writes to it as long as it lives)
        command = self._distribution.java(
            self._distribution.main_class("server"), properties,
            heap=self._machine.heap, options=self._machine.java_options, config=self.root / "config",
        )  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, cwd=self.root,
            env={**os.environ, **self.environment},
        )  # fmt: skip
        self._watch = subprocess.Popen(
            ["/bin/sh", "-c", f"read end; kill -9 {self._process.pid}"], stdin=subprocess.PIPE, start_new_session=True
        )
        if wait:
            self.wait_started()

    def wait_started(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while STARTED not in self.said():
            if not self.running:
                raise Unfinished(
                    f"broker {self.number} exited during startup; the end of its log ({self.output}):\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise Unfinished(f"broker {self.number} did not start within {START_SECONDS_MAX} s:\n{self.tail()}")
            sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Shuts down cleanly; kills a broker that hangs."""
        self.ask_to_stop()
        self.wait_stopped()

    def ask_to_stop(self) -> None:
        if self.running:
            assert self._process is not None
            self._process.send_signal(signal.SIGTERM)

    def wait_stopped(self) -> None:
        if self.running:
            assert self._process is not None
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close()

    def kill(self) -> None:
        """kill -9: no clean shutdown."""
        if self.running:
            assert self._process is not None
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
        self._close()

    def said(self) -> str:
        """Its log since the last start."""
        if not self.output.exists():
            return ""
        with open(self.output, "rb") as file:
            file.seek(self._start_at)
            return file.read().decode(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.said().splitlines()[-TAIL_LINES:])

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait()
            assert self._watch.stdin is not None
            self._watch.stdin.close()
            self._watch = None
        if self._output is not None:
            self._output.close()
            self._output = None

    def _write_properties(self) -> str:
        path = self.root / "server.properties"
        path.write_text(as_properties(self.settings))
        return str(path)


class Cluster:
    """Brokers 1 to n under one directory; a context manager that leaves no process behind."""

    def __init__(
        self, distribution: Distribution, root: Path, *, brokers: int = 1, settings: Mapping[str, object] | None = None,
        machine: Machine | None = None,
    ) -> None:  # fmt: skip
        ports = free_ports(2 * brokers)
        controllers = {number: ports[brokers + number - 1] for number in range(1, brokers + 1)}
        self.distribution = distribution
        self.root = root
        self.cluster_id = new_id()
        self.ports = {number: ports[number - 1] for number in range(1, brokers + 1)}
        voters = ",".join(f"{number}@{HOST}:{port}" for number, port in controllers.items())
        self.brokers: dict[int, Broker] = {}
        for number, port in self.ports.items():
            home = root / f"broker-{number}"
            own = broker_settings(number, brokers, port, controllers[number], voters)
            given = {**own, "log.dirs": home / "logs", **(settings or {})}
            self.brokers[number] = Broker(number, distribution, home, given, machine or Machine())

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def format(self) -> None:
        for broker in self.brokers.values():
            broker.format(self.cluster_id)

    def start(self) -> None:
        """Starts all brokers that are not running, concurrently."""
        self._start([broker for broker in self.brokers.values() if not broker.running])

    def _start(self, brokers: Sequence[Broker]) -> None:
        for broker in brokers:
            broker.start(wait=False)
        for broker in brokers:
            broker.wait_started()
        wait_until(self._know_each_other, "every broker knows of all the others")

    def start_broker(self, number: int) -> None:
        """Returns when every broker knows that it is there."""
        self._start([self.brokers[number]])

    def stop_broker(self, number: int) -> None:
        """Stops it cleanly; returns when every other broker knows that it is gone."""
        self.brokers[number].stop()
        wait_until(self._know_each_other, f"every broker knows that {number} is gone")

    def _know_each_other(self) -> bool:
        """A broker that has started is known to the controller; other brokers learn of it a little later."""
        running = {number for number, broker in self.brokers.items() if broker.running}
        return all(known_brokers(HOST, self.ports[number]) == running for number in running)

    def stop(self) -> None:
        """Cleanly, all at once: each needs a quorum of controllers in order to leave, and they are the controllers. One that is
        too slow waits for a quorum that is gone, and is killed; then all are started and stopped once more."""
        running = [broker for broker in self.brokers.values() if broker.running]
        for _ in range(STOPS_MAX):
            for broker in running:
                broker.ask_to_stop()
            for broker in running:
                broker.wait_stopped()
            if all(broker.stopped_cleanly for broker in running):
                return
            self._start(running)
        self.kill()
        raise Unfinished(f"brokers did not stop cleanly in {STOPS_MAX} tries")

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()

    def __enter__(self) -> Cluster:
        with ExitStack() as undo:
            undo.callback(self.kill)
            self.format()
            self.start()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def new_id() -> str:
    """As Kafka writes a UUID, but never beginning with a dash, which a tool would take for an option."""
    return base64.urlsafe_b64encode(b"Headston" + secrets.token_bytes(8)).decode().rstrip("=")


@cache
def _formatted(distribution: Distribution) -> Mapping[str, bytes]:
    """The files of an empty log directory, made by this release's tool. That starts a Java process, so it is done once."""
    with tempfile.TemporaryDirectory(prefix="headstone-") as root:
        log_dir, properties = Path(root) / "logs", Path(root) / "server.properties"
        settings = {**broker_settings(1, 1, 9092, 9093, f"1@{HOST}:9093"), "log.dirs": log_dir}
        properties.write_text(as_properties(settings))
        tools = Path(root) / "tools"
        distribution.tool("storage", "format", "-t", new_id(), "-c", str(properties), config=tools)
        return {path.name: path.read_bytes() for path in log_dir.iterdir()}


def as_properties(settings: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def broker_settings(number: int, brokers: int, port: int, controller_port: int, voters: str) -> dict[str, object]:
    """Small, quick to clean, and only on loopback."""
    copies = min(3, brokers)
    return {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 2,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "controlled.shutdown.max.retries": 1,
        "log.cleaner.backoff.ms": 500,
        "log.cleaner.threads": 1,
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.segment.delete.delay.ms": 1000,
        "num.network.threads": 2,
        "num.io.threads": 2,
        "background.threads": 2,
    }
