"""Purging: what nobody is shown any more leaves the store, and not only the log.

Extents are written again without their dead records and without what lies below the log start. Objects hold ranges of many
partitions, and go only as a whole: where one holds a record that is no part of any log now, what is still in use moves out,
other topics' extents included. No log changes by that: the same offsets, other places. Then garbage collection deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from headstone.errors import CorruptLog
from headstone.lake.lake import Lake
from headstone.lake.leveling import rewrite_runs
from headstone.lake.objects import read_index
from headstone.lake.rows import places
from headstone.log.topic_partition import TopicPartition

INDEXES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuated:
    """Objects that held records which are no part of a log any more, and what had to move out of them."""

    objects: tuple[str, ...]
    extents: int
    bytes_written: int


def evacuate(
    lake: Lake, topics: Collection[str], *, clock: Callable[[], int], worker: str | None = None,
    working_on: Callable[[TopicPartition], AbstractContextManager[object]] = nullcontext,
) -> Evacuated:  # fmt: skip
    """Of these topics nothing is left in objects that are in use but what is in their logs. CommitRefused: run it again.

    `working_on`: has the lease of a partition for `worker` while it is changed."""
    left = objects_to_leave(lake, topics)
    extents = written = 0
    for topic_partition in lake.metastore.partitions() if left else ():
        with working_on(topic_partition):
            partition = lake.metastore.partition(topic_partition)
            runs = [[extent] for extent in partition.extents if {extent.object_id, extent.dead_object} & left]
            rewritten = rewrite_runs(lake, topic_partition, partition, runs, clock=clock, worker=worker)
        extents, written = extents + rewritten.extents, written + rewritten.bytes_written
    return Evacuated(objects=tuple(sorted(left)), extents=extents, bytes_written=written)


def objects_to_leave(lake: Lake, topics: Collection[str]) -> set[str]:
    """Objects that extents point at, and that hold batches of these topics at which none does.

    One whose index can't be read may hold anything. Lists of dead records are offsets: nobody's key or value is in them."""
    used: dict[str, set[int]] = {}
    for topic_partition in lake.metastore.partitions():
        for extent in lake.metastore.partition(topic_partition).extents:
            for object_id, place in places(topic_partition, extent):
                used.setdefault(object_id, set()).add(place.start)

    def holds_more(object_id: str) -> bool:
        try:
            ranges = read_index(lake.store, object_id)
        except CorruptLog:
            return True
        own = [found for found in ranges if found.extent.object_id == object_id and found.extent.length]
        return any(found.topic in topics and found.extent.position not in used[object_id] for found in own)

    ordered = sorted(used)
    with ThreadPoolExecutor(INDEXES_AT_ONCE) as pool:
        return {object_id for object_id, more in zip(ordered, pool.map(holds_more, ordered), strict=True) if more}
