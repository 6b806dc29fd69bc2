"""Consumer groups of a running cluster: reads their committed offsets, and commits new ones for groups without members.

The lake decides what an offset means and which one is right.
"""

from __future__ import annotations

from collections.abc import Mapping

from headstone.cluster.connection import SECONDS_MAX
from headstone.cluster.librdkafka import Clients


def committed(clients: Clients, group: str, topic: str) -> dict[int, int]:
    """By partition; an unknown group has committed nothing."""
    admin = clients.admin()
    asked = admin.list_consumer_group_offsets(
        [clients.module.ConsumerGroupTopicPartitions(group)], request_timeout=SECONDS_MAX
    )
    with clients.telling(admin, f"group {group}: "):
        answer = asked[group].result(SECONDS_MAX)
    offsets = [one for one in answer.topic_partitions or () if one.topic == topic and one.error is None]
    return {one.partition: one.offset for one in offsets if one.offset >= 0}


def commit(clients: Clients, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    module = clients.module
    admin = clients.admin()
    wanted = [module.TopicPartition(topic, number, offset) for number, offset in sorted(offsets.items())]
    asked = admin.alter_consumer_group_offsets(
        [module.ConsumerGroupTopicPartitions(group, wanted)], request_timeout=SECONDS_MAX
    )
    with clients.telling(admin, f"group {group}: "):
        answer = asked[group].result(SECONDS_MAX)
        for partition in answer.topic_partitions:
            if partition.error is not None:
                raise module.KafkaException(partition.error)
