"""The caller's side of a run: which engine does its work, and where its progress, remarks and warnings go.

The command line makes one from options (`cli/engines.py`), the library from the caller's session (`api/running.py`), and
unattended work uses the one here. Decides nothing about the work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import BYTES, CountUnit, ProgressLine


class Runner(Protocol):
    """What a call needs from its caller: an engine, a progress line, and places for remarks and warnings."""

    def engine(self, size: int) -> AbstractContextManager[Engine]:
        """For work on this many bytes; 0 if unknown."""
        ...

    def progress(self, unit: CountUnit = BYTES) -> ProgressLine: ...

    def tell(self, text: str) -> None:
        """A remark."""
        ...

    def warn(self, text: str) -> None: ...


class SilentRunner:
    """For work that runs beside other work, such as a guard's: on threads of this process, without output."""

    def engine(self, size: int) -> AbstractContextManager[Engine]:
        del size
        return nullcontext(InProcess())

    def progress(self, unit: CountUnit = BYTES) -> ProgressLine:
        return ProgressLine(enabled=False, unit=unit)

    def tell(self, text: str) -> None:
        del text

    def warn(self, text: str) -> None:
        del text
