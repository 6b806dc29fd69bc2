"""Words for a person: what is told of a partition, and that nobody is reassured by what nobody knows."""

from __future__ import annotations

import pytest

from headstone.coordination.danger import NEVER_MS
from headstone.coordination.guard_values import State, Status
from headstone.guard.telling import status_words

BEHIND = "broker 3 behind since 1970-01-01T00:00:01Z"


@pytest.mark.parametrize(
    ("state", "unsafe_ms", "words"),
    [
        (State.WATCHED, 74_000, f"watched: {BEHIND}, first unsafe removal in 1 min 4 s"),
        (State.HELD, 70_000, f"held: {BEHIND}, held before 1970-01-01T00:01:10Z, when removals would become unsafe"),
        (State.WATCHED, NEVER_MS, f"watched: {BEHIND}, nothing it lacks is ever removed"),
        (State.TOO_LATE, 4_000, f"too late: needs readmission: {BEHIND}, unsafe for 6 s"),
        (State.TOO_LATE, None, f"too late: needs readmission: {BEHIND}, nobody knows what it has missed"),
        (State.TOO_LATE, 0, f"too late: needs readmission: {BEHIND}, nobody knows what it has missed"),
    ],
)  # fmt: skip
def test_of_a_replica_that_is_behind_it_is_said_how_near_the_danger_is(
    state: State, unsafe_ms: int | None, words: str
) -> None:
    countdown_ms = None if unsafe_ms is None else unsafe_ms - 10_000
    status = Status(
        partition=0, state=state, blockers=(3,), since_ms=1_000, unsafe_ms=unsafe_ms, countdown_ms=countdown_ms
    )
    assert status_words(status) == words
