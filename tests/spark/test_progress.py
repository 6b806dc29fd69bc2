"""Progress of tasks on Spark: seen while they run, and right in the end even if nothing that they sent has arrived."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headstone.brokers.processes import wait_until
from headstone.interruption import Interrupted, Request, heard_as
from headstone.pipeline.progress import Board, Meter, ProgressLine
from headstone.spark import engine
from headstone.spark.engine import OnSpark, host_for_tasks

PATIENCE_S = 300
NOWHERE = "192.0.2.1"
"""An address for documentation: what is sent there arrives nowhere."""


class Gate:
    """Holds tasks in other processes until it is opened."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._file = os.open(path, os.O_RDWR)

    def open(self) -> None:
        os.write(self._file, b"go")

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    yield made
    made.close()


def passed(path: str) -> bool:
    """In a task: whether the gate was opened before all patience was lost."""
    with open(path, "rb", buffering=0) as held:
        return bool(select.select([held], [], [], PATIENCE_S)[0])


class Screen(io.StringIO):
    """Does something once a share of the work is shown."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def write(self, text: str) -> int:
        if " %" in text:
            self._then()
        return super().write(text)


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressLine, "QUIET_S", 0.0)
    monkeypatch.setattr(ProgressLine, "REPEAT_S", 0.0)


@pytest.mark.usefixtures("prompt")
def test_the_line_shows_what_a_task_has_read_before_it_ends(
    spark: SparkSession, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(path: str, meter: Meter) -> bool:
        meter.add(300, 3)
        return passed(path)

    screen = Screen(gate.open)
    monkeypatch.setattr(sys, "stderr", screen)
    with ProgressLine(enabled=True) as line:
        line.expect(1000)
        assert OnSpark(lambda: spark, parallelism=2).each(body, [gate.path], line.board) == [True]
    assert " 30 %" in screen.getvalue()


@pytest.mark.usefixtures("prompt")
def test_where_no_datagram_arrives_the_line_moves_with_finished_tasks(
    spark: SparkSession, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(path: str | None, meter: Meter) -> bool:
        meter.add(300, 3)
        return path is None or passed(path)

    screen = Screen(gate.open)
    monkeypatch.setattr(engine, "host_for_tasks", lambda spark: NOWHERE)
    monkeypatch.setattr(sys, "stderr", screen)
    with ProgressLine(enabled=True) as line:
        line.expect(1000)
        tasks = [gate.path, None, None, None]  # one only: whichever job comes first, a core is left for the others
        assert OnSpark(lambda: spark, parallelism=1).each(body, tasks, line.board) == [True] * 4
        assert line.board is not None
        assert line.board.total() == (1200, 12)
    assert screen.getvalue().split("%")[0].split()[-1] in ("30", "60", "90")


@pytest.mark.usefixtures("prompt")
def test_giving_up_cancels_the_tasks_that_run_and_leaves_those_of_others(spark: SparkSession, gate: Gate) -> None:
    """As of the session of a notebook, which has other jobs."""

    def body(path: str, meter: Meter) -> bool:
        meter.add(300, 3)
        return passed(path)

    request, on_spark = Request(), OnSpark(lambda: spark, parallelism=1)
    beside: list[object] = []
    other = threading.Thread(target=lambda: beside.extend(on_spark.each(body, [gate.path])))
    other.start()
    with ProgressLine(enabled=True) as line, heard_as(request):
        line.expect(1000)
        assert line.board is not None
        threading.Thread(target=_give_up_when_begun, args=(request, line.board)).start()
        with pytest.raises(Interrupted):
            on_spark.each(body, [gate.path] * 2, line.board)
    assert other.is_alive()
    gate.open()
    other.join()
    assert beside == [True]
    assert on_spark.each(lambda task, meter: task, [1, 2, 3]) == [1, 2, 3]


def _give_up_when_begun(request: Request, board: Board) -> None:
    wait_until(lambda: board.total()[0] > 0, "a task has begun", seconds_max=120)
    request.give_up()


def test_lost_datagrams_leave_the_sum_of_finished_tasks_right(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(size: int, meter: Meter) -> int:
        meter.add(size, 1)
        if size == 3:
            raise OSError("met after three bytes")
        return size

    monkeypatch.setattr(engine, "host_for_tasks", lambda spark: NOWHERE)
    board = Board()
    outcomes: list[Any] = OnSpark(lambda: spark, parallelism=2).outcomes(body, [100, 20, 3], board)
    assert outcomes[:2] == [100, 20]
    assert board.total() == (123, 3)
    board.close()


def test_a_local_driver_is_told_on_loopback(spark: SparkSession) -> None:
    assert host_for_tasks(spark) == "127.0.0.1"
