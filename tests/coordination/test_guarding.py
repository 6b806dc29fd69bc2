"""What the guard decides about one topic, look by look: when it holds, verifies, releases, readmits, leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import (
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    Action,
    AlarmKind,
    Allowed,
    AskBrokers,
    Configs,
    EndPasses,
    Memory,
    OffsetSpan,
    Release,
    ReplicaSeen,
    SetHold,
    State,
    Status,
    Verdict,
    Verify,
)
from headstone.coordination.guarding import decide
from tests.coordination.guard_watch import (
    BEHIND,
    COMPLETE_MS,
    DAY_MS,
    DUE_MS,
    HOUR_MS,
    LATE,
    LOOK,
    MARGINS,
    NEWS_MS,
    NOTHING,
    RELEASE,
    SECOND_MS,
    SET_HOLD,
    START_MS,
    UNSAFE_MS,
    VERIFY,
    Watch,
    alarm,
    outcome,
    partition,
    right,
)


def test_rolling_restarts_of_minutes_touch_nothing() -> None:
    watch = Watch()
    done: list[Action] = []
    for minute in range(0, 24 * 60, 5):
        isr = tuple(broker for broker in (1, 2, 3) if broker != minute // 5 % 6 + 1)
        done += watch.sees(partition(isr), at_ms=START_MS + minute * 60 * SECOND_MS).actions
    assert done == []


def test_a_replica_that_is_away_is_watched_and_counted_down() -> None:
    now_ms = START_MS + HOUR_MS
    decision = Watch().sees(BEHIND, at_ms=now_ms)
    watched = Status(
        partition=0, state=State.WATCHED, blockers=(3,), since_ms=now_ms, unsafe_ms=UNSAFE_MS,
        countdown_ms=UNSAFE_MS - now_ms,
    )  # fmt: skip
    assert (decision.actions, decision.statuses) == ((), (watched,))


def test_half_of_the_slack_used_up_holds_the_topic() -> None:
    half_ms = COMPLETE_MS + (UNSAFE_MS - COMPLETE_MS) // 2
    assert Watch().sees(BEHIND, at_ms=half_ms - 1).actions == ()
    assert Watch().sees(BEHIND, at_ms=half_ms).actions == (SET_HOLD,)


def test_passes_in_flight_are_ended_only_if_the_deadline_is_near() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=DUE_MS)
    near_ms = UNSAFE_MS - MARGINS.pass_start_ms + 1
    decision = watch.sees(at_ms=near_ms, overrides=HOLD, held_on=(1, 2, 3))
    assert outcome(decision) == ((EndPasses(topic="orders"),), State.HELD)


def test_without_a_hold_in_effect_the_moment_of_danger_is_too_late() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=DUE_MS)
    decision = watch.sees(at_ms=UNSAFE_MS, overrides=HOLD, held_on=(1,))
    missing = (2, 3)
    assert decision.actions == (
        AskBrokers(topic="orders", brokers=missing),
        *(alarm(AlarmKind.NOT_CONFIRMED, broker=broker) for broker in missing), LATE,
    )  # fmt: skip
    assert decision.statuses[0].state == State.TOO_LATE


def test_release_needs_everyone_in_sync_and_what_was_missed_read() -> None:
    watch = Watch().held()
    days = START_MS + 5 * DAY_MS
    assert watch.sees(BEHIND, at_ms=days).statuses[0].state == State.HELD
    assert watch.sees(partition(), at_ms=days + 1).actions == (VERIFY,)
    assert watch.sees(right(days), at_ms=days + 2).actions == (VERIFY,)
    released = watch.sees(right(days + 1), at_ms=days + 3)
    assert released.actions == (RELEASE,)
    assert released.statuses == (Status(partition=0, state=State.FINE),)
    assert watch.sees(partition(), at_ms=days + 4).actions == (RELEASE,)
    assert watch.sees(partition(), at_ms=days + 5, overrides=NOTHING).memory.hold is not None
    assert watch.sees(partition(), at_ms=days + 4 + NEWS_MS).memory.hold is None


def test_release_restores_what_was_found_and_leaves_what_others_set() -> None:
    watch = Watch()
    watch.look = replace(watch.look, overrides=((RATIO, "0.2"), (LAG_MIN, None), (LAG_MAX, "7")))
    watch.held()
    days = START_MS + 5 * DAY_MS
    watch.sees(partition(), at_ms=days)
    changed: Configs = ((RATIO, "1.0"), (LAG_MIN, dict(HOLD)[LAG_MIN]), (LAG_MAX, "9"))
    assert watch.sees(right(days), at_ms=days + 1, overrides=changed).actions == (
        alarm(AlarmKind.CHANGED_BY_PERSON),
        Release(topic="orders", restore=((RATIO, "0.2"), (LAG_MIN, None))),
    )


NEW_COPY = partition((1, 2, 3), assigned=(1, 2, 3, 4), moving=(4,))
HOLD_FOR_NEW = SetHold(topic="orders", configs=HOLD, by_ms=0, reason="behind: partition 0: broker 4")


def test_a_new_replica_is_held_for_at_once_and_read_before_it_counts() -> None:
    """No alarm: it is an ordinary reassignment."""
    watch = Watch()
    first = watch.sees(NEW_COPY, at_ms=START_MS + HOUR_MS)
    unread = Status(partition=0, state=State.UNREAD, blockers=(4,), since_ms=START_MS + HOUR_MS)
    assert (first.actions, first.statuses) == ((HOLD_FOR_NEW,), (unread,))
    soon_ms = START_MS + HOUR_MS + SECOND_MS
    held = watch.sees(at_ms=soon_ms, overrides=HOLD, held_on=(1, 2, 3), alive=(1, 2, 3, 4))
    assert held.actions == (AskBrokers(topic="orders", brokers=(4,)),)
    watch.sees(at_ms=soon_ms + 1, held_on=(4,))
    copied = partition((1, 2, 3, 4), assigned=(1, 2, 3, 4))
    assert outcome(watch.sees(copied, at_ms=soon_ms + 2)) == (
        (Verify(topic="orders", partition=0, broker=4),), State.UNREAD,
    )  # fmt: skip
    four = ReplicaSeen(broker=4, log_end=100, verdict=Verdict.RIGHT, read_ms=soon_ms + 2)
    is_right = replace(copied, replicas=(*copied.replicas[:3], four))
    assert watch.sees(is_right, at_ms=soon_ms + 3).actions == (RELEASE,)


def test_who_looks_for_the_first_time_knows_nothing_of_those_behind() -> None:
    decision = decide(Memory(), replace(LOOK, partitions=(BEHIND,)), START_MS, MARGINS, Allowed())
    assert decision.actions == (LATE, replace(SET_HOLD, by_ms=0))


def test_who_did_not_look_for_longer_than_the_retention_reads_everything_and_is_too_late_for_who_is_behind() -> None:
    verifies = tuple(Verify(topic="orders", partition=0, broker=broker) for broker in (1, 2, 3))
    assert outcome(Watch().sees(partition(), at_ms=START_MS + 2 * DAY_MS)) == (verifies, State.UNREAD)
    assert Watch().sees(BEHIND, at_ms=START_MS + 2 * DAY_MS).actions[0] == LATE


def test_nothing_is_released_while_a_reassignment_runs() -> None:
    """A replica that was fine is about to go; the one that was away is back and right."""
    watch = Watch().held()
    days = START_MS + 5 * DAY_MS
    watch.sees(partition(moving=(1,)), at_ms=days)
    is_right = partition(verdict=Verdict.RIGHT, read_ms=days, moving=(1,))
    assert watch.sees(is_right, at_ms=days + 1).actions == ()


def test_a_look_that_is_too_old_says_unknown() -> None:
    late_ms = START_MS + 4 * MARGINS.poll_ms + 1
    assert decide(Watch().memory, LOOK, late_ms, MARGINS, Allowed()).statuses[0].state == State.UNKNOWN


def test_a_retention_that_is_shorter_than_the_margins_is_told() -> None:
    decision = Watch().sees(at_ms=START_MS + 60 * SECOND_MS, delete_retention_ms=1_000)
    assert decision.actions == (alarm(AlarmKind.RETENTION_TOO_SHORT),)


def test_clocks_that_differ_by_more_than_the_retention_are_told_and_nobody_in_sync_is_read_for_it_at_every_look() -> (
    None
):
    watch = Watch()
    for look in range(1, 4):
        decision = watch.sees(at_ms=START_MS + look * MARGINS.poll_ms, skew_ms=25 * HOUR_MS)
        assert decision.actions == (alarm(AlarmKind.RETENTION_TOO_SHORT),)
        assert decision.statuses == (Status(partition=0, state=State.FINE),)
    away_ms = START_MS + 4 * MARGINS.poll_ms
    unsafe_ms = UNSAFE_MS + 3 * MARGINS.poll_ms - 25 * HOUR_MS
    assert watch.sees(BEHIND, at_ms=away_ms).actions == (
        alarm(AlarmKind.RETENTION_TOO_SHORT), LATE, replace(SET_HOLD, by_ms=unsafe_ms),
    )  # fmt: skip


def test_clocks_that_differed_once_count_for_as_long_as_stamps_of_then_may_matter_and_smaller_differences_for_longer() -> (
    None
):
    watch = Watch()
    watch.sees(at_ms=START_MS + 1, skew_ms=25 * HOUR_MS)
    watch.sees(at_ms=START_MS + HOUR_MS, skew_ms=3 * HOUR_MS)
    skews = []
    for hours in (2, 48, 49, 50):
        decision = watch.sees(at_ms=START_MS + hours * HOUR_MS, skew_ms=7)
        short = alarm(AlarmKind.RETENTION_TOO_SHORT) in decision.actions
        skews.append((hours, short, watch.memory.skew_ms))
    assert skews == [
        (2, True, 25 * HOUR_MS), (48, True, 25 * HOUR_MS), (49, False, 3 * HOUR_MS), (50, False, 7),
    ]  # fmt: skip


def test_what_clocks_differed_by_under_a_longer_retention_counts_for_as_long_as_that() -> None:
    watch = Watch()
    watch.sees(at_ms=START_MS + HOUR_MS, skew_ms=HOUR_MS, delete_retention_ms=3 * DAY_MS)
    for days in range(1, 7):
        watch.sees(
            replace(BEHIND, committed_end=None), at_ms=START_MS + days * DAY_MS, skew_ms=0, delete_retention_ms=DAY_MS
        )
        assert watch.memory.skew_ms == HOUR_MS


def test_a_retention_of_before_still_counts_for_one_that_comes_back_with_less() -> None:
    """What it lost was stamped while the short one was in force."""
    watch = Watch()
    watch.sees(at_ms=START_MS, delete_retention_ms=6 * HOUR_MS)
    later_ms = START_MS + HOUR_MS
    watch.sees(replace(partition(), committed_end=200), at_ms=later_ms, delete_retention_ms=DAY_MS)
    for hours in range(2, 5):
        watch.sees(at_ms=START_MS + hours * HOUR_MS)
    lost = replace(partition((1, 2), end=100), committed_end=200)
    decision = watch.sees(lost, at_ms=START_MS + 5 * HOUR_MS)
    unsafe_ms = START_MS + 6 * HOUR_MS - MARGINS.skew_ms - MARGINS.pass_start_ms
    assert decision.statuses[0].unsafe_ms == unsafe_ms


def seen_twice() -> Watch:
    watch = Watch()
    watch.sees(at_ms=START_MS + MARGINS.poll_ms)
    watch.sees(at_ms=START_MS + HOUR_MS)
    return watch


def back_after_a_hold(watch: Watch) -> OffsetSpan | None:
    """What replica 3 is to be read for; None: all of it."""
    watch.sees(replace(partition((1, 2), end=None), committed_end=140), at_ms=START_MS + 15 * HOUR_MS)
    watch.sees(at_ms=START_MS + 15 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    back = watch.sees(replace(partition(end=140), committed_end=140), at_ms=START_MS + 2 * DAY_MS)
    [verify] = [action for action in back.actions if isinstance(action, Verify)]
    return verify.missed


def test_who_comes_back_after_a_hold_in_time_is_to_have_what_it_missed_until_somebody_undid_the_hold() -> None:
    watch = seen_twice()
    assert back_after_a_hold(watch) == OffsetSpan(start=100, end=140)
    assert VERIFY in watch.sees(at_ms=START_MS + 3 * DAY_MS, overrides=NOTHING).actions


def test_of_whom_it_is_not_known_what_it_had_nothing_less_than_all_is_read() -> None:
    assert back_after_a_hold(Watch()) is None


def test_nothing_less_than_all_is_read_of_one_that_was_away_past_the_moment_of_danger() -> None:
    watch = seen_twice()
    assert LATE in watch.sees(BEHIND, at_ms=START_MS + 2 * DAY_MS).actions
    watch.sees(at_ms=START_MS + 2 * DAY_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert VERIFY in watch.sees(partition(), at_ms=START_MS + 2 * DAY_MS + 2 * SECOND_MS).actions


PURGED_MS = START_MS + 14 * HOUR_MS


def test_a_hold_stays_until_who_is_back_was_read_and_ends_then_whatever_the_policy_is() -> None:
    watch = Watch().held()
    for hours, compacted in ((0, False), (1, False), (40, False), (41, True), (42, False)):
        purged = watch.sees(at_ms=PURGED_MS + hours * HOUR_MS, compacted=compacted)
        assert outcome(purged) == ((), State.HELD)
    back_ms = PURGED_MS + 43 * HOUR_MS
    assert watch.sees(partition(), at_ms=back_ms).actions == (VERIFY,)
    assert watch.sees(right(back_ms), at_ms=back_ms + 1).actions == (RELEASE,)


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
    watch.sees(right(back_ms), at_ms=back_ms + 1)
    asked = watch.sees(partition((1, 2), end=None), at_ms=back_ms + 2 * DAY_MS, compacted=compacted)
    assert [action for action in asked.actions if isinstance(action, SetHold)] != []
