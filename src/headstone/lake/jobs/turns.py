"""A turn: how much of a long piece of upkeep may be done before others are looked at again.

Counts bytes that are written. The rest waits for another turn; no half-done work is thrown away for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headstone.lake.format.extents import Extent


@dataclass(slots=True, kw_only=True)
class Turn:
    """`bytes_left` None: no limit. `go_on` False: stopped."""

    bytes_left: int | None = None
    go_on: Callable[[], bool] = lambda: True

    @property
    def is_spent(self) -> bool:
        return self.bytes_left is not None and self.bytes_left <= 0

    @property
    def is_over(self) -> bool:
        return self.is_spent or not self.go_on()

    def spend(self, runs: Sequence[Sequence[Extent]]) -> list[Sequence[Extent]]:
        """The first of these runs, until the bytes are spent; the last may exceed what is left. None once the turn is over."""
        chosen: list[Sequence[Extent]] = []
        for run in runs:
            if self.is_over:
                break
            chosen.append(run)
            if self.bytes_left is not None:
                self.bytes_left -= max(sum(extent.length for extent in run), 1)
        return chosen
