"""One key that replicas do not agree on: who is wrong, and in which way. Evidence in, differences out.

First the decisions: a replica that reads a transaction's end differently from what all replicas together show is corrected. If
the corrected replicas still differ, each state that one of them serves is tried as the truth: every other replica must then be
wrong in some way that its log allows. What no log allows is dropped. Of the rest, the truth with the fewest wrong replicas is
reported; if two ways or two truths are equally good, both are. docs/audit.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headstone.divergence.decisions import EVIDENT, IMPOSSIBLE, LIKELIER, POSSIBLE, REMOTE, SURE, Decisions
from headstone.divergence.findings import (
    ABORTED_SERVED,
    ABSENT,
    CERTAIN,
    EVERYBODY,
    HIDDEN,
    LIKELY,
    OTHER,
    REAPPEARS,
    UNCOMMITTED,
    UNDECIDED,
    Difference,
    Served,
)
from headstone.divergence.views import ReplicaRows, Rows, visible
from headstone.log.layout import ABORT, COMMIT
from headstone.retention.transactions import ABORTED, COMMITTED, DATA, OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a replica may have come to be wrong. `row`: the record that shows it, here or on another replica."""

    kind: str
    grade: int
    row: Any
    marker: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One state taken for the truth (the offset of the live value, or ABSENT), and how each other replica is wrong then."""

    truth: int
    wrong: dict[str, list[Way]]

    @property
    def possible(self) -> bool:
        return all(ways and ways[0].grade > IMPOSSIBLE for ways in self.wrong.values())

    @property
    def rank(self) -> tuple[Any, ...]:
        """The best sorts first: possible, few wrong replicas, much evidence; then the commonest cause, a lost tombstone."""
        grades = sum(ways[0].grade for ways in self.wrong.values() if ways)
        return not self.possible, len(self.wrong), -grades, self.truth != ABSENT


class KeyCase:
    """One key. `rows`: what each replica has of it. `talking`: the replicas that have something to say about it."""

    def __init__(
        self, replicas: Sequence[ReplicaRows], talking: Sequence[ReplicaRows], decisions: Decisions, key: int,
        key_high: int, *, below: int,
    ) -> None:  # fmt: skip
        self._facts = {replica.facts.name: replica.facts for replica in replicas}
        self._decisions = decisions
        self._key, self._key_high, self._below = key, key_high, below
        self.rows = {replica.facts.name: replica.of_key(key, key_high) for replica in replicas}
        self._talking = [replica.facts.name for replica in talking]
        self._newest = {name: _last(rows[visible(rows, below)]) for name, rows in self.rows.items()}
        self._holders: dict[int, list[str]] = {}
        for name, rows in self.rows.items():
            for offset in rows["offset"]:
                self._holders.setdefault(int(offset), []).append(name)
        self._corrected = {name: rows.copy() for name, rows in self.rows.items()}
        self._misread: dict[str, list[Way]] = {}
        for name in self._talking:
            self._correct(name)

    def _correct(self, name: str) -> None:
        rows = self._corrected[name]
        for row in rows[rows["offset"] < min(self._below, self._facts[name].trusted_end)]:
            if row["role"] not in (COMMITTED, ABORTED):
                continue
            served = row["role"] == COMMITTED
            if served and self._plain_elsewhere(row):
                continue
            doubt = self._doubt(name, row, ABORT if served else COMMIT)
            if doubt.grade < SURE and not (not served and self._plain_elsewhere(row)):
                continue
            what, later = ("ABORT", "COMMIT") if served else ("COMMIT", "ABORT")
            where = f" at {doubt.marker}" if doubt.marker is not None else ""
            self._misread.setdefault(name, []).append(Way(
                kind=ABORTED_SERVED if served else HIDDEN, grade=SURE, row=row.copy(), marker=doubt.marker,
                why=f"its {what}{where} never came here; a later {later} of the producer took it along",
            ))  # fmt: skip
            rows["role"][rows["offset"] == row["offset"]] = ABORTED if served else COMMITTED

    def _plain_elsewhere(self, row: Any) -> bool:
        """Coordinated cleaning removes the transactional bit from committed data: a plain copy elsewhere shows that it was
        committed."""
        offset = int(row["offset"])
        return any(_at(self.rows[name], offset)["role"] == DATA for name in self._holders[offset])

    def _doubt(self, name: str, row: Any, kind: int) -> Any:
        return self._decisions.doubt(name, row, kind, holders=self._holders[int(row["offset"])])

    def explain(self) -> list[Difference]:
        newest = {
            name: _last(self._corrected[name][visible(self._corrected[name], self._below)]) for name in self._talking
        }
        states = {name: _live(row) for name, row in newest.items()}
        readings = sorted(
            (self._reading(truth, states, newest) for truth in sorted(set(states.values()))), key=lambda r: r.rank
        )
        best = readings[0]
        rival = next((one for one in readings[1:] if one.possible and self._as_good(best, one)), None)
        doubtful = tuple(sorted({*best.wrong, *(rival.wrong if rival else ()), *self._misread}))
        differences = []
        for name in self._misread:
            misleads = _live(self._newest[name]) != best.truth and name not in best.wrong
            differences += self._misreadings(name, doubtful, misleads=misleads)
        for name, ways in best.wrong.items():
            # Two mistakes may by chance make it right for readers.
            if _live(self._newest[name]) != best.truth:
                differences.append(self._told(name, ways, best, rival, readings, doubtful))
        return differences

    def misread(self) -> list[Difference]:
        """Only what the decisions show, for keys of which all replicas finally serve the same."""
        differences = []
        for name in self._misread:
            rows, served = self._corrected[name], _live(self._newest[name])
            alone = all(_live(row) != served for other, row in self._newest.items() if other != name)
            misleads = alone and served != _live(_last(rows[visible(rows, self._below)]))
            differences += self._misreadings(name, tuple(sorted(self._misread)), misleads=misleads)
        return differences

    def _misreadings(self, name: str, doubtful: tuple[str, ...], *, misleads: bool) -> list[Difference]:
        """The newest of each class. Only a record that no later, rightly served record replaces can mislead."""
        rows, corrected = self.rows[name], self._corrected[name]
        right = _last(rows[visible(rows, self._below) & visible(corrected, self._below)])
        replaced = ABSENT if right is None else int(right["offset"])
        return [
            self._difference(name, way, CERTAIN, doubtful, misleads=misleads and int(way.row["offset"]) > replaced)
            for way in {way.kind: way for way in self._misread[name]}.values()
        ]

    def torn(self, name: str, other_name: str, row: Any) -> Difference:
        """Two replicas have different records at the same offset."""
        offset = int(row["offset"])
        way = Way(kind=OTHER, grade=SURE, row=row, marker=None, why=f"{other_name} has another record at this offset")
        difference = self._difference(name, way, CERTAIN, tuple(sorted((name, other_name))))
        notes = {
            name: f"; its record at {offset} is not that of {other_name}",
            other_name: f"; its record at {offset} is not that of {name}",
        }
        served = tuple(replace(one, note=notes.get(one.replica, "")) for one in difference.served)
        return replace(difference, served=served)

    def _as_good(self, best: Hypothesis, rival: Hypothesis) -> bool:
        """A majority decides, unless its only support is that nothing excludes it."""
        if len(rival.wrong) == len(best.wrong):
            return True
        return all(ways[0].grade <= POSSIBLE for ways in best.wrong.values()) and best.truth != ABSENT

    def _told(
        self, name: str, ways: list[Way], best: Hypothesis, rival: Hypothesis | None, readings: list[Hypothesis],
        doubtful: tuple[str, ...],
    ) -> Difference:  # fmt: skip
        if not best.possible:
            row = _last(self.rows[name]) if self.rows[name].size else self._any_row(best.truth)
            why = "it serves something else than the others, and nothing in the logs explains why"
            return self._difference(
                name, Way(kind=OTHER, grade=POSSIBLE, row=row, marker=None, why=why), LIKELY, doubtful
            )
        first = ways[0]
        if first.grade < SURE and len(ways) > 1:
            return self._difference(name, first, UNDECIDED, doubtful, instead=[(name, way) for way in ways[1:]])
        if rival is not None:
            other_name, instead = next(iter(rival.wrong.items()))
            return self._difference(name, first, UNDECIDED, doubtful, instead=[(other_name, instead[0])])
        alone = first.grade == SURE and not any(way.grade > IMPOSSIBLE for way in ways[1:])
        sure = CERTAIN if alone and not any(one.possible for one in readings if one is not best) else LIKELY
        return self._difference(name, first, sure, doubtful)

    def _reading(self, truth: int, states: dict[str, int], newest: dict[str, Any]) -> Hypothesis:
        wrong = {}
        deletion = max(
            (int(row["offset"]) for row in newest.values() if truth == ABSENT and row is not None and row["tombstone"]),
            default=ABSENT,
        )
        for name, state in states.items():
            if state == truth or self._cleaned_by_mistake(name, truth, state):
                continue
            row = _at(self._corrected[name], truth) if truth != ABSENT else None
            if row is not None and row["role"] == OPEN:
                continue
            ways = (
                self._ways_deleted(name, newest[name], deletion)
                if truth == ABSENT
                else self._ways_live(name, newest[name], truth)
            )
            wrong[name] = sorted((way for way in ways if way.grade > IMPOSSIBLE), key=lambda way: -way.grade)
        return Hypothesis(truth=truth, wrong=wrong)

    def _cleaned_by_mistake(self, name: str, truth: int, state: int) -> bool:
        """True if it lacks the true record because a later aborted record, taken for committed, has replaced it."""
        replaced = (int(way.row["offset"]) for way in self._misread.get(name, ()) if way.kind == ABORTED_SERVED)
        return truth != ABSENT and state < truth and any(offset > truth for offset in replaced)

    def _ways_live(self, name: str, newest: Any, truth: int) -> list[Way]:
        """The value at `truth` is right; this replica serves something newer, something older, or nothing."""
        rows = self._corrected[name]
        newer = rows[visible(rows, self._below) & (rows["offset"] > truth)]
        if newer.size:
            return [self._served_aborted(name, newer)]
        own_row = _at(rows, truth)
        if own_row is not None:
            return [self._hidden(name, own_row)]
        record = self._any_row(truth)
        ways = [self._dropped(name, record)] if record["role"] != DATA else []
        if newest is None or newest["tombstone"]:
            ways.append(self._replaced(name, record))
        return ways

    def _ways_deleted(self, name: str, newest: Any, deletion: int) -> list[Way]:
        """The key is deleted, by the tombstone at `deletion` if one is left; this replica serves a value."""
        rows, value = self._corrected[name], int(newest["offset"])
        if deletion > value:
            own_row = _at(rows, deletion)
            if own_row is not None:
                return [self._hidden(name, own_row)]
            record = self._any_row(deletion)
            dropped = [self._dropped(name, record)] if record["role"] != DATA else []
            owner = next(other for other in self._holders[deletion] if other != name)
            why = f"it lacks the tombstone at {deletion}, which {owner} has"
            or_dropped = any(way.grade > IMPOSSIBLE for way in dropped)
            return [
                Way(kind=REAPPEARS, grade=LIKELIER if or_dropped else SURE, row=newest, marker=None, why=why),
                *dropped,
            ]
        shown = rows[visible(rows, self._below)]
        deleted = np.flatnonzero(shown["tombstone"])
        shown = shown[deleted[-1] + 1 :] if deleted.size else shown
        return [self._never_came(name, newest), self._served_aborted(name, shown), self._hides_deletion(name, value)]

    def _served_aborted(self, name: str, shown: Rows) -> Way:
        """All of `shown` would have to be aborted."""
        doubts = [self._doubt(name, row, ABORT) for row in shown]
        grade = min(doubt.grade for doubt in doubts)
        ending = doubts[-1].marker
        why = "others have cleaned it away; the COMMIT that counts here may be that of a later transaction of the producer"
        if grade >= EVIDENT:
            ended = "before that, by the epochs" if ending is None else f"at {ending}, which is no marker here"
            why = f"others have cleaned it away; its transaction ended {ended}, and the COMMIT that counts here is not its own"
        return Way(kind=ABORTED_SERVED, grade=grade, row=shown[-1], marker=ending, why=why)

    def _hidden(self, name: str, row: Any) -> Way:
        doubt = self._doubt(name, row, COMMIT)
        why = (
            "it was committed, but is taken for aborted here: the ABORT that counts here is that of a later transaction"
        )
        return Way(kind=HIDDEN, grade=doubt.grade, row=row, marker=doubt.marker, why=why)

    def _dropped(self, name: str, record: Any) -> Way:
        """The replica took the record for aborted and cleaned it away."""
        producer, offset = int(record["producer_id"]), int(record["offset"])
        end = self._decisions.everywhere.after(producer, offset)
        own = self._decisions.own[name].after(producer, offset)
        has_marker = end is not None and own is not None and int(own["offset"]) == int(end["offset"])
        missed = not has_marker and self._decisions.misread_before(name, ABORT) > offset
        took = (
            own is not None
            and own["kind"] == ABORT
            and not self._decisions.began_behind(name, producer, offset, int(own["offset"]))
        )
        grade = IMPOSSIBLE if not missed else EVIDENT if took else POSSIBLE
        why = f"the record at {offset} is gone here, as if its transaction had been aborted"
        return Way(kind=HIDDEN, grade=grade, row=record, marker=None if end is None else int(end["offset"]), why=why)

    def _replaced(self, name: str, record: Any) -> Way:
        """The replica lost a value to an aborted tombstone that it took for committed, and that is gone by now."""
        offset = int(record["offset"])
        missed = self._decisions.misread_before(name, COMMIT) > offset
        grade = POSSIBLE if missed and not self._decisions.complete(name, offset) else IMPOSSIBLE
        why = f"the value at {offset} is gone here, as if a tombstone had been committed that was aborted"
        return Way(kind=ABORTED_SERVED, grade=grade, row=record, marker=None, why=why)

    def _never_came(self, name: str, newest: Any) -> Way:
        offset = int(newest["offset"])
        whole = self._decisions.complete(name, offset)
        why = f"others have cleaned it away, which only a tombstone behind {offset} allows; that never came here"
        return Way(kind=REAPPEARS, grade=IMPOSSIBLE if whole else LIKELIER, row=newest, marker=None, why=why)

    def _hides_deletion(self, name: str, value: int) -> Way:
        """A tombstone after the value that the replica takes for aborted, or took for aborted and cleaned away."""
        rows = self._corrected[name]
        later = rows[(rows["offset"] > value) & (rows["role"] == ABORTED) & (rows["tombstone"] == 1)]
        doubts = [(self._doubt(name, row, COMMIT), row) for row in later]
        best = max(doubts, key=lambda pair: pair[0].grade, default=None)
        why = "others have deleted the key: the tombstone was committed, but is taken for aborted here"
        if best is not None and best[0].grade > IMPOSSIBLE:
            return Way(kind=HIDDEN, grade=max(best[0].grade, LIKELIER), row=best[1], marker=best[0].marker, why=why)
        row = _at(rows, value)
        missed = self._decisions.misread_before(name, ABORT) > value
        missed_others = self._decisions.misread_before(name, ABORT, others_only=True) > value
        # A marker that other replicas have is stronger evidence than an offset that no replica has.
        early = missed and self._decisions.began_too_early(name, value)
        grade = EVIDENT if early else LIKELIER if missed_others else REMOTE if missed else IMPOSSIBLE
        return Way(kind=HIDDEN, grade=grade, row=row, marker=None, why=why)

    def _any_row(self, offset: int) -> Any:
        return next(row for rows in self._corrected.values() if (row := _at(rows, offset)) is not None)

    def _difference(
        self, name: str, way: Way, sure: str, doubtful: tuple[str, ...], *, misleads: bool = True,
        instead: Sequence[tuple[str, Way]] = (),
    ) -> Difference:  # fmt: skip
        """`instead`: other readings that are not excluded, with their replicas; at most two, because there are three
        classes."""
        row = way.row
        holder = name if name in self._holders[int(row["offset"])] else self._holders[int(row["offset"])][0]
        owned = _at(self.rows[holder], int(row["offset"]))
        why = way.why
        if instead:
            rest = "".join(f"; or {other.kind} on {replica}, {other.why}" for replica, other in instead)
            why = f"one of these {'two' if len(instead) == 1 else 'three'}: {way.kind} on {name}, {way.why}{rest}"
        if not misleads:
            why += "; no reader is misled by it: a newer record replaces it"
        return Difference(
            kind=way.kind, replica=name, key=self._key, key_high=self._key_high, offset=int(row["offset"]), sure=sure, why=why,
            place=(holder, int(owned["file"]), int(owned["place"])), producer_id=int(row["producer_id"]),
            producer_epoch=int(row["producer_epoch"]), marker=way.marker, served=self.served(int(row["offset"])),
            isolation=UNCOMMITTED if int(row["offset"]) >= self._facts[name].stable_end else EVERYBODY,
            misleads=misleads, doubtful=doubtful, or_kind=instead[0][1].kind if instead else None,
            or_replica=instead[0][0] if instead else None, else_kind=instead[1][1].kind if len(instead) > 1 else None,
        )  # fmt: skip

    def served(self, offset: int) -> tuple[Served, ...]:
        """With the decision about the record at `offset`, if replicas that have it disagree about that."""
        roles = {name: _at(self.rows[name], offset)["role"] for name in self._holders.get(offset, ())}
        words = {COMMITTED: "committed", ABORTED: "aborted", OPEN: "open", DATA: "plain"}
        states = {_live(row) for row in self._newest.values()}
        apart = len(states) == 1 or len({role == ABORTED for role in roles.values()}) > 1
        return tuple(
            Served(
                replica=name, offset=ABSENT if row is None else int(row["offset"]),
                deleted=row is not None and bool(row["tombstone"]),
                note=f"; the record at {offset} is {words[int(roles[name])]} here" if apart and name in roles else "",
            )
            for name, row in self._newest.items()
        )  # fmt: skip


def _last(rows: Rows) -> Any | None:
    return rows[-1] if rows.size else None


def _live(row: Any | None) -> int:
    return ABSENT if row is None or row["tombstone"] else int(row["offset"])


def _at(rows: Rows, offset: int) -> Any:
    """The record at an offset, or None."""
    matches = rows[rows["offset"] == offset]
    return matches[0] if matches.size else None
