"""Producer snapshots after a commit: a broker may load any that is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headstone.retention.policy import NO_LIMIT, Policy, kafka_rules
from tests.logs import compact_here
from tests.oracle.files import SnapshotEntry, read_partition, read_snapshot, segment_path, write_snapshot
from tests.oracle.notation import History
from tests.oracle.producers import ProducerTable

NAME = "t-0"
DAYS_LATER = 10**9
POLICIES = {
    "plain": Policy(now_ms=DAYS_LATER, plain_below=NO_LIMIT),
    "unmerged": Policy(now_ms=DAYS_LATER, plain_below=NO_LIMIT, segment_bytes=14),
    "transactional": Policy(now_ms=DAYS_LATER, producer_id_expiration_ms=1, delete_retention_ms=0, markers_below=NO_LIMIT),
    "kafka": kafka_rules(Policy(now_ms=DAYS_LATER, producer_id_expiration_ms=1, delete_retention_ms=0)),
}  # fmt: skip


def written(root: Path, log: str) -> History:
    """With the snapshot of every offset: a broker takes one at each roll, and one wherever it happens to stop."""
    history = History()
    snapshots = {}
    for word in log.split():
        history.append(word)
        snapshots[history.next_offset] = history.producers.snapshot()
    directory = history.write_partition(root, NAME)
    for offset, entries in snapshots.items():
        segment_path(directory, offset, "snapshot").write_bytes(write_snapshot(entries))
    return history


def compacted(root: Path, out: Path | None, policy: Policy, passes: int = 3) -> Path:
    """Markers take three passes. Returns the log directory that is left."""
    for number in range(passes):
        place = None if out is None else out / str(number)
        compact_here(root, out=place, policy=policy, dirty_from=0)
        root = place or root
    return root


def open_after_loading(directory: Path) -> dict[int, dict[int, int]]:
    """Open transactions by the snapshot from which a broker would start, if it is the newest that is left to it."""
    batches = [batch for segment in read_partition(directory) for batch in segment.batches]
    left = {int(path.name[:20]): read_snapshot(path.read_bytes()) for path in directory.glob("*.snapshot")}
    found: dict[int, dict[int, int]] = {}
    nothing: list[SnapshotEntry] = []
    for offset, entries in sorted({0: nothing, **left}.items()):
        table = ProducerTable(entries)
        table.replay([batch for batch in batches if batch.base_offset >= offset])
        found[offset] = table.open_transactions()
    return found


LOGS = {
    "one segment": "P1[a] P1[b] N[c] C1 N[z] | N[y] P2[q]",
    "merged": "P1[a] | P1[b] N[c] | C1 N[z] | N[y] P2[q]",
    "aborted": "P1[a] P1[b] | P1[c] A1 N[z] | N[y] P2[q]",
    "two": "P1[a] P3[b] P1[c] | C1 P3[d] A3 P1[e] C1 | N[y] P2[q]",
    "superseded": "P1[a] P1[b] | P1[c] C1 N[a] N[b] N[c] | N[y] P2[q]",
}


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "out"])
@pytest.mark.parametrize("rules", POLICIES)
@pytest.mark.parametrize("log", LOGS)
def test_a_broker_comes_to_the_same_open_transactions_from_every_snapshot_that_is_left(
    tmp_path: Path, log: str, rules: str, in_place: bool
) -> None:
    """One from inside a transaction would meet its plain data, or miss a marker that is gone."""
    history = written(tmp_path / "logs", LOGS[log])
    left = compacted(tmp_path / "logs", None if in_place else tmp_path / "out", POLICIES[rules]) / NAME
    loaded = open_after_loading(left)
    assert loaded == dict.fromkeys(loaded, history.producers.open_transactions())


def test_snapshots_of_what_was_not_rewritten_stay(tmp_path: Path) -> None:
    written(tmp_path, "N[a] P1[b] C1 | N[a] N[b] | P2[c] N[d] | N[e] P3[f]")
    compacted(tmp_path, None, replace(POLICIES["plain"], index_keys_max=2), passes=1)
    left = sorted(int(path.name[:20]) for path in (tmp_path / NAME).glob("*.snapshot"))
    assert left == [3, 4, 5, 6, 7, 8, 9]
