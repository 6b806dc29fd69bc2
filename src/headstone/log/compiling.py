"""Whether kernels are being compiled: by this process, as Numba reports, or by another one with the same cache folder.

For progress lines: the first run of a verb spends some seconds on it, once. Decides nothing.
"""

from __future__ import annotations

import threading
from pathlib import Path

from numba import config
from numba.core import event

from headstone.log.kernel_cache import folder

COMPILE = "numba:compile"


class _Running(event.Listener):  # type: ignore[misc]
    """How many kernels this process compiles at this moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def on_start(self, event: event.Event) -> None:
        self._add(1)

    def on_end(self, event: event.Event) -> None:
        self._add(-1)

    def _add(self, change: int) -> None:
        with self._lock:
            self.count += change


_running = _Running()
event.register(COMPILE, _running)


class Compiling:
    """When called: whether kernels are being compiled now, or were since it was made, including workers in other processes."""

    def __init__(self, kept: Path | None = None) -> None:
        """`kept`: where compiled kernels are; None: where this process keeps its own."""
        self._kept = kept or Path(config.CACHE_DIR or folder())
        self._before = self._count()

    @property
    def here(self) -> bool:
        """By this process, at this moment."""
        return _running.count > 0

    def __call__(self) -> bool:
        return self.here or self._before == 0 or self._count() > self._before

    def _count(self) -> int:
        return sum(1 for _ in self._kept.rglob("*.nbi"))
