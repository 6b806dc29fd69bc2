"""The SQL of topics and their partitions: created, enlarged, configured, identified.

Every function works inside a transaction of the metastore's. A partition is created with the row of its lease. A topic's
settings and what the queue knows about its partitions change together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from headstone.errors import UsageError
from headstone.lake.metastore import schema
from headstone.lake.metastore.notes import note_topic
from headstone.lake.metastore.rows import chunks, topic_settings, totals_of_row, without_extents
from headstone.lake.metastore.scheduling import POLICY, queue_keys
from headstone.log.topic_partition import TopicPartition
from headstone.retention.settings import setting_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """What the metastore's row of a partition says, without a look at its extents."""

    partition: int
    start_offset: int
    next_offset: int
    compaction_epoch: int
    extents: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic as the lake has it."""

    topic: str
    kafka_id: str | None
    settings: Mapping[str, object]
    partitions: tuple[PartitionRow, ...]

    @property
    def cleanup_policy(self) -> str:
        return str(setting_of(self.settings, POLICY))


def create_topic(
    connection: Connection, name: str, partitions: int, settings: Mapping[str, object], kafka_id: str | None
) -> None:
    named = select(schema.topics.c.topic_id).where(schema.topics.c.name == name)
    if connection.execute(named).first():
        raise UsageError(f"topic {name} already exists")
    row = {"name": name, "settings": json.dumps(dict(settings)), "kafka_id": kafka_id}
    connection.execute(insert(schema.topics).values(**row))
    _make_partitions(connection, connection.execute(named).scalar_one(), 0, partitions)
    note_topic(connection, name)


def add_partitions(connection: Connection, topic: str, count: int) -> None:
    """Adds partitions up to `count`. A topic that has as many or more stays as it is."""
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
    """With everything known about its partitions. The caller releases the objects."""
    forget_partitions(connection, name, 0)
    connection.execute(delete(schema.topics).where(schema.topics.c.name == name))
    note_topic(connection, name)


def forget_partitions(connection: Connection, topic: str, first: int) -> None:
    """Forgets the topic's partitions from number `first` on. Writes no note for the journal."""
    topics, partitions = schema.topics, schema.partitions
    topic_id = connection.execute(select(topics.c.topic_id).where(topics.c.name == topic)).scalar_one()
    chosen = (partitions.c.topic_id == topic_id) & (partitions.c.number >= first)
    own = select(partitions.c.partition_id).where(chosen)
    for table in reversed(schema.metadata.sorted_tables):
        if "partition_id" in table.c and table is not partitions:
            connection.execute(delete(table).where(table.c.partition_id.in_(own)))
    connection.execute(delete(partitions).where(chosen))


def configure(connection: Connection, topic: str, settings: Mapping[str, object]) -> None:
    """Sets these settings; the topic's others stay."""
    columns, partitions = schema.topics.c, schema.partitions.c
    topic_row = select(columns.topic_id, columns.settings).where(columns.name == topic)
    own = select(partitions.partition_id).where(partitions.topic_id == connection.execute(topic_row).one().topic_id)
    # Partitions first, in the order in which commits and drops lock them: no deadlock.
    connection.execute(own.order_by(partitions.partition_id).with_for_update()).all()
    row = connection.execute(topic_row.with_for_update()).one()
    after = json.dumps(json.loads(row.settings) | dict(settings))
    connection.execute(update(schema.topics).where(columns.topic_id == row.topic_id).values(settings=after))
    requeue(connection, row.topic_id)
    note_topic(connection, topic)


def identify(connection: Connection, topic: str, kafka_id: str) -> str:
    """The topic's id in Kafka: the known one, or else this one, which is stored."""
    columns = schema.topics.c
    unknown = (columns.name == topic) & columns.kafka_id.is_(None)
    if connection.execute(update(schema.topics).where(unknown).values(kafka_id=kafka_id)).rowcount:
        note_topic(connection, topic)
    return str(connection.execute(select(columns.kafka_id).where(columns.name == topic)).scalar_one())


def topics(connection: Connection) -> dict[str, dict[str, object]]:
    rows = connection.execute(select(schema.topics.c.name, schema.topics.c.settings).order_by(schema.topics.c.name))
    return {row.name: json.loads(row.settings) for row in rows}


def partitions(connection: Connection) -> list[TopicPartition]:
    rows = connection.execute(
        select(schema.topics.c.name, schema.partitions.c.number)
        .join_from(schema.partitions, schema.topics)
        .order_by(schema.topics.c.name, schema.partitions.c.number)
    )
    return [TopicPartition(row.name, row.number) for row in rows]


def topic_rows(connection: Connection) -> list[TopicRow]:
    topics, partitions = schema.topics, schema.partitions
    logs: dict[int, list[PartitionRow]] = {}
    rows = connection.execute(select(topics).order_by(topics.c.name)).all()
    for row in connection.execute(select(partitions).order_by(partitions.c.number)):
        names = [column.name for column in fields(PartitionRow) if column.name != "partition"]
        numbers = {name: getattr(row, name) for name in names}
        logs.setdefault(row.topic_id, []).append(PartitionRow(partition=row.number, **numbers))
    return [
        TopicRow(
            topic=row.name, kafka_id=row.kafka_id, settings=json.loads(row.settings),
            partitions=tuple(logs.get(row.topic_id, ())),
        )
        for row in rows
    ]  # fmt: skip


def kafka_ids(connection: Connection) -> dict[str, str | None]:
    columns = schema.topics.c
    return {row.name: row.kafka_id for row in connection.execute(select(columns.name, columns.kafka_id))}


def requeue(connection: Connection, topic_id: int | None = None) -> None:
    """Computes the queue's keys of a topic's partitions, or of all, again: settings, or times in their ranges, have changed."""
    table = schema.partitions
    every = select(table).order_by(table.c.partition_id)
    query = every if topic_id is None else every.where(table.c.topic_id == topic_id)
    rows = connection.execute(query.with_for_update()).all()
    settings = topic_settings(connection, {row.topic_id for row in rows})
    for some in chunks(rows):
        partitions = without_extents(connection, some)
        updates: list[dict[str, Any]] = []
        for row in some:
            wanted = queue_keys(partitions[row.partition_id], totals_of_row(row), settings[row.topic_id])
            updates.append({"row_id": row.partition_id, "ripe_ms": 0, **asdict(wanted)})
        connection.execute(update(table).where(table.c.partition_id == bindparam("row_id")), updates)
