"""What one compaction of a partition will do: which keys decide, which tombstones are due, how it is cut into tasks.

Decided by the metastore's data alone, except for a bounded map, whose reach is counted in lists of keys. The tasks
(`extent_work`) find out what becomes of each extent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headstone.errors import UsageError
from headstone.lake.defaults import DEAD_SHARE_MAX
from headstone.lake.format.extents import Extent
from headstone.lake.format.keyindex import NO_HALVES, section_bytes, union
from headstone.lake.format.spans import Span, Spans, normal, touching
from headstone.lake.jobs.extent_work import ExtentShare, Lists, Pass, Run, SplitExtents, records_of
from headstone.lake.jobs.job import RENEW_MS
from headstone.lake.metastore.commits import Partition
from headstone.lake.metastore.scheduling import compactable, due_tombstones, not_compacted
from headstone.pipeline.machine import AUTO, SHUFFLE, TASK_MEMORY_BYTES
from headstone.pipeline.splitting import takes_whole
from headstone.retention.keys import table_bytes
from headstone.retention.policy import NO_LIMIT

COMMIT_BYTES = 64 << 20
"""Bytes of extents whose changes go into one object and one commit, oldest first."""
SHARE_BYTES = 512 << 20
"""Bytes of extents per task, if several tasks each read the deciding keys."""
BROADCAST_BYTES_MAX = 32 << 20
"""Bytes of lists of deciding keys: up to this, every task of a partition reads them; more go through the buckets."""
LIST_BYTES = 26
"""Memory for an entry of a list: digest, offset, tombstone, state."""
SLOT_BYTES, SLOT_LOAD = 40, 0.95
"""As Redpanda's key-offset map: a SHA-256 and an offset, never fuller than this."""


def map_keys_max(map_bytes: int) -> int:
    """How many keys a map of this many bytes holds: 3,187,671 for 128 MiB."""
    return math.ceil(map_bytes // SLOT_BYTES * SLOT_LOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What may differ from job to job. `held_from` is added to the holds that the metastore knows."""

    held_from: int = NO_LIMIT
    map_bytes: int | None = None
    """None: any number of keys in one pass."""
    dead_share_max: float = DEAD_SHARE_MAX
    """An extent with a larger dead share is rewritten; 0: nothing is marked."""
    commit_bytes: int = COMMIT_BYTES
    parallelism: int | None = None
    """Concurrent tasks; None: as many as the engine has."""
    task_memory_bytes: int = TASK_MEMORY_BYTES
    path: str = AUTO
    renew_ms: int = RENEW_MS
    """How often the job's registered objects are registered anew."""

    def __post_init__(self) -> None:
        """A map without room for one key would find nothing to do in a dirty log, for ever."""
        if self.map_bytes is not None and map_keys_max(self.map_bytes) < 1:
            raise UsageError(f"a map of {self.map_bytes} bytes cannot hold a key; use {SLOT_BYTES} bytes or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    index: Span | None
    """Keys of records in it decide; everything below its end is processed. None: only tombstones are due."""
    due: Spans
    extents: tuple[Extent, ...]
    """Extents that may change: they have bytes, and lie below the end of the index or hold tombstones that are due."""

    @property
    def tombstones_below(self) -> int:
        return self.due[-1].end if self.due else 0

    @property
    def indexed(self) -> tuple[Extent, ...]:
        return () if self.index is None else overlapping(self.extents, [self.index])

    @property
    def size(self) -> int:
        return sum(extent.length for extent in self.extents)


def plan_job(
    partition: Partition, settings: Mapping[str, object], *, now_ms: int, held_from: int = NO_LIMIT
) -> Plan | None:
    """None if there is nothing to do."""
    if not_compacted(settings):
        return None
    dirty = compactable(partition, settings, now_ms=now_ms)
    due = due_tombstones(partition, settings, now_ms=now_ms, held_from=held_from)
    if not dirty and not due:
        return None
    return made(partition, Span(dirty[0].start, dirty[-1].end) if dirty else None, due)


def made(partition: Partition, index: Span | None, due: Spans) -> Plan:
    end = index.end if index is not None else 0
    extents = tuple(
        extent
        for extent in partition.extents
        if extent.length and (extent.span.start < end or touching(due, extent.span))
    )
    return Plan(index=index, due=due, extents=extents)


def overlapping(extents: Sequence[Extent], spans: Sequence[Span]) -> tuple[Extent, ...]:
    wanted = normal(spans)
    return tuple(extent for extent in extents if touching(wanted, extent.span))


def bounded(partition: Partition, plan: Plan, newest: Span, keys_max: int, lists: Lists) -> Plan:
    """As far down from the end of the newest dirty range as the map reaches: whole extents, or a part of one."""
    keys, start = NO_HALVES, newest.end
    extents = overlapping(partition.extents, [newest])
    for extent in reversed(extents):
        halves = lists.keys(extent).digests[:, 0]
        more = union([keys, halves])
        if more.size > keys_max:
            break
        keys, start = more, max(extent.span.start, newest.start)
    if start < newest.end:
        return made(partition, Span(start, newest.end), plan.due)
    start = max(extents[-1].span.start, newest.start)
    return made(partition, Span(start, _full(extents[-1], start, newest.end, keys_max, lists)), plan.due)


def _full(extent: Extent, start: int, end: int, keys_max: int, lists: Lists) -> int:
    """The offset of the first key for which a map that begins at `start` has no room."""
    keys = lists.keys(extent)
    inside = (keys.offsets >= start) & (keys.offsets < end)
    offsets, halves = keys.offsets[inside], keys.digests[inside, 0]
    fresh = np.zeros(halves.size, dtype=np.int64)
    fresh[np.unique(halves, return_index=True)[1]] = 1
    beyond = np.flatnonzero(np.cumsum(fresh) > keys_max)
    return int(offsets[beyond[0]]) if beyond.size else end


def runs_of(extents: Sequence[Extent], commit_bytes: int) -> list[tuple[Extent, ...]]:
    """By their present bytes: what is left of them makes an object that is no larger."""
    runs: list[list[Extent]] = []
    room = 0
    for extent in extents:
        if not runs or extent.length > room:
            runs.append([])
            room = commit_bytes
        runs[-1].append(extent)
        room -= extent.length
    return [tuple(run) for run in runs]


def numbered(runs: Sequence[tuple[Extent, ...]], object_ids: Sequence[str]) -> tuple[Run, ...]:
    """Numbers records across all runs."""
    made_of, record = [], 0
    for extents, object_id in zip(runs, object_ids, strict=True):
        made_of.append(Run(object_id=object_id, extents=extents, record=record))
        record += made_of[-1].records
    return tuple(made_of)


def tasks_of(
    shared: Pass, plan: Plan, runs: tuple[Run, ...], bytes_per_task: float, settings: JobSettings
) -> list[ExtentShare] | SplitExtents:
    """One task for all of it, several that read the same index, or a task per run behind the buckets.

    `bytes_per_task`: if the whole job were cut evenly. A much larger partition would hold up the others as one task."""
    indexed = plan.indexed
    memory = table_bytes(sum(map(records_of, indexed))) + LIST_BYTES * sum(map(records_of, plan.extents))
    if takes_whole(
        settings.path,
        memory=memory,
        memory_max=settings.task_memory_bytes,
        size=plan.size,
        bytes_per_task=bytes_per_task,
    ):
        return [ExtentShare(common=shared, runs=runs, indexed=indexed)]
    list_bytes = sum(section_bytes(extent.keys) for extent in indexed)
    if settings.path == SHUFFLE or list_bytes > BROADCAST_BYTES_MAX:
        return SplitExtents(common=shared, runs=runs)
    return [ExtentShare(common=shared, runs=some, indexed=indexed) for some in _shares(runs)]


def _shares(runs: Sequence[Run]) -> list[tuple[Run, ...]]:
    shares: list[list[Run]] = []
    room = 0
    for run in runs:
        size = sum(extent.length for extent in run.extents)
        if not shares or size > room:
            shares.append([])
            room = SHARE_BYTES
        shares[-1].append(run)
        room -= size
    return [tuple(share) for share in shares]
