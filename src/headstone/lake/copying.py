"""Copies of what lies in object storage, as files: log directories that somebody has put there, for whoever reads files.

Reads only. Several objects at a time, each in ranges, so memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headstone.errors import UsageError
from headstone.storage.stores import PART_BYTES, Store

COPIES_AT_ONCE = 4


def copy_objects(store: Store, to: Path, *, wanted: Callable[[str], bool] = lambda path: True) -> int:
    """Every object under the store's prefix that is wanted, by its path, below `to`. How many bytes that was."""
    paths = [path for path in store.list() if wanted(path)]
    if not paths:
        raise UsageError(f"{store.url} holds no log directory")
    to.mkdir(parents=True, exist_ok=True)

    def copy(path: str) -> int:
        place, size = to / path, store.size(path)
        if not place.resolve().is_relative_to(to.resolve()):
            raise UsageError(f"{store.url}/{path} is not a name for a file")
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            for position in range(0, size, PART_BYTES):
                file.write(store.read(path, position, min(PART_BYTES, size - position)))
        return size

    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        return sum(pool.map(copy, paths))


def of_topics(topics: Sequence[str]) -> Callable[[str], bool]:
    """Files of these topics' partitions, and those that are about all of them; no topics named are all."""

    def wanted(path: str) -> bool:
        folder = path.rpartition("/")[0].rpartition("/")[2]
        topic, dash, number = folder.rpartition("-")
        return not topics or topic in topics or not (dash and number.isdigit())

    return wanted
