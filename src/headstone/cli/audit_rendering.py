"""The outcome of an audit as a document, as lines, and its findings as Parquet.

Renders values of `audit/outcome.py`; decides nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.output import BAD, GOOD, Output
from headstone.log.shown import shown_bytes

if TYPE_CHECKING:
    from headstone.audit.outcome import AuditedReplica, AuditOutcome, PartitionOutcome
    from headstone.audit.verdicts import Finding, Group


def document(outcome: AuditOutcome) -> dict[str, Any]:
    return {
        "verdict": outcome.verdict,
        "partitions": [_partition(partition) for partition in outcome.partitions],
        "proofs": [
            {"key": shown_bytes(proof.key), "partition": proof.partition, "replicas": dict(proof.replicas)}
            for proof in outcome.proofs
        ],
    }


def _partition(partition: PartitionOutcome) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "partition": partition.partition,
        "replicas": [_replica(replica) for replica in partition.replicas],
        "findings": [_finding(finding) for finding in partition.findings],
        "groups": [_group(group) for group in partition.groups],
        "forecast": [asdict(risk) for risk in partition.forecast],
        "problems": list(partition.problems),
        "unread": list(partition.unread),
    }
    if partition.coverage is not None:
        fields |= {"compared_below": partition.coverage.below, "keys": partition.coverage.keys}
    return fields


def _replica(replica: AuditedReplica) -> dict[str, Any]:
    fields = asdict(replica)
    return {"replica": fields.pop("name"), **fields}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "class": finding.kind, "replica": finding.replica, "key": shown_bytes(finding.key), "offset": finding.offset,
        "sure": finding.sure, "or_class": finding.or_kind, "or_replica": finding.or_replica,
        "else_class": finding.else_kind, "misleads_readers": finding.misleads, "why": finding.why, "file": finding.file,
        "position": finding.position, "producer_id": finding.producer_id, "producer_epoch": finding.producer_epoch,
        "marker": finding.marker, "served": dict(finding.served), "isolation": finding.isolation,
        "repair": list(finding.repair), "commands": list(finding.commands),
    }  # fmt: skip


def _group(group: Group) -> dict[str, Any]:
    first = group.findings[0]
    return {
        "class": group.kind, "replica": group.replica, "producer_id": group.producer_id, "marker": group.marker,
        "or_class": group.or_kind, "or_replica": first.or_replica, "else_class": first.else_kind,
        "sure": group.sure, "isolation": group.isolation, "misleads_readers": group.misleads,
        "count": len(group.findings), "why": first.why, "repair": list(first.repair), "commands": list(first.commands),
        "examples": [
            {"key": shown_bytes(example.key), "offset": example.offset, "file": example.file,
             "position": example.position, "served": dict(example.served)}
            for example in group.examples
        ],
    }  # fmt: skip


def lines(outcome: AuditOutcome, output: Output) -> Iterator[str]:
    verdict = output.painted(outcome.verdict, GOOD if outcome.verdict == "clean" else BAD)
    yield f"{verdict}: {len(outcome.partitions)} partitions, {outcome.findings} findings"
    for partition in outcome.partitions:
        for text in partition.problems:
            yield f"{partition.partition}: not covered: {text}"
        if partition.findings:
            yield from _partition_lines(partition)
        for risk in partition.forecast:
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(risk.unsafe_ms / 1000))
            yield (
                f"{partition.partition}: {risk.replica} is {risk.behind} offsets behind; "
                f"first unsafe removal possible at {when}"
            )
    for proof in outcome.proofs:
        states = "; ".join(f"{replica}: {state}" for replica, state in proof.replicas.items()) or "absent everywhere"
        yield f"key {shown_bytes(proof.key)}{f' in {proof.partition}' if proof.partition else ''}: {states}"


def _partition_lines(partition: PartitionOutcome) -> Iterator[str]:
    assert partition.coverage is not None  # what was not compared has no findings
    yield f"{partition.partition}: compared below offset {partition.coverage.below}, {partition.coverage.keys:,} keys"
    for replica in partition.replicas:
        yield (
            f"  {replica.name}: [{replica.log_start}, {replica.log_end}), LSO {replica.lso}, "
            f"{replica.records:,} records, {replica.live_keys:,} live keys, {replica.tombstones:,} tombstones"
        )
    groups = partition.groups
    for group in groups:
        yield from _group_lines(group)
    advised: set[tuple[str, ...]] = set()
    for group in groups:
        steps = group.findings[0].repair
        if steps not in advised:
            yield f"  what to do about {group.kind} on {group.replica}:"
            yield from (f"    - {step}" for step in steps)
        advised.add(steps)


def _group_lines(group: Group) -> Iterator[str]:
    first, count = group.findings[0], len(group.findings)
    alternatives = f" or {group.or_kind} on {first.or_replica}" if group.or_kind else ""
    alternatives += f" or {first.else_kind} there" if first.else_kind else ""
    producer = f", producer {group.producer_id}" if group.producer_id >= 0 else ""
    harmless = "" if group.misleads else ", no reader is misled"
    yield (
        f"  {group.kind} on {group.replica}{alternatives}{producer}: {count} "
        f"{'finding' if count == 1 else 'findings'} ({group.sure}, {group.isolation}{harmless})"
    )
    yield f"    {first.why}"
    for example in group.examples:
        key = f"key {shown_bytes(example.key)} " if example.key is not None else ""
        states = "; ".join(f"{replica}: {state}" for replica, state in example.served.items())
        yield f"    {key}offset {example.offset}{': ' + states if states else ''}"
    if count > len(group.examples):
        yield f"    and {count - len(group.examples)} more; --output json has all"


NUMBERS = ("offset", "position", "producer_id", "producer_epoch", "marker")
COLUMNS = (
    "partition", "key", "served", "class", "replica", "offset", "sure", "why", "file", "position", "producer_id",
    "producer_epoch", "marker", "isolation", "or_class", "or_replica", "else_class", "misleads_readers",
)  # fmt: skip


def write_findings(path: Path, outcome: AuditOutcome) -> None:
    """A row per finding; key and served replies as JSON texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for partition in outcome.partitions:
        for finding in partition.findings:
            row = {"partition": partition.partition, **_finding(finding)}
            row |= {"key": json.dumps(row["key"]), "served": json.dumps(row["served"])}
            rows.append({name: row[name] for name in COLUMNS})
    kinds = {**dict.fromkeys(NUMBERS, pa.int64()), "misleads_readers": pa.bool_()}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
