"""What each batch means to transactions: plain, committed, aborted or open data; a marker still needed or not.

The tracker walks batch headers from the start of the log, as the cleaner's does: a marker is needed while one of its data
batches is seen in the same walk. One byte per batch comes out; records are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.log.indexes import AbortedTxn
from headstone.log.intrinsics import kernel
from headstone.log.layout import ABORT, COMMIT, EMPTIED, NOT_CONTROL, TRANSACTIONAL
from headstone.log.reading import Batches
from headstone.retention.producers import slots_of

DATA = 0
COMMITTED = 1
ABORTED = 2
OPEN = 3
CONTROL_NEEDED = 4
CONTROL_IDLE = 5
"""A marker without any data left (or an emptied one): it may be stamped, and goes once its time has come."""

Roles = npt.NDArray[np.uint8]


# How the tracker knows a batch's role before it has met the marker.
#
# A marker lies behind the data that it decides, but roles are given in one walk, forwards. What is ahead is known
# from elsewhere: the aborted transactions of the whole log (`.txnindex`, and a replay of the headers), sorted by
# first offset; and, by producer, where the transaction begins that is still open at the end of the log. Whatever is
# transactional and neither of the two was committed. So each producer needs three words of state, kept in arrays by
# its slot, whatever the number of transactions:
#
#   aborted_now     the aborted transaction that the walk is inside of, as an index into the sorted entries; -1 outside of any
#   committed_seen  whether committed data was met since the producer's last COMMIT
#   open_first      first offset of its open transaction, -1 if there is none; it never changes
#
# `queue` is the place in the sorted entries: those that begin at or before the current batch take effect, unless the
# producer's present one has not ended before they begin. An entry holds for data in front of its last offset, which is
# its marker's; the marker ends it.
#
# A marker is needed if data that it decides was met: `seen` says so of an entry, `committed_seen` of a COMMIT. It
# says so of this walk, which is over the log as it is before the pass: data that goes in this pass still keeps its
# marker, so the marker outlives its data by a pass (R0 in docs/rules.md). Entries that were seen are those of the new
# `.txnindex`. A marker without its record was emptied by an earlier pass and is idle; control batches that end
# nothing, such as KRaft's, always stay.
#
# All state is in arguments, because the walk goes chunk by chunk. A slot below 0 is a batch without a producer.
@kernel
def _track(batches: Any, slots: Any, firsts: Any, lasts: Any, entry_slots: Any, seen: Any, queue: Any, aborted_now: Any,
           committed_seen: Any, open_first: Any, roles: Any) -> None:  # fmt: skip
    for i in range(batches.size):
        batch = batches[i]
        while queue[0] < firsts.size and firsts[queue[0]] <= batch.last_offset:
            slot = entry_slots[queue[0]]
            if aborted_now[slot] < 0 or lasts[aborted_now[slot]] < firsts[queue[0]]:
                aborted_now[slot] = queue[0]
            queue[0] += 1
        s = slots[i]
        kind = batch.control_type
        if kind == NOT_CONTROL:
            roles[i] = DATA
            if s < 0 or not batch.attributes & TRANSACTIONAL:
                continue
            entry = aborted_now[s]
            if entry >= 0 and batch.base_offset < lasts[entry]:
                seen[entry] = 1
                roles[i] = ABORTED
            elif open_first[s] >= 0 and batch.base_offset >= open_first[s]:
                roles[i] = OPEN
            else:
                committed_seen[s] = 1
                roles[i] = COMMITTED
        elif kind == EMPTIED:
            roles[i] = CONTROL_IDLE
        elif kind == ABORT and s >= 0:
            entry = aborted_now[s]
            roles[i] = CONTROL_NEEDED if entry >= 0 and seen[entry] == 1 else CONTROL_IDLE
            aborted_now[s] = -1
        elif kind == COMMIT and s >= 0:
            roles[i] = CONTROL_NEEDED if committed_seen[s] == 1 else CONTROL_IDLE
            committed_seen[s] = 0
        else:
            roles[i] = CONTROL_NEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTxn:
    producer_id: int
    first_offset: int


class Tracker:
    """Feed it every batch from the start of the log, in order; it gives each batch its role."""

    def __init__(
        self, aborted: Sequence[AbortedTxn], open_txns: Sequence[OpenTxn], producer_ids: Iterable[int]
    ) -> None:
        self._entries = sorted(aborted, key=lambda entry: (entry.first_offset, entry.last_offset))
        ids = {*producer_ids, *(e.producer_id for e in self._entries), *(o.producer_id for o in open_txns)}
        self._ids = np.array(sorted(ids), dtype=np.int64)
        self._firsts = np.array([entry.first_offset for entry in self._entries], dtype=np.int64)
        self._lasts = np.array([entry.last_offset for entry in self._entries], dtype=np.int64)
        entry_ids = np.array([entry.producer_id for entry in self._entries], dtype=np.int64)
        self._entry_slots = slots_of(self._ids, entry_ids)
        self._seen = np.zeros(len(self._entries), dtype=np.uint8)
        self._queue = np.zeros(1, dtype=np.int64)
        self._aborted_now = np.full(self._ids.size, -1, dtype=np.int64)
        self._committed_seen = np.zeros(self._ids.size, dtype=np.uint8)
        self._open_first = np.full(self._ids.size, -1, dtype=np.int64)
        for open_txn in open_txns:
            self._open_first[np.searchsorted(self._ids, open_txn.producer_id)] = open_txn.first_offset

    def roles(self, batches: Batches) -> Roles:
        roles = np.zeros(batches.size, dtype=np.uint8)
        slots = slots_of(self._ids, batches["producer_id"])
        _track(
            batches, slots, self._firsts, self._lasts, self._entry_slots, self._seen, self._queue, self._aborted_now,
            self._committed_seen, self._open_first, roles,
        )  # fmt: skip
        return roles

    def seen_aborted(self) -> list[AbortedTxn]:
        """Aborted transactions whose data was still there: their entries belong into the new `.txnindex`."""
        return [entry for entry, seen in zip(self._entries, self._seen, strict=True) if seen]


def merged_aborted(indexed: Iterable[AbortedTxn], replayed: Iterable[AbortedTxn]) -> tuple[list[AbortedTxn], int]:
    """Index entries plus those found only in the log itself, and the number of the latter (a lost `.txnindex`)."""
    by_marker = {(entry.producer_id, entry.last_offset): entry for entry in indexed}
    lost = [entry for entry in replayed if (entry.producer_id, entry.last_offset) not in by_marker]
    return sorted([*by_marker.values(), *lost]), len(lost)
