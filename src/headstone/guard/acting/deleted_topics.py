"""Ends what the journal has of topics that were deleted: also if one of the same name was made since.

A hold goes with its topic, and so do the temporary overrides of a readmission. The cluster default stays: it is put back
once no topic needs it. Of a topic that still exists but needs no guard, only the guard's memory goes; its overrides are put
back by whoever set them. Which topics are gone is found elsewhere.
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
"""Outcome of changes that nobody can finish or undo any more."""


PURGE_MS = 86_400_000
"""So long a topic that is not compacted is remembered: a purge switches it off for a while only, and a replica that leaves
meanwhile would be behind at a first look."""


def is_idle(journal: Journal, memory: Memory, seen: TopicSeen) -> bool:
    """Nothing is removed from it by key, nor soon again, nobody is owed anything, nothing that was begun with it is open."""
    if seen.compacted or memory.hold is not None or memory.away:
        return False
    if memory.uncompacted_ms is None or seen.asked_ms - memory.uncompacted_ms < PURGE_MS:
        return False
    open_changes, begun = temporary_changes(journal), open_readmissions(journal)
    return seen.topic not in {temporary.topic for temporary in open_changes} | {
        readmission.topic for readmission in begun
    }


def forget_idle(journal: Journal, topic: str, *, why: str) -> str:
    """It is still there, and so is what was set in it: nothing but the memory goes. What is told, in words."""
    journal.forget(topic)
    return f"topic {topic}: {why}: what was known of it is forgotten"


def end_topic(journal: Journal, topic: str, *, why: str, now_ms: int) -> str:
    """All but its changes is forgotten; what is told, in words. What was changed of brokers for its sake is still put back."""
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
    """Left to a `guard readmit` that is at work: it finds out itself."""
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
    """Held by the cluster default for topics that are gone by now: as it was found. What is told, in words.

    `memories` are of all topics that the journal knows; nobody looks at them unless something is held by the default."""
    if default_before(journal) is None:
        return []
    if any(memory.default_hold is not None for memory in memories):
        return []
    restore = default_restored(journal, DEFAULT_HOLD)
    reason = "the topics that were held by the cluster default are gone: as it was found"
    restore_default(admin, journal, restore, topic="", reason=reason, evidence="", now_ms=now_ms, void=void)
    return [f"cluster default: {reason}"]
