"""`headstone compact` against a real broker's own cleaner: the same bytes, the same machine, one after the other.

    python -m benchmarks.cleaner                       # 1.1 GB in 12 million records, every key twice
    python -m benchmarks.cleaner --value-bytes 1000 --keys 500000
    python -m benchmarks.cleaner --codec lz4

A real producer fills one partition. The broker's cleaner (one thread, unthrottled) compacts it with an offset map that is
large enough, then again from the same bytes with the default map of 128 MiB, pass after pass until nothing is dirty.
Headstone compacts copies of the same bytes: as a whole command, with the start of Python and Spark; as the second job of a
Spark session of one core, which compares with the cleaner's thread in a broker that has long been running; and the kernels
alone on one thread. Two limits beside them: `cp`, and one core that checks every checksum.
Cleaner: the seconds of its own summaries, the processor time of its thread. Others: processor time of all their processes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.memory import children, resident
from headstone.brokers.client import JavaClient
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Broker, Cluster, Machine, wait_until
from headstone.log.checkpoints import read_offsets
from headstone.log.directory import find_partitions, list_segments
from headstone.log.reading import verify_segment
from headstone.pipeline.compaction import CompactionRequest, Engine, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from headstone.spark.engine import OnSpark
from headstone.spark.session import StartingSession
from testbed.maven import VERSIONS, kafka
from testbed.workloads import NEVER_MS, second_client

TOPIC = "bench"
SEGMENT_BYTES = 128 << 20
DEFAULT_MAP_BYTES = 128 << 20
POLL_S = 0.1
ROOMY, DEFAULT = "cleaner, map large enough", "cleaner, default map"
WHOLE, WARM, KERNELS = "headstone, whole command", "headstone, warm session", "headstone, kernels alone"
CHECKSUMS, COPY = "limit: one core, checksums only", "limit: cp"
TICKS = os.sysconf("SC_CLK_TCK")
PROCESSED = re.compile(r"([\d,.]+) MB of log processed in ([\d,.]+) seconds \(([\d,.]+) MB/sec\)")
CLEANER_THREAD = "kafka-log-clean"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One way to compact the log to the end. MB are Kafka's: 2^20 bytes."""

    passes: int
    seconds: float
    processor_seconds: float
    peak_bytes: int
    bytes_after: int


def fill(cluster: Cluster, java: JavaClient, arguments: argparse.Namespace) -> None:
    client = java.connect(cluster.bootstrap)
    client.create_topic(TOPIC, [[1]], {
        "cleanup.policy": "compact", "min.compaction.lag.ms": NEVER_MS, "segment.bytes": SEGMENT_BYTES,
        "min.cleanable.dirty.ratio": 0.001, "compression.type": "producer",
    })  # fmt: skip
    producer = second_client(cluster.bootstrap, **{
        "linger.ms": 50, "batch.size": 500_000, "acks": 1, "compression.type": arguments.codec,
        "queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 200_000, "enable.idempotence": False,
    })  # fmt: skip
    text = os.urandom(1 << 20).hex().encode()
    size = arguments.value_bytes
    for n in range(2 * arguments.keys):
        # The second round comes in another order, so that neighbours do not stay together.
        key = n if n < arguments.keys else (n * 7_368_787) % arguments.keys
        start = (n * 977) % (len(text) - size)
        while True:
            try:
                producer.produce(TOPIC, partition=0, key=b"key-%010d" % key, value=text[start : start + size])
                break
            except BufferError:
                producer.poll(0.05)
        if n % 100_000 == 0:
            producer.poll(0)
            if n % 2_000_000 == 0:
                print(f"  {n:,} records written", file=sys.stderr)
    producer.flush()
    client.alter_topic(TOPIC, {"segment.ms": 1000})
    time.sleep(2)
    plain = client.producer(linger_ms=0)
    plain.write(TOPIC, 0, b"roll", b"")
    plain.close()
    client.close()


def partition(log_dir: Path) -> Path:
    return log_dir / f"{TOPIC}-0"


def log_bytes(log_dir: Path) -> int:
    return sum(file.stat().st_size for file in partition(log_dir).glob("*.log"))


def dirty_end(log_dir: Path) -> int:
    """Where a cleaner has to get to: the base of the active segment."""
    return max(int(file.stem) for file in partition(log_dir).glob("*.log"))


def thread_seconds(process: int, name: str) -> float:
    total = 0.0
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            if (task / "comm").read_text().startswith(name):
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / TICKS
        except OSError:
            continue
    return total


def cleaned_by_broker(broker: Broker, java: JavaClient, bootstrap: str) -> Measured:
    """Lets the cleaner run until nothing is dirty; the broker has just been started."""
    end = dirty_end(broker.log_dir)
    client = java.connect(bootstrap)
    wait_until(lambda: client.state(TOPIC).leader is not None, "a leader", seconds_max=60)
    before = thread_seconds(broker.process_id, CLEANER_THREAD)
    client.alter_topic(TOPIC, {"min.compaction.lag.ms": 0})

    def done() -> bool:
        path = broker.log_dir / "cleaner-offset-checkpoint"
        return path.exists() and read_offsets(path).get((TOPIC, 0), 0) >= end

    wait_until(done, "the cleaner is done", seconds_max=3600, every=0.2)
    wait_until(lambda: not list(partition(broker.log_dir).glob("*.deleted")), "old segments are gone", seconds_max=120)
    processor = thread_seconds(broker.process_id, CLEANER_THREAD) - before
    peak = next(int(line.split()[1]) * 1024 for line in status(broker.process_id) if line.startswith("VmHWM"))
    client.alter_topic(TOPIC, {"min.compaction.lag.ms": NEVER_MS})
    client.close()
    lines = PROCESSED.findall(after_topic(broker.said()))
    return Measured(
        passes=len(lines), seconds=sum(float(seconds.replace(",", "")) for _, seconds, _ in lines),
        processor_seconds=processor, peak_bytes=peak, bytes_after=log_bytes(broker.log_dir),
    )  # fmt: skip


def after_topic(text: str) -> str:
    """Only the summaries of the benchmark's partition."""
    parts = re.split(r"Log cleaner thread \d+ cleaned log ", text)[1:]
    return "\n".join(part for part in parts if part.startswith(f"{TOPIC}-0 "))


def status(process: int) -> list[str]:
    return Path(f"/proc/{process}/status").read_text().splitlines()


def processor_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def watched(run: Callable[[], object], root: int) -> Measured:
    """Processor time and memory of the tree of processes under `root` while `run` runs."""
    spent: dict[int, float] = {}
    first: dict[int, float] = {}
    peak, over = 0, threading.Event()

    def look() -> None:
        nonlocal peak
        while True:
            tree = children(root)
            peak = max(peak, sum(resident(pid)[1] for pid in tree))
            for pid in tree:
                spent[pid] = max(spent.get(pid, 0.0), processor_seconds(pid))
                first.setdefault(pid, 0.0)
            if over.wait(POLL_S):
                return

    first.update({one: processor_seconds(one) for one in children(root)})
    watcher = threading.Thread(target=look)
    started = time.monotonic()
    watcher.start()
    run()
    seconds = time.monotonic() - started
    spent.update({one: max(spent.get(one, 0.0), processor_seconds(one)) for one in children(root)})
    over.set()
    watcher.join()
    used = sum(value - first[one] for one, value in spent.items() if one in first)
    return Measured(passes=1, seconds=seconds, processor_seconds=used, peak_bytes=peak, bytes_after=0)


def whole_command(log_dir: Path) -> Measured:
    command = [
        sys.executable, "-m", "headstone.cli.main", "compact", str(partition(log_dir)), "--all-topics", "--in-place",
        "--rules", "kafka", "--segment-bytes", str(SEGMENT_BYTES),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    measured = watched(process.wait, process.pid)
    assert process.returncode == 0
    return replace(measured, bytes_after=log_bytes(log_dir))


def job(log_dir: Path, engine: Engine) -> None:
    policy = kafka_rules(Policy(now_ms=int(time.time() * 1000), segment_bytes=SEGMENT_BYTES))
    request = CompactionRequest(
        paths=(str(partition(log_dir)),), out=None, policy=policy, path="whole", progress=False,
        task_memory_bytes=4 << 30, force_offline=True, all_topics=True,
    )  # fmt: skip
    compact(request, engine, lambda text: None)


def ours(original: Path, root: Path) -> dict[str, Measured]:
    def fresh(name: str) -> Path:
        shutil.rmtree(root / "ours", ignore_errors=True)
        tell(name)
        return Path(shutil.copytree(original, root / "ours", ignore=shutil.ignore_patterns(".lock")))

    measured = {}
    whole_command(fresh("warming up"))
    measured[WHOLE] = whole_command(fresh(WHOLE))
    with StartingSession(app_name="bench", master="local[1]", remote=None, conf={}) as session:
        session.begin()
        engine = OnSpark(session.get, parallelism=1)
        job(fresh("warming up"), engine)
        copy = fresh(WARM)
        measured[WARM] = replace(watched(lambda: job(copy, engine), os.getpid()), bytes_after=log_bytes(copy))
    for attempt in ("warming up", KERNELS):
        copy = fresh(attempt)
        measured[KERNELS] = replace(
            watched(lambda copy=copy: job(copy, InProcess(1)), os.getpid()), bytes_after=log_bytes(copy)
        )
    copy = fresh(CHECKSUMS)
    segments = list_segments(find_partitions([partition(copy)])[0])
    measured[CHECKSUMS] = watched(lambda: [verify_segment(segment) for segment in segments], os.getpid())
    target = root / "copied"
    measured[COPY] = watched(
        lambda: subprocess.run(["cp", "-r", str(partition(copy)), str(target)], check=True), os.getpid()
    )
    return measured


def measure(distribution: Distribution, root: Path, arguments: argparse.Namespace) -> dict[str, object]:
    map_bytes = max(DEFAULT_MAP_BYTES, 2 * arguments.keys * 24)
    settings = {
        "log.cleaner.dedupe.buffer.size": map_bytes,
        "log.cleaner.backoff.ms": 200,
        "log.segment.delete.delay.ms": 0,
    }
    machine = Machine(heap=f"{(map_bytes >> 20) + 700}m", java_options=())
    measured: dict[str, Measured] = {}
    with JavaClient(distribution, root / "client") as java:
        cluster = Cluster(distribution, root / "cluster", settings=settings, machine=machine)
        broker = cluster.brokers[1]
        with cluster:
            tell("filling")
            fill(cluster, java, arguments)
            broker.stop()
            filled, original = log_bytes(broker.log_dir), root / "original"
            shutil.copytree(broker.log_dir, original)
            for name, size in ((ROOMY, map_bytes), (DEFAULT, DEFAULT_MAP_BYTES)):
                tell(name)
                shutil.rmtree(broker.log_dir)
                shutil.copytree(original, broker.log_dir)
                broker.settings["log.cleaner.dedupe.buffer.size"] = size
                broker.start()
                measured[name] = cleaned_by_broker(broker, java, cluster.bootstrap)
                broker.stop()
    measured.update(ours(original, root))
    return {
        "kafka": distribution.version, "codec": arguments.codec, "bytes": filled, "records": 2 * arguments.keys,
        "keys": arguments.keys, "value_bytes": arguments.value_bytes,
        "ways": {name: summary(one, filled / (1 << 20), measured) for name, one in measured.items()},
    }  # fmt: skip


def summary(way: Measured, megabytes: float, ways: Mapping[str, Measured]) -> dict[str, object]:
    """A core's throughput: MB of the log per processor second, however many passes were needed."""
    return {
        "passes": way.passes, "seconds": round(way.seconds, 2), "processor_seconds": round(way.processor_seconds, 2),
        "peak_mb": way.peak_bytes >> 20, "mb_after": way.bytes_after >> 20,
        "mb_per_second": round(megabytes / way.seconds, 1),
        "mb_per_processor_second": round(megabytes / max(way.processor_seconds, 0.01), 1),
        "per_core_to_cleaner": round(ways[ROOMY].processor_seconds / max(way.processor_seconds, 0.01), 2),
        "per_core_to_cleaner_with_default_map": round(
            ways[DEFAULT].processor_seconds / max(way.processor_seconds, 0.01), 2
        ),
        "by_the_clock_to_cleaner": round(ways[ROOMY].seconds / way.seconds, 2),
    }  # fmt: skip


tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=VERSIONS[-1], help="Kafka's version")
    parser.add_argument("--keys", type=int, default=6_000_000, help="each is written twice")
    parser.add_argument("--value-bytes", type=int, default=70)
    parser.add_argument("--codec", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headstone-bench-") as root:
        print(json.dumps(measure(kafka(arguments.version), Path(root), arguments), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
