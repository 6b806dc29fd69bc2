"""Owns the consumers: what read_uncommitted and read_committed deliver, and a reader that crosses a compaction.

Knows batches, abort entries, the high watermark and the LSO; nothing of how they came about.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.batches import Batch, Record
from tests.oracle.producers import ProducerTable
from tests.oracle.segments import AbortedTxn, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """A replica's log as a consumer meets it."""

    batches: tuple[Batch, ...]
    aborted: tuple[AbortedTxn, ...]
    high_watermark: int
    lso: int


def view(segments: list[Segment], producers: ProducerTable, high_watermark: int | None = None) -> LogView:
    """`high_watermark` None = the log's end offset."""
    end = segments[-1].next_offset if high_watermark is None else high_watermark
    return LogView(
        batches=tuple(batch for segment in segments for batch in segment.batches),
        aborted=tuple(entry for segment in segments for entry in segment.aborted),
        high_watermark=end,
        lso=producers.lso(end),
    )


def read_uncommitted(log: LogView, position: int = 0, batches_max: int | None = None) -> tuple[list[Record], int]:
    """The records delivered from `position` on, and the next position."""
    delivered: list[Record] = []
    for batch in fetched(log, position, log.high_watermark, batches_max):
        if not batch.control:
            delivered += [record for record in batch.records if record.offset >= position]
        position = batch.next_offset
    return delivered, position


def read_committed(log: LogView, position: int = 0, batches_max: int | None = None) -> tuple[list[Record], int]:
    """The same below the LSO, without aborted data."""
    batches = fetched(log, position, log.lso, batches_max)
    upper = batches[-1].next_offset if batches else position
    queue = sorted(aborted_for_fetch(log, position, upper), key=lambda entry: entry.first_offset)
    active: set[int] = set()
    delivered: list[Record] = []
    for batch in batches:
        if batch.producer_id >= 0:
            while queue and queue[0].first_offset <= batch.last_offset:
                active.add(queue.pop(0).producer_id)
            if batch.marker == "ABORT":
                active.discard(batch.producer_id)
        if not batch.control and not (batch.transactional and batch.producer_id in active):
            delivered += [record for record in batch.records if record.offset >= position]
        position = batch.next_offset
    return delivered, position


def fetched(log: LogView, position: int, upper: int, batches_max: int | None) -> list[Batch]:
    batches = [batch for batch in log.batches if batch.last_offset >= position and batch.base_offset < upper]
    return batches if batches_max is None else batches[:batches_max]


def aborted_for_fetch(log: LogView, position: int, upper: int) -> list[AbortedTxn]:
    found = []
    for entry in log.aborted:
        if entry.last_offset >= position and entry.first_offset < upper:
            found.append(entry)
        if entry.lso >= upper:
            break
    return found


def apply(table: dict[bytes, bytes], records: list[Record]) -> None:
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value


class CrossingReader:
    """Builds a table of keys, one fetch at a time; each fetch may go to another, compacted, copy of the log."""

    def __init__(self, *, committed: bool = True, position: int = 0) -> None:
        self.committed = committed
        self.position = position
        self.table: dict[bytes, bytes] = {}

    def read(self, log: LogView, batches_max: int | None = None) -> int:
        """Reads up to `batches_max` batches, else to the end; the number of records delivered."""
        deliver = read_committed if self.committed else read_uncommitted
        records, self.position = deliver(log, self.position, batches_max)
        apply(self.table, records)
        return len(records)
