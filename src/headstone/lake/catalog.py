"""The SQL of topics and their partitions: made, enlarged, configured, identified.

Every function works inside a transaction of the metastore's. A partition is made with the row of its lease; a topic's settings
and what the queue knows of its partitions change together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from headstone.errors import UsageError
from headstone.lake import schema
from headstone.lake.commits import Partition
from headstone.lake.journal import note_topic
from headstone.lake.rows import by_partition, chunks, span_of, tombstones_of, topic_settings, totals_of_row
from headstone.lake.scheduling import candidacy


def create_topic(
    connection: Connection, name: str, partitions: int, settings: Mapping[str, object], kafka_id: str | None
) -> None:
    named = select(schema.topics.c.topic_id).where(schema.topics.c.name == name)
    if connection.execute(named).first():
        raise UsageError(f"topic {name} exists already")
    row = {"name": name, "settings": json.dumps(dict(settings)), "kafka_id": kafka_id}
    connection.execute(insert(schema.topics).values(**row))
    _make_partitions(connection, connection.execute(named).scalar_one(), 0, partitions)
    note_topic(connection, name)


def add_partitions(connection: Connection, topic: str, count: int) -> None:
    """Up to `count`; a topic that has as many or more stays as it is."""
    named = select(schema.topics.c.topic_id).where(schema.topics.c.name == topic)
    topic_id = connection.execute(named).scalar()
    if topic_id is None:
        raise UsageError(f"the lake has no topic {topic}")
    of_topic = schema.partitions.c.topic_id == topic_id
    count_before = connection.execute(select(func.count()).select_from(schema.partitions).where(of_topic)).scalar_one()
    _make_partitions(connection, topic_id, count_before, count)
    if count_before < count:
        note_topic(connection, topic)


def _make_partitions(connection: Connection, topic_id: int, first: int, end: int) -> None:
    fresh = {"topic_id": topic_id, "start_offset": 0, "next_offset": 0, "compaction_epoch": 0}
    if first < end:
        connection.execute(insert(schema.partitions), [{**fresh, "number": number} for number in range(first, end)])
        columns = schema.partitions.c
        made = select(columns.partition_id).where(columns.topic_id == topic_id, columns.number >= first)
        connection.execute(insert(schema.leases).from_select(["partition_id"], made))


def forget_topic(connection: Connection, name: str) -> None:
    """With everything that is known of its partitions. Whether an object is still needed is the caller's business."""
    forget_partitions(connection, name, 0)
    connection.execute(delete(schema.topics).where(schema.topics.c.name == name))
    note_topic(connection, name)


def forget_partitions(connection: Connection, topic: str, first: int) -> None:
    """Of a topic, from number `first` on. Nobody is told."""
    topics, partitions = schema.topics, schema.partitions
    topic_id = connection.execute(select(topics.c.topic_id).where(topics.c.name == topic)).scalar_one()
    chosen = (partitions.c.topic_id == topic_id) & (partitions.c.number >= first)
    own = select(partitions.c.partition_id).where(chosen)
    for table in reversed(schema.metadata.sorted_tables):
        if "partition_id" in table.c and table is not partitions:
            connection.execute(delete(table).where(table.c.partition_id.in_(own)))
    connection.execute(delete(partitions).where(chosen))


def configure(connection: Connection, topic: str, settings: Mapping[str, object]) -> None:
    """These settings of a topic, beside those that it has."""
    columns, partitions = schema.topics.c, schema.partitions.c
    topic_row = select(columns.topic_id, columns.settings).where(columns.name == topic)
    own = select(partitions.partition_id).where(partitions.topic_id == connection.execute(topic_row).one().topic_id)
    # Partitions first, as whoever commits or drops the topic does: nobody waits for another for ever.
    connection.execute(own.order_by(partitions.partition_id).with_for_update()).all()
    row = connection.execute(topic_row.with_for_update()).one()
    after = json.dumps(json.loads(row.settings) | dict(settings))
    connection.execute(update(schema.topics).where(columns.topic_id == row.topic_id).values(settings=after))
    requeue(connection, row.topic_id)
    note_topic(connection, topic)


def identify(connection: Connection, topic: str, kafka_id: str) -> str:
    """The id of the topic in Kafka: the one that is known, or this one, from now on."""
    columns = schema.topics.c
    unknown = (columns.name == topic) & columns.kafka_id.is_(None)
    if connection.execute(update(schema.topics).where(unknown).values(kafka_id=kafka_id)).rowcount:
        note_topic(connection, topic)
    return str(connection.execute(select(columns.kafka_id).where(columns.name == topic)).scalar_one())


def kafka_ids(connection: Connection) -> dict[str, str | None]:
    columns = schema.topics.c
    return {row.name: row.kafka_id for row in connection.execute(select(columns.name, columns.kafka_id))}


def requeue(connection: Connection, topic_id: int | None = None) -> None:
    """What the queue knows of a topic's partitions, or of all, anew: their settings, or times in their ranges, have changed."""
    table = schema.partitions
    every = select(table).order_by(table.c.partition_id)
    query = every if topic_id is None else every.where(table.c.topic_id == topic_id)
    rows = connection.execute(query.with_for_update()).all()
    settings = topic_settings(connection, {row.topic_id for row in rows})
    for some in chunks(rows):
        ids = [row.partition_id for row in some]
        cleaned, tombstones = (by_partition(connection, each, ids) for each in (schema.cleaned, schema.tombstones))
        updates: list[dict[str, Any]] = []
        for row in some:
            partition = Partition(
                start_offset=row.start_offset, next_offset=row.next_offset, compaction_epoch=row.compaction_epoch, extents=(),
                cleaned=tuple(map(span_of, cleaned.get(row.partition_id, ()))),
                tombstones=tuple(map(tombstones_of, tombstones.get(row.partition_id, ()))),
            )  # fmt: skip
            wanted = candidacy(partition, totals_of_row(row), settings[row.topic_id])
            updates.append({"row_id": row.partition_id, "ripe_ms": 0, **asdict(wanted)})
        connection.execute(update(table).where(table.c.partition_id == bindparam("row_id")), updates)
