"""Who is not known to have everything, and since when: one look at a topic, added to what was known.

Owns the guard's memory of replicas, committed ends and retentions. Decides nothing.
"""

from __future__ import annotations

from dataclasses import replace

from headstone.coordination.danger import CommittedEnd, Margins, Retention, danger, still_complete_ms
from headstone.coordination.guard_values import (
    HOLD,
    Away,
    Complete,
    Configs,
    Memory,
    PartitionSeen,
    ReplicaSeen,
    TopicSeen,
)

ENDS_MAX = 128
"""Per partition. Forgetting the oldest is safe: a replica that lost more than that has no slack."""


def is_held(overrides: Configs) -> bool:
    values = dict(overrides)
    return all(values.get(name) == value for name, value in HOLD)


def in_effect(memory: Memory) -> bool:
    """Every live broker has said itself that it has the hold, and nobody was seen to undo it since."""
    return memory.hold is not None and memory.hold.confirmed_ms is not None and memory.hold.released_ms is None


def learn_retentions(memory: Memory, seen: TopicSeen, margins: Margins) -> Memory:
    """A new value may have been in force since the old one was last seen; the old one for as long as metadata may lag."""
    spans = memory.retentions
    if not spans:
        spans = (Retention(retention_ms=seen.delete_retention_ms),)
    elif spans[-1].retention_ms != seen.delete_retention_ms:
        assert memory.retention_seen_ms is not None
        ended = replace(spans[-1], until_ms=seen.asked_ms + margins.metadata_age_ms)
        new = Retention(retention_ms=seen.delete_retention_ms, since_ms=memory.retention_seen_ms)
        spans = (*spans[:-1], ended, new)
    known = [
        *(c.complete_ms for c in memory.complete),
        *(a.complete_ms for a in memory.away if a.complete_ms is not None),
    ]
    oldest = min(known, default=0)
    return replace(
        memory, retentions=tuple(span for span in spans if span.until_ms >= oldest), retention_seen_ms=seen.asked_ms
    )


def learn_ends(memory: Memory, seen: TopicSeen) -> Memory:
    """Only looks at which more was committed are kept: of equal ends the latest says most."""
    kept: list[tuple[int, CommittedEnd]] = []
    for partition in seen.partitions:
        ends = [end for number, end in memory.ends if number == partition.partition]
        if partition.committed_end is not None:
            if ends and ends[-1].offset == partition.committed_end:
                ends.pop()
            ends.append(CommittedEnd(asked_ms=seen.asked_ms, offset=partition.committed_end))
        kept += [(partition.partition, end) for end in ends[-ENDS_MAX:]]
    return replace(memory, ends=tuple(kept))


def learn_absences(memory: Memory, seen: TopicSeen, margins: Margins) -> Memory:
    complete: list[Complete] = []
    away: list[Away] = []
    known_partitions = {*(c.partition for c in memory.complete), *(a.partition for a in memory.away)}
    for partition in seen.partitions:
        first_look = partition.partition not in known_partitions
        for replica in partition.replicas:
            known = _complete(memory, partition.partition, replica.broker)
            absence = _away(memory, partition.partition, replica.broker)
            if absence is not None and absence.expelled_ms is not None:
                # Added again by the guard: a new copy, which never had anything.
                absence = Away(
                    partition=partition.partition, broker=replica.broker, since_ms=seen.asked_ms, complete_ms=None
                )
            if absence is None:
                absence = _absence(memory, seen, partition, replica, known, first_look=first_look, margins=margins)
            if absence is None:
                complete_ms = max(seen.asked_ms - margins.metadata_age_ms, known or 0)
                complete.append(
                    Complete(partition=partition.partition, broker=replica.broker, complete_ms=complete_ms)
                )  # fmt: skip
            else:
                away.append(_looked_at(absence, memory, seen, partition, replica))
        away += _expelled(memory, seen, partition)
    return replace(memory, complete=tuple(complete), away=tuple(away))


def _absence(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, replica: ReplicaSeen, known: int | None, *,
    first_look: bool, margins: Margins,
) -> Away | None:  # fmt: skip
    """A replica that was fine, or not known at all. What was before the guard's first look is the audit's to find."""
    if replica.broker in partition.isr:
        if known is None and first_look:
            return None
        limit = danger(
            complete=known, retentions=memory.retentions, horizon_ms=partition.horizon_ms, skew_ms=memory.skew_ms,
            margins=margins,
        )  # fmt: skip
        # In sync now; but if nobody looked for so long, it may have been away past its moment of danger and come back.
        short = seen.delete_retention_ms < margins.retention_ms_min
        held = in_effect(memory) and is_held(seen.overrides) and known is not None
        if seen.asked_ms + margins.poll_ms < limit.unsafe_ms or held or (short and known is not None):
            return None
    return Away(partition=partition.partition, broker=replica.broker, since_ms=seen.asked_ms, complete_ms=known)


def _looked_at(
    absence: Away, memory: Memory, seen: TopicSeen, partition: PartitionSeen, replica: ReplicaSeen
) -> Away:  # fmt: skip
    """It lost its place again, or is back; and it may have come back with less than it had."""
    if replica.broker not in partition.isr or replica.broker in partition.moving:
        returned_ms = None
    else:
        returned_ms = absence.returned_ms if absence.returned_ms is not None else seen.asked_ms
    complete_ms = absence.complete_ms
    if returned_ms is None:
        ends = tuple(end for number, end in memory.ends if number == partition.partition)
        complete_ms = still_complete_ms(complete_ms, replica.log_end, ends)
    return replace(absence, returned_ms=returned_ms, complete_ms=complete_ms)


def _expelled(memory: Memory, seen: TopicSeen, partition: PartitionSeen) -> list[Away]:
    """Those that the guard itself took out of the assignment; whom a person took out is nobody's concern any more."""
    assigned = {replica.broker for replica in partition.replicas}
    ours = [a for a in memory.away if a.partition == partition.partition and a.order and a.broker not in assigned]
    return [a if a.expelled_ms is not None else replace(a, expelled_ms=seen.asked_ms, returned_ms=None) for a in ours]


def _complete(memory: Memory, partition: int, broker: int) -> int | None:
    return next((c.complete_ms for c in memory.complete if (c.partition, c.broker) == (partition, broker)), None)


def _away(memory: Memory, partition: int, broker: int) -> Away | None:
    return next((a for a in memory.away if (a.partition, a.broker) == (partition, broker)), None)
