"""Temporary directories that do not pile up: making one also removes those that killed processes have left behind.

A directory is in use while its lock file is locked; the system releases the lock when the process ends, however it ends. A
directory without a lock file is just being made, or not ours.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK, WORK = "in-use.lock", "work"


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """An empty directory below it, gone when the block ends. `purpose` is in its name: `headstone-PURPOSE-...`."""
    prefix = f"headstone-{purpose}-"
    _sweep(prefix)
    made = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with (made / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (made / "lock").rename(made / LOCK)  # locked before any other process looks for it
            inside = made / WORK
            inside.mkdir()
            try:
                yield inside
            finally:
                shutil.rmtree(inside, ignore_errors=True)  # the lock file goes last, or the rest would never be swept
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _sweep(prefix: str) -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            with (left / LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left / WORK, ignore_errors=True)
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # in use, another user's, or gone meanwhile
