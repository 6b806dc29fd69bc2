"""Garbage collection beside writers: what is committed while it looks is not garbage."""

from __future__ import annotations

import pytest

from headstone.lake import collection
from headstone.lake.collection import collect, garbage
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


def test_a_long_collection_tells_how_far_it_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        scene.write("N[a]")
        scene.compact(now_ms=10)
    texts: list[str] = []
    monkeypatch.setattr(collection, "BATCH", 1)
    gone = collect(scene.lake, garbage(scene.lake, now_ms=200, grace_ms=100), texts.append)
    assert (len(gone), texts) == (2, ["deleted 1 of 2 objects"])


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
