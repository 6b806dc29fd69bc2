"""Objects on a local disk, safe once they are there: obstore writes files, but syncs neither contents nor names.

An object is written beside its place as `NAME#N`, synced, and then renamed: a power loss leaves it whole or not at all. Knows
nothing about other stores; `stores.py` translates the system's errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headstone.storage.durable import make_directories, sync_directory

STAGED_MAX = 1 << 20
"""Concurrent uploads of one object, including what killed ones have left."""


class LocalUpload:
    """An object that is written first, and then published or not."""

    def __init__(self, place: Path) -> None:
        self._place = place
        make_directories(place.parent)
        self._staged, self._descriptor = _staged(place)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self._descriptor, view) :]

    def publish(self, *, create: bool = False) -> None:
        """`create`: FileExistsError if there is one already."""
        os.fsync(self._descriptor)
        if create:
            os.link(self._staged, self._place)
        else:
            os.replace(self._staged, self._place)
        sync_directory(self._place.parent)

    def close(self) -> None:
        """If it was not published, nothing of it is left."""
        os.close(self._descriptor)
        self._staged.unlink(missing_ok=True)


@contextmanager
def local_upload(place: Path) -> Iterator[LocalUpload]:
    upload = LocalUpload(place)
    try:
        yield upload
    finally:
        upload.close()


def _staged(place: Path) -> tuple[Path, int]:
    """A temporary name in obstore's form, by which garbage collection recognises it."""
    for number in range(1, STAGED_MAX):
        path = place.with_name(f"{place.name}#{number}")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
    raise FileExistsError(f"{place}: {STAGED_MAX} unfinished uploads beside it; remove them")


def staged_beside(place: Path) -> Iterator[Path]:
    """What uploads of this object have written and not published."""
    yield from place.parent.glob(f"{place.name}#*")


def sync_parents(places: Iterable[Path]) -> None:
    """For deleted objects: none comes back."""
    for directory in sorted({place.parent for place in places}):
        if directory.is_dir():
            sync_directory(directory)
