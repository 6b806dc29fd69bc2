"""Many keys in one pass, compared with a map of bounded size, pass after pass until nothing is dirty: the group `passes` of
lake.py.

Runs each way in its own process, to measure its peak memory.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.lake_costs import NOW_MS, Row, compacted, costed, new_lake, tell, warm_up
from benchmarks.lake_logs import MB, log_bytes, write_log
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.job_plan import map_keys_max
from headstone.lake.lake import open_lake
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.log import codecs

SMALL_VALUE_BYTES = (8, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to compact until nothing is dirty. `peak_bytes` is the resident memory of a process that did nothing else."""

    passes: int
    seconds: float
    processor_seconds: float
    bytes_read: int
    bytes_written: int
    requests: int
    peak_bytes: int
    idle_bytes: int
    """Resident before the first pass."""
    records_after: int


def passes(root: Path, arguments: argparse.Namespace) -> list[Row]:
    """Each key is written twice, at unrelated places."""
    tell(f"passes: writing {2 * arguments.keys:,} records of {arguments.keys:,} keys")
    drawn = np.random.default_rng(3).permutation(np.repeat(np.arange(arguments.keys, dtype=np.int32), 2))
    log = write_log(root / "log", drawn, SMALL_VALUE_BYTES, codecs.NONE)
    del drawn
    size = log_bytes(log)
    ways: dict[str, Way] = {}
    for name, map_bytes in (("any number of keys", None), ("bounded map", arguments.map_bytes)):
        with new_lake(root, arguments.objects) as (lake, metastore_url):
            tell(f"passes: {name}: ingesting {size / MB:,.0f} MB")
            ingest(lake, [log], clock=lambda: NOW_MS, settings=LogIngestSettings(extent_bytes=arguments.extent_bytes))
            ways[name] = alone(metastore_url, arguments, map_bytes)
    whole, bounded = ways.values()
    assert whole.records_after == bounded.records_after == arguments.keys
    shared: Row = {"keys": arguments.keys, "records": 2 * arguments.keys, "log_bytes": size}
    rows = [{"way": name, **shared, **in_short(way, size)} for name, way in ways.items()]
    rows[1] |= {
        "map_bytes": arguments.map_bytes, "passes_by_keys": math.ceil(arguments.keys / map_keys_max(arguments.map_bytes)),
        "bytes_read_ratio": round(bounded.bytes_read / whole.bytes_read, 2),
        "bytes_written_ratio": round(bounded.bytes_written / whole.bytes_written, 2),
        "processor_seconds_ratio": round(bounded.processor_seconds / whole.processor_seconds, 2),
        "peak_mb_ratio": round(bounded.peak_bytes / whole.peak_bytes, 2),
    }  # fmt: skip
    return rows


def in_short(way: Way, size: int) -> Row:
    return {
        "passes": way.passes, "seconds": round(way.seconds, 1), "processor_seconds": round(way.processor_seconds, 1),
        "bytes_read": way.bytes_read, "bytes_read_to_log": round(way.bytes_read / size, 2),
        "bytes_written": way.bytes_written, "bytes_written_to_log": round(way.bytes_written / size, 2),
        "requests": way.requests, "peak_mb": way.peak_bytes >> 20, "idle_mb": way.idle_bytes >> 20,
    }  # fmt: skip


def alone(metastore_url: str, arguments: argparse.Namespace, map_bytes: int | None) -> Way:
    """In its own process: the peak of a process's memory never falls again."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(until_clean, metastore_url, arguments, map_bytes).result()


def until_clean(metastore_url: str, arguments: argparse.Namespace, map_bytes: int | None) -> Way:
    warm_up(arguments)
    lake, idle = open_lake(metastore_url), memory_bytes("VmRSS")
    costs, done = [], None
    while True:
        now, cost = costed(lake, lambda: compacted(lake, arguments, map_bytes))
        if not now.committed:
            break
        done = now
        costs.append(cost)
        tell(f"  pass {len(costs)}: {cost.seconds:.1f} s, {now.extents_read} of {now.extents} extents read")
        collect(lake, garbage(lake, now_ms=NOW_MS + 1, grace_ms=0))  # else the disk fills with what passes replace
    lake.close()
    assert done is not None
    return Way(
        passes=len(costs), seconds=sum(c.seconds for c in costs), processor_seconds=sum(c.processor_seconds for c in costs),
        bytes_read=sum(c.traffic.bytes_read for c in costs), bytes_written=sum(c.traffic.bytes_written for c in costs),
        requests=sum(c.requests for c in costs), peak_bytes=memory_bytes("VmHWM"), idle_bytes=idle,
        records_after=done.records_after,
    )  # fmt: skip


def memory_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
