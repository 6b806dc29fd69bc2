"""What the agents of one partition's replicas prove: how far all have come at one moment, who holds that back, what is gone.

A minimum of reports is true only if all of them held at the same moment. Brokers do not know the protocol, and report neither a
lost disk nor a new copy, so that moment must be proved: a claim is true from the arrival of its report, or earlier, until at
least the moment of the challenge that the agent's newest report answers. The leader in `coordination/` finds the blockers.
`truth.py` decides whose reports count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headstone.agent.messages import GUARD, ReplicaReport
from headstone.coordination.guard_values import PartitionSeen
from headstone.coordination.leader import Blocker, Elected, Leader, MembersChanged, Reported
from headstone.coordination.messages import Report
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks, group_watermarks
from headstone.log.topic_partition import TopicPartition

NOTHING = GroupWatermarks(mtro=0, mxro=0)
SILENT = "its agent is silent"
CLAIMS_MAX = 3
"""Remembered claims per member: the one that counts, the one that will count next, and the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberTruth:
    """One replica as its agent reported it last. `problem`: why the report does not count; None if it does."""

    broker: int
    heard_ms: int | None
    log_start: int | None
    log_end: int | None
    mcco: int | None
    mxfo: int | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalBlocker:
    """A replica that holds back a watermark: "tombstones" is MTRO, "markers" is MXRO.

    `behind` counts offsets to the next replica, or to the committed end. `since_ms` is its last progress, `heard_ms` when its
    agent last reported it.
    """

    kind: str
    broker: int
    watermark: int
    behind: int
    since_ms: int
    heard_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTruth:
    """Below `mtro` no replica holds a record that a newer one below it supersedes; below `mxro` none holds transactional data.

    `settled_ms` is the latest moment that all replicas have reported on; None if some never did.
    """

    partition: TopicPartition
    mtro: int
    mxro: int
    settled_ms: int | None
    members: tuple[MemberTruth, ...]
    blockers: tuple[RemovalBlocker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """One record, by its offset: `holders` still have it, `unknown` may have it, the other replicas do not.

    If a tombstone is gone everywhere and lies below MTRO, nothing that it deleted is left on any replica.
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
class ReplicaClaim:
    received_ms: int
    watermarks: ReplicaWatermarks


@dataclass(slots=True)
class Member:
    """What one broker's agent reported of one partition. `asked_ms`: the agent read the files after this moment."""

    replica: ReplicaReport
    asked_ms: int
    received_ms: int
    claims: list[ReplicaClaim] = field(default_factory=list)
    lie: str | None = None
    answers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """By offset: when it was reported, and whether the record is there."""

    def take(self, replica: ReplicaReport, asked_ms: int, received_ms: int) -> None:
        if replica.incarnation != self.replica.incarnation:
            self.claims, self.answers = [], {}
        self.replica, self.asked_ms, self.received_ms, self.lie = replica, asked_ms, received_ms, None
        now = ReplicaWatermarks(mcco=replica.mcco, mxfo=replica.mxfo)
        if not self.claims or self.claims[-1].watermarks != now:
            self.claims = [*self.claims[: CLAIMS_MAX - 1], ReplicaClaim(received_ms=received_ms, watermarks=now)]

    def answer(self, offset: int, holds: bool, now_ms: int, asked: set[int]) -> None:
        """While the answer stays the same, the time of the first one counts."""
        is_there = self.answers.get(offset)
        kept = {known: answer for known, answer in self.answers.items() if known in asked}
        self.answers = {**kept, offset: is_there if is_there is not None and is_there[1] == holds else (now_ms, holds)}

    def claim_at(self, moment_ms: int) -> ReplicaWatermarks | None:
        """The newest claim received by `moment_ms`; forgets older ones."""
        settled = [claim for claim in self.claims if claim.received_ms <= moment_ms]
        if not settled:
            return None
        self.claims = self.claims[len(settled) - 1 :]
        return settled[-1].watermarks


class AgentGroup:
    """One partition: its members according to the cluster, and what their agents reported."""

    def __init__(self, partition: TopicPartition, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.members: dict[int, Member] = {}
        self.brokers: tuple[int, ...] = ()
        self.leading: int | None = None
        self.committed_end: int | None = None
        self.topic: ReplicaReport | None = None
        """The leader's replica, whose topic id counts."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.members = {}
        self.leader = Leader(GUARD)
        self.group = NOTHING
        self.settled_ms: int | None = None

    def look(self, seen: PartitionSeen, told_before_ms: int, now_ms: int) -> None:
        """`told_before_ms`: reports from before this moment are older than the look, so the look can disprove them."""
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
        """The leader holds the current topic. Reports on a deleted topic of the same name prove nothing about it."""
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
        member = self.members.get(broker)
        if member is None:
            member = self.members[broker] = Member(replica, asked_ms, received_ms)
        member.take(replica, asked_ms, received_ms)
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
        """Finds the newest moment that all members have reported on, and takes the minimum of what they had claimed by then."""
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
        believed = [self._believed(claim) for claim in claims if claim is not None]
        if len(believed) < len(claims):
            return
        lowest = group_watermarks(believed)
        self.group = GroupWatermarks(mtro=max(self.group.mtro, lowest.mtro), mxro=max(self.group.mxro, lowest.mxro))
        self.settled_ms = max(self.settled_ms or 0, moment_ms)

    def _believed(self, claim: ReplicaWatermarks) -> ReplicaWatermarks:
        """Never more than what the cluster itself has said to be committed."""
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
        problem = self.problem(broker) or (SILENT if silent else None)
        if member is None:
            return MemberTruth(
                broker=broker, heard_ms=None, log_start=None, log_end=None, mcco=None, mxfo=None, problem=problem
            )
        replica = member.replica
        return MemberTruth(
            broker=broker, heard_ms=member.received_ms, log_start=replica.log_start, log_end=replica.log_end,
            mcco=replica.mcco, mxfo=replica.mxfo, problem=problem,
        )  # fmt: skip

    def _blockers(self, silent: frozenset[int]) -> list[RemovalBlocker]:
        """Replicas at the minimum, and those without whose report no minimum counts."""
        blockers = {(blocker.kind, blocker.who): self._worded(blocker) for blocker in self.leader.blockers()}
        for broker in self.brokers:
            member = self.members.get(broker)
            problem = self.problem(broker) or (SILENT if broker in silent else None)
            if problem is None or not self.leader.leading:
                continue
            seat = self.leader.seats[broker]
            for kind, held in (("tombstones", self.group.mtro), ("markers", self.group.mxro)):
                blockers[kind, broker] = RemovalBlocker(
                    kind=kind, broker=broker, watermark=held, behind=max(0, (self.committed_end or 0) - held),
                    since_ms=seat.moved_ms if member is None else member.received_ms,
                    heard_ms=None if member is None else member.received_ms, reason=problem,
                )  # fmt: skip
        return list(blockers.values())

    def _worded(self, blocker: Blocker) -> RemovalBlocker:
        """A replica without transactional data is held back by its checkpointed high watermark, which brokers write only now
        and then."""
        assert isinstance(blocker.who, int), "the guard declares no readers"
        member = self.members.get(blocker.who)
        high = None if member is None else member.replica.high_watermark
        waits = blocker.kind == "markers" and high is not None and blocker.watermark >= high
        return RemovalBlocker(
            kind=blocker.kind, broker=blocker.who, watermark=blocker.watermark, behind=blocker.behind,
            since_ms=blocker.since_ms, heard_ms=blocker.heard_ms,
            reason="has written down no higher high watermark yet" if waits else blocker.reason,
        )  # fmt: skip

    def whereabouts(self, offset: int) -> Whereabouts:
        """Counts only answers from before the settled moment: a replica that has lost a record may just be copying it from
        another."""
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
    """What the cluster said later must not be less than what the agent reported before."""
    if log_end is not None and replica.log_end > log_end:
        return f"its agent tells of a log up to {replica.log_end}, its broker of one up to {log_end}"
    claimed = max(replica.mcco, replica.mxfo)
    if committed_end is not None and claimed > committed_end:
        return f"its agent claims {claimed}, the cluster has committed {committed_end}"
    return None
