"""Compares what the replicas of a partition serve, key by key, and says what a difference is and how that is known.

Not a difference: uneven cleaning (an older record, a tombstone or a marker that only some still have), lag, uneven log starts,
transactions in flight. A record can only be missing from a replica that has its offset if that replica has cleaned it away, so
the rules below ask what could have justified that. docs/audit.md states them in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.audit.views import ReplicaRows, Rows, visible
from headstone.log.indexes import AbortedTxn
from headstone.retention.policy import NO_LIMIT
from headstone.retention.transactions import ABORTED, COMMITTED, DATA, OPEN

REAPPEARS = "deleted-reappears"
ABORTED_SERVED = "aborted-as-committed"
HIDDEN = "committed-hidden"
FROZEN = "read-committed-frozen"
OTHER = "other"
CERTAIN, LIKELY = "certain", "likely"
EVERYBODY, UNCOMMITTED = "every consumer", "read_uncommitted"
ABSENT = -1
SEEN = (DATA, COMMITTED)
"""Roles of what read_committed consumers get."""
EXPLAINED_MAX = 1000
"""Differences of one share that are explained; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one replica has of a key: the newest record that consumers get."""

    replica: str
    offset: int
    deleted: bool

    def __str__(self) -> str:
        if self.offset == ABSENT:
            return "absent"
        return f"deleted at {self.offset}" if self.deleted else f"present at {self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`place` is (replica, file, position) of the batch with the record at `offset`; key digests name the key."""

    kind: str
    replica: str
    key: int
    key_high: int
    offset: int
    sure: str
    why: str
    place: tuple[str, int, int]
    producer_id: int
    producer_epoch: int
    marker: int | None
    served: tuple[Served, ...]
    isolation: str
    """Who is served it: every consumer, or only read_uncommitted ones, because a replica's LSO is in front of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    differences: list[Difference]
    keys: int
    unexplained: int


@dataclass(slots=True, kw_only=True)
class _Newest:
    """Of every key of one replica: the newest visible record, and whether it has something to say at all."""

    offsets: npt.NDArray[np.int64]
    live: npt.NDArray[np.bool_]
    silent: npt.NDArray[np.bool_]


def compare(replicas: Sequence[ReplicaRows]) -> Compared:
    """Every replica with all that have got as far: one that lags hides nothing of the others.

    First below the stable ends, which read_committed consumers get; then below the ends that read_uncommitted ones get."""
    pairs = [_compare_records(one, other, replicas) for one, other in itertools.combinations(replicas, 2)]
    stable = _levels(replicas, [replica.facts.stable_end for replica in replicas])
    beyond = _levels(replicas, [replica.facts.trusted_end for replica in replicas])
    tables = [_compare_below(some, end) for end, some in [*stable, *(level for level in beyond if level not in stable)]]
    # Where the records themselves differ, a key that is missing is no news.
    torn = {one.offset for pair in pairs for one in pair.differences if one.kind == OTHER}
    found: dict[tuple[str, str, int, int], Difference] = {}
    for one in [
        *(one for pair in pairs for one in pair.differences),
        *(one for table in tables for one in table.differences),
    ]:
        if one.kind == OTHER or one.offset not in torn:
            found.setdefault((one.kind, one.replica, one.key, one.key_high), one)
    return Compared(
        differences=list(found.values()), keys=max((table.keys for table in tables), default=0),
        unexplained=max((some.unexplained for some in [*pairs, *tables]), default=0),
    )  # fmt: skip


def _levels(replicas: Sequence[ReplicaRows], ends: Sequence[int]) -> list[tuple[int, list[ReplicaRows]]]:
    """Offsets that two replicas or more have reached, from the highest, and who has."""
    members = [
        (end, [replica for replica, mine in zip(replicas, ends, strict=True) if mine >= end])
        for end in sorted(set(ends) - {0}, reverse=True)
    ]
    return [(end, some) for end, some in members if len(some) > 1]


def _compare_records(one: ReplicaRows, other: ReplicaRows, everybody: Sequence[ReplicaRows]) -> Compared:
    """The same offset on two replicas: the same bytes, and the same decision. Also of records that are superseded."""
    end = min(one.facts.trusted_end, other.facts.trusted_end)
    at = np.searchsorted(other.offsets, one.offsets)
    common = np.flatnonzero(at < other.offsets.size)
    common = common[other.offsets[at[common]] == one.offsets[common]]
    mine, theirs = one.places[common], other.places[at[common]]
    torn = one.rows["content"][mine] != other.rows["content"][theirs]
    torn |= one.rows["key"][mine] != other.rows["key"][theirs]
    ours, others = one.rows["role"][mine], other.rows["role"][theirs]
    twice = (ours == ABORTED) & np.isin(others, SEEN) | (others == ABORTED) & np.isin(ours, SEEN)
    wrong = np.flatnonzero((torn | twice) & (one.offsets[common] < end))
    left, right = one.rows[mine[wrong]], other.rows[theirs[wrong]]
    torn = torn[wrong]
    found: list[Difference] = []
    for i in range(min(wrong.size, EXPLAINED_MAX)):
        case = _case(everybody, int(left[i]["key"]), int(left[i]["key_high"]), below=end)
        if torn[i]:
            found.append(
                case.finding(
                    OTHER, one, left[i], CERTAIN, f"{other.facts.name} has another record at this offset", None
                )
            )
            continue
        holder, replica = (other, one) if left[i]["role"] == ABORTED else (one, other)
        shown, hidden = (right[i], left[i]) if holder is other else (left[i], right[i])
        found += _decided_twice(case, [holder], replica, shown, hidden)
    return Compared(differences=found, keys=0, unexplained=max(wrong.size - EXPLAINED_MAX, 0))


def _case(replicas: Sequence[ReplicaRows], key: int, key_high: int, *, below: int) -> _Case:
    rows = {replica.facts.name: replica.of_key(key, key_high) for replica in replicas}
    newest = {name: _last(some[visible(some, below)]) for name, some in rows.items()}
    return _Case(replicas=replicas, rows=rows, newest=newest, key=key, key_high=key_high)


def _compare_below(replicas: Sequence[ReplicaRows], below: int) -> Compared:
    everything = _distinct(np.concatenate([replica.rows["key"] for replica in replicas]))
    newest = [_newest(replica, everything, below) for replica in replicas]
    offsets = np.stack([one.offsets for one in newest])
    live = np.stack([one.live for one in newest])
    silent = np.stack([one.silent for one in newest])
    # A replica whose log begins later does not know what was before.
    starts = np.array([[replica.facts.log_start] for replica in replicas])
    silent |= (offsets == ABSENT) & (offsets.max(axis=0) < starts)
    differs = _unequal(np.where(live, offsets, ABSENT), silent)
    found: list[Difference] = []
    candidates = np.flatnonzero(differs)
    for k in candidates[:EXPLAINED_MAX]:
        talking = [replica for i, replica in enumerate(replicas) if not silent[i, k]]
        for high in sorted({int(row["key_high"]) for r in talking for row in _rows_of(r.rows, everything[k])}):
            found += explain(talking, int(everything[k]), high, below=below)
    return Compared(differences=found, keys=everything.size, unexplained=max(candidates.size - EXPLAINED_MAX, 0))


def _distinct(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    found = np.sort(keys)
    return found[np.append(found[1:] != found[:-1], True)] if found.size else found


def _rows_of(rows: Rows, key: Any) -> Rows:
    return rows[np.searchsorted(rows["key"], key) : np.searchsorted(rows["key"], key, side="right")]


def _unequal(values: npt.NDArray[np.int64], silent: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Columns in which those that are not silent do not agree."""
    low = np.where(silent, np.iinfo(np.int64).max, values).min(axis=0)
    high = np.where(silent, np.iinfo(np.int64).min, values).max(axis=0)
    return np.asarray(low < high, dtype=np.bool_)


def _newest(replica: ReplicaRows, keys: npt.NDArray[np.uint64], below: int) -> _Newest:
    rows = replica.rows
    mine = np.flatnonzero(visible(rows, below))
    # Sorted by key, then offset: the last of each key is the newest.
    key = rows["key"][mine]
    last = mine[np.append(key[1:] != key[:-1], True)] if mine.size else mine
    at = np.searchsorted(keys, rows["key"][last])
    offsets = np.full(keys.size, ABSENT, dtype=np.int64)
    live = np.zeros(keys.size, dtype=np.bool_)
    offsets[at] = rows["offset"][last]
    live[at] = rows["tombstone"][last] == 0
    # What lies beyond may be why something below is gone: then this replica has nothing to say about the key.
    # So may a transaction that this replica has not seen the end of.
    beyond = _distinct(rows["key"][(rows["offset"] >= below) & visible(rows, NO_LIMIT) | (rows["role"] == OPEN)])
    silent = np.zeros(keys.size, dtype=np.bool_)
    silent[np.searchsorted(keys, beyond)] = True
    return _Newest(offsets=offsets, live=live, silent=silent)


def explain(replicas: Sequence[ReplicaRows], key: int, key_high: int, *, below: int) -> list[Difference]:
    """One key that the replicas do not agree on: who is wrong, and why."""
    case = _case(replicas, key, key_high, below=below)
    known = [row for row in case.newest.values() if row is not None]
    if not known:
        return []
    top = max(int(row["offset"]) for row in known)
    holders = [replica for replica in replicas if _offset(case.newest[replica.facts.name]) == top]
    found: dict[tuple[str, str], Difference] = {}
    for replica in replicas:
        if replica in holders:
            continue
        for difference in _against(case, holders, replica, top):
            found.setdefault((difference.kind, difference.replica), difference)
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    replicas: Sequence[ReplicaRows]
    rows: dict[str, Rows]
    newest: dict[str, Any]
    key: int
    key_high: int

    def finding(self, kind: str, replica: ReplicaRows, row: Any, sure: str, why: str, marker: int | None) -> Difference:
        """`row` is the record that matters, on `replica`, or on another one if `replica` has lost it."""
        name = replica.facts.name
        holder = name if _at(self.rows[name], int(row["offset"])) is not None else next(
            other for other, some in self.rows.items() if _at(some, int(row["offset"])) is not None
        )  # fmt: skip
        served = tuple(
            Served(replica=other, offset=_offset(one), deleted=one is not None and bool(one["tombstone"]))
            for other, one in self.newest.items()
        )
        return Difference(
            kind=kind, replica=name, key=self.key, key_high=self.key_high, offset=int(row["offset"]), sure=sure, why=why,
            place=(holder, int(row["file"]), int(row["place"])), producer_id=int(row["producer_id"]),
            producer_epoch=int(row["producer_epoch"]), marker=marker, served=served,
            isolation=UNCOMMITTED if int(row["offset"]) >= replica.facts.stable_end else EVERYBODY,
        )  # fmt: skip


def _against(case: _Case, holders: Sequence[ReplicaRows], replica: ReplicaRows, top: int) -> list[Difference]:
    """`holders` show the record at `top` as the newest of the key; `replica` shows an older one, or none."""
    row = _at(case.rows[holders[0].facts.name], top)
    mine = _at(case.rows[replica.facts.name], top)
    if mine is not None:
        return [] if mine["role"] == OPEN else _decided_twice(case, holders, replica, row, mine)
    older = case.newest[replica.facts.name]
    alive_here = older is not None and not older["tombstone"]
    if row["tombstone"]:
        if not alive_here:
            return []  # deleted and absent are the same
        why = f"it lacks the tombstone at {top}, which {holders[0].facts.name} has"
        return [case.finding(REAPPEARS, replica, older, CERTAIN, why, None)]
    hidden = [(holder, newer) for holder in holders if (newer := _hidden_behind(case, holder, top)) is not None]
    if hidden and not alive_here:
        holder, newer = hidden[0]
        replaced = int(newer["offset"])
        why = f"{replica.facts.name} has deleted the key: what replaced it at {replaced} was committed, but is hidden here"
        marker = _marker_of(holder, newer)
        return [case.finding(HIDDEN, holder, newer, LIKELY, why, marker) for holder, newer in hidden]
    swallowed = [(holder, txn) for holder in holders if (txn := _swallowed(case, holder, top)) is not None]
    if swallowed and not alive_here:
        return [
            case.finding(
                HIDDEN, holder, _at(case.rows[holder.facts.name], top), LIKELY,
                f"{replica.facts.name} has deleted the key; here the ABORT at {txn.last_offset} counts from "
                f"{txn.first_offset} on, "
                "and hides a transaction before it that was committed",
                txn.last_offset,
            )
            for holder, txn in swallowed
        ]  # fmt: skip
    if row["role"] == COMMITTED:
        return [_served_aborted(case, holder, replica, top, alive_here=alive_here) for holder in holders]
    if alive_here:
        why = f"{holders[0].facts.name} has a newer record at {top}, and nothing here explains why it is missing"
        return [case.finding(OTHER, replica, row, LIKELY, why, None)]
    return [
        case.finding(
            REAPPEARS, holder, _at(case.rows[holder.facts.name], top), LIKELY, _never_came(holder, replica, top), None
        )
        for holder in holders
    ]


def _decided_twice(
    case: _Case, holders: Sequence[ReplicaRows], replica: ReplicaRows, row: Any, mine: Any
) -> list[Difference]:
    """The record is there, committed on some and aborted on another: the first marker behind it, wherever it is, is right."""
    producer, offset = int(row["producer_id"]), int(row["offset"])
    markers = [(one, one.facts.decision(producer, offset)) for one in case.replicas]
    first = min((int(marker["offset"]) for _, marker in markers if marker is not None), default=None)
    deciding = next((marker for _, marker in markers if marker is not None and int(marker["offset"]) == first), None)
    if deciding is not None and not deciding["commit"]:
        why = f"its ABORT at {first} never came here; a later COMMIT of the producer took it along"
        return [case.finding(ABORTED_SERVED, holder, row, CERTAIN, why, first) for holder in holders]
    sure = LIKELY if deciding is None else CERTAIN
    why = f"its COMMIT at {first} never came here; a later ABORT of the producer took it along"
    return [case.finding(HIDDEN, replica, mine, sure, why, first)]


def _served_aborted(
    case: _Case, holder: ReplicaRows, replica: ReplicaRows, top: int, *, alive_here: bool
) -> Difference:
    """A transactional record that another replica has cleaned away: aborted there, or deleted by a tombstone that is gone."""
    row = _at(case.rows[holder.facts.name], top)
    producer = int(row["producer_id"])
    own = holder.facts.decision(producer, top)
    end = int(own["offset"]) if own is not None else top
    for other in case.replicas:
        marker = other.facts.decision(producer, top)
        if marker is not None and not marker["commit"] and int(marker["offset"]) < end:
            at = int(marker["offset"])
            why = f"{other.facts.name} has its ABORT at {at}, which never came here"
            return case.finding(ABORTED_SERVED, holder, row, CERTAIN, why, at)
    if alive_here or holder.facts.went_on(producer, top, end):
        why = f"{replica.facts.name} has cleaned it away; the COMMIT at {end} is that of a later transaction of the producer"
        return case.finding(ABORTED_SERVED, holder, row, LIKELY, why, end)
    return case.finding(REAPPEARS, holder, row, LIKELY, _never_came(holder, replica, top), None)


def _never_came(holder: ReplicaRows, replica: ReplicaRows, top: int) -> str:
    why = f"{replica.facts.name} has cleaned it away, which only a tombstone behind {top} allows"
    if holder.facts.log_end < replica.facts.log_end:
        return f"{why}; that is gone there, and this replica, which is behind, will not get it when it catches up"
    return f"{why}; that never came here"


def _hidden_behind(case: _Case, holder: ReplicaRows, top: int) -> Any | None:
    """A newer record of the key that this replica takes for aborted, with room for a COMMIT that never came."""
    rows = case.rows[holder.facts.name]
    for row in rows[(rows["offset"] > top) & (rows["role"] == ABORTED)][::-1]:
        marker = _marker_of(holder, row)
        if marker is None or holder.facts.went_on(int(row["producer_id"]), int(row["offset"]), marker):
            return row
    return None


def _swallowed(case: _Case, holder: ReplicaRows, top: int) -> AbortedTxn | None:
    """An aborted transaction behind `top` that begins later on another replica: it has swallowed the one before."""
    for txn in holder.facts.aborted:
        for other in case.replicas:
            same = (
                one
                for one in other.facts.aborted
                if (one.producer_id, one.last_offset) == (txn.producer_id, txn.last_offset)
            )
            if txn.first_offset > top and any(one.first_offset > txn.first_offset for one in same):
                return txn
    return None


def _marker_of(replica: ReplicaRows, row: Any) -> int | None:
    marker = replica.facts.decision(int(row["producer_id"]), int(row["offset"]))
    return None if marker is None else int(marker["offset"])


def _last(rows: Rows) -> Any | None:
    return rows[-1] if rows.size else None


def _offset(row: Any | None) -> int:
    return ABSENT if row is None else int(row["offset"])


def _at(rows: Rows, offset: int) -> Any:
    """The record at an offset, or None."""
    mine = rows[rows["offset"] == offset]
    return mine[0] if mine.size else None
