"""The outcome of an action, as values.

The actions themselves are defined in `coordination/guard_values.py` and carried out in `changes.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstone.coordination.guard_values import Action, Configs, Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOutcome:
    """`why`: None if the action was done or no longer needed, else the reason, for a person. `held_on`: brokers that confirmed
    it."""

    why: str | None = None
    needed: bool = True
    """False if there was nothing left to do, or other topics still need it."""
    held_on: tuple[int, ...] = ()
    found: Configs = ()
    """The values found just before a hold, which its release restores."""
    unanswered: bool = False
    """True if `why` is a missing answer: no permission is missing, and the change may have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One action for a topic. `outcome` is None if it was not carried out: a dry run, or another guard leads."""

    topic: str
    action: Action
    outcome: ActionOutcome | None


def is_held(memory: Memory) -> bool:
    return memory.hold is not None and memory.hold.seen_ms is not None and memory.hold.released_ms is None
