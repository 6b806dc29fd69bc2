"""Does cost grow in line with the data? Warm jobs over sizes, segments, partitions and transactions, as ratios.

    python -m benchmarks.scaling --output json
    python -m benchmarks.scaling --groups many-partitions many-segments

Processor time of all processors together, Spark's own included, best of the runs: nanoseconds per byte of log, or
microseconds per partition or segment where there are many small ones; and the ratio to the first row of the group: 1.0
everywhere would be perfectly linear, at most 1.3 is the aim. Processor time, because what else the machine does
lengthens the seconds, which are there for comparison. The many small ones are compacted in place, with all the renames
and checkpoints that this takes, on Spark and in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.compact import NOW_MS, job, sample, scratch
from headstone.log import checkpoints
from headstone.pipeline.compaction import CompactionRequest, Engine, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.spark.engine import OnSpark
from headstone.spark.session import StartingSession

MB = 1_000_000
GROUPS = {
    "size": [{"bytes": 250 * MB}, {"bytes": 1_000 * MB}, {"bytes": 4_000 * MB}],
    "segments": [{"segments": 1}, {"segments": 10}, {"segments": 40}],
    "transactions": [{"transactions": 0.0}, {"transactions": 0.5}, {"transactions": 1.0}],
}
MANY = {
    "many-partitions": [100, 1_000, 10_000],
    "many-segments": [100, 5_000, 50_000],
    "many-segments-kept": [100, 5_000, 50_000],
}
"""Segments that become one, and segments each of which stays separate, of a topic with transactions."""
RATIO_AIM = 1.3
PLAIN = {"bytes": 1_000 * MB, "codec": "none", "partitions": 4, "segments": 4, "transactions": 0.0, "target": None}


def processor_seconds() -> float:
    """Of this process and its descendants, including those that have ended and were waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    pids = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return sum(ticks[pid] for pid in pids) / os.sysconf("SC_CLK_TCK")


def best(run: Callable[[], float], target: Path, times: int) -> tuple[float, float]:
    """(seconds, processor seconds), the least of each over all runs; deleting the previous run's result is not timed."""
    rows = []
    for _ in range(times):
        shutil.rmtree(target, ignore_errors=True)
        before = processor_seconds()
        rows.append((run(), processor_seconds() - before))
    return min(seconds for seconds, _ in rows), min(used for _, used in rows)


def measured(setting: dict[str, object], engine: OnSpark, runs: int) -> list[dict[str, object]]:
    """One row per path, over the same data."""
    arguments = argparse.Namespace(**{**PLAIN, **setting})
    rows = []
    with scratch(arguments) as (source, target):
        sample(source, arguments)
        size = sum(file.stat().st_size for file in source.rglob("*.log"))
        for path in ("whole", "shuffle"):
            run = job(source, target, engine, path)
            run()
            seconds, used = best(run, target, runs)
            rows.append({
                **setting, "path": path, "log_bytes": size, "seconds": round(seconds, 3),
                "processor_seconds": round(used, 2),
            })  # fmt: skip
    return rows


def with_ratios(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Adds ns_per_byte to each row, and its ratio to that of the first row of the same path."""
    first: dict[object, float] = {}
    for row in rows:
        cost = float(str(row["processor_seconds"])) * 1e9 / int(str(row["log_bytes"]))
        row["ns_per_byte"] = round(cost, 3)
        row["ratio"] = round(cost / first.setdefault(row["path"], cost), 3)
    return rows


def write_partitions(root: Path, count: int) -> None:
    """Partitions of three small segments each: the first is written, the others are links to its files."""
    write_sample(root, SampleSettings(records=30, keys=12, segment_bytes=3_000, batch_bytes=500, topic="many"))
    first = root / "many-0"
    for number in range(1, count):
        shutil.copytree(first, root / f"many-{number}", copy_function=os.link)
    end = checkpoints.read_offsets(root / checkpoints.HIGH_WATERMARK)["many", 0]
    for name in (checkpoints.HIGH_WATERMARK, checkpoints.RECOVERY_POINT):
        checkpoints.write_offsets(root / name, {("many", number): end for number in range(count)})


def write_segments(root: Path, count: int, transactions: float) -> None:
    """One partition whose segments are a record or two each."""
    records = count * 11 // 10
    write_sample(
        root,
        SampleSettings(
            records=records,
            keys=count // 2,
            segment_bytes=400,
            batch_bytes=400,
            topic="many",
            transactions=transactions,
        ),
    )


def measured_many(group: str, count: int, engine: Engine, runs: int) -> dict[str, object]:
    """One compaction in place of many small partitions, or of one with many small segments."""
    seconds, used, items = [], [], 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch_dir:
            root = Path(scratch_dir) / "logs"
            kept = group == "many-segments-kept"
            if group == "many-partitions":
                write_partitions(root, count)
            else:
                write_segments(root, count, 0.5 if kept else 0.0)
            items = sum(1 for _ in root.glob("many-*" if group == "many-partitions" else "many-0/*.log"))
            request = CompactionRequest(
                paths=(str(root),), out=None, progress=False,
                policy=kafka_rules(Policy(now_ms=NOW_MS, segment_bytes=400 if kept else 1 << 30)),
            )  # fmt: skip
            clock = time.process_time if isinstance(engine, InProcess) else processor_seconds
            before, started = clock(), time.monotonic()
            result = compact(request, engine, lambda text: None)
            seconds.append(time.monotonic() - started)
            used.append(clock() - before)
            assert not result.failed
    return {
        "items": items, "engine": type(engine).__name__, "seconds": round(min(seconds), 2),
        "processor_seconds": round(min(used), 2), "us_per_item": round(min(used) * 1e6 / items, 1),
    }  # fmt: skip


def many(group: str, engines: list[Engine], runs: int, counts: list[int]) -> list[dict[str, object]]:
    rows = []
    for engine in engines:
        measured_many(group, counts[0], engine, 1)
        first = 0.0
        for count in counts:
            row = measured_many(group, count, engine, runs if count < 10_000 else 1)
            cost = float(str(row["us_per_item"]))
            first = first or cost
            ratio = round(cost / first, 2)
            rows.append({"group": group, **row, "ratio": ratio, "verdict": "ok" if ratio <= RATIO_AIM else "TOO MUCH"})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=sorted({**GROUPS, **MANY}), default=sorted({**GROUPS, **MANY}))
    parser.add_argument("--runs", type=int, default=3, help="best of")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    with StartingSession(app_name="scaling", master="local[2]", remote=None, conf={}) as session:
        session.begin()
        engine = OnSpark(session.get, parallelism=2)
        for group in arguments.groups:
            if group in MANY:
                rows += many(group, [InProcess(2), engine], arguments.runs, MANY[group])
                continue
            results = [row for setting in GROUPS[group] for row in measured(setting, engine, arguments.runs)]
            rows += [{"group": group, **row} for row in with_ratios(results)]
    if arguments.output == "json":
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
