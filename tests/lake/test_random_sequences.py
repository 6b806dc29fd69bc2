"""Random sequences of what happens to a lake in its life (`lives`): it is right, or refuses and names what is damaged.

Many and long ones: `python -m campaigns.lake_sequences`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.lake.metastore.erasure_steps import CAME_LATER
from tests.lake.lives import EMBEDDED, Life
from tests.lake.mortal import Databases, lowered


@pytest.mark.parametrize(
    ("seed", "also"),
    [
        (0, {}), (1, {}), (1, {"copies": True}), (0, {"drops": True}), (0, {"object_backups": True}), (0, {"foreign": True}),
        (2, EMBEDDED),
    ],
    ids=["0", "1", "copies", "drops", "object_backups", "foreign", "all"],
)  # fmt: skip
def test_a_lake_that_is_damaged_refuses_or_is_right(tmp_path: Path, seed: int, also: dict[str, bool]) -> None:
    with lowered(seed):
        life = Life(seed, tmp_path, Databases(tmp_path, None), **also)
        life.live(80 if also is EMBEDDED else 40)
        life.lake.close()
    assert {
        name for name in ("kills", "refusals", "damage_journal", "damage_identity") if not life.counts[name]
    } == set()


def test_a_key_that_comes_in_is_seen_whatever_else_happens(tmp_path: Path) -> None:
    life = Life(1, tmp_path, Databases(tmp_path, None), erasures=True)
    life.live(45)
    life.lake.close()
    assert life.counts[f"erasures: {CAME_LATER}"] > 0
