"""`headstone guard` that suspends itself (SIGSTOP) once, when it is about to release: between its look and its decision, or
between its decision and its action. The process that started it wakes it (SIGCONT).

    python -m testbed.stopping_guard deciding|acting guard --bootstrap …
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from headstone.cli.main import main
from headstone.coordination.guard_values import Decision, Release
from headstone.guard.acting import actions
from headstone.guard.loop import watcher

DECIDING, ACTING = "deciding", "acting"


class Once:
    def __init__(self) -> None:
        self._done = False

    def stop(self) -> None:
        if not self._done:
            self._done = True
            # To this thread: a signal to the process may be taken by another thread, while this one continues and releases in
            # time.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def before_deciding(decide: Callable[..., Decision], once: Once) -> Callable[..., Decision]:
    """The decision made after the suspension still uses the look and the time from before it."""

    def decides(*arguments: Any) -> Decision:
        decision = decide(*arguments)
        if any(isinstance(action, Release) for action in decision.actions):
            once.stop()
        return decision

    return decides


def before_acting(carry_out: Callable[..., Any], once: Once) -> Callable[..., Any]:
    def carries_out(action: object, *arguments: Any, **how: Any) -> Any:
        if isinstance(action, Release):
            once.stop()
        return carry_out(action, *arguments, **how)

    return carries_out


if __name__ == "__main__":
    stops = Once()
    if sys.argv[1] == DECIDING:
        watcher.decide = before_deciding(watcher.decide, stops)  # type: ignore[attr-defined]
    else:
        actions.carry_out = before_acting(actions.carry_out, stops)  # type: ignore[attr-defined]
    sys.exit(main(sys.argv[2:]))
