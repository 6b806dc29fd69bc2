"""`headstone inspect`: exact facts of partitions; every checksum and record is checked.

Parses, calls the pipeline, renders facts, batches and records.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.connections import add_store_arguments, located
from headstone.cli.engines import BY_SIZE, SPARK_FROM_BYTES, add_engine_arguments, engine_of, on_spark
from headstone.cli.options import MOMENT, duration_ms, moment_ms
from headstone.cli.output import HEADING, Output
from headstone.cli.parsing import DONE, UNFINISHED, USAGE
from headstone.errors import UsageError
from headstone.log.shown import shown_bytes
from headstone.retention.policy import NO_LIMIT, Policy
from headstone.spark import source_options

if TYPE_CHECKING:
    from headstone.log.directory import PartitionDir
    from headstone.log.listing import BatchEntry
    from headstone.pipeline.inspection import PartitionFacts

EXAMPLES = (
    "headstone inspect /var/lib/kafka/data --topic orders",
    "headstone inspect /var/lib/kafka/data/orders-0 --records --offsets 1000:1010",
    "headstone inspect s3://backups/broker-1 --store-conf region=eu-west-1",
)
EXIT_CODES = {
    DONE: "everything was read",
    USAGE: "wrong usage, or a log that cannot be read whole",
    UNFINISHED: "could not finish",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a partition directory or a log directory, also s3://BUCKET/PREFIX"
    )
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    parser.add_argument("--batches", action="store_true", help="also list every batch, with each field of its header")
    parser.add_argument("--records", action="store_true", help="also list every batch with its records")
    parser.add_argument(
        "--offsets", type=offset_range, metavar="A:B",
        help="list only the records in [A, B), and their batches (default: all, with --batches or --records)",
    )  # fmt: skip
    parser.add_argument(
        "--now-ms", type=moment_ms, default=0, metavar="TIME", help=f"the clock for lags, {MOMENT} (default 0)"
    )
    parser.add_argument(
        "--min-compaction-lag-ms", type=duration_ms, default=0, metavar="N",
        help="segments with a younger record do not count as cleanable, in ms",
    )  # fmt: skip
    add_store_arguments(parser)
    add_engine_arguments(parser, auto=BY_SIZE)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.log.directory import find_partitions

    places = [located(arguments, path) for path in arguments.paths]
    directories = of_topics(find_partitions(places), arguments.topic, arguments.paths)
    policy = Policy(now_ms=arguments.now_ms, min_compaction_lag_ms=arguments.min_compaction_lag_ms)
    facts = _facts(arguments, output, directories, policy)
    output.answer(
        lambda: {"partitions": [_document(arguments, fact) for fact in facts]}, _lines(arguments, output, facts)
    )
    return DONE


def of_topics(directories: Sequence[PartitionDir], topics: Sequence[str], paths: Sequence[str]) -> list[PartitionDir]:
    """Only those of the topics, if any are named; a topic that is not there is a mistake in its name."""
    missing = sorted(set(topics) - {directory.topic for directory in directories})
    if missing:
        raise UsageError(f"no partition of topic {', '.join(missing)} in {', '.join(map(str, paths))}")
    return [directory for directory in directories if not topics or directory.topic in topics]


def _document(arguments: argparse.Namespace, fact: PartitionFacts) -> dict[str, Any]:
    partition = fact.as_json()
    if _lists(arguments):
        partition["batch_list"] = [batch_as_json(batch) for batch in _batches(arguments, fact.candidate.directory)]
    return partition


def _lines(arguments: argparse.Namespace, output: Output, facts: Sequence[PartitionFacts]) -> Iterator[str]:
    for fact in facts:
        heading, *rest = as_text(fact.as_json()).splitlines()
        yield from (output.painted(heading, HEADING), *rest)
        for batch in _batches(arguments, fact.candidate.directory) if _lists(arguments) else ():
            yield from batch_as_text(batch)


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


def _facts(
    arguments: argparse.Namespace, output: Output, directories: Sequence[PartitionDir], policy: Policy
) -> list[PartitionFacts]:
    from headstone.log.directory import list_segments
    from headstone.pipeline.inspection import inspect
    from headstone.pipeline.progress import ProgressLine

    size = sum(file.size for directory in directories for file in list_segments(directory))
    large = size >= SPARK_FROM_BYTES
    if on_spark(arguments, by_default=large):
        output.tell(f"{size / 1e9:.1f} GB: reading on Spark")
    progress = ProgressLine(enabled=not output.quiet)
    with engine_of(arguments, verb="inspect", spark_by_default=large) as engine, progress:
        engine.begin()
        return inspect(directories, policy, engine, progress.board)


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
