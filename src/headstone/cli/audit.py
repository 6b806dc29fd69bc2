"""`headstone audit DIR DIR...` or `--bootstrap HOSTS`: do the replicas of a cluster tell readers the same story?

Each DIR is the log directory of one broker, or a copy of it, also in object storage (s3://BUCKET/PREFIX). Reads, compares,
explains; changes nothing. Exit 0 everything was read and agrees, 1 findings, 2 wrong usage, 3 not everything could be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.inspect import shown_bytes
from headstone.cli.lake_data import store_settings
from headstone.cli.options import add_spark_arguments, cores, duration_ms, moment_ms, positive, spark_conf, tell
from headstone.errors import UsageError
from headstone.log.scratch import scratch_directory
from headstone.pages.audit_page import audit_page
from headstone.retention.policy import DAY_MS

if TYPE_CHECKING:
    from headstone.audit.verdicts import Finding, Group
    from headstone.cluster.connection import Connection
    from headstone.pipeline.auditing import PartitionAudit
    from headstone.pipeline.engine import Engine

EXIT_CODES = {"clean": 0, "diverged": 1, "incomplete": 3}
"""By verdict."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="*", metavar="DIR",
        help="of a broker: its log directory, a copy of it, or s3://BUCKET/PREFIX; two or more",
    )  # fmt: skip
    parser.add_argument(
        "--bootstrap", metavar="HOSTS", help="a running cluster instead: each replica is read from its broker"
    )
    parser.add_argument(
        "--kafka-conf",
        metavar="K=V",
        action="append",
        default=[],
        help="a setting by librdkafka's name; may be repeated",
    )
    parser.add_argument(
        "--bytes-per-second",
        type=positive,
        default=50 << 20,
        help="from the cluster, over all brokers (default 50 MiB)",
    )
    parser.add_argument(
        "--store-conf",
        metavar="K=V",
        action="append",
        default=[],
        help="of object storage, such as endpoint=http://...",
    )
    parser.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    parser.add_argument("--key", action="append", default=[], help="say of every replica what it has of this key")
    parser.add_argument("--keys-file", type=Path, metavar="FILE", help="one key per line")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write an HTML page with a lane for each replica")
    parser.add_argument("--findings", type=Path, metavar="FILE", help="write the findings as Parquet")
    parser.add_argument("--now-ms", type=moment_ms, help="for the forecast, in ms since 1970 (default: now)")
    parser.add_argument(
        "--delete-retention-ms", type=duration_ms, default=DAY_MS, help="of the topics, for the forecast"
    )
    parser.add_argument("--in-process", action="store_true", help="without Spark")
    add_spark_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from headstone.audit.verdicts import verdict

    if bool(arguments.directories) == bool(arguments.bootstrap):
        raise UsageError("name the log directories of the replicas, or a cluster with --bootstrap HOSTS")
    for path in (arguments.report, arguments.findings):
        _refuse_unwritable(path)
    wanted = [key.encode() for key in arguments.key]
    if arguments.keys_file:
        wanted += arguments.keys_file.read_bytes().splitlines()
    now_ms = time.time_ns() // 1_000_000 if arguments.now_ms is None else arguments.now_ms
    audits = _live(arguments, wanted) if arguments.bootstrap else _offline(arguments, wanted)
    told = [_partition(one, now_ms, arguments.delete_retention_ms) for one in audits]
    proofs = _proofs(audits, wanted)
    decided = verdict(sum(len(one["findings"]) for one in told), sum(len(one["problems"]) for one in told))
    if arguments.findings:
        _write_findings(arguments.findings, told)
    if arguments.report:
        arguments.report.write_text(audit_page(decided, told), encoding="utf-8")
    if arguments.output == "json":
        print(json.dumps({"verdict": decided, "partitions": told, "proofs": proofs}, indent=2))
    else:
        _render(decided, told, proofs)
    return EXIT_CODES[decided]


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


def _offline(arguments: argparse.Namespace, wanted: list[bytes]) -> list[PartitionAudit]:
    from headstone.log.directory import find_partitions
    from headstone.pipeline.auditing import audit, replicas_of
    from headstone.storage.access import Access

    if len(arguments.directories) < 2:
        raise UsageError("name the log directories of two replicas or more: one alone has nothing to be compared with")
    resolved = [text.rstrip("/") if "://" in text else str(Path(text).resolve()) for text in arguments.directories]
    if len(set(resolved)) < len(resolved):
        raise UsageError("the same directory is named twice")
    access = Access.of(store_settings(arguments))
    groups = replicas_of([(name, find_partitions([name], access)) for name in arguments.directories])
    if arguments.topic:
        groups = {name: some for name, some in groups.items() if some[0][1].topic in arguments.topic}
    if not groups:
        raise UsageError(f"no partition of {', '.join(arguments.topic)} in these directories")
    found: list[PartitionAudit] = _on_engine(
        arguments, lambda engine, board: audit(groups, engine, wanted=wanted, board=board)
    )
    return found


def _live(arguments: argparse.Namespace, wanted: list[bytes]) -> list[PartitionAudit]:
    """Copies what each broker serves of its own replicas, and audits the copies."""
    from headstone.cluster.connection import Connection
    from headstone.cluster.replicas import copy_replicas
    from headstone.log.directory import find_partitions
    from headstone.pipeline.auditing import PartitionAudit, audit, replicas_of

    pairs = [item.partition("=") for item in arguments.kafka_conf]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError("--kafka-conf wants K=V, such as security.protocol=SASL_SSL")
    connection = Connection.parse(arguments.bootstrap, {name: value for name, _, value in pairs})
    with scratch_directory("audit") as work:
        copied = copy_replicas(
            connection, arguments.topic, work, bytes_per_second=arguments.bytes_per_second, tell=tell,
        )  # fmt: skip
        groups = replicas_of([(str(n), find_partitions([str(path)])) for n, path in sorted(copied.directories.items())])
        found: list[PartitionAudit] = _on_engine(
            arguments, lambda engine, board: audit(groups, engine, wanted=wanted, board=board)
        )
    _ask_producers(connection, found)
    known = {one.partition: one for one in found}
    for partition, problems in copied.problems.items():
        blank = PartitionAudit(partition=partition, replicas=(), results=[], problems=[])
        known.setdefault(partition, blank).problems.extend(problems)
        # Commands for Kafka's tools would leave it out of the partition's replicas.
        known[partition].brokers["a replica that could not be copied"] = None
        known[partition].unread.append("a replica that could not be copied")
    for one in known.values():
        for facts in one.results[0].facts if one.results else ():
            said = copied.stable[one.partition, int(facts.name)]
            if said < facts.stable_end:
                one.problems.append(
                    f"broker {facts.name} serves read_committed consumers up to {said} only; its records say {facts.stable_end}"
                )
    return [known[name] for name in sorted(known)]


def _ask_producers(connection: Connection, found: list[PartitionAudit]) -> None:
    """Of replicas on which transactions never end: what their brokers themselves say of the producers."""
    from headstone.cluster.replicas import ask_producers

    for one in found:
        for frozen in (frozen for result in one.results for frozen in result.frozen):
            directory, name = one.replicas[0].directory, frozen.replica
            if name not in one.producers:
                said = ask_producers(connection, directory.topic_partition, int(name))
                if said is not None:
                    one.producers[name] = said


def _on_engine(arguments: argparse.Namespace, job: Any) -> Any:
    from headstone.pipeline.progress import ProgressLine

    if arguments.in_process:
        from headstone.pipeline.inprocess import InProcess

        with ProgressLine(enabled=True) as line:
            return job(InProcess(cores()), line.board)
    from headstone.spark.engine import OnSpark
    from headstone.spark.session import StartingSession

    starting = StartingSession(
        app_name="headstone audit", master=arguments.master, remote=arguments.spark_remote, conf=spark_conf(arguments)
    )
    with starting, ProgressLine(enabled=True) as line:
        engine: Engine = OnSpark(starting.get, parallelism=cores(), begin=starting.begin)
        engine.begin()
        return job(engine, line.board)


def _partition(audited: PartitionAudit, now_ms: int, delete_retention_ms: int) -> dict[str, Any]:
    from headstone.audit.advice import forecast
    from headstone.audit.verdicts import grouped
    from headstone.pipeline.auditing import findings_of

    told: dict[str, Any] = {
        "partition": audited.partition, "replicas": [], "findings": [], "groups": [], "forecast": [],
        "problems": list(audited.problems), "unread": list(audited.unread),
    }  # fmt: skip
    if not audited.results:
        return told
    first = audited.results[0]
    told["compared_below"] = first.below
    told["keys"] = sum(result.compared.keys for result in audited.results)
    first_dirty = {replica.name: replica.first_dirty for replica in audited.replicas}
    for i, facts in enumerate(first.facts):
        counts = asdict(first.counts[i])
        counts["live_keys"] = sum(result.counts[i].live_keys for result in audited.results)
        told["replicas"].append({
            "replica": facts.name, "log_start": facts.log_start, "log_end": facts.log_end, "lso": facts.lso,
            "high_watermark": facts.high_watermark, "first_dirty": first_dirty[facts.name],
            "open_transactions": len(facts.open_txns), **counts,
        })  # fmt: skip
    findings = findings_of(audited)
    told["findings"] = [_finding(one) for one in findings]
    told["groups"] = [_group(one) for one in grouped(findings)]
    hidden = sum(result.compared.unexplained for result in audited.results)
    if hidden:
        told["problems"].append(f"{hidden} more keys differ and were not explained")
    risks = forecast(first.facts, now_ms=now_ms, delete_retention_ms=delete_retention_ms)
    told["forecast"] = [asdict(risk) for risk in risks]
    return told


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "class": one.kind, "replica": one.replica, "key": shown_bytes(one.key), "offset": one.offset, "sure": one.sure,
        "or_class": one.or_kind, "or_replica": one.or_replica, "else_class": one.else_kind,
        "misleads_readers": one.misleads, "why": one.why,
        "file": one.file, "position": one.position, "producer_id": one.producer_id, "producer_epoch": one.producer_epoch,
        "marker": one.marker, "served": dict(one.served), "isolation": one.isolation, "repair": list(one.repair),
        "commands": list(one.commands),
    }  # fmt: skip


def _group(one: Group) -> dict[str, Any]:
    first = one.findings[0]
    return {
        "class": one.kind, "replica": one.replica, "producer_id": one.producer_id, "marker": one.marker,
        "or_class": one.or_kind, "or_replica": first.or_replica, "else_class": first.else_kind,
        "sure": one.sure, "isolation": one.isolation,
        "misleads_readers": one.misleads, "count": len(one.findings), "why": first.why, "repair": list(first.repair),
        "commands": list(first.commands),
        "examples": [
            {"key": shown_bytes(example.key), "offset": example.offset, "file": example.file, "position": example.position,
             "served": dict(example.served)}
            for example in one.examples
        ],
    }  # fmt: skip


def _proofs(audits: list[PartitionAudit], wanted: list[bytes]) -> list[dict[str, Any]]:
    found = []
    for key in wanted:
        for one in audits:
            for result in one.results:
                found += [
                    {"key": shown_bytes(key), "partition": one.partition, "replicas": states}
                    for proved, states in result.proofs
                    if proved == key and any(state != "absent" for state in states.values())
                ]
        if not any(one["key"] == shown_bytes(key) for one in found):
            found.append({"key": shown_bytes(key), "partition": None, "replicas": {}})
    return found


def _render(verdict: str, told: list[dict[str, Any]], proofs: list[dict[str, Any]]) -> None:
    findings = sum(len(one["findings"]) for one in told)
    print(f"{verdict}: {len(told)} partitions, {findings} findings")
    for one in told:
        for text in one["problems"]:
            print(f"{one['partition']}: not covered: {text}")
        if one["findings"]:
            _render_partition(one)
        for risk in one["forecast"]:
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(risk["unsafe_ms"] / 1000))
            print(
                f"{one['partition']}: {risk['replica']} is {risk['behind']} offsets behind; "
                f"first unsafe removal possible at {when}"
            )
    for proof in proofs:
        states = "; ".join(f"{replica}: {state}" for replica, state in proof["replicas"].items()) or "absent everywhere"
        print(f"key {proof['key']}{' in ' + proof['partition'] if proof['partition'] else ''}: {states}")


def _render_partition(one: dict[str, Any]) -> None:
    print(f"{one['partition']}: compared below offset {one['compared_below']}, {one['keys']:,} keys")
    for replica in one["replicas"]:
        print(
            f"  {replica['replica']}: [{replica['log_start']}, {replica['log_end']}), LSO {replica['lso']}, "
            f"{replica['records']:,} records, {replica['live_keys']:,} live keys, {replica['tombstones']:,} tombstones"
        )
    for group in one["groups"]:
        _render_group(group)
    told: set[tuple[str, ...]] = set()
    for group in one["groups"]:
        if (steps := tuple(group["repair"])) not in told:
            print(f"  what to do about {group['class']} on {group['replica']}:")
            for step in steps:
                print(f"    - {step}")
        told.add(steps)
    if any(group["commands"] for group in one["groups"]):
        tell("--output json and --report have the commands for Kafka's tools")


def _render_group(group: dict[str, Any]) -> None:
    other = f" or {group['or_class']} on {group['or_replica']}" if group["or_class"] else ""
    other += f" or {group['else_class']} there" if group["else_class"] else ""
    producer = f", producer {group['producer_id']}" if group["producer_id"] >= 0 else ""
    harmless = "" if group["misleads_readers"] else ", no reader is misled"
    print(
        f"  {group['class']} on {group['replica']}{other}{producer}: {group['count']} "
        f"{'finding' if group['count'] == 1 else 'findings'} ({group['sure']}, {group['isolation']}{harmless})"
    )
    print(f"    {group['why']}")
    for example in group["examples"]:
        key = f"key {example['key']} " if example["key"] is not None else ""
        states = "; ".join(f"{replica}: {state}" for replica, state in example["served"].items())
        print(f"    {key}offset {example['offset']}{': ' + states if states else ''}")
    if group["count"] > len(group["examples"]):
        print(f"    and {group['count'] - len(group['examples'])} more; --output json has all")


def _write_findings(path: Path, told: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = (
        "class",
        "replica",
        "offset",
        "sure",
        "why",
        "file",
        "position",
        "producer_id",
        "producer_epoch",
        "marker",
        "isolation",
        "or_class",
        "or_replica",
        "else_class",
        "misleads_readers",
    )
    rows = [
        {"partition": one["partition"], "key": json.dumps(finding["key"]), "served": json.dumps(finding["served"]),
         **{name: finding[name] for name in names}}
        for one in told for finding in one["findings"]
    ]  # fmt: skip
    text, number = pa.string(), pa.int64()
    kinds = {"offset": number, "position": number, "producer_id": number, "producer_epoch": number, "marker": number}
    kinds["misleads_readers"] = pa.bool_()
    columns = ("partition", "key", "served", *names)
    pq.write_table(
        pa.Table.from_pylist(rows, schema=pa.schema([(name, kinds.get(name, text)) for name in columns])), path
    )
