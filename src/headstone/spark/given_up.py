"""Hides what py4j and pyspark print about a JVM that was ended because the run was given up: stack traces that help no one.

Owns which those are: py4j's log on the threads of such a run and on the thread by which py4j frees that session's objects, and
errors of its accumulator server. All other runs, and sessions and threads that are not ours, log as before.
"""

from __future__ import annotations

import logging
import threading
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import py4j
from py4j.clientserver import FinalizerWorker

from headstone.interruption import given_up

LOGGERS = (None, "py4j", "py4j.java_gateway", "py4j.clientserver")
"""None: a command without an answer is logged to the root logger, whichever thread has asked."""
PY4J = Path(py4j.__file__).parent


_finalized: list[tuple[Any, Context]] = []
"""By the queue of objects to free, the run whose session they are of: py4j's thread for it knows no run."""


def _run_was_given_up() -> bool:
    """Asked on the thread that logs."""
    if given_up():
        return True
    thread = threading.current_thread()
    return isinstance(thread, FinalizerWorker) and any(
        thread.deque is queue and run.copy().run(given_up) for queue, run in _finalized
    )


class _GivenUp(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (Path(record.pathname).parent == PY4J and _run_was_given_up())


_FILTER = _GivenUp()


def silence_py4j() -> None:
    """Once is enough; it stays, because threads may outlive the session."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)


def silence_finalizer(gateway: Any) -> None:
    """Of a session that the caller's run starts."""
    queue = getattr(getattr(gateway, "_gateway_client", None), "finalizer_deque", None)
    if queue is not None:
        _finalized.append((queue, copy_context()))


def silence_accumulators(spark_context: Any) -> None:
    """The server has a thread of its own, which knows no run. Its run is that of the thread that starts the session."""
    server = getattr(spark_context, "_accumulatorServer", None)
    if server is None:
        return
    run, print_error = copy_context(), server.handle_error

    def handle_error(request: object, address: object) -> None:
        if not run.copy().run(given_up):
            print_error(request, address)

    server.handle_error = handle_error
