"""What all agents together prove: MTRO and MXRO of each partition, who holds them back and since when, what is gone everywhere.

Takes reports and looks, gives values. A minimum of reports is true only if all of them held at one moment; brokers that know
nothing of the protocol tell nobody when they lose a disk and copy again, so that moment is proved here: a claim holds
from the time its report came at the latest, and at least until the challenge that the agent's newest report answers. The
leader of `coordination/` says who blocks. No network; thread-safe, because every report comes on a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from headstone.coordination.guard_values import PartitionSeen, TopicSeen
from headstone.coordination.leader import Blocker, Elected, Leader, MembersChanged, Reported
from headstone.coordination.messages import Report
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks, group_watermarks
from headstone.guard.authentication import Challenges, Refusal, Refused
from headstone.guard.clocks import Reading
from headstone.guard.reports import (
    QUESTIONS_MAX,
    Answered,
    BrokerReport,
    Hello,
    Question,
    Receipt,
    ReplicaReport,
    Welcome,
)
from headstone.log.topic_partition import TopicPartition

GUARD = -1
"""The guard among the members of a partition: it leads the conversation and holds no replica."""
NOTHING = GroupWatermarks(mtro=0, mxro=0)
SILENT_INTERVALS = 3
CLAIMS_MAX = 3
"""Of a member that are remembered: what counts, what will count next, the newest."""
LEFT_MAX = 20

NOT_WATCHED = "not a partition of a compacted topic that the guard watches"
NOT_A_MEMBER = "this broker has no replica of it by the cluster's word"


def steady_clock() -> Callable[[], int]:
    """Milliseconds since 1970 that never step back."""
    began_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
    return lambda: began_ms + time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTruth:
    """One replica as its agent told it last; `problem` says why it does not count, None if it does."""

    broker: int
    heard_ms: int | None
    log_start: int | None
    log_end: int | None
    mcco: int | None
    mxfo: int | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTruth:
    """Below mtro no replica holds a record that a newer one below it supersedes; below mxro none holds transactional data.

    settled_ms is the latest moment of which all replicas have told, None if some never did.
    """

    partition: TopicPartition
    mtro: int
    mxro: int
    settled_ms: int | None
    members: tuple[MemberTruth, ...]
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSeen:
    """One agent; `clock` is its machine's."""

    broker: int
    session_ms: int
    heard_ms: int
    interval_ms: int
    replicas: int
    clock: Reading
    silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """A record by its offset: `holders` still have it, of `unknown` nothing is known, the others have it no more.

    Where a tombstone is gone everywhere and lies below MTRO, nothing that it deleted is left on any replica.
    """

    partition: TopicPartition
    offset: int
    holders: tuple[int, ...]
    unknown: tuple[int, ...]
    below_mtro: bool

    @property
    def gone_everywhere(self) -> bool:
        return not self.holders and not self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    received_ms: int
    watermarks: ReplicaWatermarks


@dataclass(slots=True)
class _Agent:
    report: BrokerReport
    given_ms: int
    received_ms: int


@dataclass(slots=True)
class _Member:
    """What one broker's agent told of one partition. asked_ms: its files were read after this moment."""

    replica: ReplicaReport
    asked_ms: int
    received_ms: int
    claims: list[_Claim] = field(default_factory=list)
    lie: str | None = None
    answers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """By offset: when it was told, and whether a record is there."""

    def take(self, replica: ReplicaReport, asked_ms: int, received_ms: int) -> None:
        if replica.incarnation != self.replica.incarnation:
            self.claims, self.answers = [], {}
        self.replica, self.asked_ms, self.received_ms, self.lie = replica, asked_ms, received_ms, None
        now = ReplicaWatermarks(mcco=replica.mcco, mxfo=replica.mxfo)
        if not self.claims or self.claims[-1].watermarks != now:
            self.claims = [*self.claims[: CLAIMS_MAX - 1], _Claim(received_ms=received_ms, watermarks=now)]

    def answer(self, offset: int, holds: bool, now_ms: int, asked: set[int]) -> None:
        """The first time that it said so counts, as long as it says so."""
        told = self.answers.get(offset)
        kept = {known: answer for known, answer in self.answers.items() if known in asked}
        self.answers = {**kept, offset: told if told is not None and told[1] == holds else (now_ms, holds)}

    def claim_at(self, moment_ms: int) -> ReplicaWatermarks | None:
        """What it had claimed by then; what came before is forgotten."""
        settled = [claim for claim in self.claims if claim.received_ms <= moment_ms]
        if not settled:
            return None
        self.claims = self.claims[len(settled) - 1 :]
        return settled[-1].watermarks


class _Group:
    """One partition: its members by the cluster's word, and what their agents told."""

    def __init__(self, partition: TopicPartition, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.members: dict[int, _Member] = {}
        self.brokers: tuple[int, ...] = ()
        self.leading: int | None = None
        self.committed_end: int | None = None
        self.topic: ReplicaReport | None = None
        """As the partition's leader holds it."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.members = {}
        self.leader = Leader(GUARD)
        self.group = NOTHING
        self.settled_ms: int | None = None

    def look(self, seen: PartitionSeen, told_before_ms: int, now_ms: int) -> None:
        """told_before_ms: what agents told before this moment is older than the look."""
        self.brokers = tuple(replica.broker for replica in seen.replicas)
        if seen.committed_end is not None:
            self.committed_end = seen.committed_end
        self.leading = seen.leader
        self._follow_topic()
        self.members = {broker: member for broker, member in self.members.items() if broker in self.brokers}
        ends = {replica.broker: replica.log_end for replica in seen.replicas}
        for broker, member in self.members.items():
            if member.received_ms < told_before_ms:
                member.lie = _lie(member.replica, ends[broker], seen.committed_end)
        self._seat(now_ms)
        self.settle()

    def _follow_topic(self) -> None:
        """The leader holds the topic that there is now; one of the same name that was deleted proves nothing about it."""
        leader = None if self.leading is None else self.members.get(self.leading)
        if leader is None:
            return
        if self.topic is not None and self.topic.topic_id != leader.replica.topic_id:
            members = {b: m for b, m in self.members.items() if m.replica.topic_id == leader.replica.topic_id}
            self._begin_anew()
            self.members = members
            self._seat(leader.received_ms)
        self.topic = leader.replica

    def _seat(self, now_ms: int) -> None:
        if not self.brokers:
            return
        log_end = self.committed_end or 0
        if self.leader.leading:
            changed = MembersChanged(members=self.brokers, readers=(), log_end=log_end, now_ms=now_ms)
            self.leader.step(changed)
            return
        elected = Elected(
            leader_epoch=self.epoch, members=self.brokers, readers=(), group=NOTHING, log_end=log_end, now_ms=now_ms
        )
        self.leader.step(elected)

    def take(self, broker: int, replica: ReplicaReport, asked_ms: int, received_ms: int) -> None:
        known = self.members.get(broker)
        if known is None:
            known = self.members[broker] = _Member(replica, asked_ms, received_ms)
        known.take(replica, asked_ms, received_ms)
        self._follow_topic()
        self.settle()

    def problem(self, broker: int) -> str | None:
        member = self.members.get(broker)
        if member is None:
            return "no agent has told of it"
        if self.topic is None:
            return "no agent of the partition's leader has told of it"
        if member.replica.topic_id != self.topic.topic_id:
            return "its files are of another topic of this name"
        return member.lie

    def settle(self) -> None:
        """The newest moment that all have told of, and what all had claimed by then."""
        for broker, member in self.members.items():
            if self.problem(broker) is None:
                latest = self._believed(ReplicaWatermarks(mcco=member.replica.mcco, mxfo=member.replica.mxfo))
                report = Report(
                    member=broker, incarnation=member.replica.incarnation, leader_epoch=self.epoch, mcco=latest.mcco,
                    mxfo=latest.mxfo,
                )  # fmt: skip
                self.leader.step(Reported(report=report, now_ms=member.received_ms))
        if not self.brokers or any(self.problem(broker) for broker in self.brokers):
            return
        moment_ms = min(self.members[broker].asked_ms for broker in self.brokers)
        claims = [self.members[broker].claim_at(moment_ms) for broker in self.brokers]
        known = [self._believed(claim) for claim in claims if claim is not None]
        if len(known) < len(claims):
            return
        lowest = group_watermarks(known)
        self.group = GroupWatermarks(mtro=max(self.group.mtro, lowest.mtro), mxro=max(self.group.mxro, lowest.mxro))
        self.settled_ms = max(self.settled_ms or 0, moment_ms)

    def relied_on(self) -> dict[int, ReplicaWatermarks]:
        """What holds for all holds for each; and it lasts, so an agent that fell silent since does not matter."""
        if self.settled_ms is None:
            return {}
        lowest = ReplicaWatermarks(mcco=self.group.mtro, mxfo=self.group.mxro)
        return {broker: lowest for broker in self.brokers if self.problem(broker) is None}

    def _believed(self, claim: ReplicaWatermarks) -> ReplicaWatermarks:
        """No more than the cluster itself has said to be committed."""
        bound = self.committed_end or 0
        return ReplicaWatermarks(mcco=min(claim.mcco, bound), mxfo=min(claim.mxfo, bound))

    def told(self, silent: frozenset[int]) -> PartitionTruth:
        return PartitionTruth(
            partition=self.partition, mtro=self.group.mtro, mxro=self.group.mxro, settled_ms=self.settled_ms,
            members=tuple(self._told_of(broker, broker in silent) for broker in self.brokers),
            blockers=tuple(self._blockers(silent)),
        )  # fmt: skip

    def _told_of(self, broker: int, silent: bool) -> MemberTruth:
        member = self.members.get(broker)
        problem = self.problem(broker) or ("its agent is silent" if silent else None)
        if member is None:
            return MemberTruth(
                broker=broker, heard_ms=None, log_start=None, log_end=None, mcco=None, mxfo=None, problem=problem
            )
        replica = member.replica
        return MemberTruth(
            broker=broker, heard_ms=member.received_ms, log_start=replica.log_start, log_end=replica.log_end,
            mcco=replica.mcco, mxfo=replica.mxfo, problem=problem,
        )  # fmt: skip

    def _blockers(self, silent: frozenset[int]) -> list[Blocker]:
        """Those at the minimum; and those without whose word no minimum counts."""
        blockers = {(blocker.kind, blocker.who): self._worded(blocker) for blocker in self.leader.blockers()}
        for broker in self.brokers:
            member = self.members.get(broker)
            problem = self.problem(broker) or ("its agent is silent" if broker in silent else None)
            if problem is None or not self.leader.leading:
                continue
            seat = self.leader.seats[broker]
            for kind, held in (("tombstones", self.group.mtro), ("markers", self.group.mxro)):
                blockers[kind, broker] = Blocker(
                    kind=kind, who=broker, at=held, behind=max(0, (self.committed_end or 0) - held),
                    since_ms=seat.moved_ms if member is None else member.received_ms,
                    heard_ms=None if member is None else member.received_ms, reason=problem,
                )  # fmt: skip
        return list(blockers.values())

    def _worded(self, blocker: Blocker) -> Blocker:
        """A replica without transactional data is held by what it knows to be committed, which it writes down now and then."""
        member = self.members.get(blocker.who) if isinstance(blocker.who, int) else None
        high = None if member is None else member.replica.high_watermark
        if blocker.kind == "markers" and high is not None and blocker.at >= high:
            return replace(blocker, reason="has written down no higher high watermark yet")
        return blocker

    def whereabouts(self, offset: int) -> Whereabouts:
        """Counts only what all told of one moment: a record that one has lost may just be copied to it by another."""
        holders, unknown = [], []
        for broker in self.brokers:
            member = self.members.get(broker)
            told_ms, holds = (None, True) if member is None else member.answers.get(offset, (None, True))
            if self.problem(broker) or told_ms is None:
                unknown.append(broker)
            elif holds:
                holders.append(broker)
            elif self.settled_ms is None or told_ms > self.settled_ms:
                unknown.append(broker)
        return Whereabouts(
            partition=self.partition, offset=offset, holders=tuple(holders), unknown=tuple(unknown),
            below_mtro=offset < self.group.mtro,
        )  # fmt: skip


def _lie(replica: ReplicaReport, log_end: int | None, committed_end: int | None) -> str | None:
    """What the cluster said later must not be less than what the agent said before."""
    if log_end is not None and replica.log_end > log_end:
        return f"its agent tells of a log up to {replica.log_end}, its broker of one up to {log_end}"
    claimed = max(replica.mcco, replica.mxfo)
    if committed_end is not None and claimed > committed_end:
        return f"its agent claims {claimed}, the cluster has committed {committed_end}"
    return None


class Truth:
    """All of it, for one cluster and one life of the guard."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self.clock = clock or steady_clock()
        self.epoch = self.clock()
        self._refusals: Counter[Refusal] = Counter()
        self._challenges = Challenges()
        self._lock = threading.Lock()
        self._cluster_id: str | None = None
        self._brokers: frozenset[int] = frozenset()
        self._learnt_ms = 0
        self._groups: dict[TopicPartition, _Group] = {}
        self._agents: dict[int, _Agent] = {}
        self._questions: deque[Question] = deque(maxlen=QUESTIONS_MAX)

    def learn(self, cluster_id: str, brokers: Sequence[int], topics: Sequence[TopicSeen]) -> None:
        """A look at the cluster, which began after the one before had been learnt."""
        with self._lock:
            now_ms = self.clock()
            seen = {
                TopicPartition(topic.topic, partition.partition): partition
                for topic in topics
                if topic.compacted
                for partition in topic.partitions
            }
            replicas = {replica.broker for partition in seen.values() for replica in partition.replicas}
            self._cluster_id, self._brokers = cluster_id, frozenset({*brokers, *replicas})
            self._agents = {broker: agent for broker, agent in self._agents.items() if broker in self._brokers}
            self._groups = {at: self._groups.get(at) or _Group(at, self.epoch) for at in seen}
            for at, partition in seen.items():
                self._groups[at].look(partition, self._learnt_ms, now_ms)
            self._learnt_ms = now_ms

    def hello(self, hello: Hello) -> Welcome:
        with self._lock:
            self._check(hello.cluster_id, hello.broker, hello.session_ms)
            return Welcome(
                epoch=self.epoch, challenge=self._challenges.give(hello.broker, self.clock()),
                topics=tuple(sorted({at.topic for at in self._groups})), questions=tuple(self._questions),
            )  # fmt: skip

    def report(self, report: BrokerReport) -> Receipt:
        """Refused, or taken as far as it is about this cluster's watched partitions."""
        with self._lock:
            now_ms = self.clock()
            self._check(report.cluster_id, report.broker, report.session_ms)
            given_ms = self._challenges.moment_ms(report.broker, report.challenge, now_ms)
            known = self._agents.get(report.broker)
            if known is not None and given_ms <= known.given_ms:
                raise Refused(Refusal.REPLAYED, "this report, or a newer one of this broker, was taken already")
            if report.epoch != self.epoch:
                raise Refused(
                    Refusal.REPLAYED, "this report is for another life of the guard: begin again with a hello"
                )
            self._agents[report.broker] = _Agent(report, given_ms, now_ms)
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
            return Receipt(taken=len(report.replicas) - len(left), left=tuple(left[:LEFT_MAX]))

    def _check(self, cluster_id: str, broker: int, session_ms: int) -> None:
        if self._cluster_id is None:
            raise Refused(Refusal.NOT_READY, "the guard has not seen its cluster yet: come again")
        if cluster_id != self._cluster_id:
            of = f"these log directories are of cluster {cluster_id}, the guard's is {self._cluster_id}"
            raise Refused(Refusal.OTHER_CLUSTER, of)
        if broker not in self._brokers:
            raise Refused(Refusal.UNKNOWN_BROKER, f"the cluster knows no broker {broker}")
        known = self._agents.get(broker)
        if known is not None and session_ms < known.report.session_ms:
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
        """How many messages did not count, by reason."""
        with self._lock:
            return dict(self._refusals)

    def ask(self, partition: TopicPartition, offset: int) -> None:
        """Lets agents look for a record from their next report on; the oldest of too many questions is dropped."""
        question = Question(partition=partition, offset=offset)
        with self._lock:
            if question not in self._questions:
                self._questions.append(question)

    def whereabouts(self, partition: TopicPartition, offset: int) -> Whereabouts | None:
        """What agents have answered to `ask`; None if the partition is not watched."""
        with self._lock:
            group = self._groups.get(partition)
            return None if group is None else group.whereabouts(offset)

    def partitions(self) -> tuple[PartitionTruth, ...]:
        with self._lock:
            silent = self._silent()
            return tuple(self._groups[at].told(silent) for at in sorted(self._groups))

    def partition(self, partition: TopicPartition) -> PartitionTruth | None:
        with self._lock:
            group = self._groups.get(partition)
            return None if group is None else group.told(self._silent())

    def claims(self, partition: TopicPartition) -> dict[int, ReplicaWatermarks]:
        """By broker, what may be relied on of each: all of one moment. Nothing of a replica whose agent does not count."""
        with self._lock:
            group = self._groups.get(partition)
            return {} if group is None else group.relied_on()

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

    def clocks(self) -> tuple[Reading, ...]:
        """Of the brokers' machines, by what their agents said last."""
        with self._lock:
            return tuple(_reading(agent) for agent in self._agents.values())


def _reading(agent: _Agent) -> Reading:
    """The challenge was given after the one time was taken and before the other."""
    return Reading(
        earliest_ms=agent.report.clock_before_ms - agent.given_ms,
        latest_ms=agent.report.clock_after_ms - agent.given_ms,
    )
