"""Whether a guard runs on this machine with a journal, also one that it cannot write: a lock beside the file.

The system gives the lock up with the process, however that ends. Who leads is the journal's to tell.
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
    """Guards of one journal do not keep each other out. Without room for the file it is not shown, and nothing else."""
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
