"""What `acting` and `loop` need of readmission: requests go in, and readmissions that are stuck come back.

Only the port, so that neither knows how a replica is readmitted. `readmission/automatic.py` implements it and `assembly.py`
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
    """A readmission that makes no progress, and the reason, for a person."""

    readmission: Readmission
    why: str
    unanswered: bool = False
    """True if `why` is a missing answer."""


class ReadmissionPort(Protocol):
    """Readmissions by the guard that leads and acts."""

    def want(self, action: Expel | AddAgain, void: Void) -> None:
        """Valid until the next `go_on`: a request that is not decided again is dropped."""

    def go_on(self, void: Void) -> list[Stuck]:
        """Takes each readmission as far as it can go now. `void` stops all of them, for example when another guard may lead."""
