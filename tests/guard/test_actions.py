"""A round's actions on a cluster in memory: due holds wait for nobody, one change serves all topics, and the lease is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headstone.cluster.questions import ConfigValue
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    HOLD,
    Allowed,
    AskBrokers,
    Decision,
    EndPasses,
    HoldByDefault,
    Memory,
    Release,
    ReleaseDefault,
    SetHold,
    State,
)
from headstone.errors import Unfinished
from headstone.guard.acting.actions import Actions
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.memory import Recollection
from headstone.guard.loop.watcher import Watcher
from tests.guard.watching import ACTS, after, goes_away, holding, kinds, states, watcher
from tests.guard.world import DAY_MS, MARGINS, ClusterTwin, Topic

BACKOFF = "log.cleaner.backoff.ms"
THREE = ("orders", "payments", "users")


def test_holds_come_first_and_the_one_that_is_due_first_before_the_others(journal: Journal) -> None:
    twin = ClusterTwin()
    actions = Actions(
        "a", lease_ms=1_000, margins=Margins(), admin=twin, journal=journal, clock=twin.clock,
        recollection=Recollection(journal), readmissions=None,
    )  # type: ignore[arg-type]  # fmt: skip
    later, sooner = (SetHold(topic="t", configs=HOLD, by_ms=ms, reason="behind") for ms in (20, 10))
    ask, end = AskBrokers(topic="t", brokers=(1,)), EndPasses(topic="t")
    others = (Release(topic="t", restore=()), ReleaseDefault(restore=()), end, HoldByDefault(configs=()), ask)
    decided = {
        topic: (Memory(), Decision(memory=Memory(), actions=(*wanted,), statuses=()))
        for topic, wanted in (("a", others), ("b", (later,)), ("c", (sooner,)))
    }
    assert [action for _, action in actions.wanted(decided)] == [
        sooner, later, HoldByDefault(configs=()), ask, end, Release(topic="t", restore=()), ReleaseDefault(restore=()),
    ]  # fmt: skip


class SlowTwin(ClusterTwin):
    """Each change takes most of a lease."""

    def _alter(self, what: str, configs: dict[str, str], changes: Mapping[str, str | None]) -> None:
        super()._alter(what, configs, changes)
        self.now_ms += ACTS.lease_ms * 9 // 10


def test_a_round_that_outlasts_the_lease_is_finished_as_long_as_nobody_else_leads(journal: Journal) -> None:
    twin = SlowTwin(**{topic: Topic() for topic in THREE})
    guard = watcher(twin, journal)
    goes_away(twin, guard)
    result = after(twin, guard, DAY_MS // 2)
    assert (result.leads, [what for what, _ in twin.changes]) == (True, [f"topic {topic}" for topic in THREE])


def about_to_end_passes(twin: ClusterTwin, journal: Journal) -> Watcher:
    """All topics are held a minute before the moment of danger, and each broker has said so."""
    guard = watcher(twin, journal, verdict=None)
    goes_away(twin, guard)
    after(twin, guard, DAY_MS - 60_000)
    after(twin, guard, 1_000)
    return guard


def test_one_restart_of_cleaner_threads_serves_all_topics_of_a_round(journal: Journal) -> None:
    twin = ClusterTwin(**{topic: Topic() for topic in THREE})
    guard = about_to_end_passes(twin, journal)
    result = after(twin, guard, 1_000)
    wanted = [done for done in result.done if isinstance(done.action, EndPasses)]
    assert [(done.topic, done.outcome is not None and done.outcome.needed) for done in wanted] == [
        ("orders", True), ("payments", False), ("users", False),
    ]  # fmt: skip
    assert [changes for _, changes in twin.changes if BACKOFF in changes] == [{BACKOFF: "15001"}, {BACKOFF: None}]
    assert [states(result, topic) for topic in THREE] == [[State.HELD]] * 3


def test_a_broker_that_falls_silent_costs_one_question_a_round_and_is_told_of_each_topic(journal: Journal) -> None:
    class Silent(ClusterTwin):
        asked = 0
        silent = False

        def broker_configs(self, broker: int | None) -> dict[str, ConfigValue]:
            if broker == 2 and self.silent:
                self.asked += 1
                raise Unfinished("broker 2: no answer in time")
            return super().broker_configs(broker)

    twin = Silent(**{topic: Topic() for topic in THREE})
    guard = about_to_end_passes(twin, journal)
    twin.silent = True
    for rounds in (1, 2):
        result = after(twin, guard, 1_000)
        assert (twin.asked, kinds(result)) == (rounds, ["a change was refused"] * 3)


def test_topics_that_wait_for_the_cluster_default_cost_no_reading_of_the_journal(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin(**{topic: Topic() for topic in THREE})
    guard = holding(twin, journal, replace(ACTS, allowed=Allowed(cluster_default=True)))
    for topic in twin.topics.values():
        topic.overrides.clear()
    after(twin, guard, MARGINS.metadata_age_ms + 1, times=3)
    assert twin.default == dict(DEFAULT_HOLD)
    twin.start(3)
    twin.topics["users"].isr = (1, 2)
    after(twin, guard, MARGINS.effect_ms)
    monkeypatch.setattr(journal, "topics", lambda: pytest.fail("all memories are read from the disk"))
    result = after(twin, guard, MARGINS.effect_ms)
    released = [done for done in result.done if isinstance(done.action, ReleaseDefault)]
    assert [(done.topic, done.outcome is not None and done.outcome.needed) for done in released] == [
        ("orders", False), ("payments", False),
    ]  # fmt: skip
    assert twin.default == dict(DEFAULT_HOLD)
    twin.topics["users"].isr = (1, 2, 3)
    after(twin, guard, MARGINS.effect_ms, times=4)
    assert twin.default == {}
    assert [change.resource for change in journal.changes()].count("cluster default") == 2


def test_a_restart_that_a_round_has_not_reached_is_asked_for_in_the_next(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin()
    guard = about_to_end_passes(twin, journal)

    def lost(*arguments: object, **how: object) -> None:
        raise Unfinished("the journal cannot be written: database is locked")

    with monkeypatch.context() as patched:
        patched.setattr("headstone.guard.acting.actions.carry_out", lost)
        with pytest.raises(Unfinished):
            after(twin, guard, 1_000)
    assert not any(BACKOFF in changes for _, changes in twin.changes)
    after(twin, guard, 1_000)
    assert [changes for _, changes in twin.changes if BACKOFF in changes] == [{BACKOFF: "15001"}, {BACKOFF: None}]
