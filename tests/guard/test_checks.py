"""Settings that widen the danger: what is asked for, and each rule on a cluster that has only that, or is as it should be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headstone.coordination.guard_values import HOLD
from headstone.guard.check import facts as check_facts
from headstone.guard.check.facts import gather
from headstone.guard.check.rules import CheckedTopic, CheckFinding, ClusterFacts, Severity, check
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.temporary_changes import hold_for_a_while
from tests.guard.scripted import Model, asking
from tests.guard.world import ClusterTwin

DAY_MS, HOUR_MS = 86_400_000, 3_600_000
TOOL = "kafka-configs.sh --bootstrap-server k:9092 --entity-type"
HEALTHY = CheckedTopic(
    topic="orders", copies=3,
    values={
        "delete.retention.ms": str(DAY_MS), "min.insync.replicas": "2", "segment.ms": str(7 * DAY_MS),
        "min.cleanable.dirty.ratio": "0.5", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": str(2**63 - 1),
        "unclean.leader.election.enable": "false", "remote.storage.enable": "false",
    },
)  # fmt: skip
CLUSTER = ClusterFacts(
    topics=(HEALTHY,), brokers={1: {"producer.id.expiration.ms": str(DAY_MS)}}, features={"transaction.version": 2},
    outage_max_ms=12 * HOUR_MS, skew_ms=100, transactions=True, bootstrap="k:9092",
)  # fmt: skip


def topic(
    own: dict[str, str] | None = None, *, inherited: dict[str, str] | None = None, copies: int = 3
) -> CheckedTopic:
    values = {**HEALTHY.values, **(inherited or {}), **(own or {})}
    return replace(HEALTHY, values=values, own=frozenset(own or {}), copies=copies)


def found(*topics: CheckedTopic) -> tuple[CheckFinding, ...]:
    return check(replace(CLUSTER, topics=topics))


def test_a_cluster_as_it_should_be_has_no_findings() -> None:
    assert check(CLUSTER) == ()


def test_a_retention_below_the_planned_outage_is_a_danger_with_its_fix() -> None:
    (finding,) = found(topic({"delete.retention.ms": str(HOUR_MS)}))
    assert (finding.name, finding.severity, finding.where, finding.default) == (
        "short-retention", Severity.DANGER, "topic orders", False,
    )  # fmt: skip
    assert finding.figure == "delete.retention.ms is 3600000 (1 h); outages of 12 h are planned for or have occurred"
    assert finding.fix == f"{TOOL} topics --entity-name orders --alter --add-config delete.retention.ms=86400000"


def test_what_many_topics_inherit_is_one_finding_about_the_default() -> None:
    short = {"delete.retention.ms": "0"}
    topics = [replace(topic(inherited=short), topic=name) for name in ("a", "b", "c", "d")]
    (finding,) = found(*topics)
    assert (finding.topics, finding.where) == (
        ("a", "b", "c", "d"),
        "topics a, b, c and 1 more (by the brokers' default)",
    )
    assert (
        finding.fix == f"{TOOL} brokers --entity-default --alter --add-config log.cleaner.delete.retention.ms=86400000"
    )


def test_without_a_planned_outage_the_guards_own_needs_count() -> None:
    short = topic({"delete.retention.ms": "60000"})
    (finding,) = check(replace(CLUSTER, topics=(short,), outage_max_ms=None))
    assert (
        finding.figure
        == "delete.retention.ms is 60000 (1 min); the guard alone needs 2 min 50 s to notice an outage and hold the topic"
    )
    longer = topic({"delete.retention.ms": str(HOUR_MS)})
    assert check(replace(CLUSTER, topics=(longer,), outage_max_ms=None)) == ()


def test_a_recipe_from_the_web_is_named_with_what_it_comes_to() -> None:
    recipe = {"segment.ms": "100", "delete.retention.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    short, hurried = found(topic(recipe))
    assert (short.name, hurried.name) == ("short-retention", "hurried-compaction")
    assert (
        hurried.figure
        == "segment.ms 100 (100 ms), min.cleanable.dirty.ratio 0.01: a delete may be gone 200 ms after it was written"
    )
    assert (
        hurried.fix
        == f"{TOOL} topics --entity-name orders --alter --delete-config segment.ms,min.cleanable.dirty.ratio"
    )
    assert found(topic({"min.cleanable.dirty.ratio": "0.01"})) == ()


def test_a_recipe_of_the_brokers_defaults_is_judged_too_and_set_to_kafkas_own() -> None:
    recipe = {"segment.ms": "100", "delete.retention.ms": "100", "max.compaction.lag.ms": "1000"}
    topics = [
        replace(topic({"min.cleanable.dirty.ratio": "0.01"}, inherited=recipe), topic=name) for name in ("a", "b")
    ]
    of_a, of_both, of_b = (finding for finding in found(*topics) if finding.name == "hurried-compaction")
    assert [(finding.topics, finding.default) for finding in (of_a, of_both, of_b)] == [
        (("a",), False), (("a", "b"), True), (("b",), False),
    ]  # fmt: skip
    assert of_both.figure.startswith("segment.ms 100 (100 ms), max.compaction.lag.ms 1000 (1 s): ")
    assert of_both.fix == (
        f"{TOOL} brokers --entity-default --alter --add-config "
        "log.roll.ms=604800000,log.cleaner.max.compaction.lag.ms=9223372036854775807"
    )
    assert of_a.fix == f"{TOOL} topics --entity-name a --alter --delete-config min.cleanable.dirty.ratio"
    (ratio,) = (
        finding
        for finding in found(
            topic(
                inherited={"min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000000", "delete.retention.ms": "100"}
            )
        )
        if finding.name == "hurried-compaction"
    )
    assert ratio.fix.endswith("--add-config log.cleaner.min.cleanable.ratio=0.5")


def test_in_sync_replicas_are_lowered_for_the_topic_that_has_too_few_and_for_no_other() -> None:
    small = replace(topic(inherited={"min.insync.replicas": "2"}, copies=2), topic="small")
    (high,) = (finding for finding in found(HEALTHY, small) if finding.name == "min-insync-too-high")
    assert (high.topics, high.default) == (("small",), False)
    assert high.fix == f"{TOOL} topics --entity-name small --alter --add-config min.insync.replicas=1"


def test_in_sync_replicas_are_raised_for_all_only_where_all_have_enough_copies() -> None:
    large = replace(topic(inherited={"min.insync.replicas": "1"}), topic="large")
    small = replace(topic({"min.insync.replicas": "1"}, copies=1), topic="small")
    fixes = [
        [(finding.fix, finding.default) for finding in found(*topics) if finding.name == "min-insync-too-low"]
        for topics in ((large,), (large, small))
    ]
    assert fixes == [
        [(f"{TOOL} brokers --entity-default --alter --add-config min.insync.replicas=2", True)],
        [(f"{TOOL} topics --entity-name large --alter --add-config min.insync.replicas=2", False)],
    ]


@pytest.mark.parametrize(("outage_hours", "kept_ms"), [(36, 36 * HOUR_MS), (2, DAY_MS)])
def test_producers_are_remembered_for_as_long_as_is_needed_and_a_day_at_least(outage_hours: int, kept_ms: int) -> None:
    brokers = {1: {"producer.id.expiration.ms": "60000"}}
    facts = replace(CLUSTER, topics=(), brokers=brokers, outage_max_ms=outage_hours * HOUR_MS)
    (forgotten,) = check(facts)
    assert forgotten.fix.endswith(f"--add-config producer.id.expiration.ms={kept_ms}")


@pytest.mark.parametrize(
    ("facts", "name", "figure"),
    [
        (topic(copies=1), "few-copies", "replication factor 1"),
        (topic({"min.insync.replicas": "1"}, copies=2), "few-copies", "replication factor 2"),
        (topic({"min.insync.replicas": "3"}), "min-insync-too-high", "min.insync.replicas 3, replication factor 3"),
        (topic({"min.insync.replicas": "1"}), "min-insync-too-low", "min.insync.replicas 1, replication factor 3"),
        (topic({"unclean.leader.election.enable": "true"}), "unclean-election", "unclean.leader.election.enable is true"),
        (topic({"remote.storage.enable": "true"}), "tiered-and-compacted", "remote.storage.enable is true, compacted"),
    ],
)  # fmt: skip
def test_each_setting_of_a_topic_is_found_alone(facts: CheckedTopic, name: str, figure: str) -> None:
    assert [(finding.name, finding.figure, finding.topics) for finding in found(facts)] == [(name, figure, ("orders",))]


def test_a_hold_of_which_no_journal_knows_is_told_and_the_guards_own_is_not() -> None:
    held = topic({name: value for name, value in HOLD if value is not None})
    (finding,) = found(held)
    assert finding.name == "held-by-somebody"
    assert finding.fix.endswith("--delete-config min.cleanable.dirty.ratio,min.compaction.lag.ms,max.compaction.lag.ms")
    assert found(replace(held, held_by_guard=True)) == ()


def test_transactions_v1_matter_only_where_there_are_transactions() -> None:
    old = replace(CLUSTER, features={}, brokers={1: {"producer.id.expiration.ms": "60000"}})
    assert [(finding.name, finding.where) for finding in check(old)] == [
        ("producers-forgotten", "broker 1"), ("transactions-v1", "cluster"),
    ]  # fmt: skip
    assert check(replace(old, transactions=False)) == ()


def test_producers_are_forgotten_under_transactions_v2_too_for_there_are_old_clients() -> None:
    forgetful = {1: {"producer.id.expiration.ms": "60000"}, 2: {"producer.id.expiration.ms": str(DAY_MS)}}
    (finding,) = check(replace(CLUSTER, brokers=forgetful))
    assert (finding.name, finding.broker, finding.severity) == ("producers-forgotten", 1, Severity.DANGER)
    assert (
        "transaction.version 2 does not end that: clients that do not end transactions by EndTxn version 5"
        in finding.why
    )
    old = check(replace(CLUSTER, brokers=forgetful, features={}))
    assert ["transaction.version" in each.why for each in old if each.name == "producers-forgotten"] == [False]
    assert check(replace(CLUSTER, brokers=forgetful, transactions=False)) == ()


def test_clocks_and_tiered_metadata_are_of_the_cluster() -> None:
    clocks, metadata = check(replace(CLUSTER, skew_ms=3_600_000, tiered_metadata_policy="compact"))
    assert (clocks.name, clocks.where) == ("clocks-differ", "cluster")
    assert clocks.figure == "two brokers' clocks may differ by 1 h; the limit is 5 s"
    assert (metadata.name, metadata.topics) == ("tiered-metadata", ("__remote_log_metadata",))
    assert check(replace(CLUSTER, skew_ms=5_000, tiered_metadata_policy="delete")) == ()


def test_a_hostile_name_is_shown_and_not_obeyed() -> None:
    hostile = replace(topic({"delete.retention.ms": "0"}), topic="\x1b[2J$(reboot)")
    (finding,) = found(hostile)
    assert finding.where == "topic \\x1b[2J$(reboot)"
    assert "--entity-name $'\\033[2J$(reboot)'" in finding.fix


@pytest.mark.parametrize(("name", "reader"), [("__consumer_offsets", "group"), ("__transaction_state", "transaction")])
def test_of_kafkas_own_topics_it_is_told_who_reads_them(name: str, reader: str) -> None:
    bad = topic({"delete.retention.ms": "1000", "unclean.leader.election.enable": "true"}, copies=2)
    findings = found(replace(bad, topic=name))
    told = [finding.name for finding in findings if f"its readers are {reader} coordinators" in finding.why]
    assert told == ["short-retention", "unclean-election", "few-copies"]
    assert findings[2].fix.endswith("the brokers' setting counts only when it is made")


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
