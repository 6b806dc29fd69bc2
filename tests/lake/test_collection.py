"""Garbage collection beside writers: what is committed while it looks is not garbage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from headstone.lake.format.objects import object_path
from headstone.lake.jobs import collection
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.store_check import check_store
from headstone.lake.lake import create_lake
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.replay import replayed
from headstone.pipeline.progress import Board
from headstone.storage.stores import Listed
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


def test_an_orphan_that_two_collectors_find_is_noted_once(metastore_url: str, tmp_path: Path) -> None:
    """At the time of the first: its grace does not begin anew."""
    lake = create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0)
    lake.store.put(object_path(ORPHAN), b"late")
    first, second = (garbage(lake, now_ms=1) for _ in range(2))
    for now_ms, found in ((10, first), (20, second)):
        lake.metastore.give_clock(now_ms)
        assert collect(lake, found) == []
    assert lake.metastore.objects()[ORPHAN].changed_ms == 10
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
