"""Readmissions that were begun and are not over, as the journal keeps them; and who may carry them out at a time.

Whoever dies leaves them as they are, and the next run goes on. Asks no broker.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from headstone.errors import Unfinished
from headstone.guard.ledger.encoding import plain, value_of
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Readmission

READMISSIONS = "readmissions"
"""Fact of the journal."""
LOCK_SUFFIX = ".readmit"
LOCK_SECONDS_MAX, PAUSE_SECONDS = 60.0, 0.2
"""A person waits so long for the guard's own step."""


def open_readmissions(journal: Journal) -> list[Readmission]:
    """In the order in which they were begun."""
    return [value_of(Readmission, item) for item in json.loads(journal.fact(READMISSIONS) or "[]")]


def keep_readmission(journal: Journal, kept: Readmission, *, over: bool = False) -> None:
    """On the disk when it returns."""
    unchanged = [
        readmission
        for readmission in open_readmissions(journal)
        if (readmission.topic_partition, readmission.broker) != (kept.topic_partition, kept.broker)
    ]
    remaining = unchanged if over else [*unchanged, kept]
    journal.note_fact(READMISSIONS, json.dumps([plain(each) for each in remaining]) if remaining else None)


class Busy(Unfinished):
    """Somebody else carries readmissions out; nothing was changed."""


@contextmanager
def alone(
    journal: Journal, *, seconds_max: float = 0.0, pause: Callable[[float], None] = time.sleep
) -> Iterator[None]:  # fmt: skip
    """One process at a time; the system gives the lock up with the process, however that ends. A guard has it for a moment at
    each look, which is waited for; a person's run has it until it is over."""
    until_s = time.monotonic() + seconds_max
    with journal.path.with_name(journal.path.name + LOCK_SUFFIX).open("w") as lock:
        while not _is_locked(lock):
            if time.monotonic() >= until_s:
                raise Busy(
                    f"{journal.path}: another `headstone guard readmit --apply`, or a guard that readmits, is using this "
                    "journal; wait until it is done"
                )
            pause(PAUSE_SECONDS)
        yield


def _is_locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
