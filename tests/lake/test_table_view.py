"""The table by lists of keys, in one bucket or in many: what a reader of all records would make of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headstone.lake.commits import Partition
from headstone.lake.lake import Lake
from headstone.lake.reading import table
from headstone.lake.table_view import BUCKET_KEYS_MAX, buckets_of, decided, rows_of_table, table_batches
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import AT, Scene


def rows(lake: Lake, partition: Partition, keys_max: int) -> list[tuple[int, bytes, bytes]]:
    found = table_batches(lake, AT, partition, keys_max=keys_max)
    return [(row["offset"], row["key"], row["value"]) for batch in found for row in batch.to_pylist()]


def expected(lake: Lake) -> list[tuple[int, bytes, bytes | None]]:
    return sorted((entry.offset, key, entry.value) for key, entry in table(lake, AT).items())


def fill(scene: Scene, seed: int) -> None:
    """Keys that come again, deletions, records without a key, codecs, in extents of their own."""
    chance = random.Random(seed)
    for moment in range(6):
        kinds = [
            f"N[{','.join(chance.choices('abcdefghij', k=3))}]{chance.choice(['', '/zstd', '/lz4'])}" for _ in range(4)
        ]
        scene.write(*kinds, f"T[{chance.choice('abcdefghij')}]", now_ms=moment)


@pytest.mark.parametrize("keys_max", [1, 7, BUCKET_KEYS_MAX])
def test_the_table_is_the_same_in_any_number_of_buckets(scene: Scene, keys_max: int) -> None:
    fill(scene, seed=keys_max)
    partition = scene.lake.metastore.partition(AT)
    assert rows(scene.lake, partition, keys_max) == expected(scene.lake)
    unlisted = replace(partition, extents=tuple(replace(one, keys=-1) for one in partition.extents))
    assert rows(scene.lake, unlisted, keys_max) == expected(scene.lake)
    scene.compact(now_ms=10)
    compacted = scene.lake.metastore.partition(AT)
    assert compacted != partition
    assert rows(scene.lake, compacted, keys_max) == expected(scene.lake) == rows(scene.lake, partition, keys_max)


def test_records_below_the_log_start_are_not_in_it(scene: Scene) -> None:
    scene.write("N[a,b,c]", "N[a]")
    partition = replace(scene.lake.metastore.partition(AT), start_offset=2)
    assert [offset for offset, _, _ in rows(scene.lake, partition, 2)] == [2, 3]


def test_extents_that_hold_nothing_of_the_table_are_not_read(scene: Scene) -> None:
    """They are known by their lists of keys; those of the others are read once more, and no other bytes."""
    for _ in range(5):
        scene.write("N[a,b]")
    lake, partition = scene.lake, scene.lake.metastore.partition(AT)
    hash_key = lake.metastore.hash_key
    live = decided(lake.store, hash_key, {AT: partition}, InProcess())[AT]
    assert [found.extent for found in live] == [partition.extents[-1]]
    before = lake.store.traffic.reads
    assert sum(batch.num_rows for batch in rows_of_table(lake.store, hash_key, AT, live)) == 2
    assert lake.store.traffic.reads - before == 3


def test_a_partition_with_many_keys_is_decided_by_many_tasks(scene: Scene) -> None:
    scene.write("N[a,b,c]", "T[a]")
    extents = scene.lake.metastore.partition(AT).extents
    assert (buckets_of(extents), buckets_of(extents, 2), buckets_of(()), buckets_of(extents, 3)) == (1, 2, 1, 2)
