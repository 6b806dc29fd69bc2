"""Counters that last from look to look: topics that the cluster does not know, and repeated failures.

In the journal, so that they also count for guards that make one look each. Rows and values; `loop` decides what follows from
them.
"""

from __future__ import annotations

from collections.abc import Mapping

from headstone.guard.ledger.journal import Journal


def absent_since(journal: Journal) -> dict[str, int]:
    """By topic: the time of the first look at which the cluster did not know it."""
    return {str(topic): int(str(ms)) for topic, ms in journal.rows("SELECT topic, since_ms FROM absent")}


def keep_absent(journal: Journal, absent: Mapping[str, int]) -> None:
    """Replaces the topics that were kept before."""
    with journal.transaction() as connection:
        connection.execute("DELETE FROM absent")
        connection.executemany("INSERT INTO absent VALUES (?, ?)", absent.items())


def failing(journal: Journal, what: str) -> tuple[int, int] | None:
    """At how many looks in a row it failed, and since when."""
    for looks, since_ms in journal.rows("SELECT looks, since_ms FROM failing WHERE what = ?", what):
        return int(str(looks)), int(str(since_ms))
    return None


def keep_failing(journal: Journal, what: str, looks: int, since_ms: int) -> None:
    with journal.transaction() as connection:
        connection.execute("INSERT OR REPLACE INTO failing VALUES (?, ?, ?)", (what, looks, since_ms))


def forget_failing(journal: Journal, what: str) -> None:
    with journal.transaction() as connection:
        connection.execute("DELETE FROM failing WHERE what = ?", (what,))
