"""The protocol in every state that small bounds allow, and mutants that fail in one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.sim.broker import Parts
from headstone.sim.explore import ExploreBounds, explore
from headstone.sim.mutants import MUTANTS

ALONE = ExploreBounds(waiting=0, elections=0)

# The bounds, and how many states they have at least: fewer would mean that something no longer happens.
COMPLETE = {
    "a new leader and a restart": (ExploreBounds(waiting=0), 61_000),
    "messages that wait": (replace(ALONE, waiting=2), 20_000),
    "members that come and go": (replace(ALONE, faults=0, changes=2), 11_000),
    "restarts before any metadata": (replace(ALONE, faults=2, late_metadata=True), 8_000),
    "plain data that is superseded": (replace(ALONE, faults=0, transactional=False, offsets=2, written=2), 6_000),
}


@pytest.mark.parametrize(("bounds", "states"), COMPLETE.values(), ids=COMPLETE)
def test_no_state_within_the_bounds_has_anything_dirty_below_a_watermark(bounds: ExploreBounds, states: int) -> None:
    found = explore(bounds, Parts())
    assert (found.complete, found.violation, found.path) == (True, None, ())
    assert found.states >= states


# The weakest bounds in which the mutant fails, and how many actions that takes at least.
BROKEN = {
    "maximum": (ALONE, 2),
    "newcomer-at-log-end": (replace(ALONE, transactional=False), 6),
    "group-forgotten": (ALONE, 6),
    "same-incarnation": (ALONE, 7),
    "watermark-may-fall": (replace(ALONE, faults=0, waiting=1), 7),
    "old-log-kept": (replace(ALONE, faults=0, changes=2), 7),
    "old-leaders-answered": (ExploreBounds(waiting=0), 9),
}


@pytest.mark.parametrize(("name", "bounds", "actions"), [(name, *case) for name, case in BROKEN.items()], ids=BROKEN)
def test_a_mutant_is_found_on_a_shortest_path(name: str, bounds: ExploreBounds, actions: int) -> None:
    found = explore(bounds, MUTANTS[name].parts)
    assert found.violation is not None
    assert not found.complete
    assert len(found.path) == found.depth == actions


def test_the_path_tells_what_happens() -> None:
    """Broker 1 claims, loses its log, copies what it had cleaned from a leader that has not; and is still counted."""
    found = explore(ALONE, MUTANTS["stale-incarnation"].parts)
    assert found.violation == "the watermark is 1, but broker 1 is dirty below it"
    assert found.path == (
        "clean 1 to 1",
        "tick 0 at once [poll to 1: epoch 0, MTRO 0] at once [report of 1.1: epoch 0, MCCO 1]",
        "restart 1 with 0",
        "fetch 1 to 1",
        "clean 0 to 1",
        "clean 2 to 1",
        "tick 0 at once [poll to 2: epoch 0, MTRO 0] at once [report of 2.1: epoch 0, MCCO 1]",
    )


def test_what_was_not_reached_is_not_called_complete() -> None:
    found = explore(replace(ALONE, states_max=100), Parts())
    assert (found.complete, found.violation) == (False, None)
