"""Consumers: what a client makes of the batches and the aborted list that a broker returns.

The filter is the client's own (a read_committed consumer never asks the broker about a record). A reader keeps the table that
it would have built. Must not know how logs are cleaned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headstone.log.indexes import AbortedTxn
from headstone.sim.batches import ABORT, Batch, Record
from headstone.sim.partition_log import PartitionLog


def delivered(batches: Iterable[Batch], aborted: Sequence[AbortedTxn], position: int) -> list[Record]:
    """The records at or above `position` that a read_committed client hands to the application."""
    waiting = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
    hidden: set[int] = set()
    out: list[Record] = []
    for batch in batches:
        while waiting and waiting[-1].first_offset <= batch.last:
            hidden.add(waiting.pop().producer_id)
        if not batch.is_data:
            if batch.kind == ABORT:
                hidden.discard(batch.producer_id)
            continue
        if batch.transactional and batch.producer_id in hidden:
            continue
        out += [record for record in batch.records if record.offset >= position]
    return out


def read(log: PartitionLog, position: int, *, committed: bool, limit: int = 2**31) -> tuple[list[Record], int]:
    """What a fetch from this log at `position` delivers, and the next position."""
    position = max(position, log.log_start)
    end = log.last_stable_offset() if committed else log.high_watermark
    batches: list[Batch] = []
    for batch in log.batches(position):
        if batch.last >= end or len(batches) >= limit:
            break
        batches.append(batch)
    if not batches:
        return [], position
    aborted = log.aborted(position, batches[-1].last + 1) if committed else []
    return delivered(batches, aborted, position), batches[-1].last + 1


def table_of(records: Iterable[Record]) -> dict[bytes, Record]:
    """Newest record of each key, tombstones included."""
    return {record.key: record for record in records}


class Reader:
    """A consumer that remembers. `held_from` is the offset from which a declared reader's hold was granted."""

    def __init__(self, name: str, *, committed: bool) -> None:
        self.name = name
        self.committed = committed
        self.position = 0
        self.table: dict[bytes, Record] = {}
        self.held_from: int | None = None

    def poll(self, log: PartitionLog, limit: int) -> tuple[int, list[Record]]:
        """Reads on from this log; returns the position before and the records delivered."""
        start = self.position
        records, self.position = read(log, start, committed=self.committed, limit=limit)
        for record in records:
            self.table[record.key] = record
        return start, records
