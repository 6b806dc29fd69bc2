"""How partitions stand, from their rows: what their extents come to, and whether they are worth a compaction now.

Reads rows, ranges, holds and requests of many partitions in few statements. Looks at extents only if they are dirty, and only
where min.compaction.lag.ms separates some of them from others. Decides nothing: that is `scheduling`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, case, func, select

from headstone.errors import UsageError
from headstone.lake.metastore import schema
from headstone.lake.metastore.rows import among, chunks, topic_settings, totals_of_row, without_extents
from headstone.lake.metastore.scheduling import Standing, Urgency, all_dirt, ineligible, urgency_of
from headstone.log.topic_partition import TopicPartition
from headstone.retention.choosing import Dirt
from headstone.retention.policy import NO_LIMIT
from headstone.retention.settings import setting_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionUrgency:
    partition: TopicPartition
    partition_id: int
    standing: Standing
    urgency: Urgency


def judged(
    connection: Connection,
    rows: Mapping[TopicPartition, Any],
    *,
    now_ms: int,
    requested: Collection[TopicPartition] = (),
) -> list[PartitionUrgency]:
    """For partitions by their rows (`rows.located_all`), in their order. `requested`: treated as requested, too.

    Invalid settings affect their topic only: they are the reason why its partitions are not due."""
    settings, answers = topic_settings(connection, {row.topic_id for row in rows.values()}), list[PartitionUrgency]()
    for some in chunks(list(rows.items())):
        ids = [row.partition_id for _, row in some]
        standings = _standings(connection, [row for _, row in some], settings, now_ms)
        held, asked = _held_from(connection, ids, now_ms), _requested(connection, ids)
        for partition, row in some:
            standing = standings[row.partition_id]
            urgency = _urgency(
                standing, settings[row.topic_id], now_ms=now_ms, held_from=held.get(row.partition_id, NO_LIMIT),
                requested=partition in requested or row.partition_id in asked,
            )  # fmt: skip
            answers.append(
                PartitionUrgency(partition=partition, partition_id=row.partition_id, standing=standing, urgency=urgency)
            )  # fmt: skip
    return answers


def _urgency(standing: Standing, settings: Mapping[str, object], **given: Any) -> Urgency:
    try:
        return urgency_of(standing, settings, **given)
    except UsageError as error:
        return ineligible(str(error), requested=given["requested"])


def _standings(
    connection: Connection, rows: Sequence[Any], settings: Mapping[int, Mapping[str, object]], now_ms: int
) -> dict[int, Standing]:
    partitions, old_enough = without_extents(connection, rows), _old_enough(connection, rows, settings, now_ms)
    standings: dict[int, Standing] = {}
    for row in rows:
        totals = totals_of_row(row)
        dirt, more_at_ms = old_enough.get(row.partition_id) or (all_dirt(totals), None)
        standings[row.partition_id] = Standing(
            partition=partitions[row.partition_id], totals=totals, dirt=dirt, more_at_ms=more_at_ms
        )
    return standings


def _old_enough(
    connection: Connection, rows: Sequence[Any], settings: Mapping[int, Mapping[str, object]], now_ms: int
) -> dict[int, tuple[Dirt, int]]:
    """For partitions with dirty extents that are too young: the dirt below the first of these, and when more is old enough."""
    by_lag: dict[int, list[Any]] = {}
    for row in rows:
        lag_ms = _lag_ms(settings[row.topic_id])
        if lag_ms > 0 and row.newest_dirty_ms > now_ms - lag_ms:
            by_lag.setdefault(lag_ms, []).append(row)
    old_enough: dict[int, tuple[Dirt, int]] = {}
    for lag_ms, some in by_lag.items():
        clean_bytes = {row.partition_id: row.bytes - row.dirty_bytes for row in some}
        for row in connection.execute(_older_than(list(clean_bytes), now_ms - lag_ms)):
            dirt = Dirt(
                clean_bytes=clean_bytes[row.partition_id], dirty_bytes=int(row.bytes or 0),
                oldest_ms=-1 if row.oldest_ms is None else row.oldest_ms,
            )  # fmt: skip
            old_enough[row.partition_id] = dirt, row.young_ms + lag_ms
    return old_enough


def _older_than(ids: Sequence[int], moment_ms: int) -> Any:
    """What lies below the first dirty extent with a younger record, and the newest timestamp of that extent."""
    columns, in_partitions = schema.extents.c, schema.extents.c.partition_id.in_(ids)
    young = (
        select(columns.partition_id, func.min(columns.span_start).label("start"))
        .where(in_partitions, schema.DIRTY, columns.max_timestamp_ms > moment_ms)
        .group_by(columns.partition_id)
        .subquery()
    )
    below = columns.span_start < young.c.start
    return (
        select(
            columns.partition_id, func.sum(case((below, columns.length), else_=0)).label("bytes"),
            func.min(case((below & (columns.oldest_timestamp_ms > 0), columns.oldest_timestamp_ms))).label("oldest_ms"),
            func.max(case((columns.span_start == young.c.start, columns.max_timestamp_ms))).label("young_ms"),
        )
        .join_from(schema.extents, young, columns.partition_id == young.c.partition_id)
        .where(in_partitions, schema.DIRTY)
        .group_by(columns.partition_id)
    )  # fmt: skip


def _lag_ms(settings: Mapping[str, object]) -> int:
    try:
        return int(setting_of(settings, "min.compaction.lag.ms"))
    except UsageError:  # reported by `_urgency`
        return 0


def _held_from(connection: Connection, ids: Sequence[int], now_ms: int) -> dict[int, int]:
    columns = schema.holds.c
    query = select(columns.partition_id, func.min(columns.held_from).label("lowest")).group_by(columns.partition_id)
    rows = connection.execute(query.where(among(columns.partition_id, ids), columns.expires_ms > now_ms))
    return {row.partition_id: row.lowest for row in rows}


def _requested(connection: Connection, ids: Sequence[int]) -> set[int]:
    columns = schema.requests.c
    return set(connection.scalars(select(columns.partition_id).where(among(columns.partition_id, ids))))
