"""The leader's part: collects what members claim, takes the minimum, tells everyone. Says who holds removal back.

Events in, messages out; the clock is an argument. Starts empty with each leadership: what members told another leader
does not count here, because a member may have copied from somebody else since (docs/rfcs/0001-coordinated-compaction.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks

POLLS_PER_RETENTION = 24
POLL_INTERVAL_MS_MIN = 1_000
POLL_INTERVAL_MS_MAX = 3_600_000


def poll_interval_ms(delete_retention_ms: int) -> int:
    """24 polls in delete.retention.ms, so that coordination adds little to it; never so often that it is a load."""
    return min(max(delete_retention_ms // POLLS_PER_RETENTION, POLL_INTERVAL_MS_MIN), POLL_INTERVAL_MS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """This replica leads; `group` is what it knew of the group's watermarks, `log_end` the end of its log."""

    leader_epoch: int
    members: tuple[int, ...]
    readers: tuple[str, ...]
    group: GroupWatermarks
    log_end: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChanged:
    """The replica set, learners included, and the declared readers, as the controller has them."""

    members: tuple[int, ...]
    readers: tuple[str, ...]
    log_end: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedDown:
    """Another replica leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time to poll: every poll_interval_ms, with jitter of the caller's."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A member asks for records. It must come here before it gets any: a new incarnation's old reports end with it."""

    member: int
    incarnation: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    report: Report
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPassed:
    """A declared reader has processed everything below `position`."""

    reader: str
    position: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldGranted:
    """Effect: from this offset on no tombstone goes before the reader has passed it.

    That is the end of the leader's log: nobody has ever claimed more than was committed, so no leader that knows nothing
    of this hold can have raised MTRO above it, nor ever will.
    """

    reader: str
    from_offset: int


Event = Elected | MembersChanged | SteppedDown | Tick | Followed | Reported | ReaderPassed
Effect = Send | HoldGranted


@dataclass(slots=True, kw_only=True)
class Seat:
    """What the leader knows of one member. `watermarks` is None while it was never heard of: it counts as 0."""

    incarnation: int = -1
    watermarks: ReplicaWatermarks | None = None
    moved_ms: int = 0
    heard_ms: int | None = None
    speaks_version_1: bool = False


@dataclass(slots=True, kw_only=True)
class ReaderSeat:
    """A declared reader; it counts as 0 until it says more."""

    position: int = 0
    moved_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Who holds a watermark where it is. `behind` counts offsets to the next one; since_ms is its last progress.

    heard_ms is when a member was last heard of by this leader: one that is away differs from one that is slow.
    """

    kind: str
    who: int | str
    watermark: int
    behind: int
    since_ms: int
    heard_ms: int | None
    reason: str


class Leader:
    """One leadership of one partition."""

    def __init__(self, member: int) -> None:
        self.member = member
        self.leader_epoch = -1
        self.leading = False
        self.group = GroupWatermarks(mtro=0, mxro=0)
        self.seats: dict[int, Seat] = {}
        self.readers: dict[str, ReaderSeat] = {}
        self._group_claimed = self.group
        """The highest that a member knew of the group's watermarks: they survive a leader that never heard of them."""

    def step(self, event: Event) -> list[Effect]:
        if not self.leading and not isinstance(event, Elected):
            return []
        match event:
            case Elected():
                return self._elected(event)
            case MembersChanged():
                return [*self._seat(event), *self._recompute()]
            case SteppedDown():
                self.leading = False
                self.seats, self.readers = {}, {}
                return []
            case Tick():
                return self._polls(answer=True)
            case Followed():
                self._followed(event)
                return []
            case Reported():
                return self._reported(event.report, event.now_ms)
            case ReaderPassed():
                return self._passed(event)
            case _:
                assert_never(event)

    def blockers(self) -> list[Blocker]:
        """Members and readers at the minimum, for each watermark that could be higher without them."""
        blockers = []
        if self.leading:
            for kind, held, values in (
                ("tombstones", self.group.mtro, self._mccos()),
                ("markers", self.group.mxro, self._mxfos()),
            ):
                reached = [(who, max(value, held)) for who, value in values]
                low = min(value for _, value in reached)
                higher = [value for _, value in reached if value > low]
                if higher:
                    slowest = [who for who, value in reached if value == low]
                    blockers += [self._blocker(kind, who, low, min(higher) - low) for who in slowest]
        return blockers

    def _elected(self, event: Elected) -> list[Effect]:
        self.leader_epoch, self.leading = event.leader_epoch, True
        self.group = self._group_claimed = event.group
        self.seats, self.readers = {}, {}
        return [*self._seat(event), *self._polls(answer=True)]

    def _seat(self, event: Elected | MembersChanged) -> list[Effect]:
        """Empty seats for those who are new; a hold for each new reader."""
        now_ms = event.now_ms
        self.seats = {member: self.seats.get(member) or Seat(moved_ms=now_ms) for member in event.members}
        new = [reader for reader in event.readers if reader not in self.readers]
        self.readers = {reader: self.readers.get(reader) or ReaderSeat(moved_ms=now_ms) for reader in event.readers}
        return [HoldGranted(reader=reader, from_offset=event.log_end) for reader in new]

    def _passed(self, event: ReaderPassed) -> list[Effect]:
        reader = self.readers.get(event.reader)
        if reader is None or event.position <= reader.position:
            return []
        reader.position, reader.moved_ms = event.position, event.now_ms
        return self._recompute()

    def _followed(self, event: Followed) -> None:
        """A new incarnation starts at the group's watermarks: from no member can it copy anything that belies them."""
        seat = self.seats.get(event.member)
        if seat is not None and event.incarnation > seat.incarnation:
            seat.incarnation = event.incarnation
            seat.watermarks = ReplicaWatermarks(mcco=self.group.mtro, mxfo=self.group.mxro)
            seat.moved_ms = seat.heard_ms = event.now_ms

    def _reported(self, report: Report, now_ms: int) -> list[Effect]:
        seat = self.seats.get(report.member)
        if seat is None or report.leader_epoch != self.leader_epoch or report.incarnation < seat.incarnation:
            return []
        seat.heard_ms = now_ms
        seat.speaks_version_1 = report.mxfo is None
        if report.mxfo is None:
            return []
        earlier = seat.watermarks if report.incarnation == seat.incarnation else None
        claimed = ReplicaWatermarks(mcco=report.mcco, mxfo=report.mxfo)
        if earlier is not None:
            claimed = ReplicaWatermarks(mcco=max(claimed.mcco, earlier.mcco), mxfo=max(claimed.mxfo, earlier.mxfo))
        if claimed != seat.watermarks:
            seat.moved_ms = now_ms
        seat.incarnation, seat.watermarks = report.incarnation, claimed
        self._group_claimed = GroupWatermarks(
            mtro=max(self._group_claimed.mtro, report.mtro), mxro=max(self._group_claimed.mxro, report.mxro)
        )
        return self._recompute()

    def _recompute(self) -> list[Effect]:
        """The minimum, never lower than before; a rise is told at once, without asking for answers."""
        mtro = max(self.group.mtro, self._group_claimed.mtro, min(value for _, value in self._mccos()))
        mxro = max(self.group.mxro, self._group_claimed.mxro, min(value for _, value in self._mxfos()))
        raised = GroupWatermarks(mtro=mtro, mxro=mxro)
        if raised == self.group:
            return []
        self.group = raised
        return self._polls(answer=False)

    def _mccos(self) -> list[tuple[int | str, int]]:
        members: list[tuple[int | str, int]] = [
            (m, s.watermarks.mcco if s.watermarks else 0) for m, s in self._counted()
        ]
        return members + [(name, reader.position) for name, reader in self.readers.items()]

    def _mxfos(self) -> list[tuple[int | str, int]]:
        """Readers do not count: what is committed or aborted is decided by the replica that they read from."""
        return [(m, s.watermarks.mxfo if s.watermarks else 0) for m, s in self._counted()]

    def _counted(self) -> list[tuple[int, Seat]]:
        return list(self.seats.items())

    def _polls(self, *, answer: bool) -> list[Effect]:
        poll = Poll(
            leader=self.member, leader_epoch=self.leader_epoch, mtro=self.group.mtro, mxro=self.group.mxro,
            answer=answer,
        )  # fmt: skip
        return [Send(to=member, message=poll) for member in self.seats]

    def _blocker(self, kind: str, who: int | str, watermark: int, behind: int) -> Blocker:
        if isinstance(who, str):
            reader = self.readers[who]
            return Blocker(
                kind=kind,
                who=who,
                watermark=watermark,
                behind=behind,
                since_ms=reader.moved_ms,
                heard_ms=None,
                reason="reader behind",
            )
        seat = self.seats[who]
        if seat.speaks_version_1:
            reason = "reports no MXFO: an older version"
        elif seat.watermarks is None:
            reason = "never heard of since this leader was elected"
        elif kind == "tombstones":
            reason = "not cleanly compacted further"
        else:
            reason = "holds transactional data"
        return Blocker(
            kind=kind,
            who=who,
            watermark=watermark,
            behind=behind,
            since_ms=seat.moved_ms,
            heard_ms=seat.heard_ms,
            reason=reason,
        )
