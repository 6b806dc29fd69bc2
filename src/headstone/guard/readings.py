"""Reads replicas that came back, one at a time and beside the loop, and writes what was found into the journal.

A reading may take minutes and fail; the loop asks again as long as it wants one. How a replica is read and judged is
`readmission.py`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headstone.coordination.guard_values import Verdict, Verify
from headstone.errors import HeadstoneError
from headstone.guard.journal import Journal, Reading
from headstone.log.shown import visible

Read = Callable[[str, int, int], Verdict]
"""Topic, partition, broker."""


class Readings:
    """`beside`: on a thread of its own, else at once."""

    def __init__(
        self, read: Read, journal: Journal, *, clock: Callable[[], int], tell: Callable[[str], None], beside: bool
    ) -> None:  # fmt: skip
        self._read, self._journal, self._clock, self._tell = read, journal, clock, tell
        self._beside = beside
        self._thread: threading.Thread | None = None
        self._ended = False

    def end(self) -> None:
        """A reading that still goes on is left alone, and what it finds is of no use any more."""
        self._ended = True

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def want(self, wanted: Verify) -> bool:
        """False while another reading goes on: ask again at the next look."""
        if self.busy:
            return False
        if not self._beside:
            self._run(wanted)
            return True
        # A daemon: the end of the guard does not wait for it. It changes nothing but the journal, whole or not at all.
        self._thread = threading.Thread(target=self._run, args=(wanted,), name="reading", daemon=True)
        self._thread.start()
        return True

    def _run(self, wanted: Verify) -> None:
        read_ms = self._clock()
        try:
            verdict = self._read(wanted.topic, wanted.partition, wanted.broker)
        except (HeadstoneError, OSError) as error:
            if not self._ended:
                self._tell(visible(f"{wanted.topic}-{wanted.partition}: broker {wanted.broker}: not read: {error}"))
            return
        if self._ended:
            return
        reading = Reading(partition=wanted.partition, broker=wanted.broker, verdict=verdict, read_ms=read_ms)
        self._journal.note_reading(wanted.topic, reading)
