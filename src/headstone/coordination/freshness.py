"""How long a look may be acted on: a guard that was suspended continues with outdated knowledge.

Owns which actions an old look makes void, and how old is too old. Holding, asking and reading do no harm however late they
come; releasing, or changing the assignment, must be decided again. Pure.
"""

from __future__ import annotations

from headstone.coordination.danger import Margins, danger
from headstone.coordination.guard_values import Action, AddAgain, Expel, Memory, Release, ReleaseDefault, TopicSeen


def acts_until_ms(memory: Memory, seen: TopicSeen, margins: Margins) -> int:
    """A replica that leaves right after the look is noticed only one poll after the topic was released, and the hold it needs
    must still be in time then. At most until a call may be done and the next look comes; at least one poll, if the retention is
    too short to guard."""
    complete_ms = seen.asked_ms - margins.metadata_age_ms
    limit = danger(
        complete=complete_ms, retentions=memory.retentions, horizon_ms=None, skew_ms=memory.skew_ms, margins=margins
    )  # fmt: skip
    in_time_ms = limit.unsafe_ms - margins.effect_ms - margins.poll_ms
    usual_ms = seen.asked_ms + margins.effect_ms + margins.poll_ms
    return max(min(in_time_ms, usual_ms), seen.asked_ms + margins.poll_ms)


def is_void(action: Action, memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins) -> bool:
    """Asked just before the action is carried out, because a round may take long, or stop anywhere."""
    undoes = isinstance(action, Release | ReleaseDefault | Expel | AddAgain)
    return undoes and now_ms > acts_until_ms(memory, seen, margins)
