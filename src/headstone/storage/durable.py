"""Keeps names on a disk through a power loss. Syncing a file makes its content safe, but not its name.

A name is safe once its directory was synced, and a directory's own name once its parent was. Knows nothing about contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DIRECTORY_MODE = 0o777


def sync_directory(path: Path) -> None:
    """Makes the names in a directory safe."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path, mode: int = DIRECTORY_MODE) -> None:
    """Creates it with missing parents; everything created here is safe. `mode`: of the last directory, before the umask."""
    if path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


@contextmanager
def directory_of_run(path: Path) -> Iterator[None]:
    """Creates it with missing parents. Created directories that are still empty at the end are removed: a run that is refused
    leaves nothing."""
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    make_directories(path)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for each in missing:
                each.rmdir()
