"""The four corruptions, made by the simulator, found and named rightly; and nothing found where the rules are coordinated."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.sim.stories import STORIES, Stage, tell_story
from tests.divergence.replicas import audit_logs, findings

EXPECTED = {
    "tombstone-divergence": [("deleted-reappears", "2", b"k")],
    "aborted-to-committed": [("aborted-as-committed", "2", b"poison")],
    "committed-to-aborted": [("committed-hidden", "2", b"k")],
    "stuck-read-committed": [("read-committed-frozen", "2", None)],
}


@pytest.mark.parametrize("rules", ["kafka", "coordinated"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.variant)
def test_what_was_done_is_named(story, rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    stages: list[Stage] = []
    real = Stage.__init__

    def remembered(self: Stage, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        stages.append(self)

    monkeypatch.setattr(Stage, "__init__", remembered)
    tell_story(story, rules)
    (stage,) = stages
    one = audit_logs({str(broker.number): broker.log for broker in stage.cluster.brokers}, tmp_path)
    assert one.problems == ()
    assert findings(one) == (EXPECTED[story.variant] if rules == "kafka" else [])
