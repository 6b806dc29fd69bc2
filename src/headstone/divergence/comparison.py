"""Compares what the replicas of a partition serve, key by key, and finds the keys that need an explanation. Whole arrays only.

Not a difference: uneven cleaning (an older record, a tombstone or a marker that only some still have), lag, uneven log starts,
transactions in flight. `explaining` says why a key differs and who is wrong, `decisions` how transactions ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.divergence.decisions import Decisions
from headstone.divergence.explaining import KeyCase
from headstone.divergence.findings import ABSENT, Difference
from headstone.divergence.identity import Pair
from headstone.divergence.views import ReplicaRows, Rows, visible
from headstone.retention.policy import NO_LIMIT
from headstone.retention.transactions import ABORTED, COMMITTED, DATA, OPEN

SEEN = (DATA, COMMITTED)
"""Roles of the records that read_committed consumers get."""
EXPLAINED_MAX = 1000
"""Keys of one share that are explained; further ones are only counted."""

Key = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    differences: list[Difference]
    keys: int
    """Keys about which at least two replicas have something to say: these were compared."""
    unsaid: int
    """Keys about which all replicas, or all but one, are silent."""
    taking_part: frozenset[str]
    """Replicas that were compared with another one, by a key or by an offset that both have."""
    unexplained: int
    pairs: Mapping[Pair, tuple[int, int]]
    """How many offsets two replicas have in common, and at how many of these their records differ."""


@dataclass(slots=True, kw_only=True)
class _Newest:
    """For every key of one replica: the newest visible record, and whether the replica has something to say about the key."""

    offsets: npt.NDArray[np.int64]
    live: npt.NDArray[np.bool_]
    silent: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Below one end: the number of keys, of keys about which two or more members have something to say, and these members."""

    seen: npt.NDArray[np.uint64]
    compared: npt.NDArray[np.uint64]
    taking_part: frozenset[str]


@dataclass(slots=True, kw_only=True)
class _Findings:
    """The first difference found for each class, replica and key: the most certain ones are looked for first."""

    first: dict[tuple[str, str, int, int], Difference] = field(default_factory=dict)
    misled: set[tuple[str, int, int]] = field(default_factory=set)
    """Replicas and keys about which readers are misled: reported once."""
    unexplained: int = 0
    pairs: dict[Pair, tuple[int, int]] = field(default_factory=dict)

    def add(self, differences: Sequence[Difference]) -> None:
        new = [each for each in differences if (each.replica, each.key, each.key_high) not in self.misled]
        for difference in new:
            place = (difference.kind, difference.replica, difference.key, difference.key_high)
            self.first.setdefault(place, difference)
        self.misled.update((each.replica, each.key, each.key_high) for each in new if each.misleads)


# Which differences mean something.
#
# Replicas of a compacted topic hold different records all the time, so comparing records shows nothing. What must agree is what
# a reader ends up with: per key, the newest visible record, or nothing. Deleted (a tombstone is newest) and absent are the
# same, since a tombstone may go. Three things make even that differ between healthy replicas:
#
# - Lag. One replica has read further. So the comparison is made below an end that several have reached: once for every distinct
#   end, from the highest down, with the replicas that got that far (`_levels`). Two replicas are compared at the lower of their
#   two ends, and one that lags does not limit the others.
# - Cleaning beyond the end. A replica that is ahead may have removed a record below the end because of one above it. So a
#   replica is silent about a key that it has written again at or above the end, or in an open transaction.
# - Log starts. A replica that has nothing of a key, and begins after everything that others have of it, is silent too.
#
# Keys are 128-bit digests, sorted by their first half. A state is one offset (of the live value, or ABSENT), so a key agrees if
# the minimum and the maximum over the replicas that are not silent are equal: array work for all keys at once. Only the few
# that differ become a `KeyCase`, which reads their rows one by one and asks `explaining` who is wrong.
#
# Two more comparisons: the same offset must hold the same bytes on any two replicas (torn), and must be read as its transaction
# ended (misread), even where a newer record hides it from every reader.
def compare(replicas: Sequence[ReplicaRows]) -> Compared:
    """Compares every replica with all that have got as far, so that one that lags hides nothing of the others.

    First below the stable ends, which read_committed consumers get; then below the ends that read_uncommitted consumers get;
    then records whose transaction a replica has misread without misleading any reader."""
    decisions = Decisions([replica.facts for replica in replicas])
    findings = _Findings()
    torn, misread = _compare_records(replicas, decisions, findings)
    stable = _levels(replicas, [replica.facts.stable_end for replica in replicas])
    beyond = _levels(replicas, [replica.facts.trusted_end for replica in replicas])
    seen, compared = (np.zeros(0, dtype=np.uint64) for _ in range(2))
    taking_part = {name for pair, (common, _) in findings.pairs.items() if common for name in pair}
    for end, some in [*stable, *(level for level in beyond if level not in stable)]:
        level = _compare_below(replicas, some, end, decisions, findings, torn)
        seen, compared = np.union1d(seen, level.seen), np.union1d(compared, level.compared)
        taking_part |= level.taking_part
    for replica in replicas:
        trusted = replica.rows["offset"] < replica.facts.trusted_end
        misread |= _keys_of(replica.rows[decisions.contradicted(replica.rows) & trusted])
    for key, key_high in sorted(misread - torn)[:EXPLAINED_MAX]:
        findings.add(KeyCase(replicas, replicas, decisions, key, key_high, below=NO_LIMIT).misread())
    return Compared(
        differences=list(findings.first.values()), keys=compared.size, unsaid=seen.size - compared.size,
        taking_part=frozenset(taking_part), unexplained=findings.unexplained, pairs=findings.pairs,
    )  # fmt: skip


def _keys_of(rows: Rows) -> set[Key]:
    return set(zip(rows["key"].tolist(), rows["key_high"].tolist(), strict=True))


def _levels(replicas: Sequence[ReplicaRows], ends: Sequence[int]) -> list[tuple[int, list[ReplicaRows]]]:
    """Offsets that at least two replicas have reached, from the highest, each with those replicas."""
    members = [
        (end, [replica for replica, mine in zip(replicas, ends, strict=True) if mine >= end])
        for end in sorted(set(ends) - {0}, reverse=True)
    ]
    return [(end, some) for end, some in members if len(some) > 1]


def _compare_records(
    replicas: Sequence[ReplicaRows], decisions: Decisions, findings: _Findings
) -> tuple[set[Key], set[Key]]:  # fmt: skip
    """Compares equal offsets of two replicas. Returns keys whose bytes differ, which become findings, and keys whose decision
    differs."""
    torn_keys: set[Key] = set()
    misread: set[Key] = set()
    for left, right in itertools.combinations(replicas, 2):
        end = min(left.facts.trusted_end, right.facts.trusted_end)
        places = np.searchsorted(right.offsets, left.offsets)
        common = np.flatnonzero(places < right.offsets.size)
        common = common[right.offsets[places[common]] == left.offsets[common]]
        left_rows, right_rows = left.places[common], right.places[places[common]]
        torn = left.rows["content"][left_rows] != right.rows["content"][right_rows]
        torn |= left.rows["key"][left_rows] != right.rows["key"][right_rows]
        left_roles, right_roles = left.rows["role"][left_rows], right.rows["role"][right_rows]
        twice = (left_roles == ABORTED) & np.isin(right_roles, SEEN) | (right_roles == ABORTED) & np.isin(
            left_roles, SEEN
        )
        below = left.offsets[common] < end
        names = (left.facts.name, right.facts.name)
        findings.pairs[names] = int(np.count_nonzero(below)), int(np.count_nonzero(torn & below))
        rows = left.rows[left_rows[torn & below]]
        findings.unexplained += max(rows.size - EXPLAINED_MAX, 0)
        for row in rows[:EXPLAINED_MAX]:
            case = KeyCase(replicas, replicas, decisions, int(row["key"]), int(row["key_high"]), below=end)
            findings.add([case.torn(left.facts.name, right.facts.name, row)])
        torn_keys |= _keys_of(rows) | _keys_of(right.rows[right_rows[torn & below]])
        misread |= _keys_of(left.rows[left_rows[twice & ~torn & below]])
    return torn_keys, misread


def _compare_below(
    replicas: Sequence[ReplicaRows], members: Sequence[ReplicaRows], below: int, decisions: Decisions, findings: _Findings,
    torn: set[Key],
) -> _Level:  # fmt: skip
    """If the records themselves differ (`torn`), a missing key is no additional finding."""
    everything = _distinct(np.concatenate([replica.rows["key"] for replica in members]))
    newest = [_newest(replica, everything, below) for replica in members]
    offsets = np.stack([one.offsets for one in newest])
    live = np.stack([one.live for one in newest])
    silent = np.stack([one.silent for one in newest])
    # A replica whose log begins later does not know what came before.
    starts = np.array([[replica.facts.log_start] for replica in members])
    silent |= (offsets == ABSENT) & (offsets.max(axis=0) < starts)
    candidates = np.flatnonzero(_unequal(np.where(live, offsets, ABSENT), silent))
    for k in candidates[:EXPLAINED_MAX]:
        talking = [replica for i, replica in enumerate(members) if not silent[i, k]]
        for high in sorted({int(row["key_high"]) for r in talking for row in _rows_of(r.rows, everything[k])}):
            if (int(everything[k]), high) not in torn:
                findings.add(KeyCase(replicas, talking, decisions, int(everything[k]), high, below=below).explain())
    findings.unexplained = max(findings.unexplained, candidates.size - EXPLAINED_MAX)
    comparable = np.count_nonzero(~silent, axis=0) > 1
    talked = np.count_nonzero(~silent[:, comparable], axis=1)
    return _Level(
        seen=everything, compared=everything[comparable],
        taking_part=frozenset(replica.facts.name for replica, part in zip(members, talked, strict=True) if part),
    )  # fmt: skip


def _distinct(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    ordered = np.sort(keys)
    return ordered[np.append(ordered[1:] != ordered[:-1], True)] if ordered.size else ordered


def _rows_of(rows: Rows, key: Any) -> Rows:
    return rows[np.searchsorted(rows["key"], key) : np.searchsorted(rows["key"], key, side="right")]


def _unequal(values: npt.NDArray[np.int64], silent: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Columns in which the replicas that are not silent disagree."""
    low = np.where(silent, np.iinfo(np.int64).max, values).min(axis=0)
    high = np.where(silent, np.iinfo(np.int64).min, values).max(axis=0)
    return np.asarray(low < high, dtype=np.bool_)


def _newest(replica: ReplicaRows, keys: npt.NDArray[np.uint64], below: int) -> _Newest:
    rows = replica.rows
    shown = np.flatnonzero(visible(rows, below))
    # Sorted by key, then offset: the last of each key is the newest.
    key = rows["key"][shown]
    last = shown[np.append(key[1:] != key[:-1], True)] if shown.size else shown
    places = np.searchsorted(keys, rows["key"][last])
    offsets = np.full(keys.size, ABSENT, dtype=np.int64)
    live = np.zeros(keys.size, dtype=np.bool_)
    offsets[places] = rows["offset"][last]
    live[places] = rows["tombstone"][last] == 0
    # A record at or above the end may be why one below it is gone: then this replica has nothing to say about the key. The same
    # goes for a transaction whose end this replica has not seen.
    beyond = _distinct(rows["key"][(rows["offset"] >= below) & visible(rows, NO_LIMIT) | (rows["role"] == OPEN)])
    silent = np.zeros(keys.size, dtype=np.bool_)
    silent[np.searchsorted(keys, beyond)] = True
    return _Newest(offsets=offsets, live=live, silent=silent)
