"""Readmissions that were begun and are not over, as the journal keeps them; and who may carry them out at a time.

Whoever dies leaves them as they are, and the next run goes on. Asks no broker.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager

from headstone.errors import Unfinished
from headstone.guard.journal import Journal
from headstone.guard.memories import plain, value_of
from headstone.guard.readmission_steps import Readmission

READMISSIONS = "readmissions"
"""Fact of the journal."""
LOCK_SUFFIX = ".readmit"


def open_readmissions(journal: Journal) -> list[Readmission]:
    """In the order in which they were begun."""
    return [value_of(Readmission, item) for item in json.loads(journal.fact(READMISSIONS) or "[]")]


def keep_readmission(journal: Journal, kept: Readmission, *, over: bool = False) -> None:
    """On the disk when it returns."""
    others = [
        readmission
        for readmission in open_readmissions(journal)
        if (readmission.topic_partition, readmission.broker) != (kept.topic_partition, kept.broker)
    ]
    remaining = others if over else [*others, kept]
    journal.note_fact(READMISSIONS, json.dumps([plain(each) for each in remaining]) if remaining else None)


@contextmanager
def alone(journal: Journal) -> Iterator[None]:
    """One process at a time; the system gives the lock up with the process, however that ends."""
    with journal.path.with_name(journal.path.name + LOCK_SUFFIX).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Unfinished(
                f"{journal.path}: another `headstone guard readmit --apply` works with this journal; wait until it is done"
            ) from error
        yield
