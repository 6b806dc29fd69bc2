"""One behaviour suite over S3 servers that none of us wrote: what a log or a lake in object storage relies on."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from headstone.errors import Unfinished, UsageError
from headstone.storage.stores import Listed, MissingObject, Store

PART_BYTES = 5 << 20
"""The smallest that S3 allows."""


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_what_is_listed_is_what_is_there(store: Store) -> None:
    for path, size in {"a/0.log": 3, "a/1.log": 0, "b/c/2.log": 5, "d": 1}.items():
        store.put(path, some_bytes(size))
    assert store.list() == ["a/0.log", "a/1.log", "b/c/2.log", "d"]
    assert store.list("a") == ["a/0.log", "a/1.log"]
    assert {entry.path: entry.size for entry in store.entries("b")} == {"b/c/2.log": 5}
    assert sorted((entry.path, entry.is_folder, entry.size) for entry in store.children()) == [
        ("a", True, 0), ("b", True, 0), ("d", False, 1),
    ]  # fmt: skip


def test_a_listing_has_more_than_one_page(store: Store) -> None:
    names = [f"{number:04}" for number in range(1001)]
    for name in names:
        store.put(name, b"")
    assert [entry.path for entry in store.entries()] == names
    assert store.traffic.lists == 2


def test_a_range_is_exactly_that(store: Store) -> None:
    content = some_bytes(100_000)
    store.put("object", content)
    assert store.read("object", 0, 100_000) == content
    assert store.read("object", 99_999, 1) == content[-1:]
    assert store.read("object", 12_345, 54_321) == content[12_345 : 12_345 + 54_321]
    assert store.size("object") == 100_000


def test_a_range_beyond_the_end_is_an_error_that_names_the_object(store: Store) -> None:
    store.put("object", some_bytes(10))
    with pytest.raises(Unfinished, match=f"{store.url}/object"):
        store.read("object", 5, 6)


def test_an_object_is_replaced_only_by_who_knows_what_it_was(store: Store) -> None:
    store.put("object", b"first")
    tag = store.tag("object")
    assert store.replace("object", b"second", tag=tag)
    assert not store.replace("object", b"third", tag=tag)
    assert store.read("object", 0, store.size("object")) == b"second"


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, 2 * PART_BYTES + 1])
def test_an_upload_in_parts_appears_whole(size: int, store: Store) -> None:
    content = some_bytes(size)
    with store.writing("object", part_bytes=PART_BYTES) as sink:
        for start in range(0, size, 1_000_003):
            sink.write(content[start : start + 1_000_003])
        assert store.list() == []
    assert (store.size("object"), store.read("object", 0, size)) == (size, content)


def test_an_upload_that_fails_leaves_no_object(store: Store) -> None:
    def write_half() -> None:
        with store.writing("object", part_bytes=PART_BYTES) as sink:
            sink.write(some_bytes(3 * PART_BYTES))
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert store.list() == []


def test_of_those_who_create_an_object_one_wins(store: Store) -> None:
    assert store.put("object", b"first", create=True)
    assert not store.put("object", b"second", create=True)
    assert store.read("object", 0, 5) == b"first"
    assert store.put("object", b"third")
    assert store.read("object", 0, 5) == b"third"


def test_a_copy_has_the_bytes_and_leaves_the_source(store: Store) -> None:
    content = some_bytes(1000)
    store.put("from/object", content)
    store.copy("from/object", "to/object")
    assert store.list() == ["from/object", "to/object"]
    assert store.read("to/object", 0, 1000) == content


def test_what_is_deleted_is_gone_and_may_be_deleted_again(store: Store) -> None:
    store.put("a", b"1")
    store.put("b", b"2")
    store.delete(["a", "never there"])
    store.delete(["a"])
    assert store.list() == ["b"]


@pytest.mark.parametrize("question", ["read", "size", "copy"])
def test_a_missing_object_is_named(question: str, store: Store) -> None:
    ask = {
        "read": lambda: store.read("gone", 0, 1),
        "size": lambda: store.size("gone"),
        "copy": lambda: store.copy("gone", "to"),
    }
    with pytest.raises(MissingObject, match=f"{store.url}/gone: no such object or bucket"):
        ask[question]()


def test_another_content_has_another_tag(store: Store) -> None:
    def tag() -> str | None:
        (entry,) = store.entries()
        assert isinstance(entry, Listed)
        return entry.tag

    store.put("object", b"1")
    first = tag()
    store.put("object", b"2")
    assert first is not None
    assert tag() != first


def test_wrong_credentials_are_refused_without_showing_them(
    versitygw_settings: Mapping[str, str], empty_url: str
) -> None:
    stranger = Store.open(empty_url, {**versitygw_settings, "secret_access_key": "hidden-word"})
    with pytest.raises(UsageError, match="access refused") as refused:
        stranger.put("object", b"")
    assert "hidden-word" not in str(refused.value)
