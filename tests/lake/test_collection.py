"""Garbage collection beside writers: what is committed while it looks is not garbage."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.lake import collection
from headstone.lake.collection import collect, garbage
from headstone.lake.lake import create_lake
from headstone.pipeline.progress import Board
from tests.lake.scene import AT, Scene


def test_an_object_that_is_committed_while_the_store_is_listed_is_no_orphan(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is asked first: whatever is in it then was registered before."""
    scene.write("N[a]")
    store = scene.lake.store
    listed = store.list

    def late(prefix: str = "") -> list[str]:
        monkeypatch.undo()
        scene.write("N[b]")
        return listed(prefix)

    monkeypatch.setattr(store, "list", late)
    found = garbage(scene.lake, now_ms=10**9, grace_ms=0, upload_ms=0)
    assert (found.orphans, found.rows) == ([], [])
    assert (collect(scene.lake, found), [key for _, key, _ in scene.held()]) == ([], [b"a", b"b"])


def test_what_is_in_the_store_and_known_to_nobody_goes_after_a_grace_of_its_own(scene: Scene) -> None:
    """An upload that ended after its row was collected; or one that a metastore of another time has known."""
    scene.write("N[a]")
    with scene.lake.store.writing("objects/ab/abc") as sink:
        sink.write(b"late")
    scene.lake.metastore.give_clock(10)
    found = garbage(scene.lake, now_ms=10, grace_ms=100)
    assert (found.orphans, collect(scene.lake, found)) == (["abc"], [])
    assert garbage(scene.lake, now_ms=110, grace_ms=100).rows == []
    found = garbage(scene.lake, now_ms=111, grace_ms=100)
    assert (found.orphans, collect(scene.lake, found)) == ([], ["abc"])
    assert len(scene.lake.store.list("objects")) == 1


def test_an_orphan_that_two_collectors_find_is_noted_once(metastore_url: str, tmp_path: Path) -> None:
    """At the time of the first: its grace does not begin anew."""
    lake = create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)
    lake.store.put("objects/ab/abc", b"late")
    first, second = (garbage(lake, now_ms=1) for _ in range(2))
    for now_ms, found in ((10, first), (20, second)):
        lake.metastore.give_clock(now_ms)
        assert collect(lake, found) == []
    assert lake.metastore.objects()["abc"].changed_ms == 10
    lake.close()


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
