"""An extent: record batches of one partition in one object, and where in that object they and their lists are.

The unit that commits replace, jobs read and write, and readers follow. Values only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headstone.lake.format.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Record batches of one partition in one object. The span is logical: it may hold no record at all (length 0)."""

    span: Span
    object_id: str
    position: int
    length: int
    records: int
    max_timestamp_ms: int
    checksum: int
    """CRC-32C of the bytes."""
    keys: int = -1
    """Number of records with a key, which are listed behind the bytes (`keyindex`); -1 if there is no list."""
    dead: int = 0
    """Number of dead records: in the bytes, but not counted in `records` (see `dead`)."""
    dead_object: str | None = None
    """The object with their list."""
    dead_position: int = 0
    halves_checksum: int = 0
    """CRC-32C of the first part of the list of keys, and of the second: a list of another extent is refused."""
    rest_checksum: int = 0
    dead_checksum: int = 0
    """CRC-32C of the list of dead records."""
    oldest_timestamp_ms: int = -1
    """For max.compaction.lag.ms; -1 if no record has a timestamp. Taken from the newest record of each of Kafka's batches, as
    Kafka counts it. Streamed records are not in Kafka's batches, so there each record counts. No rewrite makes it younger."""
    dead_since_ms: int = field(default=-1, compare=False)
    """When the first dead record was marked; -1 if none is. The commit sets it, not the job that proposes the marks."""


def oldest(timestamps_ms: Iterable[int]) -> int:
    """Of batches or extents; -1 if none has a timestamp. Those with none, or with 0, count as old as their neighbours."""
    return min((int(moment) for moment in timestamps_ms if moment > 0), default=-1)
