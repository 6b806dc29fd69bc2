"""Purging: what nobody is shown any more leaves the store, and not only the log.

Extents are written again without their dead records and without what lies below the log start. Objects hold ranges of many
partitions, and go only as a whole: where one holds a record that is no part of any log now, what is still in use moves out,
other topics' extents included. No log changes by that: the same offsets, other places. Then garbage collection deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from sqlalchemy import select

from headstone.errors import CorruptLog
from headstone.lake import schema
from headstone.lake.changes import COMMITTED
from headstone.lake.commits import Extent, Partition
from headstone.lake.lake import Lake
from headstone.lake.leveling import rewrite_runs
from headstone.lake.objects import read_index
from headstone.lake.rows import chunks
from headstone.log.topic_partition import TopicPartition
from headstone.retention.settings import DEAD_AGE_MAX, setting_of
from headstone.storage.stores import MissingObject

INDEXES_AT_ONCE = 8

WorkingOn = Callable[[TopicPartition], AbstractContextManager[object]]
"""Has the lease of a partition while the block runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evacuated:
    """Objects that held records which are no part of a log any more, and what had to move out of them."""

    objects: tuple[str, ...]
    extents: int
    bytes_written: int


def evacuate(
    lake: Lake, topics: Collection[str], *, clock: Callable[[], int], worker: str | None = None,
    working_on: WorkingOn = nullcontext,
) -> Evacuated:  # fmt: skip
    """Of these topics nothing is left in objects that are in use but what is in their logs. CommitRefused: run it again.

    `working_on`: has the lease of a partition for `worker` while it is changed."""
    left = objects_to_leave(lake, topics)
    extents = written = 0
    for topic_partition in _pointing_at(lake, left):
        with working_on(topic_partition):
            partition = lake.metastore.partition(topic_partition)
            runs = [[extent] for extent in partition.extents if {extent.object_id, extent.dead_object} & left]
            rewritten = rewrite_runs(lake, topic_partition, partition, runs, clock=clock, worker=worker)
        extents, written = extents + rewritten.extents, written + rewritten.bytes_written
    return Evacuated(objects=tuple(sorted(left)), extents=extents, bytes_written=written)


def _pointing_at(lake: Lake, object_ids: Collection[str]) -> list[TopicPartition]:
    """Partitions of which an extent, or a list of its dead records, lies in one of these objects."""
    extents, partitions = schema.extents, set()
    query = select(schema.topics.c.name, schema.partitions.c.number).join_from(schema.partitions, schema.topics)
    with lake.metastore.transaction(snapshot=True) as connection:
        for some in chunks(sorted(object_ids)):
            for column in (extents.c.object_id, extents.c.dead_object):
                own = select(extents.c.partition_id).where(column.in_(some))
                rows = connection.execute(query.where(schema.partitions.c.partition_id.in_(own)))
                partitions |= {TopicPartition(row.name, row.number) for row in rows}
    return sorted(partitions)


def objects_to_leave(lake: Lake, topics: Collection[str]) -> set[str]:
    """Objects that extents point at, and that hold batches of these topics at which none does.

    One whose index can't be read may hold anything. Lists of dead records are offsets: nobody's key or value is in them.
    Asks every object that is in use, and holds the places of a few hundred of them in memory."""
    left: set[str] = set()
    with ThreadPoolExecutor(INDEXES_AT_ONCE) as pool:
        for used in _used_places(lake):
            ordered = sorted(used)
            holding = pool.map(partial(_holds_more, lake, topics, used), ordered)
            left |= {object_id for object_id, more in zip(ordered, holding, strict=True) if more}
    return left


def _holds_more(lake: Lake, topics: Collection[str], used: Mapping[str, set[int]], object_id: str) -> bool:
    try:
        ranges = read_index(lake.store, object_id)
    except MissingObject:
        return False  # left and collected since
    except CorruptLog:
        return True
    own = [found for found in ranges if found.extent.object_id == object_id and found.extent.length]
    return any(found.topic in topics and found.extent.position not in used[object_id] for found in own)


def _used_places(lake: Lake) -> Iterator[dict[str, set[int]]]:
    """Of objects that are in use, some at a time: where in them extents begin."""
    objects, extents = schema.objects, schema.extents
    with lake.metastore.transaction() as connection:
        in_use = list(connection.scalars(select(objects.c.object_id).where(objects.c.state == COMMITTED)))
    for some in chunks(sorted(in_use)):
        used: dict[str, set[int]] = {object_id: set() for object_id in some}
        with lake.metastore.transaction() as connection:
            rows = connection.execute(
                select(extents.c.object_id, extents.c.position).where(extents.c.object_id.in_(some))
            )
            for object_id, position in rows:
                used[object_id].add(position)
        yield used


def aged_extents(partition: Partition, *, age_ms_max: int, now_ms: int) -> list[Extent]:
    """Those of which a record has been dead for so long, or longer."""
    return [extent for extent in partition.extents if extent.dead and now_ms - extent.dead_since_ms >= age_ms_max]


def purge_aged(
    lake: Lake, *, clock: Callable[[], int], age_ms_max: int | None = None, topics: Collection[str] | None = None,
    worker: str | None = None,
    working_on: WorkingOn = nullcontext,
) -> Evacuated:  # fmt: skip
    """Bytes of records that have been dead for longer than their topic allows leave the objects in use; gc does the rest.

    `age_ms_max`: of topics that do not say it themselves; None: as long as it takes."""
    extents = written = 0
    emptied: set[str] = set()
    for topic_partition, age in _aged_partitions(lake, clock(), age_ms_max):
        if topics is not None and topic_partition.topic not in topics:
            continue
        with working_on(topic_partition):
            partition = lake.metastore.partition(topic_partition)
            runs = [[extent] for extent in aged_extents(partition, age_ms_max=age, now_ms=clock())]
            rewritten = rewrite_runs(lake, topic_partition, partition, runs, clock=clock, worker=worker)
        extents, written = extents + rewritten.extents, written + rewritten.bytes_written
        emptied.add(topic_partition.topic)
    if not emptied:
        return Evacuated(objects=(), extents=0, bytes_written=0)
    moved = evacuate(lake, emptied, clock=clock, worker=worker, working_on=working_on)
    return Evacuated(
        objects=moved.objects, extents=extents + moved.extents, bytes_written=written + moved.bytes_written
    )


def _aged_partitions(lake: Lake, now_ms: int, age_ms_max: int | None) -> list[tuple[TopicPartition, int]]:
    """With the age that counts for each. By the partitions' rows, which tell since when the longest dead record is."""
    columns, settings = schema.partitions.c, lake.metastore.topics()
    query = select(schema.topics.c.name, columns.number, columns.dead_since_ms).join_from(
        schema.partitions, schema.topics
    )
    with lake.metastore.transaction(snapshot=True) as connection:
        marked = connection.execute(query.where(columns.dead_since_ms >= 0)).all()
    ages = {topic: _age_ms_max(settings[topic], age_ms_max) for topic in {row.name for row in marked}}
    return sorted(
        (TopicPartition(row.name, row.number), age)
        for row in marked
        if (age := ages[row.name]) is not None and now_ms - row.dead_since_ms >= age
    )


def _age_ms_max(settings: Mapping[str, object], otherwise: int | None) -> int | None:
    if DEAD_AGE_MAX not in settings:
        return otherwise
    age = int(setting_of(settings, DEAD_AGE_MAX))
    return age if age >= 0 else None
