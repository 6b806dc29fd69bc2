"""Shows that a guard runs on this machine with a journal, even one that it cannot write: a lock beside the file.

The system releases the lock when the process ends, however it ends. The journal itself says who leads.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".runs"


@contextmanager
def present(journal: Path) -> Iterator[None]:
    """Shared by the guards of one journal. If the lock file cannot be created, the guard runs without showing it."""
    number = None
    with suppress(OSError):
        number = os.open(_lock_of(journal), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(number, fcntl.LOCK_SH)
    try:
        yield
    finally:
        if number is not None:
            os.close(number)


def somebody_runs(journal: Path) -> bool:
    try:
        number = os.open(_lock_of(journal), os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False


def _lock_of(journal: Path) -> Path:
    return journal.with_name(journal.name + SUFFIX)
