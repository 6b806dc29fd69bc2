"""Garbage collection: what is committed while it looks is not garbage, what a slow reader has pinned stays, and the past is
known as far back as collections and rebuilds have left it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from headstone.brokers.processes import wait_until
from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.lake.format.objects import object_path
from headstone.lake.jobs import collection
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.jobs.store_check import check_store
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore import pins as pins_module
from headstone.lake.metastore.clock import SkewedClock
from headstone.lake.metastore.commits import Append
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.pins import PIN_MS, UNDERWAY_MS, Pin, Pins, pinned
from headstone.lake.metastore.replay import replayed
from headstone.lake.transfer.export_cluster import brokers_of
from headstone.lake.transfer.export_run import requested, run_export
from headstone.lake.transfer.reading import record_batches, records, snapshot
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board
from headstone.storage.stores import Listed, MissingObject
from tests.lake.appending import SIZE, extent, put
from tests.lake.databases import another, back_up
from tests.lake.scene import AT, Scene

ORPHAN = "abc00000-0000-4000-8000-000000000000"


def test_an_object_that_is_committed_while_the_store_is_listed_is_no_orphan(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is asked first: whatever is in it then was registered before."""
    scene.write("N[a]")
    store = scene.lake.store
    listed = store.entries

    def late(prefix: str = "") -> Iterator[Listed]:
        if not prefix:  # all of the store, and not a folder of the journal
            monkeypatch.undo()
            scene.write("N[b]")
        return listed(prefix)

    monkeypatch.setattr(store, "entries", late)
    found = garbage(scene.lake, now_ms=10**9, grace_ms=0, upload_ms=0)
    assert (found.orphans, found.rows) == ([], [])
    assert (collect(scene.lake, found), [key for _, key, _ in scene.held()]) == ([], [b"a", b"b"])


def test_what_is_in_the_store_and_known_to_nobody_goes_after_a_grace_of_its_own(scene: Scene) -> None:
    """An upload that ended after its row was collected; or one that a metastore of another time has known."""
    scene.write("N[a]")
    with scene.lake.store.writing(object_path(ORPHAN)) as sink:
        sink.write(b"late")
    scene.lake.metastore.give_clock(10)
    found = garbage(scene.lake, now_ms=10, grace_ms=100)
    assert (found.orphans, collect(scene.lake, found)) == ([ORPHAN], [])
    assert garbage(scene.lake, now_ms=110, grace_ms=100).rows == []
    found = garbage(scene.lake, now_ms=111, grace_ms=100)
    assert (found.orphans, collect(scene.lake, found)) == ([], [ORPHAN])
    assert len(scene.lake.store.list("objects")) == 1


def test_an_object_of_another_lake_is_not_collected(scene: Scene, tmp_path: Path) -> None:
    """A backup that was put back under the wrong prefix: it says itself whose it is. One that was cut off says nothing."""
    scene.write("N[a]")
    with create_lake(f"sqlite:///{tmp_path / 'other.db'}", f"file://{tmp_path / 'other'}", now_ms=0) as other:
        Scene(other, tmp_path / "logs of other").write("N[b]")
        (path,) = other.store.list("objects")
        content = other.store.read(path, 0, other.store.size(path))
    store = scene.lake.store
    store.put(path, content)
    store.put(object_path(ORPHAN), content[:-1])
    scene.lake.metastore.give_clock(10)
    for orphans, gone in (([ORPHAN], []), ([], [ORPHAN])):
        found = garbage(scene.lake, now_ms=10**6, grace_ms=0)
        check = check_store(scene.lake)
        assert (found.orphans, found.foreign, check.foreign) == (orphans, [path], [path])
        assert check.orphans == [object_path(name) for name in orphans]
        assert collect(scene.lake, found) == gone
    assert store.read(path, 0, len(content)) == content


def test_an_orphan_that_two_collectors_find_is_noted_once(any_lake: Lake) -> None:
    """At the time of the first: its grace does not begin anew."""
    lake = any_lake
    lake.store.put(object_path(ORPHAN), b"late")
    first, second = (garbage(lake, now_ms=1) for _ in range(2))
    for now_ms, found in ((10, first), (20, second)):
        lake.metastore.give_clock(now_ms)
        assert collect(lake, found) == []
    assert lake.metastore.objects()[ORPHAN].changed_ms == 10


def test_a_collection_counts_objects_and_stops_between_two_batches(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        scene.write("N[a]")
        scene.compact(now_ms=10)
    monkeypatch.setattr(collection, "BATCH", 1)
    boards = [Board(), Board()]
    first = collect(
        scene.lake, garbage(scene.lake, now_ms=200, grace_ms=100), boards[0], stop=lambda: boards[0].total()[0] == 2
    )
    second = collect(scene.lake, garbage(scene.lake, now_ms=200, grace_ms=100), boards[1])
    assert [(board.expected, board.total()[0]) for board in boards] == [(3, 2), (1, 1)]
    assert (len(first), len(second), scene.lake.metastore.check()) == (2, 1, [])
    assert {path.rpartition("/")[2] for path in scene.lake.store.list("objects")}.isdisjoint([*first, *second])


def test_what_was_replaced_or_never_used_waits_for_its_time(scene: Scene) -> None:
    scene.write("N[a]")
    scene.write("N[a]")
    replaced = {extent.object_id for extent in scene.lake.metastore.partition(AT).extents}
    scene.compact(now_ms=10)
    left = {extent.object_id for extent in scene.lake.metastore.partition(AT).extents}
    (unused,) = scene.lake.metastore.register(1, now_ms=20)

    def found(**times: int) -> set[str]:
        return {row.object_id for row in garbage(scene.lake, **times).rows}

    assert found(now_ms=100, grace_ms=100, upload_ms=100) == set()
    assert found(now_ms=200, grace_ms=100, upload_ms=1000) == replaced - left
    assert found(now_ms=200, grace_ms=1000, upload_ms=100) == {unused}


def test_nothing_is_deleted_to_which_the_journal_still_points(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compaction that left it was committed, and its process killed before the store heard of it."""
    lake = scene.lake
    scene.write("N[a]")
    scene.write("N[a]")
    lake.metastore.after_commit = Listeners()
    scene.compact(now_ms=10)
    delete, deleted = lake.store.delete, list[str]()

    def told_before(paths: Iterable[str]) -> None:
        gone = [path for path in paths if path.startswith("objects/")]
        logs = replayed(lake.store, lake.metastore.lake_id).logs.values()
        needed = {object_path(extent.object_id) for log in logs for extent in log.extents.values()}
        assert needed.isdisjoint(gone)
        deleted.extend(gone)
        delete(gone)

    monkeypatch.setattr(lake.store, "delete", told_before)
    monkeypatch.setattr(lake.metastore, "after_commit", Listeners())
    assert len(collect(lake, garbage(lake, now_ms=10**9, grace_ms=0))) == len(deleted) > 0


HOUR_MS = 3_600_000


def collected(scene: Scene, now_ms: int) -> int:
    """Without any grace."""
    return len(collect(scene.lake, garbage(scene.lake, now_ms=now_ms, grace_ms=0)))


def offsets(scene: Scene, as_of_ms: int | None = None) -> list[int]:
    partition = snapshot(scene.lake, AT, as_of_ms)
    batches = record_batches(scene.lake.store, AT, partition.extents, 0)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def filled(scene: Scene) -> Scene:
    for terms in ("N[c,d]", "N[a,b]", "N[a,b]"):
        scene.write(terms, now_ms=HOUR_MS)
    scene.lake.metastore.give_clock(HOUR_MS)
    return scene


def read_slowly(scene: Scene) -> list[int]:
    """A compaction and a collection come behind the first extent; the second is replaced."""
    batches = record_batches(scene.lake.store, AT, snapshot(scene.lake, AT).extents, 0)
    read = next(batches).column("offset").to_pylist()
    scene.compact(now_ms=HOUR_MS + 1)
    collected(scene, HOUR_MS + 2)
    return [*read, *(offset for batch in batches for offset in batch.column("offset").to_pylist())]


def test_a_slow_reader_goes_on_while_garbage_is_collected(scene: Scene) -> None:
    filled(scene)
    with pinned(scene.lake.metastore, "slow"):
        assert read_slowly(scene) == [0, 1, 2, 3, 4, 5]
        assert [pin.reader for pin in Pins(scene.lake.metastore).all()] == ["slow"]
    assert Pins(scene.lake.metastore).all() == []
    assert collected(scene, HOUR_MS + 2) > 0


def test_without_a_pin_it_fails(scene: Scene) -> None:
    with pytest.raises(MissingObject):
        read_slowly(filled(scene))


def test_the_pin_of_a_reader_that_died_expires_and_one_that_is_renewed_does_not(scene: Scene) -> None:
    filled(scene)
    pins = Pins(scene.lake.metastore)
    pin = pins.pin("spark", now_ms=HOUR_MS, for_ms=2 * HOUR_MS)
    assert pin == Pin(pin_id=pin.pin_id, reader="spark", as_of_ms=HOUR_MS - UNDERWAY_MS, expires_ms=3 * HOUR_MS)
    scene.compact(now_ms=2 * HOUR_MS)
    assert collected(scene, 3 * HOUR_MS - 1) == 0
    assert pins.renew(pin, for_ms=HOUR_MS, now_ms=3 * HOUR_MS - 1)
    assert collected(scene, 3 * HOUR_MS) == 0
    assert not pins.renew(pin, now_ms=4 * HOUR_MS)
    assert collected(scene, 4 * HOUR_MS) > 0
    assert pins.all(now_ms=4 * HOUR_MS) == []


def test_a_pin_of_the_past_keeps_what_is_left_of_it(scene: Scene) -> None:
    filled(scene)
    scene.compact(now_ms=2 * HOUR_MS)
    before = offsets(scene, HOUR_MS)
    pins = Pins(scene.lake.metastore)
    pin = pins.pin("past", as_of_ms=HOUR_MS, now_ms=3 * HOUR_MS, for_ms=HOUR_MS)
    assert (collected(scene, 3 * HOUR_MS), offsets(scene, HOUR_MS)) == (0, before)
    pins.release(pin)
    assert collected(scene, 3 * HOUR_MS) > 0


def test_what_was_left_before_a_pin_is_nobodys(scene: Scene) -> None:
    filled(scene)
    scene.compact(now_ms=2 * HOUR_MS)
    Pins(scene.lake.metastore).pin("late", now_ms=3 * HOUR_MS, for_ms=HOUR_MS)
    assert collected(scene, 3 * HOUR_MS) > 0


def test_a_commit_that_was_under_way_when_the_pin_was_taken_is_behind_it(scene: Scene) -> None:
    """Its time is older than the pin's, and the reader has seen the log from before it."""
    filled(scene)
    Pins(scene.lake.metastore).pin("reader", now_ms=2 * HOUR_MS, for_ms=2 * HOUR_MS)
    scene.compact(now_ms=2 * HOUR_MS - UNDERWAY_MS + 1)
    assert collected(scene, 3 * HOUR_MS) == 0


def test_a_pin_that_is_taken_between_the_plan_and_the_collection_counts(scene: Scene) -> None:
    filled(scene)
    scene.compact(now_ms=2 * HOUR_MS)
    found = garbage(scene.lake, now_ms=3 * HOUR_MS, grace_ms=0)
    assert found.rows
    Pins(scene.lake.metastore).pin("past", as_of_ms=HOUR_MS, now_ms=3 * HOUR_MS, for_ms=HOUR_MS)
    assert collect(scene.lake, found) == []


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Callable[[HeadstoneError | None], None]:
    """Whoever asks the metastore meets this error, until there is none. Pins are renewed all the time."""
    monkeypatch.setattr(pins_module, "RENEWALS", PIN_MS)
    monkeypatch.setattr(pins_module, "RETRY_MS", 1)
    answers, errors = Metastore.transaction, list[HeadstoneError]()
    met = threading.Event()

    def transaction(self: Metastore, *, snapshot: bool = False) -> AbstractContextManager[Connection]:
        if errors:
            met.set()
            raise errors[0]
        return answers(self, snapshot=snapshot)

    def begin(error: HeadstoneError | None) -> None:
        errors[:] = [] if error is None else [error]
        if error is not None:
            met.clear()
            assert met.wait(60)

    monkeypatch.setattr(Metastore, "transaction", transaction)
    return begin


ERRORS = (Unfinished("the metastore does not answer"), SkewedClock("the clock of this host is wrong"))


@pytest.mark.parametrize("error", ERRORS)
def test_a_pin_that_expired_in_an_outage_is_taken_again(
    scene: Scene, outage: Callable[[HeadstoneError | None], None], error: HeadstoneError
) -> None:
    """The reader began two hours ago, and reads what a compaction has replaced since."""
    filled(scene)
    metastore = scene.lake.metastore
    with pinned(metastore, "slow") as pin:
        state = snapshot(scene.lake, AT)
        scene.compact(now_ms=2 * HOUR_MS)
        outage(error)
        outage(None)
        metastore.give_clock(3 * HOUR_MS)
        wait_until(lambda: Pins(metastore).all() != [], "it is pinned again", seconds_max=60)
        (again,) = Pins(metastore).all()
        assert (again.pin_id, again.as_of_ms) == (pin.pin_id, HOUR_MS - UNDERWAY_MS)
        assert again.expires_ms >= 3 * HOUR_MS + PIN_MS
        assert collected(scene, 3 * HOUR_MS) == 0
        assert sum(batch.num_rows for batch in record_batches(scene.lake.store, AT, state.extents, 0)) == 6
    assert Pins(metastore).all() == []


def test_two_who_take_an_expired_pin_again_at_once_have_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that keeps it, and the reader that has met what is gone."""
    filled(scene)
    pins = Pins(scene.lake.metastore)
    pin = pins.pin("slow", now_ms=HOUR_MS, for_ms=10)
    monkeypatch.setattr(Pins, "renew", lambda *arguments, **options: False)
    assert [pins.keep(pin, now_ms=2 * HOUR_MS) for _ in range(2)] == [False, False]
    assert [(kept.pin_id, kept.as_of_ms) for kept in pins.all(now_ms=2 * HOUR_MS)] == [(pin.pin_id, pin.as_of_ms)]


@pytest.mark.parametrize("is_back", [True, False])
def test_a_reader_whose_pin_expired_is_told_why_an_object_is_gone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    """Also if the metastore still does not answer when it asks."""
    filled(scene)
    metastore = scene.lake.metastore

    def gone(self: Metastore, *, snapshot: bool = False) -> AbstractContextManager[Connection]:
        raise ERRORS[0]

    def read() -> None:
        with pinned(metastore, "slow"):
            state = snapshot(scene.lake, AT)
            scene.compact(now_ms=2 * HOUR_MS)
            metastore.give_clock(3 * HOUR_MS)
            assert collected(scene, 3 * HOUR_MS) > 0
            if not is_back:
                monkeypatch.setattr(pins_module, "PIN_MS", 0)
                monkeypatch.setattr(Metastore, "transaction", gone)
            list(record_batches(scene.lake.store, AT, state.extents, 0))

    with pytest.raises(Unfinished, match=r"longer than a pin lasts .*, and gc has removed what was being read"):
        read()


def test_an_object_that_is_gone_for_another_reason_is_told_as_it_is(scene: Scene) -> None:
    filled(scene)
    with pytest.raises(MissingObject), pinned(scene.lake.metastore, "slow"):
        scene.lake.store.read("objects/00/nothing", 0, 1)


OTHER = TopicPartition("u", 0)


def keys_as_of(lake: Lake, at: TopicPartition, moment_ms: int) -> list[bytes | None] | None:
    """None: that is not known any more, and an error says so."""
    try:
        return [record.key for record in records(lake, at, as_of_ms=moment_ms)]
    except UsageError:
        return None


def replace_by(metastore: Metastore, at: TopicPartition, object_id: str, now_ms: int) -> None:
    epoch = metastore.partition(at).compaction_epoch
    metastore.replace(at, epoch, [extent(0, 10, object_id)], None, {object_id: SIZE}, now_ms=now_ms)


def collect_all(metastore: Metastore, object_ids: list[str], now_ms: int) -> None:
    limits = {"unreferenced_before_ms": now_ms, "registered_before_ms": 0, "now_ms": now_ms}
    assert metastore.condemn(object_ids, **limits) == sorted(object_ids)
    metastore.forget(object_ids)


def is_known(metastore: Metastore, at: TopicPartition, moment_ms: int) -> bool:
    try:
        metastore.partition_as_of(at, moment_ms)
    except UsageError as error:
        return "gc has removed what was replaced" not in str(error)
    return True


@pytest.mark.parametrize("turns", [((0, 1),), ((0,), (1,)), ((1,), (0,))], ids=["at once", "in order", "out of order"])
def test_the_past_is_known_from_the_last_collected_object_on(
    metastore: Metastore, turns: tuple[tuple[int, ...], ...]
) -> None:
    """Of two that are collected together, the later; of one that is collected before or after another, also the later. Of a
    partition from which nothing was collected all of it."""
    metastore.create_topic("t", 1)
    metastore.create_topic("u", 1)
    for at in (AT, OTHER):
        made = metastore.register(3, now_ms=0)
        metastore.append({at: Append(expected_next=0, extents=(extent(0, 10, made[0]),))}, {made[0]: SIZE}, now_ms=1)
        replace_by(metastore, at, made[1], 10)
        replace_by(metastore, at, made[2], 20)
        if at == AT:
            old = made
    metastore.give_clock(100)
    for numbers in turns:
        collect_all(metastore, [old[number] for number in numbers], 100)
    assert [is_known(metastore, AT, moment_ms) for moment_ms in (5, 9, 10, 15, 19, 20, 50)] == [False] * 5 + [True] * 2
    assert [is_known(metastore, OTHER, moment_ms) for moment_ms in (5, 10, 50)] == [True] * 3
    assert metastore.check() == []


def test_a_rebuilt_lake_knows_no_past_before_it_was_rebuilt(scene: Scene, tmp_path: Path) -> None:
    """What was replaced before is not in the journal: without it the log of then lacks records."""
    lake = scene.lake
    lake.metastore.give_clock(1)
    scene.write("N[a]", now_ms=1)
    lake.metastore.give_clock(10)
    scene.write("N[b]", now_ms=10)
    lake.metastore.give_clock(20)
    scene.write("N[a]", now_ms=20)
    scene.compact(now_ms=20, dead_share_max=0)
    lake.metastore.create_topic("u", 1)
    put(lake, OTHER, [(b"k", b"v")], now_ms=20)
    lake.metastore.give_clock(30)
    assert keys_as_of(lake, AT, 15) == [b"a", b"b"]
    made = open_for_rebuild(f"sqlite:///{tmp_path / 'again.db'}", lake.store.url)
    made.metastore.give_clock(40)
    rebuild(made)
    assert [keys_as_of(made, AT, moment_ms) for moment_ms in (15, 25, 39)] == [None] * 3
    assert [keys_as_of(made, OTHER, moment_ms) for moment_ms in (15, 25, 39)] == [None] * 3
    assert (keys_as_of(made, AT, 40), keys_as_of(made, OTHER, 40)) == ([b"b", b"a"], [b"k"])
    out = tmp_path / "out"
    out.mkdir()
    brokers = brokers_of([out])
    request = requested(brokers, ["t"], topic_ids={"t": "AAAAAAAAQACAAAAAAAAAAQ"}, as_of_ms=15)
    with pytest.raises(UsageError, match="gc has removed what was replaced"):
        run_export(made, request, brokers, InProcess(1), reader="test")
    made.close()


def test_a_metastore_that_was_set_back_knows_the_past_of_what_has_changed_since_from_the_rebuild_on(
    lake: Lake, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    scene = Scene(lake, tmp_path)
    lake.metastore.create_topic("u", 1)
    put(lake, OTHER, [(b"k", b"v")], now_ms=1)
    scene.write("N[a]", now_ms=1)
    back_up(lake, url)
    lake.metastore.give_clock(20)
    scene.write("N[a]", now_ms=20)
    scene.compact(now_ms=20, dead_share_max=0)
    old = open_for_rebuild(another(url), None)
    old.metastore.give_clock(30)
    assert rebuild(old).changed == ("t-0",)
    assert [keys_as_of(old, AT, moment_ms) for moment_ms in (5, 25)] == [None, None]
    assert [keys_as_of(old, OTHER, moment_ms) for moment_ms in (5, 25)] == [[b"k"], [b"k"]]
    collect(old, garbage(old, now_ms=old.metastore.clock()))
    assert keys_as_of(old, AT, 30) == [b"a"]
    old.close()
