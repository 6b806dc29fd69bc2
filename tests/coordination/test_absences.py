"""Who is away since when, and who may have been: gaps between looks, new copies, what is seen for the first time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import HOLD, AlarmKind, Allowed, Memory, PartitionSeen, SetHold, State, Verify
from headstone.coordination.guarding import decide
from tests.coordination.guard_watch import (
    BEHIND,
    DAY_MS,
    HOUR_MS,
    LATE,
    LOOK,
    MARGINS,
    SECOND_MS,
    START_MS,
    UNSAFE_MS,
    Watch,
    alarm,
    outcome,
    partition,
)

FIRST_MS = START_MS - MARGINS.metadata_age_ms
"""A look at START_MS may have been told what was so then."""
VERIFY_ALL = tuple(Verify(topic="orders", partition=0, broker=broker) for broker in (1, 2, 3))


def test_a_clock_that_is_said_to_differ_by_the_retention_excuses_nobody_whom_a_dead_guard_did_not_watch() -> None:
    watch = Watch()
    short = watch.sees(at_ms=START_MS + MARGINS.poll_ms, skew_ms=DAY_MS - 60 * SECOND_MS)
    assert short.actions == (alarm(AlarmKind.RETENTION_TOO_SHORT),)
    back = watch.sees(at_ms=START_MS + 30 * HOUR_MS, skew_ms=0)
    assert (back.actions[1:], back.statuses[0].state) == (VERIFY_ALL, State.UNREAD)


def test_one_look_that_was_missed_makes_nobody_be_read_for_a_retention_that_is_too_short() -> None:
    watch = Watch()
    last_ms = 0
    for polls, late_ms in ((1, 0), (3, MARGINS.effect_ms)):
        last_ms = START_MS + polls * MARGINS.poll_ms + late_ms
        decision = watch.sees(at_ms=last_ms, delete_retention_ms=1_000)
        assert decision.actions == (alarm(AlarmKind.RETENTION_TOO_SHORT),)
    gap_ms = 2 * MARGINS.poll_ms + MARGINS.effect_ms + 1
    assert watch.sees(partition(), at_ms=last_ms + gap_ms).actions[1:] == VERIFY_ALL


@pytest.mark.parametrize(("after_ms", "days"), [(1, 1), (MARGINS.metadata_age_ms, 1), (MARGINS.metadata_age_ms + 1, 2)])
def test_a_raised_retention_counts_once_no_broker_can_stamp_by_the_old_one(after_ms: int, days: int) -> None:
    """after_ms: how long after the look that showed it the replica was last known to have everything."""
    watch = Watch()
    raised_ms = START_MS + HOUR_MS
    watch.sees(at_ms=raised_ms, delete_retention_ms=2 * DAY_MS)
    watch.sees(at_ms=raised_ms + MARGINS.metadata_age_ms + after_ms)
    gone = watch.sees(BEHIND, at_ms=raised_ms + HOUR_MS)
    slack_ms = days * DAY_MS - MARGINS.skew_ms - MARGINS.pass_start_ms
    assert gone.statuses[0].unsafe_ms == raised_ms + after_ms + slack_ms
    half_ms = raised_ms + after_ms + slack_ms // 2
    assert (watch.sees(at_ms=half_ms - 1).actions, [*map(type, watch.sees(at_ms=half_ms + 1).actions)]) == (
        (),
        [SetHold],
    )


def test_a_lowered_retention_counts_from_the_last_look_that_saw_the_old_one() -> None:
    """It may have been in force right after that look, less how old its answer was."""
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + HOUR_MS)
    watch.sees(at_ms=START_MS + 2 * HOUR_MS)
    lowered = watch.sees(at_ms=START_MS + 3 * HOUR_MS, delete_retention_ms=6 * HOUR_MS)
    in_force_ms = START_MS + 2 * HOUR_MS - MARGINS.metadata_age_ms
    assert lowered.statuses[0].unsafe_ms == in_force_ms + 6 * HOUR_MS - MARGINS.skew_ms - MARGINS.pass_start_ms


def new_topic(**changes: object) -> Watch:
    """First seen a poll after START_MS, while broker 3 restarts; its first record is of then."""
    watch = Watch()
    watch.memory = Memory()
    watch.sees(replace(BEHIND, first_ms=FIRST_MS), at_ms=START_MS + MARGINS.poll_ms, **changes)
    return watch


def test_who_restarts_while_a_topic_is_made_has_missed_only_what_came_since() -> None:
    watch = new_topic(unseen_ms=START_MS)
    watched = watch.sees(at_ms=START_MS + 2 * MARGINS.poll_ms, unseen_ms=None)
    assert outcome(watched) == ((), State.WATCHED)
    assert watched.statuses[0].unsafe_ms == UNSAFE_MS
    starts = watch.sees(partition((1, 2), end=0), at_ms=START_MS + 3 * MARGINS.poll_ms)
    assert (starts.actions, starts.statuses[0].unsafe_ms) == ((), UNSAFE_MS)
    assert outcome(watch.sees(partition(), at_ms=START_MS + 4 * MARGINS.poll_ms)) == ((), State.FINE)


@pytest.mark.parametrize("unseen_ms", [None, START_MS - HOUR_MS])
def test_who_is_behind_in_a_topic_of_which_no_earlier_look_of_just_now_tells_is_too_late(unseen_ms: int | None) -> None:
    seen = replace(LOOK, partitions=(BEHIND,), unseen_ms=unseen_ms)
    assert LATE in decide(Memory(), seen, START_MS, MARGINS, Allowed()).actions


@pytest.mark.parametrize(
    ("changes", "is_late"),
    [
        ({"first_ms": FIRST_MS}, False), ({"first_ms": FIRST_MS - 1}, True), ({}, True),
        ({"committed_end": 0}, False), ({"committed_end": None}, True),
    ],
    ids=["first record of since", "first record of before", "first record gone", "empty", "nothing known"],
)  # fmt: skip
def test_a_topic_that_was_not_shown_is_new_only_where_its_partition_bears_it_out(
    changes: dict[str, int | None], is_late: bool
) -> None:
    """It may have been denied to the guard, and a replica of it away for weeks."""
    part = replace(BEHIND, **changes)  # type: ignore[arg-type]
    seen = replace(LOOK, asked_ms=START_MS + MARGINS.poll_ms, partitions=(part,), unseen_ms=START_MS)
    assert (LATE in decide(Memory(), seen, seen.asked_ms, MARGINS, Allowed()).actions) is is_late


def second(number: int, part: PartitionSeen) -> PartitionSeen:
    return replace(part, partition=number)


def test_who_restarts_while_partitions_are_added_has_missed_only_what_came_since() -> None:
    watch = Watch()
    parts = (partition(), second(1, BEHIND))
    seen = replace(LOOK, asked_ms=START_MS + MARGINS.poll_ms, partitions=parts)
    added = decide(watch.memory, seen, seen.asked_ms, MARGINS, Allowed())
    assert (added.actions, added.statuses[1].state, added.statuses[1].unsafe_ms) == ((), State.WATCHED, UNSAFE_MS)


def test_a_partition_that_a_look_only_failed_to_show_is_not_new() -> None:
    watch = Watch()
    memory = watch.memory
    decisions = []
    for number, parts in enumerate((
        (partition(), second(1, partition()), second(2, partition())), (partition(),),
        (partition(), second(1, BEHIND)),
    ), start=1):  # fmt: skip
        seen = replace(LOOK, asked_ms=START_MS + number * MARGINS.poll_ms, partitions=parts)
        decisions.append(decide(memory, seen, seen.asked_ms, MARGINS, Allowed()))
        memory = decisions[-1].memory
    assert [action for action in decisions[-1].actions if action == replace(LATE, partition=1)] != []


@pytest.mark.parametrize(("before_ms", "state"), [(MARGINS.metadata_age_ms + 1, State.HELD), (1, State.UNREAD)])
def test_a_copy_that_may_have_begun_before_the_hold_is_read_however_late_a_look_shows_it(
    before_ms: int, state: State
) -> None:
    watch = Watch()
    watch.sees(BEHIND, at_ms=START_MS + 13 * HOUR_MS)
    held_ms = START_MS + 13 * HOUR_MS + SECOND_MS
    watch.sees(at_ms=held_ms, overrides=HOLD, held_on=(1, 2, 3))
    watch.sees(at_ms=held_ms + before_ms)
    copies = partition((1, 2), assigned=(1, 2, 3, 4), moving=(4,), end=None)
    shown = watch.sees(copies, at_ms=held_ms + before_ms + HOUR_MS)
    assert shown.statuses[0].state == state
