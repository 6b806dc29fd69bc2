"""Writes files and objects piece by piece: once finished, one is there, whole and safe.

A file is synced when it is finished. An object is uploaded in parts, and its name appears with the last one. Small contents go
at once; the store itself copies within one store. Knows nothing about the content.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from headstone.storage.access import FROM_ENVIRONMENT
from headstone.storage.places import ObjectPlace, Place
from headstone.storage.ranges import WINDOW_BYTES, open_ranges
from headstone.storage.stores import store_of


class Upload(Protocol):
    def write(self, data: memoryview) -> None: ...

    def finish(self) -> None: ...

    def abandon(self) -> None:
        """After `finish` it does nothing."""
        ...


class FileUpload:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 (closed when it is finished or abandoned)

    def write(self, data: memoryview) -> None:
        descriptor = self._file.fileno()
        while data:
            data = data[os.write(descriptor, data) :]

    def finish(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


def open_upload(place: Place) -> Upload:
    """Call `finish` or `abandon`. An unfinished object does not appear; an unfinished file stays under its name."""
    if isinstance(place, ObjectPlace):
        return store_of(place.bucket, place.access).upload(place.key)
    return FileUpload(place)


def write_whole(place: Place, content: bytes) -> None:
    """Writes a small file or object at once; it is safe on return."""
    if isinstance(place, ObjectPlace):
        store_of(place.bucket, place.access).put(place.key, content)
        return
    upload = FileUpload(place)
    upload.write(memoryview(content))
    upload.finish()


def copy_whole(source: Place, target: Place, *, size: int | None = None) -> None:
    """A file keeps its times. Between stores, or from and to a disk, the bytes pass through here in windows.

    `size`: if a file may have grown since it was looked at, copies this many bytes."""
    if isinstance(source, Path) and isinstance(target, Path):
        shutil.copy2(source, target)
        with open(target, "r+b") as file:
            if size is not None and target.stat().st_size > size:
                file.truncate(size)
            os.fsync(file.fileno())
    elif isinstance(source, ObjectPlace) and isinstance(target, ObjectPlace) and _same_store(source, target):
        store_of(source.bucket, source.access).copy(source.key, target.key)
    else:
        _copy_through(source, target, source.stat().st_size if size is None else size)


def _same_store(source: ObjectPlace, target: ObjectPlace) -> bool:
    return (source.bucket, source.access) == (target.bucket, target.access)


def _copy_through(source: Place, target: Place, size: int) -> None:
    access = source.access if isinstance(source, ObjectPlace) else FROM_ENVIRONMENT
    upload = open_upload(target)
    buffer = memoryview(bytearray(min(WINDOW_BYTES, size)))
    try:
        with open_ranges(str(source), access, size=size) as ranges:
            for position in range(0, size, WINDOW_BYTES):
                got = ranges.read_into(position, buffer)
                upload.write(buffer[:got])
        upload.finish()
    finally:
        upload.abandon()
