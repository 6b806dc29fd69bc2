"""The outcome of an audit: the verdict, and for each partition its replicas, findings, forecast and what was not covered.

Values only; prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headstone import units
from headstone.divergence.advice import Risk
from headstone.divergence.verdicts import Finding, FindingGroup, grouped, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedReplica:
    """What one replica holds of a partition. Fields are None if unknown."""

    name: str
    log_start: int
    log_end: int
    lso: int
    high_watermark: int | None
    first_dirty: int | None
    open_transactions: int
    records: int
    live_keys: int
    tombstones: int
    aborted: int
    open: int
    control: int
    keyless: int
    """Records without a key: counted, but never compared by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How far the replicas were compared: below an exclusive offset, and how many keys.

    `keys_unsaid`: keys that were not compared, because all replicas, or all but one, have nothing to say about them."""

    below: int
    keys: int
    keys_unsaid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    partition: str
    coverage: Coverage | None
    """None if nothing was compared."""
    replicas: tuple[AuditedReplica, ...] = ()
    findings: tuple[Finding, ...] = ()
    forecast: tuple[Risk, ...] = ()
    problems: tuple[str, ...] = ()
    """Why it could not be compared, or only in part."""
    unread: tuple[str, ...] = ()
    """Replicas that could not be read."""
    different: str | None = None
    """Why these are not replicas of one partition; then there are no findings, and no advice."""

    @property
    def groups(self) -> list[FindingGroup]:
        return grouped(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyProof:
    """What each replica has of a key; a key that is nowhere has one proof, without a partition."""

    key: bytes
    partition: str | None = None
    replicas: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRun:
    """What makes an outcome evidence: when, by which program, of what, and what was not examined."""

    time_ms: int
    version: str
    command: str
    sources: tuple[str, ...]
    """Log directories as they were named, or the address of the cluster."""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutcome:
    run: AuditRun
    partitions: tuple[PartitionOutcome, ...]
    proofs: tuple[KeyProof, ...] = ()

    @property
    def verdict(self) -> str:
        problems = sum(len(partition.problems) for partition in self.partitions)
        different = sum(partition.different is not None for partition in self.partitions)
        return verdict(self.findings, problems, different=different)

    @property
    def replicas(self) -> list[str]:
        """All replicas that were read, by name."""
        return sorted({replica.name for partition in self.partitions for replica in partition.replicas})

    @property
    def keys(self) -> int:
        return sum(partition.coverage.keys for partition in self.partitions if partition.coverage is not None)

    @property
    def records(self) -> int:
        """Over all replicas."""
        return sum(replica.records for partition in self.partitions for replica in partition.replicas)

    @property
    def compared(self) -> str:
        """How much was compared, in words."""
        if all(partition.coverage is None for partition in self.partitions):
            return "nothing"
        return f"{units.count(self.keys, 'key')}, {units.count(self.records, 'record')} of all replicas"

    @property
    def left_out(self) -> list[str]:
        """What the verdict does not cover."""
        keyless = sum(replica.keyless for partition in self.partitions for replica in partition.replicas)
        unkeyed = f"{units.count(keyless, 'record')} without a key: compared by offset, not by key"
        unsaid = sum(p.coverage.keys_unsaid for p in self.partitions if p.coverage is not None)
        silent = (
            f"{units.count(unsaid, 'key')}: fewer than two replicas can say (written again where the others have not got to, "
            "in an open transaction, or before a log's start)"
        )
        unread = [
            f"{partition.partition} on {name}: not read" for partition in self.partitions for name in partition.unread
        ]
        uncovered = [
            f"{partition.partition}: nothing was compared"
            for partition in self.partitions
            if partition.coverage is None
        ]
        return [*self.run.left_out, *([unkeyed] if keyless else []), *([silent] if unsaid else []), *unread, *uncovered]

    @property
    def findings(self) -> int:
        return sum(len(partition.findings) for partition in self.partitions)
