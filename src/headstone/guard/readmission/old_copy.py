"""Whether a broker has a copy of a partition, by its own word: asked before a replica is added again.

A broker goes on with whatever copy it has, right or wrong, when it is assigned again: also if it comes back later, or hears of
being expelled and added at once. Metadata cannot say so; only the broker itself can.
"""

from __future__ import annotations

from headstone.cluster.admin import Admin
from headstone.cluster.refusals import NoAnswer
from headstone.log.topic_partition import TopicPartition

NO_COPY = -1


def copy_bytes(admin: Admin, partition: TopicPartition, broker: int) -> int | None:
    """How large its copy is; NO_COPY if it has none, None if it does not answer."""
    try:
        replicas = admin.log_dirs(broker)
    except NoAnswer:
        return None
    return replicas[partition].size if partition in replicas else NO_COPY
