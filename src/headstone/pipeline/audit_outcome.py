"""From what the tasks of an audit found to its outcome: findings with what to do about them, forecast, proofs of keys.

Adds up shares and asks `audit/` what it means; reads nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from headstone.audit.advice import forecast
from headstone.audit.outcome import AuditedReplica, AuditOutcome, Coverage, KeyProof, PartitionOutcome
from headstone.pipeline.auditing import PartitionAudit, findings_of

ABSENT = "absent"


def outcome_of(
    audits: Sequence[PartitionAudit], wanted: Sequence[bytes], *, now_ms: int, delete_retention_ms: int
) -> AuditOutcome:
    """wanted: keys to prove. The clock and delete.retention.ms are for the forecast."""
    partitions = (
        partition_outcome(audited, now_ms=now_ms, delete_retention_ms=delete_retention_ms) for audited in audits
    )
    proofs = [proof for key in wanted for proof in _proofs(audits, key)]
    return AuditOutcome(partitions=tuple(partitions), proofs=tuple(proofs))


def partition_outcome(audited: PartitionAudit, *, now_ms: int, delete_retention_ms: int) -> PartitionOutcome:
    problems, unread = tuple(audited.problems), tuple(audited.unread)
    if not audited.results:
        return PartitionOutcome(partition=audited.partition, coverage=None, problems=problems, unread=unread)
    first = audited.results[0]
    unexplained = sum(result.compared.unexplained for result in audited.results)
    if unexplained:
        problems = (*problems, f"{unexplained} more keys differ and were not explained")
    return PartitionOutcome(
        partition=audited.partition,
        coverage=Coverage(below=first.below, keys=sum(result.compared.keys for result in audited.results)),
        replicas=_replicas(audited),
        findings=tuple(findings_of(audited)),
        forecast=tuple(forecast(first.facts, now_ms=now_ms, delete_retention_ms=delete_retention_ms)),
        problems=problems,
        unread=unread,
    )


def _replicas(audited: PartitionAudit) -> tuple[AuditedReplica, ...]:
    """Live keys are counted by share, all else once."""
    first = audited.results[0]
    first_dirty = {replica.name: replica.first_dirty for replica in audited.replicas}
    replicas = []
    for i, facts in enumerate(first.facts):
        counts = asdict(first.counts[i])
        counts["live_keys"] = sum(result.counts[i].live_keys for result in audited.results)
        replicas.append(
            AuditedReplica(
                name=facts.name, log_start=facts.log_start, log_end=facts.log_end, lso=facts.lso,
                high_watermark=facts.high_watermark, first_dirty=first_dirty[facts.name],
                open_transactions=len(facts.open_txns), **counts,
            )
        )  # fmt: skip
    return tuple(replicas)


def _proofs(audits: Sequence[PartitionAudit], key: bytes) -> list[KeyProof]:
    proofs = [
        KeyProof(key=key, partition=audited.partition, replicas=states)
        for audited in audits
        for result in audited.results
        for proved, states in result.proofs
        if proved == key and any(state != ABSENT for state in states.values())
    ]
    return proofs or [KeyProof(key=key, replicas={})]
