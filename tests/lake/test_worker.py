"""Workers: one at a time on a partition, the queue drained, requests, pauses, stops."""

from __future__ import annotations

from functools import partial

import pytest

from headstone.lake.jobs.compaction import Compacted
from headstone.lake.jobs.job import JobControl, Stopped, Told
from headstone.lake.jobs.leased_jobs import compact_leased, jobs_of
from headstone.lake.jobs.worker import HARD, SOFT
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.leases import COMMITTED, IDLE, STOPPED, Leases
from headstone.lake.transfer.reading import records
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.appending import put
from tests.lake.scene import ANYWHERE
from tests.lake.single import worker
from tests.lake.test_metastore import all_at_once

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


pytestmark = ANYWHERE


@pytest.fixture
def lake(lake_anywhere: Lake) -> Lake:
    lake_anywhere.metastore.create_topic("t", 2, {"delete.retention.ms": 0})
    return lake_anywhere


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


def test_of_many_at_once_one_gets_the_lease(lake: Lake) -> None:
    got: list[str] = []

    def grab(name: str) -> None:
        if Leases(lake.metastore).take(FIRST, name, now_ms=1, lease_ms=1000):
            got.append(name)

    all_at_once([partial(grab, f"w{n}") for n in range(8)])
    assert [Leases(lake.metastore).held(now_ms=2)[FIRST]] == got


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
    """Said to stop when the first of two partitions is about to be committed."""
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
