"""Since when a topic may have existed: the newest look that would have shown it and did not.

Owns which looks count: those at all topics, without an error for any of them, by a user who may describe any name. A user who
may describe only some topics suddenly sees others once permitted. One topic may also be denied to a user who sees all others,
so the result is believed only for partitions that bear it out. Known only to a guard that keeps running; a new one knows
nothing.
"""

from __future__ import annotations

import secrets

from headstone.cluster.admin import Admin
from headstone.cluster.refusals import UNKNOWN_TOPIC
from headstone.cluster.wire import ClusterState
from headstone.errors import Unfinished

NEW_MS = 3_600_000
"""A topic first shown longer ago than this is not reported any more: by then the guard has decided."""


class Sightings:
    """By topic id: a topic that is created again under its old name has another one."""

    def __init__(self) -> None:
        self._whole_ms: int | None = None
        self._unseen_ms: dict[str, int | None] = {}

    def unseen_ms(self, admin: Admin, state: ClusterState, asked_ms: int) -> dict[str, int]:
        """By name, for topics of this look: when the last look was made that did not show them because they did not exist."""
        unseen_ms = self._unseen_ms
        self._unseen_ms = {number: unseen_ms.get(number, self._whole_ms) for number in state.topic_ids.values()}
        if _is_whole(admin, state):
            self._whole_ms = asked_ms
        unseen = {name: self._unseen_ms[number] for name, number in state.topic_ids.items()}
        return {name: ms for name, ms in unseen.items() if ms is not None and asked_ms - ms <= NEW_MS}


def _is_whole(admin: Admin, state: ClusterState) -> bool:
    """True if this user may describe everything: then a name that does not exist is answered with "unknown topic". Other users
    are told that they may not ask."""
    if any(-1 in partitions for partitions in state.topics.values()) or state.topics.keys() - state.topic_ids.keys():
        return False
    name = secrets.token_hex(16)
    try:
        states = admin.describe([name]).topics.get(name, {})
    except Unfinished:
        return False
    return [partition.error for partition in states.values()] == [UNKNOWN_TOPIC]
