"""`headstone audit DIR DIR...` or `--bootstrap HOSTS`: do the replicas of a cluster tell readers the same story?

Each DIR is the log directory of one broker, or a copy of it, also in object storage (s3://BUCKET/PREFIX). Reads, compares,
explains; changes nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.audit_rendering import document, lines, write_findings
from headstone.cli.connections import (
    add_cluster_arguments,
    add_store_arguments,
    has_cluster,
    kafka_connection,
    located,
)
from headstone.cli.engines import BY_SIZE, SPARK_FROM_BYTES, add_engine_arguments, engine_of
from headstone.cli.options import MOMENT, duration_ms, moment_ms, now_ms, positive
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.errors import UsageError
from headstone.log.scratch import scratch_directory
from headstone.retention.policy import DAY_MS

if TYPE_CHECKING:
    from headstone.audit.outcome import AuditOutcome
    from headstone.cluster.connection import Connection
    from headstone.pipeline.auditing import PartitionAudit

BY_VERDICT = {"clean": DONE, "diverged": FINDINGS, "incomplete": UNFINISHED}
EXAMPLES = (
    "headstone audit broker-1 broker-2 broker-3",
    "headstone audit s3://backups/broker-1 s3://backups/broker-2 --topic orders --report audit.html",
    "headstone audit --bootstrap kafka-1:9092 --topic orders --key alice",
)
EXIT_CODES = {
    DONE: "everything was read and agrees",
    FINDINGS: "findings: replicas tell readers different stories",
    UNFINISHED: "no finding, but not everything could be compared",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="*", metavar="DIR",
        help="of a broker: its log directory, a copy of it, or s3://BUCKET/PREFIX; two or more",
    )  # fmt: skip
    add_cluster_arguments(parser, what="a running cluster instead: each replica is read from its broker")
    parser.add_argument(
        "--bytes-per-second", type=positive, default=50 << 20, metavar="N",
        help="from the cluster, over all brokers (default 52428800: 50 MiB)",
    )  # fmt: skip
    add_store_arguments(parser)
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    parser.add_argument(
        "--key", action="append", default=[], help="say of every replica what it has of this key; may be repeated"
    )
    parser.add_argument("--keys-file", type=Path, metavar="FILE", help="such keys, one per line (default: none)")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write an HTML page with a lane for each replica (default: none)"
    )
    parser.add_argument("--findings", type=Path, metavar="FILE", help="write the findings as Parquet (default: none)")
    parser.add_argument("--now-ms", type=moment_ms, metavar="TIME", help=f"for the forecast, {MOMENT} (default: now)")
    parser.add_argument(
        "--delete-retention-ms", type=duration_ms, default=DAY_MS, metavar="N", help="of the topics, for the forecast"
    )
    add_engine_arguments(parser, auto=BY_SIZE)


def run(arguments: argparse.Namespace, output: Output) -> int:
    if bool(arguments.directories) == has_cluster(arguments):
        raise UsageError("name the log directories of the replicas, or a cluster with --bootstrap HOSTS")
    for path in (arguments.report, arguments.findings):
        _refuse_unwritable(path)
    wanted = [key.encode() for key in arguments.key]
    if arguments.keys_file:
        wanted += arguments.keys_file.read_bytes().splitlines()
    outcome = (_live if has_cluster(arguments) else _offline)(arguments, output, wanted)
    if arguments.findings:
        write_findings(arguments.findings, outcome)
    if arguments.report:
        from headstone.pages.audit_page import audit_page

        arguments.report.write_text(audit_page(outcome), encoding="utf-8")
    output.answer(lambda: document(outcome), lines(outcome, output))
    if not output.as_json and any(finding.commands for one in outcome.partitions for finding in one.findings):
        output.tell("--output json and --report have the commands for Kafka's tools")
    return BY_VERDICT[outcome.verdict]


def _refuse_unwritable(path: Path | None) -> None:
    """Before anything is read: an audit may take hours."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; name the file to write")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: cannot be written: {path.parent} is no directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written: no permission")


def _offline(arguments: argparse.Namespace, output: Output, wanted: list[bytes]) -> AuditOutcome:
    from headstone.log.directory import find_partitions
    from headstone.pipeline.auditing import replicas_of

    if len(arguments.directories) < 2:
        raise UsageError("name the log directories of two replicas or more: one alone has nothing to be compared with")
    resolved = [text.rstrip("/") if "://" in text else str(Path(text).resolve()) for text in arguments.directories]
    if len(set(resolved)) < len(resolved):
        raise UsageError("the same directory is named twice")
    groups = replicas_of([(name, find_partitions([located(arguments, name)])) for name in arguments.directories])
    if arguments.topic:
        groups = {name: some for name, some in groups.items() if some[0][1].topic in arguments.topic}
    if not groups:
        raise UsageError(f"no partition of {', '.join(arguments.topic)} in these directories")
    return _outcome(arguments, _audited(arguments, output, groups, wanted), wanted)


def _live(arguments: argparse.Namespace, output: Output, wanted: list[bytes]) -> AuditOutcome:
    """Copies what each broker serves of its own replicas, and audits the copies."""
    from headstone.cluster.replicas import copy_replicas
    from headstone.log.directory import find_partitions
    from headstone.pipeline.auditing import PartitionAudit, replicas_of

    connection = kafka_connection(arguments)
    with scratch_directory("audit") as work:
        copied = copy_replicas(
            connection, arguments.topic, work, bytes_per_second=arguments.bytes_per_second, tell=output.tell,
        )  # fmt: skip
        groups = replicas_of([(str(n), find_partitions([str(path)])) for n, path in sorted(copied.directories.items())])
        audits = _audited(arguments, output, groups, wanted)
    _ask_producers(connection, audits)
    by_partition = {audited.partition: audited for audited in audits}
    for partition, problems in copied.problems.items():
        blank = PartitionAudit(partition=partition, replicas=(), results=[], problems=[])
        by_partition.setdefault(partition, blank).problems.extend(problems)
        # Commands for Kafka's tools would leave it out of the partition's replicas.
        by_partition[partition].brokers["a replica that could not be copied"] = None
        by_partition[partition].unread.append("a replica that could not be copied")
    for audited in by_partition.values():
        audited.problems += copied.withheld(audited).values()
    return _outcome(arguments, [by_partition[name] for name in sorted(by_partition)], wanted)


def _ask_producers(connection: Connection, audits: list[PartitionAudit]) -> None:
    """Of replicas on which transactions never end: what their brokers themselves say of the producers."""
    from headstone.cluster.replicas import ask_producers

    for audited in audits:
        for frozen in (frozen for result in audited.results for frozen in result.frozen):
            directory, name = audited.replicas[0].directory, frozen.replica
            if name not in audited.producers:
                producers = ask_producers(connection, directory.topic_partition, int(name))
                if producers is not None:
                    audited.producers[name] = producers


def _audited(arguments: argparse.Namespace, output: Output, groups: Any, wanted: list[bytes]) -> list[PartitionAudit]:
    from headstone.log.directory import list_segments
    from headstone.pipeline.auditing import audit
    from headstone.pipeline.progress import ProgressLine

    directories = [directory for replicas in groups.values() for _, directory in replicas]
    size = sum(file.size for directory in directories for file in list_segments(directory))
    progress = ProgressLine(enabled=not output.quiet)
    with engine_of(arguments, verb="audit", spark_by_default=size >= SPARK_FROM_BYTES) as engine, progress:
        engine.begin()
        return audit(groups, engine, wanted=wanted, board=progress.board)


def _outcome(arguments: argparse.Namespace, audits: Sequence[PartitionAudit], wanted: Sequence[bytes]) -> AuditOutcome:
    from headstone.pipeline.audit_outcome import outcome_of

    return outcome_of(audits, wanted, now_ms=now_ms(arguments), delete_retention_ms=arguments.delete_retention_ms)
