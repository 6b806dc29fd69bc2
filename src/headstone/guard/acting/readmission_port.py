"""What acting and the loop ask of readmission: wishes in, and back what does not go on.

The port only, so that neither knows how a replica is readmitted: `readmission/automatic.py` implements it, and `assembly.py`
connects them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headstone.coordination.guard_values import AddAgain, Expel
from headstone.coordination.readmission import Readmission
from headstone.guard.ledger.overrides import Void


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A readmission that does not go on, and why, for a person."""

    readmission: Readmission
    why: str
    unanswered: bool = False
    """`why` is that nobody answered."""


class ReadmissionPort(Protocol):
    """Of the guard that leads and acts."""

    def want(self, action: Expel | AddAgain, void: Void) -> None:
        """Until the next `go_on`: what was not decided again is not done any more."""

    def go_on(self, void: Void) -> list[Stuck]:
        """Each of them as far as it goes now. `void`: of all of them, as when another guard may lead."""
