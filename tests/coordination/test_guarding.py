"""What the guard decides about one topic, look by look: when it holds, verifies, releases, readmits, leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    Action,
    AddAgain,
    Alarm,
    AlarmKind,
    Allowed,
    AskBrokers,
    Configs,
    Decision,
    EndPasses,
    Expel,
    HoldByDefault,
    Memory,
    OffsetSpan,
    Release,
    ReleaseDefault,
    ReplicaSeen,
    SetHold,
    State,
    Status,
    Verdict,
    Verify,
)
from headstone.coordination.guarding import REREAD_MS, decide
from tests.coordination.guard_watch import (
    BACK_MS,
    BEHIND,
    COMPLETE_MS,
    DAY_MS,
    HOUR_MS,
    LATE,
    LOOK,
    MARGINS,
    NEWS_MS,
    NOTHING,
    SECOND_MS,
    SET_HOLD,
    START_MS,
    UNSAFE_MS,
    VERIFY,
    Watch,
    alarm,
    outcome,
    partition,
)


def test_a_healthy_topic_is_fine_and_untouched() -> None:
    decision = Watch().sees(at_ms=START_MS + 60 * SECOND_MS)
    assert (decision.actions, decision.statuses) == ((), (Status(partition=0, state=State.FINE),))


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


def test_a_hold_that_did_not_arrive_is_asked_for_again() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + 13 * HOUR_MS)
    assert watch.sees(at_ms=START_MS + 14 * HOUR_MS).actions == (SET_HOLD,)


def test_a_hold_is_in_effect_only_when_every_live_broker_says_so() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + 13 * HOUR_MS)
    assert outcome(watch.sees(at_ms=START_MS + 14 * HOUR_MS, overrides=HOLD, held_on=(1,))) == (
        (AskBrokers(topic="orders", brokers=(2, 3)),), State.WATCHED,
    )  # fmt: skip
    assert outcome(watch.sees(at_ms=START_MS + 15 * HOUR_MS, held_on=(2,), alive=(1, 2))) == ((), State.HELD)


def test_passes_in_flight_are_ended_only_if_the_deadline_is_near() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + 13 * HOUR_MS)
    near_ms = UNSAFE_MS - MARGINS.pass_start_ms + 1
    decision = watch.sees(at_ms=near_ms, overrides=HOLD, held_on=(1, 2, 3))
    assert outcome(decision) == ((EndPasses(topic="orders"),), State.HELD)


def test_without_a_hold_in_effect_the_moment_of_danger_is_too_late() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + 13 * HOUR_MS)
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
    too_early = partition(verdict=Verdict.RIGHT, read_ms=days)
    assert watch.sees(too_early, at_ms=days + 2).actions == (VERIFY,)
    read = partition(verdict=Verdict.RIGHT, read_ms=days + 1)
    released = watch.sees(read, at_ms=days + 3)
    assert released.actions == (Release(topic="orders", restore=NOTHING),)
    assert released.statuses == (Status(partition=0, state=State.FINE),)
    assert watch.sees(partition(), at_ms=days + 4).actions == (Release(topic="orders", restore=NOTHING),)
    assert watch.sees(partition(), at_ms=days + 5, overrides=NOTHING).memory.hold is not None
    assert watch.sees(partition(), at_ms=days + 4 + NEWS_MS).memory.hold is None


def test_release_restores_what_was_found_and_leaves_what_others_set() -> None:
    watch = Watch()
    watch.look = replace(watch.look, overrides=((RATIO, "0.2"), (LAG_MIN, None), (LAG_MAX, "7")))
    watch.held()
    days = START_MS + 5 * DAY_MS
    watch.sees(partition(), at_ms=days)
    changed: Configs = ((RATIO, "1.0"), (LAG_MIN, dict(HOLD)[LAG_MIN]), (LAG_MAX, "9"))
    told = watch.sees(partition(verdict=Verdict.RIGHT, read_ms=days), at_ms=days + 1, overrides=changed)
    assert told.actions == (
        alarm(AlarmKind.CHANGED_BY_PERSON),
        Release(topic="orders", restore=((RATIO, "0.2"), (LAG_MIN, None))),
    )


def test_a_hold_that_a_person_changed_is_told_and_not_set_again() -> None:
    watch = Watch(Allowed(cluster_default=True)).held()
    later = START_MS + 15 * HOUR_MS
    first = watch.sees(at_ms=later, overrides=((RATIO, "0.1"), *NOTHING[1:]))
    second = watch.sees(at_ms=later + HOUR_MS)
    assert (first.actions, second.actions) == ((alarm(AlarmKind.CHANGED_BY_PERSON),), ())
    assert watch.sees(at_ms=UNSAFE_MS).actions == (LATE,)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_hold_that_a_robot_undid_is_set_by_the_cluster_default_if_that_is_allowed(allowed: bool) -> None:
    watch = Watch(Allowed(cluster_default=allowed)).held()
    soon = START_MS + 13 * HOUR_MS + 60 * SECOND_MS
    undone = watch.sees(at_ms=soon, overrides=NOTHING, held_on=())
    default = (HoldByDefault(configs=DEFAULT_HOLD),) if allowed else ()
    assert undone.actions == (
        alarm(AlarmKind.UNDONE_BY_ROBOT), *default, *((AskBrokers(topic="orders", brokers=(1, 2, 3)),) * allowed),
    )  # fmt: skip
    held = watch.sees(at_ms=soon + 1, held_on=(1, 2, 3) if allowed else (), default_overrides=DEFAULT_HOLD)
    assert held.statuses[0].state == (State.HELD if allowed else State.WATCHED)
    watch.sees(partition(), at_ms=soon + 2)
    back = watch.sees(partition(verdict=Verdict.RIGHT, read_ms=soon + 2), at_ms=soon + 3)
    restore = tuple((name, None) for name, _ in DEFAULT_HOLD)
    assert back.actions == ((ReleaseDefault(restore=restore),) if allowed else ())


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
    right = replace(copied, replicas=(*copied.replicas[:3], four))
    assert watch.sees(right, at_ms=soon_ms + 3).actions == (Release(topic="orders", restore=NOTHING),)


def test_who_looks_for_the_first_time_knows_nothing_of_those_behind() -> None:
    decision = decide(Memory(), replace(LOOK, partitions=(BEHIND,)), START_MS, MARGINS, Allowed())
    assert decision.actions == (LATE, replace(SET_HOLD, by_ms=0))


def test_who_did_not_look_for_longer_than_the_retention_reads_everything() -> None:
    decision = Watch().sees(partition(), at_ms=START_MS + 2 * DAY_MS)
    verifies = tuple(Verify(topic="orders", partition=0, broker=broker) for broker in (1, 2, 3))
    assert outcome(decision) == (verifies, State.UNREAD)


def test_who_did_not_look_for_longer_than_the_retention_and_finds_one_behind_is_too_late() -> None:
    decision = Watch().sees(BEHIND, at_ms=START_MS + 2 * DAY_MS)
    assert decision.actions[0] == LATE


def test_a_wrong_replica_is_expelled_and_added_again_under_the_hold() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    wrong = partition(verdict=Verdict.WRONG, read_ms=BACK_MS)
    expel = Expel(topic="orders", partition=0, broker=3, remaining=(1, 2))
    assert watch.sees(wrong, at_ms=BACK_MS + 1).actions == (alarm(AlarmKind.WRONG, broker=3, number=0), expel)
    assert watch.sees(wrong, at_ms=BACK_MS + 2).actions == (expel,)
    out = watch.sees(partition((1, 2), assigned=(1, 2)), at_ms=BACK_MS + 3)
    assert out.actions == (AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3)),)
    assert watch.sees(partition((1, 2), end=0, moving=(3,)), at_ms=BACK_MS + 4).statuses[0].state == State.HELD
    assert watch.sees(partition(), at_ms=BACK_MS + 5).actions == (VERIFY,)
    right = partition(verdict=Verdict.RIGHT, read_ms=BACK_MS + 5)
    assert watch.sees(right, at_ms=BACK_MS + 6).actions == (Release(topic="orders", restore=NOTHING),)


@pytest.mark.parametrize("leader", [Verdict.WRONG, Verdict.UNJUDGED, None])
def test_nobody_is_expelled_for_a_copy_of_a_leader_that_is_not_right_itself(leader: Verdict | None) -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    both = watch.sees(partition(verdict=Verdict.WRONG, others=leader, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    read_again = [1, 2] if leader is Verdict.WRONG else []
    assert {type(action) for action in both.actions} == {Alarm, *([Verify] if read_again else [])}
    assert alarm(AlarmKind.WRONG, broker=3, number=0) in both.actions
    assert [action.broker for action in both.actions if isinstance(action, Verify)] == read_again
    right = watch.sees(partition(verdict=Verdict.WRONG, read_ms=BACK_MS + 2), at_ms=BACK_MS + 2)
    assert Expel(topic="orders", partition=0, broker=3, remaining=(1, 2)) in right.actions


def test_a_leader_that_was_right_before_the_other_came_back_is_read_again() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    wrong = partition(verdict=Verdict.WRONG, read_ms=BACK_MS)
    old = replace(wrong, replicas=tuple(replace(r, read_ms=r.read_ms - (r.broker != 3)) for r in wrong.replicas))
    assert watch.sees(old, at_ms=BACK_MS + 1).actions == (alarm(AlarmKind.WRONG, broker=3, number=0),)


def test_one_that_is_wrong_while_the_one_that_came_back_is_right_is_read_itself_and_told() -> None:
    watch = Watch().held().back()
    others_wrong = partition(verdict=Verdict.RIGHT, others=Verdict.WRONG, read_ms=BACK_MS)
    found = watch.sees(others_wrong, at_ms=BACK_MS + 1)
    verifies = tuple(Verify(topic="orders", partition=0, broker=broker) for broker in (1, 2))
    assert (found.actions, found.statuses[0].blockers) == (verifies, (1, 2))
    again = watch.sees(partition(verdict=Verdict.RIGHT, others=Verdict.WRONG, read_ms=BACK_MS + 1), at_ms=BACK_MS + 2)
    assert again.actions == tuple(alarm(AlarmKind.WRONG, broker=broker, number=0) for broker in (1, 2))
    right = watch.sees(partition(verdict=Verdict.RIGHT, read_ms=BACK_MS + 3), at_ms=BACK_MS + 3)
    assert right.actions == (Release(topic="orders", restore=NOTHING),)


def test_one_that_is_wrong_is_read_again_now_and_then_while_nobody_can_say_whether_its_leader_is_right() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    wrong = partition(verdict=Verdict.WRONG, others=None, read_ms=BACK_MS)
    told = alarm(AlarmKind.WRONG, broker=3, number=0)
    assert watch.sees(wrong, at_ms=BACK_MS + REREAD_MS - 1).actions == (told,)
    assert watch.sees(wrong, at_ms=BACK_MS + REREAD_MS).actions == (told, VERIFY)


def test_an_older_answer_after_the_expulsion_is_no_new_copy() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(partition(verdict=Verdict.WRONG, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    out = partition((1, 2), assigned=(1, 2))
    for at_ms, part in ((BACK_MS + 2, out), (BACK_MS + 3, partition()), (BACK_MS + 4, out)):
        decision = watch.sees(part, at_ms=at_ms)
    assert decision.actions == (AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3)),)
    late = watch.sees(partition(), at_ms=BACK_MS + 2 + NEWS_MS)
    assert late.actions == (VERIFY,)


def test_whoever_is_added_before_the_expulsion_stays_assigned() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(partition(verdict=Verdict.WRONG, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    four = replace(partition(verdict=Verdict.WRONG, read_ms=BACK_MS, assigned=(1, 2, 3, 4)), isr=(1, 2, 3, 4))
    added = watch.sees(four, at_ms=BACK_MS + 2)
    assert Expel(topic="orders", partition=0, broker=3, remaining=(1, 2, 4)) in added.actions
    out = watch.sees(partition((1, 2, 4), assigned=(1, 2, 4)), at_ms=BACK_MS + 3)
    assert AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3, 4)) in out.actions


@pytest.mark.parametrize("assigned", [(1, 2, 4), (1,), (1, 4)])
def test_whom_somebody_has_replaced_since_the_guard_expelled_it_is_nobodys_concern(assigned: tuple[int, ...]) -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(partition(verdict=Verdict.WRONG, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    watch.sees(partition((1, 2), assigned=(1, 2)), at_ms=BACK_MS + 2, alive=(1, 2))
    under_way = partition((1, 2), assigned=(1, 2, 4), moving=(4,))
    assert 3 in [away.broker for away in watch.sees(under_way, at_ms=BACK_MS + 3).memory.away]
    replaced = watch.sees(partition(assigned, assigned=assigned), at_ms=BACK_MS + 4)
    assert 3 not in [away.broker for away in replaced.memory.away]


def test_the_order_of_replicas_is_restored() -> None:
    """The one that is added again was the preferred leader."""
    watch = Watch(Allowed(readmission=True)).held()
    days = START_MS + 5 * DAY_MS
    watch.sees(partition(assigned=(3, 1, 2)), at_ms=days)
    watch.sees(partition(assigned=(3, 1, 2), verdict=Verdict.WRONG, read_ms=days), at_ms=days + 1)
    out = watch.sees(partition((1, 2), assigned=(1, 2)), at_ms=days + 2)
    assert out.actions == (AddAgain(topic="orders", partition=0, broker=3, order=(3, 1, 2)),)


def test_an_expelled_replica_is_added_again_when_its_broker_is_there() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(partition(verdict=Verdict.WRONG, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    assert watch.sees(partition((1, 2), assigned=(1, 2)), at_ms=BACK_MS + 2, alive=(1, 2)).actions == ()
    there = watch.sees(at_ms=BACK_MS + 3, alive=(1, 2, 3))
    assert there.actions == (AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3)),)


def test_an_expelled_replica_stays_out_after_a_person_undid_the_hold() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(partition(verdict=Verdict.WRONG, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    out = partition((1, 2), assigned=(1, 2))
    undone = watch.sees(out, at_ms=BACK_MS + 1 + NEWS_MS, overrides=NOTHING, held_on=())
    assert outcome(undone) == ((alarm(AlarmKind.CHANGED_BY_PERSON),), State.TOO_LATE)
    assert watch.sees(at_ms=BACK_MS + HOUR_MS).actions == ()
    watch.sees(partition((1, 2), end=0, moving=(3,)), at_ms=BACK_MS + 2 * HOUR_MS)
    assert outcome(watch.sees(partition(), at_ms=BACK_MS + 3 * HOUR_MS)) == ((VERIFY,), State.UNREAD)


def expelled(decision: Decision) -> list[int]:
    return [action.broker for action in decision.actions if isinstance(action, Expel)]


def test_where_a_person_undid_the_hold_only_who_was_found_wrong_is_taken_out() -> None:
    """Out without a hold it stays out, since nobody is added without one: not for a mere suspicion."""
    watch = Watch(Allowed(readmission=True)).held()
    watch.sees(at_ms=START_MS + 14 * HOUR_MS, overrides=NOTHING)
    late = watch.sees(at_ms=UNSAFE_MS)
    assert (expelled(late), late.statuses[0].state) == ([], State.TOO_LATE)
    back_ms = UNSAFE_MS + HOUR_MS
    assert expelled(watch.sees(partition(), at_ms=back_ms)) == []
    assert expelled(watch.sees(partition(verdict=Verdict.WRONG, read_ms=back_ms), at_ms=back_ms + 1)) == [3]


def test_nobody_is_expelled_from_a_topic_that_is_not_compacted_any_more() -> None:
    """Nothing holds it, so nobody would be added again."""
    watch = Watch(Allowed(readmission=True)).held().back()
    wrong = partition(verdict=Verdict.WRONG, read_ms=BACK_MS)
    assert expelled(watch.sees(wrong, at_ms=BACK_MS + 1, compacted=False)) == []
    assert expelled(watch.sees(wrong, at_ms=BACK_MS + 2, compacted=True)) == [3]


def test_an_expulsion_is_not_taken_back_while_its_reassignment_runs() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(partition(verdict=Verdict.WRONG, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    watch.allowed = Allowed()
    orders = []
    for hour, moving in ((1, (3,)), (2, (3,)), (3, ())):
        decision = watch.sees(partition(moving=moving), at_ms=BACK_MS + hour * HOUR_MS)
        orders.append([away.order for away in decision.memory.away])
    assert orders == [[(1, 2, 3)], [(1, 2, 3)], [()]]


def test_nothing_is_released_while_a_reassignment_runs() -> None:
    """A replica that was fine is about to go; the one that was away is back and right."""
    watch = Watch().held()
    days = START_MS + 5 * DAY_MS
    watch.sees(partition(moving=(1,)), at_ms=days)
    right = partition(verdict=Verdict.RIGHT, read_ms=days, moving=(1,))
    assert watch.sees(right, at_ms=days + 1).actions == ()


def test_nobody_is_expelled_below_the_replicas_that_must_be_in_sync() -> None:
    watch = Watch(Allowed(readmission=True)).held()
    days = START_MS + 5 * DAY_MS
    watch.sees(partition((1, 3)), at_ms=days, in_sync_min=2)
    decision = watch.sees(partition((1, 3), verdict=Verdict.WRONG, read_ms=days), at_ms=days + 1)
    assert [action for action in decision.actions if isinstance(action, Expel)] == []


def test_somebody_elses_hold_is_told_counts_while_it_stands_and_is_never_released() -> None:
    foreign = alarm(AlarmKind.FOREIGN_HOLD)
    watch = Watch()
    half_ms, back_ms = START_MS + 13 * HOUR_MS, START_MS + 3 * DAY_MS
    assert watch.sees(BEHIND, at_ms=half_ms, overrides=HOLD).actions == (foreign,)
    assert outcome(watch.sees(at_ms=half_ms + 1, held_on=(1, 2, 3))) == ((foreign,), State.HELD)
    assert watch.sees(partition(), at_ms=back_ms).actions == (foreign, VERIFY)
    read = watch.sees(partition(verdict=Verdict.RIGHT, read_ms=back_ms), at_ms=back_ms + 1)
    assert read.actions == (foreign,)
    assert watch.sees(partition(), at_ms=back_ms + 1 + NEWS_MS, overrides=NOTHING).memory.hold is None


def test_somebody_elses_hold_that_is_gone_is_followed_by_the_guards_own() -> None:
    """An older answer shows what was there before it, which is not known: nothing is staked on that."""
    watch = Watch()
    theirs_ms = START_MS + 13 * HOUR_MS
    watch.sees(BEHIND, at_ms=theirs_ms, overrides=HOLD, held_on=(1, 2, 3))
    old = watch.sees(at_ms=theirs_ms + MARGINS.metadata_age_ms, overrides=NOTHING)
    assert (old.actions, old.memory.hold is not None and old.memory.hold.found) == ((), HOLD)
    changed: Configs = ((RATIO, "0.3"), *NOTHING[1:])
    assert outcome(watch.sees(at_ms=theirs_ms + NEWS_MS, overrides=changed)) == ((SET_HOLD,), State.WATCHED)
    assert outcome(watch.sees(at_ms=START_MS + 15 * HOUR_MS, overrides=HOLD, held_on=(1, 2, 3))) == ((), State.HELD)
    back_ms = START_MS + 2 * DAY_MS
    watch.sees(partition(), at_ms=back_ms)
    right = watch.sees(partition(verdict=Verdict.RIGHT, read_ms=back_ms), at_ms=back_ms + 1)
    assert right.actions == (Release(topic="orders", restore=changed),)


def test_who_is_back_when_somebody_elses_hold_goes_is_still_read() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + 13 * HOUR_MS, overrides=HOLD, held_on=(1, 2, 3))
    watch.sees(at_ms=START_MS + 13 * HOUR_MS + SECOND_MS)
    watch.sees(partition(), at_ms=START_MS + 2 * DAY_MS)
    gone = watch.sees(at_ms=START_MS + 2 * DAY_MS + NEWS_MS, overrides=NOTHING)
    assert VERIFY in gone.actions


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


def test_a_release_that_arrives_after_the_next_hold_is_not_taken_for_somebody_else() -> None:
    watch = Watch().held()
    back_ms = START_MS + 14 * HOUR_MS
    watch.sees(partition(), at_ms=back_ms)
    watch.sees(partition(verdict=Verdict.RIGHT, read_ms=back_ms), at_ms=back_ms + 1)
    assert watch.sees(NEW_COPY, at_ms=back_ms + 2).actions == (HOLD_FOR_NEW,)
    watch.sees(at_ms=back_ms + 3)
    assert watch.sees(at_ms=back_ms + 4, overrides=NOTHING).actions == ()
    assert watch.sees(at_ms=back_ms + 3 + NEWS_MS).actions == (HOLD_FOR_NEW,)


def test_an_old_answer_from_before_the_hold_is_nobody_who_undid_it() -> None:
    watch = Watch().held()
    old = watch.sees(at_ms=START_MS + 13 * HOUR_MS + SECOND_MS + MARGINS.metadata_age_ms, overrides=NOTHING)
    assert outcome(old) == ((), State.HELD)


def test_a_robot_that_is_faster_than_the_looks_is_noticed_by_what_the_cluster_accepted() -> None:
    watch = Watch(Allowed(cluster_default=True))
    half_ms = START_MS + 13 * HOUR_MS
    watch.sees(BEHIND, at_ms=half_ms)
    old = watch.sees(at_ms=half_ms + MARGINS.metadata_age_ms, hold_accepted_ms=half_ms + 1)
    assert old.actions == (SET_HOLD,)
    noticed = watch.sees(at_ms=half_ms + MARGINS.metadata_age_ms + 2)
    assert noticed.actions == (
        alarm(AlarmKind.UNDONE_BY_ROBOT), HoldByDefault(configs=DEFAULT_HOLD),
        AskBrokers(topic="orders", brokers=(1, 2, 3)),
    )  # fmt: skip


def test_a_default_that_did_not_arrive_is_asked_for_again_and_one_that_a_person_undid_is_not() -> None:
    watch = Watch(Allowed(cluster_default=True)).held()
    soon = START_MS + 13 * HOUR_MS + 60 * SECOND_MS
    watch.sees(at_ms=soon, overrides=NOTHING, held_on=())
    asked = AskBrokers(topic="orders", brokers=(1, 2, 3))
    assert watch.sees(at_ms=soon + 1).actions == (HoldByDefault(configs=DEFAULT_HOLD), asked)
    watch.sees(at_ms=soon + 2, default_overrides=DEFAULT_HOLD, held_on=(1, 2, 3))
    assert watch.sees(at_ms=soon + 3, default_overrides=(), held_on=()).statuses[0].state == State.HELD
    undone = watch.sees(at_ms=soon + 2 + NEWS_MS, default_overrides=(), held_on=())
    assert outcome(undone) == ((alarm(AlarmKind.CHANGED_BY_PERSON),), State.WATCHED)
    assert watch.sees(at_ms=soon + 3 + NEWS_MS).actions == ()


def held_by_default() -> Watch:
    """A robot undid the topic's own hold a minute after it was set; the cluster default is in effect on every broker."""
    watch = Watch(Allowed(cluster_default=True)).held()
    watch.sees(at_ms=BY_DEFAULT_MS - 1, overrides=NOTHING, held_on=())
    held = watch.sees(at_ms=BY_DEFAULT_MS, default_overrides=DEFAULT_HOLD, held_on=(1, 2, 3))
    assert held.statuses[0].state == State.HELD
    return watch


BY_DEFAULT_MS = START_MS + 13 * HOUR_MS + 60 * SECOND_MS + 1
ITS_OWN: Configs = ((RATIO, "0.1"), (LAG_MIN, "0"), (LAG_MAX, None))


def test_overrides_of_its_own_take_a_topic_out_of_reach_of_the_cluster_default_until_they_are_gone() -> None:
    watch = held_by_default()
    own_ms = BY_DEFAULT_MS + HOUR_MS
    out = watch.sees(at_ms=own_ms, overrides=ITS_OWN, held_on=(2, 3))
    assert outcome(out) == ((alarm(AlarmKind.CHANGED_BY_PERSON),), State.WATCHED)
    assert outcome(watch.sees(at_ms=own_ms + 1, held_on=(1, 2, 3))) == ((), State.WATCHED)
    old = watch.sees(at_ms=own_ms + MARGINS.metadata_age_ms, overrides=NOTHING, held_on=(1, 2, 3))
    assert outcome(old) == ((), State.WATCHED)
    gone = watch.sees(at_ms=own_ms + 1 + NEWS_MS, held_on=(1, 2))
    assert gone.actions == (AskBrokers(topic="orders", brokers=(3,)),)
    assert watch.sees(at_ms=own_ms + 2 + NEWS_MS, held_on=(3,)).statuses[0].state == State.HELD


def test_a_topic_that_gets_overrides_of_its_own_after_the_moment_of_danger_is_too_late() -> None:
    watch = held_by_default()
    assert watch.sees(at_ms=UNSAFE_MS + HOUR_MS).statuses[0].state == State.HELD
    out = watch.sees(at_ms=UNSAFE_MS + 2 * HOUR_MS, overrides=ITS_OWN)
    assert outcome(out) == ((alarm(AlarmKind.CHANGED_BY_PERSON), LATE), State.TOO_LATE)


def test_overrides_that_hold_themselves_leave_the_hold_by_the_cluster_default_as_it_is() -> None:
    watch = held_by_default()
    for overrides in (HOLD, ((RATIO, "1.0"), *NOTHING[1:])):
        part_of_it = watch.sees(at_ms=UNSAFE_MS + HOUR_MS, overrides=overrides)
        assert outcome(part_of_it) == ((), State.HELD)


def test_a_retention_that_was_lowered_counts_from_the_oldest_answer_that_may_have_hidden_it() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + HOUR_MS)
    seen_ms = START_MS + HOUR_MS - MARGINS.metadata_age_ms
    lowered = watch.sees(at_ms=START_MS + 2 * HOUR_MS, delete_retention_ms=6 * HOUR_MS)
    unsafe_ms = seen_ms + 6 * HOUR_MS - MARGINS.skew_ms - MARGINS.pass_start_ms
    assert lowered.statuses[0].unsafe_ms == unsafe_ms


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


def back_after_a_hold(watch: Watch) -> OffsetSpan | None:
    """What replica 3 is to be read for; None: all of it."""
    watch.sees(replace(partition((1, 2), end=None), committed_end=140), at_ms=START_MS + 15 * HOUR_MS)
    watch.sees(at_ms=START_MS + 15 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    back = watch.sees(replace(partition(end=140), committed_end=140), at_ms=START_MS + 2 * DAY_MS)
    [verify] = [action for action in back.actions if isinstance(action, Verify)]
    return verify.missed


def test_who_comes_back_after_a_hold_in_time_is_to_have_what_it_missed() -> None:
    watch = Watch()
    watch.sees(at_ms=START_MS + MARGINS.poll_ms)
    watch.sees(at_ms=START_MS + HOUR_MS)
    assert back_after_a_hold(watch) == OffsetSpan(start=100, end=140)


def test_of_whom_it_is_not_known_what_it_had_nothing_less_than_all_is_read() -> None:
    assert back_after_a_hold(Watch()) is None


def test_nothing_less_than_all_is_read_of_one_that_was_away_past_the_moment_of_danger() -> None:
    watch = Watch()
    watch.sees(at_ms=START_MS + MARGINS.poll_ms)
    watch.sees(at_ms=START_MS + HOUR_MS)
    late = watch.sees(BEHIND, at_ms=START_MS + 2 * DAY_MS)
    assert LATE in late.actions
    watch.sees(at_ms=START_MS + 2 * DAY_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    back = watch.sees(partition(), at_ms=START_MS + 2 * DAY_MS + 2 * SECOND_MS)
    assert VERIFY in back.actions


def test_nothing_less_than_all_is_read_once_somebody_undid_the_hold() -> None:
    watch = Watch()
    watch.sees(at_ms=START_MS + MARGINS.poll_ms)
    watch.sees(at_ms=START_MS + HOUR_MS)
    assert back_after_a_hold(watch) is not None
    undone = watch.sees(at_ms=START_MS + 3 * DAY_MS, overrides=NOTHING)
    assert VERIFY in undone.actions
