"""Owns the producer state machine of one partition: batches in; open transactions, abort entries and LSO out.

Replays as a broker does, leader and follower alike. Knows nothing of segments or of cleaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.oracle.batches import Batch
from tests.oracle.files import SnapshotEntry
from tests.oracle.segments import AbortedTxn

CACHED_BATCHES_MAX = 5


class InvalidTxnState(ValueError):
    """A non-transactional batch of a producer whose transaction is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedBatch:
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


@dataclass(slots=True, kw_only=True)
class Producer:
    epoch: int = -1
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    txn_first_offset: int | None = None
    cached: list[CachedBatch] = field(default_factory=list)

    @property
    def last_data_offset(self) -> int | None:
        return self.cached[-1].last_offset if self.cached else None

    @property
    def last_sequence(self) -> int:
        return self.cached[-1].last_sequence if self.cached else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedTxn:
    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecord:
    """What the cleaner asks of an active producer."""

    last_data_offset: int | None
    epoch: int


class ProducerTable:
    """The state after every batch given to `append` so far, on top of an optional snapshot."""

    def __init__(self, snapshot: list[SnapshotEntry] | None = None) -> None:
        self.producers: dict[int, Producer] = {}
        self.completed: list[CompletedTxn] = []
        self.aborted: list[AbortedTxn] = []
        for entry in snapshot or []:
            self.producers[entry.producer_id] = _from_snapshot(entry)

    def replay(self, batches: list[Batch]) -> None:
        for batch in batches:
            self.append(batch)

    def append(self, batch: Batch) -> AbortedTxn | None:
        """The entry for .txnindex, if this batch is the marker that aborts an open transaction."""
        if batch.producer_id < 0:
            return None
        producer = self.producers.setdefault(batch.producer_id, Producer())
        if not batch.control:
            _append_data(producer, batch)
            return None
        if batch.marker not in ("ABORT", "COMMIT"):
            return None
        return self._append_marker(producer, batch)

    def _append_marker(self, producer: Producer, batch: Batch) -> AbortedTxn | None:
        first = producer.txn_first_offset
        _enter_epoch(producer, batch.producer_epoch)
        producer.coordinator_epoch = batch.coordinator_epoch
        producer.last_timestamp = batch.records[0].timestamp
        producer.txn_first_offset = None
        if first is None:
            return None
        marker_offset = batch.records[0].offset
        aborted = batch.marker == "ABORT"
        self.completed.append(
            CompletedTxn(producer_id=batch.producer_id, first_offset=first, last_offset=marker_offset, aborted=aborted)
        )
        if not aborted:
            return None
        others = self.open_transactions().values()
        entry = AbortedTxn(
            producer_id=batch.producer_id,
            first_offset=first,
            last_offset=marker_offset,
            lso=min(others, default=marker_offset + 1),
        )
        self.aborted.append(entry)
        return entry

    def open_transactions(self) -> dict[int, int]:
        """Producer id to first offset."""
        return {
            pid: producer.txn_first_offset
            for pid, producer in self.producers.items()
            if producer.txn_first_offset is not None
        }

    def unreplicated(self, high_watermark: int) -> list[CompletedTxn]:
        return [txn for txn in self.completed if txn.last_offset >= high_watermark]

    def first_unstable(self, high_watermark: int) -> int | None:
        firsts = list(self.open_transactions().values())
        firsts += [txn.first_offset for txn in self.unreplicated(high_watermark)]
        return min(firsts, default=None)

    def lso(self, high_watermark: int) -> int:
        unstable = self.first_unstable(high_watermark)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        for pid, producer in list(self.producers.items()):
            idle_ms = wrap_int64(now_ms - producer.last_timestamp)
            if producer.txn_first_offset is None and idle_ms >= expiration_ms:
                del self.producers[pid]

    def last_records(self) -> dict[int, LastRecord]:
        return {
            pid: LastRecord(last_data_offset=producer.last_data_offset, epoch=producer.epoch)
            for pid, producer in self.producers.items()
        }

    def snapshot(self) -> list[SnapshotEntry]:
        return [_to_snapshot(pid, producer) for pid, producer in self.producers.items()]


def wrap_int64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _append_data(producer: Producer, batch: Batch) -> None:
    if producer.txn_first_offset is not None and not batch.transactional:
        raise InvalidTxnState(
            f"batch {batch.base_offset} of producer {batch.producer_id} is not transactional, "
            f"but a transaction is open since {producer.txn_first_offset}"
        )
    _enter_epoch(producer, batch.producer_epoch)
    producer.cached.append(
        CachedBatch(
            last_sequence=batch.last_sequence,
            last_offset=batch.last_offset,
            offset_delta=batch.last_offset_delta,
            timestamp=batch.max_timestamp,
        )
    )
    del producer.cached[:-CACHED_BATCHES_MAX]
    producer.last_timestamp = batch.max_timestamp
    if batch.transactional and producer.txn_first_offset is None:
        producer.txn_first_offset = batch.base_offset


def _enter_epoch(producer: Producer, epoch: int) -> None:
    if producer.epoch != epoch:
        producer.cached.clear()
        producer.epoch = epoch


def _from_snapshot(entry: SnapshotEntry) -> Producer:
    producer = Producer(
        epoch=entry.producer_epoch,
        coordinator_epoch=entry.coordinator_epoch,
        last_timestamp=entry.timestamp,
        txn_first_offset=None if entry.txn_first_offset < 0 else entry.txn_first_offset,
    )
    if entry.last_offset >= 0:
        producer.cached.append(
            CachedBatch(
                last_sequence=entry.last_sequence,
                last_offset=entry.last_offset,
                offset_delta=entry.offset_delta,
                timestamp=entry.timestamp,
            )
        )
    return producer


def _to_snapshot(pid: int, producer: Producer) -> SnapshotEntry:
    last = producer.cached[-1] if producer.cached else None
    return SnapshotEntry(
        producer_id=pid,
        producer_epoch=producer.epoch,
        last_sequence=last.last_sequence if last else -1,
        last_offset=last.last_offset if last else -1,
        offset_delta=last.offset_delta if last else 0,
        timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        txn_first_offset=-1 if producer.txn_first_offset is None else producer.txn_first_offset,
    )
