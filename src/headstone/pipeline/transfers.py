"""What a task does with files that are not rewritten: checks every batch of a segment, and copies the file if needed.

Headers decide even where nothing is rewritten, so checksums must be right there too. Within a store, the store copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstone.log.reading import SegmentFile, verify_segment
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import run_near_data
from headstone.pipeline.progress import Meter
from headstone.storage.places import ObjectPlace, Place
from headstone.storage.stores import is_remote
from headstone.storage.uploads import copy_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """`check`: a segment whose batches must be right. Then `source` is copied to `target`, if both are given, up to `size` if
    that is known."""

    check: SegmentFile | None = None
    source: Place | None = None
    target: Place | None = None
    size: int | None = None

    @property
    def is_far(self) -> bool:
        ends = (self.source, self.target)
        return any(isinstance(end, ObjectPlace) for end in ends) or (
            self.check is not None and is_remote(self.check.path)
        )


def transfer(task: Transfer, meter: Meter) -> None:
    """The body of a task."""
    if task.check is not None:
        verify_segment(task.check)
        meter.add(task.check.size, 0)
    if task.source is not None and task.target is not None:
        copy_whole(task.source, task.target, size=task.size)


def run_transfers(tasks: Sequence[Transfer], engine: Engine) -> list[Exception | None]:
    """The errors, in the order of the tasks."""
    return run_near_data(transfer, tasks, engine)
