"""What really happened: every record the leaders accepted, in order, and how each transaction ended.

Recorded by the cluster as it happens, never derived from a log: logs are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headstone.sim.batches import Batch, Record

OPEN = "open"
COMMITTED = "committed"
ABORTED = "aborted"


@dataclass(slots=True, kw_only=True)
class Txn:
    """`marker` is the offset of its marker in the leader's log; None while that is not written, or was lost again."""

    producer_id: int
    outcome: str = OPEN
    marker: int | None = None
    marker_ms: int = 0
    data: dict[int, int] = field(default_factory=dict)
    """Base offset of each of its batches to the leader epoch in which it was written."""

    @property
    def finished(self) -> bool:
        return self.marker is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRecord:
    """One record as accepted; `txn` is None for plain data."""

    record: Record
    txn: Txn | None
    accepted_ms: int

    @property
    def committed(self) -> bool:
        return self.txn is None or (self.txn.outcome == COMMITTED and self.txn.finished)

    @property
    def refused(self) -> bool:
        return self.txn is not None and self.txn.outcome == ABORTED and self.txn.finished

    @property
    def visible_ms(self) -> int:
        return self.accepted_ms if self.txn is None else self.txn.marker_ms


class Truth:
    """Records by offset and by key. What is not committed yet is as in the newest leader's log."""

    def __init__(self) -> None:
        self.entries: dict[int, AcceptedRecord] = {}
        self._by_key: dict[bytes, list[AcceptedRecord]] = {}
        self._offers: dict[tuple[int, int], tuple[Batch, Txn | None, int]] = {}
        self.txns: list[Txn] = []
        self.log_end = 0
        self.committed_end = 0

    def offered(self, batch: Batch, txn: Txn | None, now_ms: int, *, by_leader: bool) -> None:
        """A broker that takes itself for the leader has appended it; even if it is wrong, the batch may still become true."""
        self._offers[batch.base, batch.leader_epoch] = (batch, txn, now_ms)
        if by_leader:
            self._accept(batch, txn, now_ms)

    def led_by(self, suffix: Iterable[Batch]) -> None:
        """A new leader's log decides what happened from the committed end on."""
        self._cut(self.committed_end)
        for batch in suffix:
            if batch.base >= self.committed_end:
                self._accept(*self._offers[batch.base, batch.leader_epoch])

    def _accept(self, batch: Batch, txn: Txn | None, now_ms: int) -> None:
        if not batch.is_data:
            assert txn is not None
            self._marked(txn, batch.base, now_ms)
            return
        for record in batch.records:
            entry = AcceptedRecord(record=record, txn=txn, accepted_ms=now_ms)
            self.entries[record.offset] = entry
            self._by_key.setdefault(record.key, []).append(entry)
        if txn is not None:
            txn.data[batch.base] = batch.leader_epoch
        self.log_end = batch.last + 1

    def _marked(self, txn: Txn, offset: int, now_ms: int) -> None:
        if txn.marker is None:
            txn.marker, txn.marker_ms = offset, now_ms
        self.log_end = offset + 1

    def _cut(self, log_end: int) -> None:
        for offset in range(log_end, self.log_end):
            entry = self.entries.pop(offset, None)
            if entry is not None:
                self._by_key[entry.record.key].remove(entry)
        for txn in self.txns:
            if txn.marker is not None and txn.marker >= log_end:
                txn.marker = None
            txn.data = {base: epoch for base, epoch in txn.data.items() if base < log_end}
        self.log_end = min(self.log_end, log_end)

    def known_keys(self) -> list[bytes]:
        return list(self._by_key)

    def newest(self, key: bytes, below: int) -> AcceptedRecord | None:
        """The newest committed record of the key below an offset."""
        for entry in reversed(self._by_key.get(key, [])):
            if entry.record.offset < below and entry.committed:
                return entry
        return None

    def superseded_from(self, key: bytes, offset: int) -> bool:
        """Whether a record of the key that was not refused comes at or after the offset."""
        for entry in reversed(self._by_key.get(key, [])):
            if entry.record.offset < offset:
                return False
            if not entry.refused:
                return True
        return False

    def between(self, start: int, end: int) -> Iterator[AcceptedRecord]:
        for offset in range(start, end):
            entry = self.entries.get(offset)
            if entry is not None:
                yield entry

    def txn_at(self, offset: int, producer_id: int) -> Txn | None:
        for txn in reversed(self.txns):
            if txn.producer_id == producer_id and offset in txn.data:
                return txn
        return None

    def standing_deletions(self) -> list[AcceptedRecord]:
        """Tombstones that are the newest record of their key."""
        newest = (entries[-1] for entries in self._by_key.values() if entries)
        return [entry for entry in newest if entry.record.value is None and entry.committed]

    def table(self) -> dict[bytes, bytes]:
        """Key to value, of everything committed."""
        newest = ((key, self.newest(key, self.log_end)) for key in self._by_key)
        return {key: e.record.value for key, e in newest if e is not None and e.record.value is not None}
