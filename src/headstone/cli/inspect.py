"""`headstone inspect`: exact facts of partitions; every checksum and record is checked.

Parses, calls the pipeline, renders facts, batches and records.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headstone.api.settings import INSPECTION_LAG_MS, INSPECTION_NOW_MS
from headstone.cli.connections import add_store_arguments, located
from headstone.cli.engines import BY_SIZE, CommandRunner, add_engine_arguments, by_size
from headstone.cli.options import add_topic_argument, duration_ms, moment_ms
from headstone.cli.output import HEADING, Output
from headstone.cli.parsing import DONE, UNFINISHED, USAGE
from headstone.errors import UsageError
from headstone.retention.policy import NO_LIMIT, Policy
from headstone.spark import source_options

if TYPE_CHECKING:
    from headstone.log.listing import BatchEntry
    from headstone.pipeline.inspection import PartitionFacts

EXAMPLES = (
    "headstone inspect /var/lib/kafka/data --topic orders",
    "headstone inspect /var/lib/kafka/data/orders-0 --records --offsets 1000:1010",
    "headstone inspect /var/lib/kafka/data/orders-0/00000000000000000000.log --batches",
    "headstone inspect s3://backups/broker-1 --store-conf region=eu-west-1",
)
EXIT_CODES = {
    DONE: "everything was read",
    USAGE: "wrong usage, or an unreadable log; the other partitions were read",
    UNFINISHED: "could not finish, or not for every partition",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a log directory, a partition directory or one .log file; may be s3://BUCKET/PREFIX",
    )
    add_topic_argument(parser)
    parser.add_argument("--batches", action="store_true", help="also list every batch with all header fields")
    parser.add_argument("--records", action="store_true", help="also list every batch with its records")
    parser.add_argument(
        "--offsets", type=offset_range, metavar="A:B",
        help="list only the records in [A, B), and their batches (default: all, with --batches or --records)",
    )  # fmt: skip
    parser.add_argument(
        "--now-ms",
        type=moment_ms,
        default=INSPECTION_NOW_MS,
        metavar="TIME",
        help="current time, for the compaction lag (default %(default)s)",
    )
    parser.add_argument(
        "--min-compaction-lag-ms", type=duration_ms, default=INSPECTION_LAG_MS, metavar="DURATION",
        help="segments with a newer record do not count as cleanable",
    )  # fmt: skip
    add_store_arguments(parser)
    add_engine_arguments(parser, auto=BY_SIZE)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Prints what could be read first, then what could not."""
    from headstone.api.inspecting import inspect_logs
    from headstone.pipeline.failed_partition import failed_lines, worst_exit_code

    policy = Policy(now_ms=arguments.now_ms, min_compaction_lag_ms=arguments.min_compaction_lag_ms)
    runner = CommandRunner(arguments, output, verb="inspect", large=by_size)
    inspection = inspect_logs([located(arguments, path) for path in arguments.paths], arguments.topic, policy, runner)
    output.answer(
        lambda: {
            "partitions": [_document(arguments, fact) for fact in inspection.facts],
            "failed": [failure.as_json() for failure in inspection.failed],
        },
        _lines(arguments, output, inspection.facts),
    )
    output.warn(*failed_lines(inspection.failed, "read", done=len(inspection.facts)))
    return worst_exit_code(inspection.failed) or DONE


def _document(arguments: argparse.Namespace, fact: PartitionFacts) -> dict[str, Any]:
    partition = fact.as_json()
    if _lists(arguments):
        partition["batch_list"] = [batch.as_json() for batch in _batches(arguments, fact)]
    return partition


def _lines(arguments: argparse.Namespace, output: Output, facts: Sequence[PartitionFacts]) -> Iterator[str]:
    for fact in facts:
        heading, *rest = fact.as_lines()
        yield from (output.painted(heading, HEADING), *rest)
        for batch in _batches(arguments, fact) if _lists(arguments) else ():
            yield from batch.as_lines()


def _lists(arguments: argparse.Namespace) -> bool:
    return bool(arguments.batches or arguments.records or arguments.offsets)


def _batches(arguments: argparse.Namespace, fact: PartitionFacts) -> Iterator[BatchEntry]:
    from headstone.log.listing import list_batches

    start, end = arguments.offsets or (0, NO_LIMIT)
    for segment in fact.candidate.survey.segments:
        yield from list_batches(segment.file, with_records=arguments.records, offset_start=start, offset_end=end)


def offset_range(text: str) -> tuple[int, int]:
    try:
        return source_options.offset_range(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
