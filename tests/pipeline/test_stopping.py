"""The engine on threads: what it does once somebody has said stop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Meter


@pytest.mark.parametrize("threads", [1, 3])
def test_no_task_begins_after_stop_and_what_runs_is_heard_of(threads: int) -> None:
    """All threads are in a task when somebody says stop."""
    stop, begun = threading.Event(), threading.Barrier(threads)
    numbers: list[int] = []

    def body(task: int, meter: Meter) -> int:
        numbers.append(task)
        begun.wait()
        stop.set()
        return task * 10

    answers = sorted(InProcess(threads).as_they_end(body, range(50), stop=stop.is_set))
    assert (sorted(numbers), answers) == (list(range(threads)), [(number, number * 10) for number in range(threads)])


def test_without_stop_every_task_answers() -> None:
    answers = InProcess(2).as_they_end(lambda task, meter: task, range(20))
    assert sorted(answers) == [(number, number) for number in range(20)]


@dataclass
class Halves:
    """A work in parts, each of which notes that it was begun; `stop` is said by the one of this name."""

    said_by: str
    stop: threading.Event = field(default_factory=threading.Event)
    begun: list[str] = field(default_factory=list)
    records: int = 0
    group_edges: tuple[int, ...] = (0, 0, 0, 0)

    def units(self) -> Sequence[Piece]:
        return [Piece(self, f"unit {number}") for number in range(3)]

    def parts(self) -> Sequence[Piece]:
        return [Piece(self, f"part {number}") for number in range(3)]

    def begin(self, name: str) -> None:
        self.begun.append(name)
        if name == self.said_by:
            self.stop.set()


@dataclass
class Piece:
    work: Halves
    name: str
    size: int = 0

    def index(self, bucket_count: int, meter: Meter) -> tuple[list[bytes], int]:
        self.work.begin(self.name)
        return [b""] * bucket_count, 0

    def rewrite(self, blobs: Sequence[bytes], meter: Meter, *, keys_found: int, tombstones_lost: int) -> str:
        self.work.begin(self.name)
        return self.name


@pytest.mark.parametrize(
    ("said_by", "begun", "answers"),
    [
        ("unit 1", ["unit 2", "unit 1"], []),
        ("part 0", ["unit 2", "unit 1", "unit 0", "part 0"], ["part 0"]),
        ("nobody", ["unit 2", "unit 1", "unit 0", "part 0", "part 1", "part 2"], ["part 0", "part 1", "part 2"]),
    ],
)
def test_no_part_of_a_split_work_begins_after_stop(said_by: str, begun: list[str], answers: list[str]) -> None:
    work = Halves(said_by)
    heard = list(InProcess(1).split([work], stop=work.stop.is_set))
    assert (work.begun, heard) == (begun, [(0, answer) for answer in answers])
