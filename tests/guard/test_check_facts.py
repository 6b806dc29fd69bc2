"""What a cluster and a journal are asked for before settings are judged: also with strange answers, or a temporary hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.coordination.guard_values import HOLD
from headstone.guard.check import facts as check_facts
from headstone.guard.check.facts import gather
from headstone.guard.check.rules import ClusterFacts, check
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.temporary_changes import hold_for_a_while
from tests.guard.scripted import Model, asking
from tests.guard.world import ClusterTwin

COMPACTED = {"cleanup.policy": "compact"}


def gathered(model: Model, journal: Journal | None = None) -> tuple[ClusterFacts, tuple[str, ...]]:
    with asking(model) as admin:
        return gather(admin, [], outage_max_ms=None, journal=journal, clock_ms=lambda: 1_000_000)


def test_a_number_that_is_none_costs_its_topic_and_not_the_check() -> None:
    names = ("orders", "payments", "users")
    model = Model(topics=dict.fromkeys(names, 1), configs={name: dict(COMPACTED) for name in names})
    model.configs["orders"]["delete.retention.ms"] = "a day"
    model.configs["users"]["segment.ms"] = "1e3"
    facts, problems = gathered(model)
    assert [topic.topic for topic in facts.topics] == ["payments"]
    assert problems == (
        "topic orders: delete.retention.ms is 'a day', not a number",
        "topic users: segment.ms is '1e3', not a number",
    )
    assert [finding.name for finding in check(facts)] == ["min-insync-too-low"]


def test_more_topics_than_one_question_names_are_all_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_facts, "TOPICS_AT_ONCE", 2)
    names = ("a", "b", "c", "d", "e")
    facts, problems = gathered(Model(topics=dict.fromkeys(names, 1), configs=dict.fromkeys(names, COMPACTED)))
    assert ([topic.topic for topic in facts.topics], problems) == (list(names), ())


def test_a_number_of_a_broker_that_is_none_costs_that_broker() -> None:
    topics = {"orders": 1, "__transaction_state": 1}
    model = Model(topics=topics, configs=dict.fromkeys(topics, COMPACTED))
    model.broker_configs = {"producer.id.expiration.ms": "60000"}
    facts, problems = gathered(model)
    assert ([finding.broker for finding in check(facts) if finding.name == "producers-forgotten"], problems) == (
        [1, 2, 3],
        (),
    )
    model.broker_configs["transaction.max.timeout.ms"] = "soon"
    facts, problems = gathered(model)
    assert (facts.brokers, len(problems)) == ({}, 3)
    assert problems[0] == "broker 1: transaction.max.timeout.ms is 'soon', not a number"
    assert "producers-forgotten" not in [finding.name for finding in check(facts)]


def test_a_temporary_hold_of_a_readmission_is_not_foreign(tmp_path: Path) -> None:
    model = Model(topics={"orders": 1}, configs={"orders": {**COMPACTED, **dict(HOLD)}})  # type: ignore[dict-item]
    with Journal.open(tmp_path / "journal.sqlite", cluster_id="scripted") as journal:
        held = [finding.name for finding in check(gathered(model, journal)[0])]
        hold_for_a_while(ClusterTwin(), journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
        temporary = [finding.name for finding in check(gathered(model, journal)[0])]
    assert [name for name in held if name not in temporary] == ["held-by-somebody"]
