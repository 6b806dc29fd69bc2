"""A replica that was read and found wrong is somebody's to readmit, whatever it was read for."""

from __future__ import annotations

import pytest

from headstone.coordination.guard_values import AlarmKind, State, Verdict
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Reading
from headstone.guard.monitoring.current_status import ask_status, journal_status
from headstone.guard.monitoring.status import Waiting
from headstone.guard.readmission.candidates import suspects
from headstone.guard.readmission.plan import Limits, Wanted, plan
from headstone.guard.verification.verdicts import Judged
from tests.guard.watching import after, kinds, watcher
from tests.guard.world import DAY_MS, START_MS, ClusterTwin


def read_after_the_guard_was_down(twin: ClusterTwin, journal: Journal, verdict: Verdict) -> list[str]:
    """For three days nobody looked, so that everybody is to be read: broker 3 is found to be so. The alarms."""
    guard = watcher(twin, journal, verdict=None)
    guard.round()
    after(twin, guard, 3 * DAY_MS)
    for broker, judged in ((1, Verdict.RIGHT), (2, Verdict.RIGHT), (3, verdict)):
        reading = Reading(partition=0, broker=broker, verdict=judged, read_ms=twin.now_ms + 1)
        journal.note_reading("orders", reading)
    return kinds(after(twin, guard, 30_000))


@pytest.mark.parametrize("verdict", [Verdict.WRONG, Verdict.UNJUDGED])
def test_one_that_was_to_be_read_and_is_not_right_is_shown_and_planned_for(
    journal: Journal, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin()
    kind = {Verdict.WRONG: AlarmKind.WRONG, Verdict.UNJUDGED: AlarmKind.UNJUDGED}[verdict]
    assert kind in read_after_the_guard_was_down(twin, journal, verdict)
    for status in (
        journal_status(journal, now_ms=twin.now_ms, why=""),
        ask_status(journal, twin, twin.clock, look_at=lambda: twin.look(None)),  # type: ignore[arg-type]
    ):
        (topic,) = status.topics
        waiting = Waiting(partition=0, broker=3, since_ms=START_MS + 3 * DAY_MS, expelled_ms=None)
        is_wrong = verdict is Verdict.WRONG
        assert topic.waiting == ((waiting,) if is_wrong else ())
        assert [p.state for p in topic.partitions] == [State.TOO_LATE if is_wrong else State.UNJUDGED]
    read = {1: Judged(verdict=Verdict.RIGHT), 2: Judged(verdict=Verdict.RIGHT), 3: Judged(verdict=verdict)}
    monkeypatch.setattr("headstone.guard.readmission.plan.read_replicas", lambda *arguments, **how: read)
    monkeypatch.setattr("headstone.guard.readmission.plan.readmission_commands", lambda *arguments, **how: ())
    (planned,) = plan(
        twin, ClusterAddress(), journal, Wanted(), work=journal.path.parent, limits=Limits(), tell=print
    )  # type: ignore[arg-type]  # fmt: skip
    assert (planned.readmission.broker, planned.judged.verdict, planned.needed) == (3, verdict, True)


class ClusterAddress:
    address, protocol = "k:9092", "PLAINTEXT"


def test_one_that_is_right_or_was_read_before_it_was_back_is_nobodys(journal: Journal) -> None:
    twin = ClusterTwin()
    read_after_the_guard_was_down(twin, journal, Verdict.WRONG)
    memory = journal.memory("orders")
    assert [away.broker for away in suspects(journal, "orders", memory)] == [3]
    early = START_MS + 3 * DAY_MS - 1
    journal.note_reading("orders", Reading(partition=0, broker=3, verdict=Verdict.WRONG, read_ms=early))
    assert suspects(journal, "orders", memory) == ()
    journal.note_reading("orders", Reading(partition=0, broker=3, verdict=Verdict.RIGHT, read_ms=twin.now_ms))
    assert suspects(journal, "orders", memory) == ()
