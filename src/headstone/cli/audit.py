"""`headstone audit DIR DIR...` or `--bootstrap HOSTS`: do the replicas of a cluster tell readers the same story?

Each DIR is the log directory of one broker, or a copy of it, also in object storage (s3://BUCKET/PREFIX). Reads, compares,
explains; changes nothing.
"""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.api.settings import AuditSettings
from headstone.cli.audit_rendering import lines, write_findings
from headstone.cli.connections import (
    add_cluster_arguments,
    add_store_arguments,
    has_cluster,
    kafka_connection,
    located,
    without_value_of_secret,
)
from headstone.cli.engines import BY_SIZE, CommandRunner, add_engine_arguments, by_size
from headstone.cli.options import add_topic_argument, duration_ms, moment_ms, positive
from headstone.cli.output import Output, refuse_unwritable
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED, USAGE
from headstone.errors import UsageError

if TYPE_CHECKING:
    from headstone.divergence.outcome import AuditOutcome

DEFAULTS = AuditSettings()
BY_VERDICT = {"clean": DONE, "diverged": FINDINGS, "different-logs": USAGE, "incomplete": UNFINISHED}
EXAMPLES = (
    "headstone audit broker-1 broker-2 broker-3",
    "headstone audit s3://backups/broker-1 s3://backups/broker-2 --topic orders --report audit.html",
    "headstone audit --bootstrap kafka-1:9092 --topic orders --key alice",
)
EXIT_CODES = {
    DONE: "everything was read, and the replicas agree",
    FINDINGS: "findings: replicas tell readers different stories",
    USAGE: "wrong usage, or logs that are not replicas of the same partition",
    UNFINISHED: "no finding, but not everything could be compared",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="*", metavar="DIR",
        help="log directory of one broker, or a copy of it; may be s3://BUCKET/PREFIX; two or more",
    )  # fmt: skip
    add_cluster_arguments(parser, what="audit a running cluster: each replica is read from its broker")
    parser.add_argument(
        "--bytes-per-second", type=positive, default=DEFAULTS.bytes_per_second, metavar="N",
        help="read limit for a running cluster, over all brokers",
    )  # fmt: skip
    add_store_arguments(parser)
    add_topic_argument(parser)
    parser.add_argument(
        "--key", action="append", default=[], help="show what each replica has for this key; may be repeated"
    )
    parser.add_argument(
        "--keys-file", type=Path, metavar="FILE", help="file of such keys, one per line (default: none)"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write an HTML page with a lane for each replica (default: none)"
    )
    parser.add_argument("--findings", type=Path, metavar="FILE", help="write the findings as Parquet (default: none)")
    parser.add_argument(
        "--now-ms", type=moment_ms, metavar="TIME", help="current time, for the forecast (default: now)"
    )
    parser.add_argument(
        "--delete-retention-ms",
        type=duration_ms,
        default=DEFAULTS.delete_retention_ms,
        metavar="DURATION",
        help="delete.retention.ms of the topics, for the forecast",
    )
    add_engine_arguments(parser, auto=BY_SIZE)


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.divergence.document import audit_document

    if bool(arguments.directories) == has_cluster(arguments):
        raise UsageError("name the log directories of the replicas, or a cluster with --bootstrap HOSTS")
    for path in (arguments.report, arguments.findings):
        refuse_unwritable(path)
    outcome = _outcome(arguments, output)
    if arguments.findings:
        write_findings(arguments.findings, outcome)
    if arguments.report:
        from headstone.pages.audit_page import audit_page

        arguments.report.write_text(audit_page(outcome), encoding="utf-8")
    output.answer(lambda: audit_document(outcome), lines(outcome, output))
    if not output.as_json and any(finding.commands for part in outcome.partitions for finding in part.findings):
        output.tell("--output json and --report have the commands for Kafka's tools")
    return BY_VERDICT[outcome.verdict]


def _outcome(arguments: argparse.Namespace, output: Output) -> AuditOutcome:
    from headstone.api.auditing import audit_cluster, audit_directories

    keys = [key.encode() for key in arguments.key]
    if arguments.keys_file:
        keys += arguments.keys_file.read_bytes().splitlines()
    settings = AuditSettings(
        topics=tuple(arguments.topic), keys=tuple(keys), now_ms=arguments.now_ms,
        delete_retention_ms=arguments.delete_retention_ms, bytes_per_second=arguments.bytes_per_second,
    )  # fmt: skip
    command = shlex.join(["headstone", *map(without_value_of_secret, arguments.words)])
    runner = CommandRunner(arguments, output, verb="audit", large=by_size)
    if has_cluster(arguments):
        return audit_cluster(kafka_connection(arguments), settings, runner, command=command)
    return audit_directories(
        arguments.directories, settings, runner, reach=partial(located, arguments), command=command
    )
