"""Workers: one at a time on a partition, the queue drained, requests, pauses, stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headstone.lake.format.objects import writing_object
from headstone.lake.format.spans import Span
from headstone.lake.jobs.compaction import Compacted
from headstone.lake.jobs.job import JobControl, Stopped, Told
from headstone.lake.jobs.leased_jobs import compact_leased, jobs_of
from headstone.lake.jobs.worker import HARD, SOFT, Worker
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.commits import Append, CommitRefused
from headstone.lake.metastore.leases import COMMITTED, IDLE, STOPPED, Leases
from headstone.lake.transfer.reading import records
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from tests.oracle.batches import Batch, Record, encode

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def lake(metastore_url: str, object_store: Store, moto_settings: dict[str, str]) -> Iterator[Lake]:
    made = create_lake(metastore_url, object_store.url, now_ms=0, settings=moto_settings)
    made.metastore.create_topic("t", 2, {"delete.retention.ms": 0})
    yield made
    made.close()


def put(lake: Lake, at: TopicPartition, pairs: list[tuple[bytes, bytes | None]], *, now_ms: int = 1) -> None:
    """One batch, one extent, one object."""
    start = lake.metastore.partition(at).next_offset
    rows = tuple(
        Record(offset=start + n, timestamp=now_ms, key=key, value=value) for n, (key, value) in enumerate(pairs)
    )
    batch = Batch(
        base_offset=start, last_offset_delta=len(rows) - 1, records=rows, count=len(rows), base_timestamp=now_ms,
        horizon_ms=None, max_timestamp=now_ms, leader_epoch=0, codec="none", transactional=False, producer_id=-1,
        producer_epoch=-1, base_sequence=-1,
    )  # fmt: skip
    (object_id,) = lake.metastore.register(1, now_ms=now_ms)
    with writing_object(lake.store, object_id, lake.metastore.lake_id) as writer:
        extent = writer.add(
            at.topic, at.number, Span(start, start + len(rows)), [encode(batch)], records=len(rows), max_timestamp_ms=now_ms
        )  # fmt: skip
    lake.metastore.append({at: Append(expected_next=start, extents=(extent,))}, {object_id: writer.size}, now_ms=now_ms)


def worker(lake: Lake, name: str = "w", now_ms: int = 100) -> Worker:
    return Worker(name=name, lake=lake, engine=InProcess(1), clock=lambda: now_ms, tell=lambda text: None)


def test_a_lease_is_one_workers_until_it_expires(lake: Lake) -> None:
    leases = Leases(lake.metastore)
    assert leases.take(FIRST, "a", now_ms=10, lease_ms=100)
    assert not leases.take(FIRST, "b", now_ms=109, lease_ms=100)
    assert leases.take(SECOND, "b", now_ms=10, lease_ms=100)
    assert leases.held(now_ms=50) == {FIRST: "a", SECOND: "b"}
    assert leases.renew(FIRST, "a", now_ms=100, lease_ms=100)
    assert not leases.take(FIRST, "b", now_ms=110, lease_ms=100)
    assert leases.take(FIRST, "b", now_ms=200, lease_ms=100)
    assert not leases.renew(FIRST, "a", now_ms=210, lease_ms=100)
    leases.release(FIRST, "a")
    assert leases.held(now_ms=210) == {FIRST: "b"}
    leases.release(FIRST, "b")
    assert leases.held(now_ms=210) == {}


def test_of_many_at_once_one_gets_the_lease(metastore_url: str, lake: Lake) -> None:
    got: list[str] = []

    def grab(name: str) -> None:
        if Leases(lake.metastore).take(FIRST, name, now_ms=1, lease_ms=1000):
            got.append(name)

    threads = [threading.Thread(target=grab, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [Leases(lake.metastore).held(now_ms=2)[FIRST]] == got
    assert metastore_url


def test_a_worker_drains_the_queue_and_leaves_a_history(lake: Lake) -> None:
    for at in (FIRST, SECOND):
        put(lake, at, [(b"a", b"1"), (b"a", b"2")])
    assert worker(lake).work() == 2
    assert [record.offset for record in records(lake, FIRST)] == [1]
    leases = Leases(lake.metastore)
    assert {(row.partition, row.outcome) for row in leases.history()} == {(FIRST, COMMITTED), (SECOND, COMMITTED)}
    assert leases.held(now_ms=100) == {}
    assert worker(lake).work() == 0


def test_what_another_one_works_on_is_left_to_it(lake: Lake) -> None:
    for at in (FIRST, SECOND):
        put(lake, at, [(b"a", b"1"), (b"a", b"2")])
    Leases(lake.metastore).take(FIRST, "somebody", now_ms=100)
    assert worker(lake).work() == 1
    assert lake.metastore.partition(FIRST).compaction_epoch == 0


def test_a_request_is_enough_and_is_done_once(lake: Lake) -> None:
    put(lake, FIRST, [(b"a", b"1"), (b"b", b"1")] * 20)
    worker(lake).work()
    put(lake, FIRST, [(b"a", b"2")])
    put(lake, SECOND, [(b"x", b"1")])
    lake.metastore.create_topic("lazy", 1, {"min.cleanable.dirty.ratio": 1})
    leases = Leases(lake.metastore)
    leases.request(FIRST, now_ms=50)
    assert leases.requested() == {FIRST: 50}
    worker(lake).work()
    assert leases.requested() == {}
    assert {record.key: record.value for record in records(lake, FIRST)} == {b"a": b"2", b"b": b"1"}
    leases.request(FIRST, now_ms=60)
    worker(lake, now_ms=200).work()
    assert (leases.requested(), leases.history(limit=1)[0].outcome) == ({}, IDLE)


def test_a_request_that_came_while_a_job_ran_is_not_done_by_it(lake: Lake) -> None:
    """The job may have looked before what the request is about was there."""
    put(lake, FIRST, [(b"a", b"1")])
    leases = Leases(lake.metastore)
    leases.request(FIRST, now_ms=60)
    leases.done(FIRST, "w", COMMITTED, {}, started_ms=50, now_ms=70)
    assert leases.requested() == {FIRST: 60}
    leases.done(FIRST, "w", COMMITTED, {}, started_ms=60, now_ms=80)
    assert leases.requested() == {}


def test_a_paused_worker_takes_nothing(lake: Lake) -> None:
    leases = Leases(lake.metastore)
    leases.seen("w", "looking", now_ms=1)
    put(lake, FIRST, [(b"a", b"1"), (b"a", b"2")])
    assert leases.pause("w", paused=True)
    assert worker(lake).work() == 0
    assert leases.pause("w", paused=False)
    assert worker(lake).work() == 1
    assert not leases.pause("nobody", paused=True)
    assert [row.worker for row in leases.workers()] == ["w"]


def test_a_soft_stop_finishes_what_is_in_hand_and_leaves_the_rest_to_others(lake: Lake) -> None:
    """Told to stop when the first of two partitions is about to be committed."""
    for at in (FIRST, SECOND):
        put(lake, at, [(b"a", b"1"), (b"a", b"2")])
    soft = worker(lake)
    soft.control = JobControl(before_commit=lambda: setattr(soft, "stop", SOFT))
    assert soft.work() == 1
    leases = Leases(lake.metastore)
    assert sorted(lake.metastore.partition(at).compaction_epoch for at in (FIRST, SECOND)) == [0, 1]
    assert sorted(row.outcome for row in leases.history()) == [COMMITTED, STOPPED]
    assert (leases.held(now_ms=100), leases.waiting(now_ms=100)) == ({}, {})
    assert worker(lake).work() == 1


def test_a_hard_stop_commits_nothing_more(lake: Lake) -> None:
    for at in (FIRST, SECOND):
        put(lake, at, [(b"a", b"1"), (b"a", b"2")])
    hard = worker(lake)
    hard.control = JobControl(check=lambda: setattr(hard, "stop", HARD))
    assert hard.work() == 0
    assert [lake.metastore.partition(at).compaction_epoch for at in (FIRST, SECOND)] == [0, 0]
    assert {row.outcome for row in Leases(lake.metastore).history()} == {STOPPED}
    assert Leases(lake.metastore).held(now_ms=100) == {}


def test_a_refusal_is_not_an_error_of_the_worker(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from headstone.lake.jobs import worker as module

    def refused(*arguments: object, done: Told[Compacted], **options: object) -> None:
        done(FIRST, CommitRefused("somebody was faster"))

    put(lake, FIRST, [(b"a", b"1"), (b"a", b"2")])
    monkeypatch.setattr(module, "compact_partitions", refused)
    assert worker(lake).work() == 0
    assert Leases(lake.metastore).history()[0].details == {"why": "somebody was faster", "partition": "t-0"}


def test_many_leases_are_taken_at_once_and_those_of_others_are_left(lake: Lake) -> None:
    lake.metastore.create_topic("many", 1200, {})
    names = [TopicPartition("many", number) for number in range(1200)]
    leases = Leases(lake.metastore)
    assert leases.take_all(names[:3], "a", now_ms=10, lease_ms=100) == set(names[:3])
    assert leases.take_all(names[1:3], "a", now_ms=20, lease_ms=100) == set(names[1:3])
    assert leases.take_all(names, "b", now_ms=110, lease_ms=100) == {names[0], *names[3:]}
    assert leases.held(now_ms=110) == dict.fromkeys(names, "b") | dict.fromkeys(names[1:3], "a")


def test_a_lake_goes_in_jobs_of_so_many_extents(lake: Lake) -> None:
    """By the order that was asked for. One that has more than a job may have is a job of its own."""
    lake.metastore.create_topic("u", 2, {})
    names = [SECOND, TopicPartition("u", 0), FIRST, TopicPartition("u", 1)]
    for name, extents in zip(names, (1, 3, 1, 0), strict=True):
        for _ in range(extents):
            put(lake, name, [(b"a", b"1"), (b"a", b"2")])
    assert list(jobs_of(lake, names, 2)) == [names[:1], names[1:2], names[2:]]
    assert list(jobs_of(lake, [], 2)) == []
    Leases(lake.metastore).take(FIRST, "somebody", now_ms=lake.metastore.clock())
    done = compact_leased(lake, names, InProcess(1), worker="me", extents_at_once=2)
    assert [type(done[name]) for name in names] == [Compacted, Compacted, CommitRefused, Compacted]
    assert Leases(lake.metastore).held(now_ms=0) == {FIRST: "somebody"}
    commits: list[int] = []
    control = JobControl(before_commit=lambda: commits.append(1), stop=lambda: len(commits) >= 1)
    for name in (FIRST, SECOND):
        put(lake, name, [(b"a", b"1"), (b"a", b"2")])
    Leases(lake.metastore).release(FIRST, "somebody")
    stopped = compact_leased(lake, [SECOND, FIRST], InProcess(1), worker="me", control=control, extents_at_once=1)
    assert [type(stopped[name]) for name in (SECOND, FIRST)] == [Compacted, Stopped]
