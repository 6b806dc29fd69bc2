"""Whose time decides: the database's on PostgreSQL, the host's on SQLite, a given one in lakes that were made with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headstone.errors import UsageError
from headstone.lake.metastore.clock import SKEW_MS_MAX, Clock, SkewedClock, wall_clock
from headstone.lake.metastore.commits import Append
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.log.topic_partition import TopicPartition
from tests.lake.appending import SIZE, extent

AT = TopicPartition("t", 0)
HOUR_MS = 3_600_000


def ahead(ms: int) -> Clock:
    """A host whose clock is ahead of the true one."""
    return lambda: wall_clock() + ms


with_a_clock_of_its_own = pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)
"""SQLite goes by that of whoever opens it."""


@pytest.fixture
def opened(metastore_url: str) -> Iterator[Callable[[int], Metastore]]:
    """The same lake, which uses its database's clock, as hosts see it that are ahead by so many milliseconds."""
    made = [Metastore.create(metastore_url, location="memory://lake")]
    made[0].create_topic("t", 1)

    def of_host(ahead_ms: int) -> Metastore:
        made.append(Metastore.open(metastore_url, host=ahead(ahead_ms)))
        return made[-1]

    yield of_host
    for store in made:
        store.close()


def append(store: Metastore, *, now_ms: int | None = None) -> int:
    """When that was, by the lake's clock."""
    start = store.partition(AT).next_offset
    (made,) = store.register(1, now_ms=now_ms)
    added = Append(expected_next=start, extents=(extent(start, start + 1, made),))
    store.append({AT: added}, {made: SIZE}, now_ms=now_ms)
    return store.clock()


def end_as_of(store: Metastore, moment_ms: int) -> int:
    """Where the log ended then; 0 if the lake knew nothing of it yet."""
    try:
        return store.partition_as_of(AT, moment_ms).next_offset
    except UsageError as error:
        if "has no topic t before" not in str(error):
            raise
        return 0


def on_postgres(store: Metastore) -> bool:
    return store._engine.dialect.name == "postgresql"


def test_times_that_callers_give_do_not_count(opened: Callable[[int], Metastore]) -> None:
    """One commit by whoever thinks it is next year would make all reads of the past stale until then."""
    store = opened(0)
    before_ms = append(store, now_ms=wall_clock() + 365 * 24 * HOUR_MS)
    (made,) = store.objects().values()
    assert abs(made.changed_ms - before_ms) < SKEW_MS_MAX
    assert store.partition_as_of(AT, before_ms).next_offset == 1
    after_ms = append(store, now_ms=5)
    assert [end_as_of(store, moment) for moment in (before_ms - 60_000, after_ms)] == [0, 2]


@with_a_clock_of_its_own
@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_a_host_far_from_the_databases_clock_is_refused(opened: Callable[[int], Metastore], ahead_ms: int) -> None:
    with pytest.raises(SkewedClock, match="apart, over 10 s; synchronize the clocks"):
        opened(ahead_ms)
    opened(ahead_ms // HOUR_MS * (SKEW_MS_MAX - 5000))


@with_a_clock_of_its_own
def test_a_host_a_little_off_goes_by_the_databases_clock(opened: Callable[[int], Metastore]) -> None:
    store = opened(-5000)
    append(store)
    assert abs(store.clock() - wall_clock()) < 2500


@pytest.mark.parametrize("metastore_url", ["sqlite"], indirect=True)
def test_a_lake_on_sqlite_never_goes_back_behind_what_it_has_seen(opened: Callable[[int], Metastore]) -> None:
    store = opened(5000)
    seen_ms = append(store)
    behind = opened(0)
    assert behind.clock() >= seen_ms
    append(behind)
    assert behind.partition(AT).next_offset == 2
    farther = opened(-SKEW_MS_MAX)
    before = farther.objects()
    with pytest.raises(SkewedClock, match="the lake has seen"):
        append(farther)
    assert (farther.objects(), farther.partition(AT).next_offset) == (before, 2)


def test_a_clock_that_was_ahead_is_mended(opened: Callable[[int], Metastore]) -> None:
    """Nothing is written and no past is told before; after it everything goes on, in order."""
    store = opened(HOUR_MS) if not on_postgres(opened(0)) else opened(0)
    append(store)
    if on_postgres(store):
        with store.transaction() as connection:
            for table in ("partitions", "objects"):
                connection.exec_driver_sql(f"UPDATE {table} SET changed_ms = changed_ms + {HOUR_MS}")
            connection.exec_driver_sql(f"UPDATE extents SET added_ms = added_ms + {HOUR_MS}")
    assert Leases(store).take(AT, "ahead", now_ms=0)
    right = opened(0)
    with pytest.raises(SkewedClock, match="set-clock"):
        append(right)
    assert (right.set_clock(apply=False) > 0, right.partition(AT).next_offset) == (True, 1)
    right.set_clock(apply=True)
    mended_ms = right.clock()
    assert right.set_clock(apply=False) == 0
    append(right)
    assert Leases(right).held(now_ms=0) == {}
    assert right.partition_as_of(AT, right.clock()).extents == right.partition(AT).extents
    assert end_as_of(right, mended_ms - HOUR_MS) == 0
    assert right.check() == []


def test_an_upload_that_was_registered_ahead_of_the_clock_is_as_old_as_the_mending(
    opened: Callable[[int], Metastore],
) -> None:
    """An erasure waits for what was on its way before its step, and would take one that is from the future for younger."""
    store = opened(0)
    made = store.register(1)
    store.keep_registered(made)
    with store.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE objects SET registered_ms = registered_ms + {HOUR_MS}")
    assert store.set_clock(apply=False) == 1
    store.set_clock(apply=True)
    (since_ms,) = Erasures(store).unused_objects().changed_ms
    assert store.clock() - SKEW_MS_MAX < since_ms <= store.clock()
    assert store.set_clock(apply=False) == 0


def test_the_future_is_no_past(opened: Callable[[int], Metastore]) -> None:
    """Two reads as of the same moment give the same; nobody knows what will be."""
    store = opened(0)
    append(store)
    with pytest.raises(UsageError, match="in the future of the lake's clock; name a time in the past"):
        store.partition_as_of(AT, store.clock() + 60_000)


def test_what_a_clock_that_went_back_has_left_undecided_is_not_told(opened: Callable[[int], Metastore]) -> None:
    """A commit is stamped a little later than it was: a moment in between would show the log without it."""
    store = opened(0)
    append(store)
    with store.transaction() as connection:
        connection.exec_driver_sql("UPDATE partitions SET changed_ms = changed_ms + 9000")
        connection.exec_driver_sql("UPDATE extents SET added_ms = added_ms + 9000")
    with pytest.raises(SkewedClock, match="ahead of the clock, which was set back"):
        store.partition_as_of(AT, store.clock())
    assert end_as_of(store, store.clock() - SKEW_MS_MAX) == 0


def test_leases_and_holds_end_by_the_lakes_clock(opened: Callable[[int], Metastore]) -> None:
    """Not by what a caller believes: it is not an hour later."""
    store = opened(0)
    leases, holds = Leases(store), Holds(store)
    assert leases.take(AT, "a", now_ms=0, lease_ms=60_000)
    assert not leases.take(AT, "b", now_ms=wall_clock() + HOUR_MS)
    assert leases.held(now_ms=wall_clock() + HOUR_MS) == {AT: "a"}
    holds.hold("reader", AT, 7, expires_ms=store.clock() + 60_000)
    assert holds.lowest(now_ms=wall_clock() + HOUR_MS) == {AT: 7}


def test_a_given_clock_goes_forward_only(metastore_url: str) -> None:
    store = Metastore.create(metastore_url, location="memory://lake", now_ms=1000)
    store.create_topic("t", 1)
    assert store.clock() == 1000
    store.give_clock(500_000)
    assert (append(store), end_as_of(store, 499_999)) == (500_000, 0)
    with pytest.raises(UsageError, match=r"the lake's clock is already at"):
        store.give_clock(499_999)
    with pytest.raises(SkewedClock, match="a commit now would corrupt"):
        append(store, now_ms=500_000 - SKEW_MS_MAX - 1)
    append(store, now_ms=500_000 - SKEW_MS_MAX)
    assert end_as_of(store, 499_999) == 0
    assert store.partition_as_of(AT, 500_000).next_offset == 2
    with pytest.raises(UsageError, match="only forward"):
        store.set_clock(apply=True)
    store.close()


def test_a_lake_on_its_databases_clock_is_given_none(opened: Callable[[int], Metastore]) -> None:
    with pytest.raises(UsageError, match="uses its database's clock"):
        opened(0).give_clock(wall_clock())
