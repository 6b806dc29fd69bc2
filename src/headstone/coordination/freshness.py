"""Until when a look may be acted on: a guard that was suspended goes on with what it knew before.

Owns which actions are void on an old look, and how old is too old. To hold, to ask and to read do no harm, however late; to let
go, or to take a replica out, must be decided anew. Pure.
"""

from __future__ import annotations

from headstone.coordination.danger import Margins, danger
from headstone.coordination.guard_values import Action, AddAgain, Expel, Memory, Release, ReleaseDefault, TopicSeen


def acts_until_ms(memory: Memory, seen: TopicSeen, margins: Margins) -> int:
    """Who left right after the look is missed by the next one, a poll after the topic was let go: the hold that it needs must
    still be in time then. Never longer than a call may take and the next look comes later; where the retention is too short to
    guard, a poll."""
    complete_ms = seen.asked_ms - margins.metadata_age_ms
    limit = danger(
        complete=complete_ms, retentions=memory.retentions, horizon_ms=None, skew_ms=memory.skew_ms, margins=margins
    )  # fmt: skip
    in_time_ms = limit.unsafe_ms - margins.effect_ms - margins.poll_ms
    usual_ms = seen.asked_ms + margins.effect_ms + margins.poll_ms
    return max(min(in_time_ms, usual_ms), seen.asked_ms + margins.poll_ms)


def is_void(action: Action, memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins) -> bool:
    """Asked just before it is carried out: a round may take long, or stop anywhere."""
    undoes = isinstance(action, Release | ReleaseDefault | Expel | AddAgain)
    return undoes and now_ms > acts_until_ms(memory, seen, margins)
