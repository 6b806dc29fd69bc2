"""A failure at one look that is gone at the next is no alarm: a packet is lost, a broker restarts.

Owns how long something must fail before a person is told, and counts it in the journal, so that guards of one look each count
too. Not for a missing permission, which does not pass by itself: that is an alarm at once.
"""

from __future__ import annotations

from headstone.guard.ledger.counts import failing, forget_failing, keep_failing
from headstone.guard.ledger.journal import Journal

LOOKS_MIN = 3
LASTING_MS = 60_000
"""Fails for LOOKS_MIN looks in a row; or for two that lie at least this far apart."""


class Lasting:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def since_ms(self, what: str, *, fails: bool, now_ms: int) -> int | None:
        """Since when, if it has failed long enough to report. Call once at each look that shows whether it fails."""
        counted = failing(self._journal, what)
        if not fails:
            if counted is not None:
                forget_failing(self._journal, what)
            return None
        looks, first_ms = counted or (0, now_ms)
        keep_failing(self._journal, what, looks + 1, first_ms)
        lasts = looks + 1 >= LOOKS_MIN or (looks > 0 and now_ms - first_ms >= LASTING_MS)
        return first_ms if lasts else None
