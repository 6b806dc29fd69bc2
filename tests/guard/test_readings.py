"""Whose turn it is to be read: nobody waits for one that cannot be read, and nobody is read who is not wanted any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headstone.brokers.processes import wait_until
from headstone.coordination.guard_values import Verdict, Verify
from headstone.errors import Unfinished
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Reading
from headstone.guard.verification.background import Readings, reason_of
from headstone.guard.verification.verdicts import Judged

A, B, C = (Verify(topic=topic, partition=0, broker=3) for topic in "abc")
TOPICS = {"a", "b", "c"}


class Wire:
    """Reads one replica at a time, when it is let."""

    def __init__(self, journal: Journal) -> None:
        self.begun: list[str] = []
        self.steps = threading.Semaphore(0)
        self.readings = Readings(self.read, journal, clock=lambda: 1, beside=True)

    def read(self, wanted: Verify) -> dict[int, Judged]:
        self.begun.append(wanted.topic)
        assert self.steps.acquire(timeout=120)
        if wanted.topic == "a":
            raise Unfinished("it does not let itself be read")
        return {wanted.broker: Judged(verdict=Verdict.RIGHT)}

    def close(self) -> None:
        self.readings.end()
        self.steps.release(9)
        thread = self.readings._thread
        assert thread is not None
        thread.join(120)

    def begins(self, *topics: str) -> None:
        wait_until(lambda: self.begun == list(topics), f"{topics}, not {self.begun}", seconds_max=120)


@pytest.fixture
def wire(journal: Journal) -> Iterator[Wire]:
    wire = Wire(journal)
    yield wire
    wire.close()


def test_one_that_cannot_be_read_keeps_nobody_waiting(wire: Wire) -> None:
    wire.readings.want([A, B, C], TOPICS)
    wire.begins("a")
    wire.readings.want([A, B, C], TOPICS)
    wire.steps.release()
    wire.begins("a", "b")
    wire.readings.want([A, B, C], TOPICS)
    wire.steps.release()
    wire.begins("a", "b", "c")
    wire.steps.release(3)
    wire.begins("a", "b", "c", "a")


def test_what_a_look_does_not_want_any_more_is_not_begun(wire: Wire) -> None:
    wire.readings.want([B, C], TOPICS)
    wire.begins("b")
    wire.readings.want([A], TOPICS)
    wire.steps.release()
    wire.begins("b", "a")


def test_a_look_at_one_topic_takes_nothing_from_the_others(wire: Wire) -> None:
    wire.readings.want([B, C], TOPICS)
    wire.begins("b")
    wire.readings.want([], {"a"})
    wire.steps.release()
    wire.begins("b", "c")


@pytest.mark.parametrize("error", [ValueError("not a batch"), RecursionError("too deep"), OSError(28, "No space left")])
def test_a_reading_that_fails_in_whatever_way_is_noted_and_the_next_one_is_read(
    journal: Journal, error: Exception
) -> None:
    def read(wanted: Verify) -> dict[int, Judged]:
        if wanted.topic == "a":
            raise error
        return {wanted.broker: Judged(verdict=Verdict.RIGHT)}

    readings = Readings(read, journal, clock=lambda: 1, beside=True)
    readings.want([A, B], TOPICS)
    wait_until(lambda: bool(journal.readings("b")), "b is read", seconds_max=120)
    (failed,) = journal.readings("a")
    assert (failed.verdict, failed.detail) == (None, reason_of(error))
    assert reason_of(error) in ("ValueError: not a batch", "RecursionError: too deep", "No space left")


def test_readings_go_on_after_the_journal_was_locked(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def read(wanted: Verify) -> dict[int, Judged]:
        begun.append(wanted.topic)
        return {wanted.broker: Judged(verdict=Verdict.RIGHT)}

    note = journal.note_reading

    def locked(topic: str, reading: Reading) -> None:
        if topic == "a":
            raise Unfinished("the journal cannot be written: database is locked")
        note(topic, reading)

    readings = Readings(read, journal, clock=lambda: 1, beside=True)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "note_reading", locked)
        readings.want([A, B], TOPICS)
        wait_until(lambda: bool(journal.readings("b")), "b is read", seconds_max=120)
        assert readings._thread is not None
        readings._thread.join(120)
    readings.want([A], TOPICS)
    readings._thread.join(120)
    assert (begun, [reading.verdict for reading in journal.readings("a")]) == (["a", "b", "a"], [Verdict.RIGHT])


def test_a_reading_is_as_old_as_its_beginning_and_not_as_its_end(journal: Journal) -> None:
    """It takes minutes: what happened meanwhile may have come behind what was read already."""
    times_ms = iter([1000, 2000, 3000, 4000])

    def read(wanted: Verify) -> dict[int, Judged]:
        next(times_ms)
        if wanted == B:
            raise Unfinished("it does not let itself be read")
        return {broker: Judged(verdict=Verdict.RIGHT) for broker in (2, 3)}

    readings = Readings(read, journal, clock=lambda: next(times_ms), beside=False)
    readings.want([A], TOPICS)
    readings.want([B], TOPICS)
    found = {topic: [reading.read_ms for reading in journal.readings(topic)] for topic in "ab"}
    assert found == {"a": [1000, 1000], "b": [3000]}
