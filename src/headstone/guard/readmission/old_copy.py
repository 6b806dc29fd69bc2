"""Asks a broker whether it has a copy of a partition, before the replica is added again.

When a replica is assigned again, its broker continues with whatever copy it has, right or wrong; even if it comes back later,
or hears of removal and addition at once. Metadata cannot show that, only the broker itself can.
"""

from __future__ import annotations

from headstone.cluster.admin import Admin
from headstone.cluster.refusals import NoAnswer
from headstone.log.topic_partition import TopicPartition

NO_COPY = -1


def copy_bytes(admin: Admin, partition: TopicPartition, broker: int) -> int | None:
    """The size of its copy in bytes; NO_COPY if it has none, None if it does not answer."""
    try:
        replicas = admin.log_dirs(broker)
    except NoAnswer:
        return None
    return replicas[partition].size if partition in replicas else NO_COPY
