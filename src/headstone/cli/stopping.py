"""SIGTERM and SIGINT, for verbs that end in an orderly way: the one place in which signals are handled.

What a signal means is the verb's. The handlers that were there are back when the block ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOPPING = "stopping: parts in hand are finished and committed; a second signal gives them up"


@contextmanager
def signals_heard(heard: Callable[[int], None]) -> Iterator[None]:
    """Calls `heard` at each signal, with how many have come; what it raises is raised wherever the main thread is."""
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        heard(count)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, with all that is cleaned up on the way out; a verb may hear signals itself."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python hears signals in the main thread only
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class SoftStop:
    """Called: whether a signal has come."""

    def __init__(self, text: str | None) -> None:
        self._text = text
        self._signals = 0

    def __call__(self) -> bool:
        return self._signals > 0

    def given_up(self) -> bool:
        """Whether a second one has: threads that are still there end at once."""
        return self._signals > 1

    def heard(self, count: int) -> None:
        self._signals = count
        if count > 1:
            raise KeyboardInterrupt
        if self._text is not None:
            # Not by print: the signal may have come in the midst of one.
            os.write(sys.stderr.fileno(), f"{self._text}\n".encode())


@contextmanager
def soft_stop(text: str | None) -> Iterator[SoftStop]:
    """The first signal is told with this text, and asks for an orderly end; the second gives up at once."""
    stop = SoftStop(text)
    with signals_heard(stop.heard):
        yield stop
