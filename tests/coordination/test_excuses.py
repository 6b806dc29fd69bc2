"""Who is away and misses nothing that could go: no hold is needed, by what was read of the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.absences import ENDS_MAX
from headstone.coordination.guard_values import (
    HOLD,
    Alarm,
    AlarmKind,
    Allowed,
    DeletionsRead,
    PartitionSeen,
    Release,
    SetHold,
    State,
)
from headstone.coordination.guarding import decide
from tests.coordination.guard_watch import (
    BEHIND,
    DAY_MS,
    HOUR_MS,
    LATE,
    MARGINS,
    NEWS_MS,
    NOTHING,
    SECOND_MS,
    START_MS,
    UNSAFE_MS,
    Watch,
    alarm,
    outcome,
    partition,
)


def reading(
    *, start: int = 100, end: int = 140, newest: int | None = None, committed: int = 140, isr: tuple[int, ...] = (1, 2)
) -> PartitionSeen:
    """Replica 3 had all below 100 when it left; since then 40 records were written, and the leader's log was read."""
    read = DeletionsRead(start=start, end=end, newest=newest)
    return replace(partition(isr, end=None), committed_end=committed, deletions=read)


def left_after_two_looks() -> Watch:
    """What was committed at the first was so before the second asked, and replica 3 was in sync for long after."""
    watch = Watch()
    watch.sees(at_ms=START_MS + MARGINS.poll_ms)
    watch.sees(at_ms=START_MS + HOUR_MS)
    return watch


def test_no_hold_while_whoever_is_away_misses_plain_values_only() -> None:
    watch = left_after_two_looks()
    for hours in range(2, 74, 6):
        part = reading(end=100 + hours, committed=100 + hours)
        assert watch.sees(part, at_ms=START_MS + hours * HOUR_MS).actions == ()
    days = START_MS + 3 * DAY_MS + 2 * HOUR_MS
    assert outcome(watch.sees(reading(end=180, committed=180, newest=179), at_ms=days)) == ((), State.WATCHED)
    later = watch.sees(at_ms=days + 13 * HOUR_MS)
    assert [type(action) for action in later.actions] == [SetHold]


@pytest.mark.parametrize("part", [
    reading(newest=139), reading(newest=100), reading(end=139), reading(start=101),
    replace(reading(), committed_end=None), replace(reading(), deletions=None),
], ids=["a deletion", "the first", "not to the end", "not from the start", "nobody knows the end", "not read"])  # fmt: skip
def test_a_reading_that_found_a_deletion_or_leaves_something_out_excuses_nobody(part: PartitionSeen) -> None:
    watch = left_after_two_looks()
    status = watch.sees(part, at_ms=START_MS + 13 * HOUR_MS).statuses[0]
    assert status.unsafe_ms == UNSAFE_MS + HOUR_MS


def test_what_was_committed_at_the_look_of_its_last_sign_is_not_known_to_be_there() -> None:
    """The answer came after the question, and the replica may have left in between: one look more is needed."""
    watch = Watch()
    watch.sees(at_ms=START_MS + MARGINS.metadata_age_ms)
    watch.sees(BEHIND, at_ms=START_MS + HOUR_MS)
    status = watch.sees(reading(), at_ms=START_MS + 12 * HOUR_MS).statuses[0]
    assert status.unsafe_ms == UNSAFE_MS + MARGINS.metadata_age_ms


def test_a_reading_after_the_moment_of_danger_excuses_nobody() -> None:
    """What was deleted in between, and has gone, is not in it."""
    watch = left_after_two_looks()
    watch.sees(BEHIND, at_ms=START_MS + 2 * HOUR_MS)
    decision = watch.sees(reading(), at_ms=START_MS + 2 * DAY_MS)
    assert (decision.actions[0], decision.statuses[0].state) == (LATE, State.TOO_LATE)


def test_a_reading_that_ended_after_the_moment_of_danger_excuses_nobody_though_its_look_began_before() -> None:
    watch = left_after_two_looks()
    watch.sees(BEHIND, at_ms=START_MS + 2 * HOUR_MS)
    unsafe_ms = UNSAFE_MS + HOUR_MS
    asked_ms = unsafe_ms - MARGINS.effect_ms - 1
    look = replace(watch.look, asked_ms=asked_ms, partitions=(reading(),))
    excused, late = (
        decide(watch.memory, look, now_ms, MARGINS, Allowed()).statuses[0] for now_ms in (unsafe_ms - 1, unsafe_ms)
    )
    assert (excused.state, excused.unsafe_ms) == (State.WATCHED, UNSAFE_MS + asked_ms - START_MS)
    assert (late.state, late.unsafe_ms) == (State.TOO_LATE, unsafe_ms)


def test_a_hold_ends_early_once_all_that_was_missed_is_read_and_plain() -> None:
    watch = left_after_two_looks()
    watch.sees(BEHIND, at_ms=START_MS + 15 * HOUR_MS)
    watch.sees(at_ms=START_MS + 15 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert outcome(watch.sees(reading(newest=110), at_ms=START_MS + 2 * DAY_MS)) == ((), State.HELD)
    adding = watch.sees(replace(reading(), moving=(4,)), at_ms=START_MS + 2 * DAY_MS)
    assert adding.actions == ()
    assert outcome(watch.sees(reading(), at_ms=START_MS + 2 * DAY_MS + SECOND_MS)) == (
        (Release(topic="orders", restore=NOTHING),), State.WATCHED,
    )  # fmt: skip


def test_a_reading_without_the_hold_that_should_be_there_excuses_nobody() -> None:
    """Who undid it may have let a cleaner take what was missed; what is left of the log then reads as plain values."""
    watch = left_after_two_looks()
    watch.sees(BEHIND, at_ms=START_MS + 15 * HOUR_MS)
    watch.sees(at_ms=START_MS + 15 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    days = START_MS + 2 * DAY_MS
    watch.sees(reading(newest=110), at_ms=days)
    undone = watch.sees(reading(), at_ms=days + SECOND_MS, overrides=NOTHING)
    assert (undone.actions, undone.statuses[0].unsafe_ms) == ((), UNSAFE_MS + HOUR_MS)
    news = watch.sees(reading(), at_ms=days + SECOND_MS + NEWS_MS)
    assert outcome(news) == ((alarm(AlarmKind.CHANGED_BY_PERSON), LATE), State.TOO_LATE)


def test_a_hold_stays_for_what_was_written_after_a_replica_was_excused_once() -> None:
    watch = left_after_two_looks()
    watch.sees(reading(), at_ms=START_MS + 2 * HOUR_MS)
    deleted = reading(newest=150, end=160, committed=160)
    watch.sees(deleted, at_ms=START_MS + 15 * HOUR_MS)
    watch.sees(at_ms=START_MS + 15 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    assert outcome(watch.sees(at_ms=START_MS + 16 * HOUR_MS)) == ((), State.HELD)


def test_just_before_the_moment_of_danger_a_reading_of_plain_values_touches_nothing() -> None:
    watch = left_after_two_looks()
    watch.sees(BEHIND, at_ms=START_MS + 2 * HOUR_MS)
    for before_ms in (50 * SECOND_MS, 40 * SECOND_MS):
        decision = watch.sees(reading(), at_ms=UNSAFE_MS + HOUR_MS - before_ms)
        assert outcome(decision) == ((), State.WATCHED)


def test_a_replica_that_comes_back_with_less_is_not_excused_by_what_was_read_above() -> None:
    watch = left_after_two_looks()
    watch.sees(replace(partition(), committed_end=120), at_ms=START_MS + 2 * HOUR_MS)
    watch.sees(replace(partition(), committed_end=120), at_ms=START_MS + 3 * HOUR_MS)
    watch.sees(reading(start=120), at_ms=START_MS + 4 * HOUR_MS)
    less = replace(reading(start=120), replicas=partition((1, 2), end=105).replicas)
    unsafe_ms = watch.sees(less, at_ms=START_MS + 5 * HOUR_MS).statuses[0].unsafe_ms
    assert unsafe_ms == START_MS + HOUR_MS + DAY_MS - MARGINS.skew_ms - MARGINS.pass_start_ms


def test_what_it_never_had_is_not_lost_when_it_comes_back() -> None:
    """Behind still, with the log that it left with: the time counts from the last look at which nobody had deleted."""
    watch = left_after_two_looks()
    watch.sees(reading(), at_ms=START_MS + DAY_MS // 2)
    plain_ms = START_MS + DAY_MS
    watch.sees(reading(), at_ms=plain_ms)
    back = replace(reading(newest=139), replicas=partition((1, 2), end=100).replicas)
    status = watch.sees(back, at_ms=plain_ms + HOUR_MS).statuses[0]
    assert (status.state, status.unsafe_ms) == (State.WATCHED, UNSAFE_MS + DAY_MS)


def test_however_long_it_was_away_a_replica_that_comes_back_with_less_is_seen() -> None:
    """There is more to remember than the guard remembers: what was there when the replica left is not forgotten."""
    watch = left_after_two_looks()
    for looks in range(2 * ENDS_MAX):
        part = replace(BEHIND, committed_end=101 + looks)
        watch.sees(part, at_ms=START_MS + HOUR_MS + (1 + looks) * MARGINS.poll_ms)
    empty = replace(partition((1, 2), end=0), committed_end=1_000)
    decision = watch.sees(empty, at_ms=START_MS + 4 * HOUR_MS)
    assert ([type(action) for action in decision.actions], decision.statuses[0].unsafe_ms) == ([Alarm, SetHold], None)


@pytest.mark.parametrize("lost", [False, True])
def test_whoever_leaves_later_does_not_make_the_guard_forget_what_was_there_when_the_first_one_left(lost: bool) -> None:
    watch = left_after_two_looks()
    had = 100 + ENDS_MAX + 10

    def looks(count: int, isr: tuple[int, ...]) -> None:
        for _ in range(count):
            end = watch.look.partitions[0].committed_end or 0
            at_ms = watch.look.asked_ms + MARGINS.poll_ms
            watch.sees(replace(partition(isr, assigned=(1, 2, 3, 4), end=None), committed_end=end + 1), at_ms=at_ms)

    for isr in ((1, 2, 3, 4), (1, 2, 4), (1, 4), (1,)):
        looks(ENDS_MAX + 10, isr)
    end = watch.look.partitions[0].committed_end
    back = replace(partition((1,), assigned=(1, 2, 3, 4), end=0 if lost else had), committed_end=end)
    [away] = [away for away in watch.sees(back, at_ms=watch.look.asked_ms + SECOND_MS).memory.away if away.broker == 3]
    assert (away.complete_ms is None) == lost


STAMPED_MS = START_MS + 3 * HOUR_MS


def test_a_horizon_counts_for_whoever_lacks_it_and_for_nobody_else() -> None:
    """Of what was stamped months ago somebody else's copy is full: one that is made anew begins there."""
    watch = left_after_two_looks()
    lacks = replace(reading(newest=139), horizons=((120, STAMPED_MS),))
    status = watch.sees(lacks, at_ms=START_MS + 2 * HOUR_MS).statuses[0]
    assert status.unsafe_ms == STAMPED_MS - MARGINS.skew_ms - MARGINS.pass_start_ms
    has = replace(lacks, horizons=((99, START_MS - DAY_MS),))
    status = left_after_two_looks().sees(has, at_ms=START_MS + 2 * HOUR_MS + SECOND_MS).statuses[0]
    assert (status.state, status.unsafe_ms) == (State.WATCHED, UNSAFE_MS + HOUR_MS)


def test_a_horizon_that_was_read_counts_when_the_replica_is_back_and_nobody_looked_meanwhile() -> None:
    """Nobody is away then, so nothing is read: what was known has to be remembered."""
    watch = left_after_two_looks()
    lacks = replace(reading(newest=139), horizons=((120, STAMPED_MS),))
    watch.sees(lacks, at_ms=START_MS + 2 * HOUR_MS)
    back = watch.sees(replace(partition(end=140), committed_end=140), at_ms=STAMPED_MS + HOUR_MS)
    assert (back.actions[0], back.statuses[0].state) == (LATE, State.TOO_LATE)


def test_a_horizon_of_before_it_was_excused_is_forgotten() -> None:
    watch = left_after_two_looks()
    watch.sees(replace(reading(newest=139), horizons=((120, STAMPED_MS),)), at_ms=START_MS + 2 * HOUR_MS)
    excused = watch.sees(reading(), at_ms=START_MS + 2 * HOUR_MS + SECOND_MS).statuses[0]
    assert excused.unsafe_ms == UNSAFE_MS + 2 * HOUR_MS + SECOND_MS


def test_a_horizon_is_no_reason_to_doubt_those_in_sync() -> None:
    watch = left_after_two_looks()
    stamped = replace(partition(), horizons=((99, START_MS - DAY_MS),), committed_end=140)
    assert outcome(watch.sees(stamped, at_ms=START_MS + 2 * HOUR_MS)) == ((), State.FINE)
