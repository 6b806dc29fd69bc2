"""Which replicas are not known to have everything, and since when: adds one look at a topic to the memory.

Owns the guard's memory of replicas, committed ends and retentions, and what counts as complete. Decides nothing.
"""

from __future__ import annotations

from dataclasses import replace

from headstone.coordination.danger import CommittedEnd, Danger, Margins, Retention, danger, still_complete_ms
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Away,
    Complete,
    Configs,
    Memory,
    PartitionSeen,
    ReplicaSeen,
    Skew,
    TopicSeen,
    Verdict,
)

SKEW_RETENTIONS = 2
ENDS_MAX = 128
"""Per partition: the newest, and those before each absent replica left. Forgetting the others is safe: a replica that lost more
than that has no slack."""


def is_held(overrides: Configs) -> bool:
    values = dict(overrides)
    return all(values.get(name) == value for name, value in HOLD)


def is_held_by_default(overrides: Configs | None) -> bool:
    values = dict(overrides or ())
    return all(values.get(name) == value for name, value in DEFAULT_HOLD)


def is_reached_by_default(overrides: Configs) -> bool:
    """Whether a hold by the cluster default holds the topic: none of its own overrides says anything else."""
    held = dict(HOLD)
    return all(value in (None, held[name]) for name, value in overrides)


def shows_hold(seen: TopicSeen) -> bool:
    """The topic's overrides show it; or every live broker confirms it, which an outdated answer does not contradict."""
    return is_held(seen.overrides) or (bool(seen.alive) and set(seen.alive) <= set(seen.held_on))


def in_effect(memory: Memory) -> bool:
    """Every live broker has confirmed the hold, and nobody was seen to undo it since."""
    return memory.hold is not None and memory.hold.confirmed_ms is not None and memory.hold.released_ms is None


def is_still_in_effect(memory: Memory, seen: TopicSeen) -> bool:
    """Also this look shows it. One that does not may be an outdated answer, but nothing may depend on that."""
    hold = memory.hold
    if hold is None or not in_effect(memory):
        return False
    if hold.undone_ms is None:
        return shows_hold(seen)
    return is_held_by_default(seen.default_overrides) and is_reached_by_default(seen.overrides)


def is_too_short(memory: Memory, seen: TopicSeen, margins: Margins) -> bool:
    """True if no look is ever recent enough: known clock differences reduce the retention before the margins do."""
    return seen.delete_retention_ms - memory.skew_ms < margins.retention_ms_min


def known_below(memory: Memory) -> dict[tuple[int, int], int]:
    """By partition and broker: the offset below which an absent replica has every deletion. Replicas without one are left
    out."""
    ends = {(away.partition, away.broker): has_below(memory, away) for away in memory.away}
    return {replica: end for replica, end in ends.items() if end is not None}


def has_below(memory: Memory, away: Away) -> int | None:
    """The offset below which the replica has every deletion; None if unknown. What one look reported as committed was committed
    before the next look asked, so a replica that was complete then has everything below it."""
    if away.counts_from_ms is None:
        return None
    ends = [end for number, end in memory.ends if number == away.partition and end.asked_ms <= away.counts_from_ms]
    return ends[-2].offset if len(ends) > 1 else None


def danger_of(memory: Memory, partition: PartitionSeen, away: Away, margins: Margins) -> Danger:
    return danger(
        complete=away.counts_from_ms, retentions=memory.retentions, horizon_ms=_horizon_ms(memory, partition, away),
        skew_ms=memory.skew_ms, margins=margins,
    )  # fmt: skip


def _horizon_ms(memory: Memory, partition: PartitionSeen, away: Away) -> int | None:
    """Only of what this replica lacks: others may lack more, with stamps that are months old."""
    below = has_below(memory, away) or 0
    seen_ms = next((stamp_ms for offset, stamp_ms in partition.horizons if offset >= below), None)
    return min((ms for ms in (seen_ms, away.horizon_ms) if ms is not None), default=None)


def misses_no_deletion(memory: Memory, partition: PartitionSeen, away: Away) -> bool:
    """True if everything committed that the replica may lack was read and is plain values. A cleaner may remove some of those,
    but the newest of each key is still there when the replica copies it."""
    below, read = has_below(memory, away), partition.deletions
    if below is None or read is None or partition.committed_end is None:
        return False
    is_read = read.start <= below and partition.committed_end <= read.end
    return is_read and (read.newest is None or read.newest < below)


def learn_retentions(memory: Memory, seen: TopicSeen, margins: Margins) -> Memory:
    """A new value may have been in force since the old one was last reported, or longer if that answer was outdated. The old
    one may stay in force for as long as a broker's metadata may lag."""
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
    complete = [
        *(c.complete_ms for c in memory.complete),
        *(a.complete_ms for a in memory.away if a.complete_ms is not None),
        *(end.asked_ms for _, end in memory.ends),
    ]
    oldest = min(complete, default=0)
    return replace(
        memory, retentions=tuple(span for span in spans if span.until_ms >= oldest), retention_seen_ms=seen.asked_ms
    )


def learn_skews(memory: Memory, seen: TopicSeen) -> Memory:
    """A clock difference counts for as long as a stamp made under it may: for the longest remembered retention, and for as long
    again, because the time when it was last seen is written to disk only now and then."""
    longest_ms = max((span.retention_ms for span in memory.retentions), default=0)
    oldest_ms = seen.asked_ms - SKEW_RETENTIONS * longest_ms
    skews = {skew.skew_ms.bit_length(): skew for skew in memory.skews if skew.seen_ms >= oldest_ms}
    if seen.skew_ms > 0:
        size = seen.skew_ms.bit_length()
        largest_ms = max(seen.skew_ms, skews[size].skew_ms if size in skews else 0)
        skews[size] = Skew(seen_ms=seen.asked_ms, skew_ms=largest_ms)
    kept = tuple(skews[size] for size in sorted(skews))
    return replace(memory, skews=kept, skew_ms=max((skew.skew_ms for skew in kept), default=0))


def learn_ends(memory: Memory, seen: TopicSeen) -> Memory:
    """Of looks with the same committed end, keeps only the first two and the latest: they show from when on, and until when, a
    complete replica has all of it."""
    kept: list[tuple[int, CommittedEnd]] = []
    for partition in seen.partitions:
        ends = [end for number, end in memory.ends if number == partition.partition]
        if partition.committed_end is not None:
            if [end.offset for end in ends[-3:]] == [partition.committed_end] * 3:
                ends.pop()
            ends.append(CommittedEnd(asked_ms=seen.asked_ms, offset=partition.committed_end))
        kept += [(partition.partition, end) for end in _worth_keeping(memory, partition.partition, ends)]
    return replace(memory, ends=tuple(kept))


def _worth_keeping(memory: Memory, partition: int, ends: list[CommittedEnd]) -> list[CommittedEnd]:
    """The newest; and those from before each replica left, which show whether it comes back with less than it had."""
    kept = set(range(max(0, len(ends) - ENDS_MAX), len(ends)))
    for away in memory.away:
        if away.partition == partition and away.complete_ms is not None:
            before = sum(end.asked_ms <= away.complete_ms for end in ends)
            kept |= set(range(max(0, before - ENDS_MAX), before))
    return [ends[number] for number in sorted(kept)]


def learn_new_partitions(memory: Memory, seen: TopicSeen, looked_ms: int | None, margins: Margins) -> Memory:
    """A partition that was created after a look which would have shown it was empty at that look, so all its replicas were
    complete: a broker that restarts while a topic is created has missed what came since, and no more.

    That a look did not show a partition proves this only for numbers above all that were ever shown, and for topics that did
    not exist. For those it must be a recent look, because their earlier delete.retention.ms is unknown; and because the look
    may also have been denied the topic, each of its partitions must bear it out."""
    partitions = [*(c.partition for c in memory.complete), *(a.partition for a in memory.away)]
    count = max([memory.partitions, *(number + 1 for number in partitions)])
    unseen_ms = looked_ms if count else seen.unseen_ms if _is_polled(seen.unseen_ms, seen, margins) else None
    complete, ends = list(memory.complete), list(memory.ends)
    for partition in seen.partitions:
        if partition.partition >= count and unseen_ms is not None:
            empty_ms = unseen_ms - margins.metadata_age_ms
            if count == 0 and not _was_empty(partition, empty_ms):
                continue
            ends.append((partition.partition, CommittedEnd(asked_ms=empty_ms, offset=0)))
            complete += [
                Complete(partition=partition.partition, broker=replica.broker, complete_ms=empty_ms)
                for replica in partition.replicas
            ]
    numbers = (partition.partition + 1 for partition in seen.partitions)
    return replace(memory, complete=tuple(complete), ends=tuple(ends), partitions=max([count, *numbers]))


def _was_empty(partition: PartitionSeen, moment_ms: int) -> bool:
    """Nothing is committed yet, or the first record of all is still there and was stamped since."""
    return partition.committed_end == 0 or (partition.first_ms is not None and partition.first_ms >= moment_ms)


def learn_absences(
    memory: Memory, seen: TopicSeen, looked_ms: int | None, now_ms: int, margins: Margins
) -> Memory:  # fmt: skip
    began_ms = None if looked_ms is None else looked_ms - margins.metadata_age_ms
    complete: list[Complete] = []
    away: list[Away] = []
    known_partitions = {*(c.partition for c in memory.complete), *(a.partition for a in memory.away)}
    for partition in seen.partitions:
        first_look = partition.partition not in known_partitions
        for replica in partition.replicas:
            entry = _complete(memory, partition.partition, replica.broker)
            absence = _away(memory, partition.partition, replica.broker)
            if partition.is_sole or (absence is not None and _leads_first(absence, partition)):
                # It has all there is.
                complete_ms = seen.asked_ms - margins.metadata_age_ms
                complete.append(Complete(partition=partition.partition, broker=replica.broker, complete_ms=complete_ms))
                continue
            if absence is not None and _is_older_answer(absence, seen, partition, margins):
                away.append(absence)
                continue
            if absence is not None and absence.expelled_ms is not None:
                # Added again by the guard: a new copy, which never was complete.
                absence = Away(
                    partition=partition.partition, broker=replica.broker, since_ms=seen.asked_ms, complete_ms=None,
                    unread=True, began_ms=began_ms,
                )  # fmt: skip
            if absence is None:
                absence = _absence(memory, seen, partition, replica, entry, first_look=first_look, margins=margins)
                if absence is not None and absence.complete_ms is None and not first_look:
                    absence = replace(absence, began_ms=began_ms)
            if absence is None:
                complete_ms = max(seen.asked_ms - margins.metadata_age_ms, entry or 0)
                complete.append(
                    Complete(partition=partition.partition, broker=replica.broker, complete_ms=complete_ms)
                )  # fmt: skip
            else:
                away.append(_looked_at(absence, memory, seen, partition, replica, now_ms, margins))
        away += _expelled(memory, seen, partition)
    return replace(memory, complete=tuple(complete), away=tuple(away))


def _absence(
    memory: Memory, seen: TopicSeen, partition: PartitionSeen, replica: ReplicaSeen, complete_ms: int | None, *,
    first_look: bool, margins: Margins,
) -> Away | None:  # fmt: skip
    """For a replica that was fine or is new to the guard; None if it counts as complete. Errors from before the guard's first
    look are for the audit to find; but a replica that was read with another one and found wrong is read again."""
    in_sync = replica.broker in partition.isr
    watched = (complete_ms is None and first_look) or _was_watched(memory, seen, complete_ms, margins)
    if in_sync and replica.verdict is Verdict.WRONG:
        complete_ms = None
    elif in_sync and watched:
        return None
    return Away(
        partition=partition.partition, broker=replica.broker, since_ms=seen.asked_ms, complete_ms=complete_ms,
        unread=in_sync or (complete_ms is None and not first_look),
        unled_epoch=partition.leader_epoch if partition.leader is None and watched else None,
    )  # fmt: skip


def _was_watched(memory: Memory, seen: TopicSeen, complete_ms: int | None, margins: Margins) -> bool:
    """False if there was no look for longer than the slack: the replica may have been away past its moment of danger and come
    back."""
    limit = danger(
        complete=complete_ms, retentions=memory.retentions, horizon_ms=None, skew_ms=memory.skew_ms, margins=margins
    )  # fmt: skip
    held = in_effect(memory) and is_held(seen.overrides) and complete_ms is not None
    short = is_too_short(memory, seen, margins) and _is_polled(complete_ms, seen, margins)
    return seen.asked_ms + margins.poll_ms < limit.unsafe_ms or held or short


def _leads_first(absence: Away, partition: PartitionSeen) -> bool:
    """The replica was in sync until the partition lost its leader, and is the next leader. Unless the election was unclean, it
    has all that was committed. What the others missed before is unknown."""
    epoch = absence.unled_epoch
    return epoch is not None and partition.leader == absence.broker and partition.leader_epoch == epoch + 1


def _is_polled(complete_ms: int | None, seen: TopicSeen, margins: Margins) -> bool:
    """Seen complete at the previous look or the one before it. A retention that is too short, or a clock that an agent reports
    as wrong, excuses no more than that: after a gap nobody knows where a replica was."""
    polled_ms = margins.metadata_age_ms + 2 * margins.poll_ms + margins.effect_ms
    return complete_ms is not None and seen.asked_ms - complete_ms <= polled_ms


def _looked_at(
    absence: Away, memory: Memory, seen: TopicSeen, partition: PartitionSeen, replica: ReplicaSeen, now_ms: int,
    margins: Margins,
) -> Away:  # fmt: skip
    """Notes whether it has left again or is back, and whether it has less than it had."""
    if replica.broker not in partition.isr or replica.broker in partition.moving:
        returned_ms = None
    else:
        returned_ms = absence.returned_ms if absence.returned_ms is not None else seen.asked_ms
    order = tuple(other.broker for other in partition.replicas) if absence.order else ()
    # Never by an outdated answer, which may show the previous leader.
    led = absence.unled_epoch is not None and (partition.leader_epoch or 0) > absence.unled_epoch
    unled_epoch = None if led else absence.unled_epoch
    absence = replace(absence, returned_ms=returned_ms, order=order, unled_epoch=unled_epoch)
    if returned_ms is not None:
        return absence
    ends = tuple(end for number, end in memory.ends if number == partition.partition)
    complete_ms = still_complete_ms(absence.complete_ms, replica.log_end, ends)
    if complete_ms != absence.complete_ms:
        absence = replace(absence, complete_ms=complete_ms, excused_ms=None)
    excused = misses_no_deletion(memory, partition, absence)
    if excused and _was_safe(absence, memory, seen, partition, now_ms, margins):
        absence = replace(absence, excused_ms=seen.asked_ms - margins.metadata_age_ms, horizon_ms=None)
    return replace(absence, horizon_ms=_horizon_ms(memory, partition, absence))


def _is_older_answer(absence: Away, seen: TopicSeen, partition: PartitionSeen, margins: Margins) -> bool:
    """It was seen out of the assignment, and now shows in it at its old place: a replica that is added again comes last."""
    if absence.expelled_ms is None or partition.moving:
        return False
    assigned = tuple(replica.broker for replica in partition.replicas)
    return assigned == absence.order and seen.asked_ms <= absence.expelled_ms + margins.metadata_age_ms


def is_excused(away: Away, seen: TopicSeen, margins: Margins) -> bool:
    """By this look only: an earlier one says nothing about what was written since."""
    return away.excused_ms == seen.asked_ms - margins.metadata_age_ms


def _was_safe(
    absence: Away, memory: Memory, seen: TopicSeen, partition: PartitionSeen, now_ms: int, margins: Margins
) -> bool:  # fmt: skip
    """A log that has lost a deletion looks the same as one that never had it. So what was read counts only if it was read
    before a removal was possible, however long the look took."""
    limit = danger_of(memory, partition, absence, margins)
    return absence.complete_ms is not None and (now_ms < limit.unsafe_ms or is_still_in_effect(memory, seen))


def _expelled(memory: Memory, seen: TopicSeen, partition: PartitionSeen) -> list[Away]:
    """Replicas that the guard itself took out of the assignment. One that a person took out, or has replaced since, no longer
    matters."""
    assigned = {replica.broker for replica in partition.replicas}
    out = [a for a in memory.away if a.partition == partition.partition and a.order and a.broker not in assigned]
    expelled = [a for a in out if partition.moving or assigned == set(a.order) - {a.broker}]
    return [
        a if a.expelled_ms is not None else replace(a, expelled_ms=seen.asked_ms, returned_ms=None) for a in expelled
    ]


def _complete(memory: Memory, partition: int, broker: int) -> int | None:
    return next((c.complete_ms for c in memory.complete if (c.partition, c.broker) == (partition, broker)), None)


def _away(memory: Memory, partition: int, broker: int) -> Away | None:
    return next((a for a in memory.away if (a.partition, a.broker) == (partition, broker)), None)
