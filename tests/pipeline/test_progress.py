"""The board counts a task once, whoever tells of it, and listens to nobody else."""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.log import codecs
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect
from headstone.pipeline.progress import (
    BYTES_READ_TWICE,
    COUNTERS,
    OBJECTS,
    Board,
    BoardAddress,
    Meter,
    ProgressLine,
    _line_on,
    describe,
    reporting,
)
from headstone.retention.policy import Policy
from headstone.sim.synth import SampleSettings, write_sample

LOOPBACK = "127.0.0.1"


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    yield made
    made.close()


def listening(board: Board) -> BoardAddress:
    address = board.address(LOOPBACK)
    assert address is not None
    return address


def send(address: BoardAddress, datagram: bytes) -> None:
    """On loopback it has arrived when this returns."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(datagram, (address.host, address.port))


def test_two_attempts_of_a_task_count_once_with_the_most_that_was_heard(board: Board) -> None:
    address, tasks = listening(board), board.numbers(2)
    for size, records in ((700, 7), (300, 3)):
        with reporting(address, tasks[0]) as meter:
            meter.add(size, records)
    with reporting(address, tasks[1]) as meter:
        meter.add(50, 0)
        meter.add(50, 1)
    assert board.total() == (800, 8)


def test_what_a_task_counts_last_is_sent_however_soon_it_ends(board: Board) -> None:
    address, task = listening(board), board.numbers(1)[0]
    with reporting(address, task) as meter:
        for _ in range(1000):
            meter.add(1, 1)
    assert board.total() == (1000, 1000)


def test_a_strangers_datagrams_are_ignored(board: Board) -> None:
    address, task = listening(board), board.numbers(1)[0]
    with reporting(address, task) as meter:
        meter.add(10, 1)
    send(address, COUNTERS.pack(bytes(16), task, 10**9, 10**9))
    send(address, COUNTERS.pack(address.token, task, 10**9, 10**9) + b"\0")
    send(address, COUNTERS.pack(address.token, task, 10**9, 10**9)[:-1])
    send(address, b"")
    send(address, COUNTERS.pack(address.token, task + 1, 10**9, 10**9))
    assert board.total() == (10, 1)


def test_a_settled_task_that_goes_on_is_not_counted_again(board: Board) -> None:
    address, first = listening(board), board.numbers(1)[0]
    with reporting(address, first) as meter:
        meter.add(600, 6)
        assert board.total() == (600, 6)
        board.settle(1000)
        meter.add(100, 1)
    second = board.numbers(1)[0]
    with reporting(address, second) as meter:
        meter.add(5, 2)
    assert board.total() == (1005, 8)


def test_an_answer_makes_up_for_lost_datagrams_and_a_late_one_takes_nothing_away(board: Board) -> None:
    address, task = listening(board), board.numbers(1)[0]
    board.note(task, 500, 5)
    send(address, COUNTERS.pack(address.token, task, 200, 2))
    assert board.total() == (500, 5)


def test_a_task_works_where_no_board_can_be_reached() -> None:
    nobody = BoardAddress(host="no-such-host.invalid", port=1, token=bytes(16))
    for address in (None, nobody):
        with reporting(address, 0) as meter:
            meter.add(3, 1)
        assert (meter.size, meter.records) == (3, 1)


class Screen(io.StringIO):
    """Remembers what is shown, and that something is."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def write(self, text: str) -> int:
        self.shown.set()
        return super().write(text)


def test_the_line_shows_what_tasks_in_this_process_have_read(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(ProgressLine, "QUIET_S", 0.0)

    def body(task: int, meter: Meter) -> bool:
        meter.add(task, 1)
        return screen.shown.wait(60)

    with ProgressLine(enabled=True) as line:
        line.expect(2000)
        assert InProcess(2).each(body, [700, 300], line.board) == [True, True]
    text = screen.getvalue().splitlines()[0].split()
    assert text[1] == "%"
    assert int(text[0]) in (0, 15, 35, 50)


def test_a_notebook_has_one_line_that_is_written_over_and_leaves_nothing() -> None:
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    line = _line_on(stream)
    line.show("starting; 100 MB to do")
    line.show("50 %")
    line.clear()
    assert line.rewritten
    assert stream.getvalue().split("\r") == ["", "starting; 100 MB to do", "50 %".ljust(22), " " * 22, ""]
    plain = _line_on(io.StringIO())
    assert not plain.rewritten


def test_a_line_says_what_it_counts_and_when_it_ends() -> None:
    assert describe(25_000_000, 100_000_000, 7, 10.0) == " 25 %  25.0 MB of 100.0 MB  7 records  2.5 MB/s  30 s left"
    assert describe(400_000, 1_660_000, 0, 20.0) == " 24 %  400.0 kB of 1.7 MB  20.0 kB/s  1 min 3 s left"
    assert describe(0, 1_660_000, 0, 3.0) == "starting; 1.7 MB to do (3 s)"
    twice = describe(16_600_000, 33_200_000, 0, 2.0, BYTES_READ_TWICE)
    assert twice == " 50 %  8.3 MB of 16.6 MB  4.2 MB/s  2 s left"
    assert describe(250, 1000, 0, 10.0, OBJECTS) == " 25 %  250 of 1,000 objects  25 objects/s  30 s left"
    assert describe(0, 1000, 0, 3.0, OBJECTS) == "starting; 1,000 objects to do (3 s)"
    assert describe(0, 1000, 0, 3.0, OBJECTS, compiling=True) == "compiling kernels (once); 1,000 objects to do (3 s)"
    assert (
        describe(250, 1000, 0, 3.0, OBJECTS, compiling=True) == " 25 %  250 of 1,000 objects  compiling kernels (once)"
    )
    assert describe(1001, 1000, 0, 10.0, OBJECTS).startswith("100 %")


def test_inspection_counts_every_byte_it_expects(tmp_path: Path, board: Board) -> None:
    write_sample(tmp_path, SampleSettings(topic="t", records=2000, keys=50, codec=codecs.NONE, segment_bytes=20_000))
    inspect(find_partitions([str(tmp_path)]), Policy(now_ms=0), InProcess(), board)
    size, records = board.total()
    assert size == board.expected == sum(path.stat().st_size for path in tmp_path.rglob("*.log"))
    assert records >= 2000
