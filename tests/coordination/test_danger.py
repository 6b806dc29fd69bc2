"""The arithmetic of time: until when nothing that a replica lacks can be gone anywhere, and a look lets anything go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.danger import (
    NEVER_MS,
    CommittedEnd,
    Danger,
    Margins,
    Retention,
    danger,
    first_removal_ms,
    still_complete_ms,
)
from headstone.coordination.freshness import acts_until_ms, is_void
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Action,
    AskBrokers,
    EndPasses,
    HoldByDefault,
    Memory,
    ReleaseDefault,
    SetHold,
)
from headstone.coordination.guarding import decide
from tests.coordination.guard_watch import (
    ADD,
    BACK_MS,
    DAY_MS,
    EXPEL,
    LOOK,
    MARGINS,
    RELEASE,
    START_MS,
    VERIFY,
    Watch,
    right,
)


@pytest.mark.parametrize(
    ("retentions", "horizon_ms", "removal_ms"),
    [
        ((Retention(retention_ms=100),), None, 1_100),
        ((Retention(retention_ms=100, until_ms=999), Retention(retention_ms=500, since_ms=900)), None, 1_500),
        ((Retention(retention_ms=100, until_ms=1_000), Retention(retention_ms=500, since_ms=900)), None, 1_100),
        ((Retention(retention_ms=500, until_ms=1_300), Retention(retention_ms=50, since_ms=1_200)), None, 1_250),
        ((Retention(retention_ms=100),), 1_050, 1_050),
        ((Retention(retention_ms=NEVER_MS),), None, NEVER_MS),
    ],
    ids=["one", "raised before", "raised when it left", "lowered since", "a horizon in a batch", "never"],
)
def test_the_first_removal_is_the_earliest_stamp_and_its_retention(
    retentions: tuple[Retention, ...], horizon_ms: int | None, removal_ms: int
) -> None:
    assert first_removal_ms(1_000, retentions, horizon_ms) == removal_ms


def test_every_margin_makes_the_hold_earlier() -> None:
    def of(margins: Margins, skew_ms: int = 7) -> Danger:
        spans = (Retention(retention_ms=1_000),)
        return danger(complete=5_000, retentions=spans, horizon_ms=None, skew_ms=skew_ms, margins=margins)

    none = Margins(metadata_age_ms=0, skew_ms=0, effect_ms=0, poll_ms=0, pass_start_ms=0, slack_share=1.0)
    assert of(none, skew_ms=0) == Danger(complete_ms=5_000, unsafe_ms=6_000, hold_ms=6_000)
    assert of(none) == Danger(complete_ms=5_000, unsafe_ms=5_993, hold_ms=5_993)
    assert of(replace(none, skew_ms=3)) == Danger(complete_ms=5_000, unsafe_ms=5_990, hold_ms=5_990)
    assert of(replace(none, pass_start_ms=4)) == Danger(complete_ms=5_000, unsafe_ms=5_989, hold_ms=5_989)
    assert of(replace(none, effect_ms=100)) == Danger(complete_ms=5_000, unsafe_ms=5_993, hold_ms=5_893)
    assert of(replace(none, poll_ms=50)) == Danger(complete_ms=5_000, unsafe_ms=5_993, hold_ms=5_943)
    assert of(replace(none, slack_share=0.5)) == Danger(complete_ms=5_000, unsafe_ms=5_993, hold_ms=5_496)


def test_a_replica_that_comes_back_with_less_was_complete_earlier() -> None:
    ends = tuple(CommittedEnd(asked_ms=ms, offset=offset) for ms, offset in ((10, 5), (20, 8), (30, 9), (40, 12)))
    moments = [still_complete_ms(30, log_end, ends) for log_end in (None, 9, 8, 7, 4)]
    assert moments == [30, 30, 20, 10, None]


def test_of_who_left_before_anything_was_known_to_be_committed_the_first_that_is_known_counts() -> None:
    ends = (CommittedEnd(asked_ms=40, offset=12), CommittedEnd(asked_ms=50, offset=15))
    assert [still_complete_ms(30, log_end, ends) for log_end in (12, 11, 0)] == [30, None, None]
    assert still_complete_ms(30, 0, ()) == 30


USUAL_MS = MARGINS.effect_ms + MARGINS.poll_ms
UNDOING = (
    RELEASE, ReleaseDefault(restore=()), EXPEL,
    ADD,
)  # fmt: skip
HARMLESS = (
    SetHold(topic="orders", configs=HOLD, by_ms=0, reason=""), HoldByDefault(configs=DEFAULT_HOLD), EndPasses(topic="orders"),
    AskBrokers(topic="orders", brokers=(1,)), VERIFY,
)  # fmt: skip


def memory_of(retention_ms: int, *, skew_ms: int = 0) -> Memory:
    return Memory(retentions=(Retention(retention_ms=retention_ms),), skew_ms=skew_ms)


@pytest.mark.parametrize(
    ("memory", "until_ms"),
    [
        (memory_of(DAY_MS), USUAL_MS),
        (memory_of(2**63 - 1), USUAL_MS),
        (memory_of(MARGINS.retention_ms_min + 10_000), MARGINS.poll_ms + 10_000),
        (memory_of(MARGINS.retention_ms_min + 10_000, skew_ms=4_000), MARGINS.poll_ms + 6_000),
        (memory_of(1_000), MARGINS.poll_ms),
    ],
    ids=["a day", "never", "just long enough", "with a skew", "too short"],
)  # fmt: skip
def test_a_look_lets_go_only_while_the_next_one_is_in_time_for_whoever_left_right_after_it(
    memory: Memory, until_ms: int
) -> None:
    assert acts_until_ms(memory, LOOK, MARGINS) == START_MS + until_ms


@pytest.mark.parametrize("action", [*UNDOING, *HARMLESS], ids=lambda action: type(action).__name__)
def test_what_lets_go_is_void_on_an_old_look_and_what_holds_or_asks_is_not(action: Action) -> None:
    memory, last_ms = memory_of(DAY_MS), START_MS + USUAL_MS
    assert not is_void(action, memory, LOOK, last_ms, MARGINS)
    assert is_void(action, memory, LOOK, last_ms + 1, MARGINS) == (action in UNDOING)


@pytest.mark.parametrize(("late_ms", "released"), [(USUAL_MS, True), (USUAL_MS + 1, False), (3 * DAY_MS, False)])
def test_a_decision_on_an_old_look_lets_nothing_go(late_ms: int, released: bool) -> None:
    """Whoever was in sync then may have been away ever since, and only the hold keeps what it lacks."""
    watch = Watch().held().back()
    look = replace(watch.look, asked_ms=BACK_MS + 1, partitions=(right(BACK_MS),))
    decision = decide(watch.memory, look, BACK_MS + 1 + late_ms, MARGINS, watch.allowed)
    assert (decision.actions, decision.memory.hold is not None) == ((RELEASE,) if released else (), True)
    assert (decision.memory.hold.released_ms is not None) == released  # type: ignore[union-attr]
