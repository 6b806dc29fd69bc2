"""The arithmetic of time: until when can no tombstone or marker that a replica lacks be gone anywhere.

Owns the margins and the sums (docs/rfcs/0003-guard.md). All times are the guard's; what brokers' clocks do comes in as a
bound. Knows no topic, no config and no action: `guarding.py` decides.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER_MS = 2**63 - 1
"""delete.retention.ms near 2^63 overflows in the cleaner and means never: nothing is stamped, nothing goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Each that is a time is a safety margin: setting it to 0 is a mistake that the simulator must find. `slack_share` is
    manners and reserve: at 1 the hold comes at the last moment, which is in time. `robot_ms` decides only who is answered."""

    metadata_age_ms: int = 30_000
    """A broker may answer from metadata that is this old: who is in sync was so at least this long ago."""
    skew_ms: int = 5_000
    """Added to the largest difference of brokers' clocks that was seen."""
    effect_ms: int = 60_000
    """From the call to the last broker that has the hold, retries included."""
    poll_ms: int = 30_000
    """Until the guard looks again: what is due before that is due now."""
    pass_start_ms: int = 15_000
    """A cleaner may have chosen a log before the hold reached it and begin its pass this much later: the hold must be in
    effect so much earlier."""
    slack_share: float = 0.5
    """A hold comes when this share of the slack is used up: outages of minutes touch nothing."""
    robot_ms: int = 600_000
    """A robot puts back what it found at its next round; somebody who does it later than this is a person."""

    @property
    def retention_ms_min(self) -> int:
        """With a delete.retention.ms that is shorter, less what clocks are known to differ by, no look is ever new enough:
        such a topic cannot be guarded, only told of."""
        return self.metadata_age_ms + self.skew_ms + self.effect_ms + 2 * self.poll_ms + self.pass_start_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A delete.retention.ms that was in force, no earlier than since_ms and no later than until_ms.

    since_ms is when the value before it was last seen, until_ms when the one behind it must have reached every broker.
    """

    retention_ms: int
    since_ms: int = 0
    until_ms: int = NEVER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEnd:
    """At asked_ms, when the question was sent, no more than `offset` was committed."""

    asked_ms: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Danger:
    """complete_ms: when the replica last had everything, None if never; unsafe_ms: by then the hold must be in effect.

    hold_ms is when the hold is due: in good time and not before.
    """

    complete_ms: int | None
    unsafe_ms: int
    hold_ms: int


def still_complete_ms(complete: int | None, log_end: int | None, ends: tuple[CommittedEnd, ...]) -> int | None:
    """When the replica last had everything, given the end of its log as it is now.

    A replica that was in sync has all that was committed. If it comes back with less (an unclean stop, an empty disk), what
    it lacks was there earlier: the moment moves back to when its log end was all there was, or to None. Where nothing is
    known of what was committed by then, the first that is known counts: whoever has that has lost nothing.
    """
    if complete is None or log_end is None:
        return complete
    by_then = [end for end in ends if end.asked_ms <= complete]
    lost = any(end.offset > log_end for end in by_then or ends[:1])
    held = [end.asked_ms for end in by_then if end.offset <= log_end]
    return max(held, default=None) if lost else complete


def first_removal_ms(complete: int, retentions: tuple[Retention, ...], horizon_ms: int | None) -> int:
    """The earliest that anything appended since `complete` can be due, on a cluster with one clock.

    It is stamped at the earliest when it is there and a retention is in force, and stamps never change. A horizon
    that was read in a batch counts as it is: clients and earlier leaders may have stamped it.
    """
    due = [
        min(max(complete, retention.since_ms) + retention.retention_ms, NEVER_MS)
        for retention in retentions
        if retention.until_ms >= complete
    ]
    return min([*due, *([] if horizon_ms is None else [horizon_ms])], default=complete)


def danger(
    *, complete: int | None, retentions: tuple[Retention, ...], horizon_ms: int | None, skew_ms: int, margins: Margins
) -> Danger:
    """A replica that never had everything has no slack: what it copies may be gone elsewhere before it gets there."""
    if complete is None:
        return Danger(complete_ms=None, unsafe_ms=0, hold_ms=0)
    removal_ms = first_removal_ms(complete, retentions, horizon_ms)
    if removal_ms == NEVER_MS:
        return Danger(complete_ms=complete, unsafe_ms=NEVER_MS, hold_ms=NEVER_MS)
    unsafe_ms = removal_ms - skew_ms - margins.skew_ms - margins.pass_start_ms
    share_ms = complete + int((unsafe_ms - complete) * margins.slack_share)
    latest_ms = unsafe_ms - margins.effect_ms - margins.poll_ms
    return Danger(complete_ms=complete, unsafe_ms=unsafe_ms, hold_ms=min(share_ms, latest_ms))
