"""One behaviour suite over SQLite and PostgreSQL: commits that win, commits that lose and leave nothing, and the checker."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
from sqlalchemy import Engine, delete, event, insert, select, update

from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.lake.format.spans import Span
from headstone.lake.metastore import schema
from headstone.lake.metastore.commits import Append, Claim, CommitRefused, Partition, replaced, violations
from headstone.lake.metastore.holds import Holds
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.object_states import COMMITTED, REGISTERED, UNREFERENCED
from headstone.lake.metastore.rows import located, partition_id_of
from headstone.log.topic_partition import TopicPartition
from tests.lake.appending import SIZE, append, extent

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


def all_at_once(bodies: Iterable[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def everything(engine: Engine) -> dict[str, list[tuple[object, ...]]]:
    with engine.connect() as connection:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(select(table)))
            for table in schema.metadata.sorted_tables
        }


@pytest.fixture
def store(metastore: Metastore) -> Metastore:
    metastore.create_topic("orders", 2, {"delete.retention.ms": 1000})
    return metastore


def test_a_lake_is_found_again(metastore_url: str, store: Metastore) -> None:
    append(store, ORDERS, 0, 10)
    again = Metastore.open(metastore_url)
    assert (again.lake_id, again.location) == (store.lake_id, "memory://lake")
    assert again.topics() == {"orders": {"delete.retention.ms": 1000}}
    assert again.partitions() == [ORDERS, OTHER]
    assert again.partition(ORDERS) == store.partition(ORDERS)
    again.close()


def test_a_log_begins_with_its_first_append(store: Metastore) -> None:
    """In one commit: rows of what lies below are never made, an object that has nothing else is garbage, the past knows it."""
    append(store, OTHER, 0, 10, now_ms=1)
    used, empty = store.register(2, now_ms=1)
    append_to = {
        ORDERS: Append(
            expected_next=0, extents=(extent(0, 10, empty), extent(10, 20, used), extent(20, 30, used, 100)), log_start=12
        )
    }  # fmt: skip
    store.append(append_to, {used: SIZE, empty: SIZE}, now_ms=5)
    partition = store.partition(ORDERS)
    assert (partition.start_offset, partition.next_offset) == (12, 30)
    assert partition.extents == (extent(10, 20, used), extent(20, 30, used, 100))
    assert store.check() == []
    assert {name: store.objects()[name].state for name in (used, empty)} == {used: COMMITTED, empty: UNREFERENCED}
    past = store.partition_as_of(ORDERS, 4)
    assert (past.start_offset, past.next_offset, store.partition_as_of(ORDERS, 5).start_offset) == (0, 0, 12)
    (more,) = store.register(1, now_ms=6)
    late = Append(expected_next=30, extents=(extent(30, 40, more),), log_start=35)
    with pytest.raises(CommitRefused, match="the log is already"):
        store.append({ORDERS: late}, {more: SIZE}, now_ms=6)


def test_what_was_appended_is_the_log(store: Metastore) -> None:
    first, second = append(store, ORDERS, 0, 10), append(store, ORDERS, 10, 1 << 40)
    partition = store.partition(ORDERS)
    assert partition.extents == (extent(0, 10, first), extent(10, 1 << 40, second))
    assert (partition.start_offset, partition.next_offset, partition.compaction_epoch) == (0, 1 << 40, 0)
    assert store.partition(OTHER).extents == ()
    assert store.check() == []


def test_an_object_of_many_partitions_is_committed_for_all_or_none(store: Metastore) -> None:
    append(store, OTHER, 0, 5)
    (made,) = store.register(1, now_ms=2)
    both = {
        ORDERS: Append(expected_next=0, extents=(extent(0, 10, made),)),
        OTHER: Append(expected_next=0, extents=(extent(0, 10, made, position=100),)),
    }
    with pytest.raises(CommitRefused, match="the log ends at 5"):
        store.append(both, {made: SIZE}, now_ms=2)
    assert store.partition(ORDERS).next_offset == 0
    assert store.objects()[made].state == REGISTERED


CLAIM_ABOVE = Claim(processed=Span(10, 20), cleaned=(Span(10, 20),))
REFUSED: dict[str, Callable[[Metastore, str, str], None]] = {
    "stale epoch": lambda s, used, new: s.replace(ORDERS, 0, [extent(0, 20, new)], None, {new: 1}, now_ms=9),
    "cuts an extent": lambda s, used, new: s.replace(ORDERS, 1, [extent(0, 15, new)], None, {new: 1}, now_ms=9),
    "object in use": lambda s, used, new: s.replace(ORDERS, 1, [extent(0, 20, used)], None, {used: 1}, now_ms=9),
    "unknown object": lambda s, used, new: s.replace(ORDERS, 1, [extent(0, 20, "?")], None, {"?": 1}, now_ms=9),
    "leveling at a stale epoch": lambda s, used, new: s.level(ORDERS, 0, [extent(0, 20, new)], {new: 1}, now_ms=9),
    "claim above": lambda s, used, new: s.replace(ORDERS, 1, [extent(0, 20, new)], CLAIM_ABOVE, {new: 1}, now_ms=9),
    "append in the middle": lambda s, used, new: s.append(
        {ORDERS: Append(expected_next=10, extents=(extent(10, 20, new),))}, {new: 1}, now_ms=9
    ),
    "start beyond the end": lambda s, used, new: s.start_at(ORDERS, 21, now_ms=9),
    "forgetting what is in use": lambda s, used, new: s.forget([new, used]),
}
"""Given a metastore with a log of [0, 10) and [10, 20) at epoch 1, an object in use and one that is registered."""


@pytest.mark.parametrize("why", REFUSED)
def test_whoever_loses_changes_nothing(engine: Engine, store: Metastore, why: str) -> None:
    used = append(store, ORDERS, 0, 10)
    append(store, ORDERS, 10, 20)
    store.replace(ORDERS, 0, [], Claim(processed=Span(0, 10), cleaned=(Span(0, 10),)), {}, now_ms=5)
    (new,) = store.register(1, now_ms=6)
    before = everything(engine)
    with pytest.raises(CommitRefused):
        REFUSED[why](store, used, new)
    assert (everything(engine), store.check()) == (before, [])


@pytest.mark.parametrize("seed", range(3))
def test_a_commit_over_a_part_of_the_extents_is_the_commit_over_all(store: Metastore, seed: int) -> None:
    """Only the extents in its place are read: it is refused, in the same words, if it would be with all of them."""
    chance = random.Random(seed)
    ends = sorted(chance.sample(range(1, 60), 12))
    made = store.register(1, now_ms=1)[0]
    tiles = tuple(extent(start, end, made, position=100 * end) for start, end in pairwise([0, *ends]))
    store.append({ORDERS: Append(expected_next=0, extents=tiles)}, {made: 10_000}, now_ms=1)
    store.start_at(ORDERS, chance.randrange(ends[2]), now_ms=1)
    for _ in range(25):
        before, (new,) = store.partition(ORDERS), store.register(1, now_ms=2)
        edges = [before.start_offset, *(one.span.end for one in before.extents), chance.randrange(70)]
        start, end = chance.choice(edges), chance.choice(edges)
        proposed = [extent(start, end, new)] if chance.random() < 0.8 else []
        clean = Span(before.start_offset, chance.choice(edges))
        claim = Claim(processed=clean, cleaned=(clean,)) if chance.random() < 0.5 else None
        try:
            wanted: object = replaced(before, before.compaction_epoch, proposed, claim, now_ms=2)
        except CommitRefused as error:
            wanted = str(error)
        try:
            sizes = {new: 1000} if proposed else {}
            store.replace(ORDERS, before.compaction_epoch, proposed, claim, sizes, now_ms=2)
            outcome: object = store.partition(ORDERS)
        except CommitRefused as error:
            outcome = str(error)
        assert outcome == wanted
    assert store.check() == []


def test_a_compaction_and_an_append_do_not_meet(store: Metastore) -> None:
    append(store, ORDERS, 0, 10)
    epoch = store.partition(ORDERS).compaction_epoch
    append(store, ORDERS, 10, 20)
    (new,) = store.register(1, now_ms=3)
    claim = Claim(processed=Span(0, 10), cleaned=(Span(0, 10),), tombstones=(Span(0, 10),))
    store.replace(ORDERS, epoch, [extent(0, 10, new)], claim, {new: SIZE}, now_ms=3)
    partition = store.partition(ORDERS)
    assert [tuple(one.span) for one in partition.extents] == [(0, 10), (10, 20)]
    assert (partition.cleaned, partition.compaction_epoch) == ((Span(0, 10),), 1)
    assert [(tuple(known.span), known.cleaned_at_ms) for known in partition.tombstones] == [((0, 10), 3)]
    assert store.check() == []


def test_of_many_workers_at_once_one_wins_each_epoch(metastore_url: str, store: Metastore) -> None:
    """Four threads race for twenty epochs while two append; nobody's append is lost."""
    append(store, ORDERS, 0, 10)
    won: list[int] = []

    def compact() -> None:
        mine = Metastore.open(metastore_url)
        while (epoch := mine.partition(ORDERS).compaction_epoch) < 20:
            (new,) = mine.register(1, now_ms=epoch)
            span = mine.partition(ORDERS).extents[0].span
            try:
                mine.replace(ORDERS, epoch, [extent(*span, new)], None, {new: SIZE}, now_ms=epoch)
                won.append(epoch)
            except CommitRefused:
                continue
        mine.close()

    appended: list[tuple[int, int]] = []

    def write() -> None:
        mine = Metastore.open(metastore_url)
        for _ in range(15):
            end = mine.partition(ORDERS).next_offset
            try:
                append(mine, ORDERS, end, end + 3)
                appended.append((end, end + 3))
            except CommitRefused:
                continue
        mine.close()

    all_at_once([compact] * 4 + [write] * 2)
    partition = store.partition(ORDERS)
    assert sorted(won) == list(range(20))
    assert [tuple(one.span) for one in partition.extents] == [(0, 10), *sorted(appended)]
    assert store.check() == []
    states = [row.state for row in store.objects().values()]
    assert states.count(COMMITTED) == len(partition.extents)
    assert states.count(UNREFERENCED) == 20


def test_garbage_is_what_nobody_points_at_for_long_enough(store: Metastore) -> None:
    old = append(store, ORDERS, 0, 10, now_ms=10)
    never, new = store.register(2, now_ms=20)
    store.replace(ORDERS, 0, [extent(0, 10, new)], None, {new: SIZE}, now_ms=30)
    assert store.collectable(unreferenced_before_ms=30, registered_before_ms=20) == []
    found = store.collectable(unreferenced_before_ms=31, registered_before_ms=21)
    assert {row.object_id for row in found} == {old, never}
    limits = {"unreferenced_before_ms": 31, "registered_before_ms": 21}
    assert store.condemn([new, old, never], **limits) == sorted([old, never])
    store.forget([old, never])
    assert set(store.objects()) == {new}


def test_what_is_used_meanwhile_is_not_condemned(store: Metastore) -> None:
    """A slow upload that is committed between the plan of a collection and its deed."""
    (slow,) = store.register(1, now_ms=1)
    limits = {"unreferenced_before_ms": 50, "registered_before_ms": 50}
    assert [row.object_id for row in store.collectable(**limits)] == [slow]
    store.append({ORDERS: Append(expected_next=0, extents=(extent(0, 1, slow),))}, {slow: SIZE}, now_ms=60)
    assert store.condemn([slow], **limits) == []
    assert store.check() == []


def test_what_was_collected_can_not_be_committed_any_more(store: Metastore) -> None:
    (slow,) = store.register(1, now_ms=1)
    store.condemn([slow], unreferenced_before_ms=5, registered_before_ms=5)
    with pytest.raises(CommitRefused, match="upload under a new ID"):
        store.append({ORDERS: Append(expected_next=0, extents=(extent(0, 1, slow),))}, {slow: 1}, now_ms=9)


def damage(engine: Engine, statement: object) -> None:
    with engine.begin() as connection:
        connection.execute(statement)  # type: ignore[call-overload]


DAMAGES = {
    "do not meet": update(schema.extents).where(schema.extents.c.span_start == 10).values(span_start=11),
    "does not end at the next offset": update(schema.partitions).values(next_offset=99),
    "is outside the log": update(schema.cleaned).values(span_end=99),
    "does not hold the start offset": update(schema.partitions).values(start_offset=15),
    "is not cleaned": update(schema.tombstones).values(span_end=20),
    "share bytes": update(schema.extents).where(schema.extents.c.position == 100).values(position=99),
    "ends behind its object": update(schema.objects).values(size=150),
    "its object": update(schema.objects).values(state=REGISTERED),
    "no extents for": delete(schema.extents),
    "no extent points at it": insert(schema.objects).values(object_id="x", state=COMMITTED, size=1, changed_ms=1),
}


@pytest.mark.parametrize("found", DAMAGES)
def test_the_checker_finds_damage(engine: Engine, store: Metastore, found: str) -> None:
    (made,) = store.register(1, now_ms=1)
    both = (extent(0, 10, made), extent(10, 20, made, position=100))
    store.append({ORDERS: Append(expected_next=0, extents=both)}, {made: SIZE}, now_ms=1)
    claim = Claim(processed=Span(0, 10), cleaned=(Span(0, 10),), tombstones=(Span(0, 10),))
    store.replace(ORDERS, 0, [], claim, {}, now_ms=2)
    assert store.check() == []
    damage(engine, DAMAGES[found])
    assert any(found in text for text in store.check())


LOOKS: dict[str, Callable[[Metastore], int]] = {
    "a check": lambda store: 10 if store.check() == [] else -1,
    "a partition": lambda store: whole_end(store.partition(ORDERS)),
    "all partitions": lambda store: whole_end(store.snapshot(None)[ORDERS]),
}  # fmt: skip


def whole_end(partition: Partition) -> int:
    return partition.next_offset if violations(partition) == [] else -1


@pytest.mark.parametrize("metastore_url", ["postgresql"], indirect=True)  # SQLite lets nobody write during a look
@pytest.mark.parametrize("look", LOOKS)
def test_what_is_read_is_as_it_was_at_one_moment(metastore_url: str, store: Metastore, look: str) -> None:
    """PostgreSQL shows each statement what was committed before it: an extent of an object that nobody knew."""
    append(store, ORDERS, 0, 10)
    other, table = Metastore.open(metastore_url), "FROM objects" if look == "a check" else "JOIN topics"
    looks = iter(("the first", "those behind it"))

    def append_after_the_first(*arguments: object) -> None:
        if table in str(arguments[2]) and next(looks, None) == "the first":
            append(other, ORDERS, 10, 20)

    event.listen(store._engine, "after_cursor_execute", append_after_the_first)
    assert (LOOKS[look](store), next(looks)) == (10, "those behind it")
    assert store.partition(ORDERS).next_offset == 20
    other.close()


def test_many_partitions_are_read_in_few_statements(store: Metastore) -> None:
    store.create_topic("many", 1200)
    names = [TopicPartition("many", number) for number in range(1200)]
    (made,) = store.register(1, now_ms=1)
    appends = {
        name: Append(expected_next=0, extents=(extent(0, 1 + i, made, position=i, length=1),)) for i, name in enumerate(names)
    }  # fmt: skip
    store.append(appends, {made: SIZE}, now_ms=1)
    append(store, ORDERS, 0, 10)
    store.replace(
        ORDERS, 0, [], Claim(processed=Span(0, 10), cleaned=(Span(0, 10),), tombstones=(Span(0, 9),)), {}, now_ms=5
    )
    statements: list[str] = []
    event.listen(store._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    some = store.snapshot([OTHER, *names[:3], ORDERS])
    assert len(statements) < 10
    everything = store.snapshot(None)
    assert len(statements) < 30
    assert list(everything) == store.partitions() == sorted([ORDERS, OTHER, *names])
    assert some == {name: store.partition(name) for name in sorted([OTHER, *names[:3], ORDERS])}
    assert some.items() <= everything.items()
    assert [everything[name].next_offset for name in names] == list(range(1, 1201))
    assert store.snapshot([]) == {}
    with pytest.raises(UsageError, match="no partition orders-7"):
        store.snapshot([ORDERS, TopicPartition("orders", 7)])


def test_leveling_waits_for_whoever_works_on_the_partition(store: Metastore) -> None:
    """A compaction that runs knows the extents as they were; merged under it, they would no longer fit."""
    append(store, ORDERS, 0, 10)
    append(store, ORDERS, 10, 20)
    made, mine = store.register(2, now_ms=2)
    leases = Leases(store)
    assert leases.take(ORDERS, "worker", now_ms=3, lease_ms=100)
    before = store.partition(ORDERS)
    for worker in (None, "another"):
        with pytest.raises(CommitRefused, match="worker is working on this partition: leveling waits"):
            store.level(ORDERS, 0, [extent(0, 20, made)], {made: SIZE}, worker=worker, now_ms=102)
    assert (store.partition(ORDERS), store.check()) == (before, [])
    store.level(ORDERS, 0, [extent(0, 20, made)], {made: SIZE}, worker="worker", now_ms=102)
    store.level(ORDERS, 0, [extent(0, 20, mine)], {mine: SIZE}, now_ms=103)
    assert store.partition(ORDERS).extents == (extent(0, 20, mine),)


def test_a_hold_and_a_commit_that_ignores_it_do_not_pass_each_other(metastore_url: str, store: Metastore) -> None:
    """Whoever comes second sees the first: a hold that is acknowledged before the commit is kept by it."""
    append(store, ORDERS, 0, 10)
    claim = Claim(processed=Span(0, 10), cleaned=(Span(0, 10),), tombstones=(Span(0, 10),))
    store.replace(ORDERS, 0, [], claim, {}, now_ms=2)
    removal = Claim(processed=Span(0, 10), cleaned=(Span(0, 10),), tombstones_removed=(Span(0, 10),))
    outcomes: list[str] = []
    other = Metastore.open(metastore_url)

    def commit() -> None:
        try:
            other.replace(ORDERS, 1, [], removal, {}, tombstones_below=10, now_ms=5)
            outcomes.append("removed")
        except CommitRefused as error:
            outcomes.append(str(error))

    thread = threading.Thread(target=commit)
    with store.transaction() as connection:
        located(connection, ORDERS, lock=True)
        thread.start()
        thread.join(0.3)  # it waits for the lock that a hold takes
        row = {"reader": "r", "partition_id": partition_id_of(connection, ORDERS), "held_from": 4, "expires_ms": 100}
        connection.execute(insert(schema.holds).values(**row))
    thread.join()
    other.close()
    assert outcomes == ["r holds tombstones from offset 4 on, set since this job began"]
    assert [known.span for known in store.partition(ORDERS).tombstones] == [Span(0, 10)]


def test_a_hold_is_taken_under_the_lock_of_its_partition(metastore_url: str, store: Metastore) -> None:
    append(store, ORDERS, 0, 10)
    other = Metastore.open(metastore_url)
    thread = threading.Thread(target=lambda: Holds(other).hold("r", ORDERS, 4, expires_ms=100))
    with store.transaction() as connection:
        located(connection, ORDERS, lock=True)
        thread.start()
        thread.join(0.3)
        assert connection.execute(select(schema.holds)).all() == []
        assert thread.is_alive()
    thread.join()
    assert Holds(store).lowest(now_ms=5) == {ORDERS: 4}
    other.close()


def test_a_second_lake_in_the_same_database_is_refused(metastore_url: str, store: Metastore) -> None:
    del store
    with pytest.raises(UsageError, match="already contains a lake"):
        Metastore.create(metastore_url, location="memory://other", now_ms=1)


def test_a_database_without_a_lake_is_refused(metastore_url: str) -> None:
    with pytest.raises(UsageError, match="has no lake"):
        Metastore.open(metastore_url)


@pytest.mark.parametrize("version", [schema.VERSION - 1, schema.VERSION + 1])
def test_a_metastore_of_another_version_is_left_alone(
    metastore_url: str, engine: Engine, store: Metastore, version: int
) -> None:
    append(store, ORDERS, 0, 10)
    damage(engine, update(schema.lakes).values(version=version))
    before = everything(engine)
    with pytest.raises(UsageError, match="use the headstone that created the lake"):
        Metastore.open(metastore_url)
    assert everything(engine) == before


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("mysql://host/db", UsageError), ("no url", UsageError), ("sqlite:////no/such/folder/lake.db", UsageError),
        ("postgresql://nobody@127.0.0.1:1/lake", Unfinished),
    ],
)  # fmt: skip
def test_a_wrong_url_says_so(url: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"metastore|has no lake"):
        Metastore.open(url)


def test_the_dead_records_of_an_extent_are_listed_in_another_object(store: Metastore) -> None:
    """The object of its batches stays in use, and the list is garbage when a longer one takes its place."""
    data = append(store, ORDERS, 0, 10)
    first, second = store.register(2, now_ms=2)
    (known,) = store.partition(ORDERS).extents
    marked = replace(known, records=8, dead=2, dead_object=first, dead_position=8)
    store.replace(ORDERS, 0, [marked], None, {first: 100}, now_ms=3)
    assert (store.partition(ORDERS).extents, store.check()) == ((marked,), [])
    more = replace(marked, records=5, dead=5, dead_object=second)
    store.replace(ORDERS, 1, [more], None, {second: 100}, now_ms=4)
    assert (store.partition(ORDERS).extents, store.check()) == ((more,), [])
    states = {row.object_id: row.state for row in store.objects().values()}
    assert states == {data: COMMITTED, first: UNREFERENCED, second: COMMITTED}
    (third,) = store.register(1, now_ms=5)
    for fewer in (marked, more):
        with pytest.raises(CommitRefused, match="no longer exists"):
            store.replace(ORDERS, 2, [replace(fewer, dead_object=third)], None, {third: 100}, now_ms=6)
    assert store.partition_as_of(ORDERS, 3).extents == (marked,)
    assert store.condemn([first], unreferenced_before_ms=9, registered_before_ms=0) == [first]
    with pytest.raises(UsageError, match="gc has removed what was replaced"):
        store.partition_as_of(ORDERS, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": 8}, {"object_id": "another"}, {"checksum": 1}, {"span": Span(0, 11)}, {"records": 9}, {"dead": 0},
        {"keys": 4},
    ],
    ids=str,
)  # fmt: skip
def test_dead_records_are_marked_in_the_extent_that_is_there(store: Metastore, wrong: dict[str, object]) -> None:
    append(store, ORDERS, 0, 10)
    (made,) = store.register(1, now_ms=2)
    (known,) = store.partition(ORDERS).extents
    marked = replace(known, records=8, dead=2, dead_object=made, dead_position=8)
    with pytest.raises(CommitRefused):
        store.replace(ORDERS, 0, [replace(marked, **wrong)], None, {made: 100}, now_ms=3)  # type: ignore[arg-type]
    assert (store.partition(ORDERS).extents, store.check()) == ((known,), [])
    with pytest.raises(CommitRefused, match="leave them out"):
        store.level(ORDERS, 0, [marked], {made: 100}, now_ms=3)


def test_two_partitions_that_share_an_object_are_marked_at_once(store: Metastore) -> None:
    """Neither waits for the other for ever, as PostgreSQL would let them with the wrong locks."""
    (shared,) = store.register(1, now_ms=1)
    both = {ORDERS: extent(0, 10, shared), OTHER: extent(0, 10, shared, position=100)}
    store.append({at: Append(expected_next=0, extents=(one,)) for at, one in both.items()}, {shared: SIZE}, now_ms=1)
    failures: list[HeadstoneError] = []

    def mark(at: TopicPartition, barrier: threading.Barrier, dead: int) -> None:
        try:
            (made,) = store.register(1, now_ms=2)
            partition = store.partition(at)
            marked = replace(partition.extents[0], records=10 - dead, dead=dead, dead_object=made)
            barrier.wait(60)
            store.replace(at, partition.compaction_epoch, [marked], None, {made: 100}, now_ms=3)
        except HeadstoneError as error:
            failures.append(error)

    for dead in range(1, 10):
        barrier = threading.Barrier(2)
        all_at_once([partial(mark, at, barrier, dead) for at in both])
    assert (failures, store.check()) == ([], [])
    assert [store.partition(at).extents[0].dead for at in both] == [9, 9]


def test_a_job_that_the_start_offset_has_overtaken_leaves_garbage_only(store: Metastore) -> None:
    append(store, ORDERS, 0, 10)
    append(store, ORDERS, 10, 20)
    (first, _) = store.partition(ORDERS).extents
    made = store.register(3, now_ms=2)
    store.start_at(ORDERS, 15, now_ms=3)
    store.replace(ORDERS, 0, [extent(0, 10, made[0])], None, {made[0]: SIZE}, now_ms=4)
    marked = replace(first, records=9, dead=1, dead_object=made[1])
    store.replace(ORDERS, 1, [marked], None, {made[1]: SIZE}, now_ms=5)
    store.level(ORDERS, 2, [extent(0, 10, made[2])], {made[2]: SIZE}, now_ms=6)
    assert store.check() == []
    found = store.collectable(unreferenced_before_ms=10, registered_before_ms=0)
    assert {row.object_id for row in found} == {first.object_id, *made}


def test_a_topic_is_created_once(store: Metastore) -> None:
    with pytest.raises(UsageError, match="already exists"):
        store.create_topic("orders", 1)
    with pytest.raises(UsageError, match="no partition orders-7"):
        store.partition(TopicPartition("orders", 7))


def test_two_listeners_hear_of_a_commit_in_the_order_in_which_they_came(store: Metastore) -> None:
    heard = list[tuple[str, list[str]]]()
    store.after_commit.add(lambda: heard.append(("first", sorted(store.topics()))))
    store.after_commit.add(lambda: heard.append(("second", sorted(store.topics()))))
    store.create_topic("users", 1)
    assert heard == [("first", ["orders", "users"]), ("second", ["orders", "users"])]
    store.register(1)  # of which the log of no partition is made so far
    with pytest.raises(UsageError, match="users"):
        store.create_topic("users", 1)
    assert len(heard) == 2


def test_a_listener_that_fails_takes_no_commit_back_and_those_behind_it_hear_of_the_next_one(store: Metastore) -> None:
    heard, errors = list[list[str]](), [Unfinished("the store refuses it")]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    store.after_commit.add(fail_once)
    store.after_commit.add(lambda: heard.append(sorted(store.topics())))
    with pytest.raises(Unfinished, match="the store refuses it"):
        store.create_topic("users", 1)
    assert (sorted(store.topics()), heard) == (["orders", "users"], [])
    store.create_topic("more", 1)
    assert heard == [["more", "orders", "users"]]
