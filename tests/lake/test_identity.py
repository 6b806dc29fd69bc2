"""A lake is one directory, wherever it is moved or copied; two metastores of one store are noticed before they do harm."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.errors import Unfinished, UsageError
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild
from headstone.lake.lake import Lake, adopt_lake, create_lake, directory_url, open_lake, unchecked_lake
from headstone.lake.metastore import identity
from headstone.lake.metastore.identity import LakePlace, MetastoreCopied, adopt, is_copy, is_whole_copy
from headstone.lake.metastore.journal import SetBack
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.topics import drop_topic
from headstone.lake.transfer.ingest import ingest
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from tests.lake.appending import log_of
from tests.lake.databases import another, back_up
from tests.lake.embedded import Embedded, files
from tests.lake.scene import Said
from tests.lake.town import Town


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has an id, as not every container has."""
    (tmp_path / "machine-id").write_text("0123456789abcdef")
    monkeypatch.setattr(identity, "MACHINE", tmp_path / "machine-id")


@pytest.fixture
def source(tmp_path: Path, said: Said) -> Embedded:
    return Embedded.make(tmp_path / "a", said)


def test_a_copied_lake_shares_nothing_with_the_original(source: Embedded, tmp_path: Path) -> None:
    copy, before = source.at(tmp_path / "experiment"), source.stored()
    shutil.copytree(source.root, copy.root)
    assert copy.codes("topics drop t --yes", "gc --apply --grace-ms 0 --upload-ms 1") == [0, 0]
    assert (source.stored(), source.keys()) == (before, ["a", "b"])
    assert (source.code("rebuild"), source.keys()) == (0, ["a", "b"])
    tokens = [json.loads(lake.stored()[OWNER].splitlines()[0])["token"] for lake in (source, copy)]
    assert tokens[0] != tokens[1]


def moved(lake: Embedded, target: Path) -> None:
    lake.root.rename(target)


def moved_to_another_disk(lake: Embedded, target: Path) -> None:
    shutil.copytree(lake.root, target)
    shutil.rmtree(lake.root)


def restored(lake: Embedded, target: Path) -> None:
    """A backup, back in the place of a lake that has gone on since."""
    shutil.copytree(lake.root, target)
    lake.grow("N[a] N[b] | N[c]")
    shutil.rmtree(lake.root)
    shutil.copytree(target, lake.root)


def behind_a_link(lake: Embedded, target: Path) -> None:
    target.symlink_to(lake.root, target_is_directory=True)


@pytest.mark.parametrize("move", [moved, moved_to_another_disk, restored, behind_a_link])
def test_every_verb_goes_on_with_a_directory_that_was_moved(
    source: Embedded, tmp_path: Path, move: Callable[[Embedded, Path], None]
) -> None:
    target = source.at(tmp_path / "b")
    move(source, target.root)
    assert target.codes("status --check", "gc --apply", "compact --all") == [0, 0, 0]
    assert target.keys() == ["a", "b"]
    target.grow("N[a] N[b] | N[d]")
    assert (target.keys(), target.code("rebuild"), target.keys()) == (["a", "b", "d"], 0, ["a", "b", "d"])


def test_two_copies_of_one_lake_both_go_on(source: Embedded, tmp_path: Path) -> None:
    """Whoever is opened first, and again when the first copy was put where the other one was."""
    for name in ("b", "c"):
        shutil.copytree(source.root, tmp_path / name)
    for name in ("c", "a", "b", "a"):
        assert source.at(tmp_path / name).keys() == ["a", "b"]
    source.root.rename(tmp_path / "aside")
    shutil.copytree(tmp_path / "b", source.root)
    for name in ("aside", "a", "b"):
        assert source.at(tmp_path / name).keys() == ["a", "b"]


def test_who_looks_for_a_lake_that_is_gone_makes_no_directory(source: Embedded, tmp_path: Path) -> None:
    there = source.at(tmp_path / "b")
    source.root.rename(there.root)
    verbs = (["read", "t"], ["status"], ["gc"], ["rebuild"])
    for verb, *words in verbs:
        assert (source.code(verb, *words), main(["lake", verb, source.url, *words])) == (2, 2), verb
    assert not source.root.exists()
    there.objects.rename(tmp_path / "elsewhere")
    for verb, *words in verbs:
        assert (there.code(verb, *words), there.objects.exists()) == (2, False), verb


def test_a_process_that_is_at_work_makes_nothing_where_the_directory_was(source: Embedded, tmp_path: Path) -> None:
    lake, there = source.open(), source.at(tmp_path / "b")
    source.root.rename(there.root)
    before, logs = there.stored(), log_of(tmp_path / "logs", "t", "N[a] N[b] | N[d]")
    with pytest.raises(Unfinished):
        ingest(lake, find_partitions([logs]), clock=lambda: 1, engine=InProcess(1))
    lake.close()
    assert (source.root.exists(), there.stored()) == (False, before)


def test_objects_that_are_in_the_directory_move_along_however_they_were_named(tmp_path: Path) -> None:
    root = tmp_path / "a"
    lake = create_lake(directory_url(str(root)), f"file://{root}/../a/objects/")
    lake.close()
    root.rename(tmp_path / "b")
    again = open_lake(directory_url(str(tmp_path / "b")))
    assert again.store.url == f"file://{tmp_path / 'b' / 'objects'}"
    again.close()


@pytest.fixture
def lake(metastore_url: str, tmp_path: Path) -> Lake:
    """With objects of its own place, and a topic."""
    made = create_lake(metastore_url, f"file://{tmp_path / 'elsewhere' / 'objects'}", now_ms=0)
    Town(made, tmp_path, now_ms=1).grow(t="N[a] N[b]")
    return made


def test_a_copy_of_the_metastore_is_refused_before_it_changes_anything(
    lake: Lake, metastore_url: str, tmp_path: Path
) -> None:
    """At the same number of the journal: by what it knows it would rightly delete what the other one needs."""
    back_up(lake, metastore_url)
    before = files(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(MetastoreCopied, match=r"is a copy of .* lake adopt"):
            open_lake(another(metastore_url))
    assert files(tmp_path / "elsewhere") == before
    open_lake(metastore_url).close()


def test_a_copy_that_is_adopted_is_the_lake_and_the_original_is_refused(
    lake: Lake, metastore_url: str, tmp_path: Path
) -> None:
    """The original may be at work: it is refused at its next commit, and where it would delete."""
    back_up(lake, metastore_url)
    original = open_lake(metastore_url)
    copy = adopt_lake(another(metastore_url))
    copy.close()
    before = files(tmp_path / "elsewhere" / "objects" / "objects")
    with pytest.raises(SetBack):
        collect(original, garbage(original, now_ms=10**9))
    with pytest.raises(SetBack):
        drop_topic(original, "t", now_ms=10)
    original.close()
    with pytest.raises(UsageError, match=r"another copy of it is at work|was taken over"):
        open_lake(metastore_url)
    assert files(tmp_path / "elsewhere" / "objects" / "objects") == before
    again = open_lake(another(metastore_url))
    assert sorted(again.metastore.topics()) == ["t"]
    again.close()


def test_an_original_that_knows_all_of_the_journal_is_refused_by_the_token(lake: Lake, metastore_url: str) -> None:
    back_up(lake, metastore_url)
    copy = unchecked_lake(another(metastore_url))
    copy.metastore.after_commit = Listeners()
    adopt(copy.metastore, copy.store)
    copy.close()
    with pytest.raises(MetastoreCopied, match=r"was taken over by the metastore .*other"):
        open_lake(metastore_url)
    adopt_lake(metastore_url).close()
    open_lake(metastore_url).close()


@pytest.mark.parametrize("metastore_url", ["sqlite"], indirect=True)
def test_a_metastore_that_was_moved_and_not_copied_goes_on(lake: Lake, metastore_url: str, tmp_path: Path) -> None:
    lake.close()
    file = tmp_path / "lake.db"
    file.rename(tmp_path / "renamed.db")
    open_lake(f"sqlite:///{tmp_path / 'renamed.db'}").close()
    shutil.copy(tmp_path / "renamed.db", file)
    with pytest.raises(MetastoreCopied):
        open_lake(metastore_url)
    open_lake(f"sqlite:///{tmp_path / 'renamed.db'}").close()
    shutil.copy(tmp_path / "renamed.db", tmp_path / "back.db")
    (tmp_path / "renamed.db").rename(tmp_path / "aside.db")
    (tmp_path / "back.db").rename(tmp_path / "renamed.db")
    with pytest.raises(MetastoreCopied):  # the file that it was, and another one is in its place
        open_lake(f"sqlite:///{tmp_path / 'aside.db'}")
    open_lake(f"sqlite:///{tmp_path / 'renamed.db'}").close()


def test_a_directory_whose_objects_are_a_link_does_not_pass_for_a_copy(source: Embedded, tmp_path: Path) -> None:
    source.objects.rename(tmp_path / "disk")
    source.objects.symlink_to(tmp_path / "disk")
    assert source.code("status") == 0
    shutil.copytree(source.root, tmp_path / "b", symlinks=True)
    assert (source.at(tmp_path / "b").code("gc", "--apply"), source.code("status")) == (2, 0)


def test_a_copy_that_is_linked_to_the_objects_of_the_original_is_refused(source: Embedded, tmp_path: Path) -> None:
    """Their ids are the same, and what each knows of the other's journal may be enough: the token tells them apart."""
    copy = source.at(tmp_path / "b")
    shutil.copytree(source.root, copy.root)
    assert copy.code("status") == 0
    shutil.rmtree(copy.objects)
    copy.objects.symlink_to(source.objects)
    assert (copy.code("topics", "drop", "t", "--yes"), source.code("status")) == (2, 0)


def test_a_database_with_two_names_is_refused(source: Embedded, tmp_path: Path) -> None:
    os.link(source.metastore, tmp_path / "second.db")
    assert "has 2 names (hard links)" in source.says("status", code=2).err
    (tmp_path / "second.db").unlink()
    assert source.code("status") == 0


def test_an_old_metastore_beside_newer_objects_is_refused_and_a_rebuild_mends_it(source: Embedded) -> None:
    older = source.metastore.read_bytes()
    source.grow("N[a] N[b] | N[c]")
    source.metastore.write_bytes(older)
    source.refuses("status")
    source.refuses("adopt", why="rebuild")
    assert (source.code("rebuild"), source.keys()) == (0, ["a", "b", "c"])


def test_a_lost_metastore_of_a_directory_is_made_again_in_another_place(source: Embedded, tmp_path: Path) -> None:
    copy = source.at(tmp_path / "b")
    shutil.copytree(source.objects, copy.objects)
    assert (copy.code("rebuild"), copy.keys(), source.keys()) == (0, ["a", "b"], ["a", "b"])


def test_objects_that_were_moved_are_found_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    made = create_lake(url, f"file://{tmp_path / 'elsewhere' / 'objects'}", now_ms=0)
    Town(made, tmp_path, now_ms=1).grow(t="N[a] N[b]")
    made.close()
    (tmp_path / "elsewhere").rename(tmp_path / "there")
    with pytest.raises(UsageError, match=r"has no lake: .*--objects"):
        open_lake(url)
    assert main(["lake", "rebuild", url, "--objects", f"file://{tmp_path}/there/objects"]) == 0
    again = open_lake(url)
    assert again.store.url == f"file://{tmp_path / 'there' / 'objects'}"
    again.close()


def test_a_copied_metastore_with_copied_objects_is_a_lake_of_its_own(
    lake: Lake, metastore_url: str, tmp_path: Path
) -> None:
    back_up(lake, metastore_url)
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "copied")
    assert main(["lake", "rebuild", another(metastore_url), "--objects", f"file://{tmp_path}/copied/objects"]) == 0
    copy, original = open_lake(another(metastore_url)), open_lake(metastore_url)
    before = files(tmp_path / "elsewhere" / "objects" / "objects")
    drop_topic(copy, "t", now_ms=10)
    collect(copy, garbage(copy, now_ms=10**9, grace_ms=0))
    assert len(copy.store.list("objects")) == 0
    assert files(tmp_path / "elsewhere" / "objects" / "objects") == before
    for each in (copy, original):
        each.close()


def test_a_rebuild_that_finds_no_topic_does_not_end_well(source: Embedded) -> None:
    before = source.stored()
    for folder in ("journal", "journal-end"):
        shutil.rmtree(source.objects / folder)
    assert "the journal ends at number 0" in source.says("rebuild", code=2).err
    source.metastore.unlink()
    assert "no journal" in source.says("rebuild", code=2).err
    source.restore(before)
    assert (source.code("rebuild"), source.keys()) == (0, ["a", "b"])
    assert source.code("topics", "drop", "t", "--yes") == 0
    assert "no topic is left: dropped, by the journal: t" in source.says("rebuild", code=1).out


def test_a_crash_while_a_copy_becomes_a_lake_of_its_own_is_made_good(source: Embedded, tmp_path: Path) -> None:
    """Between the new token in the metastore and in the store."""
    copy = source.at(tmp_path / "b")
    shutil.copytree(source.root, copy.root)
    (copy.objects / OWNER).chmod(0o400)
    store = copy.store
    before = store.read(OWNER, 0, store.size(OWNER))
    assert copy.code("status") == 0
    store.put(OWNER, before)
    lake = unchecked_lake(copy.url)
    with lake.metastore.transaction() as connection:
        token = json.loads(before.splitlines()[0])["token"]
        connection.exec_driver_sql("UPDATE lakes SET token_before = ?", (token,))
    lake.close()
    assert copy.code("status") == 0
    assert store.read(OWNER, 0, store.size(OWNER)) != before
    store.delete([OWNER])
    assert copy.code("status") == 0
    assert store.has(OWNER)
    assert store.has(MARKER)


def test_a_lake_that_was_rebuilt_and_not_adopted_yet_says_so(lake: Lake, tmp_path: Path) -> None:
    """Killed in between."""
    url = f"sqlite:///{tmp_path / 'again.db'}"
    again = open_for_rebuild(url, lake.store.url)
    rebuild(again)
    again.close()
    with pytest.raises(MetastoreCopied, match="lake adopt"):
        open_lake(url)
    assert main(["lake", "adopt", url]) == 0
    open_lake(url).close()
    lake.close()


FILE = {"path": "/a/metastore.db", "inode": "1", "machine": "m"}
DATABASE = {"database": "16384", "name": "lake", "server": "7"}
OBJECTS = {"path": "/a/objects", "inode": "2"}
OTHER_OBJECTS = {"path": "/b/objects", "inode": "3"}


@pytest.mark.parametrize(
    ("before", "now", "copied"),
    [
        (FILE, FILE, False),
        (FILE, {**FILE, "path": "/b/metastore.db"}, False),  # moved
        (FILE, {**FILE, "inode": "9"}, False),  # put back from a backup
        (FILE, {**FILE, "inode": "9", "machine": "n"}, True),  # of the same name, on another machine
        ({**FILE, "machine": ""}, {**FILE, "inode": "9", "machine": ""}, True),  # perhaps
        (FILE, {**FILE, "path": "/b/metastore.db", "inode": "9"}, True),
        (DATABASE, DATABASE, False),
        (DATABASE, {**DATABASE, "name": "renamed"}, False),
        (DATABASE, {**DATABASE, "database": "16385"}, True),
        (DATABASE, {**DATABASE, "server": "8"}, True),
        (DATABASE, {"database": "16384", "name": "lake"}, False),  # a role that may not ask
        ({}, FILE, False),
    ],
)
def test_a_copy_is_another_file_or_database_over_the_same_objects(
    before: dict[str, str], now: dict[str, str], copied: bool
) -> None:
    for store in (OBJECTS, {}):
        places = [LakePlace(metastore=facts, store=store) for facts in (before, now)]
        assert is_copy(*places, shared_with_original=False) == copied
        assert not is_whole_copy(*places)
    places = [LakePlace(metastore=before, store=OBJECTS), LakePlace(metastore=now, store=OTHER_OBJECTS)]
    assert not is_copy(*places, shared_with_original=False)
    assert is_whole_copy(*places) == bool(before)
