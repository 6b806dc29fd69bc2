"""Which topics that the guard remembers are gone, and which answers still show one that is.

Owns how long that is doubted: one broker's word may be old, or of a broker that has not loaded its metadata yet. What
becomes of a topic that is gone is `acting/deleted_topics.py`'s.
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
        """Of topics that are gone, which an old answer may still show: when that was seen."""

    def unknown(self, admin: Admin, topics: Sequence[str]) -> tuple[str, ...]:
        """Those that the cluster says it does not know."""
        state = admin.describe(topics) if topics else None
        return tuple(topic for topic in topics if state is not None and not still_there(state, topic, None))

    def gone(self, unknown: Sequence[str], asked_ms: int) -> tuple[str, ...]:
        """Those that were unknown at looks so far apart that no answer was an old one."""
        before = absent_since(self._journal)
        absent = {topic: before.get(topic, asked_ms) for topic in unknown}
        if absent != before:
            keep_absent(self._journal, absent)
        return tuple(topic for topic, since_ms in absent.items() if asked_ms - since_ms > self._age_ms)

    def note(self, topic_id: str | None, now_ms: int) -> None:
        """It is gone, or another one has its name."""
        if topic_id is not None:
            young = {
                other: ended_ms for other, ended_ms in self.former_ids.items() if now_ms - ended_ms <= self._age_ms
            }
            self.former_ids = {**young, topic_id: now_ms}

    def current(self, topics: Sequence[TopicSeen]) -> tuple[TopicSeen, ...]:
        """Without those that are gone, which an old answer may still show; one that is shown later than that is there."""
        return tuple(seen for seen in topics if not self._is_former(seen))

    def _is_former(self, seen: TopicSeen) -> bool:
        ended_ms = None if seen.topic_id is None else self.former_ids.get(seen.topic_id)
        return ended_ms is not None and seen.asked_ms - ended_ms <= self._age_ms
