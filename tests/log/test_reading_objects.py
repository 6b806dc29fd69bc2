"""Walks over objects, window by window: the same batches and the same complaints as over a mapped file.

Of a file whose offsets reach too far, smaller tables show more before it is noticed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headstone.errors import CorruptLog
from headstone.log import reading
from headstone.log.reading import walk_segment
from headstone.storage import ranges
from headstone.storage.access import FROM_ENVIRONMENT
from headstone.storage.stores import store_of
from tests.logs import write_log

BUCKET = "memory://walks"
OBJECT = f"{BUCKET}/0.log"


def walked(path: str, *, with_crc: bool) -> tuple[list[Any], str | None]:
    tables = []
    try:
        for table in walk_segment(path, base=0, with_crc=with_crc):
            tables.append(table.copy())
    except CorruptLog as error:
        return np.concatenate(tables).tolist() if tables else [], str(error).replace(path, "FILE")
    return np.concatenate(tables).tolist() if tables else [], None


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    terms = "N[a] N[b,c,d] P1[a] P1[b] C1 N[e,f,g,h] T[a] P2[x] A2 N[z] " * 20
    return (write_log(tmp_path_factory.mktemp("walks"), terms) / "t-0" / f"{0:020d}.log").read_bytes()


@pytest.mark.parametrize("window", [100, 199, 1_000, 1 << 20])
@pytest.mark.parametrize("with_crc", [False, True])
def test_windows_of_any_size_show_the_same(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, with_crc: bool
) -> None:
    monkeypatch.setattr(ranges, "WINDOW_BYTES", window)
    monkeypatch.setattr(reading, "WINDOW_BYTES", window)
    random_ = random.Random(window)
    damaged = [content, content[:-1], content[:61], content[:5], b""]
    for _ in range(60):
        wrong = bytearray(content)
        wrong[random_.randrange(len(wrong))] ^= 1 << random_.randrange(8)
        damaged.append(bytes(wrong[: random_.randrange(len(wrong))] if random_.random() < 0.3 else wrong))
    file = tmp_path / "0.log"
    for some in damaged:
        file.write_bytes(some)
        store_of(BUCKET, FROM_ENVIRONMENT).put("0.log", some)
        (there, told), (here, expected) = walked(OBJECT, with_crc=with_crc), walked(str(file), with_crc=with_crc)
        assert told == expected
        assert there[: len(here)] == here
        assert len(there) == len(here) or "more than 2^31" in str(told)
