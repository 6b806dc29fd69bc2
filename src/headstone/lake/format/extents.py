"""An extent: record batches of one partition in one object, and where in it they and their lists are.

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
    """Records with a key, listed behind the bytes (`keyindex`); -1 if nobody has listed them."""
    dead: int = 0
    """Dead records: in the bytes, but not among `records` (see `dead`)."""
    dead_object: str | None = None
    """Where they are listed."""
    dead_position: int = 0
    halves_checksum: int = 0
    """CRC-32C of the first part of the list of keys, and of its second one: a list that is another extent's is refused."""
    rest_checksum: int = 0
    dead_checksum: int = 0
    """CRC-32C of the list of dead records."""
    oldest_timestamp_ms: int = -1
    """For max.compaction.lag.ms; -1 if none has a timestamp. By the newest record of each of Kafka's batches, as Kafka counts
    it; of what was streamed, whose batches are not Kafka's, by each record. No rewrite makes it younger."""
    dead_since_ms: int = field(default=-1, compare=False)
    """When the first of the dead was marked; -1 if none is. A commit says it, whatever the job that proposes the marks does."""


def oldest(timestamps_ms: Iterable[int]) -> int:
    """Of batches or extents; -1 if none has a timestamp. Those without one, or with 0, are as old as their neighbours."""
    return min((int(moment) for moment in timestamps_ms if moment > 0), default=-1)
