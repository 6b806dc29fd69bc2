"""Who is compacted next, and why: the rule, the queue and `lake status`, by numbers on a partition's row that are held
against all extents; both databases, histories drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span, without
from headstone.lake.lake import Lake, metastore_url
from headstone.lake.metastore import schema
from headstone.lake.metastore.changes import locked, write
from headstone.lake.metastore.commits import EMPTY, Append, Claim, Partition, TombstoneRange, appended, replaced
from headstone.lake.metastore.due import most_urgent
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leases import FAILED, HISTORY_JOBS_MAX, HISTORY_MS_MAX, IDLE, Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.rows import located_all
from headstone.lake.metastore.scheduling import Urgency, compactable, due_tombstones, queue
from headstone.lake.metastore.schema import UNLEVELED_BYTES_MIN
from headstone.lake.metastore.standings import judged
from headstone.lake.status import PartitionStatus, Sums, lake_status
from headstone.lake.topics import drop_topic
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from headstone.retention.policy import NO_LIMIT
from headstone.storage.stores import Store
from headstone.units import DURATION_FORM
from tests.lake.appending import append, extent
from tests.lake.oracle import eligibility_of, slow_eligibility

LAG = "max.compaction.lag.ms"
SETTINGS: tuple[Mapping[str, object], ...] = (
    {"delete.retention.ms": 300},
    {"delete.retention.ms": 300, "min.compaction.lag.ms": 150, "min.cleanable.dirty.ratio": 0.4},
    {"delete.retention.ms": 700, "min.compaction.lag.ms": 90, "min.cleanable.dirty.ratio": 0.9, LAG: 200},
    {"cleanup.policy": "delete"},
    {"min.compaction.lag.ms": "soon"},
)
PARTITIONS = 2


class Histories:
    """Topics of various settings, on which random commits are made."""

    def __init__(self, store: Metastore, seed: int) -> None:
        self.store, self.chance, self.now_ms = store, random.Random(seed), 1000
        for i, settings in enumerate(SETTINGS):
            store.create_topic(f"t{i}", PARTITIONS, settings)
        self.names = store.partitions()
        self.steps = (*[self.append] * 3, *[self.compact] * 2, self.mark, self.level, self.rise)

    def step(self) -> None:
        self.now_ms += self.chance.choice((0, 1, 10, 50, 200))
        self.chance.choice(self.steps)()

    def append(self) -> None:
        (made,) = self.store.register(1, now_ms=self.now_ms)
        appends, size = {}, 0
        for name in self.chance.sample(self.names, self.chance.randrange(1, 4)):
            start = self.store.partition(name).next_offset
            extents = []
            for _ in range(self.chance.randrange(1, 4)):
                extents.append(self.extent(Span(start, start + self.chance.randrange(1, 9)), made, size))
                start, size = extents[-1].span.end, size + extents[-1].length
            appends[name] = Append(expected_next=extents[0].span.start, extents=tuple(extents))
        self.store.append(appends, {made: size}, now_ms=self.now_ms)

    def extent(self, span: Span, made: str, position: int) -> Extent:
        newest_ms = self.chance.choice((-1, 0, self.now_ms, self.now_ms - self.chance.randrange(300), self.now_ms + 50))
        oldest_ms = newest_ms - self.chance.randrange(20) if newest_ms > 20 else -1
        length = self.chance.choice((0, 10, 100))
        return extent(*span, made, position, length, newest_ms=newest_ms, oldest_ms=oldest_ms)

    def compact(self) -> None:
        """Some neighbours become others, and what is below some offset is clean."""
        name = self.chance.choice(self.names)
        partition = self.store.partition(name)
        if not partition.extents:
            return
        end = self.chance.choice(partition.extents).span.end
        tracked = tuple(known.span for known in partition.tombstones if known.span.end <= end)
        removed = tracked[: self.chance.randrange(len(tracked) + 1)]
        cleaned = (Span(partition.start_offset, end),)
        holding = without(cleaned, [known.span for known in partition.tombstones])[: self.chance.randrange(3)]
        claim = Claim(processed=cleaned[0], cleaned=cleaned, tombstones=holding, tombstones_removed=removed)
        self._replace(name, claim if self.chance.random() < 0.8 else None)

    def level(self) -> None:
        self._replace(self.chance.choice(self.names), None, level=True)

    def _replace(self, name: TopicPartition, claim: Claim | None, *, level: bool = False) -> None:
        partition, (made,) = self.store.partition(name), self.store.register(1, now_ms=self.now_ms)
        first = self.chance.randrange(len(partition.extents) + 1)
        run = partition.extents[first : first + self.chance.randrange(1, 4)]
        new = [self.extent(Span(run[0].span.start, run[-1].span.end), made, 0)] if run else []
        epoch, sizes = partition.compaction_epoch, {made: 100} if new else {}
        if level:
            self.store.level(name, epoch, new, sizes, now_ms=self.now_ms)
        else:
            self.store.replace(name, epoch, new, claim, sizes, now_ms=self.now_ms)

    def mark(self) -> None:
        name = self.chance.choice(self.names)
        partition = self.store.partition(name)
        marked = [extent for extent in partition.extents if extent.records > 1]
        if marked:
            old, (made,) = self.chance.choice(marked), self.store.register(1, now_ms=self.now_ms)
            extent = replace(old, records=old.records - 1, dead=old.dead + 1, dead_object=made, dead_position=0)
            self.store.replace(name, partition.compaction_epoch, [extent], None, {made: 100}, now_ms=self.now_ms)

    def rise(self) -> None:
        name = self.chance.choice(self.names)
        partition = self.store.partition(name)
        start = self.chance.randrange(partition.start_offset, partition.start_offset + 5)
        if start <= partition.next_offset:
            self.store.start_at(name, start, now_ms=self.now_ms)

    def slow(self) -> dict[TopicPartition, Urgency]:
        settings = self.store.topics()
        return {
            name: slow_eligibility(partition, settings[name.topic], now_ms=self.now_ms)
            for name, partition in self.store.snapshot(None).items()
            if name.topic != "t4"
        }

    def quick(self) -> dict[TopicPartition, Urgency]:
        with self.store.transaction(snapshot=True) as connection:
            found = judged(connection, located_all(connection, None), now_ms=self.now_ms)
        return {each.partition: each.urgency for each in sorted(found, key=lambda each: each.partition)}


@pytest.mark.parametrize("seed", range(2))
def test_what_a_row_says_is_what_its_extents_come_to(metastore: Metastore, seed: int) -> None:
    """And nothing that is due is missing from the queue, whatever was looked at before."""
    histories, leases, due = Histories(metastore, seed), Leases(metastore), 0
    for step in range(45):
        histories.step()
        quick, slow = histories.quick(), histories.slow()
        assert {name: state for name, state in quick.items() if name.topic != "t4"} == slow
        reasons = {quick[TopicPartition("t4", i)].reason for i in range(PARTITIONS)}
        assert reasons == {f"min.compaction.lag.ms of the topic: 'soon' is not a duration, such as {DURATION_FORM}"}
        if step % 3 == 0:
            taken = leases.take_due("w", 100, now_ms=histories.now_ms)
            assert taken == {n: s for n, s in slow.items() if s.eligible}
            leases.release_all(taken, "w")
            due += len(taken)
    assert metastore.check() == []
    assert due > 10


@pytest.fixture
def dirty(metastore: Metastore) -> Metastore:
    """Six partitions, the higher the dirtier; of t-0 nothing is dirty."""
    metastore.create_topic("t", 6, {"min.cleanable.dirty.ratio": 0.1, "delete.retention.ms": 100})
    (made,) = metastore.register(1, now_ms=1)
    appends = {}
    for name in metastore.partitions():
        clean = extent(0, 10, made, 1000 * name.number, newest_ms=50, oldest_ms=50)
        other = extent(10, 20, made, clean.position + 500, 100 * name.number, newest_ms=50, oldest_ms=50)
        appends[name] = Append(expected_next=0, extents=(clean, other))
    metastore.append(appends, {made: 10_000}, now_ms=1)
    for name in appends:
        end = 10 if name.number else 20
        metastore.replace(name, 0, [], Claim(processed=Span(0, end), cleaned=(Span(0, end),)), {}, now_ms=2)
    return metastore


def numbers(due: Iterable[TopicPartition]) -> list[int]:
    return [partition.number for partition in due]


def test_the_most_urgent_are_taken_and_nobody_else_gets_them(dirty: Metastore) -> None:
    leases = Leases(dirty)
    assert numbers(leases.take_due("w", 2, now_ms=3, lease_ms=100)) == [5, 4]
    assert numbers(leases.take_due("v", 9, now_ms=102, lease_ms=100)) == [3, 2, 1]
    assert numbers(leases.take_due("v", 9, now_ms=103, lease_ms=100)) == [5, 4]
    assert leases.held(now_ms=103) == {TopicPartition("t", number): "v" for number in range(1, 6)}


def test_what_was_asked_for_comes_first_then_what_is_overdue_then_tombstones(dirty: Metastore) -> None:
    leases, names = Leases(dirty), dirty.partitions()
    holding = Claim(processed=Span(0, 20), cleaned=(Span(0, 20),), tombstones=(Span(0, 20),))
    dirty.replace(names[2], 1, [], holding, {}, now_ms=4)
    leases.request(names[1], now_ms=5)
    assert numbers(leases.take_due("w", 9, now_ms=103)) == [1, 5, 4, 3]
    leases.release_all(names, "w")
    assert numbers(leases.take_due("w", 9, now_ms=104)) == [1, 2, 5, 4, 3]
    leases.release_all(names, "w")
    dirty.configure("t", {"max.compaction.lag.ms": 60, "min.cleanable.dirty.ratio": 0.7})
    assert numbers(leases.take_due("w", 2, now_ms=111)) == [1, 3]
    dirty.configure("t", {"cleanup.policy": "delete"})
    assert leases.take_due("v", 9, now_ms=111) == {}


def test_a_request_for_what_needs_no_work_is_answered(dirty: Metastore) -> None:
    leases = Leases(dirty)
    leases.request(TopicPartition("t", 0), now_ms=5)
    assert numbers(leases.take_due("w", 1, now_ms=6)) == [5]
    (row,) = leases.history()
    assert (row.partition.number, row.outcome, row.details) == (0, IDLE, {"why": "nothing is dirty"})
    assert leases.requested() == {}


def test_what_failed_and_what_readers_hold_is_not_taken(dirty: Metastore) -> None:
    leases, names = Leases(dirty), dirty.partitions()
    leases.done(names[5], "w", FAILED, {}, started_ms=3, now_ms=4, wait_ms=100)
    holding = Claim(processed=Span(0, 20), cleaned=(Span(0, 20),), tombstones=(Span(0, 20),))
    dirty.replace(names[4], 1, [], holding, {}, now_ms=4)
    Holds(dirty).hold("reader", names[4], 0, expires_ms=200)
    assert numbers(leases.take_due("w", 2, now_ms=103)) == [3, 2]
    assert numbers(leases.take_due("w", 9, now_ms=104)) == [5, 1]
    assert numbers(leases.take_due("w", 9, now_ms=200)) == [4]


def test_many_leases_are_renewed_and_released_at_once(dirty: Metastore) -> None:
    leases, names = Leases(dirty), dirty.partitions()
    ours = [*leases.take_due("w", 3, now_ms=3, lease_ms=10)]
    assert leases.take(ours[0], "v", now_ms=13)
    assert leases.renew_all(ours, "w", now_ms=14, lease_ms=10) == set(ours[1:])
    assert leases.held(now_ms=23) == {ours[0]: "v", ours[1]: "w", ours[2]: "w"}
    leases.release_all(names, "w")
    assert leases.held(now_ms=23) == {ours[0]: "v"}


@pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)  # SQLite lets in one at a time
def test_whoever_takes_does_not_wait_for_another(metastore_url: str, dirty: Metastore) -> None:
    other = Metastore.open(metastore_url)
    with dirty.transaction() as connection:
        chosen, _ = most_urgent(connection, limit=2, now_ms=3)
        columns = schema.leases.c
        assert numbers(Leases(other).take_due("v", 2, now_ms=3)) == [3, 2]
        ids = [standing.partition_id for standing in chosen]
        free = select(columns.expires_ms).where(columns.partition_id.in_(ids))
        assert set(connection.scalars(free)) == {0}
    other.close()


def test_what_is_too_young_is_looked_at_again_when_it_is_older(metastore: Metastore) -> None:
    metastore.create_topic("t", 1, {"min.compaction.lag.ms": 100})
    append(metastore, TopicPartition("t", 0), 0, 10, now_ms=1)  # its records are of 17
    leases, statements = Leases(metastore), list[str]()
    assert leases.take_due("w", 1, now_ms=100) == {}
    event.listen(metastore._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    append(metastore, TopicPartition("t", 0), 10, 20, now_ms=101)
    assert [text for text in statements if "FROM extents" in text] == []
    assert leases.take_due("w", 1, now_ms=116) == {}
    assert [text for text in statements if "FROM extents" in text] == []
    assert numbers(leases.take_due("w", 1, now_ms=117)) == [0]


def test_an_extent_without_timestamps_hides_no_deadline_of_its_neighbours(metastore: Metastore) -> None:
    """Also where only what is below younger data may be compacted."""
    lags = {"min.compaction.lag.ms": 50, "max.compaction.lag.ms": 100}
    metastore.create_topic("t", 1, {**lags, "min.cleanable.dirty.ratio": 1.0})
    (name,) = metastore.partitions()
    (made,) = metastore.register(1, now_ms=1)
    extents = tuple(
        extent(start, start + 10, made, newest_ms=stamp_ms, oldest_ms=stamp_ms)
        for start, stamp_ms in ((0, -1), (10, 17), (20, 190))
    )
    metastore.append({name: Append(expected_next=0, extents=extents)}, {made: 300}, now_ms=1)
    assert numbers(Leases(metastore).take_due("w", 1, now_ms=117)) == []
    assert numbers(Leases(metastore).take_due("w", 1, now_ms=118)) == [0]


def test_young_data_that_is_merged_with_the_old_is_looked_at_at_once(metastore: Metastore) -> None:
    metastore.create_topic("t", 1, {"min.compaction.lag.ms": 100})
    (name,) = metastore.partitions()
    append(metastore, name, 0, 10, now_ms=1)  # its records are of 17
    leases, (made,) = Leases(metastore), metastore.register(1, now_ms=1)
    assert leases.take_due("w", 1, now_ms=50) == {}
    metastore.level(name, 0, [extent(0, 10, made, newest_ms=5)], {made: 100}, now_ms=60)
    assert numbers(leases.take_due("w", 1, now_ms=105)) == [0]


def test_the_history_of_a_partition_does_not_grow_for_ever(metastore: Metastore) -> None:
    metastore.create_topic("t", 2)
    leases, (first, second) = Leases(metastore), metastore.partitions()
    leases.done(second, "w", IDLE, {}, started_ms=1, now_ms=1)
    for moment_ms in range(1, HISTORY_JOBS_MAX + 5):
        leases.done(first, "w", IDLE, {}, started_ms=1, now_ms=moment_ms)
    rows = leases.history(limit=1000)
    assert [row.finished_ms for row in rows if row.partition == first] == list(range(HISTORY_JOBS_MAX + 4, 4, -1))
    assert [row.finished_ms for row in rows if row.partition == second] == [1]
    leases.done(first, "w", IDLE, {}, started_ms=1, now_ms=HISTORY_MS_MAX + 10)
    kept = [row.finished_ms for row in leases.history(limit=1000) if row.partition == first]
    assert kept == [HISTORY_MS_MAX + 10, *range(HISTORY_JOBS_MAX + 4, 9, -1)]


def test_a_thousand_partitions_are_appended_to_in_few_statements(metastore: Metastore) -> None:
    """And neither an append nor a commit reads extents that it has nothing to do with."""
    metastore.create_topic("t", 1000)
    names = metastore.partitions()
    (made, more) = metastore.register(2, now_ms=1)
    statements: list[tuple[str, object]] = []
    for object_id, start in ((made, 0), (more, 10)):
        extents = {name: extent(start, start + 10, object_id, 100 * i) for i, name in enumerate(names)}
        appends = {name: Append(expected_next=start, extents=(one,)) for name, one in extents.items()}
        if start:
            event.listen(
                metastore._engine, "before_cursor_execute", lambda *given: statements.append((given[2], given[5]))
            )
        metastore.append(appends, {object_id: 100_000}, now_ms=1)
    assert len(statements) < 20
    assert [text for text, _ in statements if "FROM extents" in text] == []


def test_a_partition_that_is_written_anew_may_be_dirtier(metastore: Metastore) -> None:
    """No commit takes a claim back, but a metastore that is rebuilt may know less than it did."""
    metastore.create_topic("t", 1)
    (name,) = metastore.partitions()
    append(metastore, name, 0, 10)
    append(metastore, name, 10, 20)
    metastore.replace(name, 0, [], Claim(processed=Span(0, 20), cleaned=(Span(0, 20),)), {}, now_ms=2)
    with metastore.transaction() as connection:
        known = locked(connection, name, lambda: 3, lambda partition: (Span(0, 20),))
        write(connection, known, replace(known.before, cleaned=(Span(0, 10),)))
    assert metastore.check() == []
    assert numbers(Leases(metastore).take_due("w", 1, now_ms=3)) == []
    metastore.configure("t", {"min.cleanable.dirty.ratio": 0.4})
    assert numbers(Leases(metastore).take_due("w", 1, now_ms=3)) == [0]


def test_small_extents_are_looked_for_where_enough_has_come(metastore: Metastore) -> None:
    """Whatever comes during a look counts towards the next; a compaction leaves small ones anywhere, marks do not."""
    metastore.create_topic("t", 2)
    first, second = metastore.partitions()
    some, more, new, marks = metastore.register(4, now_ms=1)
    half = UNLEVELED_BYTES_MIN // 2
    for object_id, start in ((some, 0), (more, 10)):
        assert metastore.unleveled(limit=9) == {}
        added = extent(start, start + 10, object_id, length=half)
        metastore.append({second: Append(expected_next=start, extents=(added,))}, {object_id: half}, now_ms=1)
    assert metastore.unleveled(limit=9) == {second: 2 * half}
    append(metastore, second, 20, 30)
    metastore.looked_for_small(second, 2 * half)
    assert metastore.unleveled(limit=9) == {}
    (whole, *_) = metastore.partition(second).extents
    marked = replace(whole, records=9, dead=1, dead_object=marks)
    metastore.replace(second, 0, [marked], None, {marks: 100}, now_ms=2)
    assert metastore.unleveled(limit=9) == {}
    metastore.replace(second, 1, [extent(0, 10, new)], None, {new: 100}, now_ms=2)
    assert metastore.unleveled(limit=9) == {second: UNLEVELED_BYTES_MIN + 100}
    assert metastore.partition(first).extents == ()


@pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)  # SQLite lets nobody in between
def test_an_append_to_a_topic_that_is_dropped_meanwhile_appends_nothing(
    metastore_url: str, metastore: Metastore
) -> None:
    for topic in ("kept", "dropped"):
        metastore.create_topic(topic, 1)
    kept, dropped = metastore.partitions()[::-1]
    (made,) = metastore.register(1, now_ms=1)
    other = Lake(metastore=Metastore.open(metastore_url), store=Store.open("memory://none"))
    looks = iter(["ids"])

    def drop(*given: object) -> None:
        if "JOIN topics" in str(given[2]) and next(looks, None):
            drop_topic(other, "dropped", now_ms=1)

    event.listen(metastore._engine, "after_cursor_execute", drop)
    appends = {name: Append(expected_next=0, extents=(extent(0, 10, made),)) for name in (kept, dropped)}
    with pytest.raises(UsageError, match="dropped while records were appended"):
        metastore.append(appends, {made: 1000}, now_ms=1)
    assert metastore.next_offsets() == {kept: 0}
    other.close()


def test_a_commit_reads_only_what_it_replaces(metastore: Metastore) -> None:
    metastore.create_topic("t", 1)
    (name,) = metastore.partitions()
    made, new = metastore.register(2, now_ms=1)
    extents = tuple(extent(10 * i, 10 * i + 10, made, position=100 * i) for i in range(300))
    metastore.append({name: Append(expected_next=0, extents=extents)}, {made: 30_000}, now_ms=1)
    rows: list[int] = []

    def count(connection: object, cursor: Any, *rest: object) -> None:
        if "FROM extents" in str(rest[0]) and cursor.description:
            rows.append(cursor.rowcount)

    event.listen(metastore._engine, "after_cursor_execute", count)
    claim = Claim(processed=Span(0, 30), cleaned=(Span(0, 30),))
    metastore.replace(name, 0, [extent(10, 30, new)], claim, {new: 100}, now_ms=2)
    assert max(rows) <= 3
    assert (metastore.check(), len(metastore.partition(name).extents)) == ([], 299)


def log(*ends: int) -> Partition:
    partition = EMPTY
    for end in ends:
        start = partition.next_offset
        made = extent(start, end, f"o{start}", newest_ms=1000 * end, oldest_ms=1000 * end)
        partition = appended(partition, start, [made])
    return partition


def cleaned(partition: Partition, end: int, *, tombstones_at: int | None = None) -> Partition:
    span = Span(0, end)
    holding = (span,) if tombstones_at is not None else ()
    claim = Claim(processed=span, cleaned=(span,), tombstones=holding)
    return replaced(partition, partition.compaction_epoch, [], claim, now_ms=tombstones_at or 0)


@pytest.mark.parametrize(
    ("partition", "settings", "eligible", "reason"),
    [
        (EMPTY, {}, False, "nothing is dirty"),
        (log(10), {}, True, "dirty ratio 1.000 is above 0.5"),
        (cleaned(log(10, 20), 10), {}, False, "dirty ratio 0.500 is not above 0.5"),
        (cleaned(log(10, 20), 10), {"min.cleanable.dirty.ratio": 0.49}, True, "dirty ratio 0.500 is above 0.49"),
        (cleaned(log(10, 20, 30), 20), {}, False, "dirty ratio 0.333 is not above 0.5"),
        (cleaned(log(10, 20, 30), 20), {"min.cleanable.dirty.ratio": "0.3"}, True, "dirty ratio 0.333 is above 0.3"),
        (cleaned(log(10), 10), {"min.cleanable.dirty.ratio": "0"}, False, "nothing is dirty"),
        (cleaned(log(10, 20, 30), 20), {LAG: 20_000}, True, f"{LAG} expired 50 s ago"),
        (cleaned(log(10, 20, 30), 20), {LAG: 70_000}, False, "dirty ratio 0.333 is not above 0.5"),
        (cleaned(log(10, 20, 30), 20), {LAG: 69_999}, True, f"{LAG} expired 1 ms ago"),
        (cleaned(log(10), 10, tombstones_at=40), {"delete.retention.ms": 99_960}, True, "tombstones of 1 range"),
        (cleaned(log(10), 10, tombstones_at=40), {"delete.retention.ms": 99_961}, False, "nothing is dirty"),
    ],
)
def test_a_partition_is_due_for_a_reason(
    partition: Partition, settings: dict[str, object], eligible: bool, reason: str
) -> None:
    found = eligibility_of(partition, settings, now_ms=100_000)
    assert (found.eligible, found.reason[: len(reason)]) == (eligible, reason)


def test_what_is_overdue_comes_first_then_tombstones_then_the_dirtiest() -> None:
    """Redpanda's queue was ordered by dirty ratio alone, and for a while the least dirty came first."""
    lag: dict[str, object] = {LAG: 10_000}
    partitions: list[tuple[Partition, dict[str, object]]] = [
        (cleaned(log(10, 20), 10), {"min.cleanable.dirty.ratio": 0.4}), (log(10), {}),
        (cleaned(log(10), 10, tombstones_at=0), {"delete.retention.ms": 5}), (cleaned(log(10, 50, 60), 50), lag),
        (cleaned(log(10, 20, 30), 20), lag), (cleaned(log(10, 20, 30), 20), {}),
    ]  # fmt: skip
    found = {
        TopicPartition("t", number): eligibility_of(partition, settings, now_ms=100_000)
        for number, (partition, settings) in enumerate(partitions)
    }
    assert [at.number for at, _ in queue(found.items(), now_ms=100_000)] == [4, 3, 2, 1, 0]


def test_timestamps_of_the_future_block_nothing() -> None:
    """Redpanda 31442."""
    found = eligibility_of(log(10), {"max.compaction.lag.ms": 1}, now_ms=5)
    assert (found.eligible, found.deadline_ms) == (True, 10_001)
    assert compactable(log(10), {}, now_ms=5) == (Span(0, 10),)


def test_the_first_that_is_too_young_ends_what_is_compacted() -> None:
    lag = {"min.compaction.lag.ms": 5_000}
    assert compactable(log(10, 20, 30), lag, now_ms=24_000) == (Span(0, 10),)
    assert compactable(log(10, 20, 30), lag, now_ms=36_000) == (Span(0, 30),)


def test_dirty_data_keeps_the_tombstones_above_it() -> None:
    """One of its records may be what such a tombstone deletes."""
    tracked = (TombstoneRange(span=Span(10, 20), cleaned_at_ms=0),)
    for start, due in ((10, ()), (0, (Span(10, 20),))):
        partition = replace(log(10, 20), cleaned=(Span(start, 20),), tombstones=tracked)
        assert due_tombstones(partition, {"delete.retention.ms": 1}, now_ms=100, held_from=NO_LIMIT) == due


def sums(**more: int) -> Sums:
    none = Sums(partitions=1, due=0, extents=0, records=0, dead_records=0, bytes=0, dirty_bytes=0, dead_bytes=0)
    return replace(none, **more)


def test_totals_and_reasons_come_from_the_rows(metastore: Metastore) -> None:
    metastore.create_topic("orders", 2, {"min.cleanable.dirty.ratio": 0.4})
    metastore.create_topic("kept", 1, {"cleanup.policy": "delete"})
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    append(metastore, first, 0, 10)
    append(metastore, first, 10, 20)
    metastore.replace(first, 0, [], Claim(processed=Span(0, 10), cleaned=(Span(0, 10),)), {}, now_ms=2)
    (known, _) = metastore.partition(first).extents
    (made,) = metastore.register(1, now_ms=2)
    marked = replace(known, records=8, dead=2, dead_object=made)
    metastore.replace(first, 1, [marked], None, {made: 100}, now_ms=3)
    append(metastore, TopicPartition("kept", 0), 0, 5)
    board = Board()
    assert (metastore.check(board), board.expected, board.total()) == ([], 3, (3, 0))
    metastore.give_clock(50)
    statements: list[str] = []
    event.listen(metastore._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    status = lake_status(metastore)
    assert [text for text in statements if "extents" in text.partition("FROM")[2]] == []
    mine = sums(due=1, extents=2, records=18, dead_records=2, bytes=200, dirty_bytes=100, dead_bytes=20)
    kept = sums(extents=1, records=5, bytes=100, dirty_bytes=100)
    assert [(topic.topic, topic.sums) for topic in status.topics] == [
        ("kept", kept), ("orders", replace(mine, partitions=2)),
    ]  # fmt: skip
    assert status.sums == replace(mine, partitions=3, extents=3, records=23, bytes=300, dirty_bytes=200)
    assert status.topics[1].partitions[0] == PartitionStatus(
        partition=first, start_offset=0, next_offset=20, compaction_epoch=2, dirty_ratio=0.5, sums=mine, dead_since_ms=3,
        cleaned_ranges=(Span(0, 10),), tombstone_ranges=(), eligible=True, reason="dirty ratio 0.500 is above 0.4",
        waits_for="",
    )  # fmt: skip
    reasons = [partition.reason for topic in status.topics for partition in topic.partitions]
    assert reasons == [
        "cleanup.policy is delete: every record is kept", "dirty ratio 0.500 is above 0.4", "nothing is dirty",
    ]  # fmt: skip
    assert (status.now_ms, status.queue, status.working) == (50, (first,), {})
    assert second not in status.queue


def test_why_nobody_begins_is_told(metastore: Metastore) -> None:
    metastore.create_topic("t", 2)
    names, leases = metastore.partitions(), Leases(metastore)
    for name in names:
        append(metastore, name, 0, 10)
    leases.take(names[0], "worker", now_ms=10, lease_ms=100)
    leases.done(names[1], "worker", FAILED, {"why": "no disk"}, started_ms=5, now_ms=10, wait_ms=60)
    Holds(metastore).hold("reader", names[0], 4, expires_ms=99)
    metastore.give_clock(20)
    status = lake_status(metastore)
    assert [partition.waits_for for partition in status.topics[0].partitions] == [
        "worker works on it", "its last job failed: not before 1970-01-01 00:00:00 UTC, in 50 ms",
    ]  # fmt: skip
    assert (status.working, [hold.reader for hold in status.holds]) == ({names[0]: "worker"}, ["reader"])
    assert [(row.partition, row.outcome, row.details) for row in status.history] == [
        (names[1], FAILED, {"why": "no disk"})
    ]  # fmt: skip


def test_the_command_shows_totals_alone_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    metastore = Metastore.open(metastore_url(lake))
    metastore.create_topic("t", 2)
    append(metastore, TopicPartition("t", 0), 0, 10)
    metastore.close()
    capsys.readouterr()
    assert main(["lake", "status", lake, "--totals"]) == 0
    line = "2 partitions, 1 due; 10 records (and 0 dead), 100 bytes, 100 bytes dirty, in 1 extent"
    assert capsys.readouterr().out.splitlines() == [f"t: {line}", f"all: {line}", "queue: 1 partition"]
