"""Places where a test may kill the process, to prove that every step of a swap can be the last one.

HEADSTONE_FAILPOINT=N kills the process with SIGKILL just before its Nth effect on a log directory. Without the variable a
failpoint costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "HEADSTONE_FAILPOINT"
_reached = 0


def reach(name: str) -> None:
    """Called just before the effect that `name` describes."""
    last = os.environ.get(VARIABLE)
    if last is None:
        return
    global _reached  # noqa: PLW0603
    _reached += 1
    if _reached == int(last):
        os.write(2, f"failpoint {_reached}: {name}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
