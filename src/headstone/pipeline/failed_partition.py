"""A partition that could not be processed while the others were: which, why, and where in it.

Verbs that work on many partitions return these beside what they have done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headstone import units
from headstone.errors import CorruptLog, HeadstoneError, Unfinished
from headstone.storage.error_texts import error_text


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPartition:
    """After `compact`, it is unchanged if in place, or not in the output."""

    partition: str
    error: Exception

    @property
    def text(self) -> str:
        """For a person: what was found, where, what to do, and no secret."""
        return error_text(self.error)

    def as_json(self) -> dict[str, Any]:
        """`file`, `position` and `offset` if the log itself is bad; offset -1 if unknown."""
        place: dict[str, Any] = {}
        if isinstance(self.error, CorruptLog):
            place = {"file": self.error.file, "position": self.error.position, "offset": self.error.offset}
        return {"partition": self.partition, "error": self.text, **place}


def failed_lines(failed: Sequence[FailedPartition], what: str, *, done: int) -> Iterator[str]:
    """For a person, after the good results. `what`: for example `compacted`; `done`: number of partitions that are."""
    yield from (f"{failure.partition}: NOT {what}: {failure.text}" for failure in failed)
    if done + len(failed) > 1 and failed:
        yield f"{done} of {units.count(done + len(failed), 'partition')} {what}, {len(failed)} not"


def worst_exit_code(failed: Sequence[FailedPartition]) -> int:
    """Bad data outranks unfinished work, because running again does not repair it."""
    codes = {
        failure.error.exit_code if isinstance(failure.error, HeadstoneError) else Unfinished.exit_code
        for failure in failed
    }
    return min(codes, default=0)
