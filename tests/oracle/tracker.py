"""Owns the cleaner's view of transactions while it scans: which data was aborted, which markers nobody needs any more.

Fed batch by batch in offset order. Knows nothing of keys, horizons or output.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.batches import Batch
from tests.oracle.segments import AbortedTxn, Segment


@dataclass(slots=True, kw_only=True)
class OpenAborted:
    entry: AbortedTxn
    seen_batch: bool = False


class TransactionTracker:
    def __init__(self) -> None:
        self.queue: list[AbortedTxn] = []
        self.open_aborted: dict[int, OpenAborted] = {}
        self.seen_committed: set[int] = set()

    def load(self, entries: list[AbortedTxn]) -> None:
        self.queue = sorted(self.queue + entries, key=lambda entry: entry.first_offset)

    def read_data(self, batch: Batch) -> bool:
        """Is it data of an aborted transaction?"""
        self._open_up_to(batch.last_offset)
        if not batch.transactional:
            return False
        aborted = self.open_aborted.get(batch.producer_id)
        if aborted is None:
            self.seen_committed.add(batch.producer_id)
            return False
        aborted.seen_batch = True
        return True

    def read_control(self, batch: Batch) -> tuple[bool, AbortedTxn | None]:
        """Is the marker discardable, and which abort entry stays in the index because it is not?"""
        self._open_up_to(batch.last_offset)
        pid = batch.producer_id
        if not batch.records:
            return True, None
        if batch.marker == "ABORT":
            aborted = self.open_aborted.pop(pid, None)
            if aborted is None or not aborted.seen_batch:
                return True, None
            return False, aborted.entry
        if batch.marker == "COMMIT":
            seen = pid in self.seen_committed
            self.seen_committed.discard(pid)
            return not seen, None
        return False, None

    def _open_up_to(self, offset: int) -> None:
        while self.queue and self.queue[0].first_offset <= offset:
            entry = self.queue.pop(0)
            self.open_aborted.setdefault(entry.producer_id, OpenAborted(entry=entry))


def aborted_between(segments: list[Segment], log_start: int, start: int, end: int) -> list[AbortedTxn]:
    """Abort entries that may touch [start, end); their markers may lie far behind it."""
    found: list[AbortedTxn] = []
    floor = max((segment.base for segment in segments if segment.base <= start), default=segments[0].base)
    for segment in segments:
        if segment.base < floor:
            continue
        for entry in segment.aborted:
            if entry.first_offset < end and entry.last_offset >= log_start:
                found.append(entry)
            if entry.lso >= end:
                return found
    return found
