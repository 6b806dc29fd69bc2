"""A round of the guard's, and what the guard was told to do: values.

Made by `watcher.py`; told, kept and shown by everybody above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    Allowed,
    AskBrokers,
    EndPasses,
    HoldByDefault,
    Memory,
    Release,
    ReleaseDefault,
    SetHold,
    Status,
)
from headstone.guard.acting.outcomes import Done
from headstone.guard.ledger.journal_values import KeptAlarm, Lease

LEASE_POLLS = 3
"""A lease outlives some looks, and half of the time that a hold may take: another guard must still be in time."""
MARGINS = "margins"
"""Fact of the journal: what the guard that leads counts with, for whoever asks for the status."""
HASTY = (SetHold, AskBrokers, EndPasses, HoldByDefault, Release, ReleaseDefault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`topics` empty: every compacted topic. `name` is by which other guards see this one."""

    name: str
    margins: Margins = field(default_factory=Margins)
    allowed: Allowed = field(default_factory=Allowed)
    topics: tuple[str, ...] = ()
    applies: bool = False

    @property
    def lease_ms(self) -> int:
        return LEASE_POLLS * self.margins.poll_ms + self.margins.effect_ms // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One look and what came of it. `lost` is why there was none; memories and statuses are then the last known."""

    began_ms: int
    ended_ms: int
    lease: Lease
    leads: bool
    cluster_id: str
    whole: bool = True
    """False: only of the topics whose change is followed."""
    memories: Mapping[str, Memory]
    statuses: Mapping[str, tuple[Status, ...]]
    done: tuple[Done, ...] = ()
    alarms: tuple[KeptAlarm, ...] = ()
    problems: tuple[str, ...] = ()
    held_bytes: Mapping[str, int]
    """By topic: what its replicas have grown by since it was held."""
    looked_ms: int | None = None
    """When the newest look at the whole began; None: there was none."""
    lost: str | None = None
    unwritten: bool = False
    """It was lost by the journal, not by the cluster."""
    brokers: tuple[int, ...] = ()
    """That the newest look found alive."""
    unseen: tuple[str, ...] = ()
    """What the newest look at the whole could not learn."""

    @property
    def hasty(self) -> tuple[str, ...]:
        """Topics whose change should be seen soon."""
        return tuple(sorted({done.topic for done in self.done if done.outcome and isinstance(done.action, HASTY)}))
