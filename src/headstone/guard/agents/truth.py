"""What all agents together prove, for one cluster and one run of the guard: takes reports and looks, returns values.

Decides whose report counts: it must be of this cluster, from a broker that the cluster knows, and new. `partition_truth.py`
says what the reports on one partition prove. No network. Thread-safe, because each report arrives on its own thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headstone.agent.authentication import Challenges, Refusal, Refused
from headstone.agent.messages import (
    QUESTIONS_MAX,
    SPANS_MAX,
    Answered,
    BrokerReport,
    Hello,
    Question,
    Receipt,
    SpanAnswered,
    SpanQuestion,
    Welcome,
)
from headstone.coordination.guard_values import TopicSeen
from headstone.errors import UsageError
from headstone.guard.agents.partition_truth import AgentGroup, PartitionTruth, Whereabouts
from headstone.guard.looks.clock_skew import ClockReading
from headstone.log.topic_partition import TopicPartition

SILENT_INTERVALS = 3
LEFT_MAX = 20
CLOCK_MS_MAX = 86_400_000
"""Larger differences are refused. A clock difference makes the guard hold earlier, and it remembers it: no agent may push that
arbitrarily far."""

NOT_WATCHED = "not a partition of a compacted topic that the guard watches"
NOT_A_MEMBER = "this broker has no replica of it by the cluster's word"


def steady_clock() -> Callable[[], int]:
    """Milliseconds since 1970 that never step back."""
    began_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
    return lambda: began_ms + time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSeen:
    """One agent; `clock` is that of its machine."""

    broker: int
    session_ms: int
    heard_ms: int
    interval_ms: int
    replicas: int
    clock: ClockReading
    silent: bool


@dataclass(slots=True)
class _Agent:
    report: BrokerReport
    given_ms: int
    received_ms: int


class AgentTruth:
    """Everything that agents prove, for one cluster and one run of the guard."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self.clock = clock or steady_clock()
        self.epoch = self.clock()
        self._refusals: Counter[Refusal] = Counter()
        self._challenges = Challenges()
        self._lock = threading.Lock()
        self._cluster_id: str | None = None
        self._brokers: frozenset[int] = frozenset()
        self._learnt_ms = 0
        self._groups: dict[TopicPartition, AgentGroup] = {}
        self._agents: dict[int, _Agent] = {}
        self._questions: deque[Question] = deque(maxlen=QUESTIONS_MAX)
        self._spans: dict[SpanQuestion, dict[int, SpanAnswered]] = {}
        """By question, the answer of each broker's agent."""

    def learn(
        self, cluster_id: str, brokers: Sequence[int], topics: Sequence[TopicSeen], *, whole: bool = True
    ) -> None:
        """Takes a look that began after the previous one was learnt. `whole`: it covers everything that is watched."""
        with self._lock:
            now_ms = self.clock()
            seen = {
                TopicPartition(topic.topic, partition.partition): partition
                for topic in topics
                if topic.compacted
                for partition in topic.partitions
            }
            kept = {} if whole else self._groups
            self._groups = {
                **kept,
                **{
                    topic_partition: self._groups.get(topic_partition) or AgentGroup(topic_partition, self.epoch)
                    for topic_partition in seen
                },
            }
            for topic_partition, partition in seen.items():
                self._groups[topic_partition].look(partition, self._learnt_ms, now_ms)
            assigned = {broker for group in self._groups.values() for broker in group.brokers}
            self._cluster_id, self._brokers = cluster_id, frozenset({*brokers, *assigned})
            self._agents = {broker: agent for broker, agent in self._agents.items() if broker in self._brokers}
            self._learnt_ms = now_ms

    def hello(self, hello: Hello) -> Welcome:
        with self._lock:
            self._check(hello.cluster_id, hello.broker, hello.session_ms)
            return Welcome(
                epoch=self.epoch, challenge=self._challenges.give(hello.broker, self.clock()),
                topics=tuple(sorted({at.topic for at in self._groups})), questions=tuple(self._questions),
                spans=tuple(self._spans),
            )  # fmt: skip

    def report(self, report: BrokerReport) -> Receipt:
        """Refuses the report, or takes the part of it that is about watched partitions of this cluster."""
        with self._lock:
            now_ms = self.clock()
            self._check(report.cluster_id, report.broker, report.session_ms)
            given_ms = self._challenges.moment_ms(report.broker, report.challenge, now_ms)
            agent_before = self._agents.get(report.broker)
            if agent_before is not None and given_ms <= agent_before.given_ms:
                raise Refused(Refusal.REPLAYED, "this report, or a newer one from this broker, was accepted already")
            if report.epoch != self.epoch:
                raise Refused(
                    Refusal.REPLAYED, "the guard was restarted since this report was prepared: start over with a hello"
                )
            agent = _Agent(report, given_ms, now_ms)
            before_ms, after_ms = report.clock_before_ms - given_ms, report.clock_after_ms - given_ms
            if not -CLOCK_MS_MAX <= before_ms <= after_ms <= CLOCK_MS_MAX:
                raise Refused(
                    Refusal.WRONG_CLOCK, "the clock of this agent's host is more than a day off, or was set back"
                )
            self._agents[report.broker] = agent
            left: list[str] = []
            for replica in report.replicas:
                group = self._groups.get(replica.partition)
                if group is None:
                    left.append(f"{replica.partition}: {NOT_WATCHED}")
                elif report.broker not in group.brokers:
                    left.append(f"{replica.partition}: {NOT_A_MEMBER}")
                else:
                    group.take(report.broker, replica, given_ms, now_ms)
            self._answered(report.broker, report.answers, now_ms)
            for answer in report.spans:
                if answer.question in self._spans:
                    self._spans[answer.question][report.broker] = answer
            return Receipt(taken=len(report.replicas) - len(left), left=tuple(left[:LEFT_MAX]))

    def _check(self, cluster_id: str, broker: int, session_ms: int) -> None:
        if self._cluster_id is None:
            raise Refused(Refusal.NOT_READY, "the guard has not looked at its cluster yet: retry later")
        if cluster_id != self._cluster_id:
            of = f"these log directories are of cluster {cluster_id}, the guard's is {self._cluster_id}"
            raise Refused(Refusal.OTHER_CLUSTER, of)
        if broker not in self._brokers:
            raise Refused(Refusal.UNKNOWN_BROKER, f"the cluster has no broker {broker}")
        agent = self._agents.get(broker)
        # A silent agent no longer counts, whatever its clock says about when it began.
        heard = agent is not None and broker not in self._silent()
        if heard and agent is not None and session_ms < agent.report.session_ms:
            second = f"another agent reports for broker {broker}, and began later: end one of them"
            raise Refused(Refusal.SECOND_AGENT, second)

    def _answered(self, broker: int, answers: Sequence[Answered], now_ms: int) -> None:
        for answer in answers:
            partition = answer.question.partition
            member = self._groups[partition].members.get(broker) if partition in self._groups else None
            if member is not None and answer.question in self._questions:
                offsets = {question.offset for question in self._questions if question.partition == partition}
                member.answer(answer.question.offset, answer.holds, now_ms, offsets)

    def refused(self, kind: Refusal) -> None:
        with self._lock:
            self._refusals[kind] += 1

    def refusals(self) -> dict[Refusal, int]:
        """Refused messages, by reason."""
        with self._lock:
            return dict(self._refusals)

    def ask(self, partition: TopicPartition, offset: int) -> None:
        """Lets agents look for a record from their next report on. If there are too many questions, the oldest is dropped."""
        question = Question(partition=partition, offset=offset)
        with self._lock:
            if question not in self._questions:
                self._questions.append(question)

    def whereabouts(self, partition: TopicPartition, offset: int) -> Whereabouts | None:
        """What agents answered to `ask`; None if the partition is not watched."""
        with self._lock:
            group = self._groups.get(partition)
            return None if group is None else group.whereabouts(offset)

    def records(self) -> tuple[Whereabouts, ...]:
        """All records that were asked about, oldest question first."""
        with self._lock:
            asked = [question for question in self._questions if question.partition in self._groups]
            return tuple(self._groups[question.partition].whereabouts(question.offset) for question in asked)

    def partitions(self) -> tuple[PartitionTruth, ...]:
        with self._lock:
            silent = self._silent()
            return tuple(self._groups[at].told(silent) for at in sorted(self._groups))

    def partition(self, partition: TopicPartition) -> PartitionTruth | None:
        with self._lock:
            group = self._groups.get(partition)
            return None if group is None else group.told(self._silent())

    @contextmanager
    def asking(self, question: SpanQuestion) -> Iterator[None]:
        """Lets agents read that span from their next report on. Raises UsageError if too many spans are asked about already."""
        with self._lock:
            if len(self._spans) >= SPANS_MAX:
                raise UsageError(f"agents are already working on {SPANS_MAX} ranges")
            self._spans[question] = {}
        try:
            yield
        finally:
            with self._lock:
                self._spans.pop(question, None)

    def answers(self, question: SpanQuestion) -> dict[int, SpanAnswered]:
        """Answers so far to a question that is being asked, by broker; only of brokers whose report counts."""
        with self._lock:
            group = self._groups.get(question.partition)
            digests = self._spans.get(question, {})
            return (
                {} if group is None else {b: digests[b] for b in group.brokers if b in digests and not group.problem(b)}
            )

    def interval_ms(self, partition: TopicPartition) -> int:
        """The interval of the slowest agent beside the partition's replicas."""
        with self._lock:
            group = self._groups.get(partition)
            agents = [self._agents[b] for b in (group.brokers if group is not None else ()) if b in self._agents]
            return max((agent.report.interval_ms for agent in agents), default=0)

    def beside_all(self, partition: TopicPartition) -> tuple[int, ...] | None:
        """All brokers that have a replica; None unless each has an agent that is not silent and whose report counts."""
        with self._lock:
            group, silent = self._groups.get(partition), self._silent()
            if group is None or not group.brokers:
                return None
            heard = all(group.problem(b) is None and b in self._agents and b not in silent for b in group.brokers)
            return group.brokers if heard else None

    def agents(self) -> tuple[AgentSeen, ...]:
        with self._lock:
            silent = self._silent()
            return tuple(self._agent(broker, broker in silent) for broker in sorted(self._agents))

    def _agent(self, broker: int, silent: bool) -> AgentSeen:
        agent = self._agents[broker]
        return AgentSeen(
            broker=broker, session_ms=agent.report.session_ms, heard_ms=agent.received_ms,
            interval_ms=agent.report.interval_ms, replicas=len(agent.report.replicas),
            clock=_reading(agent), silent=silent,
        )  # fmt: skip

    def _silent(self) -> frozenset[int]:
        now_ms = self.clock()
        return frozenset(
            broker
            for broker, agent in self._agents.items()
            if now_ms - agent.received_ms > SILENT_INTERVALS * agent.report.interval_ms
        )

    def clocks(self) -> tuple[ClockReading, ...]:
        """Clocks of the brokers' machines, as their agents reported them last. Leaves out silent agents: a clock that was wrong
        then may be right by now, and its difference is remembered for as long as it matters."""
        with self._lock:
            silent = self._silent()
            return tuple(_reading(agent) for broker, agent in self._agents.items() if broker not in silent)


def _reading(agent: _Agent) -> ClockReading:
    """The guard gave the challenge after the first time was taken and before the second."""
    return ClockReading(
        earliest_ms=agent.report.clock_before_ms - agent.given_ms,
        latest_ms=agent.report.clock_after_ms - agent.given_ms,
    )
