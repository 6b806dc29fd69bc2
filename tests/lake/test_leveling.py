"""Leveling: what it keeps of the extents that it makes one, and many partitions in one job."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
from sqlalchemy import event

from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import read_extent, writing_object
from headstone.lake.format.spans import Span
from headstone.lake.jobs import worker as worker_room
from headstone.lake.jobs.compaction import compact_partitions
from headstone.lake.jobs.job import RENEW_MS, Stopped
from headstone.lake.jobs.leased_jobs import level_leased
from headstone.lake.jobs.leveling import SMALL, level_partitions, runs_to_merge, with_small_extents
from headstone.lake.jobs.rewriting import ExtentRewrite, rewrite
from headstone.lake.jobs.turns import Turn
from headstone.lake.jobs.worker import HARD, RUN, SOFT, Worker
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Append, Partition
from headstone.lake.metastore.leases import FAILED, LEVELED, STOPPED, Leases
from headstone.lake.metastore.object_states import REGISTERED
from headstone.lake.metastore.schema import SMALL_BYTES
from headstone.lake.transfer.ingest import EXTENT_BYTES
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Meter
from tests.lake.appending import extent, put, put_all
from tests.lake.damage import flip
from tests.lake.oracle import eligibility_of
from tests.lake.scene import AT, RETENTION_MS, Scene
from tests.lake.single import level_partition, worker


def test_leveling_does_not_make_data_younger(scene: Scene) -> None:
    """max.compaction.lag.ms counts from the oldest: the data of a small extent may not wait for that of its neighbour. Nor does
    a compaction, which may be killed between two of its commits: what it wrote is still dirty then."""
    scene.write("N[a]@1000", "N[b]@1200")
    scene.write("N[c]@5000")
    before = [extent.oldest_timestamp_ms for extent in scene.lake.metastore.partition(AT).extents]
    level_partition(scene.lake, AT, clock=lambda: 10, extent_bytes=300)
    partition = scene.lake.metastore.partition(AT)
    assert (before, len(partition.extents), partition.extents[0].oldest_timestamp_ms) == ([1000, 5000], 1, 1000)
    assert eligibility_of(partition, {"max.compaction.lag.ms": 500}, now_ms=1400).deadline_ms == 1500
    scene.write("N[a]@1300")
    scene.compact(now_ms=20)
    assert [one.oldest_timestamp_ms for one in scene.lake.metastore.partition(AT).extents] == [1000, 1300]


def test_an_extent_knows_its_newest_and_its_oldest_timestamp(scene: Scene) -> None:
    """Whichever segment they are in; of a batch its newest counts, and none that has no timestamp."""
    scene.write("N[a]@500", "|", "N[b]@900", "N[c]@200", "|", "N[d]@-1", "N[e]@600")
    (extent,) = scene.lake.metastore.partition(AT).extents
    assert (extent.records, extent.max_timestamp_ms, extent.oldest_timestamp_ms) == (5, 900, 200)


def test_a_worker_merges_what_compactions_left_small_when_nothing_is_due(scene: Scene) -> None:
    """And looks once: a log to which nothing has come since is not read again."""
    scene.write("N[a]", "N[b]", "N[c]", "N[d]")
    scene.write("N[a]", "N[b]", "N[c]", "N[e]")
    scene.compact(now_ms=10)
    scene.write("N[f]")
    metastore = scene.lake.metastore
    before = [extent.span for extent in metastore.partition(AT).extents]
    assert worker(scene.lake, now_ms=20).work() == 0
    after = [extent.span for extent in metastore.partition(AT).extents]
    assert (before, after) == ([Span(0, 4), Span(4, 8), Span(8, 9)], [Span(0, 8), Span(8, 9)])
    assert metastore.unleveled(limit=9) == {}
    assert [row.outcome for row in Leases(metastore).history()] == [LEVELED]


class Counting(InProcess):
    """Knows of how many tasks its jobs were."""

    def __init__(self) -> None:
        super().__init__(1)
        self.jobs: list[int] = []

    def as_they_end(self, body: Any, tasks: Sequence[Any], *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
        if body is rewrite:
            self.jobs.append(len(tasks))
        return super().as_they_end(body, tasks, *given, **options)


def put_keys(lake: Lake, names: Sequence[TopicPartition], keys: str) -> None:
    """A record for each key to the end of each of them: one object, one commit."""
    put_all(lake, {name: [(key.encode(), b"1") for key in keys] for name in names})


def to_level(lake: Lake, count: int) -> list[TopicPartition]:
    """So many partitions in which a compaction has left two small neighbours."""
    lake.metastore.create_topic("many", count, {"min.cleanable.dirty.ratio": "1"})
    names = [TopicPartition("many", number) for number in range(count)]
    put_keys(lake, names, "abcd")
    put_keys(lake, names, "abce")
    compact_partitions(lake, names, InProcess(1), now_ms=10)
    put_keys(lake, names, "f")
    return names


def spans(lake: Lake, names: Sequence[TopicPartition]) -> dict[TopicPartition, list[Span]]:
    snapshot = lake.metastore.snapshot(names)
    return {name: [extent.span for extent in partition.extents] for name, partition in snapshot.items()}


SPREAD, MERGED = [Span(0, 4), Span(4, 8), Span(8, 9)], [Span(0, 8), Span(8, 9)]


def test_a_worker_levels_more_partitions_than_it_looks_at_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them before it says that nothing is left to do, the partitions of a look in one job."""
    monkeypatch.setattr(worker_room, "LEVELED_AT_ONCE", 10)
    names, engine = to_level(lake, 13), Counting()
    assert set(map(len, spans(lake, names).values())) == {3}
    worker(lake, now_ms=20, engine=engine).work()
    assert spans(lake, names) == dict.fromkeys(names, MERGED)
    assert (engine.jobs, lake.metastore.unleveled(limit=999)) == ([10, 3], {})
    assert (Leases(lake.metastore).held(now_ms=20), lake.metastore.check()) == ({}, [])


@pytest.mark.parametrize("bytes_at_once", [1, 1 << 30])
def test_what_fails_or_is_busy_stops_no_other_of_a_leveling(lake: Lake, bytes_at_once: int) -> None:
    """Nor does it keep a worker at it for ever, where each look is of one partition."""
    names = to_level(lake, 4)
    (damaged, busy, *others), grown = names, [*SPREAD, Span(9, 10)]
    put_keys(lake, [damaged, busy], "g")  # they come first
    (extent, *_) = lake.metastore.partition(damaged).extents
    flip(lake, extent.object_id, extent.position + 30)
    Leases(lake.metastore).take(busy, "somebody", now_ms=20)
    worker(lake, now_ms=20, bytes_at_once=bytes_at_once).work()
    assert spans(lake, names) == dict.fromkeys(others, MERGED) | dict.fromkeys((damaged, busy), grown)
    outcomes = sorted((row.partition, row.outcome) for row in Leases(lake.metastore).history())
    assert outcomes == [(damaged, FAILED), *((name, LEVELED) for name in others)]
    assert Leases(lake.metastore).held(now_ms=21) == {busy: "somebody"}


@pytest.mark.parametrize("freed", [False, True])
@pytest.mark.parametrize("bytes_at_once", [1, 1 << 30])
def test_what_was_busy_once_is_leveled_where_something_is_always_due(
    lake: Lake, bytes_at_once: int, freed: bool
) -> None:
    """Each commit brings more to compact, so the worker finds no end. Nor is there a look for nothing but what is busy."""
    (busy,), fed = to_level(lake, 1), TopicPartition("fed", 0)
    lake.metastore.create_topic("fed", 1)
    put(lake, fed, [(b"a", b"1"), (b"a", b"2")])
    leases, commits, asked = Leases(lake.metastore), list[str](), list[int]()
    leases.take(busy, "somebody", now_ms=20)
    busy_one, merge = worker(lake, now_ms=20, upkeep_every_ms=0, bytes_at_once=bytes_at_once), Worker._merge

    def tell(text: str) -> None:
        if text == "fed-0: committed":
            commits.append(text)
            if len(commits) == 2 and freed:
                leases.release(busy, "somebody")
            if len(commits) < 5:
                put(lake, fed, [(b"a", b"3"), (b"a", b"4")])

    def watched(self: Worker, leases: Leases, names: list[TopicPartition], turn: Turn) -> Any:
        asked.extend(len(commits) for name in names if name == busy)
        self.stop = SOFT if len(asked) > 9 else RUN
        return merge(self, leases, names, turn)

    busy_one.tell = tell
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "_merge", watched)
        assert busy_one.work() == 5
    assert spans(lake, [busy]) == {busy: MERGED if freed else SPREAD}
    assert len(asked) < 9


def test_a_leveling_that_is_stopped_keeps_what_is_committed_and_no_lease(lake: Lake) -> None:
    names, ended = to_level(lake, 3), list[TopicPartition]()

    def stop() -> bool:
        return spans(lake, names)[names[0]] == MERGED

    outcomes = level_leased(lake, names, InProcess(1), worker="w", stop=stop)
    ended = [name for name, outcome in outcomes.items() if not isinstance(outcome, Stopped)]
    assert (ended, spans(lake, names)) == ([names[0]], {names[0]: MERGED, names[1]: SPREAD, names[2]: SPREAD})
    assert Leases(lake.metastore).held(now_ms=lake.metastore.clock()) == {}
    level_leased(lake, names, InProcess(1), worker="w")
    assert spans(lake, names) == dict.fromkeys(names, MERGED)


def test_a_leveling_that_is_given_up_commits_no_more(lake: Lake) -> None:
    """By a second signal: what a task has written is garbage that nobody has seen."""
    names = to_level(lake, 3)
    given_up = worker(lake, now_ms=20)
    given_up.tell = lambda text: setattr(given_up, "stop", HARD) if text.endswith(": leveled") else None

    class Ahead(InProcess):
        """All tasks have ended before the first answer."""

        def as_they_end(self, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            return iter(list(super().as_they_end(*given, **options)))

    given_up.engine = Ahead(1)
    given_up.work()
    assert sorted(map(len, spans(lake, names).values())) == [2, 3, 3]
    assert sorted(row.outcome for row in Leases(lake.metastore).history()) == [LEVELED, STOPPED, STOPPED]
    assert Leases(lake.metastore).held(now_ms=20) == {}


def test_a_lease_is_free_when_its_partition_is_leveled_and_not_at_the_end_of_the_job(lake: Lake) -> None:
    names, held = to_level(lake, 3), list[int]()
    put_keys(lake, names[:1], "ghij")

    class Watching(Counting):
        def as_they_end(self, *given: Any, **options: Any) -> Iterator[tuple[int, Any]]:
            for answer in super().as_they_end(*given, **options):
                held.append(len(Leases(lake.metastore).held(now_ms=lake.metastore.clock())))
                yield answer

    level_leased(lake, names, Watching(), worker="w")
    assert held == [3, 2, 1]


def test_objects_of_a_long_leveling_are_registered_anew(lake: Lake) -> None:
    """Or garbage collection would take them for uploads that never came."""
    names, moments = to_level(lake, 3), count(100, RENEW_MS)
    waiting: list[set[int]] = []

    def look(name: TopicPartition, outcome: object) -> None:
        rows = lake.metastore.objects().values()
        waiting.append({row.changed_ms for row in rows if row.state == REGISTERED})

    level_partitions(lake, names, clock=lambda: next(moments), done=look)
    assert [len(times) for times in waiting] == [1, 1, 0]
    assert all(min(times) > 100 for times in waiting[:2])


def test_leveling_keeps_up_with_small_appends(lake: Lake) -> None:
    """However long that goes on, there are as many small extents as make one of a healthy size, and no more."""
    at, value = TopicPartition("fed", 0), bytes(EXTENT_BYTES // 8)
    lake.metastore.create_topic("fed", 1, {"cleanup.policy": "delete"})
    standing, counts = worker(lake, now_ms=20), list[int]()
    for _ in range(24):
        put(lake, at, [(b"k", value)])
        standing.work()
        small = [extent for extent in lake.metastore.partition(at).extents if extent.length < EXTENT_BYTES * SMALL]
        counts.append(len(small))
    assert (max(counts), len(lake.metastore.partition(at).extents)) == (3, 24 // 4)


def test_who_looks_for_small_extents_reads_no_other(lake: Lake) -> None:
    """Rows of large ones are as many as a log is long: an index knows the small ones."""
    at, plans = TopicPartition("t", 0), list[str]()
    lake.metastore.create_topic("t", 1, {})
    lengths = [EXTENT_BYTES] * 40 + [10, 20] + [EXTENT_BYTES // 2] * 40 + [30]
    made = lake.metastore.register(len(lengths), now_ms=1)
    extents = tuple(
        extent(start, start + 1, object_id, length=length)
        for start, (object_id, length) in enumerate(zip(made, lengths, strict=True))
    )
    sizes = {each.object_id: each.length for each in extents}
    lake.metastore.append({at: Append(expected_next=0, extents=extents)}, sizes, now_ms=1)

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: object) -> None:
        if "FROM extents" in statement and "EXPLAIN" not in statement:
            rows = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            plans.extend(row[-1] for row in rows)

    event.listen(lake.metastore._engine, "before_cursor_execute", explain)
    looked = with_small_extents(lake, [at])[at]
    assert [each.length for each in looked.partition.extents] == [10, 20, 30]
    assert (looked.extents, plans) == (83, ["SEARCH extents USING INDEX extents_by_smallness (partition_id=?)"])
    assert runs_to_merge(looked.partition) == [list(extents[40:42])] == runs_to_merge(lake.metastore.partition(at))
    assert EXTENT_BYTES * SMALL == SMALL_BYTES


@pytest.mark.parametrize("seed", range(40))
def test_small_extents_alone_tell_what_is_merged(seed: int) -> None:
    """As all of them do, by the rule as it reads."""
    chance, at = random.Random(seed), 0
    extents = []
    for _ in range(chance.randrange(1, 12)):
        extents.append(extent(at, at + 5, "o", length=chance.choice((10, 30, 49, 50, 80))))
        at += 5
    cleaned = (Span(0, 5 * chance.randrange(1, 12)),) if chance.random() < 0.7 else ()
    whole = Partition(
        start_offset=0, next_offset=at, compaction_epoch=0, extents=tuple(extents), cleaned=cleaned, tombstones=()
    )
    small = replace(whole, extents=tuple(each for each in extents if each.length < 50))
    runs = runs_to_merge(whole, extent_bytes=100)
    assert runs_to_merge(small, extent_bytes=100) == runs
    clean = cleaned[0].end if cleaned else 0
    for run in runs:
        assert len(run) > 1
        assert (all(each.length < 50 for each in run), sum(each.length for each in run) <= 100) == (True, True)
        assert all(left.span.end == right.span.start for left, right in pairwise(run))
        assert len({each.span.end <= clean for each in run}) == 1
        assert run[-1].span.end < at or sum(each.length for each in run) >= 50


def test_retention_counts_from_the_newest_of_the_extents_that_became_one(lake: Lake) -> None:
    """Wherever it lies among them."""
    lake.metastore.create_topic("r", 1)
    at = TopicPartition("r", 0)
    for _ in range(3):
        put(lake, at, [(b"k", b"v")])
    stamps = (500, 900, 100)
    extents = [
        replace(extent, max_timestamp_ms=newest_ms, oldest_timestamp_ms=newest_ms)
        for extent, newest_ms in zip(lake.metastore.partition(at).extents, stamps, strict=True)
    ]
    work = ExtentRewrite(
        store=lake.store, lake_id=lake.metastore.lake_id, topic_partition=at, object_id="one", extents=tuple(extents),
        start_offset=0,
    )  # fmt: skip
    (merged,) = rewrite(work, Meter()).extents
    assert (merged.max_timestamp_ms, merged.oldest_timestamp_ms) == (900, 100)


FAR = 3_000_000_000


def test_a_log_that_begins_far_out_is_compacted(scene: Scene) -> None:
    """Its first extent begins at 0, more than 2^31 below its first record."""
    scene.write(f"+{FAR}", "|", "N[a]", "N[b]", "N[a]")
    (extent,) = scene.lake.metastore.partition(AT).extents
    assert extent.span == Span(0, FAR + 3)
    done = scene.compact(now_ms=10)
    assert ([(offset - FAR, key) for offset, key, _ in scene.held()], done.records_after) == ([(1, b"b"), (2, b"a")], 2)
    scene.write("T[a]", "N[b]")
    scene.compact(now_ms=20)
    scene.compact(now_ms=20 + RETENTION_MS)
    assert [(offset - FAR, key) for offset, key, _ in scene.held()] == [(4, b"b")]
    assert scene.lake.metastore.check() == []


def test_an_extent_that_is_too_wide_for_a_segment_is_compacted(scene: Scene) -> None:
    """As leveling has made them: three times as far as the offsets of one segment reach, tombstones in the last part."""
    terms = ["N[a,b]", f"+{FAR}", "|", "N[a]", f"+{FAR}", "|", "T[b]", "N[c]"]
    for term in terms:
        scene.history.append(term)
    extents = merged_into_one(scene)
    assert [extent.span.end > 2 * FAR for extent in extents] == [True]
    done = scene.compact(now_ms=10)
    assert [key for _, key, _ in scene.held()] == [b"a", b"b", b"c"]
    assert (done.extents_rewritten, done.records_after, done.records_before) == (1, 3, 5)
    (extent,) = scene.lake.metastore.partition(AT).extents
    assert (extent.records, len(scene.lake.metastore.partition(AT).tombstones)) == (3, 1)
    scene.compact(now_ms=10 + RETENTION_MS)
    assert [key for _, key, _ in scene.held()] == [b"a", b"c"]


def merged_into_one(scene: Scene) -> tuple[Extent, ...]:
    """The whole log of the scene as one extent, however far apart its offsets are."""
    scene.write()
    partition, lake = scene.lake.metastore.partition(AT), scene.lake
    (object_id,) = lake.metastore.register(1, now_ms=0)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        chunks = [read_extent(lake.store, extent) for extent in partition.extents]
        made = writer.add("t", 0, Span(0, partition.next_offset), chunks, records=5, max_timestamp_ms=9)
    lake.metastore.level(AT, 0, [made], {object_id: writer.size}, now_ms=0)
    return lake.metastore.partition(AT).extents


def test_leveling_makes_no_extent_that_is_wider_than_a_segment(scene: Scene) -> None:
    for _ in range(2):
        scene.write("N[a]", "N[b]")
    scene.write("N[c]", f"+{FAR}")
    scene.write("N[d]")
    level_partition(scene.lake, AT, clock=lambda: 10, extent_bytes=800)
    spans = [extent.span for extent in scene.lake.metastore.partition(AT).extents]
    assert spans == [Span(0, 4), Span(4, FAR + 5), Span(FAR + 5, FAR + 6)]
    assert len(scene.held()) == 6


def test_offsets_that_are_far_apart_are_not_one_extent(scene: Scene) -> None:
    """A segment of Kafka's could not hold them: 2^31 is where it ends."""
    scene.write("N[a]", "+2147483645", "|", "N[b]", "|", "+1", "|", "N[c]", "|", "N[d]")
    found = scene.lake.metastore.partition(AT).extents
    assert [(tuple(one.span), one.records) for one in found] == [((0, 2147483647), 2), ((2147483647, 2147483650), 2)]
    assert [offset for offset, _, _ in scene.held()] == [0, 2147483646, 2147483648, 2147483649]
