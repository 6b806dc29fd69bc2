"""Agents beside three running brokers: what they report is what the stopped directory says, and who blocks is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headstone.agent.agent import Agent
from headstone.agent.authentication import Authentication
from headstone.agent.client import GuardAddress, GuardClient
from headstone.agent.messages import SpanAnswered, SpanQuestion
from headstone.agent.replica_deletions import DeletionsDigest
from headstone.agent.replica_files import SWAPPED
from headstone.brokers.distribution import Distribution
from headstone.brokers.processes import Cluster, wait_until
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection, Host
from headstone.coordination.guard_values import OffsetSpan, Verdict, Verify
from headstone.guard.agents.partition_truth import PartitionTruth
from headstone.guard.agents.server import serve_reports
from headstone.guard.agents.truth import AgentTruth
from headstone.guard.agents.verification import ByAgents
from headstone.guard.looks.look import look
from headstone.guard.verification.verdicts import JudgedReplica
from headstone.log.directory import as_partition
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.planning import replica_watermarks, survey_directory
from testbed.workloads import second_client

TOKEN = "a token of the guard's"
ORDERS = TopicPartition("orders", 0)
BROKERS = (1, 2, 3)
AWAY = 3
TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.001"}
BROKER_SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": 200, "log.cleaner.backoff.ms": 200}
SECONDS_MAX = 60
DELETED = 3


class Guarded:
    """A cluster with an agent beside each broker and somebody who writes to it."""

    def __init__(self, cluster: Cluster, admin: Admin, client: GuardClient, truth: AgentTruth) -> None:
        self.cluster, self.admin, self.client, self.truth = cluster, admin, client, truth
        self.producer = second_client(cluster.bootstrap)
        self.remarks: list[str] = []
        self.agents = {
            number: Agent([broker.log_dir], clock=truth.clock, remark=self.remarks.append, interval_ms=1000)
            for number, broker in cluster.brokers.items()
        }

    def write(self, count: int = 1) -> None:
        for number in range(count):
            self.producer.produce("orders", partition=0, key=b"k%d" % (number % 3), value=b"v")
        assert self.producer.flush(SECONDS_MAX) == 0

    def learn(self) -> None:
        seen = look(self.admin, None, self.truth.clock)
        self.truth.learn(seen.cluster_id, seen.brokers, seen.topics)

    def round(self) -> PartitionTruth:
        """Somebody writes, so that segments roll and cleaners have work; the guard looks; every agent reports."""
        self.write()
        self.learn()
        for agent in self.agents.values():
            agent.tell(self.client)
        found = self.truth.partition(ORDERS)
        assert found is not None
        return found

    def until(self, true: Callable[[PartitionTruth], bool], what: str) -> PartitionTruth:
        rounds: list[PartitionTruth] = []

        def one_more() -> bool:
            rounds.append(self.round())
            return true(rounds[-1])

        wait_until(one_more, what, seconds_max=SECONDS_MAX)
        return rounds[-1]


def transaction(bootstrap: str) -> int:
    """The offset of its one record."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    offsets: list[int] = []
    producer.produce(
        "orders", partition=0, key=b"t", value=b"v", on_delivery=lambda error, message: offsets.append(message.offset())
    )
    producer.commit_transaction(SECONDS_MAX)
    [offset] = offsets
    return offset


def create(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wait_until(lambda: len(admin.list_topics(timeout=60).brokers) == len(BROKERS), "brokers", seconds_max=SECONDS_MAX)
    admin.create_topics([NewTopic("orders", 1, len(BROKERS), config=TOPIC_SETTINGS)])["orders"].result(SECONDS_MAX)


def of(found: PartitionTruth, broker: int) -> Any:
    return next(member for member in found.members if member.broker == broker)


def back_by_agents(guarded: Guarded, start: int) -> DeletionsDigest:
    """What the agent of the one that came back tells of what it missed, which is what the leader's tells."""

    def is_in_sync() -> bool:
        seen = look(guarded.admin, ["orders"], guarded.truth.clock).topics[0].partitions[0]
        return set(seen.isr) == set(BROKERS) and seen.committed_end is not None

    wait_until(is_in_sync, "all in sync", seconds_max=SECONDS_MAX)
    guarded.until(lambda found: all(member.problem is None for member in found.members), "a report of everybody")
    end = look(guarded.admin, ["orders"], guarded.truth.clock).topics[0].partitions[0].committed_end
    assert end is not None
    span = OffsetSpan(start=start, end=end)
    answers: dict[int, SpanAnswered] = {}

    def report(seconds: float) -> None:
        guarded.round()
        answers.update(guarded.truth.answers(SpanQuestion(partition=ORDERS, span=span)))

    def over_the_wire(wanted: Verify) -> dict[int, JudgedReplica]:
        raise AssertionError(f"agents did not agree: {answers}")

    wanted = Verify(topic="orders", partition=0, broker=AWAY, missed=span)
    assert ByAgents(over_the_wire, guarded.truth, sleep=report)(wanted) == {AWAY: JudgedReplica(verdict=Verdict.RIGHT)}
    told = answers[AWAY].deletions
    assert told is not None
    return told


def test_agents_tell_what_is_true_of_running_and_of_stopped_brokers(distribution: Distribution, tmp_path: Path) -> None:
    truth = AgentTruth()
    with (
        Cluster(distribution, tmp_path / "cluster", brokers=len(BROKERS), settings=BROKER_SETTINGS) as cluster,
        serve_reports(Host("127.0.0.1", 0), Authentication(token=TOKEN), truth) as where,
        Admin(Connection.parse(cluster.bootstrap, {})) as admin,
    ):
        create(cluster.bootstrap)
        client = GuardClient(GuardAddress(url=f"http://{where}", token=TOKEN))
        guarded = Guarded(cluster, admin, client, truth)
        guarded.write(30)
        clean = guarded.until(lambda found: min(found.mtro, found.mxro) > 10, "all cleaners to be past offset 10")
        assert all(member.problem is None for member in clean.members)
        transactional = transaction(cluster.bootstrap)
        settled = guarded.until(lambda found: found.mxro == transactional, "all to have come to the transaction")
        assert settled.mtro >= clean.mtro
        cluster.brokers[AWAY].stop()
        away = guarded.round()
        directory = as_partition(cluster.brokers[AWAY].log_dir / str(ORDERS))
        assert directory is not None
        survey, _ = survey_directory(directory)
        stopped = replica_watermarks(directory, survey)
        told = of(away, AWAY)
        assert (told.log_end, told.mcco, told.mxfo) == (survey.log_end, stopped.mcco, stopped.mxfo)
        assert told.mxfo == transactional
        held = guarded.until(
            lambda found: (
                [b.broker for b in found.blockers if b.kind == "tombstones"] == [AWAY]
                and of(found, 1).mcco > stopped.mcco + 5
            ),
            "the others to be cleaned further",
        )
        [blocker] = [blocker for blocker in held.blockers if blocker.kind == "tombstones"]
        assert (blocker.watermark, blocker.reason) == (stopped.mcco, "not cleanly compacted further")
        assert held.mtro <= stopped.mcco
        for number in range(DELETED):
            guarded.producer.produce("orders", partition=0, key=b"gone-%d" % number, value=None)
        guarded.write()
        cluster.start_broker(AWAY)
        assert back_by_agents(guarded, survey.log_end).count == DELETED
        # A report may fall into a swap of the running broker's cleaner: the agent says so, and reports the next time.
        assert [remark for remark in guarded.remarks if not remark.endswith(SWAPPED)] == []
