"""The journal, folded: it tells the same afterwards, wherever a run of it is killed and whatever is committed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path

import pytest

from headstone.lake.jobs import folding
from headstone.lake.jobs.folding import fold, is_worth_folding
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.lake import Lake, create_lake, joined, unchecked_lake
from headstone.lake.metastore import replay
from headstone.lake.metastore.journal import SetBack, base_number, expect_current, is_journal
from headstone.lake.metastore.journal_names import BASE_PARTS, BASES, ENDS, object_of
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.replay import replayed
from headstone.pipeline.progress import Board
from headstone.storage.stores import Store
from tests.lake.scene import Scene
from tests.lake.test_rebuild import another, back_up, fill, grow, known


@pytest.fixture
def scene(metastore_url: str, tmp_path: Path) -> Scene:
    return Scene(create_lake(metastore_url, f"file://{tmp_path / 'objects'}", now_ms=0), tmp_path)


@pytest.fixture
def local(lake: Lake, tmp_path: Path) -> Scene:
    return Scene(lake, tmp_path)


def stored(lake: Lake) -> tuple[int, ...]:
    """How many objects of the journal, bases, and parts of these there are."""
    return tuple(len(lake.store.list(folder)) for folder in ("journal", "journal-base", "journal-base-parts"))


def lost_and_rebuilt(lake: Lake, root: Path) -> tuple[object, ...]:
    """What a metastore knows that is made from the store alone."""
    made = open_for_rebuild(f"sqlite:///{root / 'again.db'}", lake.store.url)
    rebuild(made)
    again = known(made)
    made.close()
    (root / "again.db").unlink()
    return again


def test_a_folded_journal_tells_the_same(local: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, with partitions of several pages, and again when there is more."""
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 2)
    monkeypatch.setattr(replay, "EXTENTS_PER_PAGE", 2)
    fill(local)
    assert (fold(local.lake), fold(local.lake)) == (base_number(local.lake.store), 0)
    assert stored(local.lake) == (0, 1, 3)
    assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake)
    grow(local)
    assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake)
    fold(local.lake)
    assert stored(local.lake)[:2] == (0, 1)
    assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake)
    assert all(
        is_journal(local.lake.store, path, local.lake.metastore.lake_id)
        for path in local.lake.store.list()
        if path.startswith("journal")
    )
    told: list[str] = []
    assert rebuild(local.lake, tell=told.append).changed == ()
    (line,) = told
    assert line.partition(" changes in ")[2] == f"{sum(stored(local.lake))} objects of the journal"


def test_a_lake_goes_on_after_its_journal_was_folded(scene: Scene, metastore_url: str) -> None:
    """Also one whose metastore was set back to a time before that: it is noticed, refused, and brought up to date."""
    fill(scene)
    back_up(scene.lake, metastore_url)
    behind = unchecked_lake(another(metastore_url))
    grow(scene)
    fold(scene.lake)
    scene.write("N[x]", now_ms=10**5)
    now, table = known(scene.lake), scene.table()
    with pytest.raises(SetBack, match="it was set back in time"):
        behind.metastore.create_topic("mine", 1)  # the number that it takes is free again
    with pytest.raises(SetBack, match="it was set back in time"):
        unchecked_lake(another(metastore_url))
    with pytest.raises(SetBack, match="it was set back in time"):
        fold(behind)
    rebuild(behind)
    scene.lake = behind
    assert (known(behind), scene.table(), behind.metastore.check()) == (now, table, [])
    scene.write("N[y]", now_ms=10**5)
    unchecked_lake(another(metastore_url)).close()


def test_whoever_was_set_back_is_refused_however_often_it_commits(local: Scene, tmp_path: Path) -> None:
    """Numbers below the base are free for it; it must not come by them to the first one that counts."""
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    back_up(local.lake, url)
    behind = unchecked_lake(another(url))
    local.write("N[a]")
    number = fold(local.lake)
    for i in range(number + 2):
        with pytest.raises(SetBack, match="it was set back in time"):
            behind.metastore.create_topic(f"mine-{i}", 1)
    assert not local.lake.store.has(object_of(number + 1))
    expect_current(local.lake.metastore, local.lake.store)


class Killed(BaseException):
    """What kill -9 is to a process."""


class Mortal(Store):
    """Its owner is killed behind so many writes and deletions."""

    left = 10**9
    between: Callable[[], None] = staticmethod(lambda: None)

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        self.between()
        done = super().put(path, content, create=create)
        self._count()
        return done

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            super().delete([path])
            self._count()

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


def mortal(lake: Lake) -> tuple[Lake, Mortal]:
    store = Mortal(lake.store.url, lake.store._store)
    return Lake(metastore=lake.metastore, store=store), store


class Overtaken(Store):
    """Right behind its first answer to `question`, somebody else acts."""

    question = ""
    overtake: Callable[[], object] = staticmethod(lambda: None)

    def list(self, prefix: str = "") -> list[str]:
        answer = super().list(prefix)
        self._answered("list" if self.question == "list" else f"list {prefix}")
        return answer

    def has(self, path: str) -> bool:
        answer = super().has(path)
        self._answered("has")
        return answer

    def _answered(self, question: str) -> None:
        if question == self.question:
            self.question = ""
            self.overtake()


@pytest.mark.parametrize("question", ["list", "has"])
def test_whoever_was_set_back_is_refused_also_while_another_one_folds(
    scene: Scene, metastore_url: str, question: str
) -> None:
    fill(scene)
    back_up(scene.lake, metastore_url)
    behind = unchecked_lake(another(metastore_url))
    grow(scene)
    store = Overtaken(behind.store.url, behind.store._store)
    store.question, store.overtake = question, lambda: fold(scene.lake)
    with pytest.raises(SetBack, match="it was set back in time"):
        expect_current(behind.metastore, store)
    behind.close()


def test_whoever_was_set_back_is_refused_while_another_one_folds_though_the_end_is_lost(
    scene: Scene, metastore_url: str
) -> None:
    """The base is there before the entries are gone, and nothing else tells of them."""
    fill(scene)
    back_up(scene.lake, metastore_url)
    grow(scene)
    behind = Metastore.open(another(metastore_url))
    store = Overtaken(scene.lake.store.url, scene.lake.store._store)
    store.delete(store.list(ENDS))
    store.question, store.overtake = f"list {BASES}", lambda: fold(scene.lake)
    with pytest.raises(SetBack, match="it was set back in time"):
        expect_current(behind, store)
    behind.close()


def test_whoever_is_killed_while_folding_leaves_a_journal_that_tells_the_same(
    local: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 2)
    fill(local)
    lake, store = mortal(local.lake)
    deaths = 0
    while True:
        store.left = deaths
        try:
            fold(lake)
            break
        except Killed:
            deaths += 1
        assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake), deaths
        local.write(f"N[k{deaths % 3}]", now_ms=50)
        assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake), deaths
    assert (stored(local.lake)[:2], deaths > 5) == ((0, 1), True)


def test_what_is_committed_while_it_is_folded_is_not_lost(
    local: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages the extents that they lie in are replaced, topics come and go; the store is told late."""
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 1)
    monkeypatch.setattr(replay, "EXTENTS_PER_PAGE", 1)
    fill(local)
    lake, store = mortal(local.lake)
    metastore = lake.metastore
    told, turns = metastore.after_commit, iter((lambda: local.write("N[g]", now_ms=40), lambda: grow(local)))

    def between() -> None:
        metastore.after_commit = Listeners()  # as if each committer died right behind its commit
        next(turns, lambda: None)()
        metastore.after_commit = told

    store.between = between
    fold(lake)
    store.between = lambda: None
    assert stored(local.lake)[0] > 0
    assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake)
    assert next(turns, None) is None


def test_of_two_who_fold_at_once_the_higher_number_counts(local: Scene, tmp_path: Path) -> None:
    """Whichever is done first; and whoever writes a number late that is folded already writes it for nobody."""
    fill(local)
    slow, store = mortal(local.lake)

    def overtake() -> None:
        store.between = lambda: None
        local.write("N[x]", now_ms=50)
        fold(local.lake)

    store.between = overtake
    fold(slow)
    assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake)
    number = base_number(local.lake.store)

    def fold_first() -> None:
        store.between = lambda: None
        local.write("N[y]", now_ms=50)
        fold(local.lake)

    late = joined(Metastore(local.lake.metastore._engine), store)
    store.between = fold_first
    late.metastore.create_topic("late", 1)
    assert base_number(local.lake.store) > number
    assert "late" in replayed(local.lake.store, local.lake.metastore.lake_id).topics
    assert lost_and_rebuilt(local.lake, tmp_path) == known(local.lake)


def test_it_is_folded_when_that_is_worth_it(local: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "OBJECTS_MIN", 4)
    assert not is_worth_folding(local.lake)
    fill(local)
    assert is_worth_folding(local.lake)
    monkeypatch.setattr(folding, "EXTENTS_PER_OBJECT", 0.2)
    assert not is_worth_folding(local.lake)
    monkeypatch.setattr(folding, "EXTENTS_PER_OBJECT", 100)
    fold(local.lake)
    assert not is_worth_folding(local.lake)
    assert not local.lake.store.has(object_of(1))


def test_folding_that_is_stopped_anywhere_leaves_the_journal_as_it_was(
    local: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first part of the base, then before the second, until it is folded. Parts that were written are gone."""
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 1)
    monkeypatch.setattr(replay, "EXTENTS_PER_PAGE", 1)
    for term in ("N[a]", "N[b]", "N[c]"):
        local.write(term)
    lake, stops = local.lake, 0
    stored_before, told = sorted(lake.store.list("journal")), local.held()
    while True:
        board = Board()
        number = fold(lake, board, stop=chain([False] * stops, repeat(True)).__next__)
        assert board.expected == 3
        if number:
            break
        assert (sorted(lake.store.list("journal")), lake.store.list(BASE_PARTS)) == (stored_before, [])
        stops += 1
    assert (stops > 3, board.total()[0], base_number(lake.store)) == (True, 3, number)
    assert (local.held(), lake.metastore.check()) == (told, [])
