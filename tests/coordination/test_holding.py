"""What became of a hold: whose it is, who undid it, and whether the cluster default stands in for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    AlarmKind,
    Allowed,
    AskBrokers,
    Configs,
    HoldByDefault,
    ReleaseDefault,
    State,
    Verdict,
)
from headstone.coordination.guarding import decide
from tests.coordination.guard_watch import (
    BEHIND,
    HOUR_MS,
    MARGINS,
    NEWS_MS,
    NOTHING,
    SECOND_MS,
    SET_HOLD,
    START_MS,
    UNSAFE_MS,
    Watch,
    alarm,
    partition,
)

NO_DEFAULT: Configs = tuple((name, None) for name, _ in DEFAULT_HOLD)
UNDONE_MS = START_MS + 13 * HOUR_MS + 60 * SECOND_MS
BY_DEFAULT = HoldByDefault(configs=DEFAULT_HOLD)
ASK_ALL = AskBrokers(topic="orders", brokers=(1, 2, 3))


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
        assert (unknown.actions, unknown.statuses[0].state) == ((), State.HELD)
    late = watch.sees(at_ms=UNSAFE_MS + HOUR_MS, default_overrides=DEFAULT_HOLD)
    assert (late.actions, late.statuses[0].state) == ((), State.HELD)
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
    right = partition(verdict=Verdict.RIGHT, read_ms=back_ms)
    unknown = watch.sees(right, at_ms=back_ms + 1, default_overrides=None)
    assert (unknown.actions, unknown.memory.default_hold) == ((), NO_DEFAULT)
    later_ms = back_ms + 2 * MARGINS.effect_ms
    assert watch.sees(right, at_ms=later_ms, default_overrides=None).memory.default_hold == NO_DEFAULT
    told = watch.sees(right, at_ms=later_ms + 1, default_overrides=DEFAULT_HOLD)
    assert told.actions == (ReleaseDefault(restore=NO_DEFAULT),)


def held_by_somebodys_default() -> Watch:
    """The guard's own hold was refused; a person holds by the cluster default, as every broker says."""
    watch = Watch()
    due_ms = START_MS + 13 * HOUR_MS
    assert watch.sees(BEHIND, at_ms=due_ms).actions == (SET_HOLD,)
    held = watch.sees(at_ms=due_ms + SECOND_MS, default_overrides=DEFAULT_HOLD, held_on=(1, 2, 3))
    assert (held.actions, held.statuses[0].state) == ((SET_HOLD,), State.HELD)
    return watch


def test_what_brokers_hold_by_somebodys_default_is_not_the_guards_own_hold_which_is_asked_for_on() -> None:
    watch = held_by_somebodys_default()
    later_ms = START_MS + 13 * HOUR_MS + 2 * NEWS_MS
    silent = watch.sees(at_ms=later_ms, held_on=(1, 2))
    assert (silent.actions, silent.statuses[0].state) == ((SET_HOLD,), State.HELD)
    past = watch.sees(at_ms=UNSAFE_MS + HOUR_MS, held_on=(1, 2, 3))
    assert (past.actions, past.statuses[0].state) == ((SET_HOLD,), State.HELD)
    own = watch.sees(at_ms=UNSAFE_MS + 2 * HOUR_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert (own.actions, own.statuses[0].state) == ((), State.HELD)


def test_what_brokers_hold_by_somebodys_default_ends_with_it() -> None:
    watch = held_by_somebodys_default()
    later_ms = START_MS + 13 * HOUR_MS + 2 * NEWS_MS
    gone = watch.sees(at_ms=later_ms, default_overrides=NO_DEFAULT, held_on=(1, 2))
    assert (gone.actions, gone.statuses[0].state) == ((SET_HOLD,), State.WATCHED)


def test_brokers_that_all_have_the_hold_show_that_it_was_accepted_before_an_older_answer_does() -> None:
    watch = Watch()
    due_ms = START_MS + 13 * HOUR_MS
    watch.sees(BEHIND, at_ms=due_ms)
    held = watch.sees(at_ms=due_ms + SECOND_MS, hold_accepted_ms=due_ms + 1, held_on=(1, 2, 3))
    assert (held.actions, held.statuses[0].state) == ((), State.HELD)


@pytest.mark.parametrize(
    ("robot_ms", "kind"), [(600_000, AlarmKind.CHANGED_BY_PERSON), (HOUR_MS, AlarmKind.UNDONE_BY_ROBOT)]
)
def test_who_puts_back_what_it_knew_at_its_next_round_is_a_robot_however_long_its_rounds_are(
    robot_ms: int, kind: AlarmKind
) -> None:
    watch = undone_by_a_robot()
    rounds_ms = 15 * 60 * SECOND_MS
    seen = replace(watch.look, asked_ms=START_MS + 13 * HOUR_MS + rounds_ms, overrides=NOTHING, held_on=())
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
