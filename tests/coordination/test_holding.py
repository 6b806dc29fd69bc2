"""What became of a hold: whose it is, who undid it, and whether the cluster default stands in for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    AlarmKind,
    Allowed,
    AskBrokers,
    Configs,
    HoldByDefault,
    Release,
    ReleaseDefault,
    SetHold,
    State,
)
from headstone.coordination.guarding import decide
from tests.coordination.guard_watch import (
    ASK_ALL,
    BEHIND,
    DAY_MS,
    DUE_MS,
    HOUR_MS,
    LATE,
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
    right,
)

NO_DEFAULT: Configs = tuple((name, None) for name, _ in DEFAULT_HOLD)
UNDONE_MS = DUE_MS + 60 * SECOND_MS
BY_DEFAULT = HoldByDefault(configs=DEFAULT_HOLD)


def undone_by_a_robot() -> Watch:
    """A minute after it was set; the cluster default may be used."""
    watch = Watch(Allowed(cluster_default=True))
    watch.look = replace(watch.look, default_overrides=NO_DEFAULT)
    watch.held()
    return watch


def held_by_default() -> Watch:
    watch = undone_by_a_robot()
    watch.sees(at_ms=UNDONE_MS, overrides=NOTHING)
    held = watch.sees(at_ms=UNDONE_MS + 1, default_overrides=DEFAULT_HOLD, held_on=(1, 2, 3))
    assert held.statuses[0].state == State.HELD
    return watch


def test_a_question_about_the_default_that_nobody_answered_ends_no_hold() -> None:
    watch = held_by_default()
    for look in range(1, 4):
        unknown = watch.sees(at_ms=UNDONE_MS + look * 2 * NEWS_MS, default_overrides=None)
        assert outcome(unknown) == ((), State.HELD)
    assert outcome(watch.sees(at_ms=UNSAFE_MS + HOUR_MS, default_overrides=DEFAULT_HOLD)) == ((), State.HELD)
    gone = watch.sees(at_ms=UNSAFE_MS + 2 * HOUR_MS, default_overrides=NO_DEFAULT, held_on=())
    assert gone.actions[0] == alarm(AlarmKind.CHANGED_BY_PERSON)


def test_a_default_of_which_nothing_is_known_is_not_used_before_it_could_be_put_back() -> None:
    watch = undone_by_a_robot()
    unknown = watch.sees(at_ms=UNDONE_MS, overrides=NOTHING, default_overrides=None)
    assert unknown.actions == (alarm(AlarmKind.UNDONE_BY_ROBOT),)
    found: Configs = ((DEFAULT_HOLD[0][0], "0.3"), *NO_DEFAULT[1:])
    told = watch.sees(at_ms=UNDONE_MS + 1, default_overrides=found)
    assert (told.actions, told.memory.default_hold) == ((BY_DEFAULT, ASK_ALL), found)


def test_a_default_of_which_nothing_is_known_is_put_back_once_somebody_answers() -> None:
    watch = held_by_default()
    back_ms = UNDONE_MS + HOUR_MS
    watch.sees(partition(), at_ms=back_ms)
    unknown = watch.sees(right(back_ms), at_ms=back_ms + 1, default_overrides=None)
    assert (unknown.actions, unknown.memory.default_hold) == ((), NO_DEFAULT)
    later_ms = back_ms + 2 * MARGINS.effect_ms
    assert watch.sees(right(back_ms), at_ms=later_ms, default_overrides=None).memory.default_hold == NO_DEFAULT
    told = watch.sees(right(back_ms), at_ms=later_ms + 1, default_overrides=DEFAULT_HOLD)
    assert told.actions == (ReleaseDefault(restore=NO_DEFAULT),)


def let_go_before_the_default_is_there() -> tuple[Watch, int]:
    """The robot comes a minute after the hold, and the replica right after it. When the cluster default was last asked for."""
    watch = undone_by_a_robot()
    assert BY_DEFAULT in watch.sees(at_ms=UNDONE_MS, overrides=NOTHING).actions
    assert BY_DEFAULT in watch.sees(partition(), at_ms=UNDONE_MS + SECOND_MS).actions
    asked_ms = UNDONE_MS + 30 * SECOND_MS
    let_go = watch.sees(right(UNDONE_MS + SECOND_MS), at_ms=asked_ms)
    assert (let_go.statuses[0].state, let_go.memory.default_hold) == (State.FINE, NO_DEFAULT)
    return watch, asked_ms


def test_a_default_that_arrives_after_everyone_is_back_is_released() -> None:
    """The call was on its way when nothing was left to hold for."""
    watch, asked_ms = let_go_before_the_default_is_there()
    there_ms = asked_ms + MARGINS.effect_ms
    assert watch.sees(at_ms=there_ms - 1).actions == ()
    arrived = watch.sees(at_ms=there_ms, default_overrides=DEFAULT_HOLD, held_on=(1, 2, 3))
    assert arrived.actions == (ReleaseDefault(restore=NO_DEFAULT),)
    done = watch.sees(at_ms=there_ms + NEWS_MS, default_overrides=NO_DEFAULT, held_on=())
    assert (done.actions, done.memory.default_hold) == ((), None)


def held_again_before_the_default_is_restored() -> tuple[Watch, int]:
    """The replica goes away again at once, for half a day. When the second hold is in effect."""
    watch, asked_ms = let_go_before_the_default_is_there()
    watch.sees(BEHIND, at_ms=asked_ms + SECOND_MS)
    again_ms = asked_ms + 13 * HOUR_MS
    assert any(isinstance(action, SetHold) for action in watch.sees(at_ms=again_ms).actions)
    held = watch.sees(at_ms=again_ms + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert (held.statuses[0].state, held.memory.default_hold) == (State.HELD, NO_DEFAULT)
    return watch, again_ms + SECOND_MS


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize(
    ("kind", "after_ms"),
    [(AlarmKind.CHANGED_BY_PERSON, MARGINS.robot_ms + NEWS_MS), (AlarmKind.UNDONE_BY_ROBOT, NEWS_MS)],
)
def test_the_default_of_an_earlier_hold_answers_a_robot_only_and_only_where_it_may(
    kind: AlarmKind, after_ms: int, allowed: bool
) -> None:
    watch, held_ms = held_again_before_the_default_is_restored()
    watch.allowed = Allowed(cluster_default=allowed)
    noticed_ms = held_ms + after_ms
    assert watch.sees(at_ms=noticed_ms, overrides=NOTHING).actions[0] == alarm(kind)
    answer = watch.sees(at_ms=noticed_ms + SECOND_MS, held_on=(1, 2, 3))
    answers = allowed and kind is AlarmKind.UNDONE_BY_ROBOT
    assert (BY_DEFAULT in answer.actions, answer.statuses[0].state is State.HELD) == (answers, answers)
    back_ms = noticed_ms + HOUR_MS
    watch.sees(partition(), at_ms=back_ms)
    late = watch.sees(right(back_ms), at_ms=back_ms + SECOND_MS, default_overrides=DEFAULT_HOLD)
    assert ReleaseDefault(restore=NO_DEFAULT) in late.actions


def test_a_default_that_was_asked_for_is_forgotten_once_it_cannot_arrive_any_more() -> None:
    watch, asked_ms = let_go_before_the_default_is_there()
    over_ms = asked_ms + MARGINS.effect_ms + MARGINS.metadata_age_ms
    unknown, late = (watch.sees(at_ms=over_ms - 1, default_overrides=told) for told in (None, NO_DEFAULT))
    assert (unknown.memory.default_hold, late.memory.default_hold) == (NO_DEFAULT, NO_DEFAULT)
    over = watch.sees(at_ms=over_ms + 1)
    assert (over.actions, over.memory.default_hold, over.memory.hold) == ((), None, None)


def held_by_somebodys_default() -> Watch:
    """The guard's own hold was refused; a person holds by the cluster default, as every broker says."""
    watch = Watch()
    due_ms = DUE_MS
    assert watch.sees(BEHIND, at_ms=due_ms).actions == (SET_HOLD,)
    held = watch.sees(at_ms=due_ms + SECOND_MS, default_overrides=DEFAULT_HOLD, held_on=(1, 2, 3))
    assert outcome(held) == ((SET_HOLD,), State.HELD)
    return watch


def test_what_brokers_hold_by_somebodys_default_is_not_the_guards_own_hold_which_is_asked_for_on() -> None:
    watch = held_by_somebodys_default()
    later_ms = DUE_MS + 2 * NEWS_MS
    assert outcome(watch.sees(at_ms=later_ms, held_on=(1, 2))) == ((SET_HOLD,), State.HELD)
    assert outcome(watch.sees(at_ms=UNSAFE_MS + HOUR_MS, held_on=(1, 2, 3))) == ((SET_HOLD,), State.HELD)
    assert outcome(watch.sees(at_ms=UNSAFE_MS + 2 * HOUR_MS, overrides=HOLD, held_on=(1, 2, 3))) == ((), State.HELD)


def test_brokers_that_all_have_the_hold_show_that_it_was_accepted_before_an_older_answer_does() -> None:
    watch = Watch()
    due_ms = DUE_MS
    watch.sees(BEHIND, at_ms=due_ms)
    held = watch.sees(at_ms=due_ms + SECOND_MS, hold_accepted_ms=due_ms + 1, held_on=(1, 2, 3))
    assert outcome(held) == ((), State.HELD)


@pytest.mark.parametrize(
    ("robot_ms", "kind"), [(600_000, AlarmKind.CHANGED_BY_PERSON), (HOUR_MS, AlarmKind.UNDONE_BY_ROBOT)]
)
def test_who_puts_back_what_it_knew_at_its_next_round_is_a_robot_however_long_its_rounds_are(
    robot_ms: int, kind: AlarmKind
) -> None:
    watch = undone_by_a_robot()
    rounds_ms = 15 * 60 * SECOND_MS
    seen = replace(watch.look, asked_ms=DUE_MS + rounds_ms, overrides=NOTHING, held_on=())
    margins = replace(MARGINS, robot_ms=robot_ms)
    decision = decide(watch.memory, seen, seen.asked_ms, margins, watch.allowed)
    assert (decision.actions[0], BY_DEFAULT in decision.actions) == (alarm(kind), kind is AlarmKind.UNDONE_BY_ROBOT)


def test_a_default_that_is_undone_before_a_look_shows_it_is_told_and_left() -> None:
    watch = undone_by_a_robot()
    watch.sees(at_ms=UNDONE_MS, overrides=NOTHING)
    early = watch.sees(at_ms=UNDONE_MS + MARGINS.metadata_age_ms, default_accepted_ms=UNDONE_MS + 1)
    assert early.actions == (BY_DEFAULT, ASK_ALL)
    noticed = watch.sees(at_ms=UNDONE_MS + 1 + NEWS_MS, default_accepted_ms=UNDONE_MS + NEWS_MS)
    assert noticed.actions == (alarm(AlarmKind.CHANGED_BY_PERSON),)
    assert watch.sees(at_ms=UNDONE_MS + HOUR_MS).actions == ()


def test_what_was_accepted_for_another_topic_before_does_not_count() -> None:
    watch = undone_by_a_robot()
    watch.sees(at_ms=UNDONE_MS, overrides=NOTHING, default_accepted_ms=UNDONE_MS - 1)
    assert watch.sees(at_ms=UNDONE_MS + 2 * NEWS_MS).actions == (BY_DEFAULT, ASK_ALL)


def test_somebody_elses_hold_that_is_gone_is_followed_by_the_guards_own() -> None:
    """An older answer shows what was there before it, which is not known: nothing is staked on that."""
    watch = Watch()
    theirs_ms = DUE_MS
    watch.sees(BEHIND, at_ms=theirs_ms, overrides=HOLD, held_on=(1, 2, 3))
    old = watch.sees(at_ms=theirs_ms + MARGINS.metadata_age_ms, overrides=NOTHING)
    assert (old.actions, old.memory.hold is not None and old.memory.hold.found) == ((), HOLD)
    changed: Configs = ((RATIO, "0.3"), *NOTHING[1:])
    assert outcome(watch.sees(at_ms=theirs_ms + NEWS_MS, overrides=changed)) == ((SET_HOLD,), State.WATCHED)
    assert outcome(watch.sees(at_ms=START_MS + 15 * HOUR_MS, overrides=HOLD, held_on=(1, 2, 3))) == ((), State.HELD)
    back_ms = START_MS + 2 * DAY_MS
    watch.sees(partition(), at_ms=back_ms)
    assert watch.sees(right(back_ms), at_ms=back_ms + 1).actions == (Release(topic="orders", restore=changed),)


def test_who_is_back_when_somebody_elses_hold_goes_is_still_read() -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=DUE_MS, overrides=HOLD, held_on=(1, 2, 3))
    watch.sees(at_ms=DUE_MS + SECOND_MS)
    watch.sees(partition(), at_ms=START_MS + 2 * DAY_MS)
    gone = watch.sees(at_ms=START_MS + 2 * DAY_MS + NEWS_MS, overrides=NOTHING)
    assert VERIFY in gone.actions


def test_an_old_answer_from_before_the_hold_is_nobody_who_undid_it() -> None:
    watch = Watch().held()
    old = watch.sees(at_ms=DUE_MS + SECOND_MS + MARGINS.metadata_age_ms, overrides=NOTHING)
    assert outcome(old) == ((), State.HELD)


def test_a_robot_that_is_faster_than_the_looks_is_noticed_by_what_the_cluster_accepted() -> None:
    watch = Watch(Allowed(cluster_default=True))
    half_ms = DUE_MS
    watch.sees(BEHIND, at_ms=half_ms)
    assert watch.sees(at_ms=half_ms + MARGINS.metadata_age_ms, hold_accepted_ms=half_ms + 1).actions == (SET_HOLD,)
    assert watch.sees(at_ms=half_ms + MARGINS.metadata_age_ms + 2).actions == (
        alarm(AlarmKind.UNDONE_BY_ROBOT), HoldByDefault(configs=DEFAULT_HOLD),
        ASK_ALL,
    )  # fmt: skip


def test_a_default_that_did_not_arrive_is_asked_for_again_and_one_that_a_person_undid_is_not() -> None:
    watch = Watch(Allowed(cluster_default=True)).held()
    soon = DUE_MS + 60 * SECOND_MS
    watch.sees(at_ms=soon, overrides=NOTHING, held_on=())
    asked = ASK_ALL
    assert watch.sees(at_ms=soon + 1).actions == (HoldByDefault(configs=DEFAULT_HOLD), asked)
    watch.sees(at_ms=soon + 2, default_overrides=DEFAULT_HOLD, held_on=(1, 2, 3))
    assert watch.sees(at_ms=soon + 3, default_overrides=(), held_on=()).statuses[0].state == State.HELD
    undone = watch.sees(at_ms=soon + 2 + NEWS_MS, default_overrides=(), held_on=())
    assert outcome(undone) == ((alarm(AlarmKind.CHANGED_BY_PERSON),), State.WATCHED)
    assert watch.sees(at_ms=soon + 3 + NEWS_MS).actions == ()


BY_DEFAULT_MS = UNDONE_MS + 1


ITS_OWN: Configs = ((RATIO, "0.1"), (LAG_MIN, "0"), (LAG_MAX, None))


def test_overrides_of_its_own_take_a_topic_out_of_reach_of_the_cluster_default_until_they_are_gone() -> None:
    watch = held_by_default()
    own_ms = BY_DEFAULT_MS + HOUR_MS
    out = watch.sees(at_ms=own_ms, overrides=ITS_OWN, held_on=(2, 3))
    assert outcome(out) == ((alarm(AlarmKind.CHANGED_BY_PERSON),), State.WATCHED)
    assert outcome(watch.sees(at_ms=own_ms + 1, held_on=(1, 2, 3))) == ((), State.WATCHED)
    old = watch.sees(at_ms=own_ms + MARGINS.metadata_age_ms, overrides=NOTHING, held_on=(1, 2, 3))
    assert outcome(old) == ((), State.WATCHED)
    assert watch.sees(at_ms=own_ms + 1 + NEWS_MS, held_on=(1, 2)).actions == (AskBrokers(topic="orders", brokers=(3,)),)
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
