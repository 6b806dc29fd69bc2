"""From what the tasks of an audit found to its outcome: the judgement of each partition, forecast, proofs of keys.

Judgements are made only here: people get them as part of an outcome, the guard turns them into verdicts
(`guard/verification/verdicts.py`). Adds up shares and asks `divergence/` what they mean; reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from headstone.divergence.advice import forecast
from headstone.divergence.identity import Pair, different_contents
from headstone.divergence.outcome import AuditedReplica, AuditOutcome, AuditRun, Coverage, KeyProof, PartitionOutcome
from headstone.divergence.verdicts import Finding
from headstone.pipeline.auditing import PartitionAudit, findings_of, uncompared

ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of one partition's audit."""

    audited: PartitionAudit
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    """Why all or part of it could not be compared."""
    different: str | None
    """Why these are not replicas of one partition. Findings about them would mean nothing, so none are advised on."""
    incomplete: str | None
    """Why it is unknown which of the replicas read is right, if any."""
    uncompared: Mapping[str, str]
    """Replicas that were compared with no other, and why: nothing is known about them, or not yet."""


def judgement_of(audited: PartitionAudit) -> Judgement:
    """If these are different logs, it has no findings."""
    different = audited.different or different_contents(_pairs(audited))
    problems = tuple(problem for problem in audited.problems if problem != audited.different)
    unexplained = None if different is not None else _unexplained(audited)
    return Judgement(
        audited=audited, findings=tuple(findings_of(audited)) if different is None else (), different=different,
        problems=problems if unexplained is None else (*problems, unexplained), incomplete=unexplained,
        uncompared=uncompared(audited.results),
    )  # fmt: skip


def outcome_of(
    judgements: Sequence[Judgement], wanted: Sequence[bytes], *, run: AuditRun, delete_retention_ms: int
) -> AuditOutcome:
    """`wanted`: keys to prove. The forecast uses the run's clock and delete.retention.ms."""
    partitions = (
        _partition_outcome(judgement, now_ms=run.time_ms, delete_retention_ms=delete_retention_ms)
        for judgement in judgements
    )
    audits = [judgement.audited for judgement in judgements]
    proofs = [proof for key in wanted for proof in _proofs(audits, key)]
    return AuditOutcome(run=run, partitions=tuple(partitions), proofs=tuple(proofs))


def _partition_outcome(judgement: Judgement, *, now_ms: int, delete_retention_ms: int) -> PartitionOutcome:
    audited, different = judgement.audited, judgement.different
    coverage, risks = None, []
    if audited.results:
        first = audited.results[0]
        coverage = Coverage(
            below=first.below, keys=sum(result.compared.keys for result in audited.results),
            keys_unsaid=sum(result.compared.unsaid for result in audited.results),
        )  # fmt: skip
        if different is None:
            risks = forecast(first.facts, now_ms=now_ms, delete_retention_ms=delete_retention_ms)
    return PartitionOutcome(
        partition=audited.partition, coverage=coverage, replicas=_replicas(audited) if audited.results else (),
        findings=judgement.findings, forecast=tuple(risks), problems=judgement.problems, unread=tuple(audited.unread),
        different=different,
    )  # fmt: skip


def _unexplained(audited: PartitionAudit) -> str | None:
    unexplained = sum(result.compared.unexplained for result in audited.results)
    return f"{unexplained} more keys differ and were not explained" if unexplained else None


def _pairs(audited: PartitionAudit) -> dict[Pair, tuple[int, int]]:
    """Added up over all shares of the keys."""
    pairs: dict[Pair, tuple[int, int]] = {}
    for result in audited.results:
        for names, (common, differing) in result.compared.pairs.items():
            before = pairs.get(names, (0, 0))
            pairs[names] = (before[0] + common, before[1] + differing)
    return pairs


def _replicas(audited: PartitionAudit) -> tuple[AuditedReplica, ...]:
    """Live keys are counted by share, everything else once."""
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
