"""The table of a hold's steps: the decision makes these and no others, each one happens, and the page shows the table."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    LAG_MAX,
    LAG_MIN,
    RATIO,
    Allowed,
    Configs,
    Hold,
    Memory,
    Verdict,
)
from headstone.coordination.hold_states import (
    GROUPS,
    MEANINGS,
    ROWS,
    TABLE,
    HoldState,
    Reason,
    Step,
    UnlistedStep,
    move,
    state_of,
)
from headstone.guard.ledger.memory import released_by_person, without_wishes
from tests.coordination import golden
from tests.coordination.guard_story import NO_DEFAULT
from tests.coordination.guard_watch import LOOK, MARGINS, NEWS_MS, NOTHING, SECOND_MS, START_MS, partition
from tests.coordination.hold_steps import decide_in_steps

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rfcs" / "0003-guard.md"
DRAWN = re.compile(r"(?<=-->\n).*?(?=<!-- The table ends)", re.DOTALL)
OVERRIDES: tuple[Configs, ...] = (NOTHING, HOLD, ((RATIO, "0.1"), (LAG_MIN, "0"), (LAG_MAX, None)))
DEFAULTS: tuple[Configs | None, ...] = (NO_DEFAULT, DEFAULT_HOLD, None)
WAITS_MS = (SECOND_MS, NEWS_MS + SECOND_MS, 100 * SECOND_MS)
"""A look that may be older than what the one before showed, one that cannot be, and one at which a hold is due."""
ALLOWED = (Allowed(cluster_default=True), Allowed())
"""The guard may be started again with another one."""
LOOKS = list(product(OVERRIDES, DEFAULTS, (True, False), ((), (1, 2, 3)), WAITS_MS, (True, False), ALLOWED))
RETENTION_MS = 200 * SECOND_MS
OWN_RELEASE_MS = MARGINS.effect_ms + 2 * MARGINS.metadata_age_ms + MARGINS.poll_ms


def everything_that_looks_may_show() -> Iterator[Step]:
    """From no hold on, every look at every memory that is not like one of before: whatever others change, and whether what the
    guard asks for is done, lost, or done without an answer. Between two looks somebody may run `guard release`, or all that the
    guard wants was only wished for."""
    known = {kind_of(Memory(), START_MS)}
    pending = deque([(Memory(), START_MS)])
    while pending:
        memory, now_ms = pending.popleft()
        for overrides, default, is_back, held_on, wait_ms, answered, allowed in LOOKS:
            asked_ms = now_ms + wait_ms
            part = partition((1, 2, 3) if is_back else (1, 2), verdict=Verdict.RIGHT, read_ms=asked_ms)
            accepted_ms = now_ms + 1 if answered else None
            look = replace(
                LOOK, asked_ms=asked_ms, delete_retention_ms=RETENTION_MS, partitions=(part,), overrides=overrides,
                default_overrides=default, held_on=held_on, hold_accepted_ms=accepted_ms, default_accepted_ms=accepted_ms,
            )  # fmt: skip
            decision, steps = decide_in_steps(memory, look, asked_ms, MARGINS, allowed)
            yield from steps
            decided = decision.memory
            for after in (decided, released_by_person(decided, asked_ms), without_wishes(memory, decided)):
                kind = kind_of(after, asked_ms)
                if kind not in known:
                    known.add(kind)
                    pending.append((after, asked_ms))


def kind_of(memory: Memory, now_ms: int) -> tuple[object, ...]:
    """What the next step depends on: the state, and which of its times are long ago."""
    hold = memory.hold or Hold(asked_ms=0, found=NOTHING)
    times = ((hold.shown_ms, hold.accepted_ms), (hold.default_seen_ms, hold.default_accepted_ms))
    newest = (max((ms for ms in pair if ms is not None), default=None) for pair in times)
    news = tuple(None if ms is None else now_ms - ms >= NEWS_MS for ms in newest)
    late = None if hold.late_release_ms is None else now_ms - hold.late_release_ms > OWN_RELEASE_MS
    return state_of(memory), news, late, memory.default_hold is None


def test_every_step_of_the_table_happens_and_no_other() -> None:
    told = {*everything_that_looks_may_show()}
    assert sorted(map(str, TABLE - told)) == []
    assert sorted(map(str, told - TABLE)) == []


def test_every_state_and_every_reason_is_told_and_leads_on() -> None:
    assert set(MEANINGS) == set(HoldState)
    assert {step.reason for step in TABLE} == set(Reason)
    assert {step.source for step in TABLE} == {step.target for step in TABLE} == set(HoldState)
    assert sum(len(sources) for sources, _, _ in ROWS) == len(TABLE)


def test_a_step_that_is_not_in_the_table_is_a_mistake_of_ours_and_ends_no_guard() -> None:
    held = Memory(hold=Hold(asked_ms=1, found=NOTHING, seen_ms=1, confirmed_ms=1))
    assert (state_of(held), state_of(Memory())) == (HoldState.IN_EFFECT, HoldState.NONE)
    with pytest.raises(UnlistedStep, match="not in the table: in effect → no hold, no replica needs it any more"):
        move(held, Memory(), Reason.SETTLED)
    with pytest.warns(UnlistedStep):
        assert move(held, Memory(), Reason.SETTLED) == Memory()
    released = replace(held, hold=Hold(asked_ms=1, found=NOTHING, released_ms=2))
    assert move(held, released, Reason.SETTLED) is released
    with pytest.raises(UnlistedStep, match="not in the table"):
        move(held, released, Reason.PERSON)
    assert move(held, held, Reason.PERSON) is held


def drawn() -> str:
    """States, and steps by the state that they lead to."""
    states = [f"| {state} | {meaning} |" for state, meaning in MEANINGS.items()]
    steps = [f"| {sources_text(sources)} | {target} | {reason} |" for sources, target, reason in ROWS]
    lines = ["", "| state | means |", "|---|---|", *states, "", "| from | to | because |", "|---|---|---|", *steps, ""]
    return "\n".join([*lines, "```mermaid", *picture(), "```", ""])


def sources_text(sources: tuple[HoldState, ...]) -> str:
    return "any other" if len(sources) > len(HoldState) / 2 else "; ".join(sources)


def picture() -> Iterator[str]:
    """An arrow from a group stands for one from each of it. What leads on from every state would only blacken it."""
    yield "stateDiagram-v2"
    yield from (f"    {state.name}: {state}" for state in HoldState)
    for number, (group, members) in enumerate(GROUPS.items()):
        yield f'    state "{group}" as GROUP_{number} {{'
        yield from (f"        {state.name}" for state in members)
        yield "    }"
    arrows = [(source, target.name) for sources, target, _ in ROWS for source in origins(sources)]
    yield from (f"    {source} --> {target}" for source, target in dict.fromkeys(arrows) if target != "RELEASING")


def origins(sources: tuple[HoldState, ...]) -> list[str]:
    """The groups of which all are among them, and the others."""
    left, names = list(sources), []
    for number, members in enumerate(GROUPS.values()):
        if set(members) <= set(sources):
            names.append(f"GROUP_{number}")
            left = [state for state in left if state not in members]
    return [*names, *(state.name for state in left)]


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    expected = DRAWN.sub(lambda _: drawn(), page, count=1)
    if os.environ.get(golden.REWRITE) == "1":
        PAGE.write_text(expected, encoding="utf-8")
        return
    assert page == expected
