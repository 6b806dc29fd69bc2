"""A topic that is switched to `delete` for a while, as people purge one: its holds stay, and what is known of its replicas."""

from __future__ import annotations

import pytest

from headstone.coordination.guard_values import HOLD, Allowed, Expel, Release, SetHold, State, Verdict
from tests.coordination.guard_watch import (
    BACK_MS,
    BEHIND,
    DAY_MS,
    HOUR_MS,
    MARGINS,
    NOTHING,
    SECOND_MS,
    SET_HOLD,
    START_MS,
    UNSAFE_MS,
    VERIFY,
    Watch,
    outcome,
    partition,
)

PURGED_MS = START_MS + 14 * HOUR_MS


def test_a_hold_stays_while_somebody_is_away_whatever_the_policy_is() -> None:
    watch = Watch().held()
    for hours in (0, 1, 40):
        purged = watch.sees(at_ms=PURGED_MS + hours * HOUR_MS, compacted=False)
        assert outcome(purged) == ((), State.HELD)
    assert outcome(watch.sees(at_ms=PURGED_MS + 41 * HOUR_MS, compacted=True)) == ((), State.HELD)


def test_it_stays_until_who_is_back_was_read_and_ends_then_under_either_policy() -> None:
    watch = Watch().held()
    watch.sees(at_ms=PURGED_MS, compacted=False)
    back_ms = PURGED_MS + HOUR_MS
    assert watch.sees(partition(), at_ms=back_ms).actions == (VERIFY,)
    right = partition(verdict=Verdict.RIGHT, read_ms=back_ms)
    assert watch.sees(right, at_ms=back_ms + 1).actions == (Release(topic="orders", restore=NOTHING),)


def test_what_was_due_is_held_before_somebody_can_switch_back() -> None:
    """Under `delete` nothing goes, and a hold does nothing; the first pass after it removes all that is due by then."""
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + HOUR_MS)
    watch.sees(at_ms=START_MS + 2 * HOUR_MS, compacted=False)
    assert watch.sees(at_ms=START_MS + 13 * HOUR_MS).actions == (SET_HOLD,)
    held = watch.sees(at_ms=START_MS + 13 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert held.statuses[0].state == State.HELD
    assert outcome(watch.sees(at_ms=UNSAFE_MS + DAY_MS, compacted=True)) == ((), State.HELD)


def test_who_left_while_it_was_not_compacted_is_known_when_it_is_again() -> None:
    watch = Watch()
    watch.sees(at_ms=START_MS + HOUR_MS, compacted=False)
    watch.sees(BEHIND, at_ms=START_MS + HOUR_MS + 60 * SECOND_MS)
    again = watch.sees(at_ms=START_MS + 2 * HOUR_MS, compacted=True)
    left_ms = START_MS + HOUR_MS - MARGINS.metadata_age_ms
    assert outcome(again) == ((), State.WATCHED)
    assert again.statuses[0].unsafe_ms == left_ms + UNSAFE_MS - START_MS + MARGINS.metadata_age_ms


@pytest.mark.parametrize("compacted", [True, False])
def test_a_hold_that_was_let_go_is_asked_for_again_when_somebody_leaves_under_either_policy(compacted: bool) -> None:
    watch = Watch().held()
    back_ms = PURGED_MS + HOUR_MS
    watch.sees(partition(), at_ms=back_ms, compacted=False)
    watch.sees(partition(verdict=Verdict.RIGHT, read_ms=back_ms), at_ms=back_ms + 1)
    asked = watch.sees(partition((1, 2), end=None), at_ms=back_ms + 2 * DAY_MS, compacted=compacted)
    assert [action for action in asked.actions if isinstance(action, SetHold)] != []


def test_an_expulsion_that_was_asked_for_is_not_repeated_where_it_is_not_compacted_any_more() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    wrong = partition(verdict=Verdict.WRONG, read_ms=BACK_MS)
    assert [type(action) for action in watch.sees(wrong, at_ms=BACK_MS + 1).actions if isinstance(action, Expel)] == [
        Expel
    ]
    purged = watch.sees(wrong, at_ms=BACK_MS + 2, compacted=False)
    assert [action for action in purged.actions if isinstance(action, Expel)] == []
