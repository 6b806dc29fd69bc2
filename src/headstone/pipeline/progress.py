"""Progress of running tasks: each counts what it has read, the driver's board adds up, a line shows it.

Tasks in this process report to the board directly, others by datagrams with their counters so far. Datagrams never make a task
wait, and a lost one loses nothing. A task may run twice: its number counts once, with the highest report. What a finished task
has counted also comes with its answer (`Board.note`), so that the sum is right in the end, whatever the network does.
"""

from __future__ import annotations

import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from headstone.interruption import check
from headstone.log.compiling import Compiling
from headstone.units import count, duration
from headstone.units import size as size_of

TOKEN_BYTES = 16
COUNTERS = struct.Struct("<16sqqq")
"""Token of the board, number of the task, bytes read, records rewritten."""
REPORT_S = 0.2
"""A task sends no more than one datagram in this time, and one at its end."""
POLL_S = 0.1
"""How often the driver takes datagrams out of the socket, which holds some hundreds."""
RECEIVE_BYTES = 1 << 20

Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountUnit:
    """What a line counts in: its name, and how much of what is counted makes one of it."""

    name: str
    """Empty for bytes: sizes have units of their own."""
    scale: float = 1

    def told(self, number: float) -> str:
        counted = number / self.scale
        return f"{counted:,.0f} {self.name}" if self.name else size_of(counted)


COMPILING = "compiling kernels (once)"
BYTES = CountUnit(name="")
BYTES_READ_TWICE = CountUnit(name="", scale=2)
"""For a log whose every byte counts twice: once for its keys, once for what is written."""
OFFSETS, OBJECTS, EXTENTS, ROWS, RECORDS = (
    CountUnit(name=name) for name in ("offsets", "objects", "extents", "rows", "records")
)
"""For work whose bytes are unknown, or that moves none."""


class Meter:
    """A task's counters: bytes read and records rewritten so far. Counting is a safe point."""

    def __init__(self, tell: Tell | None = None) -> None:
        self.size = self.records = 0
        self._tell = tell

    def add(self, size: int, records: int) -> None:
        check()
        self.size += size
        self.records += records
        if self._tell is not None:
            self._tell(self.size, self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardAddress:
    """Where tasks in other processes send their counters."""

    host: str
    port: int
    token: bytes


@contextmanager
def reporting(address: BoardAddress | None, task: int) -> Iterator[Meter]:
    """The meter of a task that runs outside the driver's process."""
    sender = _Sender(address, task) if address is not None else None
    meter = Meter(sender.tell if sender is not None else None)
    try:
        yield meter
    finally:
        if sender is not None:
            sender.close(meter)


class _Sender:
    """Never blocks and never fails: without a network there is less to see, and the work goes on."""

    def __init__(self, address: BoardAddress, task: int) -> None:
        self._token, self._task = address.token, task
        self._sent_s = -REPORT_S
        self._socket: socket.socket | None = None
        with suppress(OSError):
            addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
            family, kind, protocol, _, target = addresses[0]
            made = socket.socket(family, kind, protocol)
            made.setblocking(False)
            self._socket, self._target = made, target

    def tell(self, size: int, records: int) -> None:
        now_s = time.monotonic()
        if now_s - self._sent_s >= REPORT_S:
            self._sent_s = now_s
            self._send(size, records)

    def close(self, meter: Meter) -> None:
        self._send(meter.size, meter.records)
        if self._socket is not None:
            self._socket.close()

    def _send(self, size: int, records: int) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto(COUNTERS.pack(self._token, self._task, size, records), self._target)


class Board:
    """The counters of all tasks of a run. Numbers its tasks; listens only once its address is asked for.

    Counts bytes, unless its line has another unit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._socket: socket.socket | None = None
        self._tasks: dict[int, tuple[int, int]] = {}
        self._next = self._oldest = 0
        self._settled = (0, 0)
        self._expected = 0

    @property
    def expected(self) -> int:
        """Bytes that all tasks will have read; 0 while unknown."""
        return self._expected

    def expect(self, size: int) -> None:
        self._expected += size

    def numbers(self, count: int) -> range:
        """Numbers for `count` more tasks."""
        with self._lock:
            self._next += count
            return range(self._next - count, self._next)

    def address(self, host: str) -> BoardAddress | None:
        """For tasks that reach this machine as `host`; None if no socket can be opened."""
        with self._lock:
            if self._socket is None:
                self._socket = _listening(host)
            if self._socket is None:
                return None
            return BoardAddress(host=host, port=self._socket.getsockname()[1], token=self._token)

    def meter(self, task: int) -> Meter:
        """For a task in this process."""
        return Meter(lambda size, records: self.note(task, size, records))

    def note(self, task: int, size: int, records: int) -> None:
        """A task, in one of its attempts, has come this far."""
        with self._lock:
            self._note(task, size, records)

    def settle(self, size: int) -> None:
        """The tasks numbered so far are finished with this many bytes; nothing more comes from them."""
        with self._lock:
            records = sum(records for _, records in self._tasks.values())
            self._settled = (self._settled[0] + size, self._settled[1] + records)
            self._oldest = self._next
            self._tasks.clear()

    def total(self) -> tuple[int, int]:
        """(bytes, records) of all tasks so far."""
        with self._lock:
            self._receive()
            size, records = self._settled
            for counted in self._tasks.values():
                size, records = size + counted[0], records + counted[1]
            return size, records

    def close(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _note(self, task: int, size: int, records: int) -> None:
        if self._oldest <= task < self._next:
            most = self._tasks.get(task, (0, 0))
            self._tasks[task] = (max(size, most[0]), max(records, most[1]))

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                datagram = self._socket.recv(COUNTERS.size + 1)
            except OSError:  # nothing more has arrived
                return
            if len(datagram) == COUNTERS.size:
                token, task, size, records = COUNTERS.unpack(datagram)
                if secrets.compare_digest(token, self._token):
                    self._note(task, size, records)


def meter_on(board: Board | None) -> Meter:
    """For one more task in this process; without a board it reports nowhere."""
    return Meter() if board is None else board.meter(board.numbers(1)[0])


def _listening(host: str) -> socket.socket | None:
    """At the address that the name has here; if that is not this machine's own, as behind a gateway, at all of them."""
    with suppress(OSError):
        family, kind, protocol, _, target = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        try:
            made.bind(target)
        except OSError:
            made.bind(("", 0))
        return made
    return None


class ProgressLine:
    """One line on stderr, rewritten on a terminal and in a notebook, repeated elsewhere. Silent for short jobs."""

    QUIET_S = 2.0
    REWRITE_S = 0.5
    REPEAT_S = 5.0

    def __init__(self, *, enabled: bool, unit: CountUnit = BYTES) -> None:
        self._unit = unit
        self.board = Board() if enabled else None
        """What tasks report; None if no progress is shown."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> ProgressLine:
        if self.board is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self.board is not None:
            self._thread.join()
            self.board.close()

    def expect(self, size: int) -> None:
        if self.board is not None:
            self.board.expect(size)

    def settle(self, size: int) -> None:
        if self.board is not None:
            self.board.settle(size)

    def _run(self) -> None:
        assert self.board is not None
        line = _line_on(sys.stderr)
        started_s = time.monotonic()
        due_s = started_s + self.QUIET_S
        compiling = Compiling()
        shown = False
        while not self._stop.wait(POLL_S):
            size, records = self.board.total()
            now_s = time.monotonic()
            if now_s < due_s or not self.board.expected:
                continue
            waits = compiling.here if size else compiling()
            text = describe(size, self.board.expected, records, now_s - started_s, self._unit, compiling=waits)
            line.show(text)
            shown = True
            due_s = now_s + (self.REWRITE_S if line.rewritten else self.REPEAT_S)
        if shown:
            line.clear()


class _Line:
    """Where nothing can be rewritten, each text is a line of its own."""

    rewritten = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str) -> None:
        self._write(f"{text}\n")

    def clear(self) -> None:
        """The text stays."""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _TerminalLine(_Line):
    rewritten = True

    def show(self, text: str) -> None:
        self._write(f"\r\x1b[K{text}")

    def clear(self) -> None:
        self._write("\r\x1b[K")


class _NotebookLine(_Line):
    """A notebook understands the carriage return, but shows text that an escape would have cleared."""

    rewritten = True
    width = 0

    def show(self, text: str) -> None:
        self._write(f"\r{text.ljust(self.width)}")
        self.width = max(self.width, len(text))

    def clear(self) -> None:
        self._write(f"\r{' ' * self.width}\r")


def _line_on(stream: TextIO) -> _Line:
    if stream.isatty():
        return _TerminalLine(stream)
    return _NotebookLine(stream) if type(stream).__module__.startswith("ipykernel") else _Line(stream)


def describe(
    done: int, total: int, records: int, elapsed_s: float, unit: CountUnit = BYTES, *, compiling: bool = False
) -> str:
    if done == 0:
        to_do = f"{unit.told(total)} to do"
        return f"{COMPILING if compiling else 'starting'}; {to_do} ({duration(round(elapsed_s) * 1000)})"
    rate = done / elapsed_s
    left = f"{duration(round(max(total - done, 0) / rate) * 1000)} left"
    share = min(100, 100 * done // total)
    so_far = f"{done / unit.scale:,.0f} of" if unit.name else f"{unit.told(done)} of"
    counted = f"  {count(records, 'record')}" if records else ""
    if compiling:
        return f"{share:3d} %  {so_far} {unit.told(total)}{counted}  {COMPILING}"
    return f"{share:3d} %  {so_far} {unit.told(total)}{counted}  {unit.told(rate)}/s  {left}"
