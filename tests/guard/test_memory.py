"""What the guard remembers is on the disk when it matters, and a cluster is not written whole at every look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.coordination.danger import Retention
from headstone.coordination.guard_values import Away, Memory
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Remembered
from headstone.guard.ledger.memory import Recollection
from tests.guard.world import CLUSTER_ID, DAY_MS

RETENTIONS = (Retention(since_ms=0, retention_ms=DAY_MS),)
AWAY = Away(partition=0, broker=3, since_ms=5, complete_ms=5, excused_ms=5)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as opened:
        opened.lead("guard", now_ms=0, lease_ms=1_000_000, applies=True)
        yield opened


def keep(recollection: Recollection, away: Away, *, now_ms: int) -> None:
    kept = Remembered(memory=Memory(away=(away,), retentions=RETENTIONS), looked_ms=now_ms)
    recollection.keep({"orders": kept}, holder="guard", now_ms=now_ms, looked_ms=now_ms)


def test_a_replica_that_misses_nothing_is_written_when_something_happens_to_it(journal: Journal) -> None:
    recollection = Recollection(journal)
    memories = []
    for now_ms in (10, 20):
        keep(recollection, replace(AWAY, excused_ms=now_ms), now_ms=now_ms)
        memories.append((recollection.memory("orders").away, journal.memory("orders").away))
    late = replace(AWAY, excused_ms=20, too_late=True)
    keep(recollection, late, now_ms=30)
    memories.append((recollection.memory("orders").away, journal.memory("orders").away))
    first, second = replace(AWAY, excused_ms=10), replace(AWAY, excused_ms=20)
    assert memories == [((first,), (first,)), ((second,), (first,)), ((late,), (late,))]
