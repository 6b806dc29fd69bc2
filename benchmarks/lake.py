"""What compaction costs in the lake, as ratios to what is measured in the same run.

    python -m benchmarks.lake --output json
    python -m benchmarks.lake --groups first second --megabytes 1000 --codec zstd
    python -m benchmarks.lake --groups passes --keys 2000000 --map-bytes 13421772 --extent-bytes 1677721

first    ingest, then a compaction that removes half: against reading the files, and against `compact` on a copy of them
second   another compaction after 1 % more: keys that live in a few extents, and keys from everywhere; of a log that was written
         anew by the first one, and of one whose extents are on their way to being written again, as the first one left them
growth   a quarter, a half and the whole of the log: processor time and requests per byte, 1.0 is linear
passes   many keys in one pass, against a map of bounded size, pass after pass until nothing is dirty

Keys are 8 bytes. Shares are of the log as it was before that compaction. Counts and processor time hardly depend on what else
the machine does; seconds do, and are the best of --runs. Objects are local files, unless --objects says otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.lake_costs import NOW_MS, Cost, Row, best, compacted, costed, new_lake, rate, tell, warm_up
from benchmarks.lake_logs import GB, PARTITION, VALUE_BYTES, Ints, evenly, log_bytes, write_log
from benchmarks.lake_passes import passes
from headstone.lake.defaults import DEAD_SHARE_MAX
from headstone.lake.format.keyindex import section_bytes
from headstone.lake.jobs.compaction import Compacted
from headstone.lake.lake import Lake
from headstone.lake.transfer.ingest import EXTENT_BYTES, LogIngestSettings, ingest
from headstone.log import codecs
from headstone.log.directory import LOG, PartitionDir
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules

MORE, HOT = 0.01, 0.02
"""Shares for `second`: records that are new, and the extents that hot keys live in."""
SECOND_EXTENT_BYTES = 2 << 20
"""Small, so that 2 % of the extents of some hundred megabytes are more than one."""
FIRST_DEAD_SHARE_MAX = {"written anew": 0.0, "marked": DEAD_SHARE_MAX}
"""For the compaction before the one that `second` measures."""
GROWTH = (4, 2, 1)
READ_BYTES = 2 << 20
MAP_BYTES = 128 << 20
"""The default map size of Redpanda and of Kafka's cleaner."""


def first(root: Path, arguments: argparse.Namespace) -> list[Row]:
    tell(f"first: writing {arguments.megabytes} MB")
    log = write_log(root / "log", evenly(arguments.megabytes), VALUE_BYTES, codecs.NAMES.index(arguments.codec))
    size = log_bytes(log)
    reading = read_files(log, arguments)
    tell("first: the lake")
    done, fill, cost = filled_and_compacted(root, log, arguments)
    tell("first: plain files")
    left, plain = compacted_files(root, log, arguments)
    assert left == done.records_after, f"{left} records are left in the files, {done.records_after} in the lake"
    return [
        {
            "log_bytes": size, "codec": arguments.codec, "extents": done.extents,
            "records_superseded": round(1 - done.records_after / done.records_before, 3),
            "bytes_written_per_byte_removed": round(done.bytes_written / (done.bytes_before - done.bytes_after), 3),
            "bytes_read_to_log": round(cost.traffic.bytes_read / size, 3),
            "bytes_written_to_log": round(cost.traffic.bytes_written / size, 3),
            "reads_per_gb": round(cost.traffic.reads * GB / size, 1),
            "writes_per_gb": round(cost.traffic.writes * GB / size, 1),
            "commits": done.commits,
            "compaction_mb_per_s": rate(size, cost), "plain_files_mb_per_s": rate(size, plain),
            "compaction_to_plain_files": round(plain.seconds / cost.seconds, 3),
            "compaction_to_plain_files_by_processor_time": round(plain.processor_seconds / cost.processor_seconds, 3),
            "ingest_mb_per_s": rate(size, fill), "reading_mb_per_s": rate(size, reading),
            "ingest_to_reading": round(reading.seconds / fill.seconds, 4),
            "ingest_to_compaction": round(cost.seconds / fill.seconds, 3),
            "ingest_requests_per_gb": round(fill.requests * GB / size, 1),
            "ingest_bytes_written_to_log": round(fill.traffic.bytes_written / size, 3),
        }
    ]  # fmt: skip


def filled_and_compacted(root: Path, log: PartitionDir, arguments: argparse.Namespace) -> tuple[Compacted, Cost, Cost]:
    """(what was done, cost of ingest, cost of compaction) for a lake of its own, best of the runs."""
    fills, costs = [], []
    for _ in range(arguments.runs):
        with new_lake(root, arguments.objects) as (lake, _):
            _, fill = costed(
                lake,
                partial(
                    ingest,
                    lake,
                    [log],
                    clock=lambda: NOW_MS,
                    settings=LogIngestSettings(extent_bytes=arguments.extent_bytes),
                ),
            )
            done, cost = costed(lake, partial(compacted, lake, arguments))
        fills.append(fill)
        costs.append(cost)
    return done, best(fills), best(costs)


def compacted_files(root: Path, log: PartitionDir, arguments: argparse.Namespace) -> tuple[int, Cost]:
    """(records left, cost) of the pipeline on copies of the log directory, under the policy of the lake's jobs."""
    policy = replace(kafka_rules(Policy(now_ms=NOW_MS, segment_bytes=1)), tombstones_below=0)
    costs = []
    for _ in range(arguments.runs):
        copy = root / "copy" / log.name
        shutil.copytree(log.path, copy)
        request = CompactionRequest(paths=(str(copy),), out=None, policy=policy, progress=False)
        result, cost = costed(None, partial(compact, request, InProcess(arguments.threads), lambda text: None))
        costs.append(cost)
        shutil.rmtree(copy.parent)
    return result.partitions[0].records_after, best(costs)


def read_files(log: PartitionDir, arguments: argparse.Namespace) -> Cost:
    def read() -> None:
        for path in log.path.glob("*" + LOG):
            with open(path, "rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass

    return best([costed(None, read)[1] for _ in range(arguments.runs)])


def second(root: Path, arguments: argparse.Namespace) -> list[Row]:
    tell(f"second: writing {arguments.megabytes} MB")
    drawn, codec = evenly(arguments.megabytes), codecs.NAMES.index(arguments.codec)
    log = write_log(root / "log", drawn, VALUE_BYTES, codec)
    rows = []
    for case, before in itertools.product(("hot", "uniform"), ("written anew", "marked")):
        tell(f"second: {case} keys, {before}")
        with new_lake(root, arguments.objects) as (lake, _):
            ingest(lake, [log], clock=lambda: NOW_MS, settings=LogIngestSettings(extent_bytes=SECOND_EXTENT_BYTES))
            records = compacted(lake, arguments, dead_share_max=FIRST_DEAD_SHARE_MAX[before]).records_after
            keys = recent_keys(lake, drawn) if case == "hot" else np.unique(drawn)
            chosen = np.random.default_rng(2).choice(keys, size=int(records * MORE))
            more = write_log(root / f"{case} {before}", chosen, VALUE_BYTES, codec, start=drawn.size)
            ingest(lake, [more], clock=lambda: NOW_MS, settings=LogIngestSettings(extent_bytes=SECOND_EXTENT_BYTES))
            lists = sum(section_bytes(extent.keys) for extent in lake.metastore.partition(PARTITION).extents)
            done, cost = costed(lake, partial(compacted, lake, arguments))
            row = shares(done, cost, new_bytes=log_bytes(more), list_bytes=lists)
            rows.append({"keys": case, "first_compaction": before, **row})
    return rows


def recent_keys(lake: Lake, drawn: Ints) -> Ints:
    """Keys whose newest record is in the last extents. After a compaction they live nowhere else."""
    extents = lake.metastore.partition(PARTITION).extents
    start = extents[-max(1, round(len(extents) * HOT))].span.start
    return np.unique(drawn[start:])


def shares(done: Compacted, cost: Cost, *, new_bytes: int, list_bytes: int) -> Row:
    """`bytes_read` includes reading the lists of keys: 8 of 20 bytes per record for those without an affected key."""
    size, removed = done.bytes_before, done.bytes_before - done.bytes_after
    return {
        "log_bytes": size, "new_bytes": round(new_bytes / size, 4), "extents": done.extents,
        "extents_read": round(done.extents_read / done.extents, 4),
        "extents_rewritten": round(done.extents_rewritten / done.extents, 4),
        "extents_marked": round(done.extents_marked / done.extents, 4),
        "bytes_read": round(cost.traffic.bytes_read / size, 4), "lists_of_keys": round(list_bytes / size, 4),
        "bytes_written": round(cost.traffic.bytes_written / size, 4),
        "records_removed": round(1 - done.records_after / done.records_before, 4),
        "records_marked": round(done.records_dead / done.records_before, 4), "bytes_removed": round(removed / size, 4),
        "requests": cost.requests, "seconds": round(cost.seconds, 3),
        "processor_ns_per_log_byte": round(cost.processor_seconds * 1e9 / size, 2),
    }  # fmt: skip


def growth(root: Path, arguments: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for divisor in GROWTH:
        megabytes = arguments.megabytes / divisor
        tell(f"growth: {megabytes:g} MB")
        place = root / f"growth-{divisor}"
        log = write_log(place, evenly(megabytes), VALUE_BYTES, codecs.NAMES.index(arguments.codec))
        size = log_bytes(log)
        done, fill, cost = filled_and_compacted(root, log, arguments)
        shutil.rmtree(place)
        per_byte = {
            "compaction_ns_per_byte": cost.processor_seconds * 1e9 / size,
            "ingest_ns_per_byte": fill.processor_seconds * 1e9 / size,
            "requests_per_gb": cost.requests * GB / size,
        }
        row: Row = {"log_bytes": size, "extents": done.extents, "commits": done.commits}
        for name, value in per_byte.items():
            row[name] = round(value, 2)
            row[name + "_ratio"] = round(value / float(str(rows[0][name])), 3) if rows else 1.0
        rows.append(row)
    return rows


GROUPS: Mapping[str, Callable[[Path, argparse.Namespace], list[Row]]] = {
    "first": first,
    "second": second,
    "growth": growth,
    "passes": passes,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--megabytes", type=int, default=300, help="of log, before compression; not of passes")
    parser.add_argument("--codec", choices=codecs.NAMES, default="none", help="not of passes")
    parser.add_argument("--extent-bytes", type=int, default=EXTENT_BYTES, help="not of second")
    parser.add_argument("--keys", type=int, default=20_000_000, help="of passes; each is written twice")
    parser.add_argument("--map-bytes", type=int, default=MAP_BYTES, help="of the bounded map")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="best of; second and passes run once")
    parser.add_argument(
        "--objects",
        metavar="URL",
        help="such as s3://BUCKET/PREFIX (default: local files); passes needs one that processes share",
    )
    parser.add_argument("--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    warm_up(arguments)
    rows: list[Row] = []
    for group in arguments.groups:
        with tempfile.TemporaryDirectory(prefix="headstone-bench-") as root:
            rows += [{"group": group, **row} for row in GROUPS[group](Path(root), arguments)]
    if arguments.output == "json":
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        for name, value in row.items():
            print(
                f"{'' if name == 'group' else '  '}{name:44} {value if isinstance(value, str) else format(value, ',')}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
