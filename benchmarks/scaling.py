"""Does cost grow in line with the data? Warm Spark jobs over sizes, segment counts and with transactions, as ratios.

    python benchmarks/scaling.py --output json

Each figure is nanoseconds a byte relative to the first row of its group: 1.0 everywhere would be perfectly linear.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from compact import best, job, sample, scratch

from headstone.spark.session import StartingSession
from headstone.spark.stages import OnSpark

MB = 1_000_000
GROUPS = {
    "size": [{"bytes": 250 * MB}, {"bytes": 1_000 * MB}, {"bytes": 4_000 * MB}],
    "segments": [{"segments": 1}, {"segments": 10}, {"segments": 40}],
    "transactions": [{"transactions": 0.0}, {"transactions": 0.5}, {"transactions": 1.0}],
}
PLAIN = {"bytes": 1_000 * MB, "codec": "none", "partitions": 4, "segments": 4, "transactions": 0.0, "target": None}


def measured(setting: dict[str, object], engine: OnSpark) -> list[dict[str, object]]:
    """One row a path, over the same data."""
    arguments = argparse.Namespace(**{**PLAIN, **setting})
    rows = []
    with scratch(arguments) as (source, target):
        sample(source, arguments)
        size = sum(file.stat().st_size for file in source.rglob("*.log"))
        for path in ("whole", "shuffle"):
            run = job(source, target, engine, path)
            run()
            seconds = best(run, 3)
            rows.append({**setting, "path": path, "log_bytes": size, "seconds": round(seconds, 3)})
    return rows


def with_ratios(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """ns_per_byte of each row, and its ratio to that of the first row of the same path."""
    first: dict[object, float] = {}
    for row in rows:
        cost = float(str(row["seconds"])) * 1e9 / int(str(row["log_bytes"]))
        row["ns_per_byte"] = round(cost, 3)
        row["ratio"] = round(cost / first.setdefault(row["path"], cost), 3)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=sorted(GROUPS), default=sorted(GROUPS))
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    with StartingSession(app_name="scaling", master="local[2]", remote=None, conf={}) as session:
        session.begin()
        engine = OnSpark(session.get, parallelism=2)
        for group in arguments.groups:
            results = [row for setting in GROUPS[group] for row in measured(setting, engine)]
            rows += [{"group": group, **row} for row in with_ratios(results)]
    if arguments.output == "json":
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
