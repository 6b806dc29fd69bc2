"""One replica's log in memory, as a Kafka broker keeps it: segments, producer state, snapshots, leader epochs.

Appends, truncates, rolls, reloads after a stop. Batches are real bytes; producer state is that of `retention/`. Knows nothing
of peers, and leaves cleaning to `cleaning.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.coordination.watermarks import ReplicaWatermarks
from headstone.log import kernels
from headstone.log.indexes import AbortedTxn
from headstone.log.layout import BATCH
from headstone.log.reading import PAYLOAD_BYTES_MAX, Batches
from headstone.retention.producers import PRODUCER, ProducerState, active_producers
from headstone.sim.batches import Batch

Rows = npt.NDArray[Any]


class PlainInsideTransactionError(Exception):
    """A follower got plain data of a producer whose transaction is still open here; Kafka's InvalidTxnStateException."""

    def __init__(self, first_offset: int) -> None:
        super().__init__(f"plain data inside the transaction that began at offset {first_offset}")
        self.first_offset = first_offset


@dataclass(slots=True, kw_only=True)
class Segment:
    """`aborted` is its `.txnindex`."""

    base: int
    batches: list[Batch] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)


def walk_bytes(raw: bytes, batches: int) -> Batches:
    """The header table of whole batches, with checksums verified."""
    table = np.zeros(batches, dtype=BATCH)
    data = np.frombuffer(raw, dtype=np.uint8)
    n, _, error = kernels.walk(data, 0, data.size, -1, True, PAYLOAD_BYTES_MAX, table)
    assert error == kernels.OK, "a simulated log holds only batches that Headstone itself wrote"
    assert n == batches
    return table


class PartitionLog:
    """Offsets are exclusive ends: log_end, high_watermark, first_dirty (the cleaner checkpoint), flushed."""

    def __init__(self, *, start: int = 0) -> None:
        self.segments = [Segment(base=start)]
        self.log_start = start
        self.log_end = start
        self.high_watermark = start
        self.first_dirty = start
        self.flushed = start
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, its first offset here), ascending: `leader-epoch-checkpoint`."""
        self.snapshots: dict[int, Rows] = {}
        self.open: dict[int, int] = {}
        """Producer id to the first offset of its open transaction."""
        self._state = ProducerState(high_watermark=0)
        self._decided: list[tuple[int, int]] = []

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    def batches(self, position: int = 0) -> Iterator[Batch]:
        for segment in self.segments:
            for batch in segment.batches:
                if batch.last >= position:
                    yield batch

    def append(self, batch: Batch) -> None:
        assert batch.base >= self.log_end
        pid = batch.producer_id
        if pid >= 0:
            if batch.is_data and not batch.transactional and pid in self.open:
                raise PlainInsideTransactionError(self.open[pid])
            self._replay(walk_bytes(batch.raw, 1))
        self.active.batches.append(batch)
        self.log_end = batch.last + 1
        if not self.epochs or batch.leader_epoch > self.epochs[-1][0]:
            self.epochs.append((batch.leader_epoch, batch.base))

    def _replay(self, table: Batches) -> None:
        state = self._state
        state.replay(table)
        for part in state.completed:
            for row in part:
                self._decided.append((int(row["first"]), int(row["last"])))
                if row["aborted"]:
                    self.active.aborted.append(_index_entry(row))
        state.completed = []
        self._note_open()

    def _note_open(self) -> None:
        rows = self._state.open_transactions()
        self.open = {int(row["producer_id"]): int(row["txn_first_offset"]) for row in rows}

    def producer_rows(self) -> Rows:
        return self._state.rows

    def last_stable_offset(self) -> int:
        self._decided = [txn for txn in self._decided if txn[1] >= self.high_watermark]
        first = min([self.high_watermark, *self.open.values(), *(first for first, _ in self._decided)])
        return max(first, self.log_start)

    def watermarks(self) -> ReplicaWatermarks:
        """What this log proves by itself. Above the high watermark nothing is proved: it may yet be replaced."""
        free = self.high_watermark
        for batch in self.batches(self.log_start):
            if batch.base >= free:
                break
            if batch.transactional and batch.is_data:
                free = batch.base
                break
        return ReplicaWatermarks(mcco=max(self.first_dirty, self.log_start), mxfo=max(free, self.log_start))

    def aborted(self, position: int, end: int) -> list[AbortedTxn]:
        entries = [entry for segment in self.segments for entry in segment.aborted]
        return [entry for entry in entries if entry.last_offset >= position and entry.first_offset < end]

    def roll(self) -> None:
        if self.active.batches:
            self.segments.append(Segment(base=self.log_end))
            self.snapshots[self.log_end] = self._state.rows.copy()

    def expire_producers(self, now_ms: int, expiration_ms: int) -> None:
        self._state.rows = active_producers(self._state.rows, now_ms=now_ms, expiration_ms=expiration_ms)

    def advance_start(self, offset: int) -> None:
        """Log start rises, and segments completely below it go."""
        if offset <= self.log_start:
            return
        self.log_start = offset
        while len(self.segments) > 1 and self.segments[1].base <= offset:
            del self.segments[0]
        self.first_dirty = max(self.first_dirty, offset)
        self.snapshots = {at: rows for at, rows in self.snapshots.items() if at >= self.segments[0].base}

    def begin_epoch(self, leader_epoch: int) -> None:
        self.epochs.append((leader_epoch, self.log_end))

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(the newest epoch known here that is not above the one asked for, where it ends)."""
        newest = -1
        for epoch, start in self.epochs:
            if epoch > leader_epoch:
                return newest, start
            newest = epoch
        return newest, self.log_end

    def truncate(self, to: int) -> None:
        """Drops everything at or above `to`; rebuilds producer state from the newest snapshot below."""
        to = max(to, self.log_start)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < to]
        if to >= self.log_end:
            return
        self._cut(to)
        self.log_end = to
        self.high_watermark = min(self.high_watermark, self.log_end)
        self.first_dirty = min(self.first_dirty, self.log_end)
        self.flushed = min(self.flushed, self.log_end)
        self._rebuild()

    def _cut(self, to: int) -> None:
        while len(self.segments) > 1 and self.active.base >= to:
            del self.segments[-1]
        if self.active.base > to:
            self.segments[-1] = Segment(base=to)
        active = self.active
        active.batches = [batch for batch in active.batches if batch.last < to]
        active.aborted = [entry for entry in active.aborted if entry.last_offset < to]
        self.snapshots = {at: rows for at, rows in self.snapshots.items() if at <= to}

    def reload(self, *, clean: bool, kept_to: int, high_watermark: int) -> None:
        """What a broker finds after a stop: after an unclean one, what was not flushed may be gone."""
        if clean:
            self.snapshots[self.log_end] = self._state.rows.copy()
        elif kept_to < self.log_end:
            self._cut(kept_to)
            self.log_end = self.active.batches[-1].last + 1 if self.active.batches else self.active.base
            self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.log_end]
        self.high_watermark = max(min(high_watermark, self.log_end), self.log_start)
        self.first_dirty = min(self.first_dirty, self.log_end)
        self.flushed = self.log_end
        self._rebuild()

    def _rebuild(self) -> None:
        usable = [offset for offset in self.snapshots if self.log_start < offset <= self.log_end]
        offset = max(usable, default=self.log_start)
        rows = self.snapshots[offset].copy() if usable else np.zeros(0, dtype=PRODUCER)
        self._state = ProducerState(high_watermark=0, rows=rows)
        self._replay_from(self._state, offset)
        self._state.completed = []
        # Kafka forgets transactions that were decided before the snapshot but are not replicated yet, and may show them early
        # to a reader. That has nothing to do with compaction, so here they are remembered.
        whole = ProducerState(high_watermark=0)
        self._replay_from(whole, self.log_start)
        self._decided = [(int(row["first"]), int(row["last"])) for part in whole.completed for row in part]
        self._note_open()

    def _replay_from(self, state: ProducerState, position: int) -> None:
        tail = [batch for batch in self.batches(position) if batch.producer_id >= 0]
        if tail:
            state.replay(walk_bytes(b"".join(batch.raw for batch in tail), len(tail)))

    def restart_at(self, offset: int) -> None:
        """Throws the log away and begins again at the leader's log start."""
        empty = PartitionLog(start=offset)
        for name, value in vars(empty).items():
            setattr(self, name, value)

    def replace_cleaned(self, new: Sequence[Segment], *, below: int, first_dirty: int) -> None:
        """Replaces the segments whose base is below `below` by the new ones."""
        kept = [segment for segment in self.segments if segment.base >= below]
        assert kept, "the active segment is never cleaned"
        self.segments = [*new, *kept]
        self.first_dirty = max(self.first_dirty, first_dirty)


def _index_entry(row: Any) -> AbortedTxn:
    return AbortedTxn(
        producer_id=int(row["producer_id"]), first_offset=int(row["first"]), last_offset=int(row["last"]),
        lso=int(row["lso"]),
    )  # fmt: skip
