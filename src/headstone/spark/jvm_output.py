"""What Spark's JVM says: held back until it has started, then passed on, until it is told to stop.

A start that fails is told in one line, made of what was held; the stack traces around it are nobody's help. So are those of
tasks whose failure is told in a line by `failures.py`; those of others are shown at the end.
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
"""What log4j says begins so; lines behind it belong to it."""
TASK_FAILED = re.compile(r"(?:\S+ ){3}(Executor: Exception in task|TaskSetManager: (Lost task|Task \d+ in stage))")
FAILURE_LINES_MAX = 1000
"""The newest."""
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
"""What it says at every start."""
GIVEN_UP = "All masters are unresponsive"
"""After a minute; the JVM then takes minutes more to end."""
DRAIN_SECONDS_MAX = 5.0


class JvmOutput:
    """A pipe and the thread that reads it. As a context it is the start: the JVM writes to `writer`, which is closed here."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        self._held: list[str] | None = []
        self._lock = threading.Lock()
        self._stopped = False
        self._failures: deque[str] = deque(maxlen=FAILURE_LINES_MAX)
        """What tasks that failed had to say, as long as nobody has told why."""
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
        """To be called when Spark says that no master of its cluster registers it."""
        self._given_up = end

    def pass_on(self) -> None:
        """The JVM has started: what it said meanwhile is shown, and what it says from now on."""
        with self._lock:
            held, self._held = self._held or [], None
            sys.stderr.write("".join(held))
            sys.stderr.flush()
        _running.append(self)

    def stop(self) -> None:
        """What it says when it is told to stop is shown to nobody."""
        self._stopped = True

    def end(self) -> None:
        """Before it is told to stop: failures that nobody has explained are shown."""
        _running.remove(self)
        with self._lock:
            if not (self._stopped or self._explained or given_up()):
                sys.stderr.write("".join(self._failures))
                sys.stderr.flush()
        self.stop()

    def explain(self) -> None:
        self._explained = True

    def held(self) -> list[str]:
        """Lines of a JVM that has ended before it had started."""
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
