"""Objects over every store: what is streamed in comes back by range, checked; what is broken or refused says so."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headstone.errors import CorruptLog, Unfinished, UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import ObjectWriter, object_path, read_extent, read_index, write_once, writing_object
from headstone.lake.format.spans import Span
from headstone.storage.stores import MissingObject, Store
from testbed.s3 import BUCKET

LAKE = str(uuid.UUID(int=1))
PART = 5 << 20
"""The smallest part that S3 takes."""


def written(store: Store, contents: list[bytes], *, part_bytes: int = PART) -> list[Extent]:
    with writing_object(store, str(uuid.uuid4()), LAKE, part_bytes=part_bytes) as writer:
        return [
            writer.add(
                "orders", number, Span(number, number + 7), [content[:5], content[5:]], records=3, max_timestamp_ms=9
            )
            for number, content in enumerate(contents)
        ]


def test_ranges_come_back_as_they_were(object_store: Store) -> None:
    """More than one part: a multipart upload."""
    contents = [random.Random(n).randbytes(4_000_000) for n in range(4)] + [b"small"]
    extents = written(object_store, contents)
    assert [read_extent(object_store, extent) for extent in extents] == contents
    assert [extent.length for extent in extents] == [len(content) for content in contents]


def test_an_object_explains_itself(object_store: Store) -> None:
    extents = written(object_store, [b"first range", b"second"])
    found = read_index(object_store, extents[0].object_id, LAKE)
    assert [(one.topic, one.partition, one.extent) for one in found] == [
        ("orders", 0, extents[0]), ("orders", 1, extents[1])
    ]  # fmt: skip


def test_a_span_may_hold_nothing(object_store: Store) -> None:
    with writing_object(object_store, str(uuid.uuid4()), LAKE) as writer:
        extent = writer.add("orders", 0, Span(5, 9), [], records=0, max_timestamp_ms=-1)
    assert (extent.length, extent.checksum, read_extent(object_store, extent)) == (0, 0, b"")
    assert [one.extent for one in read_index(object_store, extent.object_id, LAKE)] == [extent]


@pytest.mark.parametrize("size", [10, 3 * PART])
def test_an_upload_that_fails_half_way_leaves_no_object(object_store: Store, size: int) -> None:
    def broken() -> ObjectWriter:
        with writing_object(object_store, "half", LAKE, part_bytes=PART) as writer:
            writer.add("orders", 0, Span(0, 1), [b"x" * size], records=1, max_timestamp_ms=0)
            raise RuntimeError("the worker died")

    with pytest.raises(RuntimeError, match="the worker died"):
        broken()
    with pytest.raises(MissingObject):
        object_store.size(object_path("half"))
    assert object_store.list("objects") == []


def test_changed_bytes_are_found(object_store: Store) -> None:
    (extent,) = written(object_store, [b"what was written"])
    with object_store.writing(object_path(extent.object_id)) as sink:
        sink.write(b"HEADST\x00\x01what was wrItten and more")
    with pytest.raises(CorruptLog, match=r"position 8, offset 0: wrong CRC-32C"):
        read_extent(object_store, extent)


def test_an_object_that_is_cut_off_is_found(object_store: Store) -> None:
    (extent,) = written(object_store, [b"what was written"])
    with object_store.writing(object_path(extent.object_id)) as sink:
        sink.write(b"HEADST\x00\x01what was")
    with pytest.raises(CorruptLog, match="truncated: 16 bytes, 24 expected"):
        read_extent(object_store, extent)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 100, b"HEADST\x00\x02" * 10])
def test_a_strange_object_is_refused(object_store: Store, content: bytes) -> None:
    with object_store.writing(object_path("strange")) as sink:
        sink.write(content)
    with pytest.raises((CorruptLog, Unfinished)):
        read_index(object_store, "strange", LAKE)


def test_a_missing_object_is_named(object_store: Store) -> None:
    extent = Extent(
        span=Span(0, 1), object_id="gone", position=0, length=1, records=1, max_timestamp_ms=0, checksum=0
    )  # fmt: skip
    with pytest.raises(MissingObject, match="objects/go/gone: no such object"):
        read_extent(object_store, extent)


def test_deleting_twice_is_no_error(object_store: Store) -> None:
    (extent,) = written(object_store, [b"x"])
    path = object_path(extent.object_id)
    assert object_store.list() == [path]
    object_store.delete([path])
    object_store.delete([path])
    assert object_store.list() == []


def test_wrong_credentials_and_buckets_are_named(moto_settings: Mapping[str, str]) -> None:
    with pytest.raises(Unfinished, match="nothing-here"):
        Store.open("s3://nothing-here/x", moto_settings).size("y")
    nobody = {**moto_settings, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(Unfinished, match=BUCKET):
        Store.open(f"s3://{BUCKET}/x", nobody).size("y")


@pytest.mark.parametrize("url", ["somewhere", "ftp://host/x"])
def test_what_is_no_object_storage_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="s3://BUCKET/PREFIX"):
        Store.open(url)


def test_stores_of_one_memory_name_share_their_objects(tmp_path: Path) -> None:
    name = uuid.uuid4().hex
    (extent,) = written(Store.open(f"memory://{name}"), [b"shared"])
    assert read_extent(Store.open(f"memory://{name}"), extent) == b"shared"
    (extent,) = written(Store.open(f"file://{tmp_path}"), [b"on disk"])
    assert (tmp_path / object_path(extent.object_id)).read_bytes()[8:15] == b"on disk"


def test_what_a_killed_upload_has_left_on_disk_goes_with_its_object(tmp_path: Path) -> None:
    program = (
        "import os, sys; from headstone.storage.stores import Store\n"
        "with Store.open(sys.argv[1]).writing('objects/aa/aabb', part_bytes=1 << 20) as sink:\n"
        "    [sink.write(bytes(1 << 20)) for _ in range(8)]\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    url = f"file://{tmp_path}"
    assert subprocess.run([sys.executable, "-c", program, url], check=False).returncode == -9
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["aabb#1"]
    store = Store.open(url)
    assert store.list() == []
    store.delete(["objects/aa/aabb"])
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def filling(content: bytes, *, records: int = 3) -> Callable[[ObjectWriter], None]:
    def fill(writer: ObjectWriter) -> None:
        writer.add("orders", 0, Span(0, 7), [content], records=records, max_timestamp_ms=9)

    return fill


def test_of_two_tasks_that_write_the_same_object_the_first_counts(object_store: Store) -> None:
    """A library of another version packs the same records into other bytes: whoever is late must not replace them."""
    object_id = str(uuid.uuid4())
    first = write_once(object_store, object_id, LAKE, filling(b"packed"))
    assert write_once(object_store, object_id, LAKE, filling(b"packed")) == first
    late = write_once(object_store, object_id, LAKE, filling(b"packed otherwise"))
    assert (late.extents, late.size) == (first.extents, first.size)
    assert read_extent(object_store, late.extents[0]) == b"packed"
    with pytest.raises(Unfinished, match="does not contain what this task wrote"):
        write_once(object_store, object_id, LAKE, filling(b"packed", records=4))


def test_a_store_travels_as_its_address(object_store: Store) -> None:
    """Tasks in other processes open it there; what is in memory is this process's."""
    object_store.put("a", b"content")
    again = pickle.loads(pickle.dumps(object_store))
    assert (again.read("a", 0, 7), again.url, again.access) == (b"content", object_store.url, object_store.access)
