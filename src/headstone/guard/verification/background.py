"""Reads replicas that came back, one at a time and beside the loop, and writes what was found into the journal.

A reading may take minutes and fail in any way, which is written too, with the reason; the loop asks again as long as it wants
one. How a replica is read and judged is `verdicts.py`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headstone.coordination.guard_values import Verify
from headstone.errors import HeadstoneError
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Reading

if TYPE_CHECKING:
    from headstone.guard.verification.verdicts import Judged

Read = Callable[[Verify], "Mapping[int, Judged]"]
"""By broker, of all replicas that were judged; the one that is wanted among them."""


class Readings:
    """`beside`: on a thread of its own, else at once. Who was tried longest ago is first, so that one that cannot be read keeps
    nobody waiting."""

    def __init__(self, read: Read, journal: Journal, *, clock: Callable[[], int], beside: bool) -> None:
        self._read, self._journal, self._clock = read, journal, clock
        self._beside = beside
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting: list[Verify] = []
        self._running: tuple[str, int, int] | None = None
        self._tried: dict[tuple[str, int, int], int] = {}
        """When each was last begun, by a count."""
        self._ended = False

    def end(self) -> None:
        """A reading that still goes on is left alone, and what it finds is of no use any more."""
        self._ended = True

    def want(self, wanted: Sequence[Verify], topics: Collection[str]) -> None:
        """All that a look at these topics wants; what an earlier one wanted of them, and this one does not, is not begun."""
        keys = {_key(verify) for verify in wanted}
        with self._lock:
            waiting = [verify for verify in self._waiting if verify.topic not in topics]
            self._waiting = waiting + [verify for verify in wanted if _key(verify) != self._running]
            self._tried = {key: tries for key, tries in self._tried.items() if key in keys or key[0] not in topics}
            is_read = self._running is not None
        if is_read or not self._waiting:
            return
        if not self._beside:
            self._go_on()
            return
        # A daemon: the end of the guard does not wait for it. It changes nothing but the journal, whole or not at all.
        self._thread = threading.Thread(target=self._go_on, name="reading", daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        try:
            while not self._ended and (wanted := self._next()) is not None:
                self._run(wanted)
        finally:
            with self._lock:
                # Unless the next thread is at it already.
                if self._thread in (None, threading.current_thread()):
                    self._running = None

    def _next(self) -> Verify | None:
        with self._lock:
            self._running = None
            if not self._waiting:
                return None
            wanted = min(self._waiting, key=lambda verify: self._tried.get(_key(verify), 0))
            self._waiting.remove(wanted)
            self._running = _key(wanted)
            self._tried[self._running] = max(self._tried.values(), default=0) + 1
            return wanted

    def _run(self, wanted: Verify) -> None:
        read_ms = self._clock()
        try:
            self._note(wanted, self._read(wanted), read_ms)
        except Exception as error:
            # Whatever it is: if this thread ended, nothing would be read any more, and nobody would be told.
            self._note_failed(wanted, read_ms, reason_of(error))

    def _note_failed(self, wanted: Verify, read_ms: int, reason: str) -> None:
        """A journal that cannot be written is the loop's to tell; the replica is wanted again, and read again."""
        with suppress(HeadstoneError):
            self._keep(wanted, [Reading(
                partition=wanted.partition, broker=wanted.broker, verdict=None, read_ms=read_ms, detail=reason,
            )])  # fmt: skip

    def _note(self, wanted: Verify, judged: Mapping[int, Judged], read_ms: int) -> None:
        self._keep(wanted, [
            Reading(
                partition=wanted.partition, broker=broker, verdict=one.verdict, read_ms=read_ms, detail=one.why,
            )
            for broker, one in judged.items()
        ])  # fmt: skip

    def _keep(self, wanted: Verify, readings: Sequence[Reading]) -> None:
        """The one that is wanted last: whoever sees its verdict sees those of the others."""
        if self._ended:
            return
        for reading in sorted(readings, key=lambda reading: reading.broker == wanted.broker):
            self._journal.note_reading(wanted.topic, reading)


def _key(wanted: Verify) -> tuple[str, int, int]:
    return wanted.topic, wanted.partition, wanted.broker


def reason_of(error: Exception) -> str:
    """Without the scratch file's name, which is another one each time."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, HeadstoneError) else f"{type(error).__name__}: {error}"
