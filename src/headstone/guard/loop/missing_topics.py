"""Which remembered topics are gone, and which answers still show a topic that is gone.

Owns how long that is doubted: one broker's answer may be old, or the broker may not have loaded its metadata yet.
`acting/deleted_topics.py` closes what is left of a topic that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import TopicSeen
from headstone.guard.ledger.counts import absent_since, keep_absent
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.topic_identity import still_there


class Departures:
    """`age_ms` is how old an answer may be."""

    def __init__(self, journal: Journal, age_ms: int) -> None:
        self._journal, self._age_ms = journal, age_ms
        self.former_ids: dict[str, int] = {}
        """By id, topics that are gone but may still show in an old answer: when that was seen."""

    def unknown(self, admin: Admin, topics: Sequence[str]) -> tuple[str, ...]:
        """Topics that the cluster says it does not know."""
        state = admin.describe(topics) if topics else None
        return tuple(topic for topic in topics if state is not None and not still_there(state, topic, None))

    def gone(self, unknown: Sequence[str], asked_ms: int) -> tuple[str, ...]:
        """Topics that were unknown at looks far enough apart that no old answer explains it."""
        before = absent_since(self._journal)
        absent = {topic: before.get(topic, asked_ms) for topic in unknown}
        if absent != before:
            keep_absent(self._journal, absent)
        return tuple(topic for topic, since_ms in absent.items() if asked_ms - since_ms > self._age_ms)

    def note(self, topic_id: str | None, now_ms: int) -> None:
        """The topic is gone, or another one has its name."""
        if topic_id is not None:
            young = {
                other: ended_ms for other, ended_ms in self.former_ids.items() if now_ms - ended_ms <= self._age_ms
            }
            self.former_ids = {**young, topic_id: now_ms}

    def current(self, topics: Sequence[TopicSeen]) -> tuple[TopicSeen, ...]:
        """Without topics that are gone but show in an old answer. One that still shows later than that does exist."""
        return tuple(seen for seen in topics if not self._is_former(seen))

    def _is_former(self, seen: TopicSeen) -> bool:
        ended_ms = None if seen.topic_id is None else self.former_ids.get(seen.topic_id)
        return ended_ms is not None and seen.asked_ms - ended_ms <= self._age_ms
