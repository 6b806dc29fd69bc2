"""A Kafka cluster as the lake sees it: which topics and partitions there are, and the settings to reach it.

Settings are librdkafka's, once, for everything; what Spark's Java client calls otherwise is translated here. Needs the extra
`headstone[kafka]`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from headstone.errors import Unfinished, UsageError
from headstone.lake.lake import Lake
from headstone.lake.scheduling import POLICY, POLICY_UNKNOWN
from headstone.lake.topics import Tell, TopicFacts, adopt
from headstone.log.topic_partition import TopicPartition

SECONDS_MAX = 20.0
COPIED_SETTINGS = (
    POLICY, "delete.retention.ms", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms",
)  # fmt: skip
"""As they are in force, whoever has set them: compaction in the lake goes by them."""
COPIED_IF_SET = ("retention.ms", "retention.bytes", "max.message.bytes", "compression.type")
"""As far as they were set for the topic itself: a topic that is restored gets them back."""
LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
SAME = ("bootstrap.servers", "security.protocol", "client.id")


def spark_source_options(settings: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's settings in the words of Spark's Kafka source. One that can't be translated is refused, not dropped."""
    found = {f"kafka.{name}": settings[name] for name in SAME if name in settings}
    rest = {name: value for name, value in settings.items() if name not in SAME}
    found |= {name: rest.pop(name) for name in list(rest) if name.startswith("kafka.")}
    mechanism = rest.pop("sasl.mechanism", None) or rest.pop("sasl.mechanisms", None)
    user, password = rest.pop("sasl.username", None), rest.pop("sasl.password", None)
    if mechanism:
        if mechanism not in LOGIN or user is None or password is None:
            raise UsageError(
                f"sasl.mechanism {mechanism}: known are {', '.join(LOGIN)}, with sasl.username and sasl.password"
            )
        found["kafka.sasl.mechanism"] = mechanism
        quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password)]
        found["kafka.sasl.jaas.config"] = f'{LOGIN[mechanism]} required username="{quoted[0]}" password="{quoted[1]}";'
    authority = rest.pop("ssl.ca.location", None)
    if authority:
        found |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": authority}
    if rest:
        raise UsageError(
            f"--kafka-conf {next(iter(rest))} has no counterpart in Spark's Kafka source; name it as kafka.NAME with the "
            "name of Kafka's Java client"
        )
    return found


def client_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """What librdkafka gets: all but those meant for the Java client alone."""
    return {name: value for name, value in settings.items() if not name.startswith("kafka.")}


def describe(settings: Mapping[str, str], topics: Sequence[str]) -> dict[str, TopicFacts]:
    """Raises UsageError for topics that are not there, Unfinished if the cluster does not answer."""
    rd = rdkafka()
    given = {**client_settings(settings), "log_level": 0}
    admin = rd.admin.AdminClient(given)
    try:
        known = admin.list_topics(timeout=SECONDS_MAX).topics
        missing = sorted(set(topics) - set(known))
        if missing:
            raise UsageError(f"the cluster has no topic {', '.join(missing)}")
        consumer = rd.Consumer({**given, "group.id": "headstone-lake", "enable.auto.commit": False})
        try:
            ids = topic_ids(settings, topics)
            return {
                topic: _facts(rd, admin, consumer, topic, len(known[topic].partitions), ids[topic]) for topic in topics
            }
        finally:
            consumer.close()
    except rd.KafkaException as error:
        raise Unfinished(f"{settings.get('bootstrap.servers')}: {error.args[0].str()}") from error


def topic_ids(settings: Mapping[str, str], topics: Sequence[str]) -> dict[str, str | None]:
    """As Kafka writes them; None from a cluster that gives none."""
    rd = rdkafka()
    admin = rd.admin.AdminClient({**client_settings(settings), "log_level": 0})
    found = {}
    for topic, asked in admin.describe_topics(rd.TopicCollection(list(topics)), request_timeout=SECONDS_MAX).items():
        try:
            given = asked.result(SECONDS_MAX).topic_id
        except rd.KafkaException as error:
            raise Unfinished(f"{settings.get('bootstrap.servers')}: {topic}: {error.args[0].str()}") from error
        halves = (given.get_most_significant_bits(), given.get_least_significant_bits()) if given else (0, 0)
        bits = b"".join(half.to_bytes(8, "big", signed=True) for half in halves)
        found[topic] = base64.urlsafe_b64encode(bits).decode().rstrip("=") if any(bits) else None
    return found


def expect_ids(settings: Mapping[str, str], ids: Mapping[str, str | None]) -> None:
    """What was read under these names since they were described is of these topics: an id does not come back."""
    for topic, found in topic_ids(settings, sorted(ids)).items():
        if found != ids[topic]:
            raise UsageError(
                f"{topic} was deleted and created again while it was read (its id was {ids[topic]}, it is {found}): nothing of "
                "the new one was taken; ingest it into a new lake"
            )


def _facts(rd: Any, admin: Any, consumer: Any, topic: str, partitions: int, kafka_id: str | None) -> TopicFacts:
    edges = [
        consumer.get_watermark_offsets(rd.TopicPartition(topic, number), timeout=SECONDS_MAX)
        for number in range(partitions)
    ]
    resource = rd.admin.ConfigResource(rd.admin.ResourceType.TOPIC, topic)
    try:
        configs = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
        own = rd.admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        settings = {name: configs[name].value for name in COPIED_SETTINGS if name in configs}
        settings |= {
            name: configs[name].value for name in COPIED_IF_SET if name in configs and configs[name].source == own
        }
    except rd.KafkaException:  # may read, may not describe: what it is must be said by somebody else
        settings = {POLICY: POLICY_UNKNOWN}
    return TopicFacts(
        partitions=partitions, settings=settings, kafka_id=kafka_id, starts=tuple(low for low, _ in edges),
        ends=tuple(high for _, high in edges),
    )  # fmt: skip


def prepare(
    lake: Lake, facts: Mapping[str, TopicFacts], *, policy: str | None = None, tell: Tell = lambda text: None
) -> dict[str, int]:
    """Topics and partitions that the lake does not have yet are made; what does not go on where the lake ends is refused."""
    for topic, found in facts.items():
        adopt(lake, topic, found, policy=policy, tell=tell)
        for number, (start, end) in enumerate(zip(found.starts, found.ends, strict=True)):
            next_offset = lake.metastore.partition(TopicPartition(topic, number)).next_offset
            if 0 < next_offset < start:
                raise UsageError(
                    f"{topic}-{number}: the lake ends at {next_offset}, Kafka's log begins at {start}: what lies between is "
                    "missing; make a new lake"
                )
            if end < next_offset:
                raise UsageError(
                    f"{topic}-{number}: the lake ends at {next_offset}, Kafka's log at {end}: it has lost what the lake holds, "
                    "or it is another topic of the same name; make a new lake, or restore this one's into a new topic"
                )
    return {topic: found.partitions for topic, found in facts.items()}


def rdkafka() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise UsageError("Kafka clusters need librdkafka: pip install 'headstone[kafka]'") from error
    return confluent_kafka
