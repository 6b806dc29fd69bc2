"""Where a lake may be made: in no directory or prefix that somebody else uses, and in no other lake's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.lake.format.objects import object_path
from headstone.lake.lake import create_lake, open_lake
from headstone.storage.stores import Store
from testbed.s3 import BUCKET
from tests.lake.scene import Said


def kafka_by(root: Path, sign: str) -> Path:
    """A broker's log directory, or a partition's, that is known by one sign alone."""
    root.mkdir()
    if "/" in sign:
        (root / sign).parent.mkdir()
    (root / sign).touch()
    return root


SIGNS = (
    "meta.properties", "replication-offset-checkpoint", "cleaner-offset-checkpoint", "recovery-point-offset-checkpoint",
    "orders-0/00000000000000000000.log", "00000000000000000000.log", "partition.metadata",
)  # fmt: skip


def everything(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


@pytest.mark.parametrize("sign", SIGNS)
def test_a_kafka_log_directory_is_called_what_it_is_and_left_alone(tmp_path: Path, said: Said, sign: str) -> None:
    """Also as the place of the objects alone."""
    root = kafka_by(tmp_path / "data", sign)
    before = everything(tmp_path)
    elsewhere = f"sqlite:///{tmp_path / 'lake.db'}"
    for words in ([str(root)], [f"{root}/"], [elsewhere, "--objects", f"file://{root}"]):
        assert "is the log directory of a Kafka broker, or a part of one" in said("init", *words, code=2).err
    answer = said("status", str(root), code=2).err
    assert ("log directory of a Kafka broker" in answer, f"lake init {root}" in answer) == (True, False)
    assert everything(tmp_path) == before


INSIDE = (
    "{root}/mylake", "{root}/orders-0/mylake", "{link}/a/b", "{outside} --objects file://{root}/objects",
    "sqlite:///{root}/new/lake.db --objects file://{outside}",
)  # fmt: skip


def refused_inside(root: Path, words: str, said: Said) -> str:
    """Of a lake that would be made inside of this directory, or through a link to it: nothing is, and why."""
    (root.parent / "link").symlink_to(root)
    before = everything(root.parent)
    filled = words.format(root=root, link=root.parent / "link", outside=root.parent / "outside")
    problem = said("init", *filled.split(), code=2).err
    assert everything(root.parent) == before
    return str(problem)


@pytest.mark.parametrize(
    ("sign", "words"),
    [(sign, words) for sign in ("meta.properties", "orders-0/00000000000000000000.log") for words in INSIDE]
    + [("meta.properties", "sqlite:///{root}/lake.db --objects file://{outside}")],
)
def test_nothing_is_made_inside_a_kafka_log_directory_nor_in_one_that_has_nothing_but_partitions(
    tmp_path: Path, said: Said, sign: str, words: str
) -> None:
    """A broker does not start while a folder in it is no partition."""
    problem = refused_inside(kafka_by(tmp_path / "data", sign), words, said)
    assert "is the log directory of a Kafka broker, or a part of one" in problem


def test_a_folder_with_a_partitions_name_is_none(tmp_path: Path) -> None:
    (tmp_path / "user-1" / "notes").mkdir(parents=True)
    assert main(["lake", "init", str(tmp_path / "user-1" / "lake")]) == 0
    assert main(["lake", "init", str(tmp_path / "lake")]) == 0


def test_only_an_empty_directory_becomes_a_lake(tmp_path: Path, said: Said) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "letter.txt").touch()
    assert "is not empty (it contains letter.txt)" in said("init", str(root), code=2).err
    assert main(["lake", "init", str(root / "letter.txt")]) == 2
    assert everything(root) == ["letter.txt"]
    (root / "letter.txt").unlink()
    (root / "lost+found").mkdir()
    assert main(["lake", "init", str(root)]) == 0
    assert "already contains a lake" in said("init", str(root), code=2).err
    assert main(["lake", "init", str(root / "objects")]) == 2
    assert "name the directory around it" in said("status", str(root / "objects"), code=2).err
    assert main(["lake", "status", str(root)]) == 0


@pytest.mark.parametrize("inside", ["objects/sub", "objects/objects/ab", "objects/sub/"])
def test_a_lake_inside_another_is_refused(tmp_path: Path, inside: str) -> None:
    outer = create_lake(f"sqlite:///{tmp_path / 'outer.db'}", f"file://{tmp_path / 'objects'}")
    for name in (inside, "link/sub"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / "objects")
        with pytest.raises(UsageError, match="is inside the lake"):
            create_lake(f"sqlite:///{tmp_path / 'inner.db'}", f"file://{tmp_path / name}")
    create_lake(f"sqlite:///{tmp_path / 'beside.db'}", f"file://{tmp_path / 'objects-too'}").close()
    outer.close()


def test_a_lake_around_another_is_refused(tmp_path: Path) -> None:
    create_lake(f"sqlite:///{tmp_path / 'inner.db'}", f"file://{tmp_path / 'data' / 'inner'}").close()
    with pytest.raises(UsageError, match="already contains "):
        create_lake(f"sqlite:///{tmp_path / 'outer.db'}", f"file://{tmp_path / 'data'}")


def test_a_lake_that_was_moved_into_another_is_refused(tmp_path: Path) -> None:
    create_lake(f"sqlite:///{tmp_path / 'outer.db'}", f"file://{tmp_path / 'objects'}").close()
    url = f"sqlite:///{tmp_path / 'own' / 'lake.db'}"
    create_lake(url, f"file://{tmp_path / 'own' / 'objects'}").close()
    (tmp_path / "own").rename(tmp_path / "objects" / "own")
    with pytest.raises(UsageError, match="is inside the lake"):
        open_lake(f"sqlite:///{tmp_path / 'objects' / 'own' / 'lake.db'}")


def test_prefixes_of_a_bucket_are_told_apart_by_their_folders(tmp_path: Path, moto_settings: Mapping[str, str]) -> None:
    """`a` is around `a/b`, and not around `ab`."""
    root = f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def make(prefix: str) -> None:
        url = f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"
        create_lake(url, f"{root}/{prefix}", settings=moto_settings).close()
        open_lake(url, settings=moto_settings).close()

    make("a")
    make("ab")
    for inside in ("a/b", "a/b/c/", "a/"):
        with pytest.raises(UsageError, match=r"is inside the lake|already contains "):
            make(inside)
    make("x/y")
    with pytest.raises(UsageError, match="already contains "):
        make("x")
    Store.open(f"{root}/kafka", moto_settings).put("orders-0/00000000000000000000.log", b"")
    with pytest.raises(UsageError, match="log directory of a Kafka broker"):
        make("kafka")


def test_a_collection_tells_what_it_deleted_and_nothing_else(tmp_path: Path, said: Said, told: Said) -> None:
    where = tmp_path / "lake"
    assert main(["lake", "init", str(where)]) == 0
    assert main(["lake", "topics", str(where), "create", "t"]) == 0
    foreign = ["objects/notes.txt", "objects/ab/abc", "letter.txt", "journal/readme"]
    for name in foreign:
        (where / "objects" / name).parent.mkdir(parents=True, exist_ok=True)
        (where / "objects" / name).write_text("mine")
    orphan = "ab000000-0000-4000-8000-000000000000"
    (where / "objects" / "objects" / "ab" / orphan).write_text("late")
    counts = []
    for _ in range(3):
        answer = told("gc", str(where), "--apply", "--grace-ms", "0")
        counts.append(([row["object_id"] for row in answer["objects"]], answer["orphans"], answer["foreign"]))
    assert counts == [([], [orphan], sorted(foreign)), ([orphan], [], sorted(foreign)), ([], [], sorted(foreign))]
    assert not (where / "objects" / "objects" / "ab" / orphan).exists()
    (where / "objects" / "objects" / "ab" / orphan).write_text("late")
    for apply, expected in (
        ([], "0 objects, 0 bytes to delete"),
        (["--apply"], "0 objects, 0 bytes deleted"),
        ([], "1 object, 4 bytes to delete"),
        (["--apply"], "1 object, 4 bytes deleted"),
    ):
        assert said("gc", str(where), "--grace-ms", "0", *apply).out.splitlines()[-1].startswith(expected)
    assert said("gc", str(where), "--apply").out.splitlines() == [
        *(f"{name} is not the lake's; it stays" for name in sorted(foreign)),
        "0 objects, 0 bytes deleted",
    ]


def test_a_collection_does_not_count_what_was_gone_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = tmp_path / "lake"
    lake = create_lake(f"sqlite:///{where / 'metastore.db'}", f"file://{where / 'objects'}", now_ms=0)
    first, second = lake.metastore.register(2)
    lake.store.put(object_path(second), b"late")
    lake.close()
    words = ["lake", "gc", str(where), "--upload-ms", "1", "--now-ms", "9"]
    for apply, told in (([], "--apply forgets it"), (["--apply"], "it is forgotten")):
        assert main([*words, *apply]) == 0
        said = capsys.readouterr().out
        assert f"{first} is not in the store; {told}" in said
        assert "1 object, 4 bytes" in said.splitlines()[-1]
    assert main([*words, "--apply", "--output", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["objects"], answer["missing"]) == ([], [])


@pytest.mark.parametrize("words", INSIDE)
def test_no_lake_is_made_in_the_directory_of_another(tmp_path: Path, said: Said, words: str) -> None:
    said("init", str(tmp_path / "outer"))
    assert f"is inside the lake {tmp_path / 'outer'}" in refused_inside(tmp_path / "outer", words, said)


@pytest.mark.parametrize("where", ["{kafka}", "{kafka}/sub", "sqlite:///{kafka}/x.db", "{outer}/sub"])
def test_no_metastore_is_rebuilt_where_no_lake_may_be_made(tmp_path: Path, where: str) -> None:
    kafka, outer, lake = kafka_by(tmp_path / "data", "meta.properties"), tmp_path / "outer", tmp_path / "lake"
    for root in (outer, lake):
        assert main(["lake", "init", str(root)]) == 0
    for directory in (kafka / "sub", outer / "sub"):
        directory.mkdir()
    before = everything(tmp_path)
    place = where.format(kafka=kafka, outer=outer)
    assert main(["lake", "rebuild", place, "--objects", f"file://{lake / 'objects'}"]) == 2
    assert everything(tmp_path) == before


def test_a_directory_whose_metastore_is_gone_is_called_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lake", "init", str(tmp_path / "lake")]) == 0
    (tmp_path / "lake" / "metastore.db").unlink()
    assert main(["lake", "status", str(tmp_path / "lake")]) == 2
    assert f"its metastore is gone; `headstone lake rebuild {tmp_path / 'lake'}`" in capsys.readouterr().err
