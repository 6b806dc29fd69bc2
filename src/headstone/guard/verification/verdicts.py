"""Is a replica right? Reads all replicas of its partition over the wire and compares them.

The audit judges; this file turns its judgement into a verdict on each replica. Needs READ, changes nothing. What to do about a
verdict is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from headstone.cluster.connection import Connection
from headstone.cluster.defaults import BYTES_PER_SECOND
from headstone.cluster.live_audit import audit_partition, withheld
from headstone.cluster.replicas import CopiedReplicas
from headstone.coordination.guard_values import Verdict
from headstone.divergence.findings import OTHER
from headstone.divergence.verdicts import Finding
from headstone.divergence.views import ReplicaFacts
from headstone.errors import CorruptLog, Unfinished
from headstone.guard.verification.reasons import DAMAGED, DIFFERENT_LOGS, DIFFERS, WITHHELD
from headstone.log.shown import shown_bytes
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.audit_outcome import Judgement
from headstone.pipeline.auditing import PartitionAudit
from headstone.pipeline.runner import SilentRunner

FINDINGS_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedReplica:
    """`why`: in words for a person; empty if the replica is right. `read`: False if its broker did not let it be read.

    `behind`: it has not yet heard of all that its leader called committed, and nothing else speaks against it."""

    verdict: Verdict
    why: str = ""
    read: bool = True
    behind: bool = False


def verify(
    connection: Connection, topic: str, partition: int, broker: int, *, work: Path, bytes_per_second: int = BYTES_PER_SECOND
) -> dict[int, JudgedReplica]:  # fmt: skip
    """By broker, for the requested replica and all others that could be judged with it. Raises Unfinished if the requested one
    could not be read or compared in full: that is no evidence against it, so ask again later."""
    wanted = TopicPartition(topic, partition)
    read = read_replicas(connection, wanted, last=broker, work=work, bytes_per_second=bytes_per_second)
    judged = read.get(broker)
    if judged is None:
        raise Unfinished(f"{wanted}: broker {broker} is no longer one of its replicas")
    if not judged.read or judged.behind:
        raise Unfinished(f"{wanted}: {judged.why}")
    return {number: other for number, other in read.items() if other.read and not other.behind}


def read_replicas(
    connection: Connection, partition: TopicPartition, *, last: int, work: Path, bytes_per_second: int = BYTES_PER_SECOND
) -> dict[int, JudgedReplica]:  # fmt: skip
    """By broker, for all replicas. Reads the replica of broker `last` at the end. Copies go to `work` and are deleted
    afterwards."""
    with TemporaryDirectory(dir=work, prefix="replicas-") as copies:
        live = audit_partition(
            connection, partition, SilentRunner(), last=last, work=Path(copies), bytes_per_second=bytes_per_second
        )  # fmt: skip
        return verdicts_of(live.copied, live.judgements[str(partition)])


def verdicts_of(copied: CopiedReplicas, judgement: Judgement) -> dict[int, JudgedReplica]:
    """By broker, for the one partition that was copied."""
    audited = judgement.audited
    judged = {broker: _unread(broker, error) for (_, broker), error in copied.failures.items()}
    facts = {int(one.name): one for one in (audited.results[0].facts if audited.results else ())}
    doubts = _doubts(judgement, copied)
    of_all = _doubt_of_all(judgement)
    behind = _behind(copied, audited, facts)
    for broker in copied.directories:
        if broker not in facts:
            judged[broker] = JudgedReplica(
                verdict=Verdict.UNJUDGED, why="; ".join(audited.problems) or "it was not compared"
            )
            continue
        wrong = [finding for finding in judgement.findings if finding.replica == str(broker) and _certain(finding)]
        doubt = of_all if judgement.different is not None else doubts.get(str(broker)) or of_all
        uncompared = judgement.uncompared.get(str(broker))
        # If the replica only lags, it can be compared later.
        lags = broker in behind or (uncompared is not None and bool(behind))
        if wrong:
            judged[broker] = JudgedReplica(verdict=Verdict.WRONG, why=_told(wrong))
        elif doubt or uncompared or lags:
            why = doubt or behind.get(broker) or uncompared or ""
            judged[broker] = JudgedReplica(verdict=Verdict.UNJUDGED, why=why, behind=lags and not doubt)
        else:
            judged[broker] = JudgedReplica(verdict=Verdict.RIGHT)
    return judged


def _unread(broker: int, error: Exception) -> JudgedReplica:
    """A log that cannot be parsed is evidence; a broker that does not answer is not."""
    damaged = isinstance(error, CorruptLog)
    why = f"{f'{DAMAGED}: ' if damaged else ''}the replica on broker {broker} was not read: {error}"
    return JudgedReplica(verdict=Verdict.UNJUDGED, why=why, read=damaged)


def _certain(finding: Finding) -> bool:
    """True if the finding is about this replica and no other."""
    return finding.kind != OTHER and finding.or_replica in (None, finding.replica)


def _told(findings: Sequence[Finding]) -> str:
    """The first findings, each with its class, key, offset and replica."""
    left = len(findings) - FINDINGS_TOLD
    lines = [_one_told(finding) for finding in findings[:FINDINGS_TOLD]]
    return "; ".join([*lines, *([f"and {left} more"] if left > 0 else [])])


def _one_told(finding: Finding) -> str:
    key = "" if finding.key is None else f" of key {shown_bytes(finding.key)}"
    kind = "unexplained difference" if finding.kind == OTHER else finding.kind
    return f"{kind}{key} at offset {finding.offset} on broker {finding.replica}: {finding.why}"


def _doubts(judgement: Judgement, copied: CopiedReplicas) -> dict[str, str]:
    """By replica: the first thing that may speak against it."""
    audited = judgement.audited
    doubts = {name: f"{WITHHELD}: {why}" for name, why in withheld(copied, audited).items()}
    for finding in judgement.findings:
        for name in (finding.replica, finding.or_replica):
            if name is not None and not (name == finding.replica and _certain(finding)):
                doubts.setdefault(name, f"{DIFFERS}: {_told([finding])}")
    for difference in (difference for result in audited.results for difference in result.compared.differences):
        for name in difference.doubtful:
            doubts.setdefault(name, f"{DIFFERS}: it may be wrong about a key too: {difference.why}")
    return doubts


def _doubt_of_all(judgement: Judgement) -> str | None:
    """What may speak against every replica."""
    if judgement.different is not None:
        return f"{DIFFERENT_LOGS}: {judgement.different}"
    return None if judgement.incomplete is None else f"{DIFFERS}: {judgement.incomplete}"


def _behind(copied: CopiedReplicas, audited: PartitionAudit, facts: Mapping[int, ReplicaFacts]) -> dict[int, str]:
    """The leader was read first: a replica that has not heard since of everything the leader called committed was compared only
    up to what it has heard of."""
    leader = copied.leaders.get(audited.partition)
    if leader is None or leader not in facts:
        return dict.fromkeys(facts, f"its leader, broker {leader}, was not read")
    end = facts[leader].trusted_end
    return {
        broker: f"it has heard of what is committed up to {one.trusted_end} only, of {end}: it was not compared beyond"
        for broker, one in facts.items()
        if one.trusted_end < end
    }
