"""Compaction of the lake: the table stays, what is superseded goes, tombstones wait, losers leave nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.lake.format.objects import object_path
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.job import JobControl
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.scheduling import dirty_spans
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records, table
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from tests.lake.scene import AT, RETENTION_MS, Scene

CAPTURED = Path(__file__).resolve().parent.parent / "captured"


@pytest.fixture
def lake(metastore_url: str, object_store: Store, moto_settings: dict[str, str]) -> Iterator[Lake]:
    made = create_lake(metastore_url, object_store.url, now_ms=0, settings=moto_settings)
    yield made
    made.close()


def test_superseded_records_go_and_the_table_stays(scene: Scene) -> None:
    scene.write("N[a]", "N[b]")
    scene.write("N[a]", "N[c]")
    before = scene.table()
    done = scene.compact(now_ms=10)
    assert [(offset, key) for offset, key, _ in scene.held()] == [(1, b"b"), (2, b"a"), (3, b"c")]
    assert scene.table() == before
    assert (done.committed, done.epoch, done.extents, done.extents_rewritten) == (True, 1, 2, 1)
    partition = scene.lake.metastore.partition(AT)
    assert (partition.cleaned, dirty_spans(partition)) == ((Span(0, partition.next_offset),), ())
    assert scene.lake.metastore.check() == []


def test_a_clean_partition_is_left_alone(scene: Scene) -> None:
    scene.write("N[a]", "N[a]")
    scene.compact(now_ms=10)
    before = scene.lake.metastore.partition(AT)
    done = scene.compact(now_ms=20)
    assert (done.committed, done.bytes_read, scene.lake.metastore.partition(AT)) == (False, 0, before)


def test_a_tombstone_goes_after_its_time_and_not_before(scene: Scene) -> None:
    """A quiet log: expired tombstones alone are reason enough (Redpanda's scheduler would wait for dirty data)."""
    scene.write("N[a]", "N[b]")
    scene.write("T[a]")
    scene.compact(now_ms=5000)
    assert [(offset, value) for offset, key, value in scene.held() if key == b"a"] == [(2, None)]
    assert [known.cleaned_at_ms for known in scene.lake.metastore.partition(AT).tombstones] == [5000]
    assert not scene.compact(now_ms=5000 + RETENTION_MS - 1).committed
    assert scene.compact(now_ms=5000 + RETENTION_MS).committed
    assert [key for _, key, _ in scene.held()] == [b"b"]
    partition = scene.lake.metastore.partition(AT)
    assert (partition.tombstones, scene.lake.metastore.check()) == ((), [])
    assert not scene.compact(now_ms=10**9).committed


def test_a_batch_that_outlives_its_tombstones_is_not_due_for_ever(scene: Scene) -> None:
    """Redpanda 31124: it keeps its delete horizon, but there is nothing left to remove."""
    scene.write("N[a]", "N[x,y,z]", "N[b,c]")
    scene.write("T[b]", "N[c]")
    scene.write("N[q]", "T[a]")
    scene.compact(now_ms=10)
    scene.compact(now_ms=10 + RETENTION_MS)
    assert scene.lake.metastore.partition(AT).tombstones == ()
    assert not scene.compact(now_ms=10**9).committed


def test_a_reader_holds_the_tombstones_it_has_not_passed(scene: Scene) -> None:
    scene.write("N[a]", "T[a]")
    scene.write("N[b]", "T[b]")
    scene.compact(now_ms=10)
    scene.compact(now_ms=10 + RETENTION_MS, held_from=2)
    assert [(offset, key) for offset, key, _ in scene.held()] == [(3, b"b")]
    held = scene.lake.metastore.partition(AT).tombstones
    assert [(tuple(known.span), known.cleaned_at_ms) for known in held] == [((2, 4), 10)]
    scene.compact(now_ms=10 + RETENTION_MS)
    assert scene.held() == []


def test_records_without_a_key_are_not_lost(scene: Scene) -> None:
    """A topic that was never meant to be compacted: refused, and everything is as it was."""
    scene.write("N[a]", "U", "N[a]")
    before, partition = scene.held(), scene.lake.metastore.partition(AT)
    with pytest.raises(UsageError, match="1 record without a key"):
        scene.compact(now_ms=10)
    assert (scene.held(), scene.lake.metastore.partition(AT)) == (before, partition)


def test_a_reader_that_is_halfway_gets_every_change_it_needs(scene: Scene) -> None:
    """It has read to offset 2, then the log is compacted; within the retention the tombstone is still there for it."""
    scene.write("N[a]", "N[b]")
    seen = {record.key: record.value for record in records(scene.lake, AT)}
    scene.write("T[a]", "N[b]")
    scene.compact(now_ms=10)
    for record in records(scene.lake, AT, offset_start=2):
        seen[record.key] = record.value
    assert {key: value for key, value in seen.items() if value is not None} == scene.table()


def test_a_reader_that_began_before_finds_its_objects(scene: Scene) -> None:
    scene.write("N[a]", "N[b]")
    scene.write("N[a]", "N[b]")
    reading = records(scene.lake, AT)
    first = next(reading)
    scene.compact(now_ms=10)
    assert [first.offset, *(record.offset for record in reading)] == [0, 1, 2, 3]


def test_of_two_compactions_the_slower_one_changes_nothing(scene: Scene) -> None:
    scene.write("N[a]", "N[a]")
    scene.write("N[b]", "N[b]")

    def somebody_is_faster() -> None:
        scene.compact(now_ms=10)

    with pytest.raises(CommitRefused, match="another worker has compacted"):
        scene.compact(now_ms=11, control=JobControl(before_commit=somebody_is_faster))
    assert [(offset, key) for offset, key, _ in scene.held()] == [(1, b"a"), (3, b"b")]
    assert scene.lake.metastore.partition(AT).compaction_epoch == 1
    assert scene.lake.metastore.check() == []


def test_what_is_appended_during_a_compaction_is_kept(scene: Scene) -> None:
    scene.write("N[a]", "N[a]")
    scene.compact(now_ms=10, control=JobControl(before_commit=lambda: scene.write("N[a]", "N[z]")))
    assert [(offset, key) for offset, key, _ in scene.held()] == [(1, b"a"), (2, b"a"), (3, b"z")]
    partition = scene.lake.metastore.partition(AT)
    assert dirty_spans(partition) == (Span(2, partition.next_offset),)
    scene.compact(now_ms=20)
    assert [(offset, key) for offset, key, _ in scene.held()] == [(2, b"a"), (3, b"z")]
    assert scene.lake.metastore.check() == []


def test_garbage_collection_leaves_exactly_what_is_referenced(scene: Scene) -> None:
    scene.write("N[a]", "N[b]")
    scene.write("N[a]")
    scene.compact(now_ms=10)
    metastore, store = scene.lake.metastore, scene.lake.store
    collect(scene.lake, garbage(scene.lake, now_ms=11, grace_ms=0, upload_ms=0))
    used = {extent.object_id for extent in metastore.partition(AT).extents}
    assert set(store.list("objects")) == {object_path(object_id) for object_id in used}
    assert set(metastore.objects()) == used
    assert [key for _, key, _ in scene.held()] == [b"b", b"a"]


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_keep_their_table(scene: Scene, seed: int) -> None:
    """Writes, compactions, time: the table is always that of everything written, and the log shrinks to it in the end."""
    chance = random.Random(seed)
    now, model = 100, {}
    for _ in range(12):
        keys = [chance.choice("abcdefgh") for _ in range(chance.randint(1, 5))]
        terms = [f"T[{key}]" if chance.random() < 0.3 else f"N[{key}]" for key in keys]
        scene.write(*terms, now_ms=now)
        for key, term in zip(keys, terms, strict=True):
            model[key.encode()] = term[0] == "N"
        if chance.random() < 0.6:
            scene.compact(now_ms=now)
        now += chance.choice((1, RETENTION_MS // 2, 2 * RETENTION_MS))
        assert set(scene.table()) == {key for key, live in model.items() if live}
        assert scene.lake.metastore.check() == []
    scene.compact(now_ms=now)
    scene.compact(now_ms=now + RETENTION_MS)
    assert len(scene.held()) == len(scene.table()) == sum(model.values())


def test_a_little_new_data_rewrites_little(scene: Scene) -> None:
    """Twenty extents of unique keys; then one key is written again: one extent loses a record, the others their nothing."""
    for number in range(20):
        scene.write(*(f"N[k{number}x{i}]" for i in range(5)))
    first = scene.compact(now_ms=10)
    assert (first.extents, first.extents_rewritten, first.bytes_written) == (20, 0, 0)
    objects = {extent.span: extent.object_id for extent in scene.lake.metastore.partition(AT).extents}
    scene.write("N[k7x3]")
    second = scene.compact(now_ms=20)
    assert (second.extents, second.extents_read, second.extents_rewritten, second.extents_marked) == (21, 0, 0, 1)
    assert (second.records_after, second.bytes_written < second.bytes_before / 10) == (100, True)
    scene.write("N[k7x4]")
    third = scene.compact(now_ms=30)
    assert (third.extents, third.extents_read, third.extents_rewritten, third.extents_marked) == (22, 1, 1, 0)
    after = {extent.span: extent.object_id for extent in scene.lake.metastore.partition(AT).extents}
    assert [span for span in objects if after[span] != objects[span]] == [Span(35, 40)]


def test_captured_logs_of_real_brokers_keep_their_tables(lake: Lake) -> None:
    ingest(
        lake,
        find_partitions([CAPTURED / "kafka-4.3.1"]),
        clock=lambda: 1,
        settings=LogIngestSettings(extent_bytes=2000),
    )
    for at in lake.metastore.partitions():
        before = {key: (record.offset, record.value) for key, record in table(lake, at).items()}
        now = 1_900_000_000_000
        compact_partition(lake, at, InProcess(1), now_ms=now)
        compact_partition(lake, at, InProcess(1), now_ms=now + 2 * 86_400_000)
        assert {key: (record.offset, record.value) for key, record in table(lake, at).items()} == before
        left = list(records(lake, at))
        assert len(left) == len({record.key for record in left}) == len(before)
    assert lake.metastore.check() == []
