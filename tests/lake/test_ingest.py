"""Real captured logs into the lake: exactly what a read_committed consumer may see, once, however often it is run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.lake.lake import Lake, create_lake, open_lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.marker import Marker
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records, table
from headstone.log.directory import PartitionDir, as_partition, find_partitions, list_segments
from headstone.log.listing import RecordEntry, list_batches
from headstone.log.topic_partition import TopicPartition
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from tests.lake.appending import log_of
from tests.lake.scene import ANYWHERE

CAPTURED = Path(__file__).resolve().parent.parent / "captured"
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def row(record: RecordEntry) -> Row:
    return record.offset, record.timestamp_ms, record.key, record.value, record.headers


def committed(path: Path) -> list[Row]:
    """What a consumer may see of a log on disk, by following its transactions one by one."""
    partition = as_partition(path)
    assert partition is not None
    found: list[Row] = []
    pending: dict[int, list[Row]] = {}
    for batch in (batch for file in list_segments(partition) for batch in list_batches(file, with_records=True)):
        rows = [row(record) for record in batch.records or ()]
        if batch.control is None and batch.transactional:
            pending.setdefault(batch.producer_id, []).extend(rows)
        elif batch.control is None:
            found += rows
        elif batch.control in ("COMMIT", "ABORT"):
            decided = pending.pop(batch.producer_id, [])
            found += decided if batch.control == "COMMIT" else []
    stable = min((rows[0][0] for rows in pending.values() if rows), default=1 << 62)
    return sorted(one for one in found if one[0] < stable)


def assert_all_is_there(lake: Lake, logs: list[PartitionDir]) -> None:
    for log in logs:
        assert [row(record) for record in records(lake, log.topic_partition)] == committed(log.path), log.name


pytestmark = ANYWHERE


@pytest.fixture
def lake(lake_anywhere: Lake) -> Lake:
    return lake_anywhere


@pytest.mark.parametrize("version", ["kafka-3.9.2", "kafka-4.3.1"])
def test_the_lake_holds_what_consumers_may_see(lake: Lake, version: str) -> None:
    found = find_partitions([CAPTURED / version])
    done = ingest(lake, found, clock=lambda: 1, settings=LogIngestSettings(extent_bytes=3000, object_bytes=9000))
    assert lake.metastore.check() == []
    assert_all_is_there(lake, found)
    assert sum(one.records for one in done) == sum(len(committed(directory.path)) for directory in found)
    assert len(lake.metastore.objects()) > 5


def test_running_it_again_adds_nothing(lake: Lake) -> None:
    found = find_partitions([CAPTURED / "kafka-4.3.1"])
    ingest(lake, found, clock=lambda: 1)
    before = {at: lake.metastore.partition(at) for at in lake.metastore.partitions()}
    again = ingest(lake, found, clock=lambda: 2)
    assert [(one.records, one.bytes) for one in again] == [(0, 0)] * len(found)
    assert {at: lake.metastore.partition(at) for at in lake.metastore.partitions()} == before


def test_it_goes_on_where_it_was(lake: Lake, tmp_path: Path) -> None:
    """First all but the last segments of every partition, then everything."""
    source = CAPTURED / "kafka-3.9.2"
    part = shutil.copytree(source, tmp_path / "part", ignore=shutil.ignore_patterns("*checkpoint"))
    for directory in find_partitions([part]):
        later = [file.stem for file in sorted(directory.path.glob("*.log"))[2:]]
        for file in [
            *directory.path.glob("*.snapshot"),
            *(f for name in later for f in directory.path.glob(f"{name}.*")),
        ]:
            file.unlink(missing_ok=True)
    ingest(lake, find_partitions([part]), clock=lambda: 1)
    some = lake.metastore.partition(TopicPartition("plain", 0)).next_offset
    done = {one.partition: one for one in ingest(lake, find_partitions([source]), clock=lambda: 2)}
    assert 0 < some == done[TopicPartition("plain", 0)].start < done[TopicPartition("plain", 0)].end
    assert_all_is_there(lake, find_partitions([source]))
    assert lake.metastore.check() == []


def test_of_two_at_once_one_is_refused_and_nothing_is_doubled(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is between its upload and its commit when the first one commits."""
    found = find_partitions([CAPTURED / "kafka-4.3.1" / "plain-0"])
    real = Metastore.append

    def late(self: Metastore, *arguments: object, **options: object) -> None:
        monkeypatch.setattr(Metastore, "append", real)
        ingest(lake, found, clock=lambda: 2)
        real(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Metastore, "append", late)
    with pytest.raises(CommitRefused):
        ingest(lake, found, clock=lambda: 1)
    assert_all_is_there(lake, found)
    lost = lake.metastore.collectable(unreferenced_before_ms=0, registered_before_ms=9)
    assert len(lost) == 1


def test_another_log_than_before_is_refused(lake: Lake, tmp_path: Path) -> None:
    """The lake ends inside a batch of it."""
    write_sample(tmp_path / "small", SampleSettings(records=101, batch_bytes=1000))
    write_sample(tmp_path / "large", SampleSettings(records=300, batch_bytes=20_000))
    ingest(lake, find_partitions([tmp_path / "small"]), clock=lambda: 1)
    before = lake.metastore.partition(TopicPartition("sample", 0))
    with pytest.raises(UsageError, match=r"the lake ends at 101, inside the batch .* is not the one"):
        ingest(lake, find_partitions([tmp_path / "large"]), clock=lambda: 2)
    assert lake.metastore.partition(TopicPartition("sample", 0)) == before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> PartitionDir:
    """A log of many segments."""
    root = tmp_path_factory.mktemp("whole")
    write_sample(root, SampleSettings(records=3000, batch_bytes=2000, segment_bytes=40_000))
    return find_partitions([root])[0]


def cut(whole: PartitionDir, to: Path, first: int, end: int | None) -> tuple[list[PartitionDir], int]:
    """Some of its segments, and no checkpoints; and where the first of them begins."""
    files = sorted(whole.path.glob("*.log"))
    assert len(files) > 8
    target = to / whole.name
    target.mkdir(parents=True)
    for file in files[first:end]:
        shutil.copyfile(file, target / file.name)
    return find_partitions([to]), int(files[first].stem)


def test_a_log_without_what_comes_next_is_refused(lake: Lake, whole: PartitionDir, tmp_path: Path) -> None:
    """Half of a backup: between the lake and it, deletions may be missing."""
    early, _ = cut(whole, tmp_path / "early", 0, 2)
    late, begins = cut(whole, tmp_path / "late", 5, None)
    ingest(lake, early, clock=lambda: 1)
    before = lake.metastore.partition(whole.topic_partition)
    with pytest.raises(UsageError, match=f"the lake ends at {before.next_offset}, this log begins at {begins}"):
        ingest(lake, late, clock=lambda: 2)
    assert lake.metastore.partition(whole.topic_partition) == before


def test_a_shorter_log_goes_on_and_takes_nothing_away(lake: Lake, whole: PartitionDir, tmp_path: Path) -> None:
    """The last segments of a backup, up to where the lake is and beyond."""
    for name, some in (("early", (0, 4)), ("late", (3, None))):
        ingest(lake, cut(whole, tmp_path / name, *some)[0], clock=lambda: 1)
    assert lake.metastore.partition(whole.topic_partition).start_offset == 0
    assert_all_is_there(lake, [whole])


def test_the_first_log_sets_the_start(lake: Lake, whole: PartitionDir, tmp_path: Path) -> None:
    late, begins = cut(whole, tmp_path / "late", 5, None)
    ingest(lake, late, clock=lambda: 1)
    assert lake.metastore.partition(whole.topic_partition).start_offset == begins
    assert_all_is_there(lake, late)
    assert lake.metastore.check() == []


@pytest.mark.parametrize("order", [("ahead", "behind"), ("behind", "ahead")])
def test_two_replicas_of_a_partition_are_refused_by_both_paths(lake: Lake, tmp_path: Path, order: list[str]) -> None:
    """The one that is behind lacks the deletion of a key; a broker's metadata is in every directory, and no topic."""
    log_of(tmp_path / "behind", "t", "N[a] N[b]")
    log_of(tmp_path / "ahead", "t", "N[a] N[b] | T[a]")
    for broker in order:
        shutil.copytree(tmp_path / broker / "t-0", tmp_path / broker / "__cluster_metadata-0")
    found = find_partitions([tmp_path / broker for broker in order])
    paths = ".* and ".join(str(tmp_path / broker / "t-0") for broker in order)
    with pytest.raises(
        UsageError, match=f"t-0 is in two of the paths, {paths}: nothing was ingested. Name the most complete"
    ):
        ingest(lake, found, clock=lambda: 1)
    assert lake.metastore.topics() == {}
    ingest(lake, find_partitions([tmp_path / "behind"]), clock=lambda: 1)
    ingest(lake, find_partitions([tmp_path / "ahead"]), clock=lambda: 2)
    assert sorted(table(lake, TopicPartition("t", 0))) == [b"b"]


def test_a_lake_is_opened_with_its_own_store(metastore_url: str, lake: Lake, moto_settings: dict[str, str]) -> None:
    again = open_lake(metastore_url, settings=moto_settings)
    assert again.metastore.lake_id == lake.metastore.lake_id
    again.close()
    Marker(lake_id="00000000-0000-0000-0000-000000000000", hash_key="", clock="given").write(lake.store)
    with pytest.raises(UsageError, match="belongs to lake 00000000"):
        open_lake(metastore_url, settings=moto_settings)
    lake.store.delete(["headstone-lake"])
    with pytest.raises(UsageError, match="has no lake"):
        open_lake(metastore_url, settings=moto_settings)


def test_a_prefix_that_is_in_use_is_refused(lake: Lake, tmp_path: Path, moto_settings: dict[str, str]) -> None:
    second = f"sqlite:///{tmp_path / 'second.db'}"
    with pytest.raises(UsageError, match="already contains "):
        create_lake(second, lake.store.url, now_ms=1, settings=moto_settings)
    with pytest.raises(UsageError, match="has no lake"):
        Metastore.open(second)
