"""The moment to strike: reads of tasks wait at a gate until the test has done what it does in the middle of a job."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from testbed.faulty_s3 import Fault, FaultyS3, Hold, Request

ARRIVE_SECONDS_MAX = 240

T = TypeVar("T")


class Gate:
    """Reads of objects whose names end so; the first `passing` of them pass."""

    def __init__(self, *, suffix: str, passing: int) -> None:
        self._suffix = suffix
        self._passing = passing
        self._waiting: set[str] = set()
        self._arrived = threading.Condition()
        self._open = threading.Event()

    def __call__(self, request: Request) -> Fault | None:
        if request.method != "GET" or not request.path.endswith(self._suffix):
            return None
        with self._arrived:
            self._passing -= 1
            if self._passing >= 0:
                return None
            self._waiting.add(request.path)
            self._arrived.notify_all()
        return Hold(until=self._open)

    def wait_for(self, objects: int) -> None:
        """Until so many different ones are wanted. A task on an executor of one core wants one at a time."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self._waiting) >= objects, ARRIVE_SECONDS_MAX)

    def open(self) -> None:
        self._open.set()


@contextmanager
def in_the_middle(
    proxy: FaultyS3, job: Callable[[], T], *, suffix: str, passing: int = 0
) -> Iterator[tuple[Gate, Callable[[], T]]]:
    """The job runs beside the block, up to the gate; the second of the pair opens it and waits for the answer."""
    gate = Gate(suffix=suffix, passing=passing)
    proxy.decide = gate
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job)

        def finish() -> T:
            gate.open()
            return running.result()

        try:
            yield gate, finish
        finally:
            gate.open()
