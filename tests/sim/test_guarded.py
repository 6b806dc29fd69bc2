"""Brokers that follow Kafka's rule: corrupt by themselves, not with a guard, whose world is slow and partly wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.sim.checkers import DELETED_REAPPEARS
from headstone.sim.guarded import MARGINS, run_guarded

STEPS = 25
CORRUPT_WITHOUT = (6, 20, 27, 81, 89, 96, 116)


@pytest.mark.parametrize("seed", CORRUPT_WITHOUT)
def test_the_guard_prevents_what_happens_without_it(seed: int) -> None:
    without, _ = run_guarded(seed, steps=STEPS, guarding=False)
    guarded, driver = run_guarded(seed, steps=STEPS)
    assert without.finding is not None
    assert (without.finding.kind, guarded.finding) == (DELETED_REAPPEARS, None)
    assert driver.guard.actions["SetHold"] > 0


def test_at_the_last_moment_the_hold_is_still_in_time() -> None:
    margins = replace(MARGINS, slack_share=1.0)
    findings = [run_guarded(seed, steps=STEPS, margins=margins)[0].finding for seed in range(20)]
    assert findings == [None] * 20
