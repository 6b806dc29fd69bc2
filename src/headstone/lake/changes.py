"""The SQL of a commit: a partition is read under its lock, and what `commits` made of it is written. Objects change hands.

Every function works inside a transaction of the metastore's; which one, and whether it ends well, is the metastore's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from headstone.lake import schema
from headstone.lake.clock import follow
from headstone.lake.commits import CommitRefused, Extent, Partition
from headstone.lake.rows import chunks, extent_row, loaded, located, places
from headstone.log.topic_partition import TopicPartition

REGISTERED, COMMITTED, UNREFERENCED, CONDEMNED = "registered", "committed", "unreferenced", "condemned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A partition that nobody else changes before the transaction ends. `moment_ms` is when it is changed, if it is."""

    topic_partition: TopicPartition
    partition_id: int
    moment_ms: int
    before: Partition


def locked(
    connection: Connection, topic_partition: TopicPartition, clock: Callable[[], int], *, with_extents: bool = True
) -> Locked:
    """The clock is read under the lock. An append looks at no old extent."""
    schema.expect_version(connection)
    partition_id, row = located(connection, topic_partition, lock=True)
    before = loaded(connection, partition_id, row, with_extents=with_extents)
    return Locked(
        topic_partition=topic_partition, partition_id=partition_id, before=before,
        moment_ms=follow(clock(), row.changed_ms, str(topic_partition)),
    )  # fmt: skip


def write(connection: Connection, partition: Locked, after: Partition) -> set[str]:
    """The objects of the extents that are gone."""
    partition_id, before, moment_ms = partition.partition_id, partition.before, partition.moment_ms
    connection.execute(
        update(schema.partitions)
        .where(schema.partitions.c.partition_id == partition_id)
        .values(
            start_offset=after.start_offset, next_offset=after.next_offset, compaction_epoch=after.compaction_epoch,
            changed_ms=moment_ms,
        )
    )  # fmt: skip
    kept, known = set(after.extents), set(before.extents)
    gone = [extent for extent in before.extents if extent not in kept]
    new = [extent for extent in after.extents if extent not in known]
    if gone:
        _retire(connection, partition_id, [extent.span.start for extent in gone], moment_ms)
    if new:
        connection.execute(insert(schema.extents), [extent_row(partition_id, extent, moment_ms) for extent in new])
    if after.cleaned != before.cleaned:
        rows = [{"partition_id": partition_id, "span_start": s.start, "span_end": s.end} for s in after.cleaned]
        _rewrite(connection, schema.cleaned, partition_id, rows)
    if after.tombstones != before.tombstones:
        rows = [
            {
                "partition_id": partition_id, "span_start": found.span.start, "span_end": found.span.end,
                "cleaned_at_ms": found.cleaned_at_ms,
            }
            for found in after.tombstones
        ]  # fmt: skip
        _rewrite(connection, schema.tombstones, partition_id, rows)
    return {object_id for extent in gone for object_id, _ in places(partition.topic_partition, extent)}


def _retire(connection: Connection, partition_id: int, starts: Sequence[int], moment_ms: int) -> None:
    """Extents that the log is no longer made of move to the past."""
    table = schema.extents
    for some in chunks(starts):
        mine = (table.c.partition_id == partition_id) & table.c.span_start.in_(some)
        rows = [{**row._mapping, "removed_ms": moment_ms} for row in connection.execute(select(table).where(mine))]
        connection.execute(insert(schema.past_extents), rows)
        connection.execute(delete(table).where(mine))


def forget_past(connection: Connection, object_ids: Sequence[str]) -> None:
    """What pointed at collected objects; from then on the past before that can't be read any more."""
    past, partitions = schema.past_extents, schema.partitions
    own = past.c.object_id.in_(object_ids) | past.c.dead_object.in_(object_ids)
    latest = select(past.c.partition_id, func.max(past.c.removed_ms)).where(own).group_by(past.c.partition_id)
    for partition_id, removed_ms in connection.execute(latest).all():
        later = (partitions.c.partition_id == partition_id) & (partitions.c.known_from_ms < removed_ms)
        connection.execute(update(partitions).where(later).values(known_from_ms=removed_ms))
    connection.execute(delete(past).where(own))


def _rewrite(connection: Connection, table: Any, partition_id: int, rows: Sequence[Mapping[str, object]]) -> None:
    connection.execute(delete(table).where(table.c.partition_id == partition_id))
    if rows:
        connection.execute(insert(table), list(rows))


def use(connection: Connection, extents: Sequence[Extent], sizes: Mapping[str, int], clock: Callable[[], int]) -> None:
    """Registered objects become committed ones; an object that is not registered, or used already, is refused.

    An extent with dead records is one that is there: only the list of them is new."""
    for object_id in sorted({extent.dead_object or extent.object_id for extent in extents}):
        taken = connection.execute(
            update(schema.objects)
            .where(schema.objects.c.object_id == object_id, schema.objects.c.state == REGISTERED)
            .values(state=COMMITTED, size=sizes[object_id], changed_ms=clock())
        )
        if taken.rowcount != 1:
            raise CommitRefused(
                f"object {object_id} is not registered any more, or used already: upload under a new id"
            )


def release(connection: Connection, object_ids: set[str], clock: Callable[[], int]) -> None:
    """Of these objects, those that the last extent has left are garbage, after a time of grace for readers.

    Their rows are locked first: of two partitions that leave the same object at once, the second must see the first."""
    ordered = sorted(object_ids)
    for some in chunks(ordered):
        mine = schema.objects.c.object_id.in_(some)
        rows = select(schema.objects.c.object_id).where(mine).order_by(schema.objects.c.object_id)
        # Not against those who only point at them from new rows: two who both do would wait for each other.
        connection.execute(rows.with_for_update(key_share=True)).all()
        columns = (schema.extents.c.object_id, schema.extents.c.dead_object)
        still = {name for column in columns for name in connection.scalars(select(column).where(column.in_(some)))}
        free = schema.objects.c.object_id.in_([object_id for object_id in some if object_id not in still])
        left = free & (schema.objects.c.state == COMMITTED)
        connection.execute(update(schema.objects).where(left).values(state=UNREFERENCED, changed_ms=clock()))
