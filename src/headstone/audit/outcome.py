"""The outcome of an audit: the verdict, and of every partition its replicas, findings, forecast and what was not covered.

Values only. Who prints them, and how, is not this room's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headstone.audit.advice import Risk
from headstone.audit.verdicts import Finding, Group, grouped, verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedReplica:
    """What one replica holds of a partition. None: nobody has told."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How far the replicas were compared: below an exclusive offset, and how many keys."""

    below: int
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    partition: str
    coverage: Coverage | None
    """None: nothing was compared."""
    replicas: tuple[AuditedReplica, ...] = ()
    findings: tuple[Finding, ...] = ()
    forecast: tuple[Risk, ...] = ()
    problems: tuple[str, ...] = ()
    """Why it could not be compared, or not all of it."""
    unread: tuple[str, ...] = ()
    """Replicas that could not be read."""

    @property
    def groups(self) -> list[Group]:
        return grouped(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyProof:
    """What each replica has of a key; of a key that is nowhere there is one proof, without partition."""

    key: bytes
    partition: str | None = None
    replicas: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutcome:
    partitions: tuple[PartitionOutcome, ...]
    proofs: tuple[KeyProof, ...] = ()

    @property
    def verdict(self) -> str:
        problems = sum(len(partition.problems) for partition in self.partitions)
        return verdict(self.findings, problems)

    @property
    def findings(self) -> int:
        return sum(len(partition.findings) for partition in self.partitions)
