"""How a stop reaches running work: safe points raise `Interrupted`, and waits end early.

Owns the request of one run, and what ends its blocked calls when it is given up. Knows neither signals nor verbs: the signal
handling (`api/stopping.py`) makes the request. In a library call or a Spark task without one, nothing here ever stops.

A run is asked first: work with an orderly end looks at `asked`. After that, or at once if it has no orderly end, the run is
given up: `check`, which every loop over chunks, objects and tries calls, raises. Nothing is raised anywhere else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

CANCEL_AGAIN_S = 0.5
"""What is cancelled may have been about to begin: it is cancelled again until it has ended."""
LOOK_S = 60.0
T = TypeVar("T")


class Interrupted(BaseException):
    """The run was given up. Not an Exception: code that goes on after a failure must not go on after this."""


class Request:
    """For one run. Asked and given up are for good."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked = self._given_up = False

    @property
    def asked(self) -> bool:
        return self._asked

    @property
    def given_up(self) -> bool:
        return self._given_up

    def ask(self) -> None:
        with self._changed:
            self._asked = True
            self._changed.notify_all()

    def give_up(self) -> None:
        with self._changed:
            self._asked = self._given_up = True
            self._changed.notify_all()

    def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Until `over`, which is checked when something changes, and no longer than `seconds`."""
        with self._changed:
            self._changed.wait_for(over, seconds)

    def wake(self) -> None:
        """Waiting threads check again."""
        with self._changed:
            self._changed.notify_all()


NOBODY_ASKS = Request()
_request: ContextVar[Request] = ContextVar("request", default=NOBODY_ASKS)
_droppable: ContextVar[bool] = ContextVar("droppable", default=False)


@contextmanager
def heard_as(request: Request) -> Iterator[None]:
    """In the block, on this thread and on `Threads` that it makes, this is the request of the run."""
    before = _request.set(request)
    try:
        yield
    finally:
        _request.reset(before)


@contextmanager
def droppable() -> Iterator[None]:
    """The block changes nothing, so it need not be finished: being asked is enough to give it up."""
    before = _droppable.set(True)
    try:
        yield
    finally:
        _droppable.reset(before)


def asked() -> bool:
    """For work with an orderly end: begin nothing more."""
    return _request.get().asked


def given_up() -> bool:
    return _over(_request.get())


def _over(request: Request) -> bool:
    return request.given_up or (request.asked and _droppable.get())


def check() -> None:
    """A safe point: what is done may stand, and the rest can be left."""
    if _over(_request.get()):
        raise Interrupted


def sleep(seconds: float) -> None:
    """Between two tries: raises `Interrupted` when the run is given up."""
    request = _request.get()
    request.wait(seconds, lambda: _over(request))
    check()


def until_asked(seconds: float) -> bool:
    """Waits between two turns of a verb with an orderly end; returns whether it was asked to end."""
    request = _request.get()
    request.wait(seconds, lambda: request.asked)
    return request.asked


def result_of(future: Future[T], seconds_max: float | None = None) -> T:
    """Its result, or `Interrupted` as soon as the run is given up; TimeoutError after `seconds_max`."""
    request = _request.get()
    future.add_done_callback(lambda _: request.wake())
    deadline = None if seconds_max is None else time.monotonic() + seconds_max
    while not future.done():
        check()
        left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
        if left <= 0:
            raise TimeoutError
        request.wait(left, lambda: future.done() or _over(request))
    return future.result()


@contextmanager
def cancelling(cancel: Callable[[], object]) -> Iterator[None]:
    """Ends what the block is blocked in, once the run is given up: from its own thread, repeatedly until the block ends."""
    request, ended = _request.get(), threading.Event()
    if request is NOBODY_ASKS:
        yield
        return

    def watch() -> None:
        while not (_over(request) or ended.is_set()):
            request.wait(LOOK_S, lambda: _over(request) or ended.is_set())
        while not ended.is_set():
            cancel()
            ended.wait(CANCEL_AGAIN_S)

    context = copy_context()
    watcher = threading.Thread(target=context.run, args=(watch,), daemon=True, name="cancelling")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        request.wake()


class Threads(ThreadPoolExecutor):
    """A pool whose work belongs to the run of the thread that submits it."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return super().submit(copy_context().run, fn, *args, **kwargs)
