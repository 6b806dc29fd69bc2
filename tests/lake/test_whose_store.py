"""What tells whose a store is: the marker, and the word of its metastore. Damaged, exchanged or lost it is named, nothing is
changed by whoever does not belong to the store, and there is a way out that loses nothing."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from headstone.cli.main import main
from headstone.errors import CorruptLog, HeadstoneError, UsageError
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild, rebuilding
from headstone.lake.jobs.store_check import check_journal
from headstone.lake.lake import adopt_lake, create_lake, directory_url, open_lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.journal import NO_ENTRY, SetBack, read_all, record_nothing, seen_end, tell_end
from headstone.lake.metastore.journal_names import end_of, object_of
from headstone.lake.metastore.marker import Marker
from headstone.lake.transfer.ingest import ingest
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import MissingObject, Store
from tests.lake.scene import Scene
from tests.lake.test_identity import embedded, files, keys, log, stored
from tests.lake.test_rebuild import another, name_of, on_server

JOURNAL = ("journal", "journal-end")
VERBS = (
    ["status"], ["status", "--check"], ["status", "--check", "--deep"], ["read", "t"], ["gc", "--apply", "--grace-ms", "0"],
    ["compact", "--all"], ["mend", "--apply"], ["adopt"], ["rebuild"],
)  # fmt: skip


def call(root: Path, verb: list[str]) -> int:
    return main(["lake", verb[0], str(root), *verb[1:]])


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    damages: dict[str, Callable[[], object]] = {
        "flipped": lambda: path.write_bytes(content.replace(b"0", b"1", 1).replace(b'"', b"'", 1)),
        "cut off": lambda: path.write_bytes(content[:60]), "emptied": lambda: path.write_bytes(b""),
        "appended to": lambda: path.write_bytes(content + b"{}\n"), "lost": path.unlink,
        "not sealed": lambda: path.write_bytes(content.splitlines()[0]),
    }  # fmt: skip
    damages[kind]()


def lose_journal(root: Path) -> None:
    for folder in JOURNAL:
        shutil.rmtree(root / "objects" / folder)


@pytest.mark.parametrize("kind", ["flipped", "cut off", "emptied", "appended to", "lost", "not sealed"])
def test_a_damaged_marker_is_named_and_written_again_from_the_metastore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    root = embedded(tmp_path / "lake")
    before = stored(root)
    damage(root / "objects" / MARKER, kind)
    damaged = stored(root)
    for verb in (["status"], ["read", "t"], ["gc", "--apply", "--grace-ms", "0"], ["compact", "--all"]):
        assert call(root, verb) == 2
    capsys.readouterr()
    assert call(root, ["status", "--check", "--deep"]) == 1
    assert f"WRONG: {MARKER}: identity: " in capsys.readouterr().out
    assert call(root, ["mend"]) == 1
    assert "to mend; --apply does it" in capsys.readouterr().out
    assert stored(root) == damaged
    assert call(root, ["mend", "--apply"]) == 0
    assert stored(root) == before
    assert call(root, ["status", "--check", "--deep"]) == 0
    assert keys(root, capsys) == ["a", "b"]


@pytest.mark.parametrize("kind", ["flipped", "cut off", "emptied", "appended to", "lost", "not sealed"])
def test_nothing_is_rebuilt_by_a_damaged_marker(tmp_path: Path, kind: str) -> None:
    """By another secret no list of keys would find its own, and a deleted key would be served."""
    root = embedded(tmp_path / "lake")
    (root / "metastore.db").unlink()
    damage(root / "objects" / MARKER, kind)
    before = files(root)
    assert call(root, ["rebuild"]) == 2
    assert files(root) == before


@pytest.mark.parametrize("way_out", ["mend", "adopt", "rebuild"])
@pytest.mark.parametrize("kind", ["flipped", "cut off", "emptied", "appended to", "not sealed"])
def test_a_damaged_word_of_the_metastore_is_named_and_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, way_out: str
) -> None:
    root = embedded(tmp_path / "lake")
    damage(root / "objects" / OWNER, kind)
    damaged = stored(root)
    for verb in (["status"], ["read", "t"], ["gc", "--apply", "--grace-ms", "0"]):
        assert call(root, verb) == 2
    assert "`headstone lake mend LAKE --apply`, or `headstone lake adopt LAKE`" in capsys.readouterr().err
    assert call(root, ["status", "--check"]) == 1
    assert f"WRONG: {OWNER}: identity: " in capsys.readouterr().out
    assert stored(root) == damaged
    assert call(root, [way_out, *(["--apply"] if way_out == "mend" else [])]) == 0
    assert call(root, ["status", "--check"]) == 0
    assert keys(root, capsys) == ["a", "b"]


def test_exchanged_they_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = embedded(tmp_path / "lake")
    marker, owner = (root / "objects" / name for name in (MARKER, OWNER))
    (content, other), before = (marker.read_bytes(), owner.read_bytes()), stored(root)
    marker.write_bytes(other)
    owner.write_bytes(content)
    assert call(root, ["status", "--check"]) == 1
    assert "files were swapped" in capsys.readouterr().out
    assert call(root, ["mend", "--apply"]) == 0
    assert stored(root) == before


def test_a_copy_mends_nothing(tmp_path: Path) -> None:
    """Nobody knows any more which metastore the store had; where this one was before still counts."""
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    create_lake(url, f"file://{tmp_path / 'elsewhere'}", now_ms=0).close()
    shutil.copy(tmp_path / "lake.db", tmp_path / "copy.db")
    for name in (MARKER, OWNER):
        damage(tmp_path / "elsewhere" / name, "cut off")
    before = files(tmp_path / "elsewhere")
    assert main(["lake", "mend", f"sqlite:///{tmp_path / 'copy.db'}", "--apply"]) == 2
    assert files(tmp_path / "elsewhere") == before
    assert main(["lake", "adopt", f"sqlite:///{tmp_path / 'copy.db'}"]) == 0
    assert main(["lake", "status", f"sqlite:///{tmp_path / 'copy.db'}", "--check"]) == 0
    assert main(["lake", "status", url]) == 2


def test_a_marker_with_another_secret_is_refused_by_all(tmp_path: Path) -> None:
    """It is whole: which of the two is wrong nobody can tell."""
    root = embedded(tmp_path / "lake")
    store = Store.open(f"file://{root / 'objects'}")
    marker = Marker.read(store)
    replace(marker, hash_key="0" * 32).write(store)
    before = stored(root)
    for verb in VERBS:
        assert call(root, verb) == 2, verb
    assert stored(root) == before
    marker.write(store)
    assert call(root, ["status", "--check"]) == 0


def test_no_marker_is_written_into_a_store_that_nothing_tells_to_be_the_lakes(tmp_path: Path) -> None:
    root = embedded(tmp_path / "lake")
    other = embedded(tmp_path / "other")
    shutil.rmtree(root / "objects")
    (root / "objects").mkdir()
    for _ in range(2):
        before = stored(root)
        for verb in VERBS:
            assert call(root, verb) == 2, verb
        assert stored(root) == before
        shutil.rmtree(root / "objects")
        shutil.copytree(other / "objects", root / "objects")
        (root / "objects" / MARKER).unlink()


def no_journal(root: Path) -> None:
    lose_journal(root)


def a_damaged_journal(root: Path) -> None:
    path = root / "objects" / object_of(2)
    path.write_bytes(path.read_bytes().replace(b"t", b"u", 1))


def a_gap(root: Path) -> None:
    (root / "objects" / object_of(2)).unlink()


@pytest.mark.parametrize("lose", [no_journal, a_damaged_journal, a_gap])
def test_a_rebuild_that_refuses_leaves_nothing(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    root = embedded(tmp_path / "lake")
    (root / "metastore.db").unlink()
    lose(root)
    before = files(root)
    assert call(root, ["rebuild"]) in (2, 3)
    assert files(root) == before


def test_a_rebuild_for_another_clock_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = embedded(tmp_path / "lake")
    (root / "metastore.db").unlink()
    before = files(root)
    assert call(root, ["rebuild", "--now-ms", "5"]) == 2
    assert files(root) == before
    assert call(root, ["rebuild"]) == 0
    assert keys(root, capsys) == ["a", "b"]


def test_a_rebuild_that_fails_leaves_the_database_as_it_was(metastore_url: str, tmp_path: Path) -> None:
    """One that has no lake yet, and one that has."""
    objects = f"file://{tmp_path / 'objects'}"
    scene = Scene(create_lake(metastore_url, objects, now_ms=0), tmp_path)
    scene.write("N[a]")
    (tmp_path / "objects" / object_of(2)).unlink()
    if not metastore_url.startswith("sqlite"):
        on_server(metastore_url, f"CREATE DATABASE {name_of(another(metastore_url))}")
    for url in (another(metastore_url), another(metastore_url), metastore_url):
        with pytest.raises(HeadstoneError, match="no such object"), rebuilding(url, objects) as lake:
            rebuild(lake)
    with pytest.raises(UsageError, match="has no lake"):
        open_lake(another(metastore_url))
    open_lake(metastore_url).close()


def test_a_rebuild_that_refuses_leaves_the_objects_where_they_were(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'lake.db'}"
    scene = Scene(create_lake(url, f"file://{tmp_path / 'objects'}", now_ms=0), tmp_path)
    shutil.copytree(tmp_path / "objects", tmp_path / "older")
    scene.write("N[a]")
    scene.lake.close()
    assert main(["lake", "rebuild", url, "--objects", f"file://{tmp_path / 'older'}"]) == 2
    assert main(["lake", "status", url, "--check"]) == 0


@pytest.mark.parametrize("owner", [True, False])
def test_a_metastore_that_knows_of_nothing_changes_nothing_over_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], owner: bool
) -> None:
    """As a rebuild leaves it that is killed before its first row, and then the journal is lost."""
    root = embedded(tmp_path / "lake")
    (root / "metastore.db").unlink()
    open_for_rebuild(directory_url(str(root)), None).close()
    assert call(root, ["status"]) == 2
    assert "knows of commits that the metastore does not" in capsys.readouterr().err
    whole = stored(root)
    lose_journal(root)
    if not owner:
        (root / "objects" / OWNER).unlink()
    before = stored(root)
    for verb in VERBS:
        assert call(root, verb) == 2, verb
    assert stored(root) == before
    for path, content in whole.items():
        (root / "objects" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "objects" / path).write_bytes(content)
    assert call(root, ["rebuild"]) == 0
    assert keys(root, capsys) == ["a", "b"]


def test_a_metastore_of_another_history_is_refused_also_by_adopt(tmp_path: Path) -> None:
    """Two copies that went different ways for as many commits: by its rows each would delete what the other one needs."""
    first, second = embedded(tmp_path / "a"), tmp_path / "b"
    shutil.copytree(first, second)
    for root, term in ((first, "N[c]"), (second, "N[d]")):
        lake = open_lake(directory_url(str(root)))
        logs = find_partitions([log(tmp_path / f"logs-{term[2]}", "N[a] N[b]", term)])
        ingest(lake, logs, clock=lambda: 1, engine=InProcess(1))
        lake.close()
    assert files(first).keys() >= {"metastore.db"}
    at_work = open_lake(directory_url(str(first)))
    shutil.rmtree(first / "objects")
    shutil.copytree(second / "objects", first / "objects")
    assert "is not the one that the metastore knows" in check_journal(at_work)[0].problem
    at_work.close()
    before = stored(first)
    with pytest.raises(SetBack, match="is not the one that the metastore knows"):
        adopt_lake(directory_url(str(first)))
    for verb in VERBS:
        assert call(first, verb) == 2, verb
    assert stored(first) == before


def test_a_metastore_that_was_set_back_is_noticed_where_the_next_entry_is_lost(tmp_path: Path) -> None:
    root = embedded(tmp_path / "lake")
    shutil.copy(root / "metastore.db", tmp_path / "older.db")
    assert main(["lake", "ingest", str(root), str(log(tmp_path / "logs", "N[a] N[b] | N[c]"))]) == 0
    shutil.copy(tmp_path / "older.db", root / "metastore.db")
    lake = open_for_rebuild(directory_url(str(root)), None)
    with lake.metastore.transaction() as connection:
        number = connection.execute(select(schema.lakes.c.journal_number)).scalar_one()
    lake.close()
    (root / "objects" / object_of(number + 1)).unlink()
    before = stored(root)
    for verb in (["status"], ["adopt"], ["gc", "--apply", "--grace-ms", "0"], ["mend", "--apply"]):
        assert call(root, verb) == 2, verb
    assert stored(root) == before


@pytest.mark.parametrize("end", [True, False])
def test_a_metastore_that_was_set_back_is_noticed_behind_an_entry_that_changes_nothing(
    tmp_path: Path, end: bool
) -> None:
    """As mending writes one: it is nobody's in particular, and the next one is of commits that this metastore lacks."""
    root = embedded(tmp_path / "lake")
    shutil.copy(root / "metastore.db", tmp_path / "older.db")
    lake = open_lake(directory_url(str(root)))
    record_nothing(lake.metastore, lake.store)
    lake.close()
    assert main(["lake", "ingest", str(root), str(log(tmp_path / "logs", "N[a] N[b] | N[c]"))]) == 0
    shutil.copy(tmp_path / "older.db", root / "metastore.db")
    if not end:
        shutil.rmtree(root / "objects" / "journal-end")
    before = stored(root)
    assert call(root, ["status"]) == 2
    assert call(root, ["adopt"]) == 2
    changed = {path for path, content in stored(root).items() if before.get(path) != content}
    assert {path for path in changed if end or not path.startswith("journal-end/")} == set()


@pytest.mark.parametrize("folded", [False, True])
def test_objects_of_an_earlier_time_are_refused_until_they_are_put_back_or_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folded: bool
) -> None:
    """An old backup of the objects alone: a collection would delete from it, and a commit leave a gap in its journal."""
    root = embedded(tmp_path / "lake")
    shutil.copytree(root / "objects", tmp_path / "older")
    logs = str(log(tmp_path / "logs", "N[a] N[b] | N[c]"))
    assert main(["lake", "ingest", str(root), logs]) == 0
    if folded:
        with open_lake(directory_url(str(root))) as lake:
            assert fold(lake) > 0
    shutil.move(root / "objects", tmp_path / "newer")
    shutil.copytree(tmp_path / "older", root / "objects")
    before = stored(root)
    for verb in (
        ["status"],
        ["read", "t"],
        ["compact", "--all"],
        ["gc", "--apply", "--grace-ms", "0"],
        ["ingest", logs],
    ):
        capsys.readouterr()
        assert call(root, verb) == 2, verb
        assert "the objects are older than the metastore" in capsys.readouterr().err
    assert (call(root, ["status", "--check"]), call(root, ["mend"])) == (1, 1)
    assert stored(root) == before
    shutil.rmtree(root / "objects")
    shutil.move(tmp_path / "newer", root / "objects")
    assert (call(root, ["status", "--check", "--deep"]), keys(root, capsys)) == (0, ["a", "b", "c"])
    shutil.rmtree(root / "objects")
    shutil.copytree(tmp_path / "older", root / "objects")
    for verb in (["mend", "--apply", "--accept-older-values"], ["gc", "--apply", "--grace-ms", "0"]):
        assert call(root, verb) == 0, verb
    assert (call(root, ["status", "--check", "--deep"]), keys(root, capsys)) == (0, ["a", "b"])


@pytest.mark.parametrize("end", ["lost", "older"])
def test_an_entry_that_is_lost_is_missed_whatever_the_end_of_the_journal_tells(tmp_path: Path, end: str) -> None:
    root = embedded(tmp_path / "lake")
    with open_lake(directory_url(str(root))) as lake:
        number = seen_end(lake.metastore).number
        lake.store.delete([end_of(number), object_of(number - 1)])
        if end == "older":
            tell_end(lake.store, lake.metastore.lake_id, NO_ENTRY)
        with pytest.raises(MissingObject, match=f"{object_of(number - 1)}: no such object, but the journal continues"):
            list(read_all(lake.store, lake.metastore.lake_id))


def test_a_damaged_end_of_the_journal_tells_of_the_entry_that_is_lost_with_it(tmp_path: Path) -> None:
    """By its name; a lower one that is left, as whoever was killed leaves it, says nothing of that entry."""
    root = embedded(tmp_path / "lake")
    with open_lake(directory_url(str(root))) as lake:
        number = seen_end(lake.metastore).number
        tell_end(lake.store, lake.metastore.lake_id, NO_ENTRY)
        lake.store.delete([object_of(number)])
        damage(root / "objects" / end_of(number), "cut off")
        with pytest.raises(CorruptLog, match=end_of(number)):
            list(read_all(lake.store, lake.metastore.lake_id))


def test_a_lost_end_of_the_journal_is_said_and_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = embedded(tmp_path / "lake")
    before = stored(root)
    shutil.rmtree(root / "objects" / "journal-end")
    assert call(root, ["status", "--check"]) == 1
    assert "WRONG: journal-end: end of the journal: it is missing" in capsys.readouterr().out
    assert call(root, ["mend"]) == 1
    assert call(root, ["mend", "--apply"]) == 0
    assert stored(root) == before
    (end,) = (root / "objects" / "journal-end").iterdir()
    end.rename(root / "objects" / end_of(1))
    assert call(root, ["status", "--check"]) == 1
    assert call(root, ["mend", "--apply"]) == 0
    assert call(root, ["status", "--check"]) == 0


def test_an_older_end_of_the_journal_is_said_and_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As from a backup of the store: by it nobody could tell that the entries since are lost."""
    root = embedded(tmp_path / "lake")
    ends = root / "objects" / "journal-end"
    shutil.copytree(ends, tmp_path / "older")
    assert main(["lake", "ingest", str(root), str(log(tmp_path / "logs", "N[a] N[b] | N[c]"))]) == 0
    before = stored(root)
    shutil.rmtree(ends)
    shutil.copytree(tmp_path / "older", ends)
    assert call(root, ["status", "--check"]) == 1
    assert "WRONG: journal-end: end of the journal: it tells of number" in capsys.readouterr().out
    assert call(root, ["mend", "--apply"]) == 0
    assert (call(root, ["status", "--check"]), {**before, **stored(root)} == stored(root)) == (0, True)


def test_foreign_files_beside_the_journal_are_told_and_harm_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = embedded(tmp_path / "lake")
    folders = (*JOURNAL, "journal-base", "journal-base-parts/some")
    foreign = [f"{folder}/{name}" for folder in folders for name in ("readme", "5", "20261119")]
    foreign += ["journal-base-parts/20261119-0badcafe/00000000", f"journal/{10**19 + 1:020d}"]
    for name in foreign:
        (root / "objects" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "objects" / name).write_text("mine")
    capsys.readouterr()
    with address_space(4 << 30):
        assert call(root, ["status", "--check"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("not the lake's")] == [
        f"not the lake's: {name}" for name in sorted(foreign)
    ]
    (root / "objects" / object_of(2)).unlink()
    assert call(root, ["mend", "--apply"]) == 0
    assert call(root, ["rebuild"]) == 0
    assert main(["lake", "ingest", str(root), str(log(tmp_path / "logs", "N[a] N[b] | N[c]"))]) == 0
    with open_lake(directory_url(str(root))) as lake:
        assert fold(lake) > 0
    assert {name for name in foreign if (root / "objects" / name).exists()} == set(foreign)
    assert (call(root, ["status", "--check"]), keys(root, capsys)) == (0, ["a", "b", "c"])


@contextmanager
def address_space(size: int) -> Iterator[None]:
    """As much more of it as this process has now, and an error instead of all the machine's memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("ahead", [1, 2, 20261119, 10**19])
@pytest.mark.parametrize("folder", ["journal-end", "journal-base"])
def test_a_foreign_name_that_tells_of_newer_commits_locks_nobody_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str, ahead: int
) -> None:
    """Nobody knows whether it is a damaged one that the metastore lacks: whoever checks or mends gets in, and is told of it."""
    root = embedded(tmp_path / "lake")
    with open_lake(directory_url(str(root))) as lake:
        number = seen_end(lake.metastore).number
    path = f"{folder}/{number + ahead:020d}"
    (root / "objects" / path).parent.mkdir(exist_ok=True)
    (root / "objects" / path).write_text("mine")
    before = stored(root)
    for verb in (["status"], ["read", "t"], ["gc", "--apply", "--grace-ms", "0"], ["compact", "--all"]):
        capsys.readouterr()
        assert call(root, verb) == 2, verb
        assert f"{path}: by its name the journal's" in capsys.readouterr().err
    for verb in (["status", "--check"], ["mend"], ["mend", "--apply"]):
        assert call(root, verb) == 1, verb
        assert f"{path}: stranger in the journal: by its name the journal's" in capsys.readouterr().out
    assert stored(root) == before
    (root / "objects" / path).unlink()
    assert (call(root, ["status", "--check"]), keys(root, capsys)) == (0, ["a", "b"])


def test_a_foreign_name_in_the_place_of_the_next_entry_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = embedded(tmp_path / "lake")
    with open_lake(directory_url(str(root))) as lake:
        path = object_of(seen_end(lake.metastore).number + 1)
    (root / "objects" / path).write_text("mine")
    assert call(root, ["status"]) == 2
    assert path in capsys.readouterr().err
    for verb in (["status", "--check"], ["mend", "--apply"]):
        assert call(root, verb) == 1, verb
        assert f"{path}: stranger in the journal: by its name the journal's" in capsys.readouterr().out
    (root / "objects" / path).unlink()
    assert call(root, ["status", "--check"]) == 0


def test_a_metastore_that_was_set_back_is_told_so_whatever_lies_beside_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = embedded(tmp_path / "lake")
    shutil.copy(root / "metastore.db", tmp_path / "older.db")
    for number, terms in enumerate(("N[a] N[b] | N[c]", "N[a] N[b] | N[c] | N[d]")):
        assert main(["lake", "ingest", str(root), str(log(tmp_path / f"logs-{number}", terms))]) == 0
    shutil.copy(tmp_path / "older.db", root / "metastore.db")
    (root / "objects" / end_of(10**19)).write_text("mine")
    before = stored(root)
    for verb in (["status"], ["status", "--check"], ["mend", "--apply"], ["adopt"]):
        capsys.readouterr()
        assert call(root, verb) == 2, verb
        assert "it was set back in time" in capsys.readouterr().err
    assert stored(root) == before
