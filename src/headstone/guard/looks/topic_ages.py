"""Since when a topic may have been there: the newest look that would have shown it, and did not.

Owns what counts as such a look: one at all topics, none of them with an error, by a user who may describe whatever name there
is. Who may describe only some is shown others without a word once it may; and one topic may be denied to whom all others are
shown: what is said here is believed only of partitions that bear it out. Of the guard that stays; a new one knows nothing.
"""

from __future__ import annotations

import secrets

from headstone.cluster.admin import Admin
from headstone.cluster.refusals import UNKNOWN_TOPIC
from headstone.cluster.wire import ClusterState
from headstone.errors import Unfinished

NEW_MS = 3_600_000
"""Of a topic that was first shown longer ago it need not be known any more: who looks has decided by then."""


class Sightings:
    """By topic id. A topic that is made anew under its old name has another."""

    def __init__(self) -> None:
        self._whole_ms: int | None = None
        self._unseen_ms: dict[str, int | None] = {}

    def unseen_ms(self, admin: Admin, state: ClusterState, asked_ms: int) -> dict[str, int]:
        """Of topics of this look, by name: when a look was asked that did not show them because they were not there."""
        unseen_ms = self._unseen_ms
        self._unseen_ms = {number: unseen_ms.get(number, self._whole_ms) for number in state.topic_ids.values()}
        if _is_whole(admin, state):
            self._whole_ms = asked_ms
        unseen = {name: self._unseen_ms[number] for name, number in state.topic_ids.items()}
        return {name: ms for name, ms in unseen.items() if ms is not None and asked_ms - ms <= NEW_MS}


def _is_whole(admin: Admin, state: ClusterState) -> bool:
    """Whoever may describe everything is told of a name that nobody has that there is no such topic; others, that they may
    not ask."""
    if any(-1 in partitions for partitions in state.topics.values()) or state.topics.keys() - state.topic_ids.keys():
        return False
    name = secrets.token_hex(16)
    try:
        states = admin.describe([name]).topics.get(name, {})
    except Unfinished:
        return False
    return [partition.error for partition in states.values()] == [UNKNOWN_TOPIC]
