"""Reads returned replicas one at a time beside the loop, and writes the results into the journal.

A reading may take minutes and may fail in any way. A failure is written too, with its reason, and the loop requests the reading
again as long as it needs one. `verdicts.py` reads and judges a replica.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from headstone.coordination.guard_values import Verify
from headstone.errors import HeadstoneError
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import ReplicaReading

if TYPE_CHECKING:
    from headstone.guard.verification.verdicts import JudgedReplica

Read = Callable[[Verify], "Mapping[int, JudgedReplica]"]
"""By broker, of all replicas that were judged, including the requested one."""


class Readings:
    """`beside`: in a background thread, else at once. The replica whose last attempt is oldest comes first, so that one that
    cannot be read does not delay the others."""

    def __init__(self, read: Read, journal: Journal, *, clock: Callable[[], int], beside: bool) -> None:
        self._read, self._journal, self._clock = read, journal, clock
        self._beside = beside
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting: list[Verify] = []
        self._running: tuple[str, int, int] | None = None
        self._tried: dict[tuple[str, int, int], int] = {}
        """The number of the last attempt, counted over all replicas."""
        self._ended = False

    def end(self) -> None:
        """Does not wait for a running reading; its result is discarded."""
        self._ended = True

    def want(self, wanted: Sequence[Verify], topics: Collection[str]) -> None:
        """Everything that a look at these topics wants. Earlier requests for them that are not repeated are dropped."""
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
        # A daemon: the guard's end does not wait for it. It changes only the journal, in whole transactions.
        self._thread = threading.Thread(target=self._go_on, name="reading", daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        try:
            while not self._ended and (wanted := self._next()) is not None:
                self._run(wanted)
        finally:
            with self._lock:
                # Unless the next thread has already started.
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
            # Whatever went wrong: if this thread ended, nothing would be read any more and nothing would say so.
            self._note_failed(wanted, read_ms, reason_of(error))

    def _note_failed(self, wanted: Verify, read_ms: int, reason: str) -> None:
        """If the journal cannot be written, the loop reports that; the replica is requested and read again."""
        with suppress(HeadstoneError):
            self._keep(wanted, [ReplicaReading(
                partition=wanted.partition, broker=wanted.broker, verdict=None, read_ms=read_ms, detail=reason,
            )])  # fmt: skip

    def _note(self, wanted: Verify, judged: Mapping[int, JudgedReplica], read_ms: int) -> None:
        self._keep(wanted, [
            ReplicaReading(
                partition=wanted.partition, broker=broker, verdict=one.verdict, read_ms=read_ms, detail=one.why,
            )
            for broker, one in judged.items()
        ])  # fmt: skip

    def _keep(self, wanted: Verify, readings: Sequence[ReplicaReading]) -> None:
        """Writes the requested replica last: once its verdict shows, those of the others do too."""
        if self._ended:
            return
        for reading in sorted(readings, key=lambda reading: reading.broker == wanted.broker):
            self._journal.note_reading(wanted.topic, reading)


def _key(wanted: Verify) -> tuple[str, int, int]:
    return wanted.topic, wanted.partition, wanted.broker


def reason_of(error: Exception) -> str:
    """Without the name of the scratch file, which differs each time."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, HeadstoneError) else f"{type(error).__name__}: {error}"
