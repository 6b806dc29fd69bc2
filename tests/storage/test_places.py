"""Prefixes and objects that answer as paths do, on a real S3 API."""

from __future__ import annotations

import pickle
from pathlib import Path

import boto3
import pytest

from headstone.errors import UsageError
from headstone.storage.access import Access
from headstone.storage.places import ObjectPlace, object_place, place, store_of
from testbed.s3 import BUCKET

ROOT = f"s3://{BUCKET}"
CONTENT = {
    "places/broker/meta.properties": b"version=1\n",
    "places/broker/orders-0/00.log": b"abc",
    "places/broker/orders-0/00.index": b"",
    "places/broker/orders-1/deep/er": b"x",
    "places/other/z": b"z",
    "places/broker2": b"a name that begins like a folder",
}


@pytest.fixture(scope="module")
def root(access: Access) -> ObjectPlace:
    for key, content in CONTENT.items():
        store_of(ROOT, access).put(key, content)
    found = place(f"{ROOT}/places/broker/", access)
    assert isinstance(found, ObjectPlace)
    return found


def test_a_prefix_answers_like_a_directory(root: ObjectPlace) -> None:
    assert [child.name for child in root.iterdir()] == ["meta.properties", "orders-0", "orders-1"]
    assert [root.is_dir(), root.is_file(), root.exists()] == [True, False, True]
    log = root / "orders-0" / "00.log"
    assert [log.is_dir(), log.is_file(), log.exists(), log.stat().st_size] == [False, True, True, 3]
    assert (log.read_bytes(), log.with_suffix(".index").read_bytes()) == (b"abc", b"")
    assert (root / "orders-1" / "deep" / "er").read_text() == "x"
    assert not (root / "orders-0" / "01.log").exists()
    assert (str(log), log.name, log.parent) == (f"{ROOT}/places/broker/orders-0/00.log", "00.log", root / "orders-0")
    with pytest.raises(FileNotFoundError, match=r"orders-0/01\.log: no such object"):
        (root / "orders-0" / "01.log").stat()


def test_everything_below_costs_one_request(root: ObjectPlace, access: Access) -> None:
    traffic = store_of(ROOT, access).traffic
    before = traffic.lists
    again = place(str(root), access)
    assert {str(child) for folder in again.iterdir() for child in folder.iterdir()} == {
        f"{root}/orders-0/00.log", f"{root}/orders-0/00.index", f"{root}/orders-1/deep",
    }  # fmt: skip
    assert not (again / "no such folder" / "or file").exists()
    assert traffic.lists == before + 1


def test_what_is_above_is_asked_for_when_it_is_wanted(access: Access, root: ObjectPlace) -> None:
    partition = place(f"{root}/orders-0", access)
    assert [child.name for child in partition.parent.iterdir()] == ["meta.properties", "orders-0", "orders-1"]
    assert (partition.parent / "meta.properties").read_text() == "version=1\n"
    above = partition.parent.parent
    assert isinstance(above, ObjectPlace)
    assert [child.name for child in above.iterdir()] == ["broker", "broker2", "other"]


def test_an_empty_object_in_the_place_of_a_folder_hides_no_neighbour(access: Access) -> None:
    """Consoles make such objects. What is beside a partition tells how far it is replicated."""
    for key, content in (("marked/", b""), ("marked/t-0/", b""), ("marked/t-0/0.log", b"x"), ("marked/high", b"9")):
        settings = dict(access.settings)
        client = boto3.client(
            "s3", endpoint_url=settings["endpoint"], region_name=settings["region"],
            aws_access_key_id=settings["access_key_id"], aws_secret_access_key=settings["secret_access_key"],
        )  # fmt: skip
        client.put_object(Bucket=BUCKET, Key=key, Body=content)
    partition = place(f"{ROOT}/marked/t-0", access)
    assert [child.name for child in partition.iterdir()] == ["0.log"]
    assert (partition.parent / "high").read_bytes() == b"9"
    log_dir = place(f"{ROOT}/marked", access)
    assert [(child.name, child.is_dir()) for child in log_dir.iterdir()] == [("high", False), ("t-0", True)]


def test_what_travels_to_a_task_is_its_own_folder(root: ObjectPlace, access: Access) -> None:
    before = store_of(ROOT, access).traffic.lists
    here = pickle.loads(pickle.dumps(root / "orders-0"))
    assert [child.name for child in here.iterdir()] == ["00.index", "00.log"]
    assert store_of(ROOT, access).traffic.lists == before
    assert b"orders-1" not in pickle.dumps(root / "orders-0")
    assert (here, hash(here)) == (root / "orders-0", hash(root / "orders-0"))


def test_credentials_are_never_shown(access: Access) -> None:
    assert "testing" not in repr(object_place(f"{ROOT}/x", access))


def test_paths_of_this_machine_stay_paths() -> None:
    assert [place("a/b"), place(Path("a/b")), place("file:///a/b")] == [Path("a/b"), Path("a/b"), Path("/a/b")]


def test_a_url_without_a_bucket_is_refused() -> None:
    with pytest.raises(UsageError, match="no bucket"):
        place("s3:///prefix")
