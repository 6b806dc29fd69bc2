"""Readers that take longer than the time of grace: what they have pinned stays, for as long as they are there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Connection

from headstone.brokers.processes import wait_until
from headstone.errors import HeadstoneError, Unfinished
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.metastore import pins as pins_module
from headstone.lake.metastore.clock import SkewedClock
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.pins import PIN_MS, UNDERWAY_MS, Pin, Pins, pinned
from headstone.lake.transfer.reading import record_batches, snapshot
from headstone.storage.stores import MissingObject
from tests.lake.scene import AT, Scene

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
