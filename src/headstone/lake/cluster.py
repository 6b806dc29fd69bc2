"""A Kafka cluster as the lake sees it: which topics and partitions there are, and the settings to reach it.

Settings are librdkafka's, once, for everything; what Spark's Java client calls otherwise is translated here. Needs the extra
`headstone[kafka]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstone.errors import Unfinished, UsageError
from headstone.lake.lake import Lake
from headstone.lake.rows import TopicPartition

SECONDS_MAX = 20.0
COPIED_SETTINGS = (
    "delete.retention.ms", "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "max.compaction.lag.ms",
)  # fmt: skip
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    partitions: int
    starts: tuple[int, ...]
    settings: Mapping[str, str]


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
            return {topic: _facts(rd, admin, consumer, topic, len(known[topic].partitions)) for topic in topics}
        finally:
            consumer.close()
    except rd.KafkaException as error:
        raise Unfinished(f"{settings.get('bootstrap.servers')}: {error.args[0].str()}") from error


def _facts(rd: Any, admin: Any, consumer: Any, topic: str, partitions: int) -> TopicFacts:
    starts = [
        consumer.get_watermark_offsets(rd.TopicPartition(topic, number), timeout=SECONDS_MAX)[0]
        for number in range(partitions)
    ]
    resource = rd.admin.ConfigResource(rd.admin.ResourceType.TOPIC, topic)
    try:
        configs = admin.describe_configs([resource])[resource].result(SECONDS_MAX)
        settings = {name: configs[name].value for name in COPIED_SETTINGS if name in configs}
    except rd.KafkaException:  # may read, may not describe: Kafka's defaults then
        settings = {}
    return TopicFacts(partitions=partitions, starts=tuple(starts), settings=settings)


def prepare(lake: Lake, facts: Mapping[str, TopicFacts]) -> dict[str, int]:
    """Topics and partitions that the lake does not have yet are made; a gap between lake and cluster is refused."""
    known = lake.metastore.topics()
    for topic, found in facts.items():
        if topic not in known:
            lake.metastore.create_topic(topic, found.partitions, found.settings)
        lake.metastore.add_partitions(topic, found.partitions)
        for number, start in enumerate(found.starts):
            next_offset = lake.metastore.partition(TopicPartition(topic, number)).next_offset
            if 0 < next_offset < start:
                raise UsageError(
                    f"{topic}-{number}: the lake ends at {next_offset}, Kafka's log begins at {start}: what lies between is "
                    "missing; make a new lake"
                )
    return {topic: found.partitions for topic, found in facts.items()}


def rdkafka() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise UsageError("Kafka clusters need librdkafka: pip install 'headstone[kafka]'") from error
    return confluent_kafka
