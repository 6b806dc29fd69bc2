"""What the directories of all replicas allow: MTRO, MXRO and the bound of what becomes plain. Nothing is compacted here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstone.log import reading
from headstone.log.directory import PartitionDir, as_partition, list_segments
from headstone.log.reading import Batches, SegmentFile
from headstone.log.snapshots import ProducerEntry, write_snapshot
from headstone.pipeline import planning
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.planning import Candidate, RememberedWalk, as_candidate, survey_directory, survey_peers
from headstone.retention.policy import Policy
from headstone.retention.survey import walk_file
from tests.logs import write_log
from tests.oracle.files import write_checkpoint

POLICY = Policy(now_ms=9000)
CLEAN = "cleaner-offset-checkpoint"
HIGH = "replication-offset-checkpoint"


def replica(root: Path, log: str, **checkpoints: int) -> Path:
    """A log directory with one partition; `clean` and `high` are its checkpoints."""
    write_log(root, log)
    for name, offset in checkpoints.items():
        (root / {"clean": CLEAN, "high": HIGH}[name]).write_text(write_checkpoint({("t", 0): offset}))
    return root


def directory(root: Path) -> PartitionDir:
    partition = as_partition(root / "t-0")
    assert partition is not None
    return partition


def planned(mine: Path, *peers: Path) -> Candidate:
    partition = directory(mine)
    theirs = survey_peers([partition], peers, InProcess()).get(partition.path, ())
    return as_candidate(partition, survey_directory(partition), POLICY, dirty_from=None, peers=theirs)


def policy(*, mtro: int, mxro: int, plain: int) -> Policy:
    return replace(POLICY, tombstones_below=mtro, markers_below=mxro, plain_below=plain)


def test_without_peers_the_policy_is_as_given(tmp_path: Path) -> None:
    assert planned(replica(tmp_path, "P1[a] C1 N[z] |")).policy == policy(mtro=0, mxro=0, plain=0)


def test_watermarks_are_the_lowest_of_all_replicas(tmp_path: Path) -> None:
    mine = replica(tmp_path / "1", "N[a] N[b] P1[c] C1 N[d] |", clean=4)
    lagging = replica(tmp_path / "2", "N[a] P1[b] C1 N[c] N[d]", clean=3)
    assert planned(mine, lagging).policy == policy(mtro=3, mxro=1, plain=5)
    assert planned(lagging, mine).policy == policy(mtro=3, mxro=1, plain=5)


def test_transactional_data_anywhere_ends_what_is_free_of_it(tmp_path: Path) -> None:
    mine = replica(tmp_path / "1", "N[a] P1[b] C1 N[c] | N[d] P1[e] C1 |", clean=7)
    assert planned(mine, mine).policy == policy(mtro=7, mxro=1, plain=7)


def test_a_checkpoint_above_the_log_end_proves_nothing(tmp_path: Path) -> None:
    mine = replica(tmp_path / "1", "N[a] N[b] N[c] N[d] |", clean=4)
    truncated = replica(tmp_path / "2", "N[a] N[b]", clean=4)
    assert planned(mine, truncated).policy == policy(mtro=0, mxro=2, plain=2)


def test_a_snapshot_above_the_log_end_tells_of_what_was_truncated_since(tmp_path: Path) -> None:
    partition = directory(replica(tmp_path, "N[a] N[b] |"))
    entry = ProducerEntry(
        producer_id=1, epoch=0, last_sequence=0, last_offset=1, offset_delta=0, timestamp=1, coordinator_epoch=-1,
        txn_first_offset=1,
    )  # fmt: skip
    write_snapshot(partition.path / f"{9:020d}.snapshot", [entry])
    survey, _ = survey_directory(partition)
    assert (survey.open_txns, survey.lso) == ((), 2)


def test_a_peer_without_the_partition_holds_everything(tmp_path: Path) -> None:
    mine = replica(tmp_path / "1", "P1[a] C1 N[b] N[c] |", clean=4)
    peer = replica(tmp_path / "2", "P1[a] C1 N[b] N[c] |", clean=4)
    (tmp_path / "3").mkdir()
    found = planned(mine, peer, tmp_path / "3")
    assert found.policy == policy(mtro=0, mxro=0, plain=0)
    assert found.notes == (f"the peer {tmp_path / '3'} has no t-0: it counts as 0, nothing may go",)


WHOLE = "N[y] P1[a] P1[b] C1 N[z] P2[c] C2 N[x] |"


@pytest.mark.parametrize(
    ("log", "checkpoints", "plain"),
    [
        pytest.param(WHOLE, {}, 8, id="has all of it"),
        pytest.param(
            "N[y] P1[a] P1[b] C1 N[z]", {}, 5, id="ends between transactions: it may yet stop inside the next"
        ),
        pytest.param("N[y] P1[a]", {}, 1, id="stopped inside a transaction"),
        pytest.param("N[y] P1[a] P1[b] C1 N[z] P2[c]", {}, 5, id="stopped inside a later one"),
        pytest.param("P3[q] P1[a] P1[b] C1 N[z] P2[c] C2 N[x]", {}, 0, id="the earliest of several"),
        pytest.param(WHOLE, {"high": 6}, 5, id="has a marker that it may have to give back"),
        pytest.param(WHOLE, {"high": 5}, 5, id="has records that it may have to give back"),
    ],
)
def test_data_becomes_plain_only_below_the_last_stable_offset_of_every_replica(
    tmp_path: Path, log: str, checkpoints: dict[str, int], plain: int
) -> None:
    """Below it a replica knows how every transaction ended, so it will never need the markers again."""
    mine, caught_up = replica(tmp_path / "1", WHOLE), replica(tmp_path / "2", WHOLE)
    other = replica(tmp_path / "3", log, **checkpoints)
    assert planned(mine, caught_up, other).policy.plain_below == plain
    assert planned(mine, other, caught_up).policy.plain_below == plain
    assert planned(other, mine, caught_up).policy.plain_below == plain


@pytest.mark.parametrize("bytes_max", [0, 400, 64 << 20])
def test_a_second_walk_reads_nothing_again_and_sees_the_same_up_to_any_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    monkeypatch.setattr(reading, "TABLE_ROWS", 2)
    monkeypatch.setattr(planning, "REMEMBERED_BYTES_MAX", bytes_max)
    read: list[str] = []

    def counted(file: SegmentFile, previous: int) -> Iterator[Batches]:
        read.append(file.path)
        return walk_file(file, previous)

    monkeypatch.setattr(planning, "walk_file", counted)
    files = list_segments(directory(replica(tmp_path, "N[a] N[b] N[c] N[d] N[e] | N[f]")))
    walk = RememberedWalk()
    for _ in range(3):
        for file in files:
            seen, expected = (
                np.concatenate([table.copy() for table in tables]) for tables in (walk(file, -1), walk_file(file, -1))
            )
            assert (seen == expected).all()
    assert len(read) == (6 if bytes_max == 0 else 6 if bytes_max < 1000 else 2)
