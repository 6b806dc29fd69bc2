"""What an audit of a generated history must say, and what it may say: from what happened, never from a log.

A replica is wrong about a key if the value that its consumers end with is not the one that the accepted records give. The class
is the cause whose removal mends it: records that it serves though they were aborted, records that it hides though they were
committed, records that never came. A cause that changes nothing for readers may be told, if it is told as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from tests.divergence.histories import ABORTED_SERVED, FROZEN, HIDDEN, REAPPEARS, Cluster, Copy, Happened

CAUSES = (ABORTED_SERVED, HIDDEN, REAPPEARS)
Place = tuple[str, bytes]
"""A replica and a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A finding, as far as it is judged. `or_kind` and `or_replica`: the other reading, if it leaves that open;
    `else_kind`: a third."""

    kind: str
    replica: str
    key: bytes | None
    misleads: bool = True
    sure: str = "certain"
    or_kind: str | None = None
    or_replica: str | None = None
    else_kind: str | None = None

    def readings(self) -> list[tuple[str, Place]]:
        assert self.key is not None
        other = (self.or_replica or self.replica, self.key)
        kinds = [(self.kind, (self.replica, self.key)), (self.or_kind, other), (self.else_kind, other)]
        return [(kind, place) for kind, place in kinds if kind is not None]


@dataclass(slots=True, kw_only=True)
class Judgement:
    """Places to the classes that are right. `must` of `wrong` has to be found; the rest, and `causes`, may be."""

    wrong: dict[Place, frozenset[str]] = field(default_factory=dict)
    must: set[Place] = field(default_factory=set)
    causes: dict[Place, frozenset[str]] = field(default_factory=dict)
    """Of which classes something has gone wrong with records of a key, whether it matters to readers or not."""
    frozen: set[str] = field(default_factory=set)
    freezing: set[str] = field(default_factory=set)
    """Behind, with a transaction of which some replica has lost the marker."""

    @property
    def corrupt(self) -> bool:
        return bool(self.must or self.frozen)

    @property
    def healthy(self) -> bool:
        return not (self.wrong or self.causes or self.frozen or self.freezing)


def judge(cluster: Cluster) -> Judgement:
    judgement = Judgement()
    keys = sorted({happened.key for happened in cluster.records.values()})
    for copy in cluster.copies:
        for producer_id, offsets in copy.pending.items():
            end = cluster.markers_after(producer_id, max(offsets))
            if end is not None:
                # Of one that is behind, a later marker may be taken for the one that is missing.
                later = copy.behind and cluster.markers_after(producer_id, copy.log_end - 1) is not None
                (judgement.frozen if end < copy.log_end and not later else judgement.freezing).add(copy.name)
        served = copy.table()
        for key in keys:
            happened = [one for one in cluster.records.values() if one.key == key]
            # The cleaner of each replica keeps what its consumers end with: else this model of it is wrong.
            assert served.get(key) == _mended(copy, [one for one in happened if one.offset < copy.lso], ())
            _judge_key(judgement, cluster, copy, key, happened)
    return judgement


def _judge_key(judgement: Judgement, cluster: Cluster, copy: Copy, key: bytes, happened: list[Happened]) -> None:
    """Below the last stable offset for what must be found; also to the log's end for what may be."""
    place = (copy.name, key)
    causes = _causes(copy, [one for one in happened if one.offset < copy.log_end])
    if causes:
        judgement.causes[place] = causes
    for end in sorted({copy.lso, copy.log_end}):
        here = [one for one in happened if one.offset < end]
        truth = _last(one for one in here if one.counts)
        if _mended(copy, here, ()) == truth:
            continue
        judgement.wrong[place] = judgement.wrong.get(place, frozenset()) | _classes(copy, here, truth)
        rewritten = any(one.offset >= end and not one.aborted for one in happened)
        # A replica with an open record of a key says nothing about it; if it never ends there, that is the finding.
        rewritten |= any(one.offset in offsets for one in happened for offsets in copy.pending.values())
        if end == copy.lso and (copy.behind or not copy.away) and not rewritten and cluster.leader.lso >= end:
            judgement.must.add(place)
    if copy.away and any(_lost(cluster, one) for one in happened if one.offset >= copy.log_end):
        # What it will be wrong about when it catches up may be told beforehand.
        judgement.wrong.setdefault(place, frozenset(CAUSES))


def _lost(cluster: Cluster, one: Happened) -> bool:
    ahead = [copy for copy in cluster.copies if copy.log_end > one.offset]
    return any(one.offset not in copy.offsets() for copy in ahead)


def _classes(copy: Copy, happened: list[Happened], truth: int | None) -> frozenset[str]:
    """The causes that alone explain it; if none does, those that do together. What is served and was aborted is so anyhow."""
    alone = frozenset(cause for cause in CAUSES if _mended(copy, happened, (cause,)) == truth)
    pairs = frozenset(c for pair in combinations(CAUSES, 2) if _mended(copy, happened, pair) == truth for c in pair)
    shown = _mended(copy, happened, ())
    served = frozenset(ABORTED_SERVED for one in happened if one.offset == shown and not one.counts)
    return (alone or pairs or frozenset(CAUSES)) | served


def _visible(copy: Copy, one: Happened) -> bool:
    return one.producer_id < 0 or copy.views.get(one.offset) is False


def _mended(copy: Copy, happened: list[Happened], causes: Sequence[str]) -> int | None:
    """The value that consumers of the replica would end with, if records had not gone wrong in these ways."""
    left = []
    for one in happened:
        if one.offset not in copy.got:
            counts = one.counts and REAPPEARS in causes
        elif _visible(copy, one):
            counts = one.counts or ABORTED_SERVED not in causes
        else:
            counts = one.counts and one.offset in copy.views and HIDDEN in causes
        if counts:
            left.append(one)
    return _last(left)


def _causes(copy: Copy, happened: list[Happened]) -> frozenset[str]:
    """That a record never came is normal by itself."""
    served = any(one.offset in copy.got and _visible(copy, one) and not one.counts for one in happened)
    hidden = any(one.counts and copy.views.get(one.offset) for one in happened)
    return frozenset([ABORTED_SERVED] * served + [HIDDEN] * hidden)


def _last(happened: Iterable[Happened]) -> int | None:
    newest = max(happened, key=lambda one: one.offset, default=None)
    return None if newest is None or newest.tombstone else newest.offset


def _happened(judgement: Judgement, said: Said) -> bool:
    """Where nobody can compare the key with others yet: what is said did go wrong here, if not that alone."""
    return any(kind in judgement.causes.get(place, ()) for kind, place in said.readings())


def mistakes(judgement: Judgement, findings: Sequence[Said]) -> list[str]:
    """Everything that an audit has said wrongly, or not at all."""
    told = []
    found = {(said.replica, said.key) for said in findings} | {(said.or_replica, said.key) for said in findings}
    for said in findings:
        if said.kind == FROZEN:
            if said.replica not in judgement.frozen | judgement.freezing:
                told.append(f"BLAMED {said}")
            continue
        right = judgement.wrong if said.misleads else judgement.causes
        if any(kind in right.get(place, ()) for kind, place in said.readings()):
            continue
        if (said.replica, said.key) in judgement.wrong.keys() - judgement.must and _happened(judgement, said):
            continue
        assert said.key is not None
        place = (said.replica, said.key)
        word = "CLASS" if place in right else "HARMLESS" if place in judgement.causes else "BLAMED"
        told.append(f"{word} {said}: it is {sorted(right.get(place, ()))}")
    told += [
        f"MISSED {sorted(judgement.wrong[place])} at {place}" for place in sorted(judgement.must) if place not in found
    ]
    frozen = {said.replica for said in findings if said.kind == FROZEN}
    return told + [f"MISSED {FROZEN} on {name}" for name in sorted(judgement.frozen - frozen)]
