"""The arithmetic of time: until when every tombstone and marker that a replica lacks is certain to exist on all other replicas.

Owns the margins and the sums (docs/rfcs/0003-guard.md). All times are the guard's; differences between brokers' clocks come in
as a bound. Knows no topic, no config and no action: `guarding.py` decides.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER_MS = 2**63 - 1
"""A delete.retention.ms near 2^63 overflows in the cleaner and means never: nothing is stamped, nothing is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margins:
    """Those that are times are safety margins: setting one to 0 is a mistake that the simulator must find. `slack_share` is a
    reserve: at 1 the hold comes at the last moment, which is still in time. `robot_ms` decides only whose change is answered.
    """

    metadata_age_ms: int = 30_000
    """A broker may answer from metadata this old: a replica shown in sync counts as complete only as of this long before the
    look."""
    skew_ms: int = 5_000
    """Added to the largest clock difference between brokers that was seen."""
    effect_ms: int = 60_000
    """From the call until the last broker has the hold, retries included."""
    poll_ms: int = 30_000
    """Until the next look: what is due before that is due now."""
    pass_start_ms: int = 15_000
    """A cleaner may choose a log before the hold arrives and begin its pass this much later, so the hold must be in effect this
    much earlier."""
    slack_share: float = 0.5
    """The hold comes when this share of the slack is used up, so that outages of minutes change nothing."""
    robot_ms: int = 600_000
    """Automation reverts the hold at its next run. A change that comes later than this is a person's."""

    @property
    def retention_ms_min(self) -> int:
        """If delete.retention.ms, less the known clock differences, is below this, no look is ever recent enough: the topic
        cannot be guarded, only reported."""
        return self.metadata_age_ms + self.skew_ms + self.effect_ms + 2 * self.poll_ms + self.pass_start_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A delete.retention.ms that was in force, no earlier than since_ms and no later than until_ms.

    `since_ms` is when the previous value was last seen, `until_ms` when the next one must have reached every broker.
    """

    retention_ms: int
    since_ms: int = 0
    until_ms: int = NEVER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEnd:
    """At `asked_ms`, when the question was sent, no more than `offset` was committed."""

    asked_ms: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Danger:
    """`complete_ms`: when the replica was last complete, None if never. `unsafe_ms`: the hold must be in effect by then.

    `hold_ms` is when the hold is due: early enough, and not before.
    """

    complete_ms: int | None
    unsafe_ms: int
    hold_ms: int


def still_complete_ms(complete: int | None, log_end: int | None, ends: tuple[CommittedEnd, ...]) -> int | None:
    """When the replica was last complete, given its present log end.

    A replica in sync has everything committed. If it comes back with less (unclean stop, empty disk), it lacks what was there
    earlier: the moment moves back to when its log end was all there was, or to None. If nothing is known of what was committed
    by then, the first known end counts: a replica that has that much has lost nothing.
    """
    if complete is None or log_end is None:
        return complete
    by_then = [end for end in ends if end.asked_ms <= complete]
    lost = any(end.offset > log_end for end in by_then or ends[:1])
    held = [end.asked_ms for end in by_then if end.offset <= log_end]
    return max(held, default=None) if lost else complete


def first_removal_ms(complete: int, retentions: tuple[Retention, ...], horizon_ms: int | None) -> int:
    """The earliest time at which anything appended since `complete` can be removed, if all clocks agree.

    A record is stamped no earlier than when it is there and a retention is in force, and stamps never change. A horizon that
    was read from a batch counts as it is: clients and earlier leaders may have stamped it.
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
    """A replica that was never complete has no slack: what it still copies may be removed elsewhere first."""
    if complete is None:
        return Danger(complete_ms=None, unsafe_ms=0, hold_ms=0)
    removal_ms = first_removal_ms(complete, retentions, horizon_ms)
    if removal_ms == NEVER_MS:
        return Danger(complete_ms=complete, unsafe_ms=NEVER_MS, hold_ms=NEVER_MS)
    unsafe_ms = removal_ms - skew_ms - margins.skew_ms - margins.pass_start_ms
    share_ms = complete + int((unsafe_ms - complete) * margins.slack_share)
    latest_ms = unsafe_ms - margins.effect_ms - margins.poll_ms
    return Danger(complete_ms=complete, unsafe_ms=unsafe_ms, hold_ms=min(share_ms, latest_ms))
