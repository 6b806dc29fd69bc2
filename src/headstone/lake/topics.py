"""What a source says of a topic, and what the lake keeps of it: its id in Kafka, its cleanup policy and other settings.

A topic that was deleted and created again has the same name, another id, and offsets that begin anew: it is refused. A topic
is compacted only if its policy says so; one whose policy nobody knows is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headstone.errors import UsageError
from headstone.lake.lake import Lake
from headstone.lake.scheduling import POLICY, POLICY_UNKNOWN
from headstone.log import checkpoints
from headstone.log.directory import PartitionDir, is_broker_directory
from headstone.retention.settings import SOURCE, SOURCE_LAKE

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
    if before is not None and before.get(SOURCE) == SOURCE_LAKE:
        raise UsageError(
            f"{topic}: records were written to it in the lake (`lake erase --write-tombstone`), so its offsets are no longer "
            "those of any Kafka topic: ingest into a new lake; this one stays as it is"
        )
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


def in_directories(directories: Sequence[PartitionDir]) -> dict[str, TopicFacts]:
    """By topic. Partitions of one name with several ids are refused: one of them is a leftover."""
    topics: dict[str, list[PartitionDir]] = {}
    for directory in directories:
        topics.setdefault(directory.topic, []).append(directory)
    return {
        topic: TopicFacts(
            partitions=max(one.partition for one in some) + 1,
            settings=_settings(topic, some),
            kafka_id=_id(topic, some),
        )
        for topic, some in sorted(topics.items())
    }


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
