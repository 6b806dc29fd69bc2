"""The journal as a chain: an entry, a base or a part of one that was changed, cut off, lost or exchanged is named by whoever
reads it, and nothing is made of the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import update

from headstone.cli.main import main
from headstone.errors import CorruptLog, HeadstoneError, UsageError
from headstone.lake.format.seals import Page, sealed
from headstone.lake.jobs import folding
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.lake import Lake, create_lake, open_lake
from headstone.lake.metastore import journal, schema
from headstone.lake.metastore.journal import known_end, opened, read_all, record, told_end
from headstone.lake.metastore.journal_names import numbered, object_of
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.replay import replayed
from headstone.storage.stores import MissingObject, Store
from tests.lake.scene import Scene
from tests.lake.test_folding import Killed, mortal
from tests.lake.test_rebuild import fill, grow, known


@pytest.fixture
def local(lake: Lake, tmp_path: Path) -> Scene:
    return Scene(lake, tmp_path)


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
    for number, problem in ((3, "does not continue number 2"), (2, "does not continue number 1")):
        header: dict[str, object] = {"previous": "0" * 64}
        if number == 2:  # it follows, but the next does not follow on it
            header = dict(opened(store, object_of(2), lake_id).header)
            header.pop("lake"), header.pop("object")
        store.put(object_of(number), sealed(lake_id, object_of(number), [], **header))
        where = number if number == 3 else 3
        with pytest.raises(CorruptLog, match=f"{object_of(where)}.*" + problem.replace("1", "2")):
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
    last = max(path for path in store.list("journal"))
    content = store.read(last, 0, store.size(last))
    store.delete([last])
    lake = open_for_rebuild
    with pytest.raises(MissingObject, match=f"{last}: no such object"):
        lake(f"sqlite:///{tmp_path / 'again.db'}", store.url)
    store.put(last, content)
    before = known(local.lake)
    made = lake(f"sqlite:///{tmp_path / 'again.db'}", store.url)
    assert (rebuild(made).doubt, known(made)) == ("", before)
    made.close()


def test_where_nothing_tells_the_end_the_rebuild_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    made = open_lake(f"sqlite:///{lake}/metastore.db")
    Scene(made, tmp_path).write("N[a]")
    made.store.delete(made.store.list("journal-end"))
    made.close()
    (tmp_path / "lake" / "metastore.db").unlink()
    capsys.readouterr()
    assert main(["lake", "rebuild", lake]) == 1
    assert "the journal ends at number 4, and journal-end says nothing: nothing tells that there was no number 5" in (
        capsys.readouterr().out
    )


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
    puts = 0

    def in_front() -> None:
        nonlocal puts
        puts -= 1
        if puts == 0:
            raise Killed

    store.between = in_front
    for deaths in range(8):
        local.lake.metastore.create_topic(f"t{deaths}", 1)
        store.left, puts = (deaths, -1) if deaths < 4 else (10**9, deaths - 3)
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
