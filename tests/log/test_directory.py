"""Names of partition directories and files, what is passed over, and the lock that a broker would hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headstone.errors import CorruptLog, UsageError
from headstone.log.directory import (
    PartitionDir,
    as_partition,
    exclusive,
    find_partitions,
    future_copies,
    is_in_use,
    list_segments,
    snapshot_offsets,
    was_stopped_cleanly,
)
from headstone.log.reading import SegmentFile
from tests.logs import HOLD, compact_here, files_of, owner, write_log


def folder(root: Path, name: str, *names: str) -> Path:
    path = root / name
    path.mkdir(parents=True)
    for file in names or ("00000000000000000000.log",):
        (path / file).write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b-12", ("a-b", 12)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("x.y_z-007", ("x.y_z", 7)),
        ("orders", None),
        ("orders-", None),
        ("orders-x", None),
        ("-1", None),
        ("orders-0.0123456789abcdef0123456789abcdef-delete", None),
        ("orders-0.0123456789abcdef0123456789abcdef-future", None),
        ("orders-0.0123456789abcdef0123456789abcdef-stray", None),
    ],
)
def test_the_partition_is_what_follows_the_last_dash(
    name: str, expected: tuple[str, int] | None, tmp_path: Path
) -> None:
    found = as_partition(folder(tmp_path, name))
    assert (None if found is None else found.topic_partition) == expected


def test_a_file_with_the_name_of_a_partition_is_none(tmp_path: Path) -> None:
    (tmp_path / "orders-0").write_text("")
    assert as_partition(tmp_path / "orders-0") is None


def test_a_log_directory_gives_its_partitions_and_a_partition_itself(tmp_path: Path) -> None:
    one, two = folder(tmp_path, "a-0"), folder(tmp_path, "a-1")
    folder(tmp_path, "a-2.0123456789abcdef0123456789abcdef-delete")
    folder(tmp_path, "lost+found")
    expected = [PartitionDir(path=one, topic="a", partition=0), PartitionDir(path=two, topic="a", partition=1)]
    assert find_partitions([tmp_path]) == expected
    assert find_partitions([two]) == expected[1:]
    assert find_partitions([one, tmp_path, one]) == expected


def test_a_log_directory_may_itself_be_called_like_a_partition(tmp_path: Path) -> None:
    root = tmp_path / "kafka-1"
    inner = folder(root, "a-0")
    assert find_partitions([root]) == [PartitionDir(path=inner, topic="a", partition=0)]


def test_a_directory_of_log_directories_names_them(tmp_path: Path) -> None:
    """`replica-1` is called like a partition: what is inside decides."""
    for name in ("replica-1", "replica-2"):
        folder(tmp_path / name, "orders-0")
    assert as_partition(tmp_path / "replica-1") is None
    with pytest.raises(UsageError, match=r"holds log directories: name them one by one \(replica-1, replica-2\)"):
        find_partitions([tmp_path])


def linked(link: Path, target: Path) -> Path:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    return link


CHECKPOINTS = [f"{name}-checkpoint" for name in ("cleaner-offset", "recovery-point-offset", "log-start-offset")]
OWNERS_FILES = ("meta.properties", ".lock", ".kafka_cleanshutdown", "replication-offset-checkpoint", *CHECKPOINTS)


@pytest.mark.parametrize("owners_file", OWNERS_FILES)
@pytest.mark.parametrize("owner", ["link", "real"])
def test_a_linked_partition_belongs_to_the_log_directory_that_knows_it(
    owner: str, owners_file: str, tmp_path: Path
) -> None:
    real = folder(tmp_path / "real", "orders-0")
    link = linked(tmp_path / "link" / "orders-0", tmp_path / "between" / "orders-0")
    linked(tmp_path / "between" / "orders-0", real)
    (tmp_path / owner / owners_file).write_text("")
    expected = [PartitionDir(path=tmp_path / owner / "orders-0", topic="orders", partition=0)]
    assert find_partitions([link]) == find_partitions([tmp_path / "link"]) == expected
    assert find_partitions([link, tmp_path / "link"]) == expected


def test_a_linked_partition_that_nobody_knows_is_taken_where_its_segments_are(tmp_path: Path) -> None:
    real = folder(tmp_path / "real", "orders-0")
    linked(tmp_path / "link" / "orders-0", Path("..") / "real" / "orders-0")
    linked(tmp_path / "current", tmp_path / "link")
    linked(tmp_path / "one", tmp_path / "link" / "orders-0")
    expected = [PartitionDir(path=real, topic="orders", partition=0)]
    for given in ("link", "link/orders-0", "current", "current/orders-0", "one"):
        assert find_partitions([tmp_path / given]) == expected


def test_a_linked_partition_with_two_owners_is_refused(tmp_path: Path) -> None:
    real = folder(tmp_path / "real", "orders-0")
    link = linked(tmp_path / "link" / "orders-0", real)
    for name in ("real", "link"):
        (tmp_path / name / ".lock").write_text("")
    with pytest.raises(UsageError, match="both log directories have locks or checkpoints of their own"):
        find_partitions([tmp_path / "link"])
    assert as_partition(real) is not None
    assert find_partitions([real]) != [link]


def test_nothing_to_find_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match="no partition found"):
        find_partitions([tmp_path / "x"])
    with pytest.raises(UsageError, match="no such directory"):
        find_partitions([tmp_path / "y"])
    with pytest.raises(UsageError, match="'': no such directory"):
        find_partitions([""])


HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "topic", "partition", "is_copy"),
    [
        (f"orders-0.{HEX}-future", "orders", 0, True),
        (f"orders-0.{HEX}-future", "orders", 1, False),
        (f"orders-0.{HEX}-future", "orders-0", 0, False),
        (f"{'x' * 213}-0.{HEX}-future", "x" * 249, 0, True),
        (f"{'x' * 212}-0.{HEX}-future", "x" * 249, 0, False),
        (f"{'x' * 213}-0.{HEX}-future", "x" * 212 + "y" * 37, 0, False),
    ],
)
def test_the_copy_of_a_move_tells_its_partition(
    name: str, topic: str, partition: int, is_copy: bool, tmp_path: Path
) -> None:
    path = folder(tmp_path, name)
    (copy,) = future_copies(tmp_path)
    assert copy.path == path
    assert copy.is_of(PartitionDir(path=tmp_path / f"{topic}-{partition}", topic=topic, partition=partition)) == is_copy


def test_other_folders_are_no_copies(tmp_path: Path) -> None:
    for name in ("orders-0", f"orders-0.{HEX}-delete", f"orders-0.{HEX}-stray", "orders-0.1-future"):
        folder(tmp_path, name)
    assert future_copies(tmp_path) == []


def test_copies_alone_are_nothing_to_work_on(tmp_path: Path) -> None:
    folder(tmp_path / "2", f"orders-0.{HEX}-future")
    with pytest.raises(UsageError, match="nothing but copies of partitions that are being moved"):
        find_partitions([tmp_path / "2"])
    here = folder(tmp_path / "1", "orders-0")
    assert find_partitions([tmp_path / "2", tmp_path / "1"]) == [PartitionDir(path=here, topic="orders", partition=0)]


def partition(path: Path) -> PartitionDir:
    found = as_partition(path)
    assert found is not None
    return found


def test_segments_come_in_the_order_of_offsets_with_the_sizes_of_their_files(tmp_path: Path) -> None:
    path = write_log(tmp_path, "N[a]@7000 | +999999999 N[b]@9000 | N[c]", snapshots=True) / "t-0"
    (path / "00000000000000000000.index").write_bytes(bytes(16))
    for name in ("5.log", f"{9:020d}.log.deleted", f"{9:020d}.index", "leader-epoch-checkpoint.tmp"):
        (path / name).write_bytes(b"x")
    bases = (0, 1, 1_000_000_001)
    logs = [path / f"{base:020d}.log" for base in bases]
    assert list_segments(partition(path)) == [
        SegmentFile(
            base=base, path=str(log), size=log.stat().st_size, mtime_ms=mtime_ms, index_bytes=index, time_index_bytes=12
        )
        for base, log, mtime_ms, index in zip(bases, logs, (7000, 9000, 1_000_001_001), (16, 0, 0), strict=True)
    ]
    assert snapshot_offsets(partition(path)) == [1, 1_000_000_001]


def test_missing_indexes_have_no_bytes(tmp_path: Path) -> None:
    (found,) = list_segments(partition(folder(tmp_path, "t-0", "00000000000000000005.log")))
    assert (found.base, found.index_bytes, found.time_index_bytes) == (5, 0, 0)


@pytest.mark.parametrize("name", ["00000000000000000000.log.swap", "00000000000000000000.index.cleaned"])
def test_an_interrupted_swap_is_not_read_over(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path, "t-0", "00000000000000000000.log", name)
    with pytest.raises(UsageError, match="an interrupted compaction was left here"):
        list_segments(partition(path))


def test_a_directory_without_segments_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \.log file"):
        list_segments(partition(folder(tmp_path, "t-0", "00000000000000000000.index")))


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
def test_indexes_without_their_log_tell_of_a_lost_segment(suffix: str, tmp_path: Path) -> None:
    logs = [f"{base:020d}.log" for base in (0, 9)]
    path = folder(tmp_path, "t-0", *logs, f"{5:020d}{suffix}", f"{3:020d}.snapshot")
    with pytest.raises(CorruptLog) as raised:
        list_segments(partition(path))
    assert (raised.value.file, raised.value.offset) == (str(path / f"{5:020d}.log"), 5)
    assert raised.value.problem == f"the segment is missing, but its {suffix} is there"
    (path / f"{5:020d}.log.deleted").write_bytes(b"")
    assert [segment.base for segment in list_segments(partition(path))] == [0, 9]


def test_a_lost_segment_stops_a_compaction_in_place_and_what_tells_of_it_stays(tmp_path: Path) -> None:
    write_log(tmp_path, "N[a] | N[a] | N[a] | N[z]")
    (tmp_path / "t-0" / f"{1:020d}.log").unlink()
    before = files_of(tmp_path)
    with pytest.raises(CorruptLog, match="the segment is missing"):
        compacted_in_place(tmp_path)
    assert files_of(tmp_path) == before


def compacted_in_place(root: Path, *, force_offline: bool = False) -> list[str]:
    told: list[str] = []
    compact_here(root, tell=told.append, force_offline=force_offline, topics=("t",))
    return told


def written(root: Path) -> dict[str, bytes]:
    write_log(root, "N[a] N[a] | N[z]")
    (root / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    return files_of(root)


def test_a_directory_whose_lock_another_process_holds_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"")
    before = written(tmp_path)
    with owner(HOLD, tmp_path / ".lock"):
        with pytest.raises(UsageError, match=r"a running broker or another compaction holds \.lock; stop it first"):
            compacted_in_place(tmp_path, force_offline=True)
        assert files_of(tmp_path) == before
    compacted_in_place(tmp_path, force_offline=True)
    assert files_of(tmp_path) != before


@pytest.mark.parametrize("given", ["link", "link/t-0"])
def test_a_link_does_not_lead_around_the_lock(given: str, tmp_path: Path) -> None:
    root = tmp_path / "real"
    before = written(root)
    (root / "meta.properties").write_text("version=1\n")
    linked(tmp_path / "link" / "t-0", root / "t-0")
    with pytest.raises(UsageError, match="did not stop cleanly"):
        compacted_in_place(tmp_path / given)
    assert {name: files_of(root)[name] for name in before} == before


def test_the_lock_is_held_meanwhile_and_only_a_brokers_stays(tmp_path: Path) -> None:
    with exclusive(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert not (tmp_path / ".lock").exists()
    (tmp_path / "meta.properties").write_text("version=1\n")
    with exclusive(tmp_path):
        pass
    assert (tmp_path / ".lock").exists()


def test_whoever_asks_about_a_lock_of_its_own_keeps_it(tmp_path: Path) -> None:
    ask = "import sys; from pathlib import Path; from headstone.log.directory import is_in_use; "
    ask += "sys.exit(is_in_use(Path(sys.argv[1])))"
    with exclusive(tmp_path):
        assert not is_in_use(tmp_path)
        assert subprocess.run([sys.executable, "-c", ask, str(tmp_path)], check=False).returncode == 1
    assert not is_in_use(tmp_path)


def test_a_broker_that_did_not_stop_cleanly_must_be_forced(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    before = written(tmp_path)
    assert not was_stopped_cleanly(tmp_path)
    with pytest.raises(UsageError, match="did not stop cleanly"):
        compacted_in_place(tmp_path)
    assert {name: data for name, data in files_of(tmp_path).items() if name != ".lock"} == before
    told = compacted_in_place(tmp_path, force_offline=True)
    assert [line for line in told if line.startswith("warning")] == [
        f"warning: {tmp_path}: no clean shutdown; going on, as asked"
    ]
    assert files_of(tmp_path) != before


def test_a_broker_that_stopped_cleanly_is_compacted_in_place(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / ".kafka_cleanshutdown").write_text("{}")
    before = written(tmp_path)
    compacted_in_place(tmp_path)
    assert files_of(tmp_path) != before
