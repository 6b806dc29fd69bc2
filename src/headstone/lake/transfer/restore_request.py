"""What the caller of a restore may say, and what its work is done with. Two values, which the run and the restore both take.

Owns their bounds and defaults; how records travel is `restore`, what a command does with them `restore_run`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headstone.bounds import MOMENT_MS, REPLICATION_FACTOR, expect_all, several
from headstone.lake.defaults import COPIES
from headstone.pipeline.engine import Engine, Stop
from headstone.pipeline.progress import Board


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    topic: str
    to_topic: str
    """Empty or new."""
    as_of_ms: int | None = None
    """None: the lake as it is now."""
    verify: bool = True
    """It is read back."""
    copies: int = COPIES
    map_file: Path | None = None
    """For the new offset of every record, and to go on by."""
    groups: tuple[str, ...] = ()
    """Whose offsets are set in the restored topic."""

    def __post_init__(self) -> None:
        several("groups", self.groups)
        expect_all(self, {"as_of_ms": MOMENT_MS, "copies": REPLICATION_FACTOR})

    @property
    def mapped(self) -> bool:
        """Somebody asks which offsets the records get."""
        return bool(self.groups) or self.map_file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the work of a restore is done with."""

    engine: Engine
    board: Board | None
    stop: Stop
    """Unfinished; with a map file the next run goes on there."""
