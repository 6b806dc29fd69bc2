"""Leveling: neighbouring small extents become one, so that a log of many small writes is not read in many small requests.

Nothing is removed and no record changes: bytes are copied, lists of keys united. A compaction that runs meanwhile is not
disturbed: the commit checks the epoch without raising it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headstone.lake.commits import Extent, Partition
from headstone.lake.ingest import EXTENT_BYTES
from headstone.lake.keyindex import Keys, union
from headstone.lake.lake import Lake
from headstone.lake.metastore import TopicPartition
from headstone.lake.objects import read_extent, read_keys, writing_object
from headstone.lake.scheduling import dirty_spans
from headstone.lake.spans import Span, overlap

SMALL = 0.5
"""Of the size wanted: what is larger is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leveled:
    at: TopicPartition
    extents_before: int
    extents_after: int
    bytes_written: int


def runs_to_merge(partition: Partition, *, extent_bytes: int = EXTENT_BYTES) -> list[list[Extent]]:
    """Two or more neighbours that are small, up to the size wanted together, all clean or all dirty.

    The last run waits until it makes an extent of a healthy size, or every write would copy it once more."""
    dirty = dirty_spans(partition)
    found: list[list[Extent]] = []
    run: list[Extent] = []
    for extent in partition.extents:
        small = extent.length < extent_bytes * SMALL
        same = not run or bool(overlap([run[-1].span], dirty)) == bool(overlap([extent.span], dirty))
        fits = _size(run) + extent.length <= extent_bytes
        if not (small and same and fits):
            found.append(run)
            run = []
        if small:
            run.append(extent)
    if _size(run) >= extent_bytes * SMALL:
        found.append(run)
    return [run for run in found if len(run) > 1]


def _size(extents: Sequence[Extent]) -> int:
    return sum(extent.length for extent in extents)


def level_partition(
    lake: Lake, at: TopicPartition, *, clock: Callable[[], int], extent_bytes: int = EXTENT_BYTES
) -> Leveled:
    """One commit for each merged extent; CommitRefused if a compaction came in between, and what was merged before stays."""
    partition = lake.metastore.partition(at)
    runs = runs_to_merge(partition, extent_bytes=extent_bytes)
    for run in runs:
        (object_id,) = lake.metastore.register(1, now_ms=clock())
        with writing_object(lake.store, object_id) as writer:
            chunks = (read_extent(lake.store, extent) for extent in run if extent.length)
            merged = writer.add(
                at.topic, at.number, Span(run[0].span.start, run[-1].span.end), chunks,
                records=sum(extent.records for extent in run),
                max_timestamp_ms=max(extent.max_timestamp_ms for extent in run), keys=_keys(lake, run),
            )  # fmt: skip
        lake.metastore.level(at, partition.compaction_epoch, [merged], {object_id: writer.size}, now_ms=clock)
    before, merged_away = len(partition.extents), sum(len(run) - 1 for run in runs)
    return Leveled(
        at=at, extents_before=before, extents_after=before - merged_away, bytes_written=sum(_size(run) for run in runs)
    )


def _keys(lake: Lake, run: Sequence[Extent]) -> Keys | None:
    if any(extent.keys < 0 for extent in run):
        return None
    return union(read_keys(lake.store, extent) for extent in run)
