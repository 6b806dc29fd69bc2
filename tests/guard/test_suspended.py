"""A guard that is suspended: what it had decided is void, what it remembered is read again, whatever the wall clock says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headstone.cluster.wire import ClusterState
from headstone.coordination.guard_values import HOLD, State
from headstone.guard.ledger.journal import Journal
from headstone.guard.looks.look_age import LookAge
from headstone.guard.loop.watcher import VOID, Watcher
from tests.guard.watching import ACTS, after, holding, kinds, states, watcher
from tests.guard.world import DAY_MS, MARGINS, ClusterTwin, Topic

OLD_MS = MARGINS.effect_ms + MARGINS.poll_ms + 1


class SleepyTwin(ClusterTwin):
    """Whoever asks for a topic by its name sleeps for a while, once, if it was told to; broker 3 leaves meanwhile."""

    sleeps_ms = 0

    def describe(self, topics: Sequence[str] | None = None) -> ClusterState:
        if topics is not None and self.sleeps_ms:
            self.now_ms, self.sleeps_ms = self.now_ms + self.sleeps_ms, 0
            self.stop(3)
        return super().describe(topics)


def about_to_let_go(twin: ClusterTwin, journal: Journal) -> Watcher:
    """Broker 3 is back and was read: the next look lets go."""
    guard = holding(twin, journal)
    twin.start(3)
    after(twin, guard, 1_000)
    assert twin.topics["orders"].overrides == dict(HOLD)
    return guard


@pytest.mark.parametrize(("sleeps_ms", "lets_go"), [(OLD_MS - 1_000, True), (OLD_MS, False), (DAY_MS, False)])
def test_a_release_that_comes_too_late_is_not_made(journal: Journal, sleeps_ms: int, lets_go: bool) -> None:
    """It sleeps between the last question about the topic and the change."""
    twin = SleepyTwin()
    guard = about_to_let_go(twin, journal)
    twin.sleeps_ms = sleeps_ms
    after(twin, guard, 1_000)
    assert 3 not in twin.alive
    assert (twin.topics["orders"].overrides != dict(HOLD)) == lets_go
    if not lets_go:
        assert [change.new for change in journal.changes()] == [HOLD]
        (state,) = states(after(twin, guard, 1_000))
        assert (state, twin.topics["orders"].overrides) != (State.FINE, dict(HOLD))


def test_what_is_left_of_a_round_whose_lease_ran_out_is_void_and_the_guard_looks_again(journal: Journal) -> None:
    twin = SleepyTwin(orders=Topic(), users=Topic())
    guard = about_to_let_go(twin, journal)
    twin.sleeps_ms = ACTS.lease_ms + 1
    result = after(twin, guard, 1_000)
    assert (result.leads, result.done, result.problems) == (True, (), (VOID,))
    assert [twin.topics[topic].overrides for topic in ("orders", "users")] == [dict(HOLD)] * 2
    again = guard.round()
    assert (again.leads, again.problems, {*states(again), *states(again, "users")}) == (True, (), {State.WATCHED})


def test_what_another_guard_did_meanwhile_is_read_again_though_nobody_saw_it_lead(journal: Journal) -> None:
    twin = ClusterTwin()
    first, second = watcher(twin, journal), watcher(twin, journal, replace(ACTS, name="b"))
    first.round()
    twin.stop(3)
    after(twin, first, 1_000)
    for wait_ms in (DAY_MS // 2, 1_000, 1_000):
        after(twin, second, wait_ms)
    assert twin.topics["orders"].overrides == dict(HOLD)
    result = after(twin, first, ACTS.lease_ms + 1)
    assert (result.leads, kinds(result), states(result)) == (True, [], [State.HELD])
    assert journal.memory("orders").hold is not None


def test_no_wall_clock_that_stood_still_or_was_set_back_makes_a_look_young() -> None:
    wall, steady = [1_000_000], [50]
    age = LookAge(lambda: wall[0], lambda: steady[0])
    age.begin()
    wall[0], steady[0] = 1_000_500, 549
    assert age.now_ms() == 1_000_500
    steady[0] = 50 + DAY_MS
    assert age.now_ms() == 1_000_000 + DAY_MS
    wall[0] = 0
    assert age.now_ms() == 1_000_000 + DAY_MS
    age.begin()
    assert age.now_ms() == 0
