"""Whether a topic is still the same one: if it was deleted and created again under its name, it has another id.

What was remembered, held or changed for the old topic says nothing about the new one. Asks only; `acting/deleted_topics.py`
closes what is left of the old topic.
"""

from __future__ import annotations

from headstone.cluster.admin import Admin
from headstone.cluster.refusals import UNKNOWN_TOPIC
from headstone.cluster.wire import ClusterState
from headstone.coordination.guard_values import Memory, TopicSeen
from headstone.errors import Unfinished


def is_another(memory: Memory, seen: TopicSeen) -> bool:
    """False if the cluster gives no topic ids."""
    return None not in (memory.topic_id, seen.topic_id) and memory.topic_id != seen.topic_id


def still_there(state: ClusterState, topic: str, topic_id: str | None) -> bool:
    """False only if the cluster says so: the topic was deleted, or has an id other than `topic_id`."""
    if any(partition.error == UNKNOWN_TOPIC for partition in state.topics.get(topic, {}).values()):
        return False
    return topic_id is None or state.topic_ids.get(topic, topic_id) == topic_id


def refuse_another(admin: Admin, topic: str, topic_id: str | None) -> None:
    """Call just before changing a topic, so that a decision about the old topic is never applied to the new one."""
    if topic_id is not None and not still_there(admin.describe([topic]), topic, topic_id):
        raise Unfinished(f"topic {topic} was deleted or recreated meanwhile: nothing was changed")
