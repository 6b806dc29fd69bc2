"""What a replica would serve, as data: facts of its log, and a row for every data record of the keys that are looked at.

Rows carry digests, offsets and places, never keys or values. Reading them is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.log.columns import BATCH_INDEX, HEADERS_END, KEY_AT, KEY_SIZE, OFFSET, TIMESTAMP, VALUE_AT, VALUE_SIZE
from headstone.log.indexes import AbortedTxn
from headstone.log.intrinsics import kernel
from headstone.retention.keys import siphash128
from headstone.retention.policy import NO_LIMIT
from headstone.retention.transactions import ABORTED, COMMITTED, DATA, OPEN, OpenTxn

MIX = np.uint64(0x9E3779B97F4A7C15)

ROW = np.dtype(
    [
        ("key", "u8"),
        ("key_high", "u8"),
        ("offset", "i8"),
        ("content", "u8"),
        ("producer_id", "i8"),
        ("place", "i8"),
        ("file", "i4"),
        ("producer_epoch", "i2"),
        ("role", "u1"),
        ("tombstone", "u1"),
    ]
)
"""`key` and `key_high` digest the key, `content` value, headers and timestamp; `file` and `place` say where its batch is."""

MARKER = np.dtype([("offset", "i8"), ("producer_id", "i8"), ("producer_epoch", "i2"), ("commit", "u1")])
STAMP = np.dtype([("offset", "i8"), ("horizon_ms", "i8")])
"""A batch with a delete horizon: after that time, its tombstones or its marker may go."""
SPAN = np.dtype(
    [
        ("base", "i8"),
        ("last", "i8"),
        ("producer_id", "i8"),
        ("epoch", "i2"),
        ("transactional", "u1"),
        ("complete", "u1"),
    ]
)
"""One batch. Offsets that no batch covers were cleaned away, or never came. `producer_id` is -1 unless it has data;
`transactional` is 1 if it has transactional data; `complete` is 1 if no record of it is gone."""

Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One replica's log, according to itself. `high_watermark` is None if unknown."""

    name: str
    log_start: int
    log_end: int
    high_watermark: int | None
    lso: int
    open_txns: tuple[OpenTxn, ...]
    aborted: tuple[AbortedTxn, ...]
    """As in its `.txnindex`, including transactions of which nothing is left."""
    markers: Rows
    bare: Rows
    """Emptied markers: a transaction of the producer ended there, but it is unknown how."""
    spans: Rows
    stamps: Rows

    @property
    def trusted_end(self) -> int:
        """What comes after may never have been replicated, and is truncated when the replica meets its leader."""
        return self.log_end if self.high_watermark is None else min(self.high_watermark, self.log_end)

    @property
    def stable_end(self) -> int:
        """Up to here a read_committed consumer of this replica gets records."""
        bases = self.spans["base"][self.undecided(self.spans["producer_id"], self.spans["base"])]
        return min(self.lso, self.trusted_end, int(bases.min()) if bases.size else NO_LIMIT)

    def undecided(self, producer_ids: Any, offsets: Any) -> npt.NDArray[np.bool_]:
        """For each record: whether its transaction ends with a marker at or above the trusted end, which may still be
        replaced."""
        behind = self.markers["offset"] >= self.trusted_end
        producers = np.unique(self.markers["producer_id"][behind])
        if not producers.size:
            return np.zeros(len(offsets), dtype=np.bool_)
        trusted = self.markers[~behind]
        last = np.full(producers.size, -1, dtype=np.int64)
        of_producers = np.isin(trusted["producer_id"], producers)
        np.maximum.at(
            last, np.searchsorted(producers, trusted["producer_id"][of_producers]), trusted["offset"][of_producers]
        )
        slots = np.minimum(np.searchsorted(producers, producer_ids), producers.size - 1)
        after = (producers[slots] == producer_ids) & (offsets > last[slots])
        return np.asarray(after & (offsets < self.trusted_end))

    def has(self, offset: int) -> bool:
        """Whether some batch covers it, even one that has lost its records."""
        index = int(np.searchsorted(self.spans["last"], offset))
        return index < self.spans.size and int(self.spans[index]["base"]) <= offset

    def has_data(self, producer_id: int, offset: int) -> bool:
        """Whether a batch of transactional data of the producer covers it, even one that has lost its records."""
        index = int(np.searchsorted(self.spans["last"], offset))
        if index >= self.spans.size:
            return False
        span = self.spans[index]
        return bool(span["base"] <= offset and span["producer_id"] == producer_id and span["transactional"])

    def decision(self, producer_id: int, offset: int) -> Any | None:
        """The first marker of the producer after `offset` in this log, below its trusted end."""
        trusted = self.markers[self.markers["offset"] < self.trusted_end]
        behind = trusted[(trusted["producer_id"] == producer_id) & (trusted["offset"] > offset)]
        return behind[int(np.argmin(behind["offset"]))] if behind.size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSaid:
    """A producer's state, as a broker reports it, not from the log."""

    producer_id: int
    epoch: int
    transaction_start: int | None
    """None if it has no open transaction."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaRows:
    """Sorted by key, and by offset within a key; `offsets` are those of all rows in order, `places` where their rows are."""

    facts: ReplicaFacts
    rows: Rows
    offsets: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]

    def of_key(self, key: int, key_high: int) -> Rows:
        first, last = (int(np.searchsorted(self.rows["key"], np.uint64(key), side=side)) for side in ("left", "right"))
        rows: Rows = self.rows[first:last]
        return rows[rows["key_high"] == np.uint64(key_high)]  # type: ignore[no-any-return]


@kernel
def fill_rows(
    content: Any, payloads: Any, batches: Any, roles: Any, file: Any, position: Any, k0: Any, k1: Any, rows: Any
) -> Any:
    """Makes a row for each decoded record (`found`, spans of `content`) that has a key; returns how many. `position`: that of
    the chunk."""
    n = 0
    for i in range(payloads.shape[0]):
        span = payloads[i]
        if span[KEY_SIZE] < 0:
            continue
        batch = batches[span[BATCH_INDEX]]
        row = rows[n]
        low, high = siphash128(content, span[KEY_AT], span[KEY_SIZE], k0, k1)
        # Value and headers are adjacent in a record.
        body, _ = siphash128(content, span[VALUE_AT], span[HEADERS_END] - span[VALUE_AT], k0, k1)
        row.key = low
        row.key_high = high
        row.offset = span[OFFSET]
        row.content = body ^ (np.uint64(span[TIMESTAMP]) * MIX) ^ np.uint64(span[VALUE_SIZE])
        row.producer_id = batch.producer_id
        row.producer_epoch = batch.producer_epoch
        row.place = batch.position + position
        row.file = file
        row.role = roles[span[BATCH_INDEX]]
        row.tombstone = span[VALUE_SIZE] < 0
        n += 1
    return n


def by_key(facts: ReplicaFacts, parts: Sequence[Rows]) -> ReplicaRows:
    """`parts`: in offset order, as a log is read; a stable sort by key keeps that order within each key."""
    rows = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=ROW), *parts])
    decided = (rows["role"] == COMMITTED) | (rows["role"] == ABORTED)
    rows["role"][decided & facts.undecided(rows["producer_id"], rows["offset"])] = OPEN
    order = np.argsort(np.ascontiguousarray(rows["key"]), kind="stable")
    places = np.empty(order.size, dtype=np.int64)
    places[order] = np.arange(order.size)
    # For rows like these, `take` is more than twice as fast as indexing.
    return ReplicaRows(facts=facts, rows=rows.take(order), offsets=np.ascontiguousarray(rows["offset"]), places=places)


def visible(rows: Rows, below: int) -> npt.NDArray[np.bool_]:
    """What a read_committed consumer gets below an offset."""
    return ((rows["role"] == DATA) | (rows["role"] == COMMITTED)) & (rows["offset"] < below)  # type: ignore[no-any-return]
