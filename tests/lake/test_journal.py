"""The journal as a chain: an entry, a base or a part of one that was changed, cut off, lost or exchanged is named by whoever
reads it, and nothing is made of the rest. Folded it tells the same, wherever that is killed and whatever is committed then."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

import pytest
from sqlalchemy import update

from headstone.errors import CorruptLog, HeadstoneError, UsageError
from headstone.lake.format.seals import Page, sealed
from headstone.lake.jobs import folding
from headstone.lake.jobs.folding import fold, is_worth_folding
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.lake import Lake, create_lake, joined, unchecked_lake
from headstone.lake.metastore import journal, replay, schema
from headstone.lake.metastore.journal import (
    SetBack,
    base_number,
    expect_current,
    is_journal,
    known_end,
    opened,
    read_all,
    record,
    told_end,
)
from headstone.lake.metastore.journal_names import BASE_PARTS, BASES, ENDS, numbered, object_of
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.replay import replayed
from headstone.pipeline.progress import Board
from headstone.storage.stores import MissingObject, Store
from tests.lake.databases import another, back_up
from tests.lake.embedded import Embedded
from tests.lake.mortal import Killed, MortalStore
from tests.lake.scene import Said, Scene
from tests.lake.test_rebuild import fill, grow, known


def contents(store: Store) -> dict[str, bytes]:
    paths = [path for path in store.list() if path.startswith("journal")]
    return {path: store.read(path, 0, store.size(path)) for path in paths}


def put_back(store: Store, kept: Mapping[str, bytes]) -> None:
    for path, content in kept.items():
        store.put(path, content)


def flipped(content: bytes) -> bytes:
    """One digit of a number is another one."""
    place = content.index(b'"moment_ms":') + len(b'"moment_ms":') if b'"moment_ms":' in content else len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


DAMAGES: Mapping[str, Callable[[bytes], bytes]] = {
    "a flipped digit": flipped, "cut off": lambda content: content[: len(content) // 2],
    "cut off at a line": lambda content: b"\n".join(content.splitlines()[:-1]) + b"\n", "empty": lambda content: b"",
    "not JSON": lambda content: b"\x00" * len(content),
}  # fmt: skip


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("at_once", [1, 2])
def test_however_few_objects_are_in_memory_all_are_read(
    local: Scene, folded: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 2)
    fill(local)
    if folded:
        fold(local.lake)
        local.write("N[y]", now_ms=50)
        local.write("N[z]", now_ms=51)
    store, lake_id = local.lake.store, local.lake.metastore.lake_id
    whole = list(read_all(store, lake_id))
    assert len(whole) > 2 * at_once
    monkeypatch.setattr(journal, "READS_AHEAD", at_once)
    assert list(read_all(store, lake_id)) == whole


@pytest.mark.parametrize("folded", [False, True])
def test_every_object_that_is_damaged_is_named(local: Scene, folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 2)
    fill(local)
    if folded:
        fold(local.lake)
        local.write("N[z]", now_ms=50)
    store, lake_id = local.lake.store, local.lake.metastore.lake_id
    kept, before = contents(store), known(local.lake)
    assert {path.partition("/")[0] for path in kept} >= ({"journal-base-parts"} if folded else {"journal"})
    for path, content in kept.items():
        for name, damage in DAMAGES.items():
            store.put(path, damage(content))
            with pytest.raises(CorruptLog) as refused:
                replayed(store, lake_id)
            assert path in str(refused.value), name
        store.put(path, content)
    for path in kept:
        store.delete([path])
        lost = None
        try:
            assert replayed(store, lake_id).doubt != ""
        except MissingObject as error:
            lost = str(error)
        assert lost is None if path.startswith("journal-end") else lost is not None, path
        put_back(store, kept)
    assert (rebuild(local.lake).doubt, known(local.lake)) == ("", before)


def test_exchanged_objects_are_named(local: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "ENTRIES_PER_PART", 2)
    fill(local)
    store, lake_id = local.lake.store, local.lake.metastore.lake_id
    for folder in ("journal", "journal-base-parts"):
        kept = contents(store)
        first, second, *_ = [path for path in kept if path.startswith(f"{folder}/")]
        put_back(store, {first: kept[second], second: kept[first]})
        with pytest.raises(CorruptLog, match=f"{first}.*its header says {second}"):
            replayed(store, lake_id)
        put_back(store, kept)
        fold(local.lake)


def test_an_entry_of_another_history_is_named(local: Scene, tmp_path: Path) -> None:
    """It has the right number and the right checksum: what it follows on is something else, or what follows on it is."""
    fill(local)
    store, lake_id = local.lake.store, local.lake.metastore.lake_id
    kept = contents(store)
    header_of_second = opened(store, object_of(2), lake_id).header.items()
    follows = {name: value for name, value in header_of_second if name not in ("lake", "object")}
    for number, header in ((3, {"previous": "0" * 64}), (2, follows)):  # the second follows, and the next not on it
        store.put(object_of(number), sealed(lake_id, object_of(number), [], **header))
        with pytest.raises(CorruptLog, match=f"{object_of(3)}.*does not continue number 2"):
            replayed(store, lake_id)
        put_back(store, kept)
    last = max(path for path in kept if path.startswith("journal/"))
    page: Page = opened(store, last, lake_id)
    header = {"previous": page.header["previous"]}
    store.put(last, sealed(lake_id, last, [], **header))
    with pytest.raises(CorruptLog, match="it is not the one named in journal-end/"):
        replayed(store, lake_id)
    put_back(store, kept)
    other = create_lake(f"sqlite:///{tmp_path / 'other.db'}", f"file://{tmp_path / 'other'}", now_ms=0)
    other.metastore.create_topic("t", 1)
    store.put(object_of(1), other.store.read(object_of(1), 0, other.store.size(object_of(1))))
    with pytest.raises(CorruptLog, match=f"of lake {other.metastore.lake_id}"):
        replayed(store, lake_id)
    other.close()


def test_a_metastore_that_knows_more_than_the_journal_is_not_set_back_by_a_rebuild(local: Scene) -> None:
    """The last entry is lost with its end, or all of an older backup of the store was put there."""
    fill(local)
    store = local.lake.store
    before_last = contents(store)
    local.write("N[z]", now_ms=50)
    before = known(local.lake)
    for path in contents(store).keys() - before_last.keys():
        store.delete([path])
    put_back(store, before_last)
    with pytest.raises(UsageError, match="the metastore has seen number"):
        rebuild(local.lake)
    assert known(local.lake) == before


def test_a_last_entry_that_is_lost_is_missed(local: Scene, tmp_path: Path) -> None:
    """With the metastore lost too: the end is told by another object."""
    fill(local)
    store = local.lake.store
    last, again = max(store.list("journal")), f"sqlite:///{tmp_path / 'again.db'}"
    content, before = store.read(last, 0, store.size(last)), known(local.lake)
    store.delete([last])
    with pytest.raises(MissingObject, match=f"{last}: no such object"):
        open_for_rebuild(again, store.url)
    store.put(last, content)
    made = open_for_rebuild(again, store.url)
    assert (rebuild(made).doubt, known(made)) == ("", before)
    made.close()


def test_where_nothing_tells_the_end_the_rebuild_says_so(tmp_path: Path, said: Said) -> None:
    lake = Embedded.make(tmp_path / "lake", said)
    number = lake.journal_end()
    shutil.rmtree(lake.objects / "journal-end")
    lake.metastore.unlink()
    ends = f"the journal ends at number {number}, and journal-end says nothing"
    assert f"{ends}: nothing tells that there was no number {number + 1}" in lake.says("rebuild", code=1).out


def test_a_lake_that_nothing_was_done_with_has_a_journal_that_ends_at_nothing(lake: Lake) -> None:
    assert (replayed(lake.store, lake.metastore.lake_id).doubt, rebuild(lake).doubt) == ("", "")
    lake.store.delete(lake.store.list("journal-end"))
    assert "nothing tells that there was no number 1" in rebuild(lake).doubt


def test_who_commits_behind_an_entry_that_it_did_not_know_is_refused(local: Scene) -> None:
    """The number is right, what is there under it was written by a metastore of another time."""
    local.write("N[a]")
    with local.lake.metastore.transaction() as connection:
        connection.execute(update(schema.lakes).values(journal_digest="0" * 64))
    local.write("N[b]")
    with pytest.raises(HeadstoneError, match="does not continue number"):
        replayed(local.lake.store, local.lake.metastore.lake_id)


def test_a_commit_costs_two_small_objects_and_a_listing_however_long_the_journal_is(local: Scene) -> None:
    fill(local)
    grow(local)
    traffic = local.lake.store.traffic
    costs = set()
    for number in range(3):
        writes, lists, read = traffic.writes, traffic.lists, traffic.bytes_read
        local.lake.metastore.create_topic(f"new-{number}", 1)
        costs.add((traffic.writes - writes, traffic.lists - lists, traffic.bytes_read - read))
    assert costs == {(2, 0, 0)}  # the listing has no page
    assert len(local.lake.store.list("journal-end")) == 1
    assert json.loads(contents(local.lake.store)[local.lake.store.list("journal-end")[0]].splitlines()[0])["newest"]


def test_whoever_is_killed_anywhere_leaves_an_end_that_is_no_further_behind_than_one(local: Scene) -> None:
    """So that a lost last entry is missed by whoever rebuilds, and a kill is not taken for a loss."""
    lake, store = mortal(local.lake)
    tell = local.lake.metastore.after_commit
    local.lake.metastore.after_commit = Listeners()
    for deaths in range(8):
        local.lake.metastore.create_topic(f"t{deaths}", 1)
        store.left = deaths + 1
        with suppress(Killed):
            record(lake.metastore, store)
        newest = max(map(numbered, store.list("journal")))
        told = told_end(store, lake.metastore.lake_id)
        assert told is not None
        assert newest - 1 <= told.number <= newest
        assert replayed(store, lake.metastore.lake_id).doubt == ""
        with lake.metastore.transaction() as connection:
            assert known_end(connection).number <= told.number
    local.lake.metastore.after_commit = tell
    local.write("N[z]")
    assert (replayed(store, lake.metastore.lake_id).end, rebuild(local.lake).changed) == (
        told_end(store, lake.metastore.lake_id), ()
    )  # fmt: skip


@pytest.fixture
def scene(any_scene: Scene) -> Scene:
    return any_scene


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


def mortal(lake: Lake) -> tuple[Lake, MortalStore]:
    store = MortalStore(lake.store.url, lake.store._store)
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
        store.left = deaths + 1
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
