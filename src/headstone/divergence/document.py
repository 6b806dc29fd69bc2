"""The outcome of an audit as a document: what `--output json` prints and `Audit.to_dict` returns.

Names and their order only; decides no value.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headstone import units
from headstone.divergence.outcome import AuditedReplica, AuditOutcome, PartitionOutcome
from headstone.divergence.verdicts import Finding, FindingGroup
from headstone.log.shown import shown_bytes


def audit_document(outcome: AuditOutcome) -> dict[str, Any]:
    run = outcome.run
    return {
        "verdict": outcome.verdict,
        "time_ms": run.time_ms,
        "time": units.moment(run.time_ms),
        "version": run.version,
        "command": run.command,
        "sources": list(run.sources),
        "compared": {
            "replicas": outcome.replicas, "partitions": len(outcome.partitions), "keys": outcome.keys,
            "records": outcome.records,
        },
        "left_out": outcome.left_out,
        "partitions": [_partition(partition) for partition in outcome.partitions],
        "proofs": [
            {"key": shown_bytes(proof.key), "partition": proof.partition, "replicas": dict(proof.replicas)}
            for proof in outcome.proofs
        ],
    }  # fmt: skip


def _partition(partition: PartitionOutcome) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "partition": partition.partition,
        "replicas": [_replica(replica) for replica in partition.replicas],
        "findings": [finding_document(finding) for finding in partition.findings],
        "groups": [_group(group) for group in partition.groups],
        "forecast": [asdict(risk) for risk in partition.forecast],
        "problems": list(partition.problems),
        "unread": list(partition.unread),
        "different_logs": partition.different,
    }
    if partition.coverage is not None:
        coverage = partition.coverage
        fields |= {"compared_below": coverage.below, "keys": coverage.keys, "keys_unsaid": coverage.keys_unsaid}
    return fields


def _replica(replica: AuditedReplica) -> dict[str, Any]:
    fields = asdict(replica)
    return {"replica": fields.pop("name"), **fields}


def finding_document(finding: Finding) -> dict[str, Any]:
    return {
        "class": finding.kind, "replica": finding.replica, "key": shown_bytes(finding.key), "offset": finding.offset,
        "sure": finding.sure, "or_class": finding.or_kind, "or_replica": finding.or_replica,
        "else_class": finding.else_kind, "misleads_readers": finding.misleads, "why": finding.why, "file": finding.file,
        "position": finding.position, "producer_id": finding.producer_id, "producer_epoch": finding.producer_epoch,
        "marker": finding.marker, "served": dict(finding.served), "isolation": finding.isolation,
        "repair": list(finding.repair), "commands": list(finding.commands),
    }  # fmt: skip


def _group(group: FindingGroup) -> dict[str, Any]:
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
