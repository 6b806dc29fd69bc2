"""The one rule by which dirt is worth a visit, at its edges."""

from __future__ import annotations

import pytest

from headstone.retention.choosing import Choice, Dirt, choose
from headstone.retention.policy import NO_LIMIT


@pytest.mark.parametrize(
    ("clean_bytes", "dirty_bytes", "oldest_ms", "now_ms", "lag_ms_max", "choice"),
    [
        (50, 50, -1, 9, 5, Choice(dirty_ratio=0.5, dirty_enough=False, deadline_ms=None, overdue=False)),
        (49, 51, -1, 9, 5, Choice(dirty_ratio=0.51, dirty_enough=True, deadline_ms=None, overdue=False)),
        (90, 10, 4, 9, 5, Choice(dirty_ratio=0.1, dirty_enough=False, deadline_ms=9, overdue=False)),
        (90, 10, 4, 10, 5, Choice(dirty_ratio=0.1, dirty_enough=False, deadline_ms=9, overdue=True)),
        (90, 10, 0, 10, 5, Choice(dirty_ratio=0.1, dirty_enough=False, deadline_ms=None, overdue=False)),
        (90, 10, 4, 10, NO_LIMIT, Choice(dirty_ratio=0.1, dirty_enough=False, deadline_ms=None, overdue=False)),
        (90, 0, 4, 10, 5, Choice(dirty_ratio=0.0, dirty_enough=False, deadline_ms=9, overdue=False)),
        (0, 0, -1, 10, 5, Choice(dirty_ratio=0.0, dirty_enough=False, deadline_ms=None, overdue=False)),
    ],
)  # fmt: skip
def test_more_than_the_ratio_or_later_than_the_deadline(
    clean_bytes: int, dirty_bytes: int, oldest_ms: int, now_ms: int, lag_ms_max: int, choice: Choice
) -> None:
    dirt = Dirt(clean_bytes=clean_bytes, dirty_bytes=dirty_bytes, oldest_ms=oldest_ms)
    found = choose(dirt, now_ms=now_ms, ratio_min=0.5, lag_ms_max=lag_ms_max)
    assert (found, found.chosen) == (choice, choice.dirty_enough or choice.overdue)
