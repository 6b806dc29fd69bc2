"""Unfinished readmissions, as the journal keeps them, and the lock that lets one process at a time carry them out.

A process that dies leaves them as they are, and the next run continues. Asks no broker.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from headstone.coordination.readmission import Readmission
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import Journal

COLUMNS = (
    "topic", "partition", "broker", "replicas", "expelled", "was_away", "verified", "tries", "began_ms", "topic_id", "by_guard",
    "added_ms",
)  # fmt: skip
"""The table's columns, in the order of `_row`."""
LOCK_SUFFIX = ".readmit"
LOCK_SECONDS_MAX, PAUSE_SECONDS = 60.0, 0.2
"""How long a person's run waits for the guard to finish its step."""


def open_readmissions(journal: Journal) -> list[Readmission]:
    """Most recently written last."""
    rows = journal.rows(f"SELECT {', '.join(COLUMNS)} FROM readmissions ORDER BY rowid")
    return [_readmission(*row) for row in rows]


def _readmission(
    topic: Any, partition: Any, broker: Any, replicas: Any, expelled: Any, was_away: Any, verified: Any, tries: Any,
    began_ms: Any, topic_id: Any, by_guard: Any, added_ms: Any,
) -> Readmission:  # fmt: skip
    return Readmission(
        topic=topic, partition=partition, broker=broker, order=tuple(int(each) for each in replicas.split(",") if each),
        expelled=bool(expelled), was_away=bool(was_away), verified=bool(verified), tries=tries, began_ms=began_ms,
        topic_id=topic_id, by_guard=bool(by_guard), added_ms=added_ms,
    )  # fmt: skip


def _row(kept: Readmission) -> tuple[object, ...]:
    return (
        kept.topic, kept.partition, kept.broker, ",".join(map(str, kept.order)), kept.expelled, kept.was_away, kept.verified,
        kept.tries, kept.began_ms, kept.topic_id, kept.by_guard, kept.added_ms,
    )  # fmt: skip


def keep_readmission(journal: Journal, kept: Readmission, *, over: bool = False) -> None:
    """On disk when it returns. `over` deletes it."""
    with journal.transaction() as connection:
        own = kept.topic, kept.partition, kept.broker
        connection.execute("DELETE FROM readmissions WHERE topic = ? AND partition = ? AND broker = ?", own)
        if not over:
            marks = ", ".join("?" * len(COLUMNS))
            connection.execute(f"INSERT INTO readmissions ({', '.join(COLUMNS)}) VALUES ({marks})", _row(kept))


class Busy(Unfinished):
    """Another process carries readmissions out; nothing was changed."""


@contextmanager
def alone(
    journal: Journal, *, seconds_max: float = 0.0, pause: Callable[[float], None] = time.sleep
) -> Iterator[None]:  # fmt: skip
    """Holds the lock for one process at a time; the system releases it when the process ends. A guard holds it for a moment at
    each look, so callers may wait; a person's run holds it until it is over."""
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
