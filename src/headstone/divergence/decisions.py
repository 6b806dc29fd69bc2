"""How every transaction ended, by the evidence of all replicas together; and what that says about one replica's own reading.

A marker ends all data of its producer before it that has not ended yet, so the first marker after a record decides it. Each
replica may have lost markers: its cleaner removes them when nothing of the transaction is left there, and a replica that was
away copies only what is left. So the places of markers are gathered from every replica: markers themselves, entries of abort
indexes, and bare headers of emptied markers, which show where a transaction ended but not how. Keys are compared after this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headstone.divergence.views import ReplicaFacts, Rows
from headstone.log.layout import ABORT, COMMIT
from headstone.retention.transactions import ABORTED, COMMITTED

UNKNOWN = -1
"""The kind of an ending of which only a bare header is left, on every replica."""
NO_EPOCH = -1

IMPOSSIBLE, REMOTE, POSSIBLE, LIKELIER, EVIDENT, SURE = range(6)
"""Grades, from excluded to certain: the logs exclude it; not excluded, but unlikely; plausible; the commoner of two plausible
ones; something in the logs speaks for it; there is no other reading."""

ENDING = np.dtype([("producer_id", "i8"), ("offset", "i8"), ("epoch", "i2"), ("kind", "i1")])


class Endings:
    """Ends of transactions by producer and offset, found by bisection."""

    def __init__(self, rows: Rows) -> None:
        order = np.lexsort((-rows["kind"], rows["offset"], rows["producer_id"]))
        rows = rows[order]
        first = np.ones(rows.size, dtype=np.bool_)
        first[1:] = (rows["producer_id"][1:] != rows["producer_id"][:-1]) | (rows["offset"][1:] != rows["offset"][:-1])
        # Entries of an abort index have no epoch; another replica may know the epoch of the same ending.
        epochs = np.maximum.reduceat(rows["epoch"], np.flatnonzero(first)) if rows.size else rows["epoch"]
        self.rows = rows[first]
        self.rows["epoch"] = epochs
        self._ids = np.unique(self.rows["producer_id"])
        self._offsets = np.unique(self.rows["offset"])
        self._ranks = self._rank(self.rows["producer_id"], np.searchsorted(self._offsets, self.rows["offset"]))

    def _rank(self, producer_ids: Any, places: Any) -> npt.NDArray[np.int64]:
        return np.asarray(np.searchsorted(self._ids, producer_ids) * (self._offsets.size + 1) + places)

    def behind(self, producer_ids: Any, offsets: Any) -> npt.NDArray[np.int64]:
        """For each record: the index of the first ending of its producer after it; -1 if there is none."""
        if not self.rows.size:
            return np.full(len(offsets), -1, dtype=np.int64)
        places = np.searchsorted(
            self._ranks, self._rank(producer_ids, np.searchsorted(self._offsets, offsets, side="right"))
        )
        places = np.minimum(places, self.rows.size - 1)
        is_behind = (self.rows["producer_id"][places] == producer_ids) & (self.rows["offset"][places] > offsets)
        return np.where(is_behind, places, -1)

    def after(self, producer_id: int, offset: int) -> Any | None:
        (index,) = self.behind(np.array([producer_id]), np.array([offset]))
        return None if index < 0 else self.rows[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealEnd:
    """The end of one record's transaction. `marker`: its offset; None if no replica has anything left of it."""

    marker: int | None
    kind: int
    linked: bool
    """True if more than the order of markers links it to the record: epochs, an abort index, or another replica with the
    record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """How likely a replica has misread a record's transaction, and the ending that speaks for it, if there is one."""

    grade: int
    marker: int | None


class Decisions:
    """Ignores everything at or above a replica's trusted end: it may still be replaced."""

    def __init__(self, replicas: Sequence[ReplicaFacts]) -> None:
        self._replicas = {facts.name: facts for facts in replicas}
        self.own = {facts.name: Endings(_known(facts)) for facts in replicas}
        self.everywhere = Endings(np.concatenate([_endings(facts) for facts in replicas]))
        self._misread: dict[tuple[str, int, bool], int] = {}

    def contradicted(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Rows that their replica takes for committed although the first ending known anywhere is an ABORT, and the reverse."""
        wrong = np.zeros(rows.size, dtype=np.bool_)
        decided = np.flatnonzero((rows["role"] == COMMITTED) | (rows["role"] == ABORTED))
        indices = self.everywhere.behind(rows["producer_id"][decided], rows["offset"][decided])
        decided, indices = decided[indices >= 0], indices[indices >= 0]
        kinds = self.everywhere.rows["kind"][indices]
        committed = rows["role"][decided] == COMMITTED
        wrong[decided] = committed & (kinds == ABORT) | ~committed & (kinds == COMMIT)
        return wrong

    def real_end(self, row: Any, *, judged: str, holders: Sequence[str]) -> RealEnd:
        """`judged`: the replica whose own word does not count. `holders`: all that have the record."""
        producer, offset, epoch = int(row["producer_id"]), int(row["offset"]), int(row["producer_epoch"])
        end = self.everywhere.after(producer, offset)
        if end is None or self._lost_between(producer, offset, int(end["offset"]), epoch, int(end["epoch"])):
            return RealEnd(marker=None, kind=UNKNOWN, linked=False)
        ending, kind = int(end["offset"]), int(end["kind"])
        entries = self._indexed.get((producer, ending), {})
        begun = set().union(*(names for first, names in entries.items() if first <= offset))
        later = set().union(*(names for first, names in entries.items() if first > offset))
        if len(later - {judged}) > len(begun - {judged}):
            # Replicas that saw that transaction say that it began after this record, so the record's own marker is gone.
            return RealEnd(marker=None, kind=UNKNOWN, linked=False)
        having = (name for name, facts in self._replicas.items() if name in holders or facts.has_data(producer, offset))
        agreeing = {name for name in having if self._ends(name, producer, offset) == ending} | begun
        # A replica whose reading is in question proves nothing by itself, and others may have lost the same marker: then it
        # takes a majority.
        enough = len(self._replicas) // 2 + 1 if judged in agreeing else 1
        exact = int(end["epoch"]) == epoch + 1 and not self._ends_in_own_epoch(producer, epoch)
        linked = exact or len(agreeing) >= enough
        return RealEnd(marker=ending, kind=kind, linked=linked)

    def doubt(self, name: str, row: Any, kind: int, *, holders: Sequence[str]) -> Doubt:
        """May the transaction of this record really have ended with `kind`, although replica `name` reads the other one?"""
        if row["role"] not in (COMMITTED, ABORTED):
            return Doubt(grade=IMPOSSIBLE, marker=None)
        real = self.real_end(row, judged=name, holders=holders)
        producer, offset = int(row["producer_id"]), int(row["offset"])
        own = self._ends(name, producer, offset)
        if real.marker is None:
            lost = self.everywhere.after(producer, offset) is not None
            return Doubt(grade=EVIDENT if lost else POSSIBLE, marker=None)
        if real.kind == UNKNOWN:
            return Doubt(grade=EVIDENT, marker=real.marker)
        if real.kind == kind:
            return Doubt(grade=SURE if real.linked else EVIDENT, marker=real.marker)
        if real.linked or not self.unseen(offset, real.marker):
            return Doubt(grade=IMPOSSIBLE, marker=None)
        return Doubt(grade=POSSIBLE, marker=None if own is None else own)

    def _ends(self, name: str, producer_id: int, offset: int) -> int | None:
        end = self.own[name].after(producer_id, offset)
        return None if end is None else int(end["offset"])

    def _lost_between(self, producer_id: int, offset: int, end: int, epoch: int, end_epoch: int) -> bool:
        """True if the record's own marker is missing: a marker has the epoch of its data or the next one, and the data of one
        transaction has one epoch."""
        if end_epoch != NO_EPOCH and end_epoch not in (epoch, epoch + 1):
            return True
        data = self._data
        first, last = (np.searchsorted(data["producer_id"], producer_id, side=side) for side in ("left", "right"))
        of_producer = data[first:last]
        between = of_producer[(of_producer["base"] > offset) & (of_producer["base"] < end)]
        return bool((between["epoch"] > epoch).any())

    def _ends_in_own_epoch(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer ended a transaction of this epoch in the same epoch, as version 1 does. Then a marker of the
        next epoch comes from fencing, and does not end everything before it."""
        data, rows = self._data, self.everywhere.rows
        of_epoch = data[(data["producer_id"] == producer_id) & (data["epoch"] == epoch)]
        same = rows[(rows["producer_id"] == producer_id) & (rows["epoch"] == epoch)]
        return bool(of_epoch.size and same.size and same["offset"].max() > of_epoch["base"].min())

    def began_behind(self, name: str, producer_id: int, offset: int, end: int) -> bool:
        """Whether the replica's abort index says that the transaction that ended at `end` began after the offset."""
        entries = self._indexed.get((producer_id, end), {})
        return any(first > offset and name in names for first, names in entries.items())

    def began_too_early(self, name: str, offset: int) -> bool:
        """Whether an aborted transaction begins earlier in this replica's abort index than in most others', with room after the
        offset: then it has swallowed a transaction that had ended otherwise."""
        for firsts in self._indexed.values():
            own = min((first for first, names in firsts.items() if name in names), default=None)
            if own is None:
                continue
            later = {other for first, names in firsts.items() if first > max(own, offset + 1) for other in names}
            if len(later) > sum(len(names - {name}) for first, names in firsts.items() if first <= own):
                return True
        return False

    def misread_before(self, name: str, kind: int, *, others_only: bool = False) -> int:
        """The offset before which the replica may have read a transaction as ended by `kind` that ended otherwise; -1 if there
        is none.

        For every ending that reads so, or may: the last place before it at which another ending was missed, on this replica
        (known from others) or on all (offsets that no replica has). It must lie after the previous marker, which decided what
        was before it, and after the first offset of the transaction in the abort index. `others_only`: only endings known from
        others."""
        if (name, kind, others_only) not in self._misread:
            self._misread[name, kind, others_only] = self._last_misread(name, kind, others_only=others_only)
        return self._misread[name, kind, others_only]

    def _last_misread(self, name: str, kind: int, *, others_only: bool) -> int:
        rows = self.everywhere.rows
        own = self.own[name]
        places = own.behind(rows["producer_id"], rows["offset"] - 1)
        agreeing = (
            (places >= 0) & (own.rows["offset"][places] == rows["offset"])
            if own.rows.size
            else np.zeros(rows.size, np.bool_)
        )
        missed = _previous(rows, ~agreeing & (rows["kind"] != kind))
        limit = missed if others_only else np.maximum(missed, self._last_unseen(rows["offset"]))
        floor = _previous(rows, agreeing)
        if kind == ABORT:
            firsts, agreed = self._indexed_firsts(name)
            floor = np.maximum(floor, firsts)
            limit[agreed] = -1
        feasible = (rows["kind"] != COMMIT + ABORT - kind) & (limit > floor)
        return int(limit[feasible].max(initial=-1))

    def _last_unseen(self, offsets: Any) -> npt.NDArray[np.int64]:
        """The last offset before each that no replica has a batch over; -1 if all before it are covered."""
        starts, ends = self._covered
        places = np.searchsorted(starts, offsets - 1, side="right") - 1
        inside = (places >= 0) & (ends[places] >= offsets - 1)
        return np.where(inside, np.where(places > 0, starts[places] - 1, -1), offsets - 1)

    def _indexed_firsts(self, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """For every ending: where its transaction begins in this replica's abort index (-1: no entry), and whether that is
        certain: most replicas have the same entry, or the epoch of its first batch is that of the marker's data."""
        rows, facts = self.everywhere.rows, self._replicas[name]
        firsts, agreed = np.full(rows.size, -1, dtype=np.int64), np.zeros(rows.size, dtype=np.bool_)
        entries = [entry for entry in facts.aborted if entry.last_offset < facts.trusted_end]
        if not entries or not facts.spans.size:
            return firsts, agreed
        ids, lasts, begins = (
            np.array([getattr(entry, field) for entry in entries], dtype=np.int64)
            for field in ("producer_id", "last_offset", "first_offset")
        )
        places = self.everywhere.behind(ids, lasts - 1)
        firsts[places] = begins
        half = len(self._replicas) / 2
        agreed[places] = [
            len(self._indexed[i, last][first]) > half
            for i, last, first in zip(*map(np.ndarray.tolist, (ids, lasts, begins)), strict=True)
        ]
        batch = np.minimum(np.searchsorted(facts.spans["base"], begins), facts.spans.size - 1)
        agreed[places] |= (facts.spans["base"][batch] == begins) & (
            facts.spans["epoch"][batch] + 1 == rows["epoch"][places]
        )
        return firsts, agreed

    @cached_property
    def _indexed(self) -> dict[tuple[int, int], dict[int, set[str]]]:
        """(producer, ABORT's offset) to first offsets, each with the replicas whose abort index says so."""
        indexed: dict[tuple[int, int], dict[int, set[str]]] = {}
        for name, facts in self._replicas.items():
            for entry in facts.aborted:
                if entry.last_offset < facts.trusted_end:
                    firsts = indexed.setdefault((entry.producer_id, entry.last_offset), {})
                    firsts.setdefault(entry.first_offset, set()).add(name)
        return indexed

    @cached_property
    def _data(self) -> Rows:
        """Transactional data of all replicas by producer: headers only."""
        parts = [facts.spans[(facts.spans["transactional"] == 1) & (facts.spans["base"] < facts.trusted_end)]
                 for facts in self._replicas.values()]  # fmt: skip
        rows = np.concatenate(parts)
        return rows[np.argsort(rows["producer_id"], kind="stable")]

    def unseen(self, first: int, last: int) -> bool:
        """Whether an offset in (first, last) is in no replica's batch: room for a marker lost everywhere."""
        starts, ends = self._covered
        run = int(np.searchsorted(ends, first, side="right"))
        return not (run < starts.size and starts[run] <= first + 1 and ends[run] >= last - 1) and last > first + 1

    @cached_property
    def _covered(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Runs of offsets over which some replica has a batch: first and last of each."""
        return _runs([(facts.spans["base"], facts.spans["last"]) for facts in self._replicas.values()])

    def complete(self, name: str, first: int) -> bool:
        """Whether the replica has every record after `first`: nothing there was cleaned away or never came."""
        last = max(facts.trusted_end for facts in self._replicas.values())
        starts, ends = self._whole[name]
        run = int(np.searchsorted(ends, first, side="right"))
        return last <= first + 1 or (run < starts.size and starts[run] <= first + 1 and ends[run] >= last - 1)

    @cached_property
    def _whole(self) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        runs = {}
        for name, facts in self._replicas.items():
            whole = facts.spans[facts.spans["complete"] == 1]
            runs[name] = _runs([(whole["base"], whole["last"])])
        return runs


def _previous(rows: Rows, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """For every ending: the offset of the last chosen one of the same producer before it; -1 if there is none."""
    places = np.maximum.accumulate(np.where(chosen, np.arange(rows.size), -1))
    before = np.append(-1, places[:-1])[: rows.size]
    same = (before >= 0) & (rows["producer_id"][before] == rows["producer_id"])
    return np.where(same, rows["offset"][before], -1)


def _runs(spans: Sequence[tuple[Any, Any]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    bases, lasts = (np.concatenate([span[side] for span in spans]) for side in (0, 1))
    order = np.argsort(bases, kind="stable")
    bases, lasts = bases[order], np.maximum.accumulate(lasts[order]) if order.size else lasts
    begins = np.append(True, bases[1:] > lasts[:-1] + 1) if order.size else np.zeros(0, dtype=np.bool_)
    starts = bases[begins]
    ends = lasts[np.append(np.flatnonzero(begins)[1:] - 1, order.size - 1)] if order.size else lasts
    return starts, ends


def _known(facts: ReplicaFacts) -> Rows:
    """Markers that the replica still has as such."""
    markers = facts.markers[facts.markers["offset"] < facts.trusted_end]
    rows = np.zeros(markers.size, dtype=ENDING)
    rows["producer_id"], rows["offset"] = markers["producer_id"], markers["offset"]
    rows["epoch"], rows["kind"] = markers["producer_epoch"], np.where(markers["commit"] == 1, COMMIT, ABORT)
    return rows


def _endings(facts: ReplicaFacts) -> Rows:
    bare = facts.bare[facts.bare["offset"] < facts.trusted_end]
    emptied = np.zeros(bare.size, dtype=ENDING)
    emptied["producer_id"], emptied["offset"] = bare["producer_id"], bare["offset"]
    emptied["epoch"], emptied["kind"] = bare["producer_epoch"], UNKNOWN
    entries = [entry for entry in facts.aborted if entry.last_offset < facts.trusted_end]
    indexed = np.array([(e.producer_id, e.last_offset, NO_EPOCH, ABORT) for e in entries], dtype=ENDING)
    return np.concatenate([_known(facts), emptied, indexed])
