"""`headstone inspect`: exact facts of partitions; every checksum and record is checked.

Exit 0 read whole; 2 wrong usage or a log that cannot be read whole; 3 could not finish.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headstone.cli.options import add_spark_arguments, cores, offset, spark_conf, tell
from headstone.log.directory import PartitionDir, find_partitions
from headstone.retention.policy import Policy
from headstone.spark.inprocess import InProcess
from headstone.spark.inspection import PartitionFacts, inspect
from headstone.spark.progress import ProgressLine
from headstone.spark.session import StartingSession
from headstone.spark.stages import OnSpark

SPARK_FROM_BYTES = 4 << 30
"""Below this a few threads in this process are done before Spark has started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a partition directory or a log directory")
    parser.add_argument("--now-ms", type=offset, default=0, help="the clock for lags, in ms since 1970")
    parser.add_argument("--min-compaction-lag-ms", type=offset, default=0)
    add_spark_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    directories = find_partitions(arguments.paths)
    policy = Policy(now_ms=arguments.now_ms, min_compaction_lag_ms=arguments.min_compaction_lag_ms)
    facts = _facts(arguments, directories, policy)
    if arguments.output == "json":
        print(json.dumps({"partitions": [fact.as_json() for fact in facts]}, indent=2))
    else:
        for fact in facts:
            print(as_text(fact.as_json()))
    return 0


def _facts(arguments: argparse.Namespace, directories: Sequence[PartitionDir], policy: Policy) -> list[PartitionFacts]:
    size = sum(path.stat().st_size for directory in directories for path in directory.path.glob("*.log"))
    with tempfile.TemporaryDirectory(prefix="headstone-") as progress:
        line = ProgressLine(Path(progress), bytes_total=size, enabled=True)
        if size < SPARK_FROM_BYTES and arguments.master is None and arguments.spark_remote is None:
            with line:
                return inspect(directories, policy, InProcess(cores()), progress)
        tell(f"{size / 1e9:.1f} GB: reading on Spark")
        session = StartingSession(
            app_name="headstone inspect",
            master=arguments.master,
            remote=arguments.spark_remote,
            conf=spark_conf(arguments),
        )
        with session, line:
            session.begin()
            shared = progress if arguments.master is None and arguments.spark_remote is None else None
            return inspect(directories, policy, OnSpark(session.get, parallelism=cores()), shared)


def as_text(fact: dict[str, Any]) -> str:
    transactions = ", ".join(
        f"producer {t['producer_id']} since offset {t['first_offset']}" for t in fact["open_transaction_list"]
    )
    horizons = fact["horizons"]
    stamped = (
        f"{horizons['batches']} batches, {horizons['first_ms']} to {horizons['last_ms']}"
        if horizons["batches"]
        else "none"
    )
    lines = [
        f"{fact['partition']}  ({fact['directory']})",
        f"  offsets     [{fact['log_start']}, {fact['log_end']}), high watermark {fact['high_watermark']}, LSO {fact['lso']}",
        f"  size        {fact['bytes'] / 1e6:,.1f} MB, {fact['segments']} segments, {fact['batches']:,} batches "
        f"({fact['header_only_batches']} header-only), codecs {', '.join(fact['codecs']) or 'none'}",
        f"  records     {fact['records']:,}: {fact['tombstones']:,} tombstones, {fact['markers']:,} markers, "
        f"{fact['aborted_records']:,} aborted, {fact['open_records']:,} undecided, {fact['keyless_records']:,} keyless",
        f"  live keys   {fact['keys']:,}",
        f"  cleaner     first dirty offset {fact['first_dirty']}, cleanable to {fact['cleanable_to']}, "
        f"dirty ratio {fact['dirty_ratio']:.3f}",
        f"  horizons    {stamped}",
        f"  open txns   {transactions or 'none'}",
    ]
    return "\n".join(lines + [f"  note        {note}" for note in fact["notes"]])
