"""The time for a guard that looks, decides and acts: at least as much as has really passed since its look began.

A process may be suspended anywhere, and its machine with it; the wall clock may then have stood still, or been set back. So a
second clock is read, which cannot be set and which counts the time that a machine sleeps. If both stood still, as in a virtual
machine that was paused, this cannot be noticed before the wall clock is set. Decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def clock_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Since boot, including time asleep where the system provides it."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


AGE_MS_MAX = 90_000
"""Maximum age of what was read just before a change that undoes something: as old as a guard's look may be with the usual
margins."""


def grows_old(steady: Clock = steady_ms) -> Callable[[], bool]:
    """Call before reading: the result says whether what was read is too old to base a change on."""
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
        """The wall clock, or a later time if more has really passed since the look began."""
        return max(self._clock(), self._began_ms + self._steady() - self._began_steady_ms)
