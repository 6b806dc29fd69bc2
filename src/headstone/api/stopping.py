"""SIGINT, SIGTERM and SIGHUP: the only place that handles signals. All three mean the same.

Signal handlers do nothing: C writes the number of a signal into a socket. The main thread reads that and does nothing else
while the verb runs on a thread of its own. So nothing is ever raised inside a lock. What a signal means depends on the verb:
one with an orderly end (`soft_stop`) is asked first and given up at the second signal, others are given up at the first. A run
that is given up ends at its next safe point (`interruption.py`). If it does not within seconds, or at one more signal, the
process reports what is left behind and ends, together with the processes that it has started.

In another program's process, such as a notebook, the former handlers come back, and the process stays.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from types import FrameType, TracebackType
from typing import Any, Generic, NoReturn, TypeVar

from headstone.api.own_processes import end_descendants
from headstone.errors import UNFINISHED
from headstone.interruption import Request, check, heard_as

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
STOPPING = "stopping: parts in hand are finished and committed; a second signal gives them up"
GRACE_S = 5.0
"""From giving up to the end of the process: cancelling Spark's jobs and ending its JVM takes two or three."""
SAYING_S = 1.0
"""The reader of the output may be gone."""
LOOK_S = 1.0
_WOKEN = 0
T = TypeVar("T")


def _noted(number: int, frame: FrameType | None) -> None:
    """Python wants a handler, so that C notes the signal."""


class Signals:
    """As a context: notes signals, and restores the former handlers afterwards. On the main thread only.

    `until_end`: for a process that is ours from its first import on."""

    def __init__(self, *, until_end: bool = False) -> None:
        self.until_end = until_end
        self.given_up = False
        """The last run was given up: threads of it may still be in something that does not end."""
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._before: dict[int, Callable[[int, FrameType | None], object] | int] = {}
        self._fd_before = -1

    def __enter__(self) -> Signals:
        for number in SIGNALS:
            handler = signal.getsignal(number)
            # None: not set from Python, and could not be restored. nohup and the like want SIGHUP ignored.
            if handler is not None and not (number == getattr(signal, "SIGHUP", None) and handler == signal.SIG_IGN):
                self._before[number] = handler
                signal.signal(number, _noted)
        self._fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        _in_this_process.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        _in_this_process.remove(self)
        for end in (self._reader, self._writer):
            end.close()

    def next(self, seconds: float) -> int | None:
        """The number of a signal that has come; None when woken, or after this long."""
        if not select.select([self._reader], [], [], seconds)[0]:
            return None
        (number,) = self._reader.recv(1)
        if number in self._before:
            return number
        if number != _WOKEN and self._fd_before >= 0:  # of an event loop that we have replaced
            with suppress(OSError):
                os.write(self._fd_before, bytes([number]))
        return None

    def keep(self, number: int) -> None:
        """A signal that came earlier."""
        with suppress(OSError):  # full of signals, which wake as well; or the run is over
            self._writer.send(bytes([number]))

    def wake(self) -> None:
        self.keep(_WOKEN)

    def end_process_with(self, code: int) -> None:
        """The verb is over and its result is known: from now on a signal ends the process while it cleans up."""
        for number in self._before:
            signal.signal(number, lambda number, frame: os._exit(code))
        signal.set_wakeup_fd(-1)
        if self.given_up:
            end_now(code)


_in_this_process: list[Signals] = []


def _forked() -> None:
    """The parent decides about a child's end; and the child must not write its signals into the parent's socket."""
    if _in_this_process:
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


os.register_at_fork(after_in_child=_forked)


@contextmanager
def own_process() -> Iterator[Signals]:
    """Signals are handled from now on until the process has ended."""
    atexit.register(_deaf)
    yield Signals(until_end=True).__enter__()


def _deaf() -> None:
    """Python restores the system's actions before it has ended: the exit code would be the signal's."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class SoftStop:
    """When called: whether the run was asked to end. On any thread."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __call__(self) -> bool:
        return self._request.asked

    def given_up(self) -> bool:
        """Threads that are still there end at once."""
        return self._request.given_up


class _VerbRun(Generic[T]):
    """A verb on its thread, and what the main thread does meanwhile."""

    def __init__(self, signals: Signals, left_behind: Callable[[], str]) -> None:
        self.request = Request()
        self.first_text: str | None = None
        self.heard: Callable[[int], object] | None = None
        """For a verb with an orderly end: what to do at the first signal and at the second."""
        self._signals, self._left_behind = signals, left_behind
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._over = False
        self._leave_at = float("inf")

    def result(self, work: Callable[[], T]) -> T:
        context = copy_context()
        context.run(_run.set, self)
        worker = threading.Thread(target=context.run, args=(self._work, work), name="verb", daemon=True)
        worker.start()
        while not self._over:
            if self._signals.next(min(LOOK_S, max(0.0, self._leave_at - time.monotonic()))) is not None:
                self._hear()
            if time.monotonic() >= self._leave_at:
                self._leave()
        worker.join(LOOK_S)
        self._signals.given_up = self.request.given_up
        if self._signals.until_end and self.request.given_up:
            end_descendants()
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def _work(self, work: Callable[[], T]) -> None:
        try:
            with heard_as(self.request):
                self._answer.append(work())
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._signals.wake()

    def _hear(self) -> None:
        if self.request.given_up:
            self._leave_at = time.monotonic()
        elif self.heard is not None and not self.request.asked:
            self.heard(1)
            self.request.ask()
            if self.first_text is not None:
                _say(self.first_text)
        else:
            if self.heard is not None:
                self.heard(2)
            self.request.give_up()
            self._leave_at = time.monotonic() + GRACE_S

    def _leave(self) -> None:
        """The verb's thread is in something that cannot be ended: everything written to disk survives that."""
        if self._over:
            return
        _say(f"{self._left_behind()}; what still ran is left in the middle of it")
        if not self._signals.until_end:
            raise KeyboardInterrupt  # raised in plain code of the caller's thread
        end_descendants()
        os._exit(UNFINISHED)


def end_now(code: int) -> NoReturn:
    """Without waiting for threads: Python itself would wait for those of pools, for ever if need be."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    end_descendants()
    os._exit(code)


_run: ContextVar[_VerbRun[Any] | None] = ContextVar("run", default=None)


def run_heard(work: Callable[[], T], *, left_behind: Callable[[], str]) -> T:
    """What `work` returns or raises. `left_behind`: what to report about a run that could not be waited for.

    Outside the main thread no signal arrives: the work is done here, and can't be stopped."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    if _in_this_process:
        return _VerbRun[T](_in_this_process[-1], left_behind).result(work)
    with Signals() as signals:
        return _VerbRun[T](signals, left_behind).result(work)


@contextmanager
def soft_stop(text: str | None, heard: Callable[[int], object] = lambda count: None) -> Iterator[SoftStop]:
    """The first signal prints this text and asks for an orderly end; the second gives up.

    `heard` is called before that with the number of signals so far, on an ordinary thread, so it may take locks."""
    run = _run.get()
    if run is None:
        yield SoftStop(Request())
        return
    check()
    run.first_text, run.heard = text, heard
    try:
        yield SoftStop(run.request)
    finally:
        run.heard = None


def _say(text: str) -> None:
    """As far as possible: a full pipe must not keep the process."""

    def say() -> None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    thread.join(SAYING_S)
