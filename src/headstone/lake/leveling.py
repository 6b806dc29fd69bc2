"""Leveling: neighbouring small extents become one, so that a log of many small writes is not read in many small requests.

No record changes: bytes are copied, but for records that nobody is shown, which are left out; lists of keys become one. A
compaction that runs meanwhile is not disturbed: whoever levels has the partition's lease, or is refused while another has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headstone.lake.commits import Extent, Partition, oldest
from headstone.lake.dead import is_live, offsets_of, without_dead
from headstone.lake.ingest import EXTENT_BYTES
from headstone.lake.keyindex import KeyList, Offsets, joined
from headstone.lake.lake import Lake
from headstone.lake.objects import ObjectWriter, Stored, object_path, read_dead, read_extent, read_keys, write_once
from headstone.lake.scheduling import dirty_spans
from headstone.lake.spans import SPREAD_MAX, Span, touching
from headstone.lake.turns import Turn
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.progress import Board, Meter
from headstone.storage.stores import Store

SMALL = 0.5
"""Of the size wanted: what is larger is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leveled:
    partition: TopicPartition
    extents_before: int
    extents_after: int
    extents_purged: int
    """Rewritten only because some of their records are dead, or below the log start."""
    bytes_written: int
    runs_left: int = 0
    """For another turn."""


def runs_to_merge(partition: Partition, *, extent_bytes: int = EXTENT_BYTES) -> list[list[Extent]]:
    """Two or more neighbours that are small, up to the size wanted together, all clean or all dirty.

    The last run waits until it makes an extent of a healthy size, or every write would copy it once more."""
    dirty = dirty_spans(partition)
    runs: list[list[Extent]] = []
    run: list[Extent] = []
    for extent in partition.extents:
        small = extent.length < extent_bytes * SMALL
        same = not run or bool(touching(dirty, run[-1].span)) == bool(touching(dirty, extent.span))
        fits = (
            _size(run) + extent.length <= extent_bytes
            and extent.span.end - (run or [extent])[0].span.start <= SPREAD_MAX
        )
        if not (small and same and fits):
            runs.append(run)
            run = []
        if small:
            run.append(extent)
    if _size(run) >= extent_bytes * SMALL:
        runs.append(run)
    return [run for run in runs if len(run) > 1]


def _size(extents: Sequence[Extent]) -> int:
    return sum(extent.length for extent in extents)


def level_partition(
    lake: Lake, topic_partition: TopicPartition, *, clock: Callable[[], int], extent_bytes: int = EXTENT_BYTES,
    purge: bool = False, engine: Engine | None = None,
    worker: str | None = None, turn: Turn | None = None, board: Board | None = None,
) -> Leveled:  # fmt: skip
    """One commit for each new extent; CommitRefused if a compaction came in between, and what was done before stays.

    Also if somebody else than `worker` has the partition's lease: its compaction would no longer fit.
    `purge`: extents with records that nobody is shown are written again without them, merged or not."""
    partition = lake.metastore.partition(topic_partition)
    runs = runs_to_merge(partition, extent_bytes=extent_bytes)
    merged = {extent.span for run in runs for extent in run}
    purged = [
        [extent]
        for extent in partition.extents
        if purge and extent.span not in merged and _purgeable(lake, partition, extent)
    ]
    everything = [*runs, *purged]
    chosen = (turn or Turn()).spend(everything)
    if board is not None:
        board.expect(sum(map(_size, chosen)))
    rewritten = rewrite_runs(
        lake, topic_partition, partition, chosen, clock=clock, engine=engine, worker=worker, board=board
    )
    before, merged_away = len(partition.extents), sum(len(run) - 1 for run in chosen)
    return Leveled(
        partition=topic_partition, extents_before=before, extents_after=before - merged_away,
        extents_purged=len(chosen[len(runs) :]), bytes_written=rewritten.bytes_written,
        runs_left=len(everything) - len(chosen),
    )  # fmt: skip


def _purgeable(lake: Lake, partition: Partition, extent: Extent) -> bool:
    below = extent.span.start < partition.start_offset and extent.length > 0
    return extent.dead > 0 or (below and _shown_to_nobody(lake.store, extent, partition.start_offset).size > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    extents: int
    bytes_written: int


def rewrite_runs(
    lake: Lake, topic_partition: TopicPartition, partition: Partition, runs: Sequence[Sequence[Extent]], *,
    clock: Callable[[], int], engine: Engine | None = None,
    worker: str | None = None, board: Board | None = None,
) -> Rewritten:  # fmt: skip
    """Each run becomes one extent in an object of its own, without what nobody is shown; a commit each, as they get done.

    Without an engine in this process."""
    object_ids = lake.metastore.register(len(runs), now_ms=clock())
    works = [
        RewriteWork(
            store=lake.store, topic_partition=topic_partition, object_id=object_id, extents=tuple(run),
            start_offset=partition.start_offset,
        )
        for run, object_id in zip(runs, object_ids, strict=True)
    ]  # fmt: skip
    written = 0
    for _, stored in (engine or InProcess()).as_they_end(rewrite, works, board):
        if isinstance(stored, Exception):
            raise stored
        sizes = {stored.object_id: stored.size}
        lake.metastore.level(
            topic_partition, partition.compaction_epoch, stored.extents, sizes, worker=worker, now_ms=clock
        )
        written += stored.size
    return Rewritten(extents=sum(map(len, runs)), bytes_written=written)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteWork:
    """Neighbours that become one extent, in an object whose id is registered."""

    store: Store
    topic_partition: TopicPartition
    object_id: str
    extents: tuple[Extent, ...]
    start_offset: int


def rewrite(work: RewriteWork, meter: Meter) -> Stored:
    """The body of a task."""

    def fill(writer: ObjectWriter) -> None:
        live = []
        for extent in work.extents:
            live.append(_live(work.store, extent, work.start_offset))
            meter.add(extent.length, extent.records)
        writer.add(
            work.topic_partition.topic, work.topic_partition.number,
            Span(work.extents[0].span.start, work.extents[-1].span.end),
            [part.data for part in live if part.data],
            records=sum(part.records for part in live),
            max_timestamp_ms=max(extent.max_timestamp_ms for extent in work.extents),
            oldest_timestamp_ms=oldest(extent.oldest_timestamp_ms for extent in work.extents),
            keys=None if any(part.keys is None for part in live) else joined(part.keys for part in live if part.keys),
        )  # fmt: skip

    return write_once(work.store, work.object_id, fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """What readers are shown of an extent."""

    data: bytes
    records: int
    keys: KeyList | None


def _live(store: Store, extent: Extent, start_offset: int) -> _Live:
    if not extent.length:
        return _Live(data=b"", records=0, keys=joined([]))
    data, hidden = read_extent(store, extent), _shown_to_nobody(store, extent, start_offset)
    keys = read_keys(store, extent) if extent.keys >= 0 else None
    return _Live(
        data=without_dead(chunk_of(object_path(extent.object_id), data), hidden) if hidden.size else data,
        records=extent.records + extent.dead - hidden.size,
        keys=keys.only(is_live(keys.offsets, hidden)) if keys else None,
    )


def _shown_to_nobody(store: Store, extent: Extent, start_offset: int) -> Offsets:
    """Offsets of its records that are dead, or below the log start."""
    dead = read_dead(store, extent)
    if extent.span.start >= start_offset:
        return dead
    offsets = offsets_of(chunk_of(object_path(extent.object_id), read_extent(store, extent)))
    return np.union1d(dead, offsets[offsets < start_offset])
