"""Ends what the journal has of topics that were deleted: also if one of the same name was made since.

A hold is gone with its topic, and so are overrides that a readmission lent; what stays is what was set elsewhere for its sake,
the cluster default, which is put back once nobody needs it. Of a topic that is there, but has no need of a guard, only the
guard's memory goes: what was set in it is put back by whoever set it. Which topics are gone is found elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from headstone.cluster.admin import Admin
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Memory, TopicSeen
from headstone.errors import Unfinished
from headstone.guard.acting import DEFAULT_FOUND, ENDING, default_restored, restore_default
from headstone.guard.journal import Change, Journal
from headstone.guard.loans import forget_loan, loans
from headstone.guard.overrides import Resource
from headstone.guard.readmission_records import alone, keep_readmission, open_readmissions

GONE = "topic is gone"
"""Outcome of changes that nobody can finish or undo any more."""


def is_idle(journal: Journal, memory: Memory, seen: TopicSeen) -> bool:
    """Nothing is removed from it by key, nobody is owed anything, and nothing that was begun with it is open."""
    if seen.compacted or memory.hold is not None or memory.away:
        return False
    lent, begun = loans(journal), open_readmissions(journal)
    return seen.topic not in {loan.topic for loan in lent} | {readmission.topic for readmission in begun}


def forget_idle(journal: Journal, topic: str, *, why: str) -> str:
    """It is still there, and so is what was set in it: nothing but the memory goes. What is told, in words."""
    journal.forget(topic)
    return f"topic {topic}: {why}: what was known of it is forgotten"


def end_topic(journal: Journal, topic: str, *, why: str, now_ms: int) -> str:
    """All but its changes is forgotten; what is told, in words. What was changed of brokers for its sake is still put back."""
    hold = journal.memory(topic).hold
    held = hold is not None and hold.released_ms is None
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
    lent = [loan for loan in loans(journal) if loan.topic == topic]
    if not begun and not lent:
        return
    try:
        with alone(journal):
            for readmission in begun:
                keep_readmission(journal, readmission, over=True)
            for loan in lent:
                forget_loan(journal, loan)
    except Unfinished:
        return


def release_orphaned_default(admin: Admin, journal: Journal, memories: Iterable[Memory], *, now_ms: int) -> list[str]:
    """Held by the cluster default for topics that are gone by now: as it was found. What is told, in words.

    `memories` are of all topics that the journal knows; nobody looks at them unless something is held by the default."""
    if journal.fact(DEFAULT_FOUND) is None:
        return []
    if any(memory.default_hold is not None for memory in memories):
        return []
    restore = default_restored(journal, DEFAULT_HOLD)
    reason = "the topics that were held by the cluster default are gone: as it was found"
    restore_default(admin, journal, restore, topic="", reason=reason, evidence="", now_ms=now_ms)
    return [f"cluster default: {reason}"]
