"""Who is not known to have everything, and since when: one look at a topic, added to what was known.

Owns the guard's memory of replicas, committed ends and retentions, and what counts as having everything. Decides nothing.
"""

from __future__ import annotations

from dataclasses import replace

from headstone.coordination.danger import CommittedEnd, Margins, Retention, danger, still_complete_ms
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Away,
    Complete,
    Configs,
    Memory,
    PartitionSeen,
    ReplicaSeen,
    TopicSeen,
)
from headstone.coordination.watermarks import group_watermarks

ENDS_MAX = 128
"""Per partition. Forgetting the oldest is safe: a replica that lost more than that has no slack."""


def is_held(overrides: Configs) -> bool:
    values = dict(overrides)
    return all(values.get(name) == value for name, value in HOLD)


def is_held_by_default(overrides: Configs) -> bool:
    values = dict(overrides)
    return all(values.get(name) == value for name, value in DEFAULT_HOLD)


def shows_hold(seen: TopicSeen) -> bool:
    """The topic's overrides do; or every live broker says it itself, which an older answer does not belie."""
    return is_held(seen.overrides) or (bool(seen.alive) and set(seen.alive) <= set(seen.held_on))


def in_effect(memory: Memory) -> bool:
    """Every live broker has said itself that it has the hold, and nobody was seen to undo it since."""
    return memory.hold is not None and memory.hold.confirmed_ms is not None and memory.hold.released_ms is None


def is_covered(partition: PartitionSeen) -> bool:
    """Every replica, one that is away too, is known to be clean beyond all that was committed: nothing is missed.

    What could go then is below MTRO and MXRO. A claim above the end of a replica's log is of another log, or a lie: it
    counts as none. One that is too low only delays.
    """
    claims = [
        replica.watermarks
        for replica in partition.replicas
        if replica.watermarks is not None
        and (replica.log_end is None or max(replica.watermarks.mcco, replica.watermarks.mxfo) <= replica.log_end)
    ]
    if partition.committed_end is None or not claims or len(claims) < len(partition.replicas):
        return False
    group = group_watermarks(claims)
    return partition.committed_end <= min(group.mtro, group.mxro)


def learn_retentions(memory: Memory, seen: TopicSeen, margins: Margins) -> Memory:
    """A new value may have been in force since the old one was last told, or longer if that answer was old; the old one
    for as long as a broker's metadata may lag."""
    spans = memory.retentions
    if not spans:
        spans = (Retention(retention_ms=seen.delete_retention_ms),)
    elif spans[-1].retention_ms != seen.delete_retention_ms:
        assert memory.retention_seen_ms is not None
        ended = replace(spans[-1], until_ms=seen.asked_ms + margins.metadata_age_ms)
        since_ms = memory.retention_seen_ms - margins.metadata_age_ms
        new = Retention(retention_ms=seen.delete_retention_ms, since_ms=since_ms)
        spans = (*spans[:-1], ended, new)
    # As far back as `still_complete_ms` may go.
    known = [
        *(c.complete_ms for c in memory.complete),
        *(a.complete_ms for a in memory.away if a.complete_ms is not None),
        *(end.asked_ms for _, end in memory.ends),
    ]
    oldest = min(known, default=0)
    return replace(
        memory, retentions=tuple(span for span in spans if span.until_ms >= oldest), retention_seen_ms=seen.asked_ms
    )


def learn_ends(memory: Memory, seen: TopicSeen) -> Memory:
    """Of looks at which the same was committed only the first and the latest are kept: from when on, and until when."""
    kept: list[tuple[int, CommittedEnd]] = []
    for partition in seen.partitions:
        ends = [end for number, end in memory.ends if number == partition.partition]
        if partition.committed_end is not None:
            if [end.offset for end in ends[-2:]] == [partition.committed_end] * 2:
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
                    partition=partition.partition, broker=replica.broker, since_ms=seen.asked_ms, complete_ms=None,
                    unread=True,
                )  # fmt: skip
            if absence is None:
                absence = _absence(memory, seen, partition, replica, known, first_look=first_look, margins=margins)
            if absence is None:
                complete_ms = max(seen.asked_ms - margins.metadata_age_ms, known or 0)
                complete.append(
                    Complete(partition=partition.partition, broker=replica.broker, complete_ms=complete_ms)
                )  # fmt: skip
            else:
                away.append(_looked_at(absence, memory, seen, partition, replica, margins))
        away += _expelled(memory, seen, partition)
    return replace(memory, complete=tuple(complete), away=tuple(away))


def _absence(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, replica: ReplicaSeen, known: int | None, *,
    first_look: bool, margins: Margins,
) -> Away | None:  # fmt: skip
    """A replica that was fine, or not known at all. What was before the guard's first look is the audit's to find."""
    in_sync = replica.broker in partition.isr
    if in_sync:
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
    return Away(
        partition=partition.partition, broker=replica.broker, since_ms=seen.asked_ms, complete_ms=known,
        unread=in_sync or (known is None and not first_look),
    )  # fmt: skip


def _looked_at(
    absence: Away, memory: Memory, seen: TopicSeen, partition: PartitionSeen, replica: ReplicaSeen, margins: Margins
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
        if is_covered(partition) and _was_safe(complete_ms, memory, seen, partition, margins):
            complete_ms = max(complete_ms or 0, seen.asked_ms - margins.metadata_age_ms)
    return replace(absence, returned_ms=returned_ms, complete_ms=complete_ms)


def _was_safe(
    complete_ms: int | None, memory: Memory, seen: TopicSeen, partition: PartitionSeen, margins: Margins
) -> bool:
    """What agents claim of a replica that missed a deletion for good sounds the same: it counts only before it can have."""
    limit = danger(
        complete=complete_ms, retentions=memory.retentions, horizon_ms=partition.horizon_ms, skew_ms=memory.skew_ms,
        margins=margins,
    )  # fmt: skip
    return complete_ms is not None and (seen.asked_ms < limit.unsafe_ms or in_effect(memory))


def _expelled(memory: Memory, seen: TopicSeen, partition: PartitionSeen) -> list[Away]:
    """Those that the guard itself took out of the assignment; whom a person took out is nobody's concern any more."""
    assigned = {replica.broker for replica in partition.replicas}
    ours = [a for a in memory.away if a.partition == partition.partition and a.order and a.broker not in assigned]
    return [a if a.expelled_ms is not None else replace(a, expelled_ms=seen.asked_ms, returned_ms=None) for a in ours]


def _complete(memory: Memory, partition: int, broker: int) -> int | None:
    return next((c.complete_ms for c in memory.complete if (c.partition, c.broker) == (partition, broker)), None)


def _away(memory: Memory, partition: int, broker: int) -> Away | None:
    return next((a for a in memory.away if (a.partition, a.broker) == (partition, broker)), None)
