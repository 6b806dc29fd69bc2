"""What fails at one look and is well at the next is no alarm: a packet is lost, a broker restarts.

Owns for how long something must fail before a person is told, and counts it; the counts are in the journal, so that a guard of
one look counts too. A missing permission does not pass by itself: that is an alarm at once, and nobody asks here.
"""

from __future__ import annotations

from headstone.guard.ledger.counts import failing, forget_failing, keep_failing
from headstone.guard.ledger.journal import Journal

LOOKS_MIN = 3
LASTING_MS = 60_000
"""So many looks in a row; or two, where so long lies between them."""


class Lasting:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def since_ms(self, what: str, *, fails: bool, now_ms: int) -> int | None:
        """When it began, if it has failed for long enough to be told; called once at each look that shows whether it fails."""
        counted = failing(self._journal, what)
        if not fails:
            if counted is not None:
                forget_failing(self._journal, what)
            return None
        looks, first_ms = counted or (0, now_ms)
        keep_failing(self._journal, what, looks + 1, first_ms)
        lasts = looks + 1 >= LOOKS_MIN or (looks > 0 and now_ms - first_ms >= LASTING_MS)
        return first_ms if lasts else None
