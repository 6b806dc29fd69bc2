"""How fast are replicas compared? Three replicas, one of them compacted, on one core: against `inspect` and reading the files.

    python -m benchmarks.audit --megabytes 1000
    python -m benchmarks.audit --keys 20000000 --groups memory      # peak memory with that many keys on each of three replicas

MB/s are of all three replicas together, processor seconds of this process. Peak memory is of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from headstone.log.directory import find_partitions
from headstone.pipeline.auditing import audit, replicas_of
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample

NOW_MS = 1_800_000_000_000
RECORD_BYTES = 230
READ_BYTES = 1 << 20


def replicas(root: Path, settings: SampleSettings) -> list[Path]:
    """The same log three times; the second has been cleaned."""
    roots = [root / f"replica-{number}" for number in (1, 2, 3)]
    write_sample(roots[0], settings)
    for replica in roots[1:]:
        shutil.copytree(roots[0], replica)
    request = CompactionRequest(
        paths=(str(roots[1]),), out=None, policy=kafka_rules(Policy(now_ms=NOW_MS)), progress=False
    )
    compact(request, InProcess(1), lambda text: None)
    return roots


def measured(run: Callable[[], Any], times: int) -> tuple[float, float]:
    """(seconds, processor seconds), the least of each."""
    times_taken = []
    for _ in range(times):
        wall, processor = time.monotonic(), time.process_time()
        run()
        times_taken.append((time.monotonic() - wall, time.process_time() - processor))
    return min(wall for wall, _ in times_taken), min(processor for _, processor in times_taken)


def read_files(roots: list[Path]) -> None:
    for path in (path for root in roots for path in root.rglob("*.log")):
        with open(path, "rb", buffering=0) as file:
            while file.read(READ_BYTES):
                pass


def audited(roots: list[Path]) -> None:
    groups = replicas_of([(root.name, find_partitions([str(root)])) for root in roots])
    for partition in audit(groups, InProcess(1)):
        assert not partition.problems
        assert not any(result.compared.differences or result.frozen for result in partition.results)


def inspected(roots: list[Path]) -> None:
    for root in roots:
        inspect(find_partitions([str(root)]), Policy(now_ms=NOW_MS), InProcess(1), None)


def speed(root: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for share in (4, 2, 1):
        records = arguments.megabytes * 1_000_000 // RECORD_BYTES // share
        print(f"writing three replicas of {records:,} records", file=sys.stderr)
        place = root / str(share)
        roots = replicas(
            place, SampleSettings(records=records, keys=records // 2, segment_bytes=100 << 20, transactions=0.1)
        )
        size = sum(path.stat().st_size for path in place.rglob("*.log"))
        audited(roots)
        reading, inspecting, auditing = (
            measured(partial(job, roots), arguments.runs) for job in (read_files, inspected, audited)
        )
        rows.append({
            "group": "speed", "bytes": size, "audit_mb_per_s": round(size / 1e6 / auditing[0], 1),
            "audit_ns_per_byte": round(auditing[1] * 1e9 / size, 2),
            "to_inspect_by_processor_time": round(inspecting[1] / auditing[1], 3),
            "to_reading": round(reading[0] / auditing[0], 4),
        })  # fmt: skip
        shutil.rmtree(place)
    return rows


def memory(root: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    print(f"writing three replicas of {arguments.keys:,} keys", file=sys.stderr)
    settings = SampleSettings(
        records=arguments.keys, keys=0, value_bytes_min=8, value_bytes_max=16, headers=0.0, segment_bytes=500 << 20
    )
    roots = replicas(root, settings)
    command = [
        sys.executable,
        "-m",
        "headstone.cli.main",
        "audit",
        *map(str, roots),
        "--engine",
        "process",
        "--output",
        "json",
    ]
    started = time.monotonic()
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return [{
        "group": "memory", "keys": answer["partitions"][0]["keys"], "verdict": answer["verdict"],
        "seconds": round(time.monotonic() - started, 1), "peak_mib": round(peak),
    }]  # fmt: skip


GROUPS = {"speed": speed, "memory": memory}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=tuple(GROUPS), default=["speed"])
    parser.add_argument("--megabytes", type=int, default=1000, help="of each replica")
    parser.add_argument("--keys", type=int, default=20_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    rows = []
    for group in arguments.groups:
        with tempfile.TemporaryDirectory(prefix="headstone-") as root:
            rows += GROUPS[group](Path(root), arguments)
    if arguments.output == "json":
        print(json.dumps(rows, indent=2))
    for row in rows if arguments.output == "text" else ():
        print(
            "  ".join(
                f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in row.items()
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
