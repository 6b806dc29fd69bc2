"""Is a replica right? Reads it and the others of its partition over the wire and compares them.

The judgement is the audit's; here it becomes a verdict for each replica. Needs READ, changes nothing. What to do about it is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from headstone.audit.findings import OTHER
from headstone.audit.verdicts import Finding
from headstone.audit.views import ReplicaFacts
from headstone.cluster.connection import Connection
from headstone.cluster.replicas import BYTES_PER_SECOND, Copied, copy_partition
from headstone.coordination.guard_values import Verdict
from headstone.errors import CorruptLog, Unfinished
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.auditing import PartitionAudit, audit, findings_of, replicas_of
from headstone.pipeline.inprocess import InProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """`why` in words for a person; empty if it is right. `read` is False if its broker did not let it be read.

    `behind`: it had not heard yet of all that its leader called committed, and nothing else speaks against it."""

    verdict: Verdict
    why: str = ""
    read: bool = True
    behind: bool = False


def verify(
    connection: Connection, topic: str, partition: int, broker: int, *, work: Path, bytes_per_second: int = BYTES_PER_SECOND
) -> dict[int, Verdict]:  # fmt: skip
    """By broker, of one replica and of the others that could be judged with it. Unfinished if that one could not be read:
    that is no evidence against it, ask again later."""
    wanted = TopicPartition(topic, partition)
    read = read_replicas(connection, wanted, last=broker, work=work, bytes_per_second=bytes_per_second)
    judged = read.get(broker)
    if judged is None:
        raise Unfinished(f"{wanted}: broker {broker} is not among its replicas any more")
    if not judged.read or judged.behind:
        raise Unfinished(f"{wanted}: {judged.why}")
    return {number: other.verdict for number, other in read.items() if other.read and not other.behind}


def read_replicas(
    connection: Connection, partition: TopicPartition, *, last: int, work: Path, bytes_per_second: int = BYTES_PER_SECOND
) -> dict[int, Judged]:  # fmt: skip
    """By broker, of all replicas; that of broker `last` is read at the end. Copies go to `work` and are gone afterwards."""
    with TemporaryDirectory(dir=work, prefix="replicas-") as copies:
        copied = copy_partition(connection, partition, Path(copies), last=last, bytes_per_second=bytes_per_second)
        groups = replicas_of(
            [(str(number), find_partitions([str(path)])) for number, path in sorted(copied.directories.items())]
        )
        audits = audit(groups, InProcess()) if groups else []
        return judge(copied, audits[0] if audits else None)


def judge(copied: Copied, audited: PartitionAudit | None) -> dict[int, Judged]:
    """Of the one partition that was copied."""
    judged = {broker: _unread(broker, error) for (_, broker), error in copied.failures.items()}
    if audited is None:
        return judged
    facts = {int(one.name): one for one in (audited.results[0].facts if audited.results else ())}
    findings = findings_of(audited)
    doubts = _doubts(audited, findings, copied)
    behind = _behind(copied, audited, facts)
    for broker in copied.directories:
        if broker not in facts:
            judged[broker] = Judged(verdict=Verdict.UNJUDGED, why="; ".join(audited.problems) or "it was not compared")
            continue
        wrong = [finding for finding in findings if finding.replica == str(broker) and _certain(finding)]
        doubt = doubts.get(str(broker)) or _incomplete(audited)
        if wrong:
            judged[broker] = Judged(verdict=Verdict.WRONG, why=_told(wrong))
        elif doubt or broker in behind:
            why = doubt or behind[broker]
            judged[broker] = Judged(verdict=Verdict.UNJUDGED, why=why, behind=not doubt)
        else:
            judged[broker] = Judged(verdict=Verdict.RIGHT)
    return judged


def _unread(broker: int, error: Exception) -> Judged:
    """A log that cannot be read as one is evidence; a broker that does not answer is none."""
    why = f"the replica on broker {broker} was not read: {error}"
    return Judged(verdict=Verdict.UNJUDGED, why=why, read=isinstance(error, CorruptLog))


def _certain(finding: Finding) -> bool:
    """About this replica, whatever else it may be."""
    return finding.kind != OTHER and finding.or_replica in (None, finding.replica)


def _told(findings: Sequence[Finding]) -> str:
    first = findings[0]
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return f"{first.kind} at offset {first.offset}: {first.why}{more}"


def _doubts(audited: PartitionAudit, findings: Sequence[Finding], copied: Copied) -> dict[str, str]:
    """By replica: the first thing that may speak against it."""
    doubts = dict(copied.withheld(audited))
    for finding in findings:
        for name in (finding.replica, finding.or_replica):
            if name is not None and not (name == finding.replica and _certain(finding)):
                doubts.setdefault(name, f"it, or another replica: {_told([finding])}")
    for difference in (difference for result in audited.results for difference in result.compared.differences):
        for name in difference.doubtful:
            doubts.setdefault(name, f"it may be wrong about a key too: {difference.why}")
    return doubts


def _behind(copied: Copied, audited: PartitionAudit, facts: Mapping[int, ReplicaFacts]) -> dict[int, str]:
    """The leader was read first: who has not heard by now of all that it called committed was not compared up to there."""
    leader = copied.leaders[audited.partition]
    if leader not in facts:
        return dict.fromkeys(facts, f"its leader, broker {leader}, was not read")
    end = facts[leader].trusted_end
    return {
        broker: f"it has heard of what is committed up to {one.trusted_end} only, of {end}: it was not compared beyond"
        for broker, one in facts.items()
        if one.trusted_end < end
    }


def _incomplete(audited: PartitionAudit) -> str:
    unexplained = sum(result.compared.unexplained for result in audited.results)
    if unexplained:
        return f"{unexplained} more keys differ and were not explained"
    # A replica that could not be read is its own doubt, not the others'.
    whole = [problem for problem in audited.problems if problem.startswith("nothing could be compared")]
    return whole[0] if whole else ""
