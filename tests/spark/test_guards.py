"""What `compact` refuses or leaves alone in a broker's log directory. In process: no Spark is needed to refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.retention.policy import Policy
from headstone.spark.compaction import CompactionRequest, CompactionResult, compact
from headstone.spark.inprocess import InProcess
from tests.oracle.files import read_partition
from tests.oracle.notation import History


def write(root: Path, notation: str, name: str = "t-0") -> Path:
    history = History()
    history.append(notation)
    history.write_partition(root, name)
    return root


def run(root: Path, **settings: object) -> CompactionResult:
    request = CompactionRequest(
        paths=(str(root),), policy=Policy(now_ms=9000), progress=False, **{"out": None, **settings}
    )  # type: ignore[arg-type]
    return compact(request, InProcess(), lambda text: None)


def offsets(root: Path, name: str = "t-0") -> list[int]:
    return [r.offset for s in read_partition(root / name) for b in s.batches for r in b.records]


def test_keyless_records_in_a_brokers_directory_stop_the_run(tmp_path: Path) -> None:
    write(tmp_path, "U N[a] N[a] |")
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / ".kafka_cleanshutdown").write_text("{}")
    with pytest.raises(UsageError, match="--drop-keyless"):
        run(tmp_path)
    assert offsets(tmp_path) == [0, 1, 2]
    run(tmp_path, drop_keyless=True)
    assert offsets(tmp_path) == [2]


def test_the_metadata_log_is_never_compacted_but_copied(tmp_path: Path) -> None:
    source = write(tmp_path / "in", "N[a] N[a] |")
    write(source, "N[m] N[m] |", "__cluster_metadata-0")
    (source / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    run(source, out=tmp_path / "out")
    assert (offsets(tmp_path / "out"), offsets(tmp_path / "out", "__cluster_metadata-0")) == ([1], [0, 1])
    assert (tmp_path / "out" / "__cluster_metadata-0" / "quorum-state").exists()


def test_only_the_topics_named(tmp_path: Path) -> None:
    write(write(tmp_path, "N[a] N[a] |"), "N[b] N[b] |", "u-0")
    run(tmp_path, topics=("u",))
    assert (offsets(tmp_path), offsets(tmp_path, "u-0")) == ([0, 1], [1])
    with pytest.raises(UsageError, match="no partition of topic x"):
        run(tmp_path, topics=("x",))


def transactional(root: Path) -> list[int]:
    return [b.last_offset for s in read_partition(root / "t-0") for b in s.batches if b.transactional and not b.control]


def test_data_of_a_transaction_in_which_a_peer_stopped_stays_transactional(tmp_path: Path) -> None:
    mine = write(tmp_path / "1", "P2[y] C2 P1[a] P1[b] P1[c] C1 N[z] |")
    behind = write(tmp_path / "2", "P2[y] C2 P1[a] P1[b]")
    run(mine, peers=(behind,))
    assert transactional(mine) == [2, 3, 4]


def test_without_peers_nothing_becomes_plain(tmp_path: Path) -> None:
    mine = write(tmp_path, "P1[a] C1 N[z] |")
    run(mine)
    assert transactional(mine) == [0]
