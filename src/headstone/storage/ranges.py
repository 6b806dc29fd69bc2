"""Reads ranges of a file or an object into the caller's memory.

A file is read in place. An object is read in windows of some megabytes, the next one while the last one is in use: one request
per window, and reading in order fetches no byte twice. Knows nothing about the meaning of the bytes.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from types import TracebackType
from typing import Protocol

from headstone.interruption import Threads
from headstone.storage.access import FROM_ENVIRONMENT, Access
from headstone.storage.places import ObjectPlace, object_place
from headstone.storage.stores import is_remote, store_of

WINDOW_BYTES = 8 << 20
"""A request costs tens of milliseconds, and a gigabit line brings about a megabyte in ten."""


class Ranges(Protocol):
    """A context manager. `size`: of a file as it is now, of an object as it was listed."""

    path: str
    size: int

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Returns the number of bytes read: less than the buffer only at the end."""
        ...

    def __enter__(self) -> Ranges: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class FileRanges:
    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._descriptor).st_size

    def read_into(self, position: int, buffer: memoryview) -> int:
        try:
            return os.preadv(self._descriptor, [buffer], position)
        except OSError as failed:  # a failed read does not name the file
            raise OSError(failed.errno, failed.strerror, self.path) from failed

    def __enter__(self) -> FileRanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


class ObjectRanges:
    """Windows lie on a grid over [first, last), so that neighbouring reads share one. The next one is always under way."""

    def __init__(self, place: ObjectPlace, *, size: int, first: int, last: int, backwards: bool) -> None:
        self.path = str(place)
        self.size = size
        self._store = store_of(place.bucket, place.access)
        self._key = place.key
        self._first, self._last = first, last
        self._backwards = backwards
        self._pool = Threads(1)
        self._windows: dict[int, Future[bytes]] = {}

    def read_into(self, position: int, buffer: memoryview) -> int:
        end = min(position + len(buffer), self._last)
        if end <= position:
            return 0
        first, last = ((offset - self._first) // WINDOW_BYTES for offset in (position, end - 1))
        self._ask_for(first, last)
        for number in range(first, last + 1):
            start = self._first + number * WINDOW_BYTES
            content = self._windows[number].result()
            here, there = max(position, start), min(end, start + len(content))
            buffer[here - position : there - position] = content[here - start : there - start]
        return end - position

    def _ask_for(self, first: int, last: int) -> None:
        """Requests these windows and the next one; drops the others."""
        ahead = first - 1 if self._backwards else last + 1
        wanted = [number for number in (*range(first, last + 1), ahead) if self._exists(number)]
        self._windows = {
            number: self._windows.get(number) or self._pool.submit(self._fetch, number) for number in wanted
        }

    def _exists(self, number: int) -> bool:
        return number >= 0 and self._first + number * WINDOW_BYTES < self._last

    def _fetch(self, number: int) -> bytes:
        start = self._first + number * WINDOW_BYTES
        return self._store.read(self._key, start, min(WINDOW_BYTES, self._last - start))

    def __enter__(self) -> ObjectRanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def open_ranges(
    path: str,
    access: Access = FROM_ENVIRONMENT,
    *,
    size: int | None = None,
    within: tuple[int, int] | None = None,
    backwards: bool = False,
) -> Ranges:
    """From a path or URL. For an object: its listed `size` saves a request, and only what is `within` will be read."""
    if not is_remote(path):
        return FileRanges(path)
    place = object_place(path, access)
    object_bytes = store_of(place.bucket, place.access).size(place.key) if size is None else size
    first, last = within or (0, object_bytes)
    return ObjectRanges(place, size=object_bytes, first=first, last=last, backwards=backwards)
