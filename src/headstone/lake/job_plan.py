"""What one compaction of a partition will do: which keys decide, which extents are read, where records are marked dead unread.

Decided by the metastore and by lists of keys, before any batch is read. A clean extent that no new key concerns is left
alone; one that loses few records gets them marked; the others are fetched, for the shared pipeline to go over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from headstone.errors import UsageError
from headstone.lake.commits import Extent, Partition
from headstone.lake.dead import DEAD_SHARE_MAX, dead_bytes
from headstone.lake.holds import Holds
from headstone.lake.keyindex import (
    NO_HALVES,
    Halves,
    KeyList,
    NewerKeys,
    Offsets,
    any_common,
    halves_bytes,
    joined,
    rest_bytes,
    union,
)
from headstone.lake.lake import Lake
from headstone.lake.objects import read_dead, read_halves, read_keys
from headstone.lake.scheduling import compactable, due_tombstones, not_compacted
from headstone.lake.spans import Span, Spans, normal, touching
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT, Policy, kafka_rules
from headstone.retention.settings import setting_of
from headstone.storage.stores import Store

UNMERGED_SEGMENT_BYTES = 1
"""No two extents become one: each keeps its span, and those that lose nothing are recognised."""
COMMIT_BYTES = 64 << 20
"""A job that writes more commits in parts, oldest first; each part is an object."""
FETCHES_AT_ONCE = 4
SLOT_BYTES, SLOT_LOAD = 40, 0.95
"""Of Redpanda's key-offset map: a SHA-256 and an offset, never fuller than this."""


def map_keys_max(map_bytes: int) -> int:
    """How many keys a map of so many bytes takes: 3,187,671 for 128 MiB."""
    return math.ceil(map_bytes // SLOT_BYTES * SLOT_LOAD)


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """An extent and all of its records that are dead then, the old ones included."""

    extent: Extent
    dead: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What becomes of the extents, and the bytes that were read to know."""

    fetched: tuple[Extent, ...]
    marks: tuple[Mark, ...] = ()
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    index: Span
    """Keys of records in it decide; everything below its end is gone over."""
    due: Spans
    policy: Policy
    choice: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What may differ from job to job. `held_from` is added to the holds that the metastore knows."""

    held_from: int = NO_LIMIT
    map_bytes: int | None = None
    """None: any number of keys in one pass, on the shared pipeline."""
    dead_share_max: float = DEAD_SHARE_MAX
    """An extent of which more is dead is rewritten; 0: nothing is marked."""
    commit_bytes: int = COMMIT_BYTES
    clock: Callable[[], int] | None = None
    """For what happens during the job: uploads are registered and extents replaced then. None: all when it began."""
    check: Callable[[], None] = lambda: None
    """Called at every step; what it raises gives the job up."""
    before_commit: Callable[[], None] = lambda: None
    """Called when only a commit is left to do; what it raises gives the job up."""
    tell: Callable[[str], None] = lambda text: None
    progress: bool = False
    """Whether somebody watches."""

    def __post_init__(self) -> None:
        """A map without room for one key would find nothing to do in a log that is all dirt, for ever."""
        if self.map_bytes is not None and map_keys_max(self.map_bytes) < 1:
            raise UsageError(f"a map of {self.map_bytes} bytes takes no key: give it {SLOT_BYTES} bytes or more")


def plan_job(
    lake: Lake, topic_partition: TopicPartition, partition: Partition, now_ms: int, options: JobOptions
) -> Plan | None:
    """None if there is nothing to do."""
    settings = lake.metastore.topics()[topic_partition.topic]
    if not_compacted(settings):
        return None
    held_from = min(options.held_from, Holds(lake.metastore).held_from(topic_partition, now_ms=now_ms))
    dirty = compactable(partition, settings, now_ms=now_ms)
    due = due_tombstones(partition, settings, now_ms=now_ms, held_from=held_from)
    if not dirty and not due:
        return None
    keys_max = None
    if not dirty:  # nothing is dirty, so the pass has to be told to go over the clean part again
        index = Span(due[0].start, due[-1].end)
        choice = Choice(fetched=_overlapping(partition, [index]))
    elif options.map_bytes is None:
        index = Span(dirty[0].start, dirty[-1].end)
        choice = _chosen(lake, partition, index, due, {}, options.dead_share_max)
    else:
        lists: dict[Span, Halves] = {}
        index, keys_max = _bounded(lake, partition, dirty[-1], map_keys_max(options.map_bytes), lists)
        # A map that may fill up inside an extent: which keys will have decided is known too late for marks.
        share_max = options.dead_share_max if keys_max is None else 0.0
        choice = _chosen(lake, partition, index, due, lists, share_max)
        counted = sum(halves_bytes(halves.size) for halves in lists.values())
        choice = replace(choice, bytes_read=choice.bytes_read + counted)
    policy = Policy(
        now_ms=now_ms, delete_retention_ms=setting_of(settings, "delete.retention.ms"),
        segment_bytes=UNMERGED_SEGMENT_BYTES, index_keys_max=keys_max,
    )  # fmt: skip
    # Tombstones go below this and nowhere else: delete horizons in batches from Kafka are not the lake's.
    policy = replace(kafka_rules(policy), tombstones_below=due[-1].end if due else 0)
    return Plan(index=index, due=due, policy=policy, choice=choice)


def _overlapping(partition: Partition, spans: Sequence[Span]) -> tuple[Extent, ...]:
    wanted = normal(spans)
    return tuple(extent for extent in partition.extents if touching(wanted, extent.span))


def _bounded(
    lake: Lake, partition: Partition, newest: Span, keys_max: int, lists: dict[Span, Halves]
) -> tuple[Span, int | None]:
    """How far down from the end of the newest dirty range the map reaches, whole extents; at least a part of one.

    Extents without a list of keys count as all records of theirs, each with a key of its own. `lists` gets what was read."""
    keys, start = NO_HALVES, newest.end
    for extent in reversed(_overlapping(partition, [newest])):
        if extent.keys < 0 and extent.records > keys_max - keys.size:
            break
        if extent.keys >= 0:
            lists[extent.span] = read_halves(lake.store, extent)
            more = union([keys, lists[extent.span]])
            if more.size > keys_max:
                break
            keys = more
        start = max(extent.span.start, newest.start)
    if start < newest.end:
        return Span(start, newest.end), None
    last = _overlapping(partition, [newest])[-1]
    return Span(max(last.span.start, newest.start), newest.end), keys_max


def _chosen(
    lake: Lake, partition: Partition, index: Span, due: Spans, counted: Mapping[Span, Halves], dead_share_max: float
) -> Choice:
    """What the pass has to read: what it indexes, where tombstones are due, and where one of those keys is.

    `counted` was read before. Of the lists below the index, a few are in memory at a time."""
    indexed = _overlapping(partition, [index])
    below = [extent for extent in partition.extents if extent.span.end <= index.start]
    if not below or any(extent.keys < 0 and extent.length for extent in indexed):
        return Choice(fetched=(*(extent for extent in below if extent.length), *indexed))
    few = 0 < sum(extent.records for extent in indexed) <= dead_share_max * sum(extent.records for extent in below)
    lists = _Lists(lake.store, counted)
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        newer = None
        if few:
            newer = NewerKeys(joined(pool.map(lists.all_keys, indexed)))
        halves = newer.halves if newer else union(pool.map(lists.halves, indexed))
        judged = list(pool.map(lambda extent: _judged(extent, due, halves, newer, lists, dead_share_max), below))
    return Choice(
        fetched=(*(extent for extent, found in zip(below, judged, strict=True) if found == FETCH), *indexed),
        marks=tuple(found for found in judged if isinstance(found, Mark)), bytes_read=sum(lists.read),
    )  # fmt: skip


LEAVE, FETCH = "leave", "fetch"


def _judged(
    extent: Extent, due: Spans, halves: Halves, newer: NewerKeys | None, lists: _Lists, dead_share_max: float
) -> Mark | str:
    """What becomes of an extent below the index whose keys are `halves`; `newer` None: none is marked."""
    if touching(due, extent.span):
        return FETCH
    if extent.keys < 0:
        return FETCH if extent.length else LEAVE
    own = lists.halves(extent)
    if not any_common(own, halves):
        return LEAVE
    if newer is None:
        return FETCH
    known, found = lists.dead(extent), newer.superseded(lists.keys(extent, own))
    dead = np.union1d(known, found)
    if dead.size == known.size:
        return LEAVE
    if dead.size > dead_share_max * (extent.records + extent.dead):
        return FETCH
    return Mark(extent, dead)


class _Lists:
    """Lists of keys and of dead records, read from the store; `read` is how much. Used by several threads."""

    def __init__(self, store: Store, known: Mapping[Span, Halves]) -> None:
        self.read: list[int] = []
        self._store = store
        self._known = known

    def halves(self, extent: Extent) -> Halves:
        if extent.span in self._known or not extent.length:
            return self._known.get(extent.span, NO_HALVES)
        self.read.append(halves_bytes(extent.keys))
        return read_halves(self._store, extent)

    def keys(self, extent: Extent, halves: Halves) -> KeyList:
        self.read.append(rest_bytes(extent.keys))
        return read_keys(self._store, extent, halves)

    def dead(self, extent: Extent) -> Offsets:
        self.read.append(dead_bytes(extent.dead, extent.span))
        return read_dead(self._store, extent)

    def all_keys(self, extent: Extent) -> KeyList:
        """Those of dead records too: all of them are newer than what lies below."""
        return self.keys(extent, self.halves(extent)) if extent.length else joined([])
