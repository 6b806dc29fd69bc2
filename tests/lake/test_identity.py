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
from headstone.lake.metastore.identity import Copied, Place, adopt, is_copy, is_whole_copy
from headstone.lake.metastore.journal import SetBack
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.topics import drop_topic
from headstone.lake.transfer.ingest import ingest
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from tests.lake.test_rebuild import another, back_up
from tests.oracle.notation import History


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has an id, as not every container has."""
    (tmp_path / "machine-id").write_text("0123456789abcdef")
    monkeypatch.setattr(identity, "MACHINE", tmp_path / "machine-id")


def log(root: Path, *terms: str) -> Path:
    history = History()
    for term in terms:
        history.append(term)
    history.roll()
    history.write_partition(root, "t-0")
    return root


def embedded(root: Path) -> Path:
    """A lake in a directory, with a topic `t`."""
    assert main(["lake", "init", str(root)]) == 0
    assert main(["lake", "ingest", str(root), str(log(root.parent / "logs", "N[a] N[b]"))]) == 0
    return root


def keys(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["lake", "read", str(root), "t"]) == 0
    return [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def stored(root: Path) -> dict[str, bytes]:
    return files(root / "objects")


def test_a_copied_lake_shares_nothing_with_the_original(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original, copy = embedded(tmp_path / "prod"), tmp_path / "experiment"
    before = stored(original)
    shutil.copytree(original, copy)
    assert main(["lake", "topics", str(copy), "drop", "t", "--yes"]) == 0
    assert main(["lake", "gc", str(copy), "--apply", "--grace-ms", "0", "--upload-ms", "1"]) == 0
    assert stored(original) == before
    assert keys(original, capsys) == ["a", "b"]
    assert main(["lake", "rebuild", str(original)]) == 0
    assert keys(original, capsys) == ["a", "b"]
    tokens = [json.loads(files(lake)[f"objects/{OWNER}"].splitlines()[0])["token"] for lake in (original, copy)]
    assert tokens[0] != tokens[1]


def moved(source: Path, target: Path) -> None:
    source.rename(target)


def moved_to_another_disk(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    shutil.rmtree(source)


def restored(source: Path, target: Path) -> None:
    """A backup, back in the place of a lake that has gone on since."""
    shutil.copytree(source, target)
    assert main(["lake", "ingest", str(source), str(log(source.parent / "logs", "N[a] N[b] | N[c]"))]) == 0
    shutil.rmtree(source)
    shutil.copytree(target, source)


def behind_a_link(source: Path, target: Path) -> None:
    target.symlink_to(source, target_is_directory=True)


@pytest.mark.parametrize("move", [moved, moved_to_another_disk, restored, behind_a_link])
def test_every_verb_goes_on_with_a_directory_that_was_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], move: Callable[[Path, Path], None]
) -> None:
    source, target = embedded(tmp_path / "a"), tmp_path / "b"
    move(source, target)
    for verb in (["status", str(target), "--check"], ["gc", str(target), "--apply"], ["compact", str(target), "--all"]):
        assert main(["lake", *verb]) == 0, verb
    assert keys(target, capsys) == ["a", "b"]
    assert main(["lake", "ingest", str(target), str(log(tmp_path / "logs", "N[a] N[b] | N[d]"))]) == 0
    assert keys(target, capsys) == ["a", "b", "d"]
    assert main(["lake", "rebuild", str(target)]) == 0
    assert keys(target, capsys) == ["a", "b", "d"]


def test_two_copies_of_one_lake_both_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever is opened first, and again when the first copy was put where the other one was."""
    source = embedded(tmp_path / "a")
    for name in ("b", "c"):
        shutil.copytree(source, tmp_path / name)
    for name in ("c", "a", "b", "a"):
        assert keys(tmp_path / name, capsys) == ["a", "b"]
    source.rename(tmp_path / "aside")
    shutil.copytree(tmp_path / "b", source)
    for name in ("aside", "a", "b"):
        assert keys(tmp_path / name, capsys) == ["a", "b"]


@pytest.mark.parametrize("read", ["read", "status", "gc", "rebuild"])
def test_who_looks_for_a_lake_that_is_gone_makes_no_directory(tmp_path: Path, read: str) -> None:
    source = embedded(tmp_path / "a")
    source.rename(tmp_path / "b")
    assert main(["lake", read, str(source), *(["t"] if read == "read" else [])]) == 2
    assert main(["lake", read, directory_url(str(source)), *(["t"] if read == "read" else [])]) == 2
    assert not source.exists()
    (tmp_path / "b" / "objects").rename(tmp_path / "elsewhere")
    assert main(["lake", read, str(tmp_path / "b"), *(["t"] if read == "read" else [])]) == 2
    assert not (tmp_path / "b" / "objects").exists()


def test_a_process_that_is_at_work_makes_nothing_where_the_directory_was(tmp_path: Path) -> None:
    source = embedded(tmp_path / "a")
    lake = open_lake(directory_url(str(source)))
    source.rename(tmp_path / "b")
    before = stored(tmp_path / "b")
    with pytest.raises(Unfinished):
        ingest(
            lake, find_partitions([log(tmp_path / "logs", "N[a] N[b] | N[d]")]), clock=lambda: 1, engine=InProcess(1)
        )
    lake.close()
    assert not source.exists()
    assert stored(tmp_path / "b") == before


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
    ingest(made, find_partitions([log(tmp_path / "logs", "N[a] N[b]")]), clock=lambda: 1, engine=InProcess(1))
    return made


def test_a_copy_of_the_metastore_is_refused_before_it_changes_anything(
    lake: Lake, metastore_url: str, tmp_path: Path
) -> None:
    """At the same number of the journal: by what it knows it would rightly delete what the other one needs."""
    back_up(lake, metastore_url)
    before = files(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(Copied, match=r"is a copy of .* lake adopt"):
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
    with pytest.raises(Copied, match=r"was taken over by the metastore .*other"):
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
    with pytest.raises(Copied):
        open_lake(metastore_url)
    open_lake(f"sqlite:///{tmp_path / 'renamed.db'}").close()
    shutil.copy(tmp_path / "renamed.db", tmp_path / "back.db")
    (tmp_path / "renamed.db").rename(tmp_path / "aside.db")
    (tmp_path / "back.db").rename(tmp_path / "renamed.db")
    with pytest.raises(Copied):  # the file that it was, and another one is in its place
        open_lake(f"sqlite:///{tmp_path / 'aside.db'}")
    open_lake(f"sqlite:///{tmp_path / 'renamed.db'}").close()


def test_a_directory_whose_objects_are_a_link_does_not_pass_for_a_copy(tmp_path: Path) -> None:
    source = embedded(tmp_path / "a")
    (source / "objects").rename(tmp_path / "disk")
    (source / "objects").symlink_to(tmp_path / "disk")
    assert main(["lake", "status", str(source)]) == 0
    shutil.copytree(source, tmp_path / "b", symlinks=True)
    assert main(["lake", "gc", str(tmp_path / "b"), "--apply"]) == 2
    assert main(["lake", "status", str(source)]) == 0


def test_a_copy_that_is_linked_to_the_objects_of_the_original_is_refused(tmp_path: Path) -> None:
    """Their ids are the same, and what each knows of the other's journal may be enough: the token tells them apart."""
    source, copy = embedded(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(source, copy)
    assert main(["lake", "status", str(copy)]) == 0
    shutil.rmtree(copy / "objects")
    (copy / "objects").symlink_to(source / "objects")
    assert main(["lake", "topics", str(copy), "drop", "t", "--yes"]) == 2
    assert main(["lake", "status", str(source)]) == 0


def test_a_database_with_two_names_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = embedded(tmp_path / "a")
    os.link(source / "metastore.db", tmp_path / "second.db")
    assert main(["lake", "status", str(source)]) == 2
    assert "has 2 names (hard links)" in capsys.readouterr().err
    (tmp_path / "second.db").unlink()
    assert main(["lake", "status", str(source)]) == 0


def test_an_old_metastore_beside_newer_objects_is_refused_and_a_rebuild_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = embedded(tmp_path / "a")
    shutil.copy(source / "metastore.db", tmp_path / "backup.db")
    assert main(["lake", "ingest", str(source), str(log(tmp_path / "logs", "N[a] N[b] | N[c]"))]) == 0
    shutil.copy(tmp_path / "backup.db", source / "metastore.db")
    assert main(["lake", "status", str(source)]) == 2
    assert main(["lake", "adopt", str(source)]) == 2
    assert "rebuild" in capsys.readouterr().err
    assert main(["lake", "rebuild", str(source)]) == 0
    assert keys(source, capsys) == ["a", "b", "c"]


def test_a_lost_metastore_of_a_directory_is_made_again_in_another_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, copy = embedded(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(source / "objects", copy / "objects")
    assert main(["lake", "rebuild", str(copy)]) == 0
    assert (keys(copy, capsys), keys(source, capsys)) == (["a", "b"], ["a", "b"])


def test_objects_that_were_moved_are_found_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    made = create_lake(url, f"file://{tmp_path / 'elsewhere' / 'objects'}", now_ms=0)
    ingest(made, find_partitions([log(tmp_path / "logs", "N[a] N[b]")]), clock=lambda: 1, engine=InProcess(1))
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


@pytest.mark.parametrize("left", ["objects", "nothing"])
def test_a_rebuild_that_finds_no_topic_does_not_end_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str
) -> None:
    source = embedded(tmp_path / "a")
    before = stored(source)
    if left == "objects":
        for folder in ("journal", "journal-end"):
            shutil.rmtree(source / "objects" / folder)
        assert main(["lake", "rebuild", str(source)]) == 2
        assert "the journal ends at number 0" in capsys.readouterr().err
        (source / "metastore.db").unlink()
        assert main(["lake", "rebuild", str(source)]) == 2
        assert "no journal" in capsys.readouterr().err
        assert keys_after_restoring(source, before, capsys) == ["a", "b"]
        return
    assert main(["lake", "topics", str(source), "drop", "t", "--yes"]) == 0
    assert main(["lake", "rebuild", str(source)]) == 1
    assert "no topic is left: dropped, by the journal: t" in capsys.readouterr().out


def keys_after_restoring(root: Path, before: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> list[str]:
    for path, content in before.items():
        (root / "objects" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "objects" / path).write_bytes(content)
    assert main(["lake", "rebuild", str(root)]) == 0
    return keys(root, capsys)


def test_a_crash_while_a_copy_becomes_a_lake_of_its_own_is_made_good(tmp_path: Path) -> None:
    """Between the new token in the metastore and in the store."""
    source, copy = embedded(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(source, copy)
    (copy / "objects" / OWNER).chmod(0o400)
    store = Store.open(f"file://{copy / 'objects'}")
    before = store.read(OWNER, 0, store.size(OWNER))
    assert main(["lake", "status", str(copy)]) == 0
    store.put(OWNER, before)
    lake = unchecked_lake(directory_url(str(copy)))
    with lake.metastore.transaction() as connection:
        token = json.loads(before.splitlines()[0])["token"]
        connection.exec_driver_sql("UPDATE lakes SET token_before = ?", (token,))
    lake.close()
    assert main(["lake", "status", str(copy)]) == 0
    assert store.read(OWNER, 0, store.size(OWNER)) != before
    store.delete([OWNER])
    assert main(["lake", "status", str(copy)]) == 0
    assert store.has(OWNER)
    assert store.has(MARKER)


def test_a_lake_that_was_rebuilt_and_not_adopted_yet_says_so(lake: Lake, tmp_path: Path) -> None:
    """Killed in between."""
    url = f"sqlite:///{tmp_path / 'again.db'}"
    again = open_for_rebuild(url, lake.store.url)
    rebuild(again)
    again.close()
    with pytest.raises(Copied, match="lake adopt"):
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
        places = [Place(metastore=facts, store=store) for facts in (before, now)]
        assert is_copy(*places, shared_with_original=False) == copied
        assert not is_whole_copy(*places)
    places = [Place(metastore=before, store=OBJECTS), Place(metastore=now, store=OTHER_OBJECTS)]
    assert not is_copy(*places, shared_with_original=False)
    assert is_whole_copy(*places) == bool(before)
