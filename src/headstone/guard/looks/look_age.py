"""What time it is for a guard that looks, decides and acts: never less than has passed since it began to look.

A process may be suspended anywhere, and its machine with it; afterwards the wall clock may have stood still too, or be set
back. So a second clock, which nobody sets and which counts the time that a machine sleeps, is asked as well. Where both stood
still, as in a virtual machine that was paused, nobody can tell before the wall clock is set. Decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def clock_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Of this boot; with the time asleep where the system tells it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


AGE_MS_MAX = 90_000
"""Of what was read just before a change that undoes something: as old as a guard's look may be with the usual margins."""


def grows_old(steady: Clock = steady_ms) -> Callable[[], bool]:
    """Of what is read from now on: whether it has become too old to change anything by."""
    began_ms = steady()
    return lambda: steady() - began_ms > AGE_MS_MAX


class LookAge:
    def __init__(self, clock: Clock, steady: Clock = steady_ms) -> None:
        self._clock, self._steady = clock, steady
        self.begin()

    def begin(self) -> None:
        """A look begins now."""
        self._began_ms, self._began_steady_ms = self._clock(), self._steady()

    def now_ms(self) -> int:
        """By the wall clock, or later."""
        return max(self._clock(), self._began_ms + self._steady() - self._began_steady_ms)
