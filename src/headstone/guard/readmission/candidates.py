"""Which replicas need readmission according to the journal: one rule, for the plan and for the status.

A replica that came too late; one that the guard has decided to remove; and one that was read since it came back and was not
found right, whatever it was read for. Asks no broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstone.coordination.guard_values import Away, Memory, Verdict
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import ReplicaReading

Replica = tuple[int, int]
"""Partition and broker."""


def suspects(journal: Journal, topic: str, memory: Memory) -> tuple[Away, ...]:
    doubtful = _found(journal, topic, memory, (Verdict.WRONG, Verdict.UNJUDGED))
    return tuple(
        away for away in memory.away if away.too_late or away.order or (away.partition, away.broker) in doubtful
    )  # fmt: skip


def found_wrong(journal: Journal, topic: str, memory: Memory) -> frozenset[Replica]:
    """Replicas that were read since they came back, and found wrong."""
    return _found(journal, topic, memory, (Verdict.WRONG,))


def _found(journal: Journal, topic: str, memory: Memory, verdicts: Sequence[Verdict]) -> frozenset[Replica]:
    readings = journal.readings(topic) if memory.away else []
    return frozenset((away.partition, away.broker) for away in memory.away if _was_found(away, readings, verdicts))


def _was_found(away: Away, readings: Sequence[ReplicaReading], verdicts: Sequence[Verdict]) -> bool:
    """A reading that began before the replica was in sync again says nothing about what it missed."""
    return away.returned_ms is not None and any(
        (reading.partition, reading.broker) == (away.partition, away.broker)
        and reading.verdict in verdicts
        and reading.read_ms >= away.returned_ms
        for reading in readings
    )
