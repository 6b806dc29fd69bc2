"""`headstone inspect`: exact facts of partitions; every checksum and record is checked.

Exit 0 read whole; 2 wrong usage or a log that cannot be read whole; 3 could not finish.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.options import add_spark_arguments, cores, duration_ms, moment_ms, spark_conf, tell
from headstone.errors import UsageError
from headstone.retention.policy import NO_LIMIT, Policy
from headstone.spark import source_options

if TYPE_CHECKING:
    from headstone.log.directory import PartitionDir
    from headstone.log.listing import BatchEntry
    from headstone.pipeline.inspection import PartitionFacts

SPARK_FROM_BYTES = 4 << 30
"""Below this a few threads in this process are done before Spark has started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a partition directory or a log directory")
    parser.add_argument("--batches", action="store_true", help="also list every batch, with each field of its header")
    parser.add_argument("--records", action="store_true", help="also list every batch with its records")
    parser.add_argument(
        "--offsets", type=offset_range, metavar="A:B", help="list only the records in [A, B), and their batches"
    )
    parser.add_argument("--now-ms", type=moment_ms, default=0, help="the clock for lags, in ms since 1970")
    parser.add_argument("--min-compaction-lag-ms", type=duration_ms, default=0)
    add_spark_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from headstone.log.directory import find_partitions

    directories = find_partitions(arguments.paths)
    policy = Policy(now_ms=arguments.now_ms, min_compaction_lag_ms=arguments.min_compaction_lag_ms)
    facts = _facts(arguments, directories, policy)
    if arguments.output == "json":
        partitions = []
        for fact in facts:
            partition = fact.as_json()
            if _lists(arguments):
                partition["batch_list"] = [batch_as_json(batch) for batch in _batches(arguments, fact.found.directory)]
            partitions.append(partition)
        print(json.dumps({"partitions": partitions}, indent=2))
        return 0
    for fact in facts:
        print(as_text(fact.as_json()))
        for batch in _batches(arguments, fact.found.directory) if _lists(arguments) else ():
            print("\n".join(batch_as_text(batch)))
    return 0


def _lists(arguments: argparse.Namespace) -> bool:
    return bool(arguments.batches or arguments.records or arguments.offsets)


def _batches(arguments: argparse.Namespace, directory: PartitionDir) -> Iterator[BatchEntry]:
    from headstone.log.directory import list_segments
    from headstone.log.listing import list_batches

    start, end = arguments.offsets or (0, NO_LIMIT)
    for segment in list_segments(directory):
        yield from list_batches(segment, with_records=arguments.records, offset_start=start, offset_end=end)


def offset_range(text: str) -> tuple[int, int]:
    try:
        return source_options.offset_range(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def batch_as_json(batch: BatchEntry) -> dict[str, Any]:
    fields = asdict(batch)
    if batch.records is None:
        del fields["records"]
        return fields
    fields["records"] = [
        {
            **asdict(record),
            "key": shown_bytes(record.key),
            "value": shown_bytes(record.value),
            "headers": [{"key": name, "value": shown_bytes(value)} for name, value in record.headers],
        }
        for record in batch.records
    ]
    return fields


def shown_bytes(content: bytes | None) -> str | dict[str, str] | None:
    """As text when it is UTF-8, else as {"hex": ...}."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}


def batch_as_text(batch: BatchEntry) -> list[str]:
    """One line per batch, one indented line per record."""
    kinds = ["transactional"] if batch.transactional else []
    kinds += [batch.control or "data"]
    kinds += ["header-only"] if batch.count == 0 else []
    kinds += [f"horizon {batch.delete_horizon_ms}"] if batch.delete_horizon_ms is not None else []
    some = batch.records is not None and len(batch.records) < batch.count
    listed = f" ({len(batch.records or ())} of them in the range)" if some else ""
    lines = [
        f"  [{batch.base_offset}, {batch.last_offset}] {batch.count} records{listed}, {' '.join(kinds)}, "
        f"producer {batch.producer_id} epoch {batch.producer_epoch} sequences [{batch.base_sequence}, {batch.last_sequence}], "
        f"leader epoch {batch.leader_epoch}, {batch.timestamp_type} {batch.max_timestamp_ms}, {batch.codec}, "
        f"crc {batch.crc}, {Path(batch.file).name} position {batch.position}, {batch.size} bytes"
    ]
    for record in batch.records or ():
        headers = "".join(f", {name}={shown_bytes(value)!r}" for name, value in record.headers)
        what = "marker" if batch.control else f"{shown_bytes(record.key)!r} = {shown_bytes(record.value)!r}"
        lines.append(f"    {record.offset}: {what}, time {record.timestamp_ms}, sequence {record.sequence}{headers}")
    return lines


def _facts(arguments: argparse.Namespace, directories: Sequence[PartitionDir], policy: Policy) -> list[PartitionFacts]:
    from headstone.log.directory import list_segments
    from headstone.pipeline.inprocess import InProcess
    from headstone.pipeline.inspection import inspect
    from headstone.pipeline.progress import ProgressLine

    size = sum(file.size for directory in directories for file in list_segments(directory))
    if size < SPARK_FROM_BYTES and arguments.master is None and arguments.spark_remote is None:
        with ProgressLine(enabled=True) as line:
            return inspect(directories, policy, InProcess(cores()), line.board)
    from headstone.spark.engine import OnSpark
    from headstone.spark.session import StartingSession

    tell(f"{size / 1e9:.1f} GB: reading on Spark")
    session = StartingSession(
        app_name="headstone inspect",
        master=arguments.master,
        remote=arguments.spark_remote,
        conf=spark_conf(arguments),
    )
    with session, ProgressLine(enabled=True) as line:
        session.begin()
        return inspect(directories, policy, OnSpark(session.get, parallelism=cores()), line.board)


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
