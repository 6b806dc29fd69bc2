"""The output of Spark's JVM: held back until it has started, then passed on, until it is told to stop.

A failed start is reported in one line made from the held output, without the stack traces around it. The traces of tasks whose
failure `failures.py` reports in a line are dropped too; those of others are shown at the end.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

from headstone.interruption import given_up

LOGGED = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d [A-Z]+ \w+: ")
"""log4j's lines begin like this; lines after one belong to it."""
TASK_FAILED = re.compile(r"(?:\S+ ){3}(Executor: Exception in task|TaskSetManager: (Lost task|Task \d+ in stage))")
FAILURE_LINES_MAX = 1000
"""The newest ones."""
NOISE = (
    b"Using incubator modules",
    b"Using Spark's default log4j profile",
    b"Setting default log level to",
    b"To adjust logging level use",
    b"Setting Spark log level to",
    b"NativeCodeLoader",
    b"resolves to a loopback address",
    b"Set SPARK_LOCAL_IP",
)
"""Lines printed at every start."""
GIVEN_UP = "All masters are unresponsive"
"""After a minute; the JVM then takes minutes more to end."""
DRAIN_SECONDS_MAX = 5.0


class JvmOutput:
    """A pipe and the thread that reads it. As a context it covers the start: the JVM writes to `writer`, closed here."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._held: list[str] | None = []
        self._lock = threading.Lock()
        self._stopped = False
        self._failures: deque[str] = deque(maxlen=FAILURE_LINES_MAX)
        """Output of failed tasks, kept until their failure is explained."""
        self._in_failure = self._explained = False
        self._given_up: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> JvmOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.writer)

    def on_giving_up(self, end: Callable[[], None]) -> None:
        """Called when Spark says that no master of its cluster registers it."""
        self._given_up = end

    def pass_on(self) -> None:
        """The JVM has started: shows what it has written so far, and what it writes from now on."""
        with self._lock:
            held, self._held = self._held or [], None
            sys.stderr.write("".join(held))
            sys.stderr.flush()
        _running.append(self)

    def stop(self) -> None:
        """Shows nothing of what it writes after it is told to stop."""
        self._stopped = True

    def end(self) -> None:
        """Call before it is told to stop: shows failures that were not explained."""
        _running.remove(self)
        with self._lock:
            if not (self._stopped or self._explained or given_up()):
                sys.stderr.write("".join(self._failures))
                sys.stderr.flush()
        self.stop()

    def explain(self) -> None:
        self._explained = True

    def held(self) -> list[str]:
        """Lines of a JVM that ended before it had started."""
        self._thread.join(DRAIN_SECONDS_MAX)
        with self._lock:
            return list(self._held or [])

    def _read(self) -> None:
        with os.fdopen(self._reader, "rb") as output:
            for line in output:
                if not self._stopped and not any(noise in line for noise in NOISE):
                    self._take(line.decode("utf-8", errors="replace"))

    def _take(self, line: str) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(line)
                if GIVEN_UP in line and self._given_up is not None:
                    self._given_up()
                return
            if LOGGED.match(line):
                self._in_failure = TASK_FAILED.match(line) is not None
            if self._in_failure:
                self._failures.append(line)
                return
        sys.stderr.write(line)
        sys.stderr.flush()


_running: list[JvmOutput] = []


def failure_is_told() -> None:
    """In a line of ours: the stack traces of tasks need not be shown."""
    for output in _running:
        output.explain()
