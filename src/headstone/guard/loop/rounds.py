"""A round of the guard, and the guard's settings: values.

`watcher.py` makes them; the packages above it print, keep and show them.
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
"""A lease lasts this many polls plus half of the time that a hold may take: when it expires, another guard must still be in
time."""
MARGINS = "margins"
"""Fact of the journal: the leading guard's margins, for `guard status`."""
HASTY = (SetHold, AskBrokers, EndPasses, HoldByDefault, Release, ReleaseDefault)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """`topics` empty: every compacted topic. `name` is how other guards see this one."""

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
    """One look and what came of it. `lost` is the reason if there was none; memories and statuses are then the last known
    ones."""

    began_ms: int
    ended_ms: int
    lease: Lease
    leads: bool
    cluster_id: str
    whole: bool = True
    """False if only topics whose change is being followed were looked at."""
    memories: Mapping[str, Memory]
    statuses: Mapping[str, tuple[Status, ...]]
    done: tuple[Done, ...] = ()
    alarms: tuple[KeptAlarm, ...] = ()
    problems: tuple[str, ...] = ()
    held_bytes: Mapping[str, int]
    """By topic: how much its replicas have grown since it was held."""
    looked_ms: int | None = None
    """When the newest look at everything watched began; None if there was none."""
    lost: str | None = None
    unwritten: bool = False
    """True if the journal failed, not the cluster."""
    brokers: tuple[int, ...] = ()
    """Brokers that were alive at the newest look."""
    unseen: tuple[str, ...] = ()
    """What the newest look at everything watched could not learn."""

    @property
    def hasty(self) -> tuple[str, ...]:
        """Topics with a change to follow up soon."""
        return tuple(sorted({done.topic for done in self.done if done.outcome and isinstance(done.action, HASTY)}))
