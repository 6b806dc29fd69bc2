"""Reports, looks and a clock for the tests of what agents tell the guard."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstone.agent.messages import Answered, BrokerReport, Hello, Receipt, ReplicaReport
from headstone.coordination.guard_values import PartitionSeen, ReplicaSeen, TopicSeen
from headstone.guard.agents.truth import AgentTruth
from headstone.log.topic_partition import TopicPartition
from tests.agent.broker_directory import CLUSTER

ORDERS = TopicPartition("orders", 0)
BROKERS = (1, 2, 3)
INTERVAL_MS = 10_000


@dataclass
class Clock:
    """Moves a millisecond with each question: no two moments are the same."""

    now_ms: int = 1_000_000

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def partition_seen(
    committed: int | None = 100,
    *,
    brokers: tuple[int, ...] = BROKERS,
    log_end: int | None = 100,
    leader: int | None = 1,
) -> PartitionSeen:
    replicas = tuple(ReplicaSeen(broker=broker, log_end=log_end) for broker in brokers)
    return PartitionSeen(partition=0, leader=leader, replicas=replicas, isr=brokers, committed_end=committed)


def topic_seen(partition: PartitionSeen | None = None, *, topic: str = "orders", compacted: bool = True) -> TopicSeen:
    seen = partition or partition_seen()
    return TopicSeen(
        topic=topic, asked_ms=0, compacted=compacted, delete_retention_ms=86_400_000, overrides=(), partitions=(seen,),
        alive=BROKERS,
    )  # fmt: skip


def replica_report(mcco: int = 0, mxfo: int = 0, **others: object) -> ReplicaReport:
    told = ReplicaReport(
        partition=ORDERS, topic_id="topic-a", directory_id=None, log_start=0, log_end=100, high_watermark=100, incarnation=1,
        mcco=mcco, mxfo=mxfo,
    )  # fmt: skip
    return replace(told, **others)  # type: ignore[arg-type]


class Beside:
    """One agent that says whatever a test wants it to."""

    def __init__(self, truth: AgentTruth, broker: int, *, session_ms: int = 1) -> None:
        self.truth, self.broker, self.session_ms = truth, broker, session_ms

    def made(
        self, *replicas: ReplicaReport, answers: tuple[Answered, ...] = (), ahead_ms: int = 0, cluster: str = CLUSTER
    ) -> BrokerReport:
        """After a hello of its own: a report that the guard would take now."""
        before_ms = self.truth.clock() + ahead_ms
        hello = Hello(cluster_id=cluster, broker=self.broker, session_ms=self.session_ms)
        welcome = self.truth.hello(hello)
        return BrokerReport(
            cluster_id=cluster, broker=self.broker, session_ms=self.session_ms, sequence=1, epoch=welcome.epoch,
            challenge=welcome.challenge, clock_before_ms=before_ms, clock_after_ms=self.truth.clock() + ahead_ms,
            interval_ms=INTERVAL_MS, replicas=replicas, answers=answers,
        )  # fmt: skip

    def tells(self, *replicas: ReplicaReport, answers: tuple[Answered, ...] = ()) -> Receipt:
        return self.truth.report(self.made(*replicas, answers=answers))


def looked(truth: AgentTruth, *topics: TopicSeen, brokers: tuple[int, ...] = BROKERS) -> None:
    truth.learn(CLUSTER, brokers, topics or (topic_seen(),))
