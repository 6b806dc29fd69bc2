"""What a cluster and a journal are asked for before settings are judged: also where answers are strange, or a hold is lent."""

from __future__ import annotations

from pathlib import Path

from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import HOLD
from headstone.guard.check_facts import gather
from headstone.guard.checks import ClusterFacts, check
from headstone.guard.journal import Journal
from headstone.guard.loans import lend_hold
from tests.guard import scripted
from tests.guard.scripted import Model
from tests.guard.world import ClusterTwin

COMPACTED = {"cleanup.policy": "compact"}


def gathered(model: Model, journal: Journal | None = None) -> tuple[ClusterFacts, tuple[str, ...]]:
    with scripted.running(model) as bootstrap, Admin(Connection.parse(bootstrap, {}), seconds_max=5) as admin:
        return gather(admin, [], outage_max_ms=None, journal=journal, clock_ms=lambda: 1_000_000)


def test_a_number_that_is_none_costs_its_topic_and_not_the_check() -> None:
    names = ("orders", "payments", "users")
    model = Model(topics=dict.fromkeys(names, 1), configs={name: dict(COMPACTED) for name in names})
    model.configs["orders"]["delete.retention.ms"] = "a day"
    model.configs["users"]["segment.ms"] = "1e3"
    facts, problems = gathered(model)
    assert [topic.topic for topic in facts.topics] == ["payments"]
    assert problems == (
        "topic orders: delete.retention.ms is 'a day', which is no number",
        "topic users: segment.ms is '1e3', which is no number",
    )
    assert [finding.name for finding in check(facts)] == ["min-insync-too-low"]


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
    assert problems[0] == "broker 1: transaction.max.timeout.ms is 'soon', which is no number"
    assert "producers-forgotten" not in [finding.name for finding in check(facts)]


def test_a_hold_that_a_readmission_has_lent_is_nobody_elses(tmp_path: Path) -> None:
    model = Model(topics={"orders": 1}, configs={"orders": {**COMPACTED, **dict(HOLD)}})  # type: ignore[dict-item]
    with Journal.open(tmp_path / "journal.sqlite", cluster_id="scripted") as journal:
        held = [finding.name for finding in check(gathered(model, journal)[0])]
        lend_hold(ClusterTwin(), journal, "orders", reason="copies afresh", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
        lent = [finding.name for finding in check(gathered(model, journal)[0])]
    assert [name for name in held if name not in lent] == ["held-by-somebody"]
