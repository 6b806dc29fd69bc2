"""What readings say about a replica: whether it is right, how much of it must be read, and what it may be copied from.

Values in, answers out. `guarding.py` decides when a replica is read and what is done about it.
"""

from __future__ import annotations

from headstone.coordination.absences import has_below, in_effect
from headstone.coordination.guard_values import Away, Memory, OffsetSpan, PartitionSeen, ReplicaSeen, TopicSeen, Verdict


def missed_span(memory: Memory, partition: PartitionSeen, away: Away) -> OffsetSpan | None:
    """The span that the replica lacked, if nothing there can have been removed; None if it came too late or is unread, if the
    hold is not in effect, or if the span is unknown."""
    below, end = has_below(memory, away), partition.committed_end
    if away.too_late or away.unread or not in_effect(memory) or below is None or end is None:
        return None
    return OffsetSpan(start=below, end=max(below, end))


def verdict_of(partition: PartitionSeen, away: Away) -> Verdict | None:
    """Only a reading that began after the replica was in sync again says anything about what it missed."""
    for replica in partition.replicas:
        if replica.broker == away.broker and away.returned_ms is not None and replica.read_ms >= away.returned_ms:
            return replica.verdict
    return None


def source_of(partition: PartitionSeen, away: Away) -> ReplicaSeen | None:
    """The replica that would lead, and so be copied, if this one were expelled."""
    in_sync = [r for r in partition.replicas if r.broker in partition.isr and r.broker != away.broker]
    return next((r for r in in_sync if r.broker == partition.leader), in_sync[0] if in_sync else None)


def has_source(memory: Memory, partition: PartitionSeen, away: Away) -> bool:
    """No replica is given up for a copy of one that may be wrong, according to the reading that judged this one, if there was
    one. If two cannot be judged, either may be at fault. A source that was away itself must have been found right since."""
    source = source_of(partition, away)
    if source is None or source.verdict is Verdict.WRONG:
        return False
    suspects = [a for a in memory.away if (a.partition, a.broker) == (partition.partition, source.broker)]
    if any(verdict_of(partition, suspect) is not Verdict.RIGHT for suspect in suspects):
        return False
    return away.returned_ms is None or (source.verdict is Verdict.RIGHT and source.read_ms >= away.returned_ms)


def was_read(partition: PartitionSeen, away: Away, before_ms: int) -> bool:
    return any(r.broker == away.broker and r.read_ms <= before_ms for r in partition.replicas)


def is_dispensable(partition: PartitionSeen, away: Away, seen: TopicSeen) -> bool:
    """Never below min.insync.replicas, and never the last replica in sync."""
    remaining = [broker for broker in partition.isr if broker != away.broker]
    return len(remaining) >= max(1, seen.in_sync_min)
