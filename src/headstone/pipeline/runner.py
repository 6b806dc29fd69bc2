"""On whose behalf a call runs: which engine does its work, and where its progress, remarks and warnings go.

The command line has one of options (`cli/engines.py`), the library one of the caller's session (`api/running.py`), and work
that nobody looks at the one here. Decides nothing about the work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import BYTES, ProgressLine, Unit


class Runner(Protocol):
    def engine(self, size: int) -> AbstractContextManager[Engine]:
        """For work on so many bytes; 0: nobody has looked yet."""
        ...

    def progress(self, unit: Unit = BYTES) -> ProgressLine: ...

    def tell(self, text: str) -> None:
        """A remark."""
        ...

    def warn(self, text: str) -> None: ...


class SilentRunner:
    """Of work that goes on beside other work, as a guard's: threads of this process do it, and nobody looks."""

    def engine(self, size: int) -> AbstractContextManager[Engine]:
        del size
        return nullcontext(InProcess())

    def progress(self, unit: Unit = BYTES) -> ProgressLine:
        return ProgressLine(enabled=False, unit=unit)

    def tell(self, text: str) -> None:
        del text

    def warn(self, text: str) -> None:
        del text
