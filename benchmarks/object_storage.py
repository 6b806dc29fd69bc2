"""Many small partitions and a large one in one run of compaction, in object storage and on a local disk.

    python -m benchmarks.object_storage --small 1000 --small-mb 1 --large-mb 4000 --output json

Prints peak memory of the driver and of its tasks, requests and bytes read per byte of log and against the plan, and how long
object storage takes against local files. The server is versitygw on this machine, so that the network is not what is measured.
Bytes are counted in a run of their own, behind a proxy, which is slower; memory and time are of the run without it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.spark.engine import OnSpark
from headstone.spark.session import StartingSession
from headstone.storage.access import Access
from headstone.storage.places import place
from headstone.storage.ranges import WINDOW_BYTES
from headstone.storage.stores import PART_BYTES, Store
from testbed.faulty_s3 import Counts, Fault, Request, faulty_s3
from testbed.s3 import BUCKET, versitygw

NOW_MS = 1_800_000_000_000
RECORD_BYTES = 214
MB = 1_000_000
POLL_S = 0.2
PASSES = 3


def write_logs(root: Path, arguments: argparse.Namespace) -> int:
    """Returns the bytes of the log."""
    sizes = {"small": (arguments.small, arguments.small_mb * MB), "large": (1, arguments.large_mb * MB)}
    for topic, (partitions, size) in sizes.items():
        records = size // RECORD_BYTES
        settings = SampleSettings(
            topic=topic, partitions=partitions, records=records, keys=int(records * 0.63), segment_bytes=256 << 20
        )
        write_sample(root, settings)
    return sum(path.stat().st_size for path in root.rglob("*.log"))


def upload(root: Path, url: str, settings: Mapping[str, str]) -> None:
    store = Store.open(url, settings)
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        with store.writing(file.relative_to(root).as_posix()) as sink, open(file, "rb") as content:
            while piece := content.read(PART_BYTES):
                sink.write(piece)


def run(task: Mapping[str, Any]) -> None:
    """The job, in its own process."""
    access = Access.of(task["store"])
    request = CompactionRequest(
        paths=(task["source"],), out=place(task["out"], access), access=access, progress=False,
        policy=kafka_rules(Policy(now_ms=NOW_MS)),
    )  # fmt: skip
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with StartingSession(app_name="object storage", master=None, remote=None, conf={}) as starting:
        compact(request, OnSpark(starting.get, parallelism=os.cpu_count() or 1, begin=starting.begin), print)


def measured(source: str, out: str, settings: Mapping[str, str]) -> dict[str, float]:
    """Seconds, and the largest memory of the driver, of Spark's Java and of any task."""
    started = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.object_storage", "--task"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(json.dumps({"source": source, "out": out, "store": dict(settings)}).encode())
    process.stdin.close()
    peaks: dict[str, int] = {}
    while process.poll() is None:
        for kind, size in memory(process.pid):
            peaks[kind] = max(peaks.get(kind, 0), size)
        time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"{source}: failed with exit code {process.returncode}")
    seconds = round(time.monotonic() - started, 1)
    return {"seconds": seconds, **{f"peak_{kind}_mb": size // MB for kind, size in sorted(peaks.items())}}


def memory(driver: int) -> Iterator[tuple[str, int]]:
    """(kind, resident bytes) of every process of the run: the driver, Spark's Java, a task's Python."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (parent := parent_of(int(entry))) is not None:
            parents.setdefault(parent, []).append(int(entry))
    yield "driver", resident(driver)
    todo = list(parents.get(driver, []))
    while todo:
        process = todo.pop()
        todo += parents.get(process, [])
        yield ("java" if name_of(process) == "java" else "task"), resident(process)


def parent_of(process: int) -> int | None:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def name_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=arguments.dir) as here, versitygw(Path(here) / "server") as settings:
        source = Path(here) / "source"
        size = write_logs(source, arguments)
        url = f"s3://{BUCKET}/source"
        upload(source, url, settings)
        local = measured(str(source), str(Path(here) / "local"), {})
        remote = measured(url, f"s3://{BUCKET}/timed", settings)
        reads, plan = LogReads(), planned(source)
        with faulty_s3(settings, reads) as proxy:
            measured(url, f"s3://{BUCKET}/counted", proxy.settings)
    return {
        "partitions": arguments.small + 1,
        "log_bytes": size,
        "local": local,
        "object_storage": remote,
        "object_storage_to_local": round(remote["seconds"] / local["seconds"], 2),
        **counted(proxy.counts, reads.count, size, plan),
    }


class LogReads:
    """Counts requests for bytes of logs; lets everything pass."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, request: Request) -> Fault | None:
        self.count += request.method == "GET" and request.path.endswith(".log")
        return None


def planned(root: Path) -> dict[str, int]:
    """Each segment is read three times, window by window: its headers, its keys, and the records that are left."""
    sizes = [path.stat().st_size for path in root.rglob("*.log")]
    return {"requests": PASSES * sum(-(-size // WINDOW_BYTES) for size in sizes), "bytes": PASSES * sum(sizes)}


def counted(counts: Counts, log_reads: int, size: int, plan: Mapping[str, int]) -> dict[str, object]:
    return {
        "requests": dict(sorted(counts.requests.items())),
        "log_reads": log_reads,
        "log_reads_to_plan": round(log_reads / plan["requests"], 3),
        "bytes_read_per_byte_of_log": round(counts.bytes_down / size, 3),
        "bytes_read_to_plan": round(counts.bytes_down / plan["bytes"], 3),
        "bytes_written_per_byte_of_log": round(counts.bytes_up / size, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=1000, help="small partitions (default %(default)s)")
    parser.add_argument("--small-mb", type=int, default=1, help="of each (default %(default)s)")
    parser.add_argument("--large-mb", type=int, default=4000, help="of the large partition (default %(default)s)")
    parser.add_argument(
        "--dir", help="where logs and objects go: four times the logs' size (default: the temporary one)"
    )
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("--task", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        run(json.load(sys.stdin))
        return 0
    result = measure(arguments)
    print(
        json.dumps(result, indent=2)
        if arguments.output == "json"
        else "\n".join(f"{k:28} {v}" for k, v in result.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
