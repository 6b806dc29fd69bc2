"""The lake's topics: created, altered, dropped; and what a source says about one: its id in Kafka, cleanup policy, settings.

A topic that was deleted and created again has the same name, another id, and offsets that begin anew: it is refused. A topic is
compacted only if its policy says so; while the policy is unknown, every record is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from headstone.bounds import PARTITION_COUNT
from headstone.errors import HeadstoneError, UsageError
from headstone.lake.defaults import ERASURE_DEADLINE_MS
from headstone.lake.jobs.key_search import note_seen
from headstone.lake.lake import Lake
from headstone.lake.metastore.catalog import TopicRow
from headstone.lake.metastore.clock import Moment
from headstone.lake.metastore.commits import expect_topics, no_topic, refuse_lakes_own
from headstone.lake.metastore.erasures import drop
from headstone.lake.metastore.scheduling import POLICY, POLICY_UNKNOWN
from headstone.log import checkpoints
from headstone.log.directory import METADATA_TOPIC, PartitionDir, is_broker_directory
from headstone.log.topic_partition import TOPIC_NAME, TOPIC_NAME_RULE, TopicPartition
from headstone.retention.settings import SOURCE, checked
from headstone.storage.places import Place

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic in a cluster or in log directories. `kafka_id` None: it has none, or the source does not tell."""

    partitions: int
    settings: Mapping[str, object] = field(default_factory=dict)
    kafka_id: str | None = None
    starts: tuple[int, ...] = ()
    """Where each partition's log begins."""
    ends: tuple[int, ...] = ()


def adopt(
    lake: Lake, topic: str, facts: TopicFacts, *, policy: str | None = None, tell: Tell = lambda text: None
) -> None:
    """Creates or updates the topic in the lake as its source has it. `policy`, if given, overrides the source's.

    For an existing topic only the policy follows the source: its other settings are the lake's own."""
    before = lake.metastore.topics().get(topic)
    refuse_lakes_own(topic, before or {})
    wanted = policy or facts.settings.get(POLICY)
    if before is None:
        settings = dict(facts.settings) | ({POLICY: policy} if policy else {})
        lake.metastore.create_topic(topic, facts.partitions, settings, kafka_id=facts.kafka_id)
        return
    if facts.kafka_id is not None and (has := lake.metastore.identify(topic, facts.kafka_id)) != facts.kafka_id:
        raise UsageError(
            f"{topic}: the lake has the topic with ID {has}, but this one has ID {facts.kafka_id}: it was deleted and created "
            "again, so its offsets restarted. Ingest it into a new lake; this one stays as it is"
        )
    lake.metastore.add_partitions(topic, facts.partitions)
    if wanted is not None and wanted != before.get(POLICY) and (policy or wanted != POLICY_UNKNOWN):
        lake.metastore.configure(topic, {POLICY: wanted})
        tell(f"{topic}: {POLICY} changed from {before.get(POLICY, 'compact')} to {wanted}")


def topic_document(row: TopicRow) -> dict[str, object]:
    return {**asdict(row), "cleanup_policy": row.cleanup_policy}


def topic_row(lake: Lake, topic: str) -> TopicRow:
    rows = {row.topic: row for row in lake.metastore.topic_rows()}
    expect_topics([topic], rows)
    return rows[topic]


def partitions_of(lake: Lake, topic: str, number: int | None = None) -> list[TopicPartition]:
    """All partitions of a topic, or the one with this number."""
    everything = lake.metastore.partitions()
    partitions = [partition for partition in everything if partition.topic == topic]
    expect_topics([topic], {partition.topic for partition in everything})
    chosen = [partition for partition in partitions if number in (None, partition.number)]
    if not chosen:
        numbers = ", ".join(str(partition.number) for partition in partitions)
        raise UsageError(f"the lake has no {topic}-{number}; its partitions are {numbers}")
    return chosen


def create_topic(lake: Lake, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
    """Creates an empty topic, so that it can be configured before anything is ingested."""
    if not TOPIC_NAME.fullmatch(topic):
        raise UsageError(f"{topic!r} is not a valid topic name: {TOPIC_NAME_RULE}")
    PARTITION_COUNT.expect("partitions", partitions)
    lake.metastore.create_topic(topic, partitions, {name: checked(name, text) for name, text in settings.items()})


def alter_topic(lake: Lake, topic: str, settings: Mapping[str, str]) -> None:
    """Sets these settings; its others stay."""
    wanted = {name: checked(name, text) for name, text in settings.items()}
    topics = lake.metastore.topics()
    current = topics.get(topic)
    if current is None:
        raise no_topic(topic, topics)
    if current.get(SOURCE, wanted.get(SOURCE)) != wanted.get(SOURCE, current.get(SOURCE)):
        raise UsageError(
            f"{topic}: {SOURCE} stays {current[SOURCE]}: offsets that were assigned in the lake cannot be taken back"
        )
    lake.metastore.configure(topic, wanted)


def drop_topic(
    lake: Lake, topic: str, *, now_ms: Moment | None = None, deadline_ms: int = ERASURE_DEADLINE_MS
) -> int:  # fmt: skip
    """Forgets the topic with its partitions, past, holds and leases. Returns how many objects are now unreferenced.

    These become garbage after the grace. What is left in objects shared with other topics is erased within `deadline_ms` from
    now, as keys are. Running jobs find no partition when they commit."""
    with suppress(HeadstoneError):  # an unreadable list keeps no topic
        note_seen(lake, topic)
    return drop(lake.metastore, topic, now_ms=now_ms, deadline_ms=deadline_ms)


def start_after_deletion(lake: Lake, topic_partition: TopicPartition, before: int) -> tuple[int, int]:
    """Where the log begins, and where it would begin if all records before an offset were deleted: it only moves forward."""
    partitions_of(lake, topic_partition.topic, topic_partition.number)
    start, end = lake.metastore.log_ends([topic_partition])[topic_partition]
    if before > end:
        raise UsageError(f"{topic_partition} ends at {end}: cannot delete records before offset {before}")
    return start, max(start, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopics:
    """What log directories say about their topics. `failed`: partitions whose files do not say which topic they belong to."""

    facts: Mapping[str, TopicFacts]
    failed: Mapping[TopicPartition, Exception]

    @property
    def names(self) -> set[str]:
        return self.facts.keys() | {name.topic for name in self.failed}


def in_directories(directories: Sequence[PartitionDir]) -> FoundTopics:
    """Without Kafka's own metadata. If partitions of one topic have several ids, they fail: one of them is a leftover.

    If two replicas of one partition are named, everything is refused."""
    named = [directory for directory in directories if directory.topic != METADATA_TOPIC]
    _refuse_replicas(named)
    cleaned: dict[Place, set[str]] = {}
    failed: dict[TopicPartition, Exception] = {}
    ids: dict[str, dict[PartitionDir, str | None]] = {}
    for directory in named:
        try:
            topic_id = checkpoints.read_topic_id(directory.path / checkpoints.PARTITION_METADATA)
            if directory.log_dir not in cleaned:
                offsets = checkpoints.read_offsets(directory.log_dir / checkpoints.CLEANER)
                cleaned[directory.log_dir] = {topic for topic, _ in offsets}
        except (UsageError, OSError) as error:
            failed[directory.topic_partition] = error
        else:
            ids.setdefault(directory.topic, {})[directory] = topic_id
    facts: dict[str, TopicFacts] = {}
    for topic, some in sorted(ids.items()):
        try:
            facts[topic] = _facts(topic, some, cleaned)
        except UsageError as error:
            failed |= {directory.topic_partition: error for directory in some}
    return FoundTopics(facts=facts, failed=failed)


def _facts(topic: str, ids: Mapping[PartitionDir, str | None], cleaned: Mapping[Place, Collection[str]]) -> TopicFacts:
    return TopicFacts(
        partitions=max(directory.partition for directory in ids) + 1, settings=_settings(topic, list(ids), cleaned),
        kafka_id=_id(topic, ids),
    )  # fmt: skip


def _refuse_replicas(directories: Sequence[PartitionDir]) -> None:
    """One of two replicas may lack what the other has, such as the deletion of a key, and we can't tell which to choose."""
    paths: dict[TopicPartition, str] = {}
    for directory in directories:
        first_path = paths.setdefault(directory.topic_partition, str(directory.path))
        if first_path != str(directory.path):
            raise UsageError(
                f"{directory.topic_partition} is in two of the paths, {first_path} and {directory.path}: nothing was ingested. "
                "Name the most complete replica only; ingest what only other brokers have with a separate command for each, "
                "with --topic if needed: what is in the lake already is not read again"
            )


def _id(topic: str, ids: Mapping[PartitionDir, str | None]) -> str | None:
    identified = {str(directory.path): kafka_id for directory, kafka_id in ids.items() if kafka_id is not None}
    if len(set(identified.values())) > 1:
        listed = ", ".join(f"{path}: {kafka_id}" for path, kafka_id in sorted(identified.items()))
        raise UsageError(
            f"{topic}: partitions of different topics that have the same name: {listed}; name the right ones"
        )
    return next(iter(identified.values()), None)


def _settings(
    topic: str, directories: Sequence[PartitionDir], cleaned: Mapping[Place, Collection[str]]
) -> dict[str, object]:
    """A broker's cleaner remembers how far it got. If it has no entry for a topic, the topic may not be compacted.

    A copy of a log outside a broker says nothing either way, and counts as compacted, which is what the lake is for."""
    if any(topic in cleaned[directory.log_dir] for directory in directories):
        return {}
    return {POLICY: POLICY_UNKNOWN} if any(is_broker_directory(one.log_dir) for one in directories) else {}
