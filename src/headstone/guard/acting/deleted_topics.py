"""Closes what the journal has about deleted topics, also when a new topic has the same name.

A topic's hold goes with the topic, and so do the temporary overrides of a readmission. The cluster default stays, and is
restored once no topic needs it. For a topic that exists but needs no guard, only the guard's memory is deleted. Finding out
which topics are gone is not done here.
"""

from __future__ import annotations

from collections.abc import Iterable

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Memory, TopicSeen
from headstone.coordination.hold_states import ENDED, state_of
from headstone.errors import Unfinished
from headstone.guard.acting.changes import ENDING, default_restored, restore_default
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change
from headstone.guard.ledger.overrides import Resource, Void
from headstone.guard.ledger.readmissions import alone, keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import default_before, forget_change, temporary_changes

GONE = "topic is gone"
"""Outcome of changes that can no longer be finished or undone."""


PURGE_MS = 86_400_000
"""A topic that is no longer compacted is remembered for this long. A purge switches compaction off only for a while, and if the
topic were forgotten, a replica that leaves meanwhile would already be behind at the guard's first look."""


def is_idle(journal: Journal, memory: Memory, seen: TopicSeen) -> bool:
    """True if the topic has not been compacted for PURGE_MS and has no hold, no absent replica and no open readmission or
    change."""
    if seen.compacted or memory.hold is not None or memory.away:
        return False
    if memory.uncompacted_ms is None or seen.asked_ms - memory.uncompacted_ms < PURGE_MS:
        return False
    open_changes, begun = temporary_changes(journal), open_readmissions(journal)
    return seen.topic not in {temporary.topic for temporary in open_changes} | {
        readmission.topic for readmission in begun
    }


def forget_idle(journal: Journal, topic: str, *, why: str) -> str:
    """The topic still exists, and its settings stay: only the guard's memory is deleted. Returns a remark for a person."""
    journal.forget(topic)
    return f"topic {topic}: {why}: what was known of it is forgotten"


def end_topic(journal: Journal, topic: str, *, why: str, now_ms: int) -> str:
    """Forgets everything about the topic except its changes. Changes of brokers made for it are still put back. Returns a
    remark."""
    memory = journal.memory(topic)
    hold, held = memory.hold, state_of(memory) not in ENDED
    for change in journal.unfinished():
        if change.topic == topic and not change.reason.startswith(ENDING):
            journal.end(change.number, GONE, now_ms=now_ms)
    if hold is not None and held:
        ended = Change(
            resource=str(Resource(topic=topic)), topic=topic, old=HOLD, new=hold.found, reason=why, evidence="",
            began_ms=now_ms,
        )  # fmt: skip
        journal.end(journal.begin(ended), GONE, now_ms=now_ms)
    journal.forget(topic)
    _end_readmissions(journal, topic)
    return f"topic {topic}: {why}: what was known of it is forgotten" + (", its hold is gone with it" if held else "")


def _end_readmissions(journal: Journal, topic: str) -> None:
    """If a `guard readmit` is running, it finds out by itself."""
    begun = [readmission for readmission in open_readmissions(journal) if readmission.topic == topic]
    open_changes = [temporary for temporary in temporary_changes(journal) if temporary.topic == topic]
    if not begun and not open_changes:
        return
    try:
        with alone(journal):
            for readmission in begun:
                keep_readmission(journal, readmission, over=True)
            for temporary in open_changes:
                forget_change(journal, temporary)
    except Unfinished:
        return


def release_orphaned_default(
    admin: Admin, journal: Journal, memories: Iterable[Memory], *, now_ms: int, void: Void
) -> list[str]:
    """Restores the cluster default if it is held only for topics that are gone. Returns remarks for a person.

    `memories` are those of all topics in the journal; they are read only if the default is held."""
    if default_before(journal) is None:
        return []
    if any(memory.default_hold is not None for memory in memories):
        return []
    restore = default_restored(journal, DEFAULT_HOLD)
    reason = "the topics that were held by the cluster default are gone: as it was found"
    restore_default(admin, journal, restore, topic="", reason=reason, evidence="", now_ms=now_ms, void=void)
    return [f"cluster default: {reason}"]
