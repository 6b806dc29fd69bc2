"""One replica's part of coordinated compaction: what it claims, what it was told, and what must be on disk first.

Events in, effects out, in order: a claim is persisted before it is sent. No clock, no I/O. A replica never takes a claim back:
if its log can no longer keep one, it becomes a new incarnation (docs/rfcs/0001-coordinated-compaction.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks

NOTHING = ReplicaWatermarks(mcco=0, mxfo=0)
NOTHING_REMOVABLE = GroupWatermarks(mtro=0, mxro=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """What survives a crash. `claimed` is the highest claim that may have been reported in this incarnation."""

    incarnation: int
    claimed: ReplicaWatermarks
    group: GroupWatermarks
    leader_epoch: int
    """The newest known: an older leader gets no report, even after a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The replica opens its log. `durable` is None on an empty disk; `fresh` is above every incarnation that it ever had."""

    durable: Durable | None
    local: ReplicaWatermarks
    fresh: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """The log was cleaned, or its high watermark rose: `local` is what it proves now."""

    local: ReplicaWatermarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """The log lost a suffix; what is left proves `local`."""

    local: ReplicaWatermarks
    fresh: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderKnown:
    """Metadata showed a leader epoch: older leaders get no answer any more."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Effect: must be durable before anything that follows it in the list."""

    durable: Durable


Event = Started | Progressed | Truncated | LeaderKnown | Poll
Effect = Persist | Send


class Replica:
    """Local watermarks come from the log, the group's from the leader. Both only rise within an incarnation."""

    def __init__(self, member: int) -> None:
        self.member = member
        self.incarnation = 0
        self.leader_epoch = -1
        self.claimed = NOTHING
        self.group = NOTHING_REMOVABLE
        self._local = NOTHING

    def step(self, event: Event) -> list[Effect]:
        match event:
            case Started():
                return self._started(event)
            case Progressed():
                self._local = event.local
                return []
            case Truncated():
                return self._truncated(event.local, event.fresh)
            case LeaderKnown():
                return self._leader_known(event.leader_epoch)
            case Poll():
                return self._polled(event)
            case _:
                assert_never(event)

    def watermarks(self) -> ReplicaWatermarks:
        """What this replica may claim now: what its log proves, and at least what holds for the whole group.

        Below the group's watermarks no member has anything that a new copy must not get.
        """
        return ReplicaWatermarks(
            mcco=max(self._local.mcco, self.group.mtro), mxfo=max(self._local.mxfo, self.group.mxro)
        )

    def _started(self, event: Started) -> list[Effect]:
        self._local = event.local
        if event.durable is None:
            self.incarnation, self.claimed, self.group = event.fresh, NOTHING, NOTHING_REMOVABLE
            return [self._persist()]
        self.incarnation, self.leader_epoch = event.durable.incarnation, event.durable.leader_epoch
        self.claimed, self.group = event.durable.claimed, event.durable.group
        return self._truncated(event.local, event.fresh)

    def _truncated(self, local: ReplicaWatermarks, fresh: int) -> list[Effect]:
        self._local = local
        now = self.watermarks()
        if now.mcco >= self.claimed.mcco and now.mxfo >= self.claimed.mxfo:
            return []
        self.incarnation, self.claimed = fresh, NOTHING
        return [self._persist()]

    def _leader_known(self, leader_epoch: int) -> list[Effect]:
        if leader_epoch <= self.leader_epoch:
            return []
        self.leader_epoch = leader_epoch
        return [self._persist()]

    def _polled(self, poll: Poll) -> list[Effect]:
        """An old leader's watermarks are still true, so they are taken; but only the newest leader gets a report."""
        effects: list[Effect] = []
        before = self._durable()
        self.group = GroupWatermarks(mtro=max(self.group.mtro, poll.mtro), mxro=max(self.group.mxro, poll.mxro))
        wanted = poll.answer and poll.leader_epoch >= self.leader_epoch
        if wanted:
            self.leader_epoch = poll.leader_epoch
            now = self.watermarks()
            self.claimed = ReplicaWatermarks(
                mcco=max(self.claimed.mcco, now.mcco), mxfo=max(self.claimed.mxfo, now.mxfo)
            )
        if self._durable() != before:
            effects.append(self._persist())
        if wanted:
            effects.append(Send(to=poll.leader, message=self._report(poll.leader_epoch)))
        return effects

    def _report(self, leader_epoch: int) -> Report:
        return Report(
            member=self.member, incarnation=self.incarnation, leader_epoch=leader_epoch,
            mcco=self.claimed.mcco, mxfo=self.claimed.mxfo, mtro=self.group.mtro, mxro=self.group.mxro,
        )  # fmt: skip

    def _durable(self) -> Durable:
        return Durable(
            incarnation=self.incarnation, claimed=self.claimed, group=self.group, leader_epoch=self.leader_epoch
        )

    def _persist(self) -> Persist:
        return Persist(durable=self._durable())


def without_mxfo(report: Report) -> Report:
    """The report as a member of version 1 sends it."""
    return replace(report, mxfo=None)
