"""The agent beside a directory that changes, and the verb: what it reports, leaves out, refuses and survives."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headstone.agent.agent import Agent
from headstone.agent.authentication import Authentication
from headstone.agent.client import GuardAddress, GuardClient
from headstone.agent.messages import VERSION, BrokerReport, Question, ReplicaReport, Welcome
from headstone.cli.main import main
from headstone.cluster.connection import Host
from headstone.errors import UsageError
from headstone.guard.agents.server import serve_reports
from headstone.guard.agents.truth import AgentTruth
from headstone.log import checkpoints
from headstone.log.topic_partition import TopicPartition
from tests.agent.broker_directory import CLUSTER, BrokerDirectory
from tests.guard.reporting import BROKERS, Clock, looked, partition_seen, topic_seen
from tests.oracle.notation import TOPIC_ID

TOKEN = "a token of the guard's"
CHALLENGE = f"1.{'0' * 64}"


@pytest.fixture
def broker(tmp_path: Path) -> BrokerDirectory:
    return BrokerDirectory(tmp_path / "logs")


@pytest.fixture
def remarks() -> list[str]:
    return []


def agent_of(*roots: Path, remarks: list[str] | None = None, clock: Callable[[], int] | None = None) -> Agent:
    heard = [] if remarks is None else remarks
    return Agent(roots, clock=clock or Clock(), remark=heard.append, interval_ms=10_000)


def report(agent: Agent, *topics: str, epoch: int = 1, questions: tuple[Question, ...] = ()) -> BrokerReport:
    welcome = Welcome(epoch=epoch, challenge=CHALLENGE, topics=topics or ("orders",), questions=questions)
    return agent.report(welcome, clock_before_ms=0)


def claims(told: BrokerReport) -> dict[str, tuple[int, int]]:
    return {str(replica.partition): (replica.mcco, replica.mxfo) for replica in told.replicas}


def test_a_report_has_who_it_is_and_every_replica_that_is_wanted(broker: BrokerDirectory) -> None:
    for name, terms in (("orders-0", "N[a] | N[b] N[c]"), ("orders-1", "P1[a] C1"), ("others-0", "N[a]")):
        broker.append(name, terms)
    broker.append("__cluster_metadata-0", "N[a]")
    broker.cleaned("orders-0", 1)
    told = report(agent_of(broker.root))
    assert (told.cluster_id, told.broker, told.sequence, told.epoch) == (CLUSTER, 1, 1, 1)
    lives = [replica.incarnation for replica in told.replicas]
    assert told.replicas == (
        ReplicaReport(
            partition=TopicPartition("orders", 0), topic_id=TOPIC_ID, directory_id="directory-a", log_start=0, log_end=3,
            high_watermark=3, incarnation=lives[0], mcco=1, mxfo=3,
        ),
        ReplicaReport(
            partition=TopicPartition("orders", 1), topic_id=TOPIC_ID, directory_id="directory-a", log_start=0, log_end=2,
            high_watermark=2, incarnation=lives[1], mcco=0, mxfo=0,
        ),
    )  # fmt: skip


def test_copies_that_are_moved_strays_and_what_is_deleted_are_no_replicas(broker: BrokerDirectory) -> None:
    broker.append("orders-0", "N[a]")
    for suffix in ("future", "stray", "delete"):
        shutil.copytree(broker.root / "orders-0", broker.root / f"orders-1.{'0123456789abcdef' * 2}-{suffix}")
    assert claims(report(agent_of(broker.root))) == {"orders-0": (0, 1)}


def test_a_partition_in_two_directories_is_left_out(
    broker: BrokerDirectory, tmp_path: Path, remarks: list[str]
) -> None:
    second = BrokerDirectory(tmp_path / "second", directory_id="directory-b")
    for directory in (broker, second):
        directory.append("orders-0", "N[a]")
    second.append("orders-1", "N[a]")
    agent = agent_of(broker.root, second.root, remarks=remarks)
    told = report(agent)
    assert [(replica.partition.number, replica.directory_id) for replica in told.replicas] == [(1, "directory-b")]
    report(agent)
    assert remarks == [f"left out of the report: orders-0 is in {broker.root} and in {second.root}: left"]


def test_claims_rise_within_one_life_and_a_log_that_lost_them_begins_another(broker: BrokerDirectory) -> None:
    broker.append("orders-0", "N[a] | N[b] | N[c]")
    agent = agent_of(broker.root)
    first = report(agent).replicas[0]
    broker.cleaned("orders-0", 2)
    second = report(agent).replicas[0]
    assert (second.incarnation, second.mcco) == (first.incarnation, 2)
    broker.cleaned("orders-0", 1)
    third = report(agent).replicas[0]
    assert third.incarnation > second.incarnation
    assert third.mcco == 1


@pytest.mark.parametrize("seen_gone", [True, False])
def test_a_folder_that_was_made_again_begins_another_life(broker: BrokerDirectory, seen_gone: bool) -> None:
    broker.append("orders-0", "N[a]")
    agent = agent_of(broker.root)
    first = report(agent).replicas[0]
    shutil.rmtree(broker.root / "orders-0")
    if seen_gone:
        assert report(agent).replicas == ()
    broker.histories.clear()
    broker.append("orders-0", "N[a] N[b]")
    again = report(agent).replicas[0]
    assert again.incarnation > first.incarnation
    assert (again.log_end, again.mxfo) == (2, 2)


def test_another_guard_hears_of_new_lives_whatever_its_epoch(broker: BrokerDirectory) -> None:
    broker.append("orders-0", "N[a]")
    agent = agent_of(broker.root)
    lives = [report(agent, epoch=epoch).replicas[0].incarnation for epoch in (5, 5, 3)]
    assert lives[0] == lives[1] < lives[2]


def test_what_cannot_be_read_is_left_out_and_told_once(broker: BrokerDirectory, remarks: list[str]) -> None:
    broker.append("orders-0", "N[a] | N[b]")
    broker.append("orders-1", "N[a]")
    agent = agent_of(broker.root, remarks=remarks)
    os.rename(broker.segment("orders-0", 0), broker.segment("orders-0", 0, ".log.swap"))
    for _ in range(3):
        assert claims(report(agent)) == {"orders-1": (0, 1)}
    assert remarks == [f"left out of the report: {broker.root / 'orders-0'}: a swap of segments is under way"]
    os.rename(broker.segment("orders-0", 0, ".log.swap"), broker.segment("orders-0", 0))
    assert claims(report(agent)) == {"orders-0": (0, 2), "orders-1": (0, 1)}


def test_checkpoints_that_cannot_be_read_leave_everything_out(broker: BrokerDirectory, remarks: list[str]) -> None:
    broker.append("orders-0", "N[a]")
    (broker.root / checkpoints.CLEANER).write_text("0\n7\n")
    assert report(agent_of(broker.root, remarks=remarks)).replicas == ()
    assert "says 7 but has 0 entries" in remarks[0]


def test_questions_are_answered_as_far_as_it_can_be_told(broker: BrokerDirectory) -> None:
    broker.append("orders-0", "N[a] +1 T[a]")
    asked = [TopicPartition("orders", 0)] * 4 + [TopicPartition("ghost", 0)]
    questions = tuple(Question(partition=at, offset=offset) for at, offset in zip(asked, (0, 1, 2, 3, 0), strict=True))
    told = report(agent_of(broker.root), questions=questions)
    assert [(answer.question.offset, answer.holds) for answer in told.answers] == [(0, True), (1, False), (2, True)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda root, _: (root / "meta.properties").unlink(), "missing, or without IDs"),
        (lambda root, _: (root / "meta.properties").write_text("node.id=1\n"), "missing, or without IDs"),
        (lambda _, other: BrokerDirectory(other, broker=2), "these log directories belong to different brokers"),
        (
            lambda _, other: BrokerDirectory(other, cluster="elsewhere"),
            "these log directories belong to different brokers",
        ),
    ],
)
def test_directories_that_are_not_of_one_broker_are_refused(tmp_path: Path, change: Any, why: str) -> None:
    roots = (tmp_path / "a", tmp_path / "b")
    for root in roots:
        BrokerDirectory(root)
    change(*roots)
    with pytest.raises(UsageError, match=why):
        agent_of(*roots)


@pytest.fixture
def truth() -> AgentTruth:
    truth = AgentTruth()
    looked(truth, topic_seen(partition_seen(10, log_end=10)))
    return truth


@pytest.fixture
def where(truth: AgentTruth) -> Iterator[Host]:
    with serve_reports(Host("127.0.0.1", 0), Authentication(token=TOKEN), truth) as host:
        yield host


def test_a_guard_that_does_not_answer_is_told_of_once_and_when_it_answers_again(
    truth: AgentTruth, broker: BrokerDirectory
) -> None:
    broker.append("orders-0", "N[a]")
    agent = Agent((broker.root,), clock=truth.clock, remark=pytest.fail, interval_ms=1)
    told: list[str] = []
    with ExitStack() as up:
        where = up.enter_context(serve_reports(Host("127.0.0.1", 0), Authentication(token=TOKEN), truth))
        rounds = iter(["", "", "down", "", "up", ""])

        def stop() -> bool:
            """Before each round; the guard goes away for two of them."""
            turn = next(rounds, None)
            if turn == "down":
                up.close()
            if turn == "up":
                up.enter_context(serve_reports(where, Authentication(token=TOKEN), truth))
            return turn is None

        agent.stay(GuardClient(GuardAddress(url=f"http://{where}", token=TOKEN)), stop, told.append)
    takes = "broker 1: the guard takes the reports of 1 replica"
    assert [text for text in told if text == takes] == [told[0], told[2]]
    assert [text.endswith("; tried again every 1ms") for text in told] == [False, True, False]


def test_three_agents_over_http_prove_what_all_have(truth: AgentTruth, where: Host, tmp_path: Path) -> None:
    client = GuardClient(GuardAddress(url=f"http://{where}", token=TOKEN))
    agents = {}
    for number in BROKERS:
        broker = BrokerDirectory(tmp_path / f"broker-{number}", broker=number)
        broker.append("orders-0", "N[a] N[a] | T[a] | N[b]")
        broker.cleaned("orders-0", 4 - number)
        agents[number] = agent_of(broker.root, clock=truth.clock)
    truth.ask(TopicPartition("orders", 0), 2)
    for _ in range(2):
        for agent in agents.values():
            assert agent.tell(client).taken == 1
    [orders] = truth.partitions()
    assert (orders.mtro, orders.mxro) == (1, 4)
    assert [(blocker.kind, blocker.broker, blocker.behind) for blocker in orders.blockers] == [("tombstones", 3, 1)]
    found = truth.whereabouts(TopicPartition("orders", 0), 2)
    assert found is not None
    assert (found.holders, found.unknown) == ((1, 2, 3), ())


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(code: int, *words: str) -> tuple[str, str]:
        capsys.readouterr()
        assert main(["agent", *words]) == code
        shown = capsys.readouterr()
        return shown.out, shown.err

    return run


def test_the_verb_prints_a_report_of_compacted_topics(broker: BrokerDirectory, said: Any) -> None:
    broker.append("orders-0", "N[a] | P1[b]")
    broker.append("events-0", "N[a]")
    broker.cleaned("orders-0", 1)
    out, _ = said(0, "--log-dirs", str(broker.root), "--print", "--output", "json")
    told = json.loads(out)
    assert (told["version"], told["cluster"], told["broker"]) == (VERSION, CLUSTER, 1)
    assert [(replica["topic"], replica["mcco"], replica["mxfo"]) for replica in told["replicas"]] == [("orders", 1, 1)]
    out, _ = said(0, "--log-dirs", f"{broker.root},", "--print")
    assert out.splitlines() == [
        f"broker 1 of cluster {CLUSTER}: 1 replica of compacted topics",
        "orders-0: log 0 to 2, MCCO 1 (clean below), MXFO 1 (no transactional data below)",
    ]


def test_the_verb_reports_once(
    broker: BrokerDirectory, truth: AgentTruth, where: Host, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.append("orders-0", "N[a]")
    monkeypatch.setenv("AGENT_TOKEN", TOKEN)
    words = ("--log-dirs", str(broker.root), "--once", "--guard", f"http://{where}")
    out, err = said(0, *words, "--token", "env:AGENT_TOKEN")
    assert (out, err) == ("the guard took the reports of 1 replica\n", "")
    assert [agent.broker for agent in truth.agents()] == [1]
    monkeypatch.setenv("AGENT_TOKEN", "another token than that")
    out, err = said(3, *words, "--token", "env:AGENT_TOKEN")
    assert (
        err
        == f"headstone agent: the guard at http://{where}: it refused the token: check that --token matches the guard's "
        "--agents-token\n"
    )
    _, err = said(3, *words, "--token", TOKEN + "x")
    assert "--token: every user of this machine can see it; say env:NAME or file:PATH instead" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--guard", "http://127.0.0.1:1"), "with a token (--token), or over https"),
        (("--guard", "https://127.0.0.1:1"), "with a token (--token), or over https"),
        (("--guard", "http://127.0.0.1:1", "--token", "short"), "fewer than 16 characters"),
        (("--guard", "https://127.0.0.1:1", "--tls-cert", "none.pem"), "cannot load the certificate with its key"),
    ],
)
def test_the_verb_says_what_is_missing(broker: BrokerDirectory, said: Any, words: tuple[str, ...], why: str) -> None:
    _, err = said(2, "--log-dirs", str(broker.root), "--once", *words)
    assert why in err


def test_the_verb_tells_of_a_guard_that_is_not_there(broker: BrokerDirectory, said: Any) -> None:
    _, err = said(2, "--log-dirs", str(broker.root / "none"), "--print")
    assert "no such directory" in err
    _, err = said(3, "--log-dirs", str(broker.root), "--once", "--guard", "http://127.0.0.1:1", "--token", TOKEN)
    assert "the guard at http://127.0.0.1:1: Connection refused" in err
