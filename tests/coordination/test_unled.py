"""Partitions with one replica, or that nobody leads: who may have missed something, who cannot have, who cannot be judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.guard_values import (
    HOLD,
    AlarmKind,
    Memory,
    PartitionSeen,
    Release,
    ReplicaSeen,
    State,
    Status,
    Verdict,
)
from tests.coordination.guard_watch import (
    DAY_MS,
    HOUR_MS,
    MARGINS,
    NOTHING,
    SECOND_MS,
    START_MS,
    UNSAFE_MS,
    Watch,
    alarm,
    outcome,
    partition,
)

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
    watch = Watch()
    watch.memory = Memory()
    watch.sees(part)
    return watch


@pytest.mark.parametrize("isr", [(), (1,)], ids=["4.1 and later", "before"])
def test_a_sole_replica_is_never_away(isr: tuple[int, ...]) -> None:
    """With eligible leader replicas its partition shows nobody in sync while its broker is down."""
    watch = watch_of(shown(leader=1, epoch=5, isr=(1,), assigned=(1,)))
    down = shown(leader=None, epoch=6, isr=isr, assigned=(1,))
    for hours in (1, 13, 23, 24, 100):
        decision = watch.sees(down, at_ms=START_MS + hours * HOUR_MS, alive=(2, 3))
        assert (decision.actions, decision.statuses) == ((), FINE)
    back = watch.sees(
        shown(leader=1, epoch=7, isr=(1,), assigned=(1,)), at_ms=START_MS + 101 * HOUR_MS, alive=(1, 2, 3)
    )
    assert (back.actions, back.statuses) == ((), FINE)


def test_a_sole_replica_that_is_down_at_the_first_look_is_fine() -> None:
    watch = Watch()
    watch.memory = Memory()
    first = watch.sees(shown(leader=None, epoch=6, isr=(), assigned=(1,)))
    assert (first.actions, first.statuses) == ((), FINE)


def test_a_sole_replica_that_is_gone_keeps_no_hold_of_the_topics_other_partitions() -> None:
    """Its broker may never come back; what the hold was for is over."""
    watch = Watch().held()
    gone = PartitionSeen(partition=1, leader=None, isr=(), replicas=(ReplicaSeen(broker=4, log_end=None),))
    back_ms = START_MS + 14 * HOUR_MS
    right = partition(verdict=Verdict.RIGHT, read_ms=back_ms)
    watch.sees(at_ms=back_ms, partitions=(partition(), gone))
    over = watch.sees(at_ms=back_ms + 1, partitions=(right, gone))
    assert over.actions == (Release(topic="orders", restore=NOTHING),)


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


def test_while_nobody_leads_it_is_held_before_who_comes_back_could_remove_what_another_lacks() -> None:
    watch = dark_and_held()
    late = watch.sees(at_ms=UNSAFE_MS + 2 * DAY_MS)
    assert (late.actions, late.statuses[0].state, late.statuses[0].blockers) == ((), State.HELD, (1, 2))


def test_who_leads_first_has_missed_nothing_and_needs_nobody_to_compare_it_with() -> None:
    watch = dark_and_held()
    back = watch.sees(shown(leader=1, epoch=7, isr=(1,)), at_ms=START_MS + 3 * DAY_MS, alive=(1, 3), held_on=(1, 3))
    assert (back.actions, back.statuses[0].state, back.statuses[0].blockers) == ((), State.HELD, (2,))
    ms = START_MS + 4 * DAY_MS
    both = shown(leader=1, epoch=7, isr=(1, 2))
    assert [a.broker for a in watch.sees(both, at_ms=ms, alive=(1, 2, 3), held_on=(1, 2, 3)).actions] == [2]  # type: ignore[union-attr]
    right = replace(both, replicas=tuple(replace(r, verdict=Verdict.RIGHT, read_ms=ms) for r in both.replicas))
    assert watch.sees(right, at_ms=ms + 1).actions == (Release(topic="orders", restore=NOTHING),)


def test_if_the_other_is_gone_for_good_the_hold_ends_when_it_is_taken_out_of_the_assignment() -> None:
    watch = dark_and_held()
    watch.sees(shown(leader=1, epoch=7, isr=(1,)), at_ms=START_MS + 3 * DAY_MS, alive=(1, 3), held_on=(1, 3))
    alone = watch.sees(shown(leader=1, epoch=7, isr=(1,), assigned=(1,)), at_ms=START_MS + 4 * DAY_MS)
    assert (alone.actions, alone.statuses) == ((Release(topic="orders", restore=NOTHING),), FINE)


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
