"""The queue: the most urgent partitions that are due and free, and those to be leveled, from the indexes of their rows.

An index knows when a partition may be due, not whether it is (`scheduling.QueueKeys`). So it offers a few, and the exact rule
decides about these. On PostgreSQL, partitions that another worker is taking at this moment are skipped without waiting; SQLite
admits one writer at a time. Works inside a transaction of the metastore's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, exists, select, update

from headstone.lake.metastore import schema
from headstone.lake.metastore.rows import chunks
from headstone.lake.metastore.scheduling import next_look_ms
from headstone.lake.metastore.standings import PartitionUrgency, judged
from headstone.log.topic_partition import TopicPartition


def most_urgent(
    connection: Connection, *, limit: int, now_ms: int
) -> tuple[list[PartitionUrgency], list[PartitionUrgency]]:
    """At most `limit` that are due, most urgent first, with their leases' rows locked; and requested ones that are not due."""
    chosen: dict[int, PartitionUrgency] = {}
    idle: list[PartitionUrgency] = []
    seen: set[int] = set()
    young: list[int] = []
    for offer in _offers(now_ms):
        size = 0
        while len(chosen) < limit:
            # As many as are wanted, to leave the others to other workers; then more and more if many are not due after all.
            size = max(limit - len(chosen), 2 * size)
            rows = _offered(connection, offer, seen, size)
            for each in judged(connection, rows, now_ms=now_ms):
                seen.add(each.partition_id)
                if each.urgency.eligible:
                    if len(chosen) < limit:
                        chosen[each.partition_id] = each
                    continue
                if each.urgency.requested:
                    idle.append(each)
                if next_look_ms(each.standing, each.urgency) > now_ms:
                    young.append(each.partition_id)
            if not rows:
                break
    _look_later(connection, young, now_ms)
    return list(chosen.values()), idle


def _offers(now_ms: int) -> Iterator[Any]:
    """One ordered query per reason, most urgent first; each walks an index."""
    partitions, requests = schema.partitions, schema.requests
    columns, free = partitions.c, schema.leases.c.expires_ms <= now_ms
    setbacks = schema.setbacks.c
    waits = exists().where(setbacks.partition_id == columns.partition_id, setbacks.not_before_ms > now_ms)
    offer = (
        select(schema.topics.c.name, partitions)
        .join_from(partitions, schema.topics)
        .join(schema.leases, schema.leases.c.partition_id == columns.partition_id)
        .where(free, ~waits)
    )
    yield offer.join(requests, requests.c.partition_id == columns.partition_id).order_by(requests.c.requested_ms)
    ripe = columns.ripe_ms <= now_ms
    yield offer.where(columns.overdue_from_ms <= now_ms, ripe).order_by(columns.overdue_from_ms)
    yield offer.where(columns.tombstones_due_ms <= now_ms).order_by(columns.tombstones_due_ms)
    yield offer.where(columns.dirty_ratio > 0, ripe).order_by(columns.dirty_ratio.desc())


def _offered(connection: Connection, offer: Any, seen: set[int], limit: int) -> Mapping[TopicPartition, Any]:
    fresh = offer.where(schema.partitions.c.partition_id.not_in(sorted(seen))) if seen else offer
    rows = connection.execute(fresh.limit(limit).with_for_update(of=schema.leases, skip_locked=True)).all()
    return {TopicPartition(row.name, row.number): row for row in rows}


def _look_later(connection: Connection, young: Sequence[int], now_ms: int) -> None:
    """Partitions whose dirt is too young are not offered again before it is old enough, however often workers ask.

    Judged again under the partitions' locks: a later commit puts the partition back. Partitions locked by others stay as they
    are and are offered once more."""
    partitions = schema.partitions
    named = select(schema.topics.c.name, partitions).join_from(partitions, schema.topics)
    for some in chunks(sorted(young)):
        query = named.where(partitions.c.partition_id.in_(some)).order_by(partitions.c.partition_id)
        rows = connection.execute(query.with_for_update(of=partitions, skip_locked=True)).all()
        for each in judged(connection, {TopicPartition(row.name, row.number): row for row in rows}, now_ms=now_ms):
            ripe_ms = next_look_ms(each.standing, each.urgency)
            if not each.urgency.eligible and ripe_ms > now_ms:
                own = partitions.c.partition_id == each.partition_id
                connection.execute(update(partitions).where(own).values(ripe_ms=ripe_ms))


def unleveled(connection: Connection, limit: int) -> dict[TopicPartition, int]:
    """Bytes that have come since the last look for small extents, where they are enough for another look; most first."""
    columns = schema.partitions.c
    query = (
        select(schema.topics.c.name, columns.number, columns.unleveled_bytes)
        .join_from(schema.partitions, schema.topics)
        .where(columns.unleveled_bytes >= schema.UNLEVELED_BYTES_MIN)
        .order_by(columns.unleveled_bytes.desc())
        .limit(limit)
    )
    return {TopicPartition(row.name, row.number): row.unleveled_bytes for row in connection.execute(query)}


def looked_for_small(connection: Connection, partition_id: int, unleveled_bytes: int) -> None:
    columns = schema.partitions.c
    rest = columns.unleveled_bytes - unleveled_bytes
    connection.execute(
        update(schema.partitions).where(columns.partition_id == partition_id).values(unleveled_bytes=rest)
    )
