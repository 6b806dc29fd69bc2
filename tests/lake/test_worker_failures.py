"""A worker whose job fails, whatever it fails of, goes on; its lease is free, the failure is told, and the partition waits."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import update

from headstone.brokers.processes import wait_until
from headstone.errors import UsageError
from headstone.lake.jobs.compaction import Compacted, compact_partitions
from headstone.lake.jobs.leased_jobs import compact_leased
from headstone.lake.jobs.urgencies import urgencies
from headstone.lake.jobs.worker import RUN, SOFT, Worker
from headstone.lake.lake import Lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.leases import COMMITTED, FAILED, IDLE, STOPPED, WAIT_MS, WAIT_MS_MAX, Leases
from headstone.lake.topics import drop_topic
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from headstone.units import DURATION_FORM
from tests.lake.appending import put
from tests.lake.scene import AT, Scene
from tests.lake.single import worker
from tests.lake.test_worker import FIRST, SECOND

SOON_MS = 100
"""When workers look."""
SHORT = TopicPartition("short", 0)


class BrokenStore(Store):
    """Something happens whenever an object is read."""

    happens: Callable[[], None]

    def view(self, path: str, position: int, length: int) -> memoryview:
        if path.startswith("objects/"):
            self.happens()
        return super().view(path, position, length)


def broken(lake: Lake, happens: Callable[[], None]) -> Lake:
    store = BrokenStore(lake.store.url, lake.store._store)
    store.happens = happens
    return replace(lake, store=store)


@pytest.fixture
def dirty(lake: Lake) -> Lake:
    """Two partitions that are worth a compaction."""
    lake.metastore.create_topic("t", 2, {"delete.retention.ms": 0})
    for at in (FIRST, SECOND):
        put(lake, at, [(b"a", b"1"), (b"a", b"2")])
    return lake


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def outcomes(lake: Lake) -> list[tuple[TopicPartition, str]]:
    return sorted((row.partition, row.outcome) for row in Leases(lake.metastore).history())


def mistake() -> None:
    raise ZeroDivisionError("of our own making")


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (full_disk, "OSError: [Errno 28] No space left on device"),
        (mistake, "ZeroDivisionError: of our own making"),
    ],
)
def test_a_worker_survives_what_is_none_of_the_lakes_errors(dirty: Lake, happens: Callable[[], None], why: str) -> None:
    """What a task answers, and what ends the whole job."""
    told: list[str] = []
    assert worker(broken(dirty, happens), tell=told.append).work() == 0
    leases = Leases(dirty.metastore)
    assert outcomes(dirty) == [(FIRST, FAILED), (SECOND, FAILED)]
    assert {row.details["why"] for row in leases.history()} == {why}
    assert leases.held(now_ms=SOON_MS) == {}
    assert f"t-0: failed: {why}" in told


def test_what_failed_waits_longer_each_time_and_is_then_forgotten(dirty: Lake) -> None:
    leases, now_ms = Leases(dirty.metastore), SOON_MS
    for wait_ms in (WAIT_MS, 2 * WAIT_MS, 4 * WAIT_MS):
        worker(broken(dirty, full_disk), now_ms=now_ms).work()
        assert leases.waiting(now_ms=now_ms + wait_ms - 1) == {FIRST: now_ms + wait_ms, SECOND: now_ms + wait_ms}
        assert worker(dirty, now_ms=now_ms + wait_ms - 1).work() == 0
        now_ms += wait_ms
    assert worker(dirty, now_ms=now_ms).work() == 2
    assert leases.waiting(now_ms=0) == {}
    put(dirty, FIRST, [(b"a", b"3"), (b"a", b"4")], now_ms=now_ms)
    worker(broken(dirty, full_disk), now_ms=now_ms).work()
    assert leases.waiting(now_ms=now_ms) == {FIRST: now_ms + WAIT_MS}


def test_what_failed_once_has_its_turn_again_where_something_is_always_due(dirty: Lake) -> None:
    """Each commit brings more to compact, so the worker finds no end; what failed has waited for a minute by the third."""
    now_ms, failed, jobs = [SOON_MS], list[str](), list[str]()
    at_work = worker(broken(dirty, lambda: None if failed else full_disk()))
    at_work.clock = lambda: now_ms[0]

    def tell(text: str) -> None:
        name, _, outcome = text.partition(": ")
        if outcome.startswith("failed"):
            failed.append(name)
        if outcome == "committed":
            jobs.append(name)
            now_ms[0] += WAIT_MS // 2
            put(dirty, SECOND if failed == ["t-0"] else FIRST, [(b"a", b"3"), (b"a", b"4")], now_ms=now_ms[0])
            at_work.stop = SOFT if len(jobs) == 6 else RUN

    at_work.tell = tell
    assert (at_work.work(), len(failed)) == (6, 1)
    assert failed[0] in jobs


def test_the_longest_wait_is_bounded(dirty: Lake) -> None:
    leases, now_ms = Leases(dirty.metastore), SOON_MS
    for _ in range(40):
        leases.done(FIRST, "w", FAILED, {}, started_ms=now_ms, now_ms=now_ms)
    assert leases.waiting(now_ms=now_ms) == {FIRST: now_ms + WAIT_MS_MAX}


def test_a_request_ends_the_wait(dirty: Lake) -> None:
    worker(broken(dirty, full_disk)).work()
    Leases(dirty.metastore).request(SECOND, now_ms=SOON_MS)
    assert worker(dirty).work() == 1
    assert [dirty.metastore.partition(at).compaction_epoch for at in (FIRST, SECOND)] == [0, 1]


def test_one_topic_with_settings_that_make_no_sense_stops_no_other(dirty: Lake) -> None:
    dirty.metastore.create_topic("bad", 1)
    bad = TopicPartition("bad", 0)
    put(dirty, bad, [(b"a", b"1"), (b"a", b"2")])
    with dirty.metastore.transaction() as connection:
        wrong = update(schema.topics).where(schema.topics.c.name == "bad")
        connection.execute(wrong.values(settings='{"delete.retention.ms": "soon"}'))
    assert worker(dirty).work() == 2
    state = urgencies(dirty, now_ms=SOON_MS)[bad]
    reason = f"delete.retention.ms of the topic: 'soon' is not a duration, such as {DURATION_FORM}"
    assert (state.eligible, state.reason) == (False, reason)


def work_until_noticed(lake: Lake, happens: Callable[[], object]) -> int:
    """A worker's commits, after this happened while it read, and it has noticed that its lease is lost."""
    at_work: list[Worker] = []

    def lose() -> None:
        happens()
        wait_until(lambda: bool(at_work[0].kept and at_work[0].kept.lost), "it is noticed", seconds_max=60)

    at_work.append(worker(broken(lake, lose), lease_ms=40))
    return at_work[0].work()


def test_a_job_ends_when_its_lease_is_lost(dirty: Lake) -> None:
    """Somebody else has begun: what would be committed then is refused anyway, and all work until there is lost."""

    def take_over() -> None:
        with dirty.metastore.transaction() as connection:
            connection.execute(update(schema.leases).values(worker="thief"))

    assert work_until_noticed(dirty, take_over) == 0
    assert [outcome for _, outcome in outcomes(dirty)] == [STOPPED, STOPPED]
    assert {row.details["why"] for row in Leases(dirty.metastore).history()} == {
        "the lease is another worker's now, or the topic is gone"
    }
    assert set(Leases(dirty.metastore).held(now_ms=0).values()) == {"thief"}
    assert Leases(dirty.metastore).waiting(now_ms=0) == {}
    assert [dirty.metastore.partition(at).compaction_epoch for at in (FIRST, SECOND)] == [0, 0]


def dropping(lake: Lake) -> Lake:
    """The topic `short` is dropped when the first object is read."""
    lake.metastore.create_topic("short", 1, {"delete.retention.ms": 0})
    put(lake, SHORT, [(b"a", b"1"), (b"a", b"2" * 1000)])
    dropped: list[int] = []

    def drop() -> None:
        if not dropped:
            dropped.append(drop_topic(lake, "short", now_ms=SOON_MS))

    return broken(lake, drop)


def test_a_topic_that_is_dropped_ends_the_job_of_no_other(dirty: Lake) -> None:
    """Neither the lease that can't be given back nor the row of the history that has no partition stops the rest."""
    told: list[str] = []
    assert worker(dropping(dirty), tell=told.append).work() == 2
    assert outcomes(dirty) == [(FIRST, COMMITTED), (SECOND, COMMITTED)]
    assert "short-0: failed: the lake has no partition short-0" in told
    assert Leases(dirty.metastore).held(now_ms=SOON_MS) == {}


def test_the_sign_of_life_of_the_others_gets_through_when_a_topic_is_dropped(dirty: Lake) -> None:
    leases, names = Leases(dirty.metastore), [FIRST, SHORT]
    dirty.metastore.create_topic("short", 1)
    assert leases.take_all(names, "w", now_ms=0, lease_ms=10) == {FIRST, SHORT}
    drop_topic(dirty, "short", now_ms=1)
    assert leases.renew_all(names, "w", now_ms=5, lease_ms=10) == {FIRST}
    assert leases.held(now_ms=14) == {FIRST: "w"}
    leases.release_all(names, "w")
    assert leases.held(now_ms=5) == {}


def test_lake_compact_goes_on_when_a_topic_is_dropped(dirty: Lake) -> None:
    """In the middle of a job, and before the job whose turn it would be: that one finds neither lease nor extents."""
    outcomes = compact_leased(dropping(dirty), [SHORT, FIRST, SECOND], InProcess(1), worker="c", extents_at_once=1)
    committed = {name: isinstance(outcome, Compacted) for name, outcome in outcomes.items()}
    assert committed == {SHORT: False, FIRST: True, SECOND: True}
    assert Leases(dirty.metastore).held(now_ms=0) == {}
    put(dirty, FIRST, [(b"a", b"3")])
    later = compact_leased(dropping(dirty), [FIRST, SHORT, SECOND], InProcess(1), worker="c", extents_at_once=1)
    assert [isinstance(outcome, Compacted) for outcome in later.values()] == [True, False, True]
    assert str(later[SHORT]) == "another worker had it until now, or the topic was dropped"
    both = compact_partitions(dirty, [SHORT, FIRST], InProcess(1), now_ms=SOON_MS)
    assert (isinstance(both[FIRST], Compacted), str(both[SHORT])) == (True, "the lake has no partition short-0")


def test_a_job_ends_when_no_sign_of_life_gets_through(dirty: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **options: object) -> bool:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(Leases, "renew_all", fails)
    assert work_until_noticed(dirty, lambda: None) == 0
    assert {row.details["why"] for row in Leases(dirty.metastore).history()} == {
        "lease expired, renewals failed: ConnectionResetError: gone"
    }


def test_records_without_a_key_are_refused_before_anything_is_read(scene: Scene) -> None:
    """The lists of keys say that there are some. A topic that was never meant to be compacted: everything is as it was."""
    scene.write("N[a]", "U", "N[a]")
    before, partition, reads = scene.held(), scene.lake.metastore.partition(AT), scene.lake.store.traffic.reads
    with pytest.raises(UsageError, match="1 record without a key would be lost"):
        scene.compact(now_ms=SOON_MS)
    assert scene.lake.store.traffic.reads == reads
    assert (scene.held(), scene.lake.metastore.partition(AT)) == (before, partition)


def test_a_standing_worker_outlives_a_metastore_that_does_not_answer(dirty: Lake) -> None:
    """A look that fails is told, and the next one may find it again."""
    told: list[str] = []
    looking = worker(dirty, tell=told.append)
    with dirty.metastore.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE workers RENAME TO away")
    assert looking.look() == 0
    assert told[-1].startswith("retrying later: ")
    with dirty.metastore.transaction() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO workers")
    assert looking.look() == 2
    assert (outcomes(dirty), IDLE) == ([(FIRST, COMMITTED), (SECOND, COMMITTED)], IDLE)
