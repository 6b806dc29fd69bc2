"""Topics of a running cluster: partitions, where their logs begin and end, settings, ids; and new ones.

What they are, not what it means: which settings are taken over, and what is refused, is the lake's.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstone.cluster.connection import SECONDS_MAX
from headstone.cluster.librdkafka import Clients
from headstone.errors import Unfinished

TIMES_KNOWN = 3
"""In a row, so that it was not only one broker."""
PAUSE_S = 0.1
KNOWN_SECONDS_MAX = 60.0
"""Longer than for one answer: brokers do answer, and each look is several questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """`settings` are all that are in force; None: whoever asks may not know them."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    kafka_id: str | None
    settings: Mapping[str, str] | None
    settings_of_its_own: frozenset[str] = frozenset()


def describe(clients: Clients, topics: Sequence[str]) -> dict[str, Topic]:
    """Those that are there."""
    admin = clients.admin()
    with clients.telling(admin):
        there = admin.list_topics(timeout=SECONDS_MAX).topics
    present = [topic for topic in topics if topic in there]
    ids = topic_ids(clients, present)
    with clients.consumer() as consumer, clients.telling(consumer):
        return {topic: _topic(clients, admin, consumer, topic, len(there[topic].partitions), ids) for topic in present}


def topic_ids(clients: Clients, topics: Sequence[str]) -> dict[str, str | None]:
    """As Kafka writes them; None from a cluster that gives none."""
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
        ids[topic] = base64.urlsafe_b64encode(bits).decode().rstrip("=") if any(bits) else None
    return ids


def _topic(
    clients: Clients, admin: Any, consumer: Any, topic: str, partitions: int, ids: Mapping[str, str | None]
) -> Topic:
    edges = [
        consumer.get_watermark_offsets(clients.module.TopicPartition(topic, number), timeout=SECONDS_MAX)
        for number in range(partitions)
    ]
    settings, own = _settings(clients, admin, topic)
    return Topic(
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
        return None, frozenset()  # may read, may not describe
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
    """The controller has made it; the others hear of it a little later, and any of them may be asked next."""
    times, until_s, last = 0, time.monotonic() + KNOWN_SECONDS_MAX, "not all brokers know of it"
    while times < TIMES_KNOWN:
        try:
            times = times + 1 if topic in describe(clients, [topic]) else 0
        except Unfinished as error:
            times, last = 0, str(error)
        if time.monotonic() > until_s:
            raise Unfinished(f"{topic} was made, but: {last}; run the same command again")
        if not times:
            time.sleep(PAUSE_S)
