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
from headstone.lake.lake import adopt_lake, create_lake, open_lake
from headstone.lake.metastore import schema
from headstone.lake.metastore.journal import NO_ENTRY, SetBack, read_all, record_nothing, tell_end
from headstone.lake.metastore.journal_names import end_of, object_of
from headstone.lake.metastore.marker import Marker
from headstone.storage.stores import MissingObject
from tests.lake.databases import another, make_another
from tests.lake.embedded import Embedded, files
from tests.lake.scene import Said, Scene

JOURNAL = ("journal", "journal-end")
WORKING = ("status", "read t", "gc --apply --grace-ms 0", "compact --all")
VERBS = (*WORKING, "status --check", "status --check --deep", "mend --apply", "adopt", "rebuild")
KINDS = ("flipped", "cut off", "emptied", "appended to", "not sealed")


@pytest.fixture
def lake(tmp_path: Path, said: Said) -> Embedded:
    return Embedded.make(tmp_path / "lake", said)


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    damages: dict[str, Callable[[], object]] = {
        "flipped": lambda: path.write_bytes(content.replace(b"0", b"1", 1).replace(b'"', b"'", 1)),
        "cut off": lambda: path.write_bytes(content[:60]), "emptied": lambda: path.write_bytes(b""),
        "appended to": lambda: path.write_bytes(content + b"{}\n"), "lost": path.unlink,
        "not sealed": lambda: path.write_bytes(content.splitlines()[0]),
    }  # fmt: skip
    damages[kind]()


def lose_journal(lake: Embedded) -> None:
    for folder in JOURNAL:
        shutil.rmtree(lake.objects / folder)


@pytest.mark.parametrize("kind", [*KINDS, "lost"])
def test_a_damaged_marker_is_named_and_written_again_from_the_metastore(lake: Embedded, kind: str) -> None:
    before = lake.stored()
    damage(lake.objects / MARKER, kind)
    damaged = lake.stored()
    lake.refuses(*WORKING)
    assert f"WRONG: {MARKER}: identity: " in lake.says("status", "--check", "--deep", code=1).out
    assert "to mend; --apply does it" in lake.says("mend", code=1).out
    assert lake.stored() == damaged
    assert (lake.code("mend", "--apply"), lake.stored()) == (0, before)
    assert (lake.code("status", "--check", "--deep"), lake.keys()) == (0, ["a", "b"])


@pytest.mark.parametrize("kind", [*KINDS, "lost"])
def test_nothing_is_rebuilt_by_a_damaged_marker(lake: Embedded, kind: str) -> None:
    """By another secret no list of keys would find its own, and a deleted key would be served."""
    lake.metastore.unlink()
    damage(lake.objects / MARKER, kind)
    before = files(lake.root)
    assert (lake.code("rebuild"), files(lake.root)) == (2, before)


@pytest.mark.parametrize(
    ("kind", "way_out"), list(zip(KINDS, ("mend --apply", "adopt", "rebuild", "mend --apply", "adopt"), strict=True))
)
def test_a_damaged_word_of_the_metastore_is_named_and_written_again(lake: Embedded, kind: str, way_out: str) -> None:
    damage(lake.objects / OWNER, kind)
    lake.refuses(*WORKING[:3], why="`headstone lake mend LAKE --apply`, or `headstone lake adopt LAKE`")
    damaged = lake.stored()
    assert f"WRONG: {OWNER}: identity: " in lake.says("status", "--check", code=1).out
    assert lake.stored() == damaged
    assert (lake.codes(way_out, "status --check"), lake.keys()) == ([0, 0], ["a", "b"])


def test_exchanged_they_are_named(lake: Embedded) -> None:
    marker, owner = (lake.objects / name for name in (MARKER, OWNER))
    (content, other), before = (marker.read_bytes(), owner.read_bytes()), lake.stored()
    marker.write_bytes(other)
    owner.write_bytes(content)
    assert "files were swapped" in lake.says("status", "--check", code=1).out
    assert (lake.code("mend", "--apply"), lake.stored()) == (0, before)


def test_a_copy_mends_nothing(tmp_path: Path) -> None:
    """Nobody knows any more which metastore the store had; where this one was before still counts."""
    url, copy = (f"sqlite:///{tmp_path / name}.db" for name in ("lake", "copy"))
    create_lake(url, f"file://{tmp_path / 'elsewhere'}", now_ms=0).close()
    shutil.copy(tmp_path / "lake.db", tmp_path / "copy.db")
    for name in (MARKER, OWNER):
        damage(tmp_path / "elsewhere" / name, "cut off")
    before = files(tmp_path / "elsewhere")
    assert main(["lake", "mend", copy, "--apply"]) == 2
    assert files(tmp_path / "elsewhere") == before
    commands = (["adopt", copy], ["status", copy, "--check"], ["status", url])
    assert [main(["lake", *words]) for words in commands] == [0, 0, 2]


def test_a_marker_with_another_secret_is_refused_by_all(lake: Embedded) -> None:
    """It is whole: which of the two is wrong nobody can tell."""
    marker = Marker.read(lake.store)
    replace(marker, hash_key="0" * 32).write(lake.store)
    lake.refuses(*VERBS)
    marker.write(lake.store)
    assert lake.code("status", "--check") == 0


def test_no_marker_is_written_into_a_store_that_nothing_tells_to_be_the_lakes(
    lake: Embedded, tmp_path: Path, said: Said
) -> None:
    other = Embedded.make(tmp_path / "other", said)
    shutil.rmtree(lake.objects)
    lake.objects.mkdir()
    lake.refuses(*VERBS)
    shutil.rmtree(lake.objects)
    shutil.copytree(other.objects, lake.objects)
    (lake.objects / MARKER).unlink()
    lake.refuses(*VERBS)


def damage_journal(lake: Embedded) -> None:
    path = lake.objects / object_of(2)
    path.write_bytes(path.read_bytes().replace(b"t", b"u", 1))


def leave_a_gap(lake: Embedded) -> None:
    (lake.objects / object_of(2)).unlink()


@pytest.mark.parametrize("lose", [lose_journal, damage_journal, leave_a_gap])
def test_a_rebuild_that_refuses_leaves_nothing(lake: Embedded, lose: Callable[[Embedded], None]) -> None:
    lake.metastore.unlink()
    lose(lake)
    before = files(lake.root)
    assert lake.code("rebuild") in (2, 3)
    assert files(lake.root) == before


def test_a_rebuild_for_another_clock_leaves_nothing(lake: Embedded) -> None:
    lake.metastore.unlink()
    before = files(lake.root)
    assert (lake.code("rebuild", "--now-ms", "5"), files(lake.root)) == (2, before)
    assert (lake.code("rebuild"), lake.keys()) == (0, ["a", "b"])


def test_a_rebuild_that_fails_leaves_the_database_as_it_was(metastore_url: str, tmp_path: Path) -> None:
    """One that has no lake yet, and one that has."""
    objects = f"file://{tmp_path / 'objects'}"
    scene = Scene(create_lake(metastore_url, objects, now_ms=0), tmp_path)
    scene.write("N[a]")
    (tmp_path / "objects" / object_of(2)).unlink()
    make_another(metastore_url)
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
def test_a_metastore_that_knows_of_nothing_changes_nothing_over_objects(lake: Embedded, owner: bool) -> None:
    """As a rebuild leaves it that is killed before its first row, and then the journal is lost."""
    lake.metastore.unlink()
    open_for_rebuild(lake.url, None).close()
    assert "knows of commits that the metastore does not" in lake.says("status", code=2).err
    whole = lake.stored()
    lose_journal(lake)
    if not owner:
        (lake.objects / OWNER).unlink()
    lake.refuses(*VERBS)
    lake.restore(whole)
    assert (lake.code("rebuild"), lake.keys()) == (0, ["a", "b"])


def test_a_metastore_of_another_history_is_refused_also_by_adopt(lake: Embedded, tmp_path: Path) -> None:
    """Two copies that went different ways for as many commits: by its rows each would delete what the other one needs."""
    copy = lake.at(tmp_path / "copy")
    shutil.copytree(lake.root, copy.root)
    for each, term in ((lake, "N[c]"), (copy, "N[d]")):
        each.grow(f"N[a] N[b] | {term}")
    at_work = lake.open()
    shutil.rmtree(lake.objects)
    shutil.copytree(copy.objects, lake.objects)
    assert "is not the one that the metastore knows" in check_journal(at_work)[0].problem
    at_work.close()
    before = lake.stored()
    with pytest.raises(SetBack, match="is not the one that the metastore knows"):
        adopt_lake(lake.url)
    assert lake.stored() == before
    lake.refuses(*VERBS)


def set_back(lake: Embedded, before: bytes) -> None:
    lake.metastore.write_bytes(before)


def test_a_metastore_that_was_set_back_is_noticed_where_the_next_entry_is_lost(lake: Embedded) -> None:
    older = lake.metastore.read_bytes()
    lake.grow("N[a] N[b] | N[c]")
    set_back(lake, older)
    opened = open_for_rebuild(lake.url, None)
    with opened.metastore.transaction() as connection:
        number = connection.execute(select(schema.lakes.c.journal_number)).scalar_one()
    opened.close()
    (lake.objects / object_of(number + 1)).unlink()
    lake.refuses("status", "adopt", "gc --apply --grace-ms 0", "mend --apply")


@pytest.mark.parametrize("end", [True, False])
def test_a_metastore_that_was_set_back_is_noticed_behind_an_entry_that_changes_nothing(
    lake: Embedded, end: bool
) -> None:
    """As mending writes one: it is nobody's in particular, and the next one is of commits that this metastore lacks."""
    older = lake.metastore.read_bytes()
    with lake.open() as opened:
        record_nothing(opened.metastore, opened.store)
    lake.grow("N[a] N[b] | N[c]")
    set_back(lake, older)
    if not end:
        shutil.rmtree(lake.objects / "journal-end")
    before = lake.stored()
    assert lake.codes("status", "adopt") == [2, 2]
    changed = {path for path, content in lake.stored().items() if before.get(path) != content}
    assert {path for path in changed if end or not path.startswith("journal-end/")} == set()


@pytest.mark.parametrize("folded", [False, True])
def test_objects_of_an_earlier_time_are_refused_until_they_are_put_back_or_given_up(
    lake: Embedded, tmp_path: Path, folded: bool
) -> None:
    """An old backup of the objects alone: a collection would delete from it, and a commit leave a gap in its journal."""
    shutil.copytree(lake.objects, tmp_path / "older")
    lake.grow("N[a] N[b] | N[c]")
    if folded:
        with lake.open() as opened:
            assert fold(opened) > 0
    shutil.move(lake.objects, tmp_path / "newer")
    shutil.copytree(tmp_path / "older", lake.objects)
    before = lake.stored()
    lake.refuses(*WORKING, f"ingest {tmp_path / 'logs'}", why="the objects are older than the metastore")
    assert lake.codes("status --check", "mend") == [1, 1]
    assert lake.stored() == before
    shutil.rmtree(lake.objects)
    shutil.move(tmp_path / "newer", lake.objects)
    assert (lake.code("status", "--check", "--deep"), lake.keys()) == (0, ["a", "b", "c"])
    shutil.rmtree(lake.objects)
    shutil.copytree(tmp_path / "older", lake.objects)
    giving_up = ("mend --apply --accept-older-values", "gc --apply --grace-ms 0", "status --check --deep")
    assert (lake.codes(*giving_up), lake.keys()) == ([0, 0, 0], ["a", "b"])


@pytest.mark.parametrize("end", ["lost", "older"])
def test_an_entry_that_is_lost_is_missed_whatever_the_end_of_the_journal_tells(lake: Embedded, end: str) -> None:
    number = lake.journal_end()
    with lake.open() as opened:
        opened.store.delete([end_of(number), object_of(number - 1)])
        if end == "older":
            tell_end(opened.store, opened.metastore.lake_id, NO_ENTRY)
        with pytest.raises(MissingObject, match=f"{object_of(number - 1)}: no such object, but the journal continues"):
            list(read_all(opened.store, opened.metastore.lake_id))


def test_a_damaged_end_of_the_journal_tells_of_the_entry_that_is_lost_with_it(lake: Embedded) -> None:
    """By its name; a lower one that is left, as whoever was killed leaves it, says nothing of that entry."""
    number = lake.journal_end()
    with lake.open() as opened:
        tell_end(opened.store, opened.metastore.lake_id, NO_ENTRY)
        opened.store.delete([object_of(number)])
        damage(lake.objects / end_of(number), "cut off")
        with pytest.raises(CorruptLog, match=end_of(number)):
            list(read_all(opened.store, opened.metastore.lake_id))


def test_a_lost_end_of_the_journal_is_said_and_told_again(lake: Embedded) -> None:
    before, ends = lake.stored(), lake.objects / "journal-end"
    shutil.rmtree(ends)
    assert "WRONG: journal-end: end of the journal: it is missing" in lake.says("status", "--check", code=1).out
    assert (lake.codes("mend", "mend --apply"), lake.stored()) == ([1, 0], before)
    (end,) = ends.iterdir()
    end.rename(lake.objects / end_of(1))
    assert lake.codes("status --check", "mend --apply", "status --check") == [1, 0, 0]


def test_an_older_end_of_the_journal_is_said_and_told_again(lake: Embedded, tmp_path: Path) -> None:
    """As from a backup of the store: by it nobody could tell that the entries since are lost."""
    ends = lake.objects / "journal-end"
    shutil.copytree(ends, tmp_path / "older")
    lake.grow("N[a] N[b] | N[c]")
    before = lake.stored()
    shutil.rmtree(ends)
    shutil.copytree(tmp_path / "older", ends)
    assert "WRONG: journal-end: end of the journal: it tells of number" in lake.says("status", "--check", code=1).out
    assert lake.codes("mend --apply", "status --check") == [0, 0]
    assert {**before, **lake.stored()} == lake.stored()


def test_foreign_files_beside_the_journal_are_told_and_harm_nobody(lake: Embedded) -> None:
    folders = (*JOURNAL, "journal-base", "journal-base-parts/some")
    foreign = [f"{folder}/{name}" for folder in folders for name in ("readme", "5", "20261119")]
    foreign += ["journal-base-parts/20261119-0badcafe/00000000", f"journal/{10**19 + 1:020d}"]
    lake.restore(dict.fromkeys(foreign, b"mine"))
    with address_space(4 << 30):
        status = lake.says("status", "--check").out.splitlines()
    assert [line for line in status if line.startswith("not the lake's")] == [
        f"not the lake's: {name}" for name in sorted(foreign)
    ]
    (lake.objects / object_of(2)).unlink()
    assert lake.codes("mend --apply", "rebuild") == [0, 0]
    lake.grow("N[a] N[b] | N[c]")
    with lake.open() as opened:
        assert fold(opened) > 0
    assert {name for name in foreign if (lake.objects / name).exists()} == set(foreign)
    assert (lake.code("status", "--check"), lake.keys()) == (0, ["a", "b", "c"])


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


@pytest.mark.parametrize(
    ("folder", "ahead"),
    [(folder, ahead) for folder in ("journal-end", "journal-base") for ahead in (1, 2, 20261119, 10**19)]
    + [("journal", 1)],
)
def test_a_foreign_name_that_tells_of_newer_commits_locks_nobody_out(lake: Embedded, folder: str, ahead: int) -> None:
    """Nobody knows whether it is a damaged one that the metastore lacks: whoever checks or mends gets in, and is told of it.
    Of entries only the place of the next one tells of a commit."""
    path = f"{folder}/{lake.journal_end() + ahead:020d}"
    lake.restore({path: b"mine"})
    before = lake.stored()
    lake.refuses(*WORKING, why=path if folder == "journal" else f"{path}: by its name the journal's")
    for verb in (["status", "--check"], ["mend"], ["mend", "--apply"]):
        assert f"{path}: stranger in the journal: by its name the journal's" in lake.says(*verb, code=1).out, verb
    assert lake.stored() == before
    (lake.objects / path).unlink()
    assert (lake.code("status", "--check"), lake.keys()) == (0, ["a", "b"])


def test_a_metastore_that_was_set_back_is_told_so_whatever_lies_beside_the_journal(lake: Embedded) -> None:
    older = lake.metastore.read_bytes()
    for text in ("N[a] N[b] | N[c]", "N[a] N[b] | N[c] | N[d]"):
        lake.grow(text)
    set_back(lake, older)
    lake.restore({end_of(10**19): b"mine"})
    lake.refuses("status", "status --check", "mend --apply", "adopt", why="it was set back in time")
