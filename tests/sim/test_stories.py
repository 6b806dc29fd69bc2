"""The four corruptions as named tests: corrupt by Kafka's rule, correct by the coordinated one, each for its own reason.

The final table of every replica is written out, so that a story that goes wrong in another way does not pass.
"""

from __future__ import annotations

import pytest

from headstone.retention.policy import COORDINATED, KAFKA
from headstone.sim.checkers import ABORTED_AS_COMMITTED, COMMITTED_HIDDEN, DELETED_REAPPEARS, FROZEN
from headstone.sim.stories import AWAY, STORIES, Telling, tell_story
from headstone.sim.variants import VARIANTS

KINDS = dict(zip(VARIANTS, (DELETED_REAPPEARS, ABORTED_AS_COMMITTED, COMMITTED_HIDDEN, FROZEN), strict=True))
CORRUPT_TABLES = {
    "tombstone-divergence": {"k": "v"},
    "aborted-to-committed": {"good": "data", "poison": "x"},
    "committed-to-aborted": {"k": "v"},
    "stuck-read-committed": {},
}
RIGHT_TABLES = {
    "tombstone-divergence": {},
    "aborted-to-committed": {"good": "data"},
    "committed-to-aborted": {},
    "stuck-read-committed": {"k": "v2"},
}


def told(variant: str, rules: str) -> Telling:
    return tell_story(next(story for story in STORIES if story.variant == variant), rules)


@pytest.mark.parametrize("variant", VARIANTS)
def test_kafkas_rule_corrupts_exactly_the_replica_that_was_away(variant: str) -> None:
    telling = told(variant, KAFKA)
    assert [(finding.kind, finding.where) for finding in telling.findings] == [(KINDS[variant], f"broker {AWAY}")]
    tables = [replica.table for replica in telling.scenes[-1].replicas]
    assert tables == [RIGHT_TABLES[variant], RIGHT_TABLES[variant], CORRUPT_TABLES[variant]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_coordinated_rule_keeps_every_replica_right(variant: str) -> None:
    telling = told(variant, COORDINATED)
    assert telling.findings == []
    back = next(scene for scene in telling.scenes if "comes back" in scene.title)
    assert [replica.table for replica in back.replicas] == [RIGHT_TABLES[variant]] * 3
    assert telling.expected == RIGHT_TABLES[variant]


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_was_held_back_goes_once_everyone_has_cleaned(variant: str) -> None:
    last = told(variant, COORDINATED).scenes[-1]
    for replica in last.replicas:
        assert replica.mtro == replica.mxro == replica.log_end
        assert not [batch for batch in replica.log if "null" in batch or "COMMIT" in batch or "ABORT" in batch]
        assert replica.table == RIGHT_TABLES[variant]
