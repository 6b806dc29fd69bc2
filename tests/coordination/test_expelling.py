"""Who is taken out of the assignment, for a copy of whom, and until when that can be taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import (
    HOLD,
    AddAgain,
    Alarm,
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
from headstone.coordination.guarding import REREAD_MS
from tests.coordination.guard_watch import (
    ADD,
    BACK_MS,
    BEHIND,
    DAY_MS,
    DUE_MS,
    EXPEL,
    HOUR_MS,
    LATE,
    MARGINS,
    NEWS_MS,
    NOTHING,
    OUT,
    RELEASE,
    SECOND_MS,
    START_MS,
    UNSAFE_MS,
    VERIFY,
    WRONG,
    Watch,
    alarm,
    outcome,
    partition,
    right,
    wrong,
)

DAY_LATE_MS = START_MS + 25 * HOUR_MS
CALL_MS = MARGINS.effect_ms + MARGINS.metadata_age_ms


def ordered() -> Watch:
    """Too late although a hold was asked for, held since, and asked to leave."""
    watch = Watch(Allowed(readmission=True))
    watch.sees(BEHIND, at_ms=DUE_MS)
    watch.sees(at_ms=DAY_LATE_MS)
    asked = watch.sees(at_ms=DAY_LATE_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert EXPEL in asked.actions
    return watch


def expelled(decision: Decision) -> list[int]:
    return [action.broker for action in decision.actions if isinstance(action, Expel)]


def test_a_guard_that_may_not_readmit_any_more_expels_nobody() -> None:
    watch = ordered()
    watch.allowed = Allowed()
    soon = watch.sees(at_ms=DAY_LATE_MS + 2 * SECOND_MS)
    assert (expelled(soon), soon.statuses[0].state) == ([], State.TOO_LATE)
    back_ms = DAY_LATE_MS + SECOND_MS + CALL_MS + 1
    assert watch.sees(partition(), at_ms=back_ms).actions == (VERIFY,)
    assert watch.sees(right(back_ms), at_ms=back_ms + 1).statuses[0].state == State.FINE


def test_one_that_is_back_and_found_right_is_not_expelled() -> None:
    watch = ordered()
    back_ms = DAY_LATE_MS + 2 * SECOND_MS
    assert expelled(watch.sees(partition(), at_ms=back_ms)) == [3]
    found = right(back_ms)
    assert watch.sees(found, at_ms=back_ms + CALL_MS).actions == ()
    later = watch.sees(found, at_ms=back_ms + CALL_MS + 1)
    assert (expelled(later), later.statuses[0].state) == ([], State.FINE)


def test_one_that_a_call_of_before_takes_out_after_all_is_added_again() -> None:
    watch = ordered()
    back_ms = DAY_LATE_MS + 2 * SECOND_MS
    watch.sees(partition(), at_ms=back_ms)
    watch.sees(right(back_ms), at_ms=back_ms + SECOND_MS)
    assert watch.sees(OUT, at_ms=back_ms + CALL_MS).actions == (ADD,)


@pytest.mark.parametrize("after_ms", [40 * SECOND_MS, 20 * 60 * SECOND_MS])
def test_one_that_is_wrong_is_expelled_also_where_somebody_undid_the_hold_and_added_again_only_under_one(
    after_ms: int,
) -> None:
    """A robot, or a person."""
    watch = Watch(Allowed(readmission=True)).held()
    watch.sees(at_ms=DUE_MS + after_ms, overrides=NOTHING)
    late = watch.sees(partition((1,)), at_ms=UNSAFE_MS, in_sync_min=2)
    assert (LATE in late.actions, expelled(late)) == (True, [])
    back_ms = UNSAFE_MS + HOUR_MS
    watch.sees(partition(), at_ms=back_ms)
    assert watch.sees(wrong(back_ms), at_ms=back_ms + 1).actions == (WRONG, EXPEL)
    assert watch.sees(OUT, at_ms=back_ms + 2).actions == ()


def led_by_two(verdict: Verdict | None, read_ms: int = 0) -> PartitionSeen:
    """2 was too late itself, as 3 is, which is away; it leads."""
    two = ReplicaSeen(broker=2, log_end=100, verdict=verdict, read_ms=read_ms)
    part = partition((1, 2), end=None)
    return replace(part, leader=2, replicas=(part.replicas[0], two, part.replicas[2]))


def test_nobody_is_expelled_for_a_copy_of_one_that_was_too_late_itself_before_that_is_found_right() -> None:
    watch = Watch(Allowed(readmission=True))
    watch.sees(partition((1,)), at_ms=DUE_MS)
    watch.sees(at_ms=DAY_LATE_MS, in_sync_min=2)
    back_ms = DAY_LATE_MS + SECOND_MS
    back = watch.sees(led_by_two(None), at_ms=back_ms, overrides=HOLD, held_on=(1, 2, 3))
    assert expelled(back) == []
    is_right = watch.sees(led_by_two(Verdict.RIGHT, back_ms), at_ms=back_ms + 1)
    assert EXPEL in is_right.actions


@pytest.mark.parametrize("leader", [Verdict.WRONG, Verdict.UNJUDGED, None])
def test_nobody_is_expelled_for_a_copy_of_a_leader_that_is_not_right_itself(leader: Verdict | None) -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    both = watch.sees(wrong(BACK_MS, others=leader), at_ms=BACK_MS + 1)
    read_again = [1, 2] if leader is Verdict.WRONG else []
    assert {type(action) for action in both.actions} == {Alarm, *([Verify] if read_again else [])}
    assert WRONG in both.actions
    assert [action.broker for action in both.actions if isinstance(action, Verify)] == read_again
    is_right = watch.sees(wrong(BACK_MS + 2), at_ms=BACK_MS + 2)
    assert EXPEL in is_right.actions


def test_a_leader_that_was_right_before_the_other_came_back_is_read_again() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    old = replace(
        wrong(BACK_MS), replicas=tuple(replace(r, read_ms=r.read_ms - (r.broker != 3)) for r in wrong(BACK_MS).replicas)
    )
    assert watch.sees(old, at_ms=BACK_MS + 1).actions == (WRONG,)


def test_one_that_is_wrong_while_the_one_that_came_back_is_right_is_read_itself_and_told() -> None:
    watch = Watch().held().back()
    found = watch.sees(right(BACK_MS, others=Verdict.WRONG), at_ms=BACK_MS + 1)
    verifies = tuple(Verify(topic="orders", partition=0, broker=broker) for broker in (1, 2))
    assert (found.actions, found.statuses[0].blockers) == (verifies, (1, 2))
    again = watch.sees(right(BACK_MS + 1, others=Verdict.WRONG), at_ms=BACK_MS + 2)
    assert again.actions == tuple(alarm(AlarmKind.WRONG, broker=broker, number=0) for broker in (1, 2))
    assert watch.sees(right(BACK_MS + 3), at_ms=BACK_MS + 3).actions == (RELEASE,)


def test_one_that_is_wrong_is_read_again_now_and_then_while_nobody_can_say_whether_its_leader_is_right() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    assert watch.sees(wrong(BACK_MS, others=None), at_ms=BACK_MS + REREAD_MS - 1).actions == (WRONG,)
    assert watch.sees(wrong(BACK_MS, others=None), at_ms=BACK_MS + REREAD_MS).actions == (WRONG, VERIFY)


def test_an_older_answer_after_the_expulsion_is_no_new_copy() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(wrong(BACK_MS), at_ms=BACK_MS + 1)
    out = OUT
    for at_ms, part in ((BACK_MS + 2, out), (BACK_MS + 3, partition()), (BACK_MS + 4, out)):
        decision = watch.sees(part, at_ms=at_ms)
    assert decision.actions == (ADD,)
    assert watch.sees(partition(), at_ms=BACK_MS + 2 + NEWS_MS).actions == (VERIFY,)


def test_whoever_is_added_before_the_expulsion_stays_assigned() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(wrong(BACK_MS), at_ms=BACK_MS + 1)
    four = replace(partition(verdict=Verdict.WRONG, read_ms=BACK_MS, assigned=(1, 2, 3, 4)), isr=(1, 2, 3, 4))
    added = watch.sees(four, at_ms=BACK_MS + 2)
    assert Expel(topic="orders", partition=0, broker=3, remaining=(1, 2, 4)) in added.actions
    out = watch.sees(partition((1, 2, 4), assigned=(1, 2, 4)), at_ms=BACK_MS + 3)
    assert AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3, 4)) in out.actions


@pytest.mark.parametrize("assigned", [(1, 2, 4), (1,), (1, 4)])
def test_whom_somebody_has_replaced_since_the_guard_expelled_it_is_nobodys_concern(assigned: tuple[int, ...]) -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(wrong(BACK_MS), at_ms=BACK_MS + 1)
    watch.sees(OUT, at_ms=BACK_MS + 2, alive=(1, 2))
    under_way = partition((1, 2), assigned=(1, 2, 4), moving=(4,))
    assert 3 in [away.broker for away in watch.sees(under_way, at_ms=BACK_MS + 3).memory.away]
    replaced = watch.sees(partition(assigned, assigned=assigned), at_ms=BACK_MS + 4)
    assert 3 not in [away.broker for away in replaced.memory.away]


def test_the_order_of_replicas_is_restored_once_the_broker_of_the_expelled_one_is_there() -> None:
    """The one that is added again was the preferred leader."""
    watch = Watch(Allowed(readmission=True)).held()
    watch.sees(partition(assigned=(3, 1, 2)), at_ms=BACK_MS)
    watch.sees(partition(assigned=(3, 1, 2), verdict=Verdict.WRONG, read_ms=BACK_MS), at_ms=BACK_MS + 1)
    assert watch.sees(OUT, at_ms=BACK_MS + 2, alive=(1, 2)).actions == ()
    there = watch.sees(at_ms=BACK_MS + 3, alive=(1, 2, 3))
    assert there.actions == (AddAgain(topic="orders", partition=0, broker=3, order=(3, 1, 2)),)


def test_an_expelled_replica_stays_out_after_a_person_undid_the_hold() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(wrong(BACK_MS), at_ms=BACK_MS + 1)
    out = OUT
    undone = watch.sees(out, at_ms=BACK_MS + 1 + NEWS_MS, overrides=NOTHING, held_on=())
    assert outcome(undone) == ((alarm(AlarmKind.CHANGED_BY_PERSON),), State.TOO_LATE)
    assert watch.sees(at_ms=BACK_MS + HOUR_MS).actions == ()
    watch.sees(partition((1, 2), end=0, moving=(3,)), at_ms=BACK_MS + 2 * HOUR_MS)
    assert outcome(watch.sees(partition(), at_ms=BACK_MS + 3 * HOUR_MS)) == ((VERIFY,), State.UNREAD)


def test_where_a_person_undid_the_hold_only_who_was_found_wrong_is_taken_out() -> None:
    """Out without a hold it stays out, since nobody is added without one: not for a mere suspicion."""
    watch = Watch(Allowed(readmission=True)).held()
    watch.sees(at_ms=START_MS + 14 * HOUR_MS, overrides=NOTHING)
    late = watch.sees(at_ms=UNSAFE_MS)
    assert (expelled(late), late.statuses[0].state) == ([], State.TOO_LATE)
    back_ms = UNSAFE_MS + HOUR_MS
    assert expelled(watch.sees(partition(), at_ms=back_ms)) == []
    assert expelled(watch.sees(wrong(back_ms), at_ms=back_ms + 1)) == [3]


def test_nobody_is_expelled_from_a_topic_that_is_not_compacted_any_more() -> None:
    """Nothing holds it, so nobody would be added again; what was asked for before is not repeated."""
    watch = Watch(Allowed(readmission=True)).held().back()
    for later_ms, compacted in ((1, False), (2, True), (3, False)):
        decision = watch.sees(wrong(BACK_MS), at_ms=BACK_MS + later_ms, compacted=compacted)
        assert expelled(decision) == ([3] if compacted else [])
        assert later_ms > 1 or decision.memory.away[0].order == ()


def test_an_expulsion_is_not_taken_back_while_its_reassignment_runs() -> None:
    watch = Watch(Allowed(readmission=True)).held().back()
    watch.sees(wrong(BACK_MS), at_ms=BACK_MS + 1)
    watch.allowed = Allowed()
    orders = []
    for hour, moving in ((1, (3,)), (2, (3,)), (3, ())):
        decision = watch.sees(partition(moving=moving), at_ms=BACK_MS + hour * HOUR_MS)
        orders.append([away.order for away in decision.memory.away])
    assert orders == [[(1, 2, 3)], [(1, 2, 3)], [()]]


def test_nobody_is_expelled_below_the_replicas_that_must_be_in_sync() -> None:
    watch = Watch(Allowed(readmission=True)).held()
    days = START_MS + 5 * DAY_MS
    watch.sees(partition((1, 3)), at_ms=days, in_sync_min=2)
    decision = watch.sees(partition((1, 3), verdict=Verdict.WRONG, read_ms=days), at_ms=days + 1)
    assert expelled(decision) == []
