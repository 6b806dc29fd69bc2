"""The few error kinds, named by what the caller must do next.

Every message says what was found, where, and what to do. The command line turns each kind into its exit code. The numbers are
stated here, and nothing else decides about exit codes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

DONE, FINDINGS, USAGE, UNFINISHED = 0, 1, 2, 3


class HeadstoneError(Exception):
    """Something outside our code went wrong; `exit_code` is the command line's."""

    exit_code = UNFINISHED


class UsageError(HeadstoneError):
    """Fix the command or the directory it names, then run it again."""

    exit_code = USAGE


class CorruptLog(HeadstoneError):
    """The input is not a log that can be read completely: nothing was written, and a person has to look at the file."""

    exit_code = USAGE

    def __init__(self, *, file: str | Path, position: int, offset: int, problem: str, advice: str = "") -> None:
        super().__init__(file, position, offset, problem, advice)
        self.file = str(file)
        self.position = position
        self.offset = offset
        self.problem = problem
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        return _corrupt_log, (self.file, self.position, self.offset, self.problem, self.advice)

    def __str__(self) -> str:
        where = f"{self.file}, position {self.position}, offset {self.offset}"
        return f"{where}: {self.problem}" + (f"; {self.advice}" if self.advice else "")


class Unfinished(HeadstoneError):
    """Could not finish (disk full, Spark gone, interrupted): the old log is as it was; run the same command again."""

    exit_code = UNFINISHED


class PartitionsFailed(Unfinished):
    """Some partitions were processed and stay so, others were not: repair what is named, then make the same call again."""

    def __init__(
        self, errors: Mapping[str, Exception], *, done: object, text: Callable[[Exception], str] = str
    ) -> None:  # fmt: skip
        """`text`: the message for each error."""
        super().__init__("; ".join(f"{partition}: {text(error)}" for partition, error in errors.items()))
        self.errors = dict(errors)
        """By partition."""
        self.done = done
        """What the call would have returned for the others: `Compaction` for `compact`, for example."""


class NotResumable(HeadstoneError):
    """What was written so far can't be continued: delete it, then start over."""

    exit_code = UNFINISHED


def not_installed(what: str, extra: str, *, instead: str = "") -> UsageError:
    """No package index has Headstone: its extras come from the same checkout."""
    advice = f"in a checkout of Headstone: {sys.executable} -m pip install '.[{extra}]'{instead and ', or ' + instead}"
    return UsageError(f"{what} not installed; {advice}")


def _corrupt_log(file: str, position: int, offset: int, problem: str, advice: str) -> CorruptLog:
    return CorruptLog(file=file, position=position, offset=offset, problem=problem, advice=advice)
