"""Objects over every store: what is streamed in comes back by range, checked. Dead records in them: marked instead of
rewritten, shown to nobody, gone with the next rewriting; against a slow table of the log."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.lake.format.dead import dead_bytes, dead_of, dead_section, is_live, without_dead
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import (
    KeyList,
    any_common,
    halves_bytes,
    halves_of,
    joined,
    key_section,
    keys_in,
    keys_of,
    rest_bytes,
    union,
)
from headstone.lake.format.objects import (
    ObjectWriter,
    object_path,
    read_dead,
    read_extent,
    read_index,
    read_live,
    write_once,
    writing_object,
)
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.extent_work import marked
from headstone.lake.lake import create_lake
from headstone.lake.metastore import schema
from headstone.lake.transfer.reading import record_batches
from headstone.log.columns import decode
from headstone.log.layout import DELETE_HORIZON
from headstone.log.listing import RecordEntry, record_entries
from headstone.log.reading import Chunk, Payloads, chunk_of
from headstone.retention.keys import SUPERSEDED, HashKey, new_table
from headstone.storage.stores import MissingObject, Store
from testbed.s3 import BUCKET
from tests.lake.appending import extent
from tests.lake.damage import flip
from tests.lake.scene import AT, RETENTION_MS, Scene
from tests.lake.single import level_partition, table_batches
from tests.oracle.notation import parse_term


def spread(scene: Scene, extents: int = 10, each: int = 20) -> None:
    """Clean extents of different keys."""
    for number in range(extents):
        scene.write(*(f"N[k{number}x{i}]" for i in range(each)))
    scene.compact(now_ms=10)


def journal_bytes(scene: Scene) -> int:
    """What commits are told to the store with."""
    return sum(entry.size for entry in scene.lake.store.entries("journal"))


def test_few_keys_everywhere_read_and_write_almost_nothing(scene: Scene) -> None:
    """One new record for a key of every extent: all are concerned, none is read or written."""
    spread(scene, extents=30, each=100)
    before = scene.lake.metastore.partition(AT).extents
    scene.write(*(f"N[k{number}x{number}]" for number in range(30)))
    traffic = scene.lake.store.traffic
    read, written = traffic.bytes_read, traffic.bytes_written - journal_bytes(scene)
    done = scene.compact(now_ms=20)
    assert (done.extents_marked, done.extents_read, done.extents_rewritten) == (30, 0, 0)
    assert (done.records_before, done.records_after, done.records_dead) == (3030, 3000, 30)
    (end,) = scene.lake.store.entries("journal-end")
    assert (
        traffic.bytes_written - journal_bytes(scene) - end.size - written == done.bytes_written < done.bytes_before / 20
    )
    assert traffic.bytes_read - read == done.bytes_read < done.bytes_before / 2
    assert len(scene.held()) == len(scene.table()) == 3000
    after = scene.lake.metastore.partition(AT).extents
    assert [one.object_id for one in after[:30]] == [one.object_id for one in before]
    assert len({one.dead_object for one in after[:30]}) == 1
    assert scene.lake.metastore.check() == []


def test_many_dead_records_are_rewritten(scene: Scene) -> None:
    """An extent is marked until three of ten are dead, then it is written again without any of them."""
    spread(scene, extents=2)
    for one in range(7):
        scene.write(f"N[k0x{one}]")
        scene.compact(now_ms=20 + one)
        (first, *_) = scene.lake.metastore.partition(AT).extents
        assert (first.records, first.dead) == ((19 - one, one + 1) if one < 6 else (13, 0))
        assert len(scene.held()) == 40
    assert first.keys == 13
    scene.write("N[k1x0]")
    assert scene.compact(now_ms=50).records_dead == 1
    idle = scene.compact(now_ms=60)
    assert (idle.committed, idle.records_dead) == (False, 1)


def test_the_past_does_not_know_of_later_deaths(scene: Scene) -> None:
    scene.write(*(f"N[k{i}]" for i in range(10)), now_ms=100)
    scene.compact(now_ms=150)
    scene.write("N[k3]", now_ms=200)
    scene.compact(now_ms=250)
    scene.write("N[k4]", now_ms=300)
    scene.compact(now_ms=350)

    assert [scene.offsets(moment) for moment in (160, 240)] == [[*range(10)], [*range(11)]]
    assert scene.offsets(260) == [0, 1, 2, *range(4, 11)]
    assert scene.offsets(360) == [0, 1, 2, *range(5, 12)]
    assert collect(scene.lake, garbage(scene.lake, now_ms=1000, grace_ms=1)) != []
    assert scene.offsets(360) == [0, 1, 2, *range(5, 12)]
    assert (scene.lake.metastore.check(), garbage(scene.lake, now_ms=1000, grace_ms=1).rows) == ([], [])


def test_purging_and_merging_leave_the_dead_out(scene: Scene) -> None:
    spread(scene, extents=4)
    scene.write("N[k0x0]", "N[k1x1]", "T[k2x2]")
    scene.compact(now_ms=20)
    before, epoch = scene.held(), scene.lake.metastore.partition(AT).compaction_epoch
    size = scene.lake.metastore.partition(AT).extents[0].length
    purged = level_partition(scene.lake, AT, clock=lambda: 30, extent_bytes=1, purge=True)
    assert (purged.extents_purged, purged.extents_after) == (3, 5)
    partition = scene.lake.metastore.partition(AT)
    assert (sum(one.dead for one in partition.extents), partition.compaction_epoch, scene.held()) == (0, epoch, before)
    assert (partition.extents[0].length < size, partition.extents[0].keys, partition.extents[3].keys) == (True, 19, 20)
    scene.write("N[k3x3]")
    scene.compact(now_ms=40)
    before = scene.held()
    merged = level_partition(scene.lake, AT, clock=lambda: 50, extent_bytes=100_000)
    assert merged.extents_after == merged.extents_before  # not enough of them yet
    merged = level_partition(scene.lake, AT, clock=lambda: 50, extent_bytes=2 * size + 200)
    assert merged.extents_after < merged.extents_before
    assert (scene.held(), scene.lake.metastore.check()) == (before, [])
    assert sum(one.dead for one in scene.lake.metastore.partition(AT).extents) == 0
    scene.write("N[k3x4]")
    assert scene.compact(now_ms=60).extents_marked == 1
    assert len(scene.held()) == len(before)


def test_an_extent_without_a_list_of_keys_gets_one_when_it_is_read(scene: Scene) -> None:
    """As where a list did not fit: it is read once more, and not by every compaction from then on."""
    spread(scene, extents=3)
    with scene.lake.metastore.transaction() as connection:
        connection.execute(update(schema.extents).values(listed=-1))
    scene.write("N[new]")
    done = scene.compact(now_ms=20)
    assert (done.extents_read, done.extents_rewritten, done.records_after) == (3, 3, 61)
    assert [extent.keys for extent in scene.lake.metastore.partition(AT).extents] == [20, 20, 20, 1]
    scene.write("N[k0x1]")
    assert (scene.compact(now_ms=30).extents_read, len(scene.held())) == (0, 61)


def test_a_damaged_list_of_dead_records_is_noticed(scene: Scene) -> None:
    """Without it a deleted record would be there again."""
    spread(scene, extents=1)
    scene.write("T[k0x0]")
    scene.compact(now_ms=20)
    extent = scene.lake.metastore.partition(AT).extents[0]
    assert extent.dead_object is not None
    index = read_index(scene.lake.store, extent.dead_object, scene.lake.metastore.lake_id)
    (marked,) = [one.extent for one in index if one.extent.dead]
    assert marked == extent
    flip(scene.lake, extent.dead_object, extent.dead_position)
    for read in (read_dead, read_live):
        with pytest.raises(CorruptLog, match="dead records"):
            read(scene.lake.store, extent)
    with pytest.raises(CorruptLog, match="dead records"):
        scene.held()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_marked_every_reader_sees_the_same_log(tmp_path: Path, seed: int) -> None:
    """Random histories, compacted as they grow: with marks, all in one at the end, and by a dictionary."""
    chance = random.Random(seed)
    codec = chance.choice(["", "/zstd", "/gzip", "/lz4", "/snappy"])
    keys = chance.choice([20, 60, 200])
    scenes = [Scene(create_lake(f"sqlite:///{tmp_path / name}.db", f"memory://{tmp_path / name}", now_ms=0), tmp_path / name)
              for name in ("marked", "whole")]  # fmt: skip
    newest: dict[str, bool] = {}
    marked = purged = 0
    for step in range(12):
        terms = []
        for _ in range(chance.choice([2, 5, 60])):
            kind, names = chance.choice("NNNT"), chance.sample(range(keys), chance.randint(1, 3))
            terms.append(f"{kind}[{','.join(f'k{name}' for name in names)}]{codec}")
            newest.update({f"k{name}": kind == "N" for name in names})
        for scene in scenes:
            scene.write(*terms)
        done = scenes[0].compact(now_ms=step, commit_bytes=chance.choice([1, 1 << 20]))
        marked += done.extents_marked
        if chance.random() < 0.2:
            purged += level_partition(scenes[0].lake, AT, clock=lambda: 0, extent_bytes=600, purge=True).extents_purged
        assert scenes[0].lake.metastore.check() == []
        assert set(scenes[0].table()) == {name.encode() for name, there in newest.items() if there}
    assert marked > 0 or keys == 20
    scenes[1].compact(now_ms=12)
    assert scenes[0].held() == scenes[1].held()
    for scene in scenes:
        partition = scene.lake.metastore.partition(AT)
        arrow = [
            row for batch in record_batches(scene.lake.store, AT, partition.extents, 0) for row in batch.to_pylist()
        ]
        assert [(row["offset"], row["key"], row["value"]) for row in arrow] == scene.held()
        rows = [row for batch in table_batches(scene.lake, AT, partition) for row in batch.to_pylist()]
        assert {row["key"]: row["value"] for row in rows} == scene.table()
    for later in (1, 2):
        for scene in scenes:
            scene.compact(now_ms=12 + later * RETENTION_MS)
            assert len(scene.held()) == len(scene.table()) == sum(newest.values())
    for scene in scenes:
        scene.lake.close()


def chunk_records(chunk: Chunk) -> list[RecordEntry]:
    runs = decode(chunk, np.arange(chunk.batches.size), Payloads())
    return [entry for data, spans in runs for entry in record_entries(chunk.batches, data, spans)]


@pytest.mark.parametrize("codec", ["", "/zstd"])
def test_leaving_out_the_dead_keeps_the_rest_as_it_is(scene: Scene, codec: str) -> None:
    """Batches that lose nothing are the same bytes; horizons, offsets and timestamps stay."""
    horizons_ms = {"N[a,b,c]@500": None, "T[d]": 800, "N[e]": None, "T[f,g]@700": 900}
    for term, horizon_ms in horizons_ms.items():
        batch = scene.history.make_batch(parse_term(term + codec))
        base_ms = batch.base_timestamp if horizon_ms is None else horizon_ms
        scene.history.append_batch(replace(batch, base_timestamp=base_ms, horizon_ms=horizon_ms))
    scene.write()
    (extent,) = scene.lake.metastore.partition(AT).extents
    chunk = chunk_of("t", read_extent(scene.lake.store, extent))
    assert (chunk.batches["attributes"] & DELETE_HORIZON != 0).tolist() == [False, True, False, True]
    dead = np.array([1, 4, 6])
    after = chunk_of("t", without_dead(chunk, dead))
    kept = [entry for entry in chunk_records(chunk) if entry.offset not in dead.tolist()]
    assert chunk_records(after) == kept
    assert after.batches["base_offset"].tolist() == [0, 3, 5]
    assert (after.batches["attributes"] & DELETE_HORIZON != 0).tolist() == [False, True, True]
    assert after.batches["base_timestamp"][1:].tolist() == chunk.batches["base_timestamp"][[1, 3]].tolist()
    whole = without_dead(chunk, np.zeros(0, dtype=np.int64))
    assert whole == bytes(chunk.data)
    assert without_dead(chunk, np.arange(7)) == b""


def test_the_dead_are_left_out_of_every_run_of_payloads(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed batches are decoded some at a time; here one by one, each with other records dead."""
    scene.write("N[a,b]/zstd", "N[c]/zstd", "N[d,e,f]/zstd", "N[g,h]/zstd")
    (extent,) = scene.lake.metastore.partition(AT).extents
    chunk = chunk_of("t", read_extent(scene.lake.store, extent))
    expected = [entry for entry in chunk_records(chunk) if entry.offset not in (1, 2, 4, 7)]
    monkeypatch.setattr("headstone.log.reading.ARENA_BYTES", 1)
    after = without_dead(chunk, np.array([1, 2, 4, 7]))
    assert (chunk_records(chunk_of("t", after)), len(expected)) == (expected, 4)


def test_lists_are_what_they_say() -> None:
    chance = np.random.default_rng(3)
    for size in (0, 1, 5, 300):
        ours, theirs = (chance.integers(0, 400, size, dtype=np.uint64) for _ in range(2))
        assert union([ours, theirs]).tolist() == sorted(set(ours.tolist()) | set(theirs.tolist()))
        assert any_common(ours, union([theirs])) == bool(set(ours.tolist()) & set(theirs.tolist()))
        digests = chance.integers(0, 30, (size, 2), dtype=np.uint64)
        offsets = np.arange(size, dtype=np.int64) * 7_000_000 + (1 << 40)
        keys = joined([KeyList(digests, offsets, chance.random(size) < 0.5)])
        first, second = key_section(keys)
        assert (len(first), len(second)) == (halves_bytes(size), rest_bytes(size))
        halves = halves_of(first)
        assert halves is not None
        again = keys_of(halves, second)
        assert again is not None
        assert again.digests.tolist() == keys.digests.tolist()
        assert again.offsets.tolist() == keys.offsets.tolist()
        assert again.tombstones.tolist() == keys.tombstones.tolist()
        offsets = np.flatnonzero(chance.random(size) < 0.3)
        assert np.flatnonzero(~is_live(np.arange(size), offsets)).tolist() == offsets.tolist()


def listed(digests: list[list[int]], offsets: list[int]) -> KeyList:
    return KeyList(np.array(digests, dtype=np.uint64), np.array(offsets), np.zeros(len(offsets), dtype=np.bool_))


@pytest.mark.parametrize("span", [Span(0, 300), Span(1 << 40, (1 << 40) + 70_000), Span(7, 1 << 62)], ids=str)
def test_a_list_of_dead_records_is_as_long_as_their_number_tells(span: Span) -> None:
    """Anywhere in the extent, its first and last offset too."""
    chance = random.Random(3)
    for size in (1, 2, 5, 50, 299):
        some = {chance.randrange(span.start, span.end) for _ in range(size)}
        offsets = np.array(sorted(some | {span.start, span.end - 1}), dtype=np.int64)
        section = dead_section(offsets, span)
        assert len(section) == dead_bytes(offsets.size, span) <= 8 * offsets.size + 40
        again = dead_of(section, offsets.size, span)
        assert again is not None
        assert again.tolist() == offsets.tolist()
        assert dead_of(section, offsets.size + 1, span) is None
        assert dead_of(section[:-1] + bytes([section[-1] ^ 1]), offsets.size, span) is None


def test_a_list_of_dead_records_takes_little_more_than_a_byte_for_each() -> None:
    """1 % of a million records, keys anywhere: a seventh of what their offsets would take."""
    assert dead_bytes(10_000, Span(0, 1_000_000)) < 12_000
    assert dead_bytes(300_000, Span(0, 1_000_000)) < 170_000
    assert dead_bytes(0, Span(0, 1_000_000)) == 0


def test_both_halves_of_a_digest_decide() -> None:
    """Two keys that share the first 64 bits are two keys: nothing of the one is dead because of the other."""
    table, span = new_table(3), Span(50, 53)
    marked(table, listed([[7, 1], [7, 2], [9, 9]], [50, 51, 52]), span)
    older = listed([[9, 9], [7, 3], [8, 1], [7, 2]], [0, 1, 2, 3])
    assert older.offsets[marked(table, older, span) == SUPERSEDED].tolist() == [0, 3]


def test_offsets_too_far_apart_make_no_list(scene: Scene) -> None:
    far, near = (listed([[1, 1], [2, 2]], offsets) for offsets in ([0, 1 << 31], [5, 4 + (1 << 31)]))
    assert (far.fits, near.fits) == (False, True)
    scene.write("N[a]")
    (extent,) = scene.lake.metastore.partition(AT).extents
    chunk = chunk_of("t", read_extent(scene.lake.store, extent))
    one, other = keys_in([chunk], HashKey(1, 2)), keys_in([chunk], HashKey(1, 3))
    assert one.digests.tolist() != other.digests.tolist()


LAKE = str(uuid.UUID(int=1))
PART = 5 << 20
"""The smallest part that S3 takes."""


def written(store: Store, contents: list[bytes], *, part_bytes: int = PART) -> list[Extent]:
    with writing_object(store, str(uuid.uuid4()), LAKE, part_bytes=part_bytes) as writer:
        return [
            writer.add("orders", n, Span(n, n + 7), [content[:5], content[5:]], records=3, max_timestamp_ms=9)
            for n, content in enumerate(contents)
        ]


def test_ranges_come_back_as_they_were(object_store: Store) -> None:
    """More than one part: a multipart upload."""
    contents = [random.Random(n).randbytes(4_000_000) for n in range(4)] + [b"small"]
    extents = written(object_store, contents)
    assert [read_extent(object_store, extent) for extent in extents] == contents
    assert [extent.length for extent in extents] == [len(content) for content in contents]


def test_an_object_explains_itself(object_store: Store) -> None:
    extents = written(object_store, [b"first range", b"second"])
    found = read_index(object_store, extents[0].object_id, LAKE)
    assert [(one.topic, one.partition, one.extent) for one in found] == [
        ("orders", 0, extents[0]), ("orders", 1, extents[1])
    ]  # fmt: skip


def test_a_span_may_hold_nothing(object_store: Store) -> None:
    with writing_object(object_store, str(uuid.uuid4()), LAKE) as writer:
        extent = writer.add("orders", 0, Span(5, 9), [], records=0, max_timestamp_ms=-1)
    assert (extent.length, extent.checksum, read_extent(object_store, extent)) == (0, 0, b"")
    assert [one.extent for one in read_index(object_store, extent.object_id, LAKE)] == [extent]


@pytest.mark.parametrize("size", [10, 3 * PART])
def test_an_upload_that_fails_half_way_leaves_no_object(object_store: Store, size: int) -> None:
    def broken() -> ObjectWriter:
        with writing_object(object_store, "half", LAKE, part_bytes=PART) as writer:
            writer.add("orders", 0, Span(0, 1), [b"x" * size], records=1, max_timestamp_ms=0)
            raise RuntimeError("the worker died")

    with pytest.raises(RuntimeError, match="the worker died"):
        broken()
    with pytest.raises(MissingObject):
        object_store.size(object_path("half"))
    assert object_store.list("objects") == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"what was wrItten and more", "position 8, offset 0: wrong CRC-32C"),
        (b"what was", "truncated: 16 bytes, 24 exp"),
    ],
)
def test_changed_bytes_and_lost_ones_are_found(object_store: Store, content: bytes, problem: str) -> None:
    (extent,) = written(object_store, [b"what was written"])
    object_store.put(object_path(extent.object_id), b"HEADST\x00\x01" + content)
    with pytest.raises(CorruptLog, match=problem):
        read_extent(object_store, extent)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 100, b"HEADST\x00\x02" * 10])
def test_a_strange_object_is_refused(object_store: Store, content: bytes) -> None:
    object_store.put(object_path("strange"), content)
    with pytest.raises((CorruptLog, Unfinished)):
        read_index(object_store, "strange", LAKE)


def test_a_missing_object_is_named(object_store: Store) -> None:
    with pytest.raises(MissingObject, match="objects/go/gone: no such object"):
        read_extent(object_store, extent(0, 1, "gone"))


def test_deleting_twice_is_no_error(object_store: Store) -> None:
    (extent,) = written(object_store, [b"x"])
    path = object_path(extent.object_id)
    assert object_store.list() == [path]
    object_store.delete([path])
    object_store.delete([path])
    assert object_store.list() == []


def test_wrong_credentials_and_buckets_are_named(moto_settings: Mapping[str, str]) -> None:
    with pytest.raises(Unfinished, match="nothing-here"):
        Store.open("s3://nothing-here/x", moto_settings).size("y")
    nobody = {**moto_settings, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(Unfinished, match=BUCKET):
        Store.open(f"s3://{BUCKET}/x", nobody).size("y")


@pytest.mark.parametrize("url", ["somewhere", "ftp://host/x"])
def test_what_is_no_object_storage_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="s3://BUCKET/PREFIX"):
        Store.open(url)


def test_stores_of_one_memory_name_share_their_objects(tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    (extent,) = written(Store.open(f"memory://{name}"), [b"shared"])
    assert read_extent(Store.open(f"memory://{name}"), extent) == b"shared"
    (extent,) = written(Store.open(f"file://{tmp_path}"), [b"on disk"])
    assert (tmp_path / object_path(extent.object_id)).read_bytes()[8:15] == b"on disk"


def test_what_a_killed_upload_has_left_on_disk_goes_with_its_object(tmp_path: Path) -> None:
    program = (
        "import os, sys; from headstone.storage.stores import Store\n"
        "with Store.open(sys.argv[1]).writing('objects/aa/aabb', part_bytes=1 << 20) as sink:\n"
        "    [sink.write(bytes(1 << 20)) for _ in range(8)]\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    url = f"file://{tmp_path}"
    assert subprocess.run([sys.executable, "-c", program, url], check=False).returncode == -9
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["aabb#1"]
    store = Store.open(url)
    assert store.list() == []
    store.delete(["objects/aa/aabb"])
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def filling(content: bytes, *, records: int = 3) -> Callable[[ObjectWriter], None]:
    def fill(writer: ObjectWriter) -> None:
        writer.add("orders", 0, Span(0, 7), [content], records=records, max_timestamp_ms=9)

    return fill


def test_of_two_tasks_that_write_the_same_object_the_first_counts(object_store: Store) -> None:
    """A library of another version packs the same records into other bytes: whoever is late must not replace them."""
    object_id = str(uuid.uuid4())
    first = write_once(object_store, object_id, LAKE, filling(b"packed"))
    assert write_once(object_store, object_id, LAKE, filling(b"packed")) == first
    late = write_once(object_store, object_id, LAKE, filling(b"packed otherwise"))
    assert (late.extents, late.size) == (first.extents, first.size)
    assert read_extent(object_store, late.extents[0]) == b"packed"
    with pytest.raises(Unfinished, match="does not contain what this task wrote"):
        write_once(object_store, object_id, LAKE, filling(b"packed", records=4))


def test_a_store_travels_as_its_address(object_store: Store) -> None:
    """Tasks in other processes open it there; what is in memory is this process's."""
    object_store.put("a", b"content")
    again = pickle.loads(pickle.dumps(object_store))
    assert (again.read("a", 0, 7), again.url, again.access) == (b"content", object_store.url, object_store.access)
