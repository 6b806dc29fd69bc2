"""What became of an action, as values.

Which actions there are is `coordination/guard_values.py`'s; how one is carried out, `changes.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstone.coordination.guard_values import Action, Configs, Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`why` is None if it was done, or was not needed any more; else the reason, for a person. held_on: who said so."""

    why: str | None = None
    needed: bool = True
    """False: there was nothing to do any more, or others still need it."""
    held_on: tuple[int, ...] = ()
    found: Configs = ()
    """What a hold will go back to, as it stood just before."""
    unanswered: bool = False
    """`why` is that nobody answered: no permission is missing, and a change may have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An action of one topic; outcome is None if it was only wished for: a dry run, or another guard leads."""

    topic: str
    action: Action
    outcome: Outcome | None


def is_held(memory: Memory) -> bool:
    return memory.hold is not None and memory.hold.seen_ms is not None and memory.hold.released_ms is None
