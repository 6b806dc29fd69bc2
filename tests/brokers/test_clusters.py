"""The testbed itself: clusters that start, fail, stop and die as told, and leave no process behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.brokers.client import READ_UNCOMMITTED, JavaClient
from headstone.brokers.distribution import Distribution, distribution_at
from headstone.brokers.processes import Cluster, wait_until
from headstone.errors import Unfinished, UsageError
from testbed import control
from testbed.control import Kept, ask, socket_of
from testbed.maven import KafkaUnavailable, cache_folder, fetched, kafka

ROOT = Path(__file__).resolve().parent.parent.parent


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process_id}/stat").read_text().split(")")[-1].split()[0] != "Z"


def resident_bytes(process_id: int) -> int:
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def directory_id(log_dir: Path) -> str:
    lines = (log_dir / "meta.properties").read_text().splitlines()
    return next(line for line in lines if line.startswith("directory.id="))


def test_three_brokers_survive_a_kill_and_move_leadership(
    distribution: Distribution, java: JavaClient, tmp_path: Path, work: Path
) -> None:
    with Cluster(distribution, tmp_path, brokers=3) as cluster:
        client = java.connect(cluster.bootstrap)
        client.create_topic("orders", [[1, 2, 3]], {"cleanup.policy": "compact"})
        producer = client.producer(acks="all")
        assert [producer.write("orders", 0, b"k", b"v%d" % n) for n in range(3)] == [0, 1, 2]
        cluster.brokers[1].kill()
        assert not cluster.brokers[1].stopped_cleanly
        assert producer.write("orders", 0, b"k", None) == 3
        wait_until(lambda: client.state("orders").leader in (2, 3), "every broker knows of it")
        cluster.brokers[1].start()
        client.wait_in_sync("orders", brokers=[1, 2, 3])
        for number in (1, 2, 3):
            client.lead("orders", 0, number)
            records = client.read("orders", isolation=READ_UNCOMMITTED, broker=number).records
            assert [(r.offset, r.key, r.value) for r in records] == [
                (0, b"k", b"v0"), (1, b"k", b"v1"), (2, b"k", b"v2"), (3, b"k", None)
            ]  # fmt: skip
        processes = [broker.process_id for broker in cluster.brokers.values()]
        memory = sum(resident_bytes(process) for process in (*processes, java.gateway.java_process.pid))
        assert memory < 3 << 30
        if distribution.archive is not None:
            assert [str(distribution.archive) in Path(f"/proc/{process}/maps").read_text() for process in processes] == [
                True, True, True
            ]  # fmt: skip
        assert len({directory_id(broker.log_dir) for broker in cluster.brokers.values()}) == 3
        client.alter_topic("orders", {"delete.retention.ms": 4711})
        describe = ("configs", "--bootstrap-server", cluster.bootstrap, "--describe", "--topic", "orders")
        wait_until(
            lambda: "delete.retention.ms=4711" in distribution.tool(*describe, config=work),
            "the broker that answers Kafka's tool has heard of the change",
        )
        consumed = distribution.tool(
            "console-consumer", "--bootstrap-server", cluster.bootstrap, "--topic", "orders", "--from-beginning",
            "--max-messages", "3", config=work,
        )  # fmt: skip
        assert consumed.splitlines() == ["v0", "v1", "v2"]
        cluster.brokers[2].stop()
        assert cluster.brokers[2].stopped_cleanly
        client.close()
    assert not any(alive(process) for process in processes)


def test_a_broker_that_does_not_start_shows_the_end_of_its_log(distribution: Distribution, tmp_path: Path) -> None:
    cluster = Cluster(distribution, tmp_path, settings={"log.cleaner.threads": 1})
    cluster.format()
    cluster.brokers[1].settings["log.cleaner.dedupe.buffer.size"] = "a lot"
    with pytest.raises(Unfinished, match=r"(?s)broker 1 exited during startup.*a lot"):
        cluster.start()
    assert not cluster.brokers[1].running


def test_brokers_do_not_outlive_us_even_if_we_are_killed(distribution: Distribution, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from headstone.brokers.processes import Cluster; "
        "from headstone.brokers.distribution import distribution_at; "
        "cluster = Cluster(distribution_at(sys.argv[1]), Path(sys.argv[2])).__enter__(); "
        "print(cluster.brokers[1].process_id, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(distribution.libs.parent), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        broker = int(child.stdout.readline())
        assert alive(broker)
        child.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(broker), "the broker is gone")


def test_the_command_gives_a_cluster_until_it_is_stopped_whatever_becomes_of_its_brokers(
    distribution: Distribution, java: JavaClient, tmp_path: Path
) -> None:
    where = str(tmp_path / "kept")
    command = [
        sys.executable, "-m", "testbed", "up", "--brokers", "1", "--version", distribution.version, "--dir", where,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        try:
            assert child.stdout is not None
            lines = [child.stdout.readline(), child.stdout.readline()]
            assert lines[0].startswith("broker 1: 127.0.0.1:")
            broker = int(lines[0].split("process ")[1].split(",")[0])
            client = java.connect(lines[1].removeprefix("bootstrap: ").strip())
            client.create_topic("t", [[1]], {})
            assert client.state("t").leader == 1
            client.close()
            os.kill(broker, signal.SIGKILL)
            wait_until(lambda: "does not run" in ask("status", where), "the end of the broker is seen")
            assert ask("start 1", where) == "broker 1 runs, and the others know it\n"
            assert ask("start 1", where) == "broker 1 runs already\n"
            assert ask("stop 1", where) == "broker 1 is stopped; `start 1` starts it again\n"
            assert ask("start", where) == "all brokers run\n"
            broker = int(ask("status", where).split("process ")[1])
            assert ask("bootstrap", where).startswith("127.0.0.1:")
            assert ask("stop 2", where) == "not done: no broker 2; there are 1\n"
            assert ask("restart 1", where).startswith("not understood: restart 1; stop N, ")
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert not alive(broker)
    with pytest.raises(UsageError, match="no cluster runs in "):
        ask("status", where)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster of which no broker runs, that is told what to do until it is to quit."""
    root = tmp_path
    monkeypatch.setattr(control, "ANSWER_SECONDS_MAX", 20.0)
    cluster = Cluster(Distribution(version="4.3.1", libs=root), root)
    reading, writing = os.pipe()
    with os.fdopen(reading) as nobody_types, Kept(cluster, root, commands=nobody_types, tell=lambda text: None) as told:
        thread = threading.Thread(target=told.stay)
        thread.start()
        yield root
        os.write(writing, b"quit\n")
        os.close(writing)
        thread.join(60)


@pytest.mark.parametrize("asked", [b"", b"status", b"\xff\n"], ids=["nothing", "in the middle", "no text"])
def test_whoever_goes_away_before_it_is_answered_ends_no_broker(asked: bytes, kept: Path) -> None:
    """As Ctrl-C does to `python -m testbed start 3`: the cluster goes on, and answers the next one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_of(kept)))
        connection.sendall(asked)
    assert ask("status", str(kept)).endswith("does not run\n")


def test_whoever_asks_nothing_keeps_nobody_waiting(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "ASKED_SECONDS_MAX", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(socket_of(kept)))
        assert ask("status", str(kept)).endswith("does not run\n")


def test_kafka_home_is_used_instead_of_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13-3.7.1.jar").touch()
    (tmp_path / "libs" / "kafka_2.13-3.7.1-sources.jar").touch()
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    assert kafka("4.3.1") == Distribution(version="3.7.1", libs=tmp_path / "libs")
    with pytest.raises(UsageError, match="no libs/kafka_2"):
        distribution_at(tmp_path / "libs")


def test_no_maven_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTONE_TESTBED_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KafkaUnavailable, match="install maven, or set KAFKA_HOME"):
        fetched("4.3.1")
    assert cache_folder() == tmp_path
    assert list(tmp_path.iterdir()) == []
