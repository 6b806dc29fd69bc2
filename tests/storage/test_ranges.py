"""Ranges of files and objects: the same bytes from both, and no more requests than windows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headstone.storage import ranges
from headstone.storage.access import Access
from headstone.storage.ranges import open_ranges
from headstone.storage.stores import MissingObject, store_of
from testbed.s3 import BUCKET

ROOT = f"s3://{BUCKET}"
CONTENT = random.Random(5).randbytes(1_000_001)
WINDOW = 100_000


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "WINDOW_BYTES", WINDOW)


@pytest.fixture(params=["file", "object"])
def path(request: pytest.FixtureRequest, tmp_path: Path, access: Access) -> str:
    if request.param == "object":
        store_of(ROOT, access).put("ranges", CONTENT)
        return f"{ROOT}/ranges"
    (tmp_path / "ranges").write_bytes(CONTENT)
    return str(tmp_path / "ranges")


def read(path: str, access: Access, chunks: list[tuple[int, int]], *, backwards: bool) -> list[bytes]:
    within = (min(start for start, _ in chunks), max(end for _, end in chunks))
    with open_ranges(path, access, within=within, backwards=backwards) as opened:
        assert opened.size == len(CONTENT)
        contents = []
        for start, end in chunks:
            buffer = bytearray(end - start)
            contents.append(bytes(buffer[: opened.read_into(start, memoryview(buffer))]))
    return contents


@pytest.mark.parametrize("step", [1_000, 33_333, WINDOW, 250_000, len(CONTENT)])
@pytest.mark.parametrize("first", [0, 12_345])
@pytest.mark.parametrize("backwards", [False, True])
def test_chunks_in_order(path: str, access: Access, step: int, first: int, backwards: bool) -> None:
    if step == 1_000:
        first = 800_000
    chunks = [(start, min(start + step, len(CONTENT))) for start in range(first, len(CONTENT), step)]
    chunks = chunks[::-1] if backwards else chunks
    traffic = store_of(ROOT, access).traffic
    before = (traffic.reads, traffic.bytes_read)
    assert read(path, access, chunks, backwards=backwards) == [CONTENT[start:end] for start, end in chunks]
    if path.startswith("s3"):
        size = len(CONTENT) - first
        assert (traffic.reads - before[0], traffic.bytes_read - before[1]) == (-(-size // WINDOW), size)


def test_behind_the_end_there_is_nothing(path: str, access: Access) -> None:
    with open_ranges(path, access) as opened:
        buffer = memoryview(bytearray(10))
        assert opened.read_into(len(CONTENT) - 3, buffer) == 3
        assert opened.read_into(len(CONTENT), buffer) == 0


def test_a_missing_object_is_told_by_its_name(access: Access) -> None:
    with pytest.raises(MissingObject, match="no/such/object"):
        open_ranges(f"{ROOT}/no/such/object", access)
