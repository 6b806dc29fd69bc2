"""The few error kinds, named by what the caller must do next.

Every message says what was found, where, and what to do. The command line turns each kind into its exit code; nothing
else in the house decides about exit codes.
"""

from __future__ import annotations

from pathlib import Path


class HeadstoneError(Exception):
    """Something the world did; `exit_code` is what the command line answers with."""

    exit_code = 3


class UsageError(HeadstoneError):
    """Fix the command or the directory it names, then run it again."""

    exit_code = 2


class CorruptLog(HeadstoneError):
    """The input is not a log that can be read whole: nothing was written, somebody has to look at the file."""

    exit_code = 2

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

    exit_code = 3


class Spoilt(HeadstoneError):
    """What was written so far can't be gone on with: delete it, then begin again."""

    exit_code = 3


def _corrupt_log(file: str, position: int, offset: int, problem: str, advice: str) -> CorruptLog:
    return CorruptLog(file=file, position=position, offset=offset, problem=problem, advice=advice)
