"""Where the records of keys are: what a reader of every record would find, for the price of reading each list once."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstone.lake.format.keyindex import section_bytes
from headstone.lake.format.objects import read_dead
from headstone.lake.jobs import key_search
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, request_erasure
from headstone.lake.jobs.key_search import KeySearch, among, digest_of
from headstone.lake.lake import Lake, create_lake
from headstone.lake.metastore.erasure_steps import ERASED, VALUES_REMOVED
from headstone.lake.metastore.erasures import Erasures
from headstone.lake.transfer.reading import records_in
from headstone.pipeline import progress
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board
from tests.lake.scene import AT, RETENTION_MS, Scene

Found = list[tuple[bytes | None, int, bool, bool]]


def digests_of(lake: Lake, keys: Collection[bytes]) -> dict[str, bytes]:
    return {digest_of(key, lake.metastore.hash_key): key for key in keys}


def found(lake: Lake, search: KeySearch, keys: Collection[bytes]) -> Found:
    digests = digests_of(lake, keys)
    return [
        (digests[record.digest], record.offset, record.tombstone, record.shown)
        for record in search.records("t", digests)
    ]


def expected(lake: Lake, keys: Collection[bytes]) -> Found:
    """From the batches: the dead are read as if nobody had marked them."""
    partition = lake.metastore.partition(AT)
    hits: Found = []
    for extent in partition.extents:
        dead = set(read_dead(lake.store, extent).tolist())
        bare = replace(extent, dead=0, dead_object=None, records=extent.records + extent.dead)
        for entry in records_in(lake.store, [bare], 0):
            if entry.key in keys:
                shown = entry.offset >= partition.start_offset and entry.offset not in dead
                hits.append((entry.key, entry.offset, entry.value is None, shown))
    return hits


@pytest.mark.parametrize("seed", range(3))
def test_one_who_searches_again_finds_what_is_there_now(
    scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After writes, marks, rewriting and a new log start, for all of the keys or for some; in tasks of one list each."""
    chance, names = random.Random(seed), "abcdefghijkl"
    monkeypatch.setattr(key_search, "SHARE_BYTES", 1)
    search, keys = KeySearch(scene.lake, InProcess(2)), [name.encode() for name in names[:6]]
    for step in range(1, 6):
        scene.write(*(f"N[{','.join(chance.choices(names, k=4))}]" for _ in range(3)), f"T[{chance.choice(names)}]")
        assert found(scene.lake, search, keys) == expected(scene.lake, keys)
        if step % 2 == 0:
            scene.compact(now_ms=step * RETENTION_MS // 2, dead_share_max=chance.choice([0.0, 0.9]))
        if step == 4:
            scene.lake.metastore.start_at(AT, 6, now_ms=step)
        some = chance.sample(keys, 2)
        assert found(scene.lake, search, some) == expected(scene.lake, some)
    others = [b"k", b"a"]
    assert found(scene.lake, search, others) == expected(scene.lake, others)
    assert (search.records("t", []), search.records("nosuch", ["0" * 32])) == ([], [])


def test_a_list_is_read_once_and_only_its_first_half_if_it_holds_no_key(scene: Scene) -> None:
    scene.write("N[a,b]")
    scene.write("N[c,d]")
    lake, search = scene.lake, KeySearch(scene.lake, InProcess())
    reads = []
    for step in range(4):
        if step == 2:
            scene.write("N[c]")
        before = lake.store.traffic.reads
        found(lake, search, [b"a", b"z"])
        reads.append(lake.store.traffic.reads - before)
    assert reads == [3, 0, 1, 0]


def test_who_erases_sees_how_far_the_search_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write("N[a,b]")
    scene.write("N[c,d]")
    board = Board()
    monkeypatch.setattr(progress, "Board", lambda: board)
    found(scene.lake, KeySearch(scene.lake, InProcess(), progress=True), [b"a"])
    lists = sum(section_bytes(extent.keys) for extent in scene.lake.metastore.partition(AT).extents)
    assert (board.expected, board.total()) == (lists, (lists, 1))


def test_digests_that_share_their_first_half_are_told_apart() -> None:
    wanted = np.array([[7, 1], [7, 2], [5, 1]], dtype=np.uint64)
    digests = np.array([[7, 2], [7, 3], [5, 1], [1, 1], [7, 1]], dtype=np.uint64)
    assert among(digests, wanted).tolist() == [1, -1, 2, -1, 0]
    assert among(digests, wanted[:0]).tolist() == [-1] * 5


def erased(root: Path, keys: int) -> tuple[int, int, int]:
    """Requests that it takes to erase so many of a thousand deleted keys: (reads, writes, extents of the log)."""
    root.mkdir()
    lake = create_lake(f"sqlite:///{root / 'lake.db'}", f"file://{root / 'objects'}", now_ms=0)
    scene, clock = Scene(lake, root), [20]
    names = [f"k{i}" for i in range(1000)]
    for start in range(0, 1000, 250):
        scene.write(*(f"N[{','.join(names[i : i + 50])}]" for i in range(start, start + 250, 50)))
    scene.write(*(f"T[{','.join(names[i : i + 50])}]" for i in range(0, 1000, 50)), "N[other]")
    extents, traffic = len(lake.metastore.partition(AT).extents), lake.store.traffic
    reads, writes = traffic.reads, traffic.writes
    chosen = [name.encode() for name in names[:keys]]
    request_erasure(lake, "t", chosen, deadline_ms=10**6, clock=lambda: clock[0])
    tools = Tools(lake=lake, engine=InProcess(2), clock=lambda: clock[0], grace_ms=100, upload_ms=100)
    steps = []
    for clock[0] in (20, 200, 5000, 5200):
        carry_on_erasures(tools, ["t"])
        steps.append({erasure.step for erasure in Erasures(lake.metastore).all()})
    assert (steps[0], steps[-1]) == ({VALUES_REMOVED}, {ERASED})
    cost = traffic.reads - reads, traffic.writes - writes, extents
    lake.close()
    return cost


def test_a_thousand_keys_are_erased_for_about_what_one_takes(tmp_path: Path) -> None:
    """Of the lists that hold none of the keys the second half is not read; that is all the difference."""
    one_reads, one_writes, extents = erased(tmp_path / "one", 1)
    all_reads, all_writes, _ = erased(tmp_path / "all", 1000)
    assert all_writes == one_writes
    assert all_reads - one_reads <= 2 * extents
