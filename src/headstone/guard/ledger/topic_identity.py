"""Whether a topic is still the one that was meant: deleted and made anew under its old name, it has another id.

What was remembered of the old one, held or changed for it says nothing of the new one. Asks; what becomes of it is ended by
`acting/deleted_topics.py`.
"""

from __future__ import annotations

from headstone.cluster.admin import Admin
from headstone.cluster.refusals import UNKNOWN_TOPIC
from headstone.cluster.wire import ClusterState
from headstone.coordination.guard_values import Memory, TopicSeen
from headstone.errors import Unfinished


def is_another(memory: Memory, seen: TopicSeen) -> bool:
    """Of a cluster that gives no ids nobody can tell."""
    return None not in (memory.topic_id, seen.topic_id) and memory.topic_id != seen.topic_id


def still_there(state: ClusterState, topic: str, topic_id: str | None) -> bool:
    """False only if the cluster says so: the topic was deleted, or has another id than this one."""
    if any(partition.error == UNKNOWN_TOPIC for partition in state.topics.get(topic, {}).values()):
        return False
    return topic_id is None or state.topic_ids.get(topic, topic_id) == topic_id


def refuse_another(admin: Admin, topic: str, topic_id: str | None) -> None:
    """Asked just before a topic is changed: nothing that was decided for the old one is done to the new one."""
    if topic_id is not None and not still_there(admin.describe([topic]), topic, topic_id):
        raise Unfinished(f"topic {topic} was deleted or recreated meanwhile: nothing was changed")
