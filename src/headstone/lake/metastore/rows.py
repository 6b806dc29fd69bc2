"""Rows of the metastore and their values: partitions, extents, where each extent's bytes are.

Reads and converts. All changes and transactions are the metastore's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table, and_, or_, select

from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span, Spans, touching
from headstone.lake.metastore import schema
from headstone.lake.metastore.commits import LowestHold, Partition, TombstoneRange, gone
from headstone.lake.metastore.totals import COLUMNS, Totals
from headstone.log.topic_partition import TopicPartition

ROWS_AT_ONCE = 500
"""In one SQL statement: databases limit its parameters."""
T = TypeVar("T")


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + ROWS_AT_ONCE] for start in range(0, len(items), ROWS_AT_ONCE))


def located(connection: Connection, topic_partition: TopicPartition, *, lock: bool) -> tuple[int, Any]:
    query = (
        select(schema.partitions)
        .join_from(schema.partitions, schema.topics)
        .where(schema.topics.c.name == topic_partition.topic, schema.partitions.c.number == topic_partition.number)
    )
    row = connection.execute(query.with_for_update(of=schema.partitions) if lock else query).first()
    if row is None:
        raise gone(topic_partition)
    return row.partition_id, row


def located_all(connection: Connection, wanted: Collection[TopicPartition] | None) -> dict[TopicPartition, Any]:
    """The rows of many partitions in few statements; of all for None. By row id, the order in which rows are locked."""
    rows = located_present(connection, wanted)
    for partition in wanted or ():
        if partition not in rows:
            raise gone(partition)
    return rows


def located_present(connection: Connection, wanted: Collection[TopicPartition] | None) -> dict[TopicPartition, Any]:
    """As `located_all`, but skips missing ones: a topic may be dropped while a worker has it."""
    partitions, topics = schema.partitions, schema.topics
    query = select(topics.c.name, partitions).join_from(partitions, topics)
    numbers = sorted({partition.number for partition in wanted or ()})
    if numbers and len(numbers) <= ROWS_AT_ONCE:
        query = query.where(partitions.c.number.in_(numbers))
    queries = [query]
    if wanted is not None:
        queries = [query.where(topics.c.name.in_(some)) for some in chunks(sorted({each.topic for each in wanted}))]
    unordered = [row for each in queries for row in connection.execute(each)]
    rows = {TopicPartition(row.name, row.number): row for row in sorted(unordered, key=lambda row: row.partition_id)}
    if wanted is None:
        return rows
    asked = frozenset(wanted)
    return {partition: row for partition, row in rows.items() if partition in asked}


def with_names(table: Table) -> Select[Any]:
    """Rows of a table with one or more rows per partition, each with the topic's name and the partition's number."""
    named = select(schema.topics.c.name, schema.partitions.c.number, table)
    return named.join_from(table, schema.partitions).join(schema.topics)


def partition_id_of(connection: Connection, topic_partition: TopicPartition) -> int:
    """The row id of a partition."""
    return located(connection, topic_partition, lock=False)[0]


def loaded(connection: Connection, row: Any, *, extents: tuple[Extent, ...] = ()) -> Partition:
    """The partition with these of its extents."""
    return replace(without_extents(connection, [row])[row.partition_id], extents=extents)


def extents_in(connection: Connection, partition_id: int, spans: Spans) -> tuple[Extent, ...]:
    """Extents that share an offset with one of the spans, in order.

    Extents tile a log: where none begins with a span, the last one that begins before it may reach into it."""
    columns, by_start = schema.extents.c, dict[int, Extent]()

    def take(query: Any) -> None:
        for row in connection.execute(query):
            if touching(spans, span_of(row)):
                by_start[row.span_start] = extent_of(row)

    for some in chunks(spans):
        inside = [
            and_(columns.partition_id == partition_id, columns.span_start >= span.start, columns.span_start < span.end)
            for span in some
        ]
        take(select(schema.extents).where(or_(*inside)))
    for span in spans:
        if span.start not in by_start:
            before = (columns.partition_id == partition_id) & (columns.span_start < span.start)
            take(select(schema.extents).where(before).order_by(columns.span_start.desc()).limit(1))
    return tuple(by_start[start] for start in sorted(by_start))


def loaded_all(connection: Connection, rows: Sequence[Any], *, smaller_than: int | None = None) -> dict[int, Partition]:
    """By row id. A statement per table and chunk of partitions, however much each of them holds.

    `smaller_than`: only extents with fewer bytes."""
    loaded: dict[int, Partition] = {}
    for some in chunks(rows):
        ids = [row.partition_id for row in some]
        extents = by_partition(connection, schema.extents, ids, smaller_than=smaller_than)
        for partition_id, partition in without_extents(connection, some).items():
            loaded[partition_id] = replace(partition, extents=tuple(map(extent_of, extents.get(partition_id, ()))))
    return loaded


def without_extents(connection: Connection, rows: Sequence[Any]) -> dict[int, Partition]:
    """By row id, at most as many as fit into a statement: the rows' own values, and their ranges."""
    ids = [row.partition_id for row in rows]
    cleaned, tombstones = (by_partition(connection, table, ids) for table in (schema.cleaned, schema.tombstones))
    return {
        row.partition_id: Partition(
            start_offset=row.start_offset, next_offset=row.next_offset, compaction_epoch=row.compaction_epoch, extents=(),
            cleaned=tuple(map(span_of, cleaned.get(row.partition_id, ()))),
            tombstones=tuple(map(tombstones_of, tombstones.get(row.partition_id, ()))),
        )
        for row in rows
    }  # fmt: skip


def by_partition(
    connection: Connection, table: Any, ids: Sequence[int], *, smaller_than: int | None = None
) -> dict[int, list[Any]]:
    grouped: dict[int, list[Any]] = {}
    columns = table.c
    chosen = columns.partition_id.in_(ids) if table is schema.extents else among(columns.partition_id, ids)
    query = select(table).where(chosen).order_by(columns.partition_id, columns.span_start)
    if smaller_than is not None:
        query = query.where(schema.is_smaller(smaller_than))
    for row in connection.execute(query):
        grouped.setdefault(row.partition_id, []).append(row)
    return grouped


def among(column: Any, ids: Sequence[int]) -> Any:
    """Condition for these rows, and perhaps some between them: for neighbours a range is ten times as fast as a long list."""
    low, high = min(ids), max(ids)
    return column.between(low, high) if high - low < 2 * len(ids) else column.in_(ids)


def totals_of_row(row: Any) -> Totals:
    return Totals(**{name: getattr(row, name) for name in COLUMNS})


def span_of(row: Any) -> Span:
    return Span(row.span_start, row.span_end)


def tombstones_of(row: Any) -> TombstoneRange:
    return TombstoneRange(span=span_of(row), cleaned_at_ms=row.cleaned_at_ms)


def extent_of(row: Any) -> Extent:
    return Extent(
        span=Span(row.span_start, row.span_end), object_id=row.object_id, position=row.position, length=row.length,
        records=row.records, max_timestamp_ms=row.max_timestamp_ms, checksum=row.checksum, keys=row.listed,
        halves_checksum=row.halves_checksum, rest_checksum=row.rest_checksum,
        dead=row.dead, dead_object=row.dead_object, dead_position=row.dead_position, dead_checksum=row.dead_checksum,
        oldest_timestamp_ms=row.oldest_timestamp_ms, dead_since_ms=row.dead_since_ms,
    )  # fmt: skip


def extent_row(partition_id: int, extent: Extent, moment_ms: int, *, dirty: bool) -> dict[str, object]:
    return {
        "partition_id": partition_id, "span_start": extent.span.start, "span_end": extent.span.end,
        "object_id": extent.object_id, "position": extent.position, "length": extent.length, "records": extent.records,
        "max_timestamp_ms": extent.max_timestamp_ms, "checksum": extent.checksum, "listed": extent.keys, "added_ms": moment_ms,
        "halves_checksum": extent.halves_checksum, "rest_checksum": extent.rest_checksum,
        "dead": extent.dead, "dead_object": extent.dead_object, "dead_position": extent.dead_position,
        "dead_checksum": extent.dead_checksum,
        "oldest_timestamp_ms": extent.oldest_timestamp_ms, "dead_since_ms": extent.dead_since_ms, "dirty": int(dirty),
    }  # fmt: skip


def topic_settings(connection: Connection, topic_ids: Collection[int]) -> dict[int, dict[str, object]]:
    columns = schema.topics.c
    return {
        row.topic_id: json.loads(row.settings)
        for some in chunks(sorted(topic_ids))
        for row in connection.execute(select(columns.topic_id, columns.settings).where(columns.topic_id.in_(some)))
    }


def lowest_hold(connection: Connection, partition_id: int, now_ms: int) -> LowestHold | None:
    """The hold of the reader farthest behind, among those that have not expired."""
    columns = schema.holds.c
    in_force = (columns.partition_id == partition_id) & (columns.expires_ms > now_ms)
    query = select(columns.reader, columns.held_from).where(in_force).order_by(columns.held_from, columns.reader)
    row = connection.execute(query.limit(1)).first()
    return None if row is None else LowestHold(row.reader, row.held_from)


def lease_of(connection: Connection, partition_id: int, now_ms: int) -> str | None:
    """The worker with an unexpired lease on the partition, or None."""
    columns = schema.leases.c
    in_force = (columns.partition_id == partition_id) & (columns.expires_ms > now_ms)
    return connection.execute(select(columns.worker).where(in_force)).scalar_one_or_none()
