"""Files of a lake's objects that are damaged or exchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headstone.lake.format.objects import object_path
from headstone.lake.lake import Lake


def file_of(lake: Lake, object_id: str) -> Path:
    return Path(lake.store.url.removeprefix("file://")) / object_path(object_id)


def flip(lake: Lake, object_id: str, position: int) -> Callable[[], object]:
    """A bit at this place, from the end if it is negative; what undoes it."""
    path = file_of(lake, object_id)
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[position] ^= 1
    path.write_bytes(damaged)
    return lambda: path.write_bytes(content)


def exchange(lake: Lake, first: str, second: str) -> None:
    paths = file_of(lake, first), file_of(lake, second)
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
