"""Whether a broker has a copy of a partition, by its own word: asked before a replica is added again.

A broker goes on with whatever copy it has, right or wrong, when it is assigned again: also if it comes back later, or hears of
being expelled and added at once. Metadata cannot say so; only the broker itself can.
"""

from __future__ import annotations

from headstone.cluster.admin import Admin
from headstone.cluster.refusals import NoAnswer
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition

NO_COPY = -1


def copy_bytes(admin: Admin, partition: TopicPartition, broker: int) -> int | None:
    """How large its copy is; NO_COPY if it has none, None if it does not answer."""
    try:
        replicas = admin.log_dirs(broker)
    except NoAnswer:
        return None
    return replicas[partition].size if partition in replicas else NO_COPY


def refuse_old_copy(admin: Admin, partition: TopicPartition, broker: int) -> None:
    """Unfinished as long as it would go on with what it has: ask again later."""
    size = copy_bytes(admin, partition, broker)
    if size is None:
        raise Unfinished(f"{partition}: broker {broker} does not answer; it is added again when its old copy is gone")
    if size != NO_COPY:
        raise Unfinished(f"{partition}: broker {broker} still has its old copy; it is added again when that is gone")
