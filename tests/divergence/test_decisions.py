"""How transactions ended, by the word of all replicas: which endings count, and what they say of one replica's reading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstone.divergence.decisions import EVIDENT, IMPOSSIBLE, POSSIBLE, SURE, UNKNOWN, Decisions, RealEnd
from headstone.divergence.findings import OTHER
from headstone.divergence.views import MARKER, ROW, SPAN, STAMP, ReplicaFacts, Rows, visible
from headstone.log.indexes import AbortedTxn
from headstone.log.layout import ABORT, COMMIT
from headstone.retention.transactions import ABORTED, COMMITTED, DATA, OPEN
from tests.divergence.replicas import NAME, audited, findings
from tests.oracle.notation import History

END = 20


def facts(
    name: str, *, markers: str = "", bare: str = "", data: str = "", aborted: tuple[tuple[int, int], ...] = (),
    high_watermark: int = END,
) -> ReplicaFacts:  # fmt: skip
    """Of producer 1: markers as `C5e1` or `A5e1` (offset 5, epoch 1), bare headers and data batches as `5e1`."""
    markers_made, bare_made = np.zeros(len(markers.split()), dtype=MARKER), np.zeros(len(bare.split()), dtype=MARKER)
    for table, words in ((markers_made, markers.split()), (bare_made, bare.split())):
        for row, word in zip(table, words, strict=True):
            offset, epoch = word.lstrip("CA").split("e")
            row["offset"], row["producer_id"], row["producer_epoch"] = int(offset), 1, int(epoch)
            row["commit"] = word.startswith("C")
    spans = np.zeros(len(data.split()), dtype=SPAN)
    for row, word in zip(spans, data.split(), strict=True):
        offset, epoch = word.split("e")
        row["base"] = row["last"] = int(offset)
        row["producer_id"], row["epoch"], row["transactional"], row["complete"] = 1, int(epoch), 1, 1
    return ReplicaFacts(
        name=name, log_start=0, log_end=END, high_watermark=high_watermark, lso=END, open_txns=(),
        aborted=tuple(AbortedTxn(producer_id=1, first_offset=f, last_offset=last, lso=0) for f, last in aborted),
        markers=markers_made, bare=bare_made, spans=spans, stamps=np.zeros(0, dtype=STAMP),
    )  # fmt: skip


def record(offset: int, epoch: int, role: int = COMMITTED) -> Rows:
    row = np.zeros(1, dtype=ROW)
    row["offset"], row["producer_id"], row["producer_epoch"], row["role"] = offset, 1, epoch, role
    return row


def end_of(*replicas: ReplicaFacts, offset: int, epoch: int) -> RealEnd:
    return Decisions(replicas).real_end(record(offset, epoch)[0], judged="x", holders=["x"])


def test_the_first_ending_that_any_replica_knows_decides() -> None:
    wrong, right = facts("x", markers="C9e0", data="2e0 8e0"), facts("y", markers="A4e0 C9e0", data="8e0")
    assert end_of(wrong, right, offset=2, epoch=0) == RealEnd(marker=4, kind=ABORT, linked=False)
    assert end_of(wrong, right, offset=5, epoch=0) == RealEnd(marker=9, kind=COMMIT, linked=False)


def test_a_marker_beyond_what_is_trusted_decides_nothing() -> None:
    wrong, behind = facts("x", markers="C9e0", data="2e0"), facts("y", markers="A4e0", high_watermark=4)
    assert end_of(wrong, behind, offset=2, epoch=0) == RealEnd(marker=9, kind=COMMIT, linked=False)
    assert behind.decision(1, 2) is None
    assert not Decisions([wrong, behind]).contradicted(record(2, 0)).any()
    assert Decisions([wrong, facts("y", markers="A4e0")]).contradicted(record(2, 0)).all()
    unsure = facts("y", bare="4e0", aborted=((2, 4),), high_watermark=4)
    assert end_of(wrong, unsure, offset=2, epoch=0) == RealEnd(marker=9, kind=COMMIT, linked=False)


def test_a_bare_header_ends_a_transaction_and_does_not_say_how() -> None:
    wrong = facts("x", markers="C9e0", bare="4e0", data="2e0")
    assert end_of(wrong, facts("y"), offset=2, epoch=0) == RealEnd(marker=4, kind=UNKNOWN, linked=False)
    assert end_of(wrong, facts("y", markers="A4e0"), offset=2, epoch=0) == RealEnd(marker=4, kind=ABORT, linked=False)


def test_an_abort_index_outlives_its_marker_and_says_where_the_transaction_began() -> None:
    wrong = facts("x", markers="C9e0", data="2e0", aborted=((1, 4),))
    assert end_of(wrong, facts("y", aborted=((2, 4),)), offset=2, epoch=0) == RealEnd(marker=4, kind=ABORT, linked=True)
    began_behind = end_of(wrong, facts("y", aborted=((3, 4),)), offset=2, epoch=0)
    assert began_behind == RealEnd(marker=None, kind=UNKNOWN, linked=False)


def test_the_epoch_of_a_fence_does_not_end_what_version_1_ended_before() -> None:
    """A producer of version 1 ends transactions in their own epoch; the next epoch is that of whoever fenced it."""
    fenced = facts("x", markers="C3e0 A9e1", data="2e0 5e0 8e0")
    assert end_of(fenced, facts("y"), offset=5, epoch=0) == RealEnd(marker=9, kind=ABORT, linked=False)
    assert end_of(facts("x", markers="A9e1", data="5e0 8e0"), facts("y"), offset=5, epoch=0).linked


def test_an_abort_index_tells_where_the_transaction_began() -> None:
    decisions = Decisions([facts("x", markers="A9e0", aborted=((7, 9),))])
    assert decisions.began_behind("x", 1, 5, 9)
    assert not decisions.began_behind("x", 1, 7, 9)
    assert not decisions.began_behind("y", 1, 5, 9)


def test_the_next_epoch_names_its_transaction_and_a_later_one_shows_that_a_marker_is_lost() -> None:
    assert end_of(facts("x", markers="C9e1"), offset=2, epoch=0) == RealEnd(marker=9, kind=COMMIT, linked=True)
    assert end_of(facts("x", markers="C9e2"), offset=2, epoch=0) == RealEnd(marker=None, kind=UNKNOWN, linked=False)
    between = facts("x", markers="C9e1", data="2e0 7e1")
    assert end_of(between, offset=2, epoch=0) == RealEnd(marker=None, kind=UNKNOWN, linked=False)


def test_another_replica_with_the_same_batch_links_it_to_its_marker() -> None:
    wrong = facts("x", markers="C9e0", data="2e0")
    assert end_of(wrong, facts("y", markers="A4e0", data="2e0"), offset=2, epoch=0).linked
    assert not end_of(wrong, facts("y", markers="A4e0", data="3e0"), offset=2, epoch=0).linked


@pytest.mark.parametrize(
    ("other", "grade"),
    [
        (facts("y", markers="A4e0", aborted=((2, 4),)), SURE),
        (facts("y", markers="A4e0"), EVIDENT),
        (facts("y", bare="4e0"), EVIDENT),
        (facts("y"), POSSIBLE),
        (facts("y", markers="C9e0", data="2e0"), IMPOSSIBLE),
        (facts("y", data="3e0 4e0 5e0 6e0 7e0 8e0"), IMPOSSIBLE),
    ],
)
def test_how_far_a_replica_may_have_misread_a_commit(other: ReplicaFacts, grade: int) -> None:
    """Its record at 2, its COMMIT at 9: was there an ABORT between them?"""
    decisions = Decisions([facts("x", markers="C9e0", data="2e0"), other])
    assert decisions.doubt("x", record(2, 0)[0], ABORT, holders=["x"]).grade == grade
    assert decisions.doubt("x", record(2, 0, DATA)[0], ABORT, holders=["x"]).grade == IMPOSSIBLE


def test_what_lies_before_a_marker_that_is_there_was_decided_by_it() -> None:
    """An ABORT at 15 may hide what a COMMIT lost behind the marker at 9 had committed; nothing before."""
    covered = "0e0 1e0 2e0 3e0 4e0 5e0 6e0 7e0 8e0 10e0 11e0 13e0 14e0"
    others = facts("y", markers="C4e0 C12e0 A15e0", data=covered)
    assert Decisions([facts("x", markers="C9e0 A15e0"), others]).misread_before("x", ABORT) == 12
    assert Decisions([facts("x", markers="C9e0 C12e0 A15e0"), others]).misread_before("x", ABORT) == -1
    indexed = facts("x", markers="C9e0 A15e0", data="13e0", aborted=((13, 15),))
    assert Decisions([indexed, others]).misread_before("x", ABORT) == -1


def test_an_abort_that_begins_earlier_than_elsewhere_has_taken_another_transaction_along() -> None:
    early, right = facts("x", aborted=((1, 9),)), facts("y", aborted=((8, 9),))
    decisions = Decisions([early, right, facts("z", aborted=((8, 9),))])
    assert decisions.began_too_early("x", 0)
    assert not decisions.began_too_early("x", 7)
    assert not decisions.began_too_early("y", 0)
    assert not Decisions([early, right, facts("z", aborted=((1, 9),))]).began_too_early("x", 0)


def with_value(root: Path, value: bytes | None, **more: Any) -> Path:
    """A log directory of three records; the second has this value, and headers if they are given."""
    history = History()
    history.append("N[a] N[b] N[c] | N[z]")
    first, second, third = history.segments[0].batches
    changed = replace(second, records=(replace(second.records[0], value=value, **more),), raw=None)
    history.segments[0] = replace(history.segments[0], batches=(first, changed, third))
    history.write_partition(root, NAME)
    return root


@pytest.mark.parametrize("other", [None, b"", b"w", b"vv"])
def test_another_value_is_found(other: bytes | None, tmp_path: Path) -> None:
    roots = [with_value(tmp_path / "1", b"v"), with_value(tmp_path / "2", other)]
    assert {(kind, key) for kind, _, key in findings(audited(roots))} == {(OTHER, b"b")}


def test_a_tombstone_is_not_an_empty_value(tmp_path: Path) -> None:
    roots = [with_value(tmp_path / "1", None), with_value(tmp_path / "2", b"")]
    assert {(kind, key) for kind, _, key in findings(audited(roots))} == {(OTHER, b"b")}


def test_a_value_is_not_the_header_that_has_its_bytes(tmp_path: Path) -> None:
    """In a record they lie side by side: a count, a length, `k`, no value; and then no header."""
    roots = [
        with_value(tmp_path / "1", b"", headers=(("k", b""),)),
        with_value(tmp_path / "2", b"\x02\x02k"),
    ]
    assert {(kind, key) for kind, _, key in findings(audited(roots))} == {(OTHER, b"b")}


def test_consumers_get_what_is_committed_below_the_end() -> None:
    rows = np.zeros(6, dtype=ROW)
    rows["offset"] = [3, 4, 5, 6, 7, 8]
    rows["role"] = [DATA, ABORTED, OPEN, COMMITTED, COMMITTED, DATA]
    assert visible(rows, 7).tolist() == [True, False, False, True, False, False]
