"""Whose turn it is to be read: nobody waits for one that cannot be read, and nobody is read who is not wanted any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.brokers.processes import wait_until
from headstone.coordination.guard_values import Verdict, Verify
from headstone.errors import Unfinished
from headstone.guard.journal import Journal
from headstone.guard.readings import Readings
from tests.guard.world import CLUSTER_ID

A, B, C = (Verify(topic=topic, partition=0, broker=3) for topic in "abc")
TOPICS = {"a", "b", "c"}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as opened:
        yield opened


class Wire:
    """Reads one replica at a time, when it is let."""

    def __init__(self, journal: Journal) -> None:
        self.begun: list[str] = []
        self.steps = threading.Semaphore(0)
        self.readings = Readings(self.read, journal, clock=lambda: 1, beside=True)

    def read(self, wanted: Verify) -> dict[int, Verdict]:
        self.begun.append(wanted.topic)
        assert self.steps.acquire(timeout=30)
        if wanted.topic == "a":
            raise Unfinished("it does not let itself be read")
        return {wanted.broker: Verdict.RIGHT}

    def close(self) -> None:
        self.readings.end()
        self.steps.release(9)
        thread = self.readings._thread
        assert thread is not None
        thread.join(30)

    def begins(self, *topics: str) -> None:
        wait_until(lambda: self.begun == list(topics), f"{topics}, not {self.begun}", seconds_max=30)


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
