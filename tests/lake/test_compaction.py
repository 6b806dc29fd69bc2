"""Compaction of the lake: the table stays, what is superseded goes, tombstones wait, losers leave nothing. What a job reads and
how it commits, what a bounded map costs, what readers hold, and the past."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.lake.format.dead import is_live
from headstone.lake.format.objects import read_dead, read_halves, read_keys
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.job import JobControl
from headstone.lake.jobs.job_plan import map_keys_max
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.scheduling import dirty_spans
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.reading import records, table
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from tests.lake.damage import flip
from tests.lake.scene import ANYWHERE, AT, RETENTION_MS, Scene
from tests.lake.single import level_partition
from tests.oracle.notation import parse_term

CAPTURED = Path(__file__).resolve().parent.parent / "captured"


@ANYWHERE
def test_superseded_records_go_and_the_table_stays(scene_anywhere: Scene) -> None:
    scene_anywhere.write("N[a]", "N[b]")
    scene_anywhere.write("N[a]", "N[c]")
    before = scene_anywhere.table()
    done = scene_anywhere.compact(now_ms=10)
    assert scene_anywhere.keys() == [(1, b"b"), (2, b"a"), (3, b"c")]
    assert scene_anywhere.table() == before
    assert (done.committed, done.epoch, done.extents, done.extents_rewritten) == (True, 1, 2, 1)
    partition = scene_anywhere.lake.metastore.partition(AT)
    assert (partition.cleaned, dirty_spans(partition)) == ((Span(0, partition.next_offset),), ())
    assert scene_anywhere.lake.metastore.check() == []


def test_a_clean_partition_is_left_alone(scene: Scene) -> None:
    scene.write("N[a]", "N[a]")
    scene.compact(now_ms=10)
    before = scene.lake.metastore.partition(AT)
    done = scene.compact(now_ms=20)
    assert (done.committed, done.bytes_read, scene.lake.metastore.partition(AT)) == (False, 0, before)


@ANYWHERE
def test_a_tombstone_goes_after_its_time_and_not_before(scene_anywhere: Scene) -> None:
    """A quiet log: expired tombstones alone are reason enough (Redpanda's scheduler would wait for dirty data)."""
    scene_anywhere.write("N[a]", "N[b]")
    scene_anywhere.write("T[a]")
    scene_anywhere.compact(now_ms=5000)
    assert [(offset, value) for offset, key, value in scene_anywhere.held() if key == b"a"] == [(2, None)]
    assert [known.cleaned_at_ms for known in scene_anywhere.lake.metastore.partition(AT).tombstones] == [5000]
    assert not scene_anywhere.compact(now_ms=5000 + RETENTION_MS - 1).committed
    assert scene_anywhere.compact(now_ms=5000 + RETENTION_MS).committed
    assert [key for _, key, _ in scene_anywhere.held()] == [b"b"]
    partition = scene_anywhere.lake.metastore.partition(AT)
    assert (partition.tombstones, scene_anywhere.lake.metastore.check()) == ((), [])
    assert not scene_anywhere.compact(now_ms=10**9).committed


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
    assert scene.keys() == [(3, b"b")]
    held = scene.lake.metastore.partition(AT).tombstones
    assert [(tuple(known.span), known.cleaned_at_ms) for known in held] == [((2, 4), 10)]
    scene.compact(now_ms=10 + RETENTION_MS)
    assert scene.held() == []


def test_a_reader_that_is_halfway_gets_every_change_it_needs(scene: Scene) -> None:
    """It has read to offset 2, then the log is compacted; within the retention the tombstone is still there for it."""
    scene.write("N[a]", "N[b]")
    seen = {record.key: record.value for record in records(scene.lake, AT)}
    scene.write("T[a]", "N[b]")
    scene.compact(now_ms=10)
    for record in records(scene.lake, AT, offset_start=2):
        seen[record.key] = record.value
    assert {key: value for key, value in seen.items() if value is not None} == scene.table()


def test_of_two_compactions_the_slower_one_changes_nothing(scene: Scene) -> None:
    scene.write("N[a]", "N[a]")
    scene.write("N[b]", "N[b]")

    def somebody_is_faster() -> None:
        scene.compact(now_ms=10)

    with pytest.raises(CommitRefused, match="another worker has compacted"):
        scene.compact(now_ms=11, control=JobControl(before_commit=somebody_is_faster))
    assert scene.keys() == [(1, b"a"), (3, b"b")]
    assert scene.lake.metastore.partition(AT).compaction_epoch == 1
    assert scene.lake.metastore.check() == []


def test_what_is_appended_during_a_compaction_is_kept(scene: Scene) -> None:
    scene.write("N[a]", "N[a]")
    scene.compact(now_ms=10, control=JobControl(before_commit=lambda: scene.write("N[a]", "N[z]")))
    assert scene.keys() == [(1, b"a"), (2, b"a"), (3, b"z")]
    partition = scene.lake.metastore.partition(AT)
    assert dirty_spans(partition) == (Span(2, partition.next_offset),)
    scene.compact(now_ms=20)
    assert scene.keys() == [(2, b"a"), (3, b"z")]
    assert scene.lake.metastore.check() == []


@ANYWHERE
@pytest.mark.parametrize("seed", range(3))
def test_random_histories_keep_their_table(scene_anywhere: Scene, seed: int) -> None:
    """Writes, compactions, time: the table is always that of everything written, and the log shrinks to it in the end."""
    chance = random.Random(seed)
    now, model = 100, {}
    for _ in range(12):
        keys = [chance.choice("abcdefgh") for _ in range(chance.randint(1, 5))]
        terms = [f"T[{key}]" if chance.random() < 0.3 else f"N[{key}]" for key in keys]
        scene_anywhere.write(*terms, now_ms=now)
        for key, term in zip(keys, terms, strict=True):
            model[key.encode()] = term[0] == "N"
        if chance.random() < 0.6:
            scene_anywhere.compact(now_ms=now)
        now += chance.choice((1, RETENTION_MS // 2, 2 * RETENTION_MS))
        assert set(scene_anywhere.table()) == {key for key, live in model.items() if live}
        assert scene_anywhere.lake.metastore.check() == []
    scene_anywhere.compact(now_ms=now)
    scene_anywhere.compact(now_ms=now + RETENTION_MS)
    assert len(scene_anywhere.held()) == len(scene_anywhere.table()) == sum(model.values())


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


@ANYWHERE
def test_captured_logs_of_real_brokers_keep_their_tables(lake_anywhere: Lake) -> None:
    logs, settings = find_partitions([CAPTURED / "kafka-4.3.1"]), LogIngestSettings(extent_bytes=2000)
    ingest(lake_anywhere, logs, clock=lambda: 1, settings=settings)
    for at in lake_anywhere.metastore.partitions():
        before = {key: (record.offset, record.value) for key, record in table(lake_anywhere, at).items()}
        now = 1_900_000_000_000
        compact_partition(lake_anywhere, at, InProcess(1), now_ms=now)
        compact_partition(lake_anywhere, at, InProcess(1), now_ms=now + 2 * 86_400_000)
        assert {key: (record.offset, record.value) for key, record in table(lake_anywhere, at).items()} == before
        left = list(records(lake_anywhere, at))
        assert len(left) == len({record.key for record in left}) == len(before)
    assert lake_anywhere.metastore.check() == []


EIGHT_KEYS = 40 * 8
"""Bytes of a map that takes eight keys."""


def test_every_record_is_in_the_list_of_its_extent(scene: Scene) -> None:
    """Whatever codec it is in, and after it was rewritten, in the order of offsets; none twice, tombstones told."""
    scene.write("N[a,b]/zstd", "N[c]/gzip", "N[d,~e]/lz4", "N[f]/snappy", "N[]", "N[a]")
    scene.compact(now_ms=10)
    scene.write("N[a]", "T[b]")
    scene.compact(now_ms=20)
    held, digests = scene.held(), {}
    for extent in scene.lake.metastore.partition(AT).extents:
        found = read_keys(scene.lake.store, extent)
        live = is_live(found.offsets, read_dead(scene.lake.store, extent))
        mine = sorted(offset for offset, _, _ in held if extent.span.start <= offset < extent.span.end)
        assert found.offsets[live].tolist() == mine
        gone = {offset for offset, _, value in held if value is None}
        assert found.tombstones[live].tolist() == [offset in gone for offset in mine]
        assert (extent.keys, extent.records) == (found.offsets.size, len(mine))
        assert read_halves(scene.lake.store, extent).tolist() == found.digests[:, 0].tolist()
        digests.update(dict(zip(found.offsets.tolist(), map(tuple, found.digests.tolist()), strict=True)))
    assert len({digests[offset] for offset, _, _ in held}) == len(held)


@pytest.mark.parametrize("byte", [3, 21, 30, 45])
def test_a_damaged_list_of_keys_is_noticed(scene: Scene, byte: int) -> None:
    """A key that went missing from it would let a superseded record outlive its tombstone."""
    scene.write("N[a]", "N[b]")
    (extent,) = scene.lake.metastore.partition(AT).extents
    flip(scene.lake, extent.object_id, extent.position + extent.length + byte)
    with pytest.raises(CorruptLog, match="list of keys"):
        read_keys(scene.lake.store, extent)


def test_a_map_of_128_mib_takes_as_many_keys_as_redpandas() -> None:
    assert map_keys_max(128 << 20) == 3_187_671


@pytest.mark.parametrize("seed", range(8))
def test_a_bounded_map_gets_there_in_passes(tmp_path: Path, seed: int) -> None:
    """Newest dirty range first, and in the end the same log as in one pass; the table is right after every pass."""
    scenes = []
    for name in ("one", "many"):
        lake = create_lake(f"sqlite:///{tmp_path / name}.db", f"memory://{tmp_path / name}", now_ms=0)
        scenes.append(Scene(lake, tmp_path / name))
        chance = random.Random(seed)
        for _ in range(6):
            terms = [f"{chance.choice('NNNT')}[k{chance.randrange(40)}]" for _ in range(chance.randint(1, 25))]
            scenes[-1].write(*terms)
    one, many = scenes
    one.compact(now_ms=10)
    expected, passes = one.table(), 0
    while True:
        done = many.compact(now_ms=10, map_bytes=EIGHT_KEYS)
        if not done.committed:
            break
        passes += 1
        assert many.table() == expected
        assert many.lake.metastore.check() == []
        assert passes < 100
    assert passes >= 3
    assert many.held() == one.held()
    for scene in scenes:
        scene.compact(now_ms=10 + RETENTION_MS)
        assert len(scene.held()) == len(expected)
        scene.lake.close()


def test_a_long_job_commits_in_parts_oldest_first(scene: Scene) -> None:
    """After each part the log is right, the epoch goes up by one, and the claim comes with the last."""
    for _ in range(4):
        scene.write("N[a]", "N[b]", "T[c]")
    expected, seen = scene.table(), []

    def look() -> None:
        partition = scene.lake.metastore.partition(AT)
        seen.append((partition.compaction_epoch, partition.cleaned, [offset for offset, _, _ in scene.held()]))
        assert scene.table() == expected

    done = scene.compact(now_ms=10, commit_bytes=1, control=JobControl(before_commit=look))
    assert (done.commits, done.epoch, done.extents_rewritten) == (3, 3, 3)
    assert [(epoch, cleaned) for epoch, cleaned, _ in seen] == [(0, ()), (1, ()), (2, ())]
    assert [offsets[0] for _, _, offsets in seen] == [0, 3, 6]
    assert scene.lake.metastore.partition(AT).cleaned == (Span(0, 12),)


def test_a_map_of_one_key_gets_there_and_a_smaller_one_is_refused(scene: Scene) -> None:
    """It would say that there is nothing to do, for ever, of a log that is all dirt."""
    scene.write("N[a,b,c]", "N[b]")
    with pytest.raises(UsageError, match="a map of 39 bytes cannot hold a key; use 40 bytes or more"):
        scene.compact(now_ms=10, map_bytes=39)
    passes = 0
    while scene.compact(now_ms=10, map_bytes=40).committed:
        passes += 1
    assert (passes, [key for _, key, _ in scene.held()]) == (4, [b"a", b"c", b"b"])


def test_a_job_that_dies_between_its_parts_has_claimed_nothing(scene: Scene) -> None:
    for _ in range(4):
        scene.write("N[a]", "T[b]")
    parts = iter(range(2))

    def die() -> None:
        if next(parts, None) is None:
            raise Unfinished("killed")

    with pytest.raises(Unfinished):
        scene.compact(now_ms=10, commit_bytes=1, control=JobControl(before_commit=die))
    partition = scene.lake.metastore.partition(AT)
    assert (partition.compaction_epoch, partition.cleaned, partition.tombstones) == (2, (), ())
    assert scene.lake.metastore.check() == []
    # However long ago that was: the lake's own clock starts with the claim.
    scene.compact(now_ms=10 + 5 * RETENTION_MS)
    assert (7, b"b", None) in scene.held()
    scene.compact(now_ms=10 + 6 * RETENTION_MS)
    assert [key for _, key, _ in scene.held()] == [b"a"]


def test_holds_keep_tombstones_for_readers_until_they_expire(scene: Scene) -> None:
    holds = Holds(scene.lake.metastore)
    scene.write("N[a]", "T[a]")
    scene.compact(now_ms=10)
    holds.hold("reader", AT, 0, expires_ms=5000)
    assert [(hold.reader, hold.partition, hold.held_from) for hold in holds.all(now_ms=20)] == [("reader", AT, 0)]
    assert not scene.compact(now_ms=4999).committed
    holds.hold("reader", AT, 2, expires_ms=8000)
    assert scene.compact(now_ms=4999).committed
    assert scene.held() == []
    scene.write("N[b]", "T[b]")
    scene.compact(now_ms=6000)
    assert not scene.compact(now_ms=7999).committed
    assert scene.compact(now_ms=8000).committed
    assert scene.held() == []
    assert (holds.release("reader"), holds.release("reader"), holds.all(now_ms=20)) == (1, 0, [])


def test_a_hold_that_is_taken_while_a_job_runs_is_kept(scene: Scene) -> None:
    """Acknowledged means kept: the job was planned without it, and its commit is refused."""
    scene.write("N[a]", "T[a]", "N[b]")
    scene.compact(now_ms=10)
    before, held = scene.lake.metastore.partition(AT), scene.held()
    holds = Holds(scene.lake.metastore)

    def taken() -> None:
        for reader, offset in (("ahead", 9), ("reader", 0)):
            holds.hold(reader, AT, offset, expires_ms=10 + 2 * RETENTION_MS)

    with pytest.raises(CommitRefused, match="reader holds tombstones from offset 0 on"):
        scene.compact(now_ms=10 + RETENTION_MS, control=JobControl(before_commit=taken))
    assert (scene.lake.metastore.partition(AT), scene.held()) == (before, held)
    assert not scene.compact(now_ms=10 + RETENTION_MS).committed
    scene.compact(now_ms=10 + 2 * RETENTION_MS)
    assert [key for _, key, _ in scene.held()] == [b"b"]


def test_a_hold_stops_a_job_that_commits_in_parts(scene: Scene) -> None:
    """What the parts before have taken is gone; the hold came after that. No part removes a tombstone after it."""
    for name in "abc":
        scene.write(f"N[{name}]", f"T[{name}]")
    scene.compact(now_ms=10)
    parts = iter(("first", "second"))
    holds = Holds(scene.lake.metastore)

    def hold_before_the_second() -> None:
        if next(parts, "") == "second":
            holds.hold("reader", AT, 0, expires_ms=10**6)

    with pytest.raises(CommitRefused, match="reader holds"):
        scene.compact(
            now_ms=10 + RETENTION_MS, commit_bytes=1, control=JobControl(before_commit=hold_before_the_second)
        )
    assert scene.keys() == [(3, b"b"), (5, b"c")]
    assert scene.lake.metastore.check() == []


@pytest.mark.parametrize("taken", [3, 4, 10**6])
def test_a_hold_above_what_is_due_disturbs_no_job(scene: Scene, taken: int) -> None:
    scene.write("N[a]", "T[a]", "N[b]")
    scene.compact(now_ms=10)
    holds = Holds(scene.lake.metastore)
    scene.compact(
        now_ms=10 + RETENTION_MS, control=JobControl(before_commit=lambda: holds.hold("reader", AT, taken, expires_ms=10**6))
    )  # fmt: skip
    assert [key for _, key, _ in scene.held()] == [b"b"]


def test_of_several_holds_the_one_farthest_behind_counts(scene: Scene) -> None:
    for name in "abc":
        scene.write(f"N[{name}]", f"T[{name}]")
    scene.compact(now_ms=10)
    holds = Holds(scene.lake.metastore)
    for reader, offset in (("ahead", 4), ("behind", 2), ("beyond", 9)):
        holds.hold(reader, AT, offset, expires_ms=10**6)
    assert holds.lowest(now_ms=20) == {AT: 2}
    scene.compact(now_ms=10 + RETENTION_MS)
    assert scene.keys() == [(3, b"b"), (5, b"c")]


def test_tombstones_have_their_time_from_the_commit_on(scene: Scene) -> None:
    """A job that takes longer than delete.retention.ms: readers met the clean log when it was committed."""
    scene.write("N[a]", "T[a]")
    now_ms = 10

    def later() -> None:
        nonlocal now_ms
        now_ms += 5 * RETENTION_MS

    scene.compact(now_ms=10, control=JobControl(clock=lambda: now_ms, before_commit=later))
    assert [known.cleaned_at_ms for known in scene.lake.metastore.partition(AT).tombstones] == [now_ms]
    assert now_ms == 10 + 5 * RETENTION_MS
    assert not scene.compact(now_ms=now_ms + RETENTION_MS - 1).committed
    assert scene.compact(now_ms=now_ms + RETENTION_MS).committed


def test_young_data_waits_and_changes_nothing(scene: Scene) -> None:
    """min.compaction.lag.ms: no empty commit every time somebody looks."""
    scene.lake.metastore.configure("t", {"min.compaction.lag.ms": 1000})
    scene.write("N[a]@5000", "N[a]@5000")
    before = scene.lake.metastore.partition(AT)
    assert not scene.compact(now_ms=5500).committed
    assert scene.lake.metastore.partition(AT) == before
    assert scene.compact(now_ms=6000).committed


def test_a_leveling_that_a_compaction_overtook_changes_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        scene.write(f"N[k{number % 2}]")
    real = type(scene.lake.metastore).register

    def overtaken(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(type(scene.lake.metastore), "register", real)
        scene.compact(now_ms=15)
        return real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(scene.lake.metastore), "register", overtaken)
    with pytest.raises(CommitRefused):
        level_partition(scene.lake, AT, clock=lambda: 20, extent_bytes=400)
    assert (len(scene.held()), scene.lake.metastore.check()) == (2, [])


def test_the_past_can_be_read_until_it_is_collected(scene: Scene) -> None:
    scene.write("N[a]", "N[b]", now_ms=100)
    scene.write("N[a]", "T[b]", now_ms=200)
    scene.compact(now_ms=300)
    scene.compact(now_ms=300 + RETENTION_MS)

    with pytest.raises(UsageError, match=r"has no topic t before .* \(100\)"):
        scene.offsets(99)
    moments = (100, 199, 200, 299, 300, 300 + RETENTION_MS)
    assert [scene.offsets(moment) for moment in moments] == [[0, 1], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [2, 3], [2]]
    assert set(table(scene.lake, AT, as_of_ms=150)) == {b"a", b"b"}
    found = garbage(scene.lake, now_ms=300 + RETENTION_MS, grace_ms=RETENTION_MS - 10)
    assert len(found.rows) == 1
    collect(scene.lake, found)
    with pytest.raises(UsageError, match="gc has removed what was replaced"):
        scene.offsets(299)
    assert [scene.offsets(moment) for moment in moments[4:]] == [[2, 3], [2]]
    assert scene.lake.metastore.check() == []


def test_clocks_that_go_back_do_not_tear_the_past(scene: Scene) -> None:
    """Workers on other machines: what is committed later counts as later."""
    scene.write("N[a]", now_ms=1000)
    scene.write("N[a]", now_ms=500)
    scene.compact(now_ms=400)
    for moment in (399, 400, 500, 999):
        with pytest.raises(UsageError, match=r"before .* \(1000\)"):
            list(records(scene.lake, AT, as_of_ms=moment))
    assert [record.offset for record in records(scene.lake, AT, as_of_ms=1000)] == [1]


def test_the_past_begins_where_the_log_did(any_scene: Scene) -> None:
    """The records below the start lie in the same extent as those that are served."""
    scene = any_scene
    scene.write("N[a]", "N[b]", "N[c]", now_ms=1000)
    scene.lake.metastore.start_at(AT, 2, now_ms=2000)

    assert [scene.offsets(moment_ms) for moment_ms in (1999, 2000, 4000)] == [[0, 1, 2], [2], [2]]
    assert set(table(scene.lake, AT, as_of_ms=4000)) == {b"c"}
    scene.write("N[d]", "N[e]", now_ms=5000)
    scene.lake.metastore.start_at(AT, 4, now_ms=6000)
    scene.write("N[f]", now_ms=7000)
    shown = {1999: [0, 1, 2], 2000: [2], 4999: [2], 5000: [2, 3, 4], 5999: [2, 3, 4], 6000: [4], 7000: [4, 5]}
    assert {moment_ms: scene.offsets(moment_ms) for moment_ms in shown} == shown
    collect(scene.lake, garbage(scene.lake, now_ms=8000, grace_ms=10))
    with pytest.raises(UsageError, match="gc has removed what was replaced"):
        scene.offsets(5999)
    assert [scene.offsets(moment_ms) for moment_ms in (6000, 7000)] == [[4], [4, 5]]
    with scene.lake.metastore.transaction() as connection:
        assert connection.execute(select(schema.past_starts)).all() == []


def test_the_past_ends_where_the_log_did_though_nothing_was_left_of_it(any_scene: Scene) -> None:
    """Whoever made a log of it anew would give its offsets to other records."""
    scene = any_scene
    scene.write("N[a]", "N[b]", now_ms=1000)
    scene.lake.metastore.start_at(AT, 2, now_ms=2000)
    assert scene.lake.metastore.partition(AT).extents == ()

    def bounds(moment_ms: int) -> tuple[int, int]:
        state = scene.lake.metastore.partition_as_of(AT, moment_ms)
        return state.start_offset, state.next_offset

    assert [bounds(moment_ms) for moment_ms in (1999, 2000, 4000)] == [(0, 2), (2, 2), (2, 2)]
    scene.write("N[c]", now_ms=5000)
    assert [bounds(moment_ms) for moment_ms in (1999, 2000, 4999, 5000)] == [(0, 2), (2, 2), (2, 2), (2, 3)]


def test_a_tombstone_that_is_held_stays_though_its_extent_is_rewritten(scene: Scene) -> None:
    """Its horizon is over, and newer data is indexed above it: what decides is what is due, and nothing is."""
    scene.write("N[a]", "T[a]", "N[b]")
    scene.compact(now_ms=10)
    scene.write("N[b]")
    done = scene.compact(now_ms=10 + RETENTION_MS, held_from=0, dead_share_max=0.0)
    assert (done.extents_rewritten, scene.keys()) == (1, [(1, b"a"), (3, b"b")])


def test_of_two_ranges_only_the_one_that_is_due_loses_its_tombstones(scene: Scene) -> None:
    """The second is tracked later; the pass goes over both, because newer data concerns both."""
    scene.write("N[a]", "T[a]", "N[x]")
    scene.compact(now_ms=10)
    scene.write("N[b]", "T[b]", "N[y]")
    scene.compact(now_ms=500)
    scene.write("N[x]", "N[y]")
    scene.compact(now_ms=10 + RETENTION_MS, dead_share_max=0.0)
    assert scene.keys() == [(4, b"b"), (6, b"x"), (7, b"y")]


def test_a_horizon_of_kafkas_is_not_the_lakes(scene: Scene) -> None:
    """It came with a batch and was over long ago; readers of the lake have their own time, from when it was cleaned here."""
    scene.history.append("N[a]")
    batch = scene.history.make_batch(parse_term("T[a]"))
    scene.history.append_batch(replace(batch, base_timestamp=5, horizon_ms=5))
    scene.write("N[b]")
    scene.compact(now_ms=10**6)
    assert scene.keys() == [(1, b"a"), (2, b"b")]
    assert not scene.compact(now_ms=10**6 + RETENTION_MS - 1).committed
    scene.compact(now_ms=10**6 + RETENTION_MS)
    assert scene.keys() == [(2, b"b")]
