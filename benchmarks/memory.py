"""Peak memory of `headstone compact` (JVM and Python processes together) on one partition of many unique keys.

    python -m benchmarks.memory --keys 20000000
    python -m benchmarks.memory --keys 100000000 --split shuffle

Counts proportional set size over the process tree, so that pages which forked workers share count once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample

POLL_S = 0.2
NOW_MS = "1800000000000"


def children(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
    pids, todo = [], [root]
    while todo:
        pid = todo.pop()
        pids.append(pid)
        todo += parents.get(pid, [])
    return pids


def resident(pid: int) -> tuple[str, int]:
    """(java or python, proportional bytes)."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return "gone", 0
    kib = next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return ("java" if name == "java" else "python"), kib * 1024


def watched(command: list[str]) -> dict[str, float]:
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = {"java": 0, "python": 0, "together": 0}
    while process.poll() is None:
        now = {"java": 0, "python": 0, "gone": 0}
        for pid in children(process.pid):
            kind, size = resident(pid)
            now[kind] += size
        peak = {
            "java": max(peak["java"], now["java"]),
            "python": max(peak["python"], now["python"]),
            "together": max(peak["together"], now["java"] + now["python"]),
        }
        time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"headstone compact failed with exit code {process.returncode}")
    return {
        **{f"peak_{name}_gib": round(size / 2**30, 2) for name, size in peak.items()},
        "seconds": time.monotonic() - started,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--split", choices=("auto", "whole", "shuffle"), default="auto")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    settings = SampleSettings(
        records=arguments.keys, keys=0, value_bytes_min=16, value_bytes_max=24, batch_bytes=1 << 20, headers=0.0,
        segment_bytes=256 << 20, tombstones=0.01,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as here:
        source, target = Path(here) / "source", Path(here) / "target"
        write_sample(source, settings)
        size = sum(path.stat().st_size for path in source.rglob("*.log"))
        command = [sys.executable, "-m", "headstone.cli.main", "compact", str(source), "--out", str(target)]
        result = watched([*command, "--rules", "kafka", "--now-ms", NOW_MS, "--split", arguments.split])
    result = {"keys": arguments.keys, "bytes": size, "split": arguments.split, **result}
    print(json.dumps(result) if arguments.output == "json" else "\n".join(f"{k:22} {v}" for k, v in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
