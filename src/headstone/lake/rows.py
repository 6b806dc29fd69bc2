"""Rows of the metastore and what they stand for: partitions, extents, where each extent's bytes are.

Reads and converts; every change, and every transaction, is the metastore's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select

from headstone.errors import UsageError
from headstone.lake import schema
from headstone.lake.commits import Extent, LowestHold, Partition, TombstoneRange
from headstone.lake.dead import dead_bytes
from headstone.lake.keyindex import section_bytes
from headstone.lake.spans import Span
from headstone.log.topic_partition import TopicPartition


def located(connection: Connection, topic_partition: TopicPartition, *, lock: bool) -> tuple[int, Any]:
    query = (
        select(schema.partitions)
        .join_from(schema.partitions, schema.topics)
        .where(schema.topics.c.name == topic_partition.topic, schema.partitions.c.number == topic_partition.number)
    )
    row = connection.execute(query.with_for_update(of=schema.partitions) if lock else query).first()
    if row is None:
        raise UsageError(f"the lake has no partition {topic_partition}")
    return row.partition_id, row


def partition_id_of(connection: Connection, topic_partition: TopicPartition) -> int:
    """The row id of a partition."""
    return located(connection, topic_partition, lock=False)[0]


def loaded(connection: Connection, partition_id: int, row: Any, *, with_extents: bool = True) -> Partition:
    def rows(table: Any) -> Any:
        mine = select(table).where(table.c.partition_id == partition_id)
        return connection.execute(mine.order_by(table.c.span_start))

    return Partition(
        start_offset=row.start_offset, next_offset=row.next_offset, compaction_epoch=row.compaction_epoch,
        extents=tuple(extent_of(found) for found in rows(schema.extents)) if with_extents else (),
        cleaned=tuple(Span(found.span_start, found.span_end) for found in rows(schema.cleaned)),
        tombstones=tuple(
            TombstoneRange(span=Span(found.span_start, found.span_end), cleaned_at_ms=found.cleaned_at_ms)
            for found in rows(schema.tombstones)
        ),
    )  # fmt: skip


def known_since(connection: Connection, topic_id: int) -> int:
    """When the first records of a topic came into the lake; of one that has none, when the lake was made."""
    mine = select(schema.partitions.c.partition_id).where(schema.partitions.c.topic_id == topic_id)
    tables = (schema.extents, schema.past_extents)
    firsts = [
        connection.execute(select(func.min(table.c.added_ms)).where(table.c.partition_id.in_(mine))).scalar_one()
        for table in tables
    ]
    known = [first for first in firsts if first is not None]
    return min(known) if known else int(connection.execute(select(schema.lakes.c.created_ms)).scalar_one())


def extent_of(row: Any) -> Extent:
    return Extent(
        span=Span(row.span_start, row.span_end), object_id=row.object_id, position=row.position, length=row.length,
        records=row.records, max_timestamp_ms=row.max_timestamp_ms, checksum=row.checksum, keys=row.listed,
        dead=row.dead, dead_object=row.dead_object, dead_position=row.dead_position,
        oldest_timestamp_ms=row.oldest_timestamp_ms,
    )  # fmt: skip


def extent_row(partition_id: int, extent: Extent, moment_ms: int) -> dict[str, object]:
    return {
        "partition_id": partition_id, "span_start": extent.span.start, "span_end": extent.span.end,
        "object_id": extent.object_id, "position": extent.position, "length": extent.length, "records": extent.records,
        "max_timestamp_ms": extent.max_timestamp_ms, "checksum": extent.checksum, "listed": extent.keys, "added_ms": moment_ms,
        "dead": extent.dead, "dead_object": extent.dead_object, "dead_position": extent.dead_position,
        "oldest_timestamp_ms": extent.oldest_timestamp_ms,
    }  # fmt: skip


def lowest_hold(connection: Connection, partition_id: int, now_ms: int) -> LowestHold | None:
    """Of the holds that have not expired, the one of the reader farthest behind."""
    columns = schema.holds.c
    mine = (columns.partition_id == partition_id) & (columns.expires_ms > now_ms)
    query = select(columns.reader, columns.held_from).where(mine).order_by(columns.held_from, columns.reader)
    row = connection.execute(query.limit(1)).first()
    return None if row is None else LowestHold(row.reader, row.held_from)


def lease_of(connection: Connection, partition_id: int, now_ms: int) -> str | None:
    """Who works on a partition."""
    columns = schema.leases.c
    mine = (columns.partition_id == partition_id) & (columns.expires_ms > now_ms)
    return connection.execute(select(columns.worker).where(mine)).scalar_one_or_none()


class Place(NamedTuple):
    """Bytes of an object, and what they are."""

    start: int
    end: int
    what: str


def places(topic_partition: TopicPartition, extent: Extent) -> Iterator[tuple[str, Place]]:
    """Where an extent's bytes are, by object: its batches and the list of their keys, and the list of dead records."""
    end = extent.position + extent.length + section_bytes(extent.keys)
    yield extent.object_id, Place(extent.position, end, f"{topic_partition} {extent.span}")
    if extent.dead_object is not None:
        end = extent.dead_position + dead_bytes(extent.dead)
        yield extent.dead_object, Place(extent.dead_position, end, f"dead records of {topic_partition} {extent.span}")
