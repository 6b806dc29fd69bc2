"""Speed of `headstone compact` as ratios measured in one run: whole job, warm job, kernels alone, `cp`, bare Spark.

    python -m benchmarks.compact --bytes 1000000000 --codec none --output json

Records of 100 to 400 bytes, half of them superseded, read from the page cache. Results go to memory (/dev/shm) where
there is room, so that the disk is not what is measured; --target DIR puts them elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headstone.log import codecs
from headstone.pipeline.compaction import CompactionRequest, Engine, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.spark.engine import OnSpark
from headstone.spark.session import StartingSession

RECORD_BYTES = 214
NOW_MS = 1_800_000_000_000
BARE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
print(spark.range(1).mapInArrow(lambda batches: batches, "id long").collect())
spark.stop()
"""


def sample(directory: Path, arguments: argparse.Namespace) -> Path:
    records = arguments.bytes // RECORD_BYTES // arguments.partitions
    settings = SampleSettings(
        partitions=arguments.partitions, records=records, keys=int(records * 0.63), codec=codecs.NAMES.index(arguments.codec),
        segment_bytes=max(1 << 20, arguments.bytes // arguments.partitions // arguments.segments + 1),
        transactions=arguments.transactions, aborts=0.1,
    )  # fmt: skip
    write_sample(directory, settings)
    return directory


def best(run: Callable[[], float], times: int) -> float:
    return min(run() for _ in range(times))


def job(source: Path, target: Path, engine: Engine, path: str) -> Callable[[], float]:
    def run() -> float:
        shutil.rmtree(target, ignore_errors=True)
        started = time.monotonic()
        request = CompactionRequest(
            paths=(str(source),), out=target, policy=kafka_rules(Policy(now_ms=NOW_MS)), path=path, progress=False
        )
        compact(request, engine, lambda text: None)
        return time.monotonic() - started

    return run


def copied(source: Path, target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    started = time.monotonic()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    return time.monotonic() - started


def process(command: list[str]) -> Callable[[], float]:
    def run() -> float:
        started = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.monotonic() - started

    return run


def cold(source: Path, target: Path) -> Callable[[], float]:
    command = [
        sys.executable,
        "-m",
        "headstone.cli.main",
        "compact",
        str(source),
        "--out",
        str(target),
        "--rules",
        "kafka",
    ]
    run = process([*command, "--now-ms", str(NOW_MS)])

    def fresh() -> float:
        shutil.rmtree(target, ignore_errors=True)
        return run()

    return fresh


@contextmanager
def scratch(arguments: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """(source on disk, target)."""
    room = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    memory = "/dev/shm" if arguments.target is None and room > 2 * arguments.bytes else arguments.target
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory(dir=memory) as there:
        yield Path(here) / "source", Path(there) / "target"


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with scratch(arguments) as (source, target):
        sample(source, arguments)
        size = sum(path.stat().st_size for path in source.rglob("*.log"))
        seconds = {
            "cp": best(lambda: copied(source, target), arguments.runs),
            "kernel_1_thread": best(job(source, target, InProcess(1), "whole"), arguments.runs),
            "kernel_2_threads": best(job(source, target, InProcess(2), "whole"), arguments.runs),
        }
        with StartingSession(app_name="bench", master="local[2]", remote=None, conf={}) as session:
            session.begin()
            engine = OnSpark(session.get, parallelism=2)
            for path in ("whole", "shuffle"):
                run = job(source, target, engine, path)
                run()
                seconds[f"spark_{path}_warm"] = best(run, arguments.runs)
        if not arguments.no_cold:
            cold(source, target)()
            seconds["headstone_cold"] = best(cold(source, target), arguments.runs)
            seconds["bare_pyspark_cold"] = best(process([sys.executable, "-c", BARE]), arguments.runs)
    return summary(arguments, size, seconds)


def summary(arguments: argparse.Namespace, size: int, seconds: dict[str, float]) -> dict[str, object]:
    kernel = seconds["kernel_2_threads"]
    ratios = {
        "whole_path_to_2_thread_kernel": kernel / seconds["spark_whole_warm"],
        "shuffle_path_to_2_thread_kernel": kernel / seconds["spark_shuffle_warm"],
        "kernel_2_threads_to_cp": seconds["cp"] / kernel,
    }
    if "headstone_cold" in seconds:
        ratios["cold_start_to_bare_pyspark"] = seconds["headstone_cold"] / seconds["bare_pyspark_cold"]
    return {
        "bytes": size,
        "codec": arguments.codec,
        "partitions": arguments.partitions,
        "segments_per_partition": arguments.segments,
        "transactions": arguments.transactions,
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "mb_per_s": {name: round(size / 1e6 / value, 1) for name, value in seconds.items() if "bare" not in name},
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1_080_000_000)
    parser.add_argument("--codec", choices=codecs.NAMES, default="none")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--segments", type=int, default=4, help="a partition")
    parser.add_argument("--transactions", type=float, default=0.0, help="share of batches in transactions")
    parser.add_argument("--runs", type=int, default=3, help="best of")
    parser.add_argument("--target", help="directory for the results (default /dev/shm where it has room)")
    parser.add_argument("--no-cold", action="store_true", help="skip the whole-process runs")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    result = measure(arguments)
    if arguments.output == "json":
        print(json.dumps(result, indent=2))
        return 0
    print(
        f"{result['bytes']:,} bytes, {arguments.codec}, {arguments.partitions} partitions x {arguments.segments} segments"
    )
    for group in ("seconds", "mb_per_s", "ratios"):
        for name, value in result[group].items():  # type: ignore[attr-defined]
            print(f"  {group:9} {name:34} {value:>10,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
