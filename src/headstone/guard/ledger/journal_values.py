"""What a journal keeps, as values: changes, alarms, readings, who leads, what is remembered of a topic.

No file and no SQL: those are `journal.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstone.coordination.guard_values import Configs, Memory, Status, Verdict

BEGUN = None
"""Outcome of a change whose end nobody has seen: it was carried out, or not."""


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
    """How often it was tried: one that was refused and is tried again as it was is the same change."""
    last_ms: int | None = None
    """When it was tried again, the last time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAlarm:
    """Something a person must know, as long as it is so. topic is empty where it is about the cluster or the guard."""

    kind: str
    topic: str = ""
    partition: int | None = None
    broker: int | None = None
    detail: str = ""
    first_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A replica that was read and compared with the others; read_ms is when that began. verdict None: it could not be read,
    and detail says why."""

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
    """False: of a dry run, which gives way to a guard that acts."""
    topics: tuple[str, ...] = ()
    """The topics its guard watches, sorted; empty: every compacted topic."""
    epoch: int = 0
    """One more each time that it is taken, also by the same guard after it ran out: what was decided before is void."""

    def watches(self, topic: str) -> bool:
        return not self.topics or topic in self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """Of one topic, as it was decided last."""

    memory: Memory
    statuses: tuple[Status, ...] = ()
    looked_ms: int = 0
