"""The lake's topics: made, altered, dropped; and what a source says of one: its id in Kafka, its cleanup policy, its settings.

A topic that was deleted and created again has the same name, another id, and offsets that begin anew: it is refused. A topic
is compacted only if its policy says so; one whose policy nobody knows is kept as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial

from sqlalchemy import Connection, func, select

from headstone.errors import UsageError
from headstone.lake import catalog, schema
from headstone.lake.changes import UNREFERENCED, release
from headstone.lake.clock import Moment
from headstone.lake.commits import refuse_lakes_own
from headstone.lake.lake import Lake
from headstone.lake.rows import chunks
from headstone.lake.scheduling import POLICY, POLICY_UNKNOWN
from headstone.log import checkpoints
from headstone.log.directory import METADATA_TOPIC, PartitionDir, is_broker_directory
from headstone.log.topic_partition import TOPIC_NAME, TOPIC_NAME_RULE, TopicPartition
from headstone.retention.settings import SOURCE, SOURCE_LAKE, checked

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """Of a topic in a cluster or in log directories. `kafka_id` None: it has none, or it is not told."""

    partitions: int
    settings: Mapping[str, object] = field(default_factory=dict)
    kafka_id: str | None = None
    starts: tuple[int, ...] = ()
    """Where each partition's log begins."""
    ends: tuple[int, ...] = ()


def adopt(
    lake: Lake, topic: str, facts: TopicFacts, *, policy: str | None = None, tell: Tell = lambda text: None
) -> None:
    """The topic is in the lake as its source has it. `policy` is what the caller says, whatever the source does.

    Of a topic that is there only the policy follows its source: the others are the lake's own."""
    before = lake.metastore.topics().get(topic)
    refuse_lakes_own(topic, before or {})
    wanted = policy or facts.settings.get(POLICY)
    if before is None:
        settings = dict(facts.settings) | ({POLICY: policy} if policy else {})
        lake.metastore.create_topic(topic, facts.partitions, settings, kafka_id=facts.kafka_id)
        return
    if facts.kafka_id is not None and (has := lake.metastore.identify(topic, facts.kafka_id)) != facts.kafka_id:
        raise UsageError(
            f"{topic}: the lake holds the topic of id {has}, this is another of the same name, id {facts.kafka_id}: it was "
            "deleted and created again, and its offsets began anew. Ingest it into a new lake; this one stays as it is"
        )
    lake.metastore.add_partitions(topic, facts.partitions)
    if wanted is not None and wanted != before.get(POLICY) and (policy or wanted != POLICY_UNKNOWN):
        lake.metastore.configure(topic, {POLICY: wanted})
        tell(f"{topic}: {POLICY} is {wanted} now, it was {before.get(POLICY, 'compact')}")


def make_lakes_own(lake: Lake, topic: str) -> None:
    """From now on the lake's log is the only one: whoever goes on with another would lose the records that it has here."""
    lake.metastore.configure(topic, {SOURCE: SOURCE_LAKE})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """What the metastore's row of a partition tells without a look at its extents."""

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


def topic_rows(lake: Lake) -> list[TopicRow]:
    """All of them, by name."""
    topics, partitions = schema.topics, schema.partitions
    logs: dict[int, list[PartitionRow]] = {}
    with lake.metastore.transaction(snapshot=True) as connection:
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


def create_topic(lake: Lake, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
    """An empty one, for whoever wants to say its settings before anything is ingested."""
    if not TOPIC_NAME.fullmatch(topic):
        raise UsageError(f"{topic!r} is no name of a topic: {TOPIC_NAME_RULE}")
    lake.metastore.create_topic(topic, partitions, {name: checked(name, text) for name, text in settings.items()})


def alter_topic(lake: Lake, topic: str, settings: Mapping[str, str]) -> None:
    """These settings, beside those that it has."""
    wanted = {name: checked(name, text) for name, text in settings.items()}
    current = lake.metastore.topics().get(topic)
    if current is None:
        raise UsageError(f"the lake has no topic {topic}")
    if current.get(SOURCE, wanted.get(SOURCE)) != wanted.get(SOURCE, current.get(SOURCE)):
        raise UsageError(f"{topic}: {SOURCE} stays {current[SOURCE]}: offsets that were given away do not come back")
    lake.metastore.configure(topic, wanted)


def drop_topic(lake: Lake, topic: str, *, now_ms: Moment | None = None) -> int:
    """The topic with its partitions, its past, holds and leases is forgotten; how many objects nobody points at any more.

    These are garbage after the grace. Jobs that are under way find no partition when they commit."""
    partitions = schema.partitions
    with lake.metastore.transaction() as connection:
        topic_id = connection.execute(select(schema.topics.c.topic_id).where(schema.topics.c.name == topic)).scalar()
        if topic_id is None:
            raise UsageError(f"the lake has no topic {topic}")
        own = select(partitions.c.partition_id).where(partitions.c.topic_id == topic_id)
        ids = list(connection.scalars(own.order_by(partitions.c.partition_id).with_for_update()))
        before = _unreferenced(connection)
        objects: set[str] = set()
        for some in chunks(ids):
            for column in (schema.extents.c.object_id, schema.extents.c.dead_object):
                object_ids = (
                    select(column).where(schema.extents.c.partition_id.in_(some), column.is_not(None)).distinct()
                )
                objects |= set(connection.scalars(object_ids))
        catalog.forget_topic(connection, topic)
        release(connection, objects, partial(lake.metastore.moment, connection, now_ms))
        return _unreferenced(connection) - before


def start_after_deletion(lake: Lake, topic_partition: TopicPartition, before: int) -> tuple[int, int]:
    """Where the log begins, and where it would if all records before an offset were deleted: it only goes forward."""
    if topic_partition not in lake.metastore.partitions():
        raise UsageError(f"the lake has no {topic_partition}")
    start, end = lake.metastore.log_ends([topic_partition])[topic_partition]
    if before > end:
        raise UsageError(f"{topic_partition} ends at {end}: there is no offset {before} to begin at")
    return start, max(start, before)


def _unreferenced(connection: Connection) -> int:
    counted = select(func.count()).select_from(schema.objects).where(schema.objects.c.state == UNREFERENCED)
    return int(connection.execute(counted).scalar_one())


def in_directories(directories: Sequence[PartitionDir]) -> dict[str, TopicFacts]:
    """By topic, without Kafka's own metadata. Partitions of one name with several ids are refused: one of them is a leftover.

    So are two replicas of one partition."""
    topics: dict[str, list[PartitionDir]] = {}
    for directory in directories:
        if directory.topic != METADATA_TOPIC:
            topics.setdefault(directory.topic, []).append(directory)
    facts = {
        topic: TopicFacts(
            partitions=max(one.partition for one in some) + 1,
            settings=_settings(topic, some),
            kafka_id=_id(topic, some),
        )
        for topic, some in sorted(topics.items())
    }
    for _, some in sorted(topics.items()):
        _refuse_replicas(some)
    return facts


def _refuse_replicas(directories: Sequence[PartitionDir]) -> None:
    """Of two replicas one may lack what the other has, such as the deletion of a key: nobody can choose here."""
    paths: dict[TopicPartition, str] = {}
    for directory in directories:
        first_path = paths.setdefault(directory.topic_partition, str(directory.path))
        if first_path != str(directory.path):
            raise UsageError(
                f"{directory.topic_partition} is named twice, {first_path} and {directory.path}: nothing was ingested. Name "
                "the path of one replica, the most complete one; what only other brokers have, ingest by a command of its own "
                "for each, with --topic if need be: what is in the lake already is not read again"
            )


def _id(topic: str, directories: Sequence[PartitionDir]) -> str | None:
    ids = {one.path: checkpoints.read_topic_id(one.path / checkpoints.PARTITION_METADATA) for one in directories}
    identified = {path: kafka_id for path, kafka_id in ids.items() if kafka_id is not None}
    if len(set(identified.values())) > 1:
        listed = ", ".join(f"{path}: {kafka_id}" for path, kafka_id in sorted(identified.items()))
        raise UsageError(
            f"{topic}: partitions of different topics that have the same name: {listed}; name the right ones"
        )
    return next(iter(identified.values()), None)


def _settings(topic: str, directories: Sequence[PartitionDir]) -> dict[str, object]:
    """The cleaner of a broker remembers how far it was: where it has no word on a topic, that is perhaps not compacted.

    A copy of a log that no broker keeps says nothing either way, and is taken for what the lake is made for."""
    for directory in directories:
        cleaned = checkpoints.read_offsets(directory.log_dir / checkpoints.CLEANER)
        if any(name == topic for name, _ in cleaned):
            return {}
    return {POLICY: POLICY_UNKNOWN} if any(is_broker_directory(one.log_dir) for one in directories) else {}
