"""Progress of tasks on Spark: seen while they run, and right in the end even if nothing that they sent has arrived."""

from __future__ import annotations

import io
import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headstone.pipeline.progress import Board, Meter, ProgressLine
from headstone.spark import engine
from headstone.spark.engine import OnSpark, host_for_tasks

PATIENCE_S = 120


def test_the_line_shows_what_a_task_has_read_before_it_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)

    class Screen(io.StringIO):
        """Lets the task go on once it shows a share of the work."""

        def write(self, text: str) -> int:
            if " %" in text:
                os.write(opened, b"go")
            return super().write(text)

    def body(path: str, meter: Meter) -> bool:
        meter.add(300, 3)
        with open(path, "rb", buffering=0) as let_go:
            return bool(select.select([let_go], [], [], PATIENCE_S)[0])

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(ProgressLine, "QUIET_S", 0.0)
    monkeypatch.setattr(ProgressLine, "REPEAT_S", 0.0)
    with ProgressLine(enabled=True) as line:
        line.expect(1000)
        assert OnSpark(lambda: spark, parallelism=2).each(body, [str(gate)], line.board) == [True]
    os.close(opened)
    assert " 30 %" in screen.getvalue()


def test_lost_datagrams_leave_the_sum_of_finished_tasks_right(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(size: int, meter: Meter) -> int:
        meter.add(size, 1)
        if size == 3:
            raise OSError("met after three bytes")
        return size

    monkeypatch.setattr(engine, "host_for_tasks", lambda spark: "192.0.2.1")
    board = Board()
    outcomes: list[Any] = OnSpark(lambda: spark, parallelism=2).outcomes(body, [100, 20, 3], board)
    assert outcomes[:2] == [100, 20]
    assert board.total() == (123, 3)
    board.close()


def test_a_local_driver_is_told_on_loopback(spark: SparkSession) -> None:
    assert host_for_tasks(spark) == "127.0.0.1"
