"""Who is taken out of the assignment, for a copy of whom, and until when that can be taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import (
    HOLD,
    AddAgain,
    AlarmKind,
    Allowed,
    Decision,
    Expel,
    PartitionSeen,
    ReplicaSeen,
    State,
    Verdict,
    Verify,
)
from tests.coordination.guard_watch import (
    BEHIND,
    HOUR_MS,
    LATE,
    MARGINS,
    NOTHING,
    SECOND_MS,
    START_MS,
    UNSAFE_MS,
    Watch,
    alarm,
    partition,
)

EXPEL = Expel(topic="orders", partition=0, broker=3, remaining=(1, 2))
ADD = AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3))
DAY_LATE_MS = START_MS + 25 * HOUR_MS
CALL_MS = MARGINS.effect_ms + MARGINS.metadata_age_ms


def ordered() -> Watch:
    """Too late although a hold was asked for, held since, and asked to leave."""
    watch = Watch(Allowed(readmission=True))
    watch.sees(BEHIND, at_ms=START_MS + 13 * HOUR_MS)
    watch.sees(at_ms=DAY_LATE_MS)
    asked = watch.sees(at_ms=DAY_LATE_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert EXPEL in asked.actions
    return watch


def asked_to_leave(decision: Decision) -> bool:
    return any(isinstance(action, Expel) for action in decision.actions)


def test_a_guard_that_may_not_readmit_any_more_expels_nobody() -> None:
    watch = ordered()
    watch.allowed = Allowed()
    soon = watch.sees(at_ms=DAY_LATE_MS + 2 * SECOND_MS)
    assert (asked_to_leave(soon), soon.statuses[0].state) == (False, State.TOO_LATE)
    back_ms = DAY_LATE_MS + SECOND_MS + CALL_MS + 1
    back = watch.sees(partition(), at_ms=back_ms)
    assert back.actions == (Verify(topic="orders", partition=0, broker=3),)
    right = watch.sees(partition(verdict=Verdict.RIGHT, read_ms=back_ms), at_ms=back_ms + 1)
    assert right.statuses[0].state == State.FINE


def test_one_that_is_back_and_found_right_is_not_expelled() -> None:
    watch = ordered()
    back_ms = DAY_LATE_MS + 2 * SECOND_MS
    assert asked_to_leave(watch.sees(partition(), at_ms=back_ms))
    found = partition(verdict=Verdict.RIGHT, read_ms=back_ms)
    assert watch.sees(found, at_ms=back_ms + CALL_MS).actions == ()
    later = watch.sees(found, at_ms=back_ms + CALL_MS + 1)
    assert (asked_to_leave(later), later.statuses[0].state) == (False, State.FINE)


def test_one_that_a_call_of_before_takes_out_after_all_is_added_again() -> None:
    watch = ordered()
    back_ms = DAY_LATE_MS + 2 * SECOND_MS
    watch.sees(partition(), at_ms=back_ms)
    watch.sees(partition(verdict=Verdict.RIGHT, read_ms=back_ms), at_ms=back_ms + SECOND_MS)
    out = watch.sees(partition((1, 2), assigned=(1, 2)), at_ms=back_ms + CALL_MS)
    assert out.actions == (ADD,)


@pytest.mark.parametrize("after_ms", [40 * SECOND_MS, 20 * 60 * SECOND_MS])
def test_one_that_is_wrong_is_expelled_also_where_somebody_undid_the_hold_and_added_again_only_under_one(
    after_ms: int,
) -> None:
    """A robot, or a person."""
    watch = Watch(Allowed(readmission=True)).held()
    watch.sees(at_ms=START_MS + 13 * HOUR_MS + after_ms, overrides=NOTHING)
    late = watch.sees(partition((1,)), at_ms=UNSAFE_MS, in_sync_min=2)
    assert (LATE in late.actions, asked_to_leave(late)) == (True, False)
    back_ms = UNSAFE_MS + HOUR_MS
    watch.sees(partition(), at_ms=back_ms)
    wrong = watch.sees(partition(verdict=Verdict.WRONG, read_ms=back_ms), at_ms=back_ms + 1)
    assert wrong.actions == (alarm(AlarmKind.WRONG, broker=3, number=0), EXPEL)
    assert watch.sees(partition((1, 2), assigned=(1, 2)), at_ms=back_ms + 2).actions == ()


def led_by_two(verdict: Verdict | None, read_ms: int = 0) -> PartitionSeen:
    """2 was too late itself, as 3 is, which is away; it leads."""
    two = ReplicaSeen(broker=2, log_end=100, verdict=verdict, read_ms=read_ms)
    part = partition((1, 2), end=None)
    return replace(part, leader=2, replicas=(part.replicas[0], two, part.replicas[2]))


def test_nobody_is_expelled_for_a_copy_of_one_that_was_too_late_itself_before_that_is_found_right() -> None:
    watch = Watch(Allowed(readmission=True))
    watch.sees(partition((1,)), at_ms=START_MS + 13 * HOUR_MS)
    watch.sees(at_ms=DAY_LATE_MS, in_sync_min=2)
    back_ms = DAY_LATE_MS + SECOND_MS
    back = watch.sees(led_by_two(None), at_ms=back_ms, overrides=HOLD, held_on=(1, 2, 3))
    assert asked_to_leave(back) is False
    right = watch.sees(led_by_two(Verdict.RIGHT, back_ms), at_ms=back_ms + 1)
    assert EXPEL in right.actions
