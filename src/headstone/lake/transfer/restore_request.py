"""What the caller of a restore may ask for, and what it works with. Two values, which the run and the restore both take.

Owns their bounds and defaults. How records travel is in `restore`, what a command does with them in `restore_run`.
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
    """Read the topic back and compare it."""
    copies: int = COPIES
    map_file: Path | None = None
    """Records the new offset of every record, and is needed to continue."""
    groups: tuple[str, ...] = ()
    """Groups whose offsets are set in the restored topic."""

    def __post_init__(self) -> None:
        several("groups", self.groups)
        expect_all(self, {"as_of_ms": MOMENT_MS, "copies": REPLICATION_FACTOR})

    @property
    def mapped(self) -> bool:
        """Whether new offsets must be recorded."""
        return bool(self.groups) or self.map_file is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMeans:
    """What a restore works with."""

    engine: Engine
    board: Board | None
    stop: Stop
    """Ends it with Unfinished; with a map file the next run continues there."""
