"""The table by lists of keys, decided by one task or through buckets: what a reader of all records would make of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headstone.cli.main import main
from headstone.errors import CorruptLog
from headstone.interruption import Interrupted
from headstone.lake.format.keyindex import section_bytes
from headstone.lake.lake import Lake, create_lake, metastore_url
from headstone.lake.metastore.commits import Partition
from headstone.lake.transfer.reading import SCHEMA, records_in, snapshot
from headstone.lake.transfer.table_view import TASK_KEYS_MAX, decided, rows_of_table
from headstone.lake.transfer.views import write_parquet
from headstone.pipeline import progress, splitting
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board
from tests.lake.scene import AT, RETENTION_MS, Scene
from tests.lake.single import table_batches

Rows = list[tuple[int, bytes, bytes | None]]


def rows(lake: Lake, partition: Partition, keys_max: int) -> Rows:
    found = table_batches(lake, AT, partition, keys_max=keys_max)
    return [(row["offset"], row["key"], row["value"]) for batch in found for row in batch.to_pylist()]


def expected(lake: Lake, partition: Partition) -> Rows:
    """Without lists of keys: every record is read, and the last of a key counts."""
    every = records_in(lake.store, partition.extents, partition.start_offset)
    newest = {entry.key: entry for entry in every if entry.key is not None}
    return sorted((entry.offset, key, entry.value) for key, entry in newest.items() if entry.value is not None)


def fill(scene: Scene, chance: random.Random, now_ms: int) -> None:
    """Keys that come again, deletions, codecs, in extents of their own."""
    for _ in range(3):
        kinds = [
            f"N[{','.join(chance.choices('abcdefghijklmnop', k=3))}]{chance.choice(['', '/zstd', '/lz4'])}"
            for _ in range(4)
        ]
        scene.write(*kinds, f"T[{chance.choice('abcdefghijklmnop')}]", now_ms=now_ms)


def unlisted(partition: Partition) -> Partition:
    return replace(partition, extents=tuple(replace(extent, keys=-1) for extent in partition.extents))


@pytest.fixture(params=[24, splitting.BUCKET_BYTES], ids=["bucket per entry", "few buckets"])
def bucket_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting, "BUCKET_BYTES", request.param)


@pytest.mark.usefixtures("bucket_bytes")
@pytest.mark.parametrize("seed", range(2))
def test_the_table_is_the_same_however_it_is_decided(scene: Scene, seed: int) -> None:
    """Of a log that is compacted, marked and cut meanwhile: now, and as of every moment in between."""
    chance = random.Random(seed)
    for moment in range(10, 50, 10):
        fill(scene, chance, moment)
        if moment > 10:
            scene.compact(now_ms=moment + 2, dead_share_max=chance.choice([0.0, 0.9, 1.0]))
    scene.lake.metastore.start_at(AT, 7, now_ms=60)
    now = snapshot(scene.lake, AT)
    states = [now, *(snapshot(scene.lake, AT, moment_ms) for moment_ms in range(11, 60, 8))]
    assert any(extent.dead for state in states for extent in state.extents)
    for state in (*states, *(replace(now, start_offset=offset) for offset in range(7, now.next_offset, 37))):
        wanted = expected(scene.lake, state)
        for keys_max in (1, 20, TASK_KEYS_MAX):
            assert rows(scene.lake, state, keys_max) == wanted
    for keys_max in (1, 20, TASK_KEYS_MAX):
        assert rows(scene.lake, unlisted(now), keys_max) == expected(scene.lake, now)


@pytest.mark.parametrize("keys_max", [1, TASK_KEYS_MAX])
def test_a_dead_value_does_not_come_back_when_its_tombstone_has_gone(scene: Scene, keys_max: int) -> None:
    scene.write(*(f"N[k{i}]" for i in range(10)))
    scene.compact(now_ms=10)
    scene.write("T[k3]")
    assert scene.compact(now_ms=20).extents_marked == 1
    scene.compact(now_ms=20 + 2 * RETENTION_MS, dead_share_max=0.5)
    assert (len(scene.held()), [extent.dead for extent in scene.lake.metastore.partition(AT).extents]) == (9, [1, 0])
    table = rows(scene.lake, scene.lake.metastore.partition(AT), keys_max)
    assert [key for _, key, _ in table] == [b"k%d" % i for i in range(10) if i != 3]


def test_a_partition_without_records_has_no_table(scene: Scene) -> None:
    assert rows(scene.lake, scene.lake.metastore.partition(AT), 1) == []


def test_extents_that_hold_nothing_of_the_table_are_not_read(scene: Scene) -> None:
    """They are known by their lists of keys; those of the others are read once more, and no other bytes."""
    for _ in range(5):
        scene.write("N[a,b]")
    lake, partition = scene.lake, scene.lake.metastore.partition(AT)
    hash_key = lake.metastore.hash_key
    live = decided(lake.store, hash_key, {AT: partition}, InProcess())[AT]
    assert [(found.extent, found.records) for found in live] == [(partition.extents[-1], 2)]
    before = lake.store.traffic.reads
    assert sum(batch.num_rows for batch in rows_of_table(lake.store, hash_key, AT, live)) == 2
    assert lake.store.traffic.reads - before == 3


def test_each_list_is_read_once_into_however_many_buckets(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests each; and who watches is told of their bytes, all of them."""
    fill(scene, random.Random(1), 0)
    fill(scene, random.Random(2), 0)
    lake, partition = scene.lake, scene.lake.metastore.partition(AT)
    traffic = lake.store.traffic
    for bucket_bytes in (splitting.BUCKET_BYTES, 24):
        monkeypatch.setattr(splitting, "BUCKET_BYTES", bucket_bytes)
        for keys_max in (1, 20, TASK_KEYS_MAX):
            board, reads, size = Board(), traffic.reads, traffic.bytes_read
            decided(lake.store, lake.metastore.hash_key, {AT: partition}, InProcess(2), board, keys_max=keys_max)
            assert traffic.reads - reads == 2 * len(partition.extents)
            assert board.expected == board.total()[0] == traffic.bytes_read - size


@pytest.mark.parametrize("keys_max", [1, TASK_KEYS_MAX])
def test_a_list_that_is_damaged_ends_it(scene: Scene, keys_max: int) -> None:
    """Whoever left it out would bring deleted keys back."""
    scene.write("N[a,b,c]")
    scene.write("T[a]")
    partition = scene.lake.metastore.partition(AT)
    last = partition.extents[-1]
    moved = replace(partition, extents=(*partition.extents[:-1], replace(last, length=last.length - 1)))
    with pytest.raises(CorruptLog, match="wrong CRC-32C of the list of keys"):
        rows(scene.lake, moved, keys_max)


def test_who_reads_the_table_sees_the_lists_and_then_the_extents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What superseded extents weigh is not waited for."""
    where, board = tmp_path / "lake", Board()
    lake = create_lake(metastore_url(str(where), make=True), f"file://{where}/objects", now_ms=0)
    scene = Scene(lake, tmp_path)
    scene.write("N[a,b]")
    scene.write("N[a]", "N[b]")
    superseded, live = lake.metastore.partition(AT).extents
    lake.close()
    monkeypatch.setattr(progress, "Board", lambda: board)
    assert main(["lake", "read", str(where), "t", "--view", "table", "--to", str(tmp_path / "t.parquet")]) == 0
    lists = section_bytes(superseded.keys) + section_bytes(live.keys)
    assert (board.expected, board.total()) == (lists + live.length, (lists + live.length, 2))


@pytest.mark.parametrize("failure", [Interrupted, OSError], ids=["given up", "failed"])
def test_a_read_that_ends_early_leaves_the_file_of_before_and_nothing_beside_it(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from SCHEMA.empty_table().to_batches()
        raise failure

    (tmp_path / "orders.parquet").write_bytes(b"of before")
    with pytest.raises(failure):
        write_parquet(tmp_path / "orders.parquet", batches())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("orders.parquet", b"of before")]
