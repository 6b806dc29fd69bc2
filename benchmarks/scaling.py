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


def measured(setting: dict[str, object], engine: OnSpark, path: str) -> dict[str, object]:
    arguments = argparse.Namespace(**{**PLAIN, **setting})
    with scratch(arguments) as (source, target):
        sample(source, arguments)
        size = sum(file.stat().st_size for file in source.rglob("*.log"))
        run = job(source, target, engine, path)
        run()
        seconds = best(run, 3)
    return {
        **setting,
        "path": path,
        "log_bytes": size,
        "seconds": round(seconds, 3),
        "ns_per_byte": seconds * 1e9 / size,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=sorted(GROUPS), default=sorted(GROUPS))
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rows = []
    with StartingSession(app_name="scaling", master="local[2]", remote=None, conf={}) as session:
        session.begin()
        engine = OnSpark(session.get, parallelism=2)
        for group in arguments.groups:
            for path in ("whole", "shuffle"):
                results = [measured(setting, engine, path) for setting in GROUPS[group]]
                first = results[0]["ns_per_byte"]
                rows += [{"group": group, **r, "ratio": round(r["ns_per_byte"] / first, 3)} for r in results]  # type: ignore[operator]
    if arguments.output == "json":
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
