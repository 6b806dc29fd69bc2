"""`headstone compact` against a real broker's own cleaner: the same bytes, the same machine, one after the other.

    python benchmarks/cleaner.py                       # 1.1 GB in 12 million records, every key twice
    python benchmarks/cleaner.py --value-bytes 1000 --keys 500000
    python benchmarks/cleaner.py --codec lz4

A real producer fills one partition. The broker's cleaner (one thread, unthrottled) compacts it with an offset map that is
large enough, then again from the same bytes with the default map of 128 MiB, pass after pass until nothing is dirty.
Headstone compacts a copy. Cleaner: its own "MB/sec" line, the processor time of its thread. Headstone: the whole command
with the start of Spark, and the work alone.
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
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from memory import children, resident

from headstone.kafka.brokers import Broker, Cluster, Machine, wait_until
from headstone.kafka.client import JavaClient
from headstone.kafka.distribution import Distribution
from headstone.log.checkpoints import read_offsets
from testbed.maven import VERSIONS, kafka
from testbed.workloads import NEVER_MS, second_client

TOPIC = "bench"
SEGMENT_BYTES = 128 << 20
DEFAULT_MAP_BYTES = 128 << 20
POLL_S = 0.1
TICKS = os.sysconf("SC_CLK_TCK")
PROCESSED = re.compile(r"([\d,.]+) MB of log processed in ([\d,.]+) seconds \(([\d,.]+) MB/sec\)")
CLEANER_THREAD = "kafka-log-clean"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one way to compact the log to the end. MB are Kafka's: 2^20 bytes."""

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
        # The second round comes in another order: neighbours do not stay together.
        key = n if n < arguments.keys else (n * 7_368_787) % arguments.keys
        at = (n * 977) % (len(text) - size)
        while True:
            try:
                producer.produce(TOPIC, partition=0, key=b"key-%010d" % key, value=text[at : at + size])
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
    """Only the summaries of our partition."""
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


def compacted_by_headstone(log_dir: Path) -> tuple[Measured, float]:
    """(the whole command, seconds without the start of Python and Spark)."""
    command = [
        sys.executable, "-m", "headstone.cli.main", "compact", str(partition(log_dir)), "--in-place", "--rules", "kafka",
        "--segment-bytes", str(SEGMENT_BYTES), "--output", "json",
    ]  # fmt: skip
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    peak, spent = 0, {}
    while process.poll() is None:
        tree = children(process.pid)
        peak = max(peak, sum(resident(one)[1] for one in tree))
        spent.update({one: max(spent.get(one, 0.0), processor_seconds(one)) for one in tree})
        time.sleep(POLL_S)
    seconds = time.monotonic() - started
    assert process.stdout is not None
    report = json.loads(process.stdout.read())
    measured = Measured(
        passes=1,
        seconds=seconds,
        processor_seconds=sum(spent.values()),
        peak_bytes=peak,
        bytes_after=log_bytes(log_dir),
    )
    return measured, sum(one["seconds"] for one in report["partitions"])


def measure(distribution: Distribution, root: Path, arguments: argparse.Namespace) -> dict[str, object]:
    map_bytes = max(DEFAULT_MAP_BYTES, 2 * arguments.keys * 24)
    settings = {
        "log.cleaner.dedupe.buffer.size": map_bytes,
        "log.cleaner.backoff.ms": 200,
        "log.segment.delete.delay.ms": 0,
    }
    machine = Machine(heap=f"{(map_bytes >> 20) + 700}m", java_options=())
    found: dict[str, Measured] = {}
    with JavaClient(distribution, root / "client") as java:
        cluster = Cluster(distribution, root / "cluster", settings=settings, machine=machine)
        broker = cluster.brokers[1]
        with cluster:
            tell("filling")
            fill(cluster, java, arguments)
            broker.stop()
            filled, original = log_bytes(broker.log_dir), root / "original"
            shutil.copytree(broker.log_dir, original)
            for name, size in (("cleaner, map large enough", map_bytes), ("cleaner, default map", DEFAULT_MAP_BYTES)):
                tell(name)
                shutil.rmtree(broker.log_dir)
                shutil.copytree(original, broker.log_dir)
                broker.settings["log.cleaner.dedupe.buffer.size"] = size
                broker.start()
                found[name] = cleaned_by_broker(broker, java, cluster.bootstrap)
                broker.stop()
        tell("headstone")
        compacted_by_headstone(shutil.copytree(original, root / "warm"))
        shutil.rmtree(root / "warm")
        found["headstone"], work = compacted_by_headstone(shutil.copytree(original, root / "ours"))
    return {
        "kafka": distribution.version, "codec": arguments.codec, "bytes": filled, "records": 2 * arguments.keys,
        "keys": arguments.keys, "value_bytes": arguments.value_bytes, "headstone_work_seconds": round(work, 3),
        "ways": {name: asdict(one) for name, one in found.items()},
        **ratios(filled / (1 << 20), found, work),
    }  # fmt: skip


def ratios(megabytes: float, found: dict[str, Measured], work: float) -> dict[str, object]:
    """A core's throughput: MB of the log for each processor second, however often the log was gone over."""
    by_core = {name: megabytes / one.processor_seconds for name, one in found.items()}
    by_clock = {name: megabytes / one.seconds for name, one in found.items()}
    by_clock["headstone, work alone"] = megabytes / work
    roomy, default = "cleaner, map large enough", "cleaner, default map"
    return {
        "mb_per_second": {name: round(value, 1) for name, value in by_clock.items()},
        "mb_per_processor_second": {name: round(value, 1) for name, value in by_core.items()},
        "ratios_to_cleaner_per_core": {
            roomy: round(by_core["headstone"] / by_core[roomy], 2),
            default: round(by_core["headstone"] / by_core[default], 2),
        },
        "ratios_to_cleaner_by_the_clock": {
            roomy: round(by_clock["headstone"] / by_clock[roomy], 2),
            default: round(by_clock["headstone"] / by_clock[default], 2),
            "work alone, map large enough": round(by_clock["headstone, work alone"] / by_clock[roomy], 2),
        },
    }


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
