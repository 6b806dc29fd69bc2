"""Leveling: neighbouring small extents become one, so that a log of many small writes is not read in many small requests.

No record changes: bytes are copied, but for dead records, which are left out; lists of keys become one. A compaction that runs
meanwhile is not disturbed: the commit checks the epoch without raising it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headstone.lake.commits import Extent, Partition, oldest
from headstone.lake.dead import is_live
from headstone.lake.ingest import EXTENT_BYTES
from headstone.lake.keyindex import KeyList, joined
from headstone.lake.lake import Lake
from headstone.lake.objects import read_dead, read_keys, read_live, writing_object
from headstone.lake.rows import TopicPartition
from headstone.lake.scheduling import dirty_spans
from headstone.lake.spans import SPREAD_MAX, Span, overlap

SMALL = 0.5
"""Of the size wanted: what is larger is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leveled:
    at: TopicPartition
    extents_before: int
    extents_after: int
    extents_purged: int
    """Rewritten only because some of their records are dead."""
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
        fits = (
            _size(run) + extent.length <= extent_bytes
            and extent.span.end - (run or [extent])[0].span.start <= SPREAD_MAX
        )
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
    lake: Lake, at: TopicPartition, *, clock: Callable[[], int], extent_bytes: int = EXTENT_BYTES, purge: bool = False
) -> Leveled:
    """One commit for each new extent; CommitRefused if a compaction came in between, and what was done before stays.

    `purge`: extents with dead records are written again without them, merged or not."""
    partition = lake.metastore.partition(at)
    runs = runs_to_merge(partition, extent_bytes=extent_bytes)
    merged = {extent.span for run in runs for extent in run}
    purged = [[extent] for extent in partition.extents if purge and extent.dead and extent.span not in merged]
    written = 0
    for run in (*runs, *purged):
        (object_id,) = lake.metastore.register(1, now_ms=clock())
        with writing_object(lake.store, object_id) as writer:
            chunks = (read_live(lake.store, extent) for extent in run if extent.length)
            made = writer.add(
                at.topic, at.number, Span(run[0].span.start, run[-1].span.end), chunks,
                records=sum(extent.records for extent in run),
                max_timestamp_ms=max(extent.max_timestamp_ms for extent in run),
                oldest_timestamp_ms=oldest(extent.oldest_timestamp_ms for extent in run), keys=_keys(lake, run),
            )  # fmt: skip
        lake.metastore.level(at, partition.compaction_epoch, [made], {object_id: writer.size}, now_ms=clock)
        written += writer.size
    before, merged_away = len(partition.extents), sum(len(run) - 1 for run in runs)
    return Leveled(
        at=at, extents_before=before, extents_after=before - merged_away, extents_purged=len(purged), bytes_written=written
    )  # fmt: skip


def _keys(lake: Lake, run: Sequence[Extent]) -> KeyList | None:
    if any(extent.keys < 0 for extent in run):
        return None
    lists = ((read_keys(lake.store, extent), read_dead(lake.store, extent)) for extent in run if extent.length)
    return joined(keys.only(is_live(keys.offsets, dead)) for keys, dead in lists)
