"""The SQL of a commit: reads a partition under its lock, and writes what `commits` made of it. Objects change hands.

Reads and writes only as much as the commit changes: the affected extents, and the numbers on the partition's row by their
difference. Every function works inside a transaction of the metastore's, which the caller begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, func, insert, literal, select, update

from headstone.errors import UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import places
from headstone.lake.format.spans import Span, Spans, normal, overlap, touching
from headstone.lake.metastore import schema
from headstone.lake.metastore.clock import follow
from headstone.lake.metastore.commits import Claim, Partition, appended, refuse_lakes_own
from headstone.lake.metastore.erasure_steps import come_again
from headstone.lake.metastore.notes import commit_change, note
from headstone.lake.metastore.object_states import release
from headstone.lake.metastore.rows import (
    chunks,
    extent_row,
    extents_in,
    loaded,
    located,
    located_all,
    topic_settings,
    totals_of_row,
)
from headstone.lake.metastore.scheduling import dirty_spans, queue_keys
from headstone.lake.metastore.totals import Totals, added, changed, columns_of, totals_of
from headstone.log.topic_partition import TopicPartition

if TYPE_CHECKING:
    from headstone.lake.metastore.commits import Append


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A partition that cannot change before the transaction ends, except by us. `moment_ms` is the time of our change."""

    topic_partition: TopicPartition
    partition_id: int
    moment_ms: int
    before: Partition
    """With only the extents that the commit is about."""
    totals: Totals
    settings: Mapping[str, object]


def locked(
    connection: Connection,
    topic_partition: TopicPartition,
    clock: Callable[[], int],
    touched: Callable[[Partition], Spans],
) -> Locked:
    """Reads the clock under the lock. `touched` gets the partition without extents and says where the commit may change
    some."""
    partition_id, row = located(connection, topic_partition, lock=True)
    before = loaded(connection, row)
    return Locked(
        topic_partition=topic_partition, partition_id=partition_id,
        before=replace(before, extents=extents_in(connection, partition_id, touched(before))), totals=totals_of_row(row),
        settings=topic_settings(connection, [row.topic_id])[row.topic_id],
        moment_ms=follow(clock(), row.changed_ms, str(topic_partition)),
    )  # fmt: skip


def touched_by(extents: Sequence[Extent], claim: Claim | None = None) -> Callable[[Partition], Spans]:
    """The spans of a replacement's new extents, and the dirty spans that it claims are clean now."""

    def touched(partition: Partition) -> Spans:
        fresh = overlap(dirty_spans(partition), claim.cleaned) if claim is not None else ()
        return normal([*(extent.span for extent in extents), *fresh])

    return touched


def append_all(connection: Connection, appends: Mapping[TopicPartition, Append], clock: Callable[[], int]) -> None:
    """Appends to many logs with a few statements; reads none of their contents.

    Locks rows in the order of their ids, so two writers that append to the same partitions never deadlock."""
    names = {row.partition_id: partition for partition, row in located_all(connection, list(appends)).items()}
    table, rows = schema.partitions, list[Any]()
    for some in chunks(sorted(names)):
        query = select(table).where(table.c.partition_id.in_(some)).order_by(table.c.partition_id)
        rows += connection.execute(query.with_for_update()).all()
    if len(rows) < len(names):
        raise UsageError("a topic was dropped while records were appended to it: nothing was appended")
    if not rows:
        return
    now_ms, settings = clock(), topic_settings(connection, {row.topic_id for row in rows})
    updates: list[dict[str, Any]] = []
    fresh: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    began: list[dict[str, Any]] = []
    for row in rows:
        name = names[row.partition_id]
        moment_ms = follow(now_ms, row.changed_ms, str(name))
        # An append neither needs nor changes the clean and tombstone ranges. Its `log_start` may only move the start of an
        # empty log, which has neither.
        before = Partition(
            start_offset=row.start_offset, next_offset=row.next_offset, compaction_epoch=row.compaction_epoch, extents=(),
            cleaned=(), tombstones=(),
        )  # fmt: skip
        proposed = appends[name]
        if proposed.from_kafka:  # read under the lock: whoever makes the topic the lake's own holds the lock first
            refuse_lakes_own(name.topic, settings[row.topic_id])
        after = appended(before, proposed.expected_next, proposed.extents, log_start=proposed.log_start)
        totals = added(totals_of_row(row), totals_of(after.extents, (Span(row.next_offset, after.next_offset),)))
        wanted = queue_keys(after, totals, settings[row.topic_id])
        updates.append({
            "row_id": row.partition_id, "start_offset": after.start_offset, "next_offset": after.next_offset,
            "changed_ms": moment_ms,
            "first_added_ms": moment_ms if row.first_added_ms < 0 else row.first_added_ms, **columns_of(totals),
            "overdue_from_ms": wanted.overdue_from_ms, "dirty_ratio": wanted.dirty_ratio,
            "ripe_ms": row.ripe_ms if row.dirty_bytes else 0,
            "unleveled_bytes": row.unleveled_bytes + sum(extent.length for extent in after.extents),
        })  # fmt: skip
        fresh += [extent_row(row.partition_id, extent, moment_ms, dirty=True) for extent in after.extents]
        if after.start_offset != row.start_offset:
            began.append(_past_start(row.partition_id, row.start_offset, moment_ms))
        notes.append(commit_change(name, after, gone=(), new=after.extents, ranges=False, moment_ms=moment_ms))
    connection.execute(update(table).where(table.c.partition_id == bindparam("row_id")), updates)
    for target, made in ((schema.extents, fresh), (schema.past_starts, began)):
        if made:
            connection.execute(insert(target), made)
    if began:  # the new start may be above everything in an object
        release(connection, {extent.object_id for each in appends.values() for extent in each.extents}, clock)
    note(connection, notes)
    for topic in {name.topic for name in appends}:
        again = {digest for name, append in appends.items() if name.topic == topic for digest in append.remembered}
        if again:
            come_again(connection, topic, again, now_ms)


def _past_start(partition_id: int, start_offset: int, moment_ms: int) -> dict[str, Any]:
    """The row that says where a log began until now."""
    return {"partition_id": partition_id, "start_offset": start_offset, "removed_ms": moment_ms}


def write(connection: Connection, partition: Locked, after: Partition) -> set[str]:
    """Returns the objects of the replaced extents."""
    partition_id, before, moment_ms = partition.partition_id, partition.before, partition.moment_ms
    dirty_before, dirty_after = dirty_spans(before), dirty_spans(after)
    kept, present = set(after.extents), set(before.extents)
    gone = [extent for extent in before.extents if extent not in kept]
    new = [extent for extent in after.extents if extent not in present]
    if gone:
        _retire(connection, partition_id, [extent.span.start for extent in gone], moment_ms)
    if after.start_offset != before.start_offset:
        began = _past_start(partition_id, before.start_offset, moment_ms)
        connection.execute(insert(schema.past_starts).values(**began))
    if new:
        rows = [
            extent_row(partition_id, extent, moment_ms, dirty=bool(touching(dirty_after, extent.span)))
            for extent in new
        ]
        connection.execute(insert(schema.extents), rows)
    _flag(
        connection, partition_id, [extent for extent in after.extents if extent in present], dirty_before, dirty_after
    )
    _write_ranges(connection, partition_id, before, after)
    # A compaction leaves extents of any size, all over the log.
    smaller = after.compaction_epoch > before.compaction_epoch and any(extent.dead_object is None for extent in new)
    counts = changed(
        partition.totals, totals_of(before.extents, dirty_before), totals_of(after.extents, dirty_after)
    )  # fmt: skip
    totals = Totals(**counts, **_extremes(connection, partition_id))
    connection.execute(
        update(schema.partitions)
        .where(schema.partitions.c.partition_id == partition_id)
        .values(
            start_offset=after.start_offset, next_offset=after.next_offset, compaction_epoch=after.compaction_epoch,
            unleveled_bytes=schema.partitions.c.unleveled_bytes + (schema.UNLEVELED_BYTES_MIN if smaller else 0),
            changed_ms=moment_ms, ripe_ms=0, **columns_of(totals), **asdict(queue_keys(after, totals, partition.settings)),
        )
    )  # fmt: skip
    name = partition.topic_partition
    note(connection, [commit_change(name, after, gone=gone, new=new, ranges=True, moment_ms=moment_ms)])
    return {object_id for extent in gone for object_id, _ in places(name, extent)}


def _flag(
    connection: Connection, partition_id: int, extents: Sequence[Extent], dirty_before: Spans, dirty_after: Spans
) -> None:
    """Flags extents that stay and become clean. They become dirty again only when a metastore is rebuilt, never by a commit."""
    columns = schema.extents.c
    for dirty in (False, True):
        changed = [
            extent.span.start
            for extent in extents
            if bool(touching(dirty_after, extent.span)) == dirty != bool(touching(dirty_before, extent.span))
        ]
        for some in chunks(changed):
            chosen = (columns.partition_id == partition_id) & columns.span_start.in_(some)
            connection.execute(update(schema.extents).where(chosen).values(dirty=int(dirty)))


def _extremes(connection: Connection, partition_id: int) -> dict[str, int]:
    """Extreme timestamps of a partition's current extents; each is read from the end of an index."""
    columns = schema.extents.c
    wanted = {
        "oldest_dirty_ms": (func.min(columns.oldest_timestamp_ms), schema.DIRTY, columns.oldest_timestamp_ms > 0),
        "newest_dirty_ms": (func.max(columns.max_timestamp_ms), schema.DIRTY),
        "dead_since_ms": (func.min(columns.dead_since_ms), schema.MARKED),
    }
    of_partition = columns.partition_id == partition_id
    queries = {
        name: func.coalesce(select(value).where(of_partition, *conditions).scalar_subquery(), -1).label(name)
        for name, (value, *conditions) in wanted.items()
    }
    return dict(connection.execute(select(*queries.values())).one()._mapping)


def _write_ranges(connection: Connection, partition_id: int, before: Partition, after: Partition) -> None:
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


def _retire(connection: Connection, partition_id: int, starts: Sequence[int], moment_ms: int) -> None:
    """Moves extents that the log no longer consists of to the past."""
    table = schema.extents
    kept = [column for column in table.c if column.name in schema.past_extents.c]
    for some in chunks(starts):
        retired = (table.c.partition_id == partition_id) & table.c.span_start.in_(some)
        moved = select(*kept, literal(moment_ms)).where(retired)
        columns = [*(column.name for column in kept), "removed_ms"]
        connection.execute(insert(schema.past_extents).from_select(columns, moved))
        connection.execute(delete(table).where(retired))


def _rewrite(connection: Connection, table: Any, partition_id: int, rows: Sequence[Mapping[str, object]]) -> None:
    connection.execute(delete(table).where(table.c.partition_id == partition_id))
    if rows:
        connection.execute(insert(table), list(rows))
