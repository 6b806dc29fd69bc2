"""A guard over the cluster in memory, look after look: how tests start one, and bring about what it is to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headstone.coordination.guard_values import State, Verdict, Verify
from headstone.guard.ledger.journal import Journal
from headstone.guard.loop.rounds import GuardSettings, Round
from headstone.guard.loop.watcher import Watcher
from headstone.guard.readmission.automatic import OwnReadmissions
from headstone.guard.readmission.driver import ReadmissionMeans
from headstone.guard.readmission.plan import CopyLimits
from headstone.guard.verification.background import Readings
from headstone.guard.verification.verdicts import JudgedReplica
from tests.guard.world import DAY_MS, MARGINS, ClusterTwin

ACTS = GuardSettings(name="a", margins=MARGINS, applies=True)
DRY = replace(ACTS, applies=False)
LIMITS = CopyLimits(copy_bytes_per_second=7_000)
OWN = {"min.cleanable.dirty.ratio": "0.1"}


def interrupted(seconds: float) -> None:
    raise KeyboardInterrupt


def means_of(twin: ClusterTwin, journal: Journal, **how: Any) -> ReadmissionMeans:
    """Of a readmission; interrupted where it would wait, unless told otherwise."""
    how = {"pause": interrupted, "tell": lambda line: None, **how}
    return ReadmissionMeans(
        admin=twin, connection=None, journal=journal, work=journal.path.parent, clock_ms=twin.clock, steady=twin.clock, **how
    )  # type: ignore[arg-type]  # fmt: skip


def watcher(
    twin: ClusterTwin, journal: Journal, settings: GuardSettings = ACTS, *, verdict: Verdict | None = Verdict.RIGHT,
    tell: Callable[[str], None] = print, limits: CopyLimits = LIMITS, why: str = "",
) -> Watcher:  # fmt: skip
    def judged(wanted: Verify) -> dict[int, JudgedReplica]:
        others = dict.fromkeys((1, 2, 3), JudgedReplica(verdict=Verdict.RIGHT))
        return {**others, wanted.broker: JudgedReplica(verdict=verdict or Verdict.RIGHT, why=why)}

    read = Readings(judged, journal, clock=twin.clock, beside=False)
    means = means_of(twin, journal, pause=lambda seconds: None, limits=limits, tell=tell)
    return Watcher(
        settings, admin=twin, look=twin.look, journal=journal, clock=twin.clock, readings=read if verdict else None,
        readmissions=OwnReadmissions(means), steady=twin.clock,
    )  # type: ignore[arg-type]  # fmt: skip


def after(twin: ClusterTwin, guard: Watcher, wait_ms: int, *, times: int = 1) -> Round:
    """The last of so many looks, each so much later."""
    for _ in range(times):
        twin.now_ms += wait_ms
        result = guard.round()
    return result


def states(result: Round, topic: str = "orders") -> list[State]:
    return [status.state for status in result.statuses[topic]]


def kinds(result: Round) -> list[str]:
    return [alarm.kind for alarm in result.alarms]


def goes_away(twin: ClusterTwin, guard: Watcher, broker: int = 3) -> Round:
    """It stops between two looks."""
    guard.round()
    twin.stop(broker)
    return guard.round()


def held_at_half_a_day(twin: ClusterTwin, guard: Watcher, broker: int = 3) -> Round:
    """The broker stops, looks go on every three hours, and half of the slack is used up."""
    result = goes_away(twin, guard, broker)
    for _ in range(4):
        assert states(result) == [State.WATCHED]
        result = after(twin, guard, DAY_MS // 8)
    return result


def holding(twin: ClusterTwin, journal: Journal, settings: GuardSettings = ACTS, **how: Any) -> Watcher:
    """Broker 3 has been away for half a day, and the others have just been asked whether they have the hold."""
    guard = watcher(twin, journal, settings, **how)
    held_at_half_a_day(twin, guard)
    after(twin, guard, 1_000)
    return guard
