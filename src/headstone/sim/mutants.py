"""The protocol and the rules, each with one thing wrong, to show that the checkers can fail.

A mutant is the real broker with one part replaced. `seed` is the first that finds it, of 200 steps. `campaigns/sim_mutants.py`
checks that one of the first `SEEDS_MAX` does, whenever the simulator changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstone.coordination import leader as leading
from headstone.coordination import replica as following
from headstone.coordination.leader import Leader, Seat
from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.replica import Replica
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks
from headstone.retention.policy import NO_LIMIT, Policy
from headstone.sim.broker import PartitionMetadata, Parts, coordinated_policy
from headstone.sim.partition_log import PartitionLog

SEEDS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    about: str
    parts: Parts
    seed: int | None
    """None if the race is too rare for chance; then the exhaustive exploration finds it."""


def replicated(log: PartitionLog) -> ReplicaWatermarks:
    return ReplicaWatermarks(mcco=log.high_watermark, mxfo=log.watermarks().mxfo)


def freed_by_cleaning(log: PartitionLog) -> ReplicaWatermarks:
    proved = log.watermarks()
    return ReplicaWatermarks(mcco=proved.mcco, mxfo=max(proved.mxfo, log.first_dirty))


def blind_to_empty_batches(log: PartitionLog) -> ReplicaWatermarks:
    """Looks only at records for MXFO, although a batch without any still opens a transaction when it is replayed."""
    held = (b.base for b in log.batches(log.log_start) if b.transactional and b.is_data and b.records)
    free = min(next(held, log.high_watermark), log.high_watermark)
    return ReplicaWatermarks(mcco=log.watermarks().mcco, mxfo=max(free, log.log_start))


def markers_by_mtro(policy: Policy, group: GroupWatermarks) -> Policy:
    return replace(coordinated_policy(policy, group), markers_below=group.mtro)


def inclusive(policy: Policy, group: GroupWatermarks) -> Policy:
    return coordinated_policy(policy, GroupWatermarks(mtro=group.mtro + 1, mxro=group.mxro + 1))


def no_retention(policy: Policy, group: GroupWatermarks) -> Policy:
    return replace(coordinated_policy(policy, group), delete_retention_ms=0)


def bits_left(policy: Policy, group: GroupWatermarks) -> Policy:
    return replace(coordinated_policy(policy, group), plain_below=0)


def tombstones_by_time(policy: Policy, group: GroupWatermarks) -> Policy:
    return replace(coordinated_policy(policy, group), tombstones_below=NO_LIMIT)


def markers_by_time(policy: Policy, group: GroupWatermarks) -> Policy:
    return replace(coordinated_policy(policy, group), markers_below=NO_LIMIT)


def in_sync_only(metadata: PartitionMetadata) -> tuple[int, ...]:
    return metadata.isr


class ReachableOnly(Leader):
    """Takes the minimum over the members that answered the last poll."""

    def step(self, event: leading.Event) -> list[leading.Effect]:
        if isinstance(event, leading.Tick):
            for member, seat in self.seats.items():
                seat.heard_ms = seat.heard_ms if member == self.member else None
        return super().step(event)

    def _counted(self) -> list[tuple[int, Seat]]:
        return [(m, seat) for m, seat in self.seats.items() if seat.heard_ms is not None] or super()._counted()


class Maximum(Leader):
    """Takes the fastest member's claim."""

    def _counted(self) -> list[tuple[int, Seat]]:
        heard = [(m, seat) for m, seat in self.seats.items() if seat.watermarks is not None]
        best = max(heard, key=lambda pair: pair[1].watermarks.mcco if pair[1].watermarks else 0, default=None)
        return super()._counted() if best is None else [best]


class UnheardNotCounted(Leader):
    """Ignores members that never reported."""

    def _counted(self) -> list[tuple[int, Seat]]:
        return [(m, seat) for m, seat in self.seats.items() if seat.watermarks is not None] or super()._counted()


class MayFall(Leader):
    """Takes the present minimum, whatever it was before."""

    def _recompute(self) -> list[leading.Effect]:
        now = GroupWatermarks(
            mtro=min(value for _, value in self._mccos()), mxro=min(value for _, value in self._mxfos())
        )
        changed, self.group = now != self.group, now
        return self._polls(answer=False) if changed else []


class TakesAnything(Replica):
    """Also accepts lower watermarks from a leader."""

    def _polled(self, poll: Poll) -> list[following.Effect]:
        self.group = GroupWatermarks(mtro=poll.mtro, mxro=poll.mxro)
        return super()._polled(poll)


class AnyIncarnation(Leader):
    """Accepts reports of any incarnation."""

    def _followed(self, event: leading.Followed) -> None:
        pass

    def _reported(self, report: Report, now_ms: int) -> list[leading.Effect]:
        seat = self.seats.get(report.member)
        return super()._reported(replace(report, incarnation=seat.incarnation if seat else 0), now_ms)


class SameForEver(Replica):
    """Never becomes a new incarnation, because identity is not on disk: the leader keeps counting what a lost disk had
    claimed."""

    def _started(self, event: following.Started) -> list[following.Effect]:
        return super()._started(replace(event, fresh=1))

    def _truncated(self, local: ReplicaWatermarks, fresh: int) -> list[following.Effect]:
        self._local = local
        return []


class NewcomerAtLogEnd(Replica):
    """A new disk claims what it has copied as clean."""

    def __init__(self, member: int) -> None:
        super().__init__(member)
        self._newcomer = False

    def step(self, event: following.Event) -> list[following.Effect]:
        if isinstance(event, following.Started):
            self._newcomer = event.durable is None
        if isinstance(event, following.Progressed) and self._newcomer:
            local = event.local
            event = following.Progressed(local=ReplicaWatermarks(mcco=max(local.mcco, local.mxfo), mxfo=local.mxfo))
        return super().step(event)


class AnswersEveryone(Replica):
    """Old leaders get reports too."""

    def _polled(self, poll: Poll) -> list[following.Effect]:
        before, self.leader_epoch = self.leader_epoch, -1
        effects = super()._polled(poll)
        self.leader_epoch = max(before, self.leader_epoch)
        return effects


class TellsOnlyRises(Leader):
    """Polls carry nothing, so a new leader does not repeat what the old one may have failed to tell."""

    def _polls(self, *, answer: bool) -> list[leading.Effect]:
        if not answer:
            return super()._polls(answer=False)
        silent = Poll(leader=self.member, leader_epoch=self.leader_epoch, mtro=0, mxro=0)
        return [Send(to=member, message=silent) for member in self.seats]


class GroupNotPersisted(Replica):
    """After a restart nothing is removable until a leader says so again."""

    def _started(self, event: following.Started) -> list[following.Effect]:
        effects = super()._started(event)
        self.group = GroupWatermarks(mtro=0, mxro=0)
        return effects


class HoldsIgnored(Leader):
    def _mccos(self) -> list[tuple[int | str, int]]:
        return [(who, value) for who, value in super()._mccos() if isinstance(who, int)]


class OldVersionCounted(Leader):
    """Takes a report without MXFO to mean that there are no transactions."""

    def _reported(self, report: Report, now_ms: int) -> list[leading.Effect]:
        return super()._reported(replace(report, mxfo=NO_LIMIT) if report.mxfo is None else report, now_ms)


def _mutant(name: str, about: str, seed: int | None, **parts: object) -> Mutant:
    return Mutant(name=name, about=about, parts=Parts(**parts), seed=seed)  # type: ignore[arg-type]


_ALL: tuple[Mutant, ...] = (
    _mutant("replicated-not-compacted", "MCCO is what was replicated, not what was compacted", 2, prove=replicated),
    _mutant("markers-by-mtro", "markers are guarded by MTRO instead of MXRO", 145, policy=markers_by_mtro),
    _mutant("reachable-only", "minimum over the members that answered the last poll", 0, leader=ReachableOnly),
    _mutant("maximum", "the fastest member decides instead of the slowest", 0, leader=Maximum),
    _mutant("unheard-not-counted", "members never heard of do not count", 8, leader=UnheardNotCounted),
    _mutant("learners-ignored", "only in-sync members count", 0, members=in_sync_only),
    _mutant("newcomer-at-log-end", "a newcomer claims what it has copied as clean", 2, replica=NewcomerAtLogEnd),
    _mutant("watermark-may-fall", "watermarks follow the minimum down", 1, leader=MayFall, replica=TakesAnything),
    _mutant("same-incarnation", "a lost disk or suffix does not make a new incarnation", 1, replica=SameForEver),
    _mutant("stale-incarnation", "reports of an old incarnation count", 154, leader=AnyIncarnation),
    _mutant("removal-at-or-below", "removal at <= instead of <", 41, policy=inclusive),
    _mutant("no-retention", "delete.retention.ms is ignored", 215, policy=no_retention),
    _mutant(
        "bit-not-cleared", "MXFO advances although transactional bits stay", 1, policy=bits_left, prove=freed_by_cleaning
    ),
    _mutant("tombstones-by-time", "MTRO is ignored", 1, policy=tombstones_by_time),
    _mutant("markers-by-time", "MXRO is ignored", 0, policy=markers_by_time),
    _mutant("told-once", "only rises are told: no repetition on polls or elections", 38, leader=TellsOnlyRises),
    _mutant(
        "group-forgotten", "as told-once, and a restart forgets the group's watermarks", 1, leader=TellsOnlyRises,
        replica=GroupNotPersisted,
    ),
    _mutant("holds-ignored", "declared readers do not count", 206, leader=HoldsIgnored),
    _mutant("old-version-counted", "a report without MXFO counts as no transactions", 393, leader=OldVersionCounted),
    _mutant("old-leaders-answered", "members report to deposed leaders", None, replica=AnswersEveryone),
    _mutant("old-log-kept", "a removed member that is added again keeps its old log", 36, keeps_old_membership=True),
    _mutant("stalls-on-plain", "plain data inside an open transaction stops a follower", 12, stalls_on_plain=True),
    _mutant("empty-batches-ignored", "MXFO overlooks batches without records", 4, prove=blind_to_empty_batches),
)  # fmt: skip

MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _ALL}
