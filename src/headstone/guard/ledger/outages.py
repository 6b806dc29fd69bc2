"""Outages that the guard has seen: how long a replica was away, from when it was last complete until it was back.

The journal keeps the longest that ended, one per cluster; outages that last are in the memories. `check/rules.py` says what an
outage means for settings. Asks no broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headstone.coordination.guard_values import Away, Memory
from headstone.guard.ledger.journal import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOutage:
    """Of one replica. If the guard did not look for a while, the replica counts as complete only until the last look before. A
    replica that leaves again before it was read counts as away all the time."""

    topic: str
    broker: int
    from_ms: int
    until_ms: int

    @property
    def span_ms(self) -> int:
        return self.until_ms - self.from_ms


def ended(topic: str, before: Memory, after: Memory, asked_ms: int) -> Iterator[ReplicaOutage]:
    """Outages that ended by this look: the replica is back, no longer assigned, or the guard has decided to take it out."""
    left = {(away.partition, away.broker) for away in after.away if _lasts(away)}
    for away in before.away:
        if _lasts(away) and (away.partition, away.broker) not in left:
            yield from _outage(topic, away, asked_ms)


def lasting(topic: str, memory: Memory, now_ms: int) -> Iterator[ReplicaOutage]:
    for away in memory.away:
        if _lasts(away):
            yield from _outage(topic, away, now_ms)


def _lasts(away: Away) -> bool:
    return away.returned_ms is None and not away.order


def _outage(topic: str, away: Away, until_ms: int) -> Iterator[ReplicaOutage]:
    """Nothing for a new copy, which was never there. A replica that was already away at the guard's first look, and so too late
    at once, counts from that look."""
    from_ms = away.since_ms if away.complete_ms is None and away.too_late else away.complete_ms
    if from_ms is not None and not away.unread:
        yield ReplicaOutage(topic=topic, broker=away.broker, from_ms=from_ms, until_ms=until_ms)


def note_longest(journal: Journal, outages: Iterable[ReplicaOutage]) -> None:
    """Keeps the longest of these if it is longer than the one in the journal."""
    longest = max(outages, key=lambda outage: outage.span_ms, default=None)
    noted = longest_noted(journal) if longest is not None else None
    if longest is not None and (noted is None or noted.span_ms < longest.span_ms):
        with journal.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO longest_outage VALUES (1, ?, ?, ?, ?)",
                (longest.topic, longest.broker, longest.from_ms, longest.until_ms),
            )


def longest_noted(journal: Journal) -> ReplicaOutage | None:
    for topic, broker, from_ms, until_ms in journal.rows("SELECT topic, broker, from_ms, until_ms FROM longest_outage"):
        return ReplicaOutage(
            topic=str(topic), broker=int(str(broker)), from_ms=int(str(from_ms)), until_ms=int(str(until_ms))
        )
    return None


def longest_known(journal: Journal, *, now_ms: int) -> ReplicaOutage | None:
    """Over outages that have ended and those that last."""
    noted = longest_noted(journal)
    outages = [] if noted is None else [noted]
    for topic, kept in journal.topics().items():
        outages += lasting(topic, kept.memory, now_ms)
    return max(outages, key=lambda outage: outage.span_ms, default=None)
