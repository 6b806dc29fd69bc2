"""Topics of a running cluster: partitions, where their logs begin and end, settings, ids; also creates topics.

Facts only: the lake decides which settings are taken over, and what is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headstone.cluster.connection import SECONDS_MAX, Connection, Host, WireSettings, wire_settings
from headstone.cluster.encoding import uuid_text
from headstone.cluster.librdkafka import Clients
from headstone.cluster.questions import DESCRIBE_TOPIC, list_offsets
from headstone.cluster.refusals import refusal
from headstone.cluster.wire import BrokerConnection, ask_cluster
from headstone.errors import Unfinished, UsageError
from headstone.interruption import sleep
from headstone.log.topic_partition import TopicPartition

SECURITY = ("sasl.", "ssl.", "enable.ssl.")
"""How names of security settings begin."""
TIMES_KNOWN = 3
"""In a row, so that not just one broker knows the topic; for clusters that only librdkafka can reach: it chooses the broker."""
PAUSE_S = 0.1
KNOWN_SECONDS_MAX = 60.0
"""Longer than for one answer: brokers do answer, and each look takes several requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopic:
    """`settings` are all that are in force; None if this user may not see them."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    kafka_id: str | None
    settings: Mapping[str, str] | None
    settings_of_its_own: frozenset[str] = frozenset()


def describe(clients: Clients, topics: Sequence[str]) -> dict[str, ClusterTopic]:
    """Only those that exist."""
    admin = clients.admin()
    with clients.telling(admin):
        there = admin.list_topics(timeout=SECONDS_MAX).topics
    present = [topic for topic in topics if topic in there]
    ids = topic_ids(clients, present)
    with clients.consumer() as consumer, clients.telling(consumer):
        return {topic: _topic(clients, admin, consumer, topic, len(there[topic].partitions), ids) for topic in present}


def topic_ids(clients: Clients, topics: Sequence[str]) -> dict[str, str | None]:
    """As Kafka writes them; None if the cluster gives none."""
    if not topics:
        return {}
    admin = clients.admin()
    asked = admin.describe_topics(clients.module.TopicCollection(list(topics)), request_timeout=SECONDS_MAX)
    ids = {}
    for topic, answer in asked.items():
        with clients.telling(admin, f"{topic}: "):
            given = answer.result(SECONDS_MAX).topic_id
        halves = (given.get_most_significant_bits(), given.get_least_significant_bits()) if given else (0, 0)
        bits = b"".join(half.to_bytes(8, "big", signed=True) for half in halves)
        ids[topic] = uuid_text(bits)
    return ids


def _topic(
    clients: Clients, admin: Any, consumer: Any, topic: str, partitions: int, ids: Mapping[str, str | None]
) -> ClusterTopic:
    edges = [
        consumer.get_watermark_offsets(clients.module.TopicPartition(topic, number), timeout=SECONDS_MAX)
        for number in range(partitions)
    ]
    settings, own = _settings(clients, admin, topic)
    return ClusterTopic(
        starts=tuple(low for low, _ in edges), ends=tuple(high for _, high in edges), kafka_id=ids[topic],
        settings=settings, settings_of_its_own=own,
    )  # fmt: skip


def _settings(clients: Clients, admin: Any, topic: str) -> tuple[dict[str, str] | None, frozenset[str]]:
    kinds = clients.module.admin
    resource = kinds.ConfigResource(kinds.ResourceType.TOPIC, topic)
    try:
        configs = admin.describe_configs([resource], request_timeout=SECONDS_MAX)[resource].result(SECONDS_MAX)
    except clients.module.KafkaException as error:
        if error.args[0].code() in (clients.module.KafkaError._TIMED_OUT, clients.module.KafkaError._TRANSPORT):
            raise
        return None, frozenset()  # may read, but not describe
    own = kinds.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    settings = {name: entry.value for name, entry in configs.items() if entry.value is not None}
    return settings, frozenset(name for name in settings if configs[name].source == own)


def create_topic(clients: Clients, topic: str, *, partitions: int, copies: int, settings: Mapping[str, str]) -> None:
    admin = clients.admin()
    made = clients.module.admin.NewTopic(
        topic, num_partitions=partitions, replication_factor=copies, config=dict(settings)
    )
    with clients.telling(admin, f"{topic}: "):
        admin.create_topics([made], request_timeout=SECONDS_MAX)[topic].result(SECONDS_MAX)
    _wait_until_known(clients, topic)


def _wait_until_known(clients: Clients, topic: str) -> None:
    """The controller has created it. Other brokers learn of it a little later, and any of them may be asked next."""
    times, until_s, why = 0, time.monotonic() + KNOWN_SECONDS_MAX, "not all brokers know of it"
    settings = own_settings(clients.connection)
    while times < (TIMES_KNOWN if settings is None else 1):
        try:
            unaware = [] if settings is None else unaware_brokers(clients.connection, settings, topic)
            times = times + 1 if not unaware and topic in describe(clients, [topic]) else 0
            why = f"brokers {unaware} do not know of it" if unaware else why
        except Unfinished as error:
            times, why = 0, str(error)
        if time.monotonic() > until_s:
            raise Unfinished(f"{topic} was created, but: {why}; run the same command again")
        if not times:
            sleep(PAUSE_S)


def log_end(clients: Clients, partition: TopicPartition) -> int:
    """The leader's log end, including records that not all in-sync replicas have yet.

    No isolation level shows that: consumers get the high watermark, or less (the last stable offset). Replicas get the end of
    the log, and from the leader alone. If only librdkafka can connect, this is the high watermark."""
    settings = own_settings(clients.connection)
    if settings is None:
        with clients.consumer() as consumer, clients.telling(consumer, f"{partition}: "):
            where = clients.module.TopicPartition(partition.topic, partition.number)
            return int(consumer.get_watermark_offsets(where, timeout=SECONDS_MAX)[1])
    until_s = time.monotonic() + KNOWN_SECONDS_MAX
    while True:
        try:
            return leaders_end(clients.connection, settings, partition)
        except Unfinished:  # another broker is about to lead
            if time.monotonic() > until_s:
                raise
        sleep(PAUSE_S)


def leaders_end(connection: Connection, settings: WireSettings, partition: TopicPartition) -> int:
    state = ask_cluster(connection, settings, [partition.topic])
    leader = state.topics.get(partition.topic, {}).get(partition.number)
    if leader is None or leader.leader not in state.brokers:
        raise Unfinished(f"{connection.address}: {partition} has no leader; run the same command again")
    node = state.brokers[leader.leader]
    with BrokerConnection(Host(node.host, node.port), settings, proved=True) as broker:
        answer = list_offsets(broker, [partition], replica=node.number)[partition]
    if answer.error:
        raise refusal(f"{node.host}:{node.port}", f"end of {partition}", answer.error, permission=DESCRIBE_TOPIC)
    return answer.offset


def own_settings(connection: Connection) -> WireSettings | None:
    """For our own client, beside librdkafka; None if only librdkafka can connect."""
    security = {name: value for name, value in connection.for_librdkafka.items() if name.startswith(SECURITY)}
    try:
        return wire_settings(replace(connection, for_librdkafka=security, for_java={}))
    except UsageError:
        return None


def unaware_brokers(connection: Connection, settings: WireSettings, topic: str) -> list[int]:
    """Brokers that do not describe the topic yet, or know no leader for one of its partitions. Asks each broker."""
    unaware = []
    for node in sorted(ask_cluster(connection, settings, []).brokers.values()):
        with BrokerConnection(Host(node.host, node.port), settings, proved=True) as broker:
            partitions = broker.metadata([topic]).topics.get(topic, {})
        if not partitions or any(state.error or state.leader is None for state in partitions.values()):
            unaware.append(node.number)
    return unaware
