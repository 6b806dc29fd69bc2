"""What a journal keeps, as values: changes, alarms, readings, the lease, the memory of a topic.

No file and no SQL: those are in `journal.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstone.coordination.guard_values import Configs, Memory, Status, Verdict

BEGUN = None
"""Outcome of a change whose end is not known: it may have been carried out or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of the cluster. `old` and `new` are configs, or a partition's replicas as ("replicas", "1,2,3"), or its leader
    as ("leader", "1")."""

    resource: str
    """In words: topic orders, cluster default, broker 3, partition orders-0."""
    topic: str | None
    old: Configs
    new: Configs
    reason: str
    evidence: str
    began_ms: int
    number: int = 0
    ended_ms: int | None = None
    outcome: str | None = BEGUN
    times: int = 1
    """How often it was tried: the same change, tried again after a refusal, is the same row."""
    last_ms: int | None = None
    """When it was tried last, if more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAlarm:
    """Something that a person must know while it lasts. `topic` is empty if it is about the cluster or the guard."""

    kind: str
    topic: str = ""
    partition: int | None = None
    broker: int | None = None
    detail: str = ""
    first_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReading:
    """One replica, read and compared with the others; `read_ms` is when the reading began. `verdict` is None if it could not be
    read, and `detail` says why."""

    partition: int
    broker: int
    verdict: Verdict | None
    read_ms: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    holder: str
    until_ms: int
    applies: bool
    """False for a dry run, which gives way to a guard that acts."""
    topics: tuple[str, ...] = ()
    """The topics that its guard watches, sorted; empty: every compacted topic."""
    epoch: int = 0
    """Rises whenever the lease is taken, also by the same guard after it had expired: decisions from before are void."""

    def watches(self, topic: str) -> bool:
        return not self.topics or topic in self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedTopic:
    """A topic's memory and statuses as of its last decision."""

    memory: Memory
    statuses: tuple[Status, ...] = ()
    looked_ms: int = 0
