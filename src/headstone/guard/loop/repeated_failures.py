"""What fails at one look and is well at the next is no alarm: a packet is lost, a broker restarts.

Owns for how long something must fail before a person is told, and counts it; the counts are in the journal, so that a guard of
one look counts too. A missing permission does not pass by itself: that is an alarm at once, and nobody asks here.
"""

from __future__ import annotations

import json

from headstone.guard.ledger.journal import Journal

LOOKS_MIN = 3
LASTING_MS = 60_000
"""So many looks in a row; or two, where so long lies between them."""
FAILS = "what fails, at how many looks and since when"
"""Fact of the journal."""


class Lasting:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def since_ms(self, what: str, *, fails: bool, now_ms: int) -> int | None:
        """When it began, if it has failed for long enough to be told; called once at each look that shows whether it fails."""
        counts = self._known()
        looks, first_ms = counts.get(what, (0, now_ms))
        if not fails:
            if what in counts:
                del counts[what]
                self._keep(counts)
            return None
        counts[what] = (looks + 1, first_ms)
        self._keep(counts)
        lasts = looks + 1 >= LOOKS_MIN or (looks > 0 and now_ms - first_ms >= LASTING_MS)
        return first_ms if lasts else None

    def _known(self) -> dict[str, tuple[int, int]]:
        text = self._journal.fact(FAILS)
        return {} if text is None else {str(what): (int(n), int(ms)) for what, (n, ms) in json.loads(text).items()}

    def _keep(self, counts: dict[str, tuple[int, int]]) -> None:
        self._journal.note_fact(FAILS, json.dumps(counts) if counts else None)
