"""Producer state by replay: the last writer, its epoch, which transactions are open, which were aborted.

One row per producer, sorted by id; a compiled loop replays batch headers as a broker does for replicated appends. Decides LSO
and which producers' last batches must stay. Knows nothing about keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.log.indexes import AbortedTxn
from headstone.log.intrinsics import kernel
from headstone.log.layout import ABORT, COMMIT, CONTROL, NOT_CONTROL, TRANSACTIONAL
from headstone.log.reading import Batches
from headstone.log.snapshots import ENTRY, ProducerEntry

NONE = -1
PRODUCER = np.dtype([(name, "i8") for name in ENTRY.names or ()])
COMPLETED = np.dtype([("producer_id", "i8"), ("first", "i8"), ("last", "i8"), ("lso", "i8"), ("aborted", "i1")])
INT32_MAX = (1 << 31) - 1
_BLANK = (NONE, NONE, NONE, NONE, 0, NONE, NONE, NONE)


@kernel
def _first_open(producers: Any, besides: int) -> Any:
    earliest = np.int64(-1)
    for s in range(producers.size):
        first = producers[s].txn_first_offset
        if s != besides and first >= 0 and (earliest < 0 or first < earliest):
            earliest = first
    return earliest


@kernel
def _replay(batches: Any, slots: Any, producers: Any, high_watermark: Any, completed: Any) -> Any:
    """Applies batches in order; rows of aborted or not yet replicated transactions go to `completed`."""
    n = 0
    for i in range(batches.size):
        if slots[i] < 0:
            continue
        batch = batches[i]
        producer = producers[slots[i]]
        kind = batch.control_type
        if kind != NOT_CONTROL:
            if kind != ABORT and kind != COMMIT:
                continue
            if producer.txn_first_offset >= 0 and (kind == ABORT or batch.last_offset >= high_watermark):
                row = completed[n]
                row.producer_id = batch.producer_id
                row.first = producer.txn_first_offset
                row.last = batch.last_offset
                row.aborted = kind == ABORT
                open_first = _first_open(producers, slots[i]) if kind == ABORT else np.int64(-1)
                row.lso = open_first if open_first >= 0 else batch.last_offset + 1
                n += 1
            producer.txn_first_offset = NONE
            producer.coordinator_epoch = batch.coordinator_epoch
        if producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.last_offset = NONE
            producer.last_sequence = NONE
            producer.offset_delta = 0
        producer.timestamp = batch.max_timestamp
        if kind != NOT_CONTROL:
            continue
        producer.last_offset = batch.last_offset
        producer.offset_delta = batch.last_offset - batch.base_offset
        sequence = batch.base_sequence + producer.offset_delta
        producer.last_sequence = sequence if sequence <= INT32_MAX else sequence - INT32_MAX - 1
        if batch.base_sequence < 0:
            producer.last_sequence = NONE
        if batch.attributes & TRANSACTIONAL and producer.txn_first_offset < 0:
            producer.txn_first_offset = batch.base_offset
    return n


@dataclass(slots=True, kw_only=True)
class ProducerState:
    """Mutable while it is replayed; start it from a snapshot's entries or empty."""

    high_watermark: int
    rows: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=PRODUCER))
    completed: list[npt.NDArray[Any]] = field(default_factory=list)

    @classmethod
    def starting_from(cls, entries: Sequence[ProducerEntry], *, high_watermark: int) -> ProducerState:
        rows = np.array([tuple(getattr(e, name) for name in PRODUCER.names or ()) for e in entries], dtype=PRODUCER)
        return cls(high_watermark=high_watermark, rows=np.sort(rows, order="producer_id"))

    def replay(self, batches: Batches) -> None:
        ids = batches["producer_id"]
        if not (ids >= 0).any():
            return
        slots = slots_of(self.rows["producer_id"], ids)
        if ((slots < 0) & (ids >= 0)).any():
            self.rows = with_producers(self.rows, ids)
            slots = slots_of(self.rows["producer_id"], ids)
        markers = int(np.count_nonzero(batches["attributes"] & CONTROL))
        completed = np.zeros(markers, dtype=COMPLETED)
        n = _replay(batches, slots, self.rows, self.high_watermark, completed)
        self.completed.append(completed[:n].copy())

    def open_transactions(self) -> npt.NDArray[Any]:
        return self.rows[self.rows["txn_first_offset"] >= 0]

    def aborted(self) -> list[AbortedTxn]:
        return [
            AbortedTxn(
                producer_id=int(row["producer_id"]), first_offset=int(row["first"]),
                last_offset=int(row["last"]), lso=int(row["lso"]),
            )
            for part in self.completed for row in part[part["aborted"] == 1]
        ]  # fmt: skip

    def last_stable_offset(self, log_end: int) -> int:
        """First offset of an open, or decided but not yet replicated, transaction; else the high watermark."""
        unstable = [int(first) for first in self.open_transactions()["txn_first_offset"]]
        unstable += [int(row["first"]) for part in self.completed for row in part if row["last"] >= self.high_watermark]
        return min([*unstable, self.high_watermark, log_end])

    def entries(self) -> list[ProducerEntry]:
        """For a snapshot. Producers with nothing left but emptied markers have no state to keep."""
        producers = self.rows[self.rows["epoch"] >= 0]
        return [ProducerEntry(**{name: int(row[name]) for name in PRODUCER.names or ()}) for row in producers]


def with_producers(rows: npt.NDArray[Any], producer_ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """`rows` plus a blank row for each missing id, still sorted."""
    wanted = np.unique(producer_ids[producer_ids >= 0])
    missing = wanted[~np.isin(wanted, rows["producer_id"])]
    if not missing.size:
        return rows
    blank = np.zeros(missing.size, dtype=PRODUCER)
    blank[:] = _BLANK
    blank["producer_id"] = missing
    return np.sort(np.concatenate([rows, blank]), order="producer_id")


def slots_of(sorted_ids: npt.NDArray[np.int64], producer_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Index of each id in sorted_ids; -1 if missing."""
    if not sorted_ids.size:
        return np.full(producer_ids.size, -1, dtype=np.int64)
    sorted_ids = np.ascontiguousarray(sorted_ids)
    slots = np.searchsorted(sorted_ids, producer_ids)
    slots = np.minimum(slots, sorted_ids.size - 1)
    return np.where(sorted_ids[slots] == producer_ids, slots, -1)


def active_producers(rows: npt.NDArray[Any], *, now_ms: int, expiration_ms: int) -> npt.NDArray[Any]:
    """Producers whose last batch must stay (K1). One with an open transaction never expires.

    The idle time wraps like a Java long, so that a clock at the end of time behaves as it does in a broker.
    """
    idle = np.array([_wrapped(now_ms - int(ts)) for ts in rows["timestamp"]], dtype=np.int64)
    with_state = (rows["epoch"] >= 0) | (rows["last_offset"] >= 0)
    result: npt.NDArray[Any] = rows[with_state & ((idle < expiration_ms) | (rows["txn_first_offset"] >= 0))]
    return result


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
