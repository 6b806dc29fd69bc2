"""A guard that was suspended between its look and what it does: what it may still do, and what must be decided anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.coordination.danger import Retention
from headstone.coordination.freshness import acts_until_ms, is_void
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Action,
    AddAgain,
    AskBrokers,
    EndPasses,
    Expel,
    HoldByDefault,
    Memory,
    Release,
    ReleaseDefault,
    SetHold,
    Verdict,
    Verify,
)
from headstone.coordination.guarding import decide
from tests.coordination.guard_watch import BACK_MS, DAY_MS, LOOK, MARGINS, NOTHING, START_MS, Watch, partition

USUAL_MS = MARGINS.effect_ms + MARGINS.poll_ms
RELEASE = Release(topic="orders", restore=NOTHING)
UNDOING = (
    RELEASE, ReleaseDefault(restore=()), Expel(topic="orders", partition=0, broker=3, remaining=(1, 2)),
    AddAgain(topic="orders", partition=0, broker=3, order=(1, 2, 3)),
)  # fmt: skip
HARMLESS = (
    SetHold(topic="orders", configs=HOLD, by_ms=0, reason=""), HoldByDefault(configs=DEFAULT_HOLD), EndPasses(topic="orders"),
    AskBrokers(topic="orders", brokers=(1,)), Verify(topic="orders", partition=0, broker=3),
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
    look = replace(watch.look, asked_ms=BACK_MS + 1, partitions=(partition(verdict=Verdict.RIGHT, read_ms=BACK_MS),))
    decision = decide(watch.memory, look, BACK_MS + 1 + late_ms, MARGINS, watch.allowed)
    assert (decision.actions, decision.memory.hold is not None) == ((RELEASE,) if released else (), True)
    assert (decision.memory.hold.released_ms is not None) == released  # type: ignore[union-attr]
