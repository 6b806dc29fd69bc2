"""What a partition's extents come to: the numbers on its row, by which it is scheduled and shown without a look at its extents.

Pure. Every commit changes them by what it changes (`changes`); `checking` counts them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from headstone.lake.format.extents import Extent, oldest
from headstone.lake.format.spans import Spans, touching


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Named as the columns of the partition's row. An extent is dirty if any of its offsets is."""

    extents: int = 0
    bytes: int = 0
    dirty_bytes: int = 0
    records: int = 0
    dead_records: int = 0
    dead_bytes: int = 0
    """Approximate bytes of dead records: an extent's bytes times the share of its records that are dead."""
    oldest_dirty_ms: int = -1
    """For max.compaction.lag.ms: the oldest of the dirty extents' `oldest_timestamp_ms`; -1 if none has a timestamp."""
    newest_dirty_ms: int = -1
    """For min.compaction.lag.ms: the newest timestamp of a dirty extent."""
    dead_since_ms: int = -1
    """When the oldest dead record was marked; -1 if there is none."""

    @property
    def clean_bytes(self) -> int:
        return self.bytes - self.dirty_bytes


COUNTS = ("extents", "bytes", "dirty_bytes", "records", "dead_records", "dead_bytes")
"""Those that change by a difference. The others are extremes, and have to be queried from the extents that are left."""
COLUMNS = tuple(field.name for field in fields(Totals))


def columns_of(totals: Totals) -> dict[str, int]:
    return {name: getattr(totals, name) for name in COLUMNS}


def dirty_among(extents: Iterable[Extent], dirty: Spans) -> list[Extent]:
    return [extent for extent in extents if touching(dirty, extent.span)]


def totals_of(extents: Iterable[Extent], dirty: Spans) -> Totals:
    extents = list(extents)
    soiled = dirty_among(extents, dirty)
    return Totals(
        extents=len(extents),
        bytes=sum(extent.length for extent in extents),
        dirty_bytes=sum(extent.length for extent in soiled),
        records=sum(extent.records for extent in extents),
        dead_records=sum(extent.dead for extent in extents),
        dead_bytes=sum(dead_bytes_of(extent) for extent in extents),
        oldest_dirty_ms=oldest(extent.oldest_timestamp_ms for extent in soiled),
        newest_dirty_ms=max((extent.max_timestamp_ms for extent in soiled), default=-1),
        dead_since_ms=min((extent.dead_since_ms for extent in extents if extent.dead), default=-1),
    )


def dead_bytes_of(extent: Extent) -> int:
    return extent.length * extent.dead // (extent.records + extent.dead) if extent.dead else 0


def added(before: Totals, more: Totals) -> Totals:
    """With more extents at the end, none of which has dead records."""
    counts = {name: getattr(before, name) + getattr(more, name) for name in COUNTS}
    return replace(
        before, **counts, oldest_dirty_ms=oldest([before.oldest_dirty_ms, more.oldest_dirty_ms]),
        newest_dirty_ms=max(before.newest_dirty_ms, more.newest_dirty_ms),
    )  # fmt: skip


def changed(before: Totals, gone: Totals, come: Totals) -> dict[str, int]:
    """The counts after `come` took the place of `gone`."""
    return {name: getattr(before, name) - getattr(gone, name) + getattr(come, name) for name in COUNTS}
