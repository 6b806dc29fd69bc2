"""What agents told, as operators see it: kept in the journal, in words, JSON and metrics; and what a look takes from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headstone.agent.authentication import Refusal
from headstone.agent.messages import Answered, Question
from headstone.guard.agents.exchange import attended
from headstone.guard.agents.summary import (
    agents_document,
    agents_lines,
    agents_metrics,
    agents_told,
    as_fact,
    ask_about,
    of_fact,
    questions_of,
)
from headstone.guard.agents.truth import Truth
from headstone.guard.ledger.journal import Journal
from headstone.guard.looks.look import Look
from tests.agent.broker_directory import CLUSTER
from tests.guard.reporting import BROKERS, ORDERS, Beside, Clock, looked, partition_seen, replica_report, topic_seen


@pytest.fixture
def truth() -> Truth:
    """Broker 3 is cleaned least, and holds a transaction."""
    truth = Truth(clock=Clock(now_ms=1_700_000_000_000))
    looked(truth)
    for _ in range(2):
        for broker, (mcco, mxfo) in {1: (90, 100), 2: (90, 100), 3: (20, 30)}.items():
            Beside(truth, broker).tells(replica_report(mcco, mxfo))
    truth.refused(Refusal.WRONG_TOKEN)
    return truth


def test_the_journal_gives_back_what_it_was_given(truth: Truth) -> None:
    told = agents_told(truth)
    assert of_fact(as_fact(told)) == told


def test_words_name_who_blocks_and_since_when(truth: Truth) -> None:
    assert list(agents_lines(agents_told(truth))) == [
        "agents beside brokers: 1, 2, 3 (at 2023-11-14 22:13:20 UTC)",
        "  orders-0: clean on all replicas below 20 (MTRO), plain below 30 (MXRO)",
        "    broker 3 holds tombstones, 70 behind since 2023-11-14 22:13:20 UTC: not cleanly compacted further",
        "    broker 3 holds markers, 70 behind since 2023-11-14 22:13:20 UTC: holds transactional data",
        "  1 message of agents refused: wrong token",
    ]


def test_many_blocked_partitions_are_counted(truth: Truth) -> None:
    told = agents_told(truth)
    lines = list(agents_lines(replace(told, partitions=told.partitions * 12)))
    assert lines[-2] == "  and 2 partitions more; --output json has all"


def test_the_document_has_every_replica(truth: Truth) -> None:
    document = agents_document(agents_told(truth))
    [orders] = document["partitions"]  # type: ignore[misc]
    assert (orders["partition"], orders["mtro"], orders["mxro"]) == ("orders-0", 20, 30)
    assert [(row["broker"], row["mcco"], row["mxfo"]) for row in orders["replicas"]] == [
        (1, 90, 100), (2, 90, 100), (3, 20, 30),
    ]  # fmt: skip
    assert [(row["kind"], row["broker"], row["behind"]) for row in orders["blockers"]] == [
        ("tombstones", 3, 70), ("markers", 3, 70),
    ]  # fmt: skip
    assert document["refused"] == {"wrong token": 1}


def test_the_metrics_of_agents(truth: Truth) -> None:
    text = agents_metrics(agents_told(truth))
    assert [line.removeprefix("headstone_guard_") for line in text.splitlines() if not line.startswith("#")] == [
        'agent_silent{broker="1"} 0',
        'agent_silent{broker="2"} 0',
        'agent_silent{broker="3"} 0',
        'mtro{topic="orders",partition="0"} 20',
        'mxro{topic="orders",partition="0"} 30',
        'blocker_behind{topic="orders",partition="0",broker="3",kind="tombstones"} 70',
        'blocker_behind{topic="orders",partition="0",broker="3",kind="markers"} 70',
        'reports_refused_total{reason="wrong token"} 1',
    ]


def a_look(*topics: str) -> Look:
    seen = tuple(topic_seen(partition_seen(), topic=topic) for topic in topics)
    return Look(cluster_id=CLUSTER, asked_ms=0, brokers=BROKERS, topics=seen, problems=())


@pytest.mark.parametrize(
    ("watched", "asked", "left"),
    [
        ((), None, ["orders-0", "others-0"]),
        ((), ["orders"], ["orders-0", "others-0"]),
        (("orders",), ["orders"], ["orders-0"]),
    ],
)
def test_a_look_at_everything_that_is_watched_forgets_what_is_gone(
    truth: Truth, watched: tuple[str, ...], asked: list[str] | None, left: list[str]
) -> None:
    looked(truth, topic_seen(), topic_seen(topic="others"))
    attended(lambda topics: a_look(*(topics or ("orders", "others"))), truth, watched)(asked)
    assert [str(found.partition) for found in truth.partitions()] == left


def test_clocks_that_agents_see_apart_count_in_every_look(truth: Truth) -> None:
    look = attended(lambda topics: a_look("orders"), truth, ())
    [orders] = look(None).topics
    assert orders.skew_ms < 10
    truth.report(Beside(truth, 1).made(ahead_ms=3_600_000))
    [orders] = look(None).topics
    assert 3_599_990 < orders.skew_ms <= 3_600_000


def test_a_record_that_was_asked_about_is_told_of(truth: Truth, tmp_path: Path) -> None:
    question = Question(partition=ORDERS, offset=7)
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER) as journal:
        for asked in (question, replace(question, offset=8), question):
            ask_about(journal, asked)
        assert questions_of(journal) == (replace(question, offset=8), question)
    truth.ask(ORDERS, 7)
    assert list(agents_lines(agents_told(truth)))[-2] == "  orders-0@7: not known of brokers 1, 2, 3"
    for holds in (True, False, False):
        for broker in BROKERS:
            answer = Answered(question=question, holds=holds and broker == 2)
            Beside(truth, broker).tells(replica_report(90, 100), answers=(answer,))
        words = list(agents_lines(agents_told(truth)))[-2]
        assert (words == "  orders-0@7: on brokers 2; not known of brokers 1, 3") == holds
    assert words == "  orders-0@7: gone everywhere; if it deleted something, that is gone everywhere too"
    told = agents_told(truth)
    assert of_fact(as_fact(told)) == told
    assert agents_document(told)["records"] == [
        {
            "partition": "orders-0", "offset": 7, "brokers": [], "unknown": [], "gone_everywhere": True, "below_mtro": True
        },
    ]  # fmt: skip
