"""What keeps names on a disk through a power loss. A file that was synced has its content safe, and not its name.

A name is safe once its directory was synced, and a directory's own name once the one above was. Knows nothing of contents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DIRECTORY_MODE = 0o777


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path, mode: int = DIRECTORY_MODE) -> None:
    """With those above that are missing; whichever is made here is safe. `mode`: of the last one, before the umask."""
    if path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


@contextmanager
def directory_of_run(path: Path) -> Iterator[None]:
    """Made with those above that are missing. What was made here and is still empty at the end goes again: a run that is
    refused leaves nothing."""
    missing = [each for each in (path, *path.parents) if not each.is_dir()]
    make_directories(path)
    try:
        yield
    finally:
        with suppress(OSError):  # something is in it
            for each in missing:
                each.rmdir()
