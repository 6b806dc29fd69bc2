"""Does cost grow in line with the data? Warm Spark jobs over sizes, segment counts and with transactions, as ratios.

    python benchmarks/scaling.py --output json

Nanoseconds of all processors together a byte of log, Spark's own included, best of the runs; and their ratio to the
first row of the group: 1.0 everywhere would be perfectly linear. Processor time, because what else the machine does
lengthens the seconds, which are there for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from compact import job, sample, scratch

from headstone.spark.session import StartingSession
from headstone.spark.stages import OnSpark

MB = 1_000_000
GROUPS = {
    "size": [{"bytes": 250 * MB}, {"bytes": 1_000 * MB}, {"bytes": 4_000 * MB}],
    "segments": [{"segments": 1}, {"segments": 10}, {"segments": 40}],
    "transactions": [{"transactions": 0.0}, {"transactions": 0.5}, {"transactions": 1.0}],
}
PLAIN = {"bytes": 1_000 * MB, "codec": "none", "partitions": 4, "segments": 4, "transactions": 0.0, "target": None}


def processor_seconds() -> float:
    """Of this process and its descendants, those that have ended and were waited for included."""
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
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def best(run: Callable[[], float], target: Path, times: int) -> tuple[float, float]:
    """(seconds, processor seconds), each the least of all runs; the last run's result goes outside of them."""
    rows = []
    for _ in range(times):
        shutil.rmtree(target, ignore_errors=True)
        before = processor_seconds()
        rows.append((run(), processor_seconds() - before))
    return min(seconds for seconds, _ in rows), min(used for _, used in rows)


def measured(setting: dict[str, object], engine: OnSpark, runs: int) -> list[dict[str, object]]:
    """One row a path, over the same data."""
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
    """ns_per_byte of each row, and its ratio to that of the first row of the same path."""
    first: dict[object, float] = {}
    for row in rows:
        cost = float(str(row["processor_seconds"])) * 1e9 / int(str(row["log_bytes"]))
        row["ns_per_byte"] = round(cost, 3)
        row["ratio"] = round(cost / first.setdefault(row["path"], cost), 3)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=sorted(GROUPS), default=sorted(GROUPS))
    parser.add_argument("--runs", type=int, default=3, help="best of")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    with StartingSession(app_name="scaling", master="local[2]", remote=None, conf={}) as session:
        session.begin()
        engine = OnSpark(session.get, parallelism=2)
        for group in arguments.groups:
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
