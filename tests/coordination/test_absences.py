"""Who is away since when, who may have been, who misses nothing that could go, and partitions that nobody leads."""

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
    Memory,
    PartitionSeen,
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
    START_MS,
    UNSAFE_MS,
    Watch,
    alarm,
    outcome,
    partition,
    right,
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
    """Though nothing in it is older than that."""
    for behind in (BEHIND, replace(BEHIND, committed_end=0)):
        seen = replace(LOOK, partitions=(behind,), unseen_ms=unseen_ms)
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
    watch.sees(BEHIND, at_ms=DUE_MS)
    held_ms = DUE_MS + SECOND_MS
    watch.sees(at_ms=held_ms, overrides=HOLD, held_on=(1, 2, 3))
    watch.sees(at_ms=held_ms + before_ms)
    copies = partition((1, 2), assigned=(1, 2, 3, 4), moving=(4,), end=None)
    assert watch.sees(copies, at_ms=held_ms + before_ms + HOUR_MS).statuses[0].state == state


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


@pytest.mark.parametrize("part", [
    reading(newest=139), reading(newest=100), reading(end=139), reading(start=101),
    replace(reading(), committed_end=None), replace(reading(), deletions=None),
], ids=["a deletion", "the first", "not to the end", "not from the start", "nobody knows the end", "not read"])  # fmt: skip
def test_a_reading_that_found_a_deletion_or_leaves_something_out_excuses_nobody(part: PartitionSeen) -> None:
    watch = left_after_two_looks()
    status = watch.sees(part, at_ms=DUE_MS).statuses[0]
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
    assert watch.sees(replace(reading(), moving=(4,)), at_ms=START_MS + 2 * DAY_MS).actions == ()
    assert outcome(watch.sees(reading(), at_ms=START_MS + 2 * DAY_MS + SECOND_MS)) == (
        (RELEASE,), State.WATCHED,
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


FINE = (Status(partition=0, state=State.FINE),)
UNJUDGED = alarm(AlarmKind.UNJUDGED, broker=1, number=0)


def shown(
    *, leader: int | None, epoch: int, isr: tuple[int, ...], assigned: tuple[int, ...] = (1, 2), moving: tuple[int, ...] = (),
    verdicts: dict[int, Verdict] | None = None, read_ms: int = 0,
) -> PartitionSeen:  # fmt: skip
    verdicts = verdicts or {}
    return PartitionSeen(
        partition=0, leader=leader, leader_epoch=epoch, isr=isr, moving=moving, committed_end=None if leader is None else 100,
        replicas=tuple(
            ReplicaSeen(broker=broker, log_end=100 if broker in isr else None, verdict=verdicts.get(broker), read_ms=read_ms)
            for broker in assigned
        ),
    )  # fmt: skip


def watch_of(part: PartitionSeen) -> Watch:
    """First seen so: nothing is to be done."""
    watch = Watch()
    watch.memory = Memory()
    first = watch.sees(part)
    assert (first.actions, first.statuses) == ((), FINE)
    return watch


@pytest.mark.parametrize("isr", [(), (1,)], ids=["4.1 and later", "before"])
def test_a_sole_replica_is_never_away(isr: tuple[int, ...]) -> None:
    """With eligible leader replicas its partition shows nobody in sync while its broker is down."""
    watch = watch_of(shown(leader=1, epoch=5, isr=(1,), assigned=(1,)))
    down = shown(leader=None, epoch=6, isr=isr, assigned=(1,))
    watch_of(down)  # at the first look too
    for hours in (1, 13, 23, 24, 100):
        decision = watch.sees(down, at_ms=START_MS + hours * HOUR_MS, alive=(2, 3))
        assert (decision.actions, decision.statuses) == ((), FINE)
    back = watch.sees(
        shown(leader=1, epoch=7, isr=(1,), assigned=(1,)), at_ms=START_MS + 101 * HOUR_MS, alive=(1, 2, 3)
    )
    assert (back.actions, back.statuses) == ((), FINE)


def test_a_sole_replica_that_is_gone_keeps_no_hold_of_the_topics_other_partitions() -> None:
    """Its broker may never come back; what the hold was for is over."""
    watch = Watch().held()
    gone = PartitionSeen(partition=1, leader=None, isr=(), replicas=(ReplicaSeen(broker=4, log_end=None),))
    back_ms = START_MS + 14 * HOUR_MS
    watch.sees(at_ms=back_ms, partitions=(partition(), gone))
    over = watch.sees(at_ms=back_ms + 1, partitions=(right(back_ms), gone))
    assert over.actions == (RELEASE,)


def dark() -> Watch:
    """Both replicas are down since an hour after the start; nobody can tell which of them was last."""
    watch = watch_of(shown(leader=1, epoch=5, isr=(1, 2)))
    watch.sees(at_ms=START_MS + HOUR_MS)
    watch.sees(shown(leader=None, epoch=6, isr=()), at_ms=START_MS + HOUR_MS + MARGINS.poll_ms, alive=(3,))
    return watch


def dark_and_held() -> Watch:
    watch = dark()
    watch.sees(at_ms=START_MS + 14 * HOUR_MS)
    watch.sees(at_ms=START_MS + 14 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(3,))
    return watch


def test_if_the_other_is_gone_for_good_the_hold_ends_when_it_is_taken_out_of_the_assignment() -> None:
    watch = dark_and_held()
    watch.sees(shown(leader=1, epoch=7, isr=(1,)), at_ms=START_MS + 3 * DAY_MS, alive=(1, 3), held_on=(1, 3))
    alone = watch.sees(shown(leader=1, epoch=7, isr=(1,), assigned=(1,)), at_ms=START_MS + 4 * DAY_MS)
    assert (alone.actions, alone.statuses) == ((RELEASE,), FINE)


@pytest.mark.parametrize(
    ("leader", "epoch"), [(2, 7), (1, 9)], ids=["another one leads first", "another one may have led in between"]
)
def test_who_is_not_the_first_to_lead_is_read(leader: int, epoch: int) -> None:
    watch = dark_and_held()
    ms = START_MS + 3 * DAY_MS
    back = watch.sees(shown(leader=leader, epoch=epoch, isr=(1, 2)), at_ms=ms, alive=(1, 2, 3), held_on=(1, 2, 3))
    read = [action.broker for action in back.actions if hasattr(action, "broker")]
    assert read == ([1] if leader == 2 else [1, 2])


def test_an_older_answer_of_who_led_before_changes_nothing() -> None:
    watch = dark_and_held()
    watch.sees(shown(leader=2, epoch=5, isr=(2,)), at_ms=START_MS + 15 * HOUR_MS)
    back = watch.sees(shown(leader=1, epoch=7, isr=(1,)), at_ms=START_MS + 3 * DAY_MS, alive=(1, 3), held_on=(1, 3))
    assert back.statuses[0].blockers == (2,)


def test_who_was_away_before_nobody_led_is_not_excused_by_leading_first() -> None:
    watch = watch_of(shown(leader=1, epoch=5, isr=(1, 2)))
    watch.sees(shown(leader=1, epoch=5, isr=(1,)), at_ms=START_MS + HOUR_MS)
    watch.sees(shown(leader=None, epoch=6, isr=()), at_ms=START_MS + 2 * HOUR_MS, alive=(3,))
    watch.sees(at_ms=START_MS + 14 * HOUR_MS)
    watch.sees(at_ms=START_MS + 14 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(3,))
    back = watch.sees(shown(leader=2, epoch=7, isr=(2,)), at_ms=START_MS + 2 * DAY_MS, alive=(2, 3), held_on=(2, 3))
    assert [action.broker for action in back.actions if hasattr(action, "broker")] == [2]
    assert back.statuses[0].blockers == (1, 2)


def test_who_was_behind_while_another_one_led_is_not_excused_by_leading_next() -> None:
    watch = watch_of(shown(leader=1, epoch=5, isr=(1, 2)))
    watch.sees(shown(leader=1, epoch=5, isr=(1,)), at_ms=START_MS + HOUR_MS)
    watch.sees(at_ms=START_MS + 14 * HOUR_MS)
    watch.sees(at_ms=START_MS + 14 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    leads = watch.sees(shown(leader=2, epoch=6, isr=(2,)), at_ms=START_MS + 2 * DAY_MS)
    assert leads.statuses[0].blockers == (1, 2)


def test_who_may_have_been_away_while_nobody_looked_is_not_excused_by_leading_first() -> None:
    """The guard was dead for three days, and finds that nobody leads."""
    watch = watch_of(shown(leader=1, epoch=5, isr=(1, 2)))
    watch.sees(shown(leader=None, epoch=6, isr=()), at_ms=START_MS + 3 * DAY_MS, alive=(3,))
    ms = START_MS + 3 * DAY_MS + HOUR_MS
    back = watch.sees(shown(leader=1, epoch=7, isr=(1,)), at_ms=ms, alive=(1, 3))
    assert back.statuses[0].blockers == (1, 2)


def test_who_is_in_sync_while_nobody_leads_cannot_be_read_yet() -> None:
    """Before Kafka 4.1 the last one stays in sync while it is down."""
    watch = watch_of(shown(leader=1, epoch=5, isr=(1, 2)))
    watch.sees(shown(leader=1, epoch=5, isr=(1,)), at_ms=START_MS + HOUR_MS)
    watch.sees(at_ms=START_MS + 14 * HOUR_MS)
    watch.sees(at_ms=START_MS + 14 * HOUR_MS + SECOND_MS, overrides=HOLD, held_on=(1, 2, 3))
    both = shown(leader=None, epoch=6, isr=(1, 2))
    assert watch.sees(both, at_ms=START_MS + 15 * HOUR_MS).actions == ()


def test_who_cannot_be_judged_is_not_called_wrong_and_stays_held() -> None:
    watch = dark_and_held()
    ms = START_MS + 3 * DAY_MS
    watch.sees(shown(leader=1, epoch=9, isr=(1,)), at_ms=ms, alive=(1, 3), held_on=(1, 3))
    read = shown(leader=1, epoch=9, isr=(1,), verdicts={1: Verdict.UNJUDGED}, read_ms=ms)
    assert outcome(watch.sees(read, at_ms=ms + 1)) == ((UNJUDGED,), State.UNJUDGED)


def test_a_copy_that_is_left_alone_is_told_once_and_holds_nothing() -> None:
    """A partition with one replica moved: the copy began without a hold, and nothing is left to compare it with."""
    watch = watch_of(shown(leader=2, epoch=5, isr=(2,), assigned=(2,)))
    moved = shown(leader=1, epoch=6, isr=(1,), assigned=(1,))
    told = watch.sees(moved, at_ms=START_MS + HOUR_MS)
    assert (told.actions, told.statuses) == ((UNJUDGED,), FINE)
    assert watch.sees(at_ms=START_MS + HOUR_MS + MARGINS.poll_ms).actions == ()


def test_a_copy_beside_the_only_one_is_held_for_and_read() -> None:
    watch = watch_of(shown(leader=2, epoch=5, isr=(2,), assigned=(2,)))
    grows = watch.sees(shown(leader=2, epoch=5, isr=(2,), assigned=(2, 1), moving=(1,)), at_ms=START_MS + HOUR_MS)
    assert (grows.statuses[0].state, grows.statuses[0].blockers) == (State.UNREAD, (1,))
