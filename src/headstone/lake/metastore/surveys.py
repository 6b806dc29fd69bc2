"""What jobs ask about many partitions at once: how they stand, which extents they begin with, which are small, what is past.

Takes a metastore and returns values; a few statements for each question, however many partitions there are. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, exists, func, select

from headstone.lake.format.extents import Extent
from headstone.lake.metastore import schema
from headstone.lake.metastore.commits import EMPTY, Partition
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.object_states import COMMITTED
from headstone.lake.metastore.rows import (
    chunks,
    extent_of,
    loaded_all,
    located,
    located_all,
    located_present,
    lowest_hold,
)
from headstone.lake.metastore.standings import PartitionUrgency, judged
from headstone.log.topic_partition import TopicPartition
from headstone.retention.policy import NO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Mergeable:
    """A partition with only its small extents, and how many extents it has in all."""

    partition: Partition
    extents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointed:
    """An extent that a row points at."""

    partition: TopicPartition
    extent: Extent
    past: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBegin:
    """A log with only the first of its extents."""

    partition: Partition
    bytes: int
    """Of all its extents."""
    held_from: int
    """A reader needs what lies from here on; NO_LIMIT if none does."""
    moment_ms: int


def all_judged(
    metastore: Metastore, *, now_ms: int, requested: Collection[TopicPartition] = ()
) -> list[PartitionUrgency]:
    """For every partition. `requested`: treated as requested, too."""
    with metastore.transaction(snapshot=True) as connection:
        rows = located_all(connection, None)
        return judged(connection, rows, now_ms=metastore.moment(connection, now_ms), requested=requested)


def extent_counts(metastore: Metastore, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """For those that exist, from their rows."""
    with metastore.transaction(snapshot=True) as connection:
        return {name: int(row.extents) for name, row in located_present(connection, partitions).items()}


def extent_total(metastore: Metastore) -> int:
    """Of the whole lake, from the partitions' rows."""
    with metastore.transaction() as connection:
        return int(connection.execute(select(func.coalesce(func.sum(schema.partitions.c.extents), 0))).scalar_one())


def record_bytes(metastore: Metastore, topics: Collection[str]) -> int | None:
    """Average size of a record of these topics; None if they have none. Looks at no extent."""
    columns = schema.partitions.c
    records = columns.records + columns.dead_records
    query = select(func.sum(columns.bytes), func.sum(records)).join_from(schema.partitions, schema.topics)
    with metastore.transaction() as connection:
        size, count = connection.execute(query.where(schema.topics.c.name.in_(topics))).one()
    return max(1, int(size) // int(count)) if count else None


def small_extents(
    metastore: Metastore, partitions: Collection[TopicPartition], *, smaller_than: int
) -> dict[TopicPartition, Mergeable]:
    """For those that exist, at one moment. From an index of small extents: it looks at no others, however many there are."""
    with metastore.transaction(snapshot=True) as connection:
        rows = located_present(connection, partitions)
        loaded = loaded_all(connection, list(rows.values()), smaller_than=smaller_than)
    return {name: Mergeable(partition=loaded[row.partition_id], extents=int(row.extents)) for name, row in rows.items()}


def oldest_extents(
    metastore: Metastore, partitions: Collection[TopicPartition], *, now_ms: int
) -> dict[TopicPartition, LogBegin]:
    """For each of them that has bytes, with its first extent that has some."""
    with metastore.transaction(snapshot=True) as connection:
        rows, moment_ms = located_all(connection, partitions), metastore.moment(connection, now_ms)
        oldest = _oldest_extents(connection, [row.partition_id for row in rows.values()])
    return {
        name: _begin(row, (oldest[row.partition_id],), NO_LIMIT, moment_ms)
        for name, row in sorted(rows.items())
        if row.partition_id in oldest
    }


def first_extents(metastore: Metastore, topic_partition: TopicPartition, count: int, *, now_ms: int) -> LogBegin:
    with metastore.transaction(snapshot=True) as connection:
        partition_id, row = located(connection, topic_partition, lock=False)
        moment_ms = metastore.moment(connection, now_ms)
        hold = lowest_hold(connection, partition_id, moment_ms)
        query = select(schema.extents).where(schema.extents.c.partition_id == partition_id)
        rows = connection.execute(query.order_by(schema.extents.c.span_start).limit(count))
        return _begin(row, tuple(map(extent_of, rows)), NO_LIMIT if hold is None else hold.held_from, moment_ms)


def _begin(row: Any, extents: tuple[Extent, ...], held_from: int, moment_ms: int) -> LogBegin:
    partition = replace(EMPTY, start_offset=row.start_offset, next_offset=row.next_offset, extents=extents)
    return LogBegin(partition=partition, bytes=int(row.bytes), held_from=held_from, moment_ms=moment_ms)


def _oldest_extents(connection: Connection, ids: Collection[int]) -> dict[int, Extent]:
    """The first extent that has bytes, by partition: one step into the index of its extents, whatever comes after."""
    extents, partitions, each = schema.extents, schema.partitions, schema.extents.alias()
    first = (
        select(each.c.span_start).where(each.c.partition_id == partitions.c.partition_id, each.c.length > 0)
        .order_by(each.c.span_start).limit(1).correlate(partitions).scalar_subquery()
    )  # fmt: skip
    own = (extents.c.partition_id == partitions.c.partition_id) & (extents.c.span_start == first)
    query = select(extents).join_from(partitions, extents, own)
    return {
        row.partition_id: extent_of(row)
        for some in chunks(sorted(ids))
        for row in connection.execute(query.where(partitions.c.partition_id.in_(some)))
    }


def pointed_extents(metastore: Metastore) -> Iterator[list[Pointed]]:
    """A few partitions at a time, so that memory is bounded: current extents and past ones."""
    with metastore.transaction(snapshot=True) as connection:
        rows = sorted((row.partition_id, name) for name, row in located_all(connection, None).items())
    for some in chunks(rows):
        with metastore.transaction(snapshot=True) as connection:
            pointed = [
                Pointed(partition=name, extent=extent, past=past)
                for partition_id, name in some
                for extent, past in _extents(connection, partition_id)
            ]
        yield pointed


def _extents(connection: Connection, partition_id: int) -> Iterator[tuple[Extent, bool]]:
    present = set[Extent]()
    for table, past in ((schema.extents, False), (schema.past_extents, True)):
        query = select(table).where(table.c.partition_id == partition_id).order_by(table.c.span_start)
        for row in connection.execute(query):
            extent = extent_of(row)
            if extent not in present:
                present.add(extent)
                yield extent, past


def past_extents(metastore: Metastore, topic: str) -> list[Extent]:
    """What the logs of a topic consisted of before, where it still exists."""
    past = schema.past_extents
    joined = past.join(schema.partitions, past.c.partition_id == schema.partitions.c.partition_id)
    joined = joined.join(schema.topics, schema.partitions.c.topic_id == schema.topics.c.topic_id)
    query = select(past).select_from(joined).where(schema.topics.c.name == topic, past.c.length > 0)
    with metastore.transaction(snapshot=True) as connection:
        return [extent_of(row) for row in connection.execute(query.order_by(past.c.past_id))]


def pointing_at(metastore: Metastore, object_ids: Collection[str]) -> list[TopicPartition]:
    """Partitions with an extent, or a list of its dead records, in one of these objects."""
    extents, partitions = schema.extents, set()
    query = select(schema.topics.c.name, schema.partitions.c.number).join_from(schema.partitions, schema.topics)
    with metastore.transaction(snapshot=True) as connection:
        for some in chunks(sorted(object_ids)):
            for column in (extents.c.object_id, extents.c.dead_object):
                own = select(extents.c.partition_id).where(column.in_(some))
                rows = connection.execute(query.where(schema.partitions.c.partition_id.in_(own)))
                partitions |= {TopicPartition(row.name, row.number) for row in rows}
    return sorted(partitions)


def aged_partitions(metastore: Metastore, now_ms: int, ages: Mapping[str, int]) -> list[tuple[TopicPartition, int]]:
    """With the age that counts for each. From the partitions' rows, which say when their oldest dead record was marked."""
    columns = schema.partitions.c
    query = select(schema.topics.c.name, columns.number, columns.dead_since_ms).join_from(
        schema.partitions, schema.topics
    )
    with metastore.transaction(snapshot=True) as connection:
        marked = connection.execute(query.where(columns.dead_since_ms >= 0)).all() if ages else ()
    return sorted(
        (TopicPartition(row.name, row.number), ages[row.name])
        for row in marked
        if row.name in ages and now_ms - row.dead_since_ms >= ages[row.name]
    )


def aged_behind(metastore: Metastore, now_ms: int, ages: Mapping[str, int]) -> list[str]:
    """Topics whose aged dead records have left the log but lie in objects that are still in use.

    Found by the past extents that held them, which are known until their object goes. If its bytes still belong to a current
    extent, with more marks, a past extent has left nothing behind."""
    past, extents, objects = schema.past_extents, schema.extents, schema.objects
    in_use = exists().where(extents.c.object_id == past.c.object_id, extents.c.position == past.c.position)
    joined = (
        past.join(schema.partitions, past.c.partition_id == schema.partitions.c.partition_id)
        .join(schema.topics, schema.partitions.c.topic_id == schema.topics.c.topic_id)
        .join(objects, past.c.object_id == objects.c.object_id)
    )
    query = select(schema.topics.c.name, func.min(past.c.dead_since_ms).label("since_ms")).select_from(joined)
    query = query.where(objects.c.state == COMMITTED, past.c.dead_since_ms >= 0, ~in_use)
    with metastore.transaction(snapshot=True) as connection:
        rows = connection.execute(query.group_by(schema.topics.c.name)).all() if ages else ()
    return sorted(row.name for row in rows if row.name in ages and now_ms - row.since_ms >= ages[row.name])
