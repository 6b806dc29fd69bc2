"""The decision together with the steps of the hold that it made on its way: what stories and random looks share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headstone.coordination import hold_states
from headstone.coordination.absences import in_effect
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import Allowed, Decision, Memory, TopicSeen
from headstone.coordination.guarding import decide
from headstone.coordination.hold_states import IN_EFFECT, Step, is_in_table, state_of


def decide_in_steps(
    memory: Memory, seen: TopicSeen, now_ms: int, margins: Margins, allowed: Allowed
) -> tuple[Decision, list[Step]]:  # fmt: skip
    """No step is left out: each begins where the one before ended."""
    steps: list[Step] = []

    def note(step: Step) -> bool:
        steps.append(step)
        return is_in_table(step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hold_states, "is_in_table", note)
        decision = decide(memory, seen, now_ms, margins, allowed)
    states = [state_of(memory), *(step.target for step in steps)]
    assert [(step.source, step.target) for step in steps] == list(pairwise(states))
    assert state_of(decision.memory) is states[-1]
    assert in_effect(decision.memory) == (states[-1] in IN_EFFECT)
    return decision, steps
