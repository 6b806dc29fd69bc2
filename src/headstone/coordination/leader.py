"""The leader's part: collects the members' claims, takes the minimum, distributes it. Says who holds back removal.

Events in, messages out; the clock is an argument. Starts empty with each leadership: claims made to another leader do not
count, because a member may have copied from somebody else since (docs/rfcs/0001-coordinated-compaction.md).
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
    """24 polls per delete.retention.ms, so that coordination adds little to it; bounded, so that polls are no load."""
    return min(max(delete_retention_ms // POLLS_PER_RETENTION, POLL_INTERVAL_MS_MIN), POLL_INTERVAL_MS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """This replica leads. `group` is what it knew of the group's watermarks, `log_end` the end of its log."""

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
    """Time to poll: every `poll_interval_ms`, with jitter added by the caller."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A member fetches records. This event must come before it gets any: it voids the old reports of a previous incarnation."""

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
    """Effect: from this offset on, no tombstone goes before the reader has passed it.

    The offset is the end of the leader's log. Nobody ever claims more than was committed, so no leader that does not know of
    this hold can have raised MTRO above it, or ever will.
    """

    reader: str
    from_offset: int


Event = Elected | MembersChanged | SteppedDown | Tick | Followed | Reported | ReaderPassed
Effect = Send | HoldGranted


@dataclass(slots=True, kw_only=True)
class Seat:
    """What the leader knows of one member. `watermarks` is None until it reports, and counts as 0."""

    incarnation: int = -1
    watermarks: ReplicaWatermarks | None = None
    moved_ms: int = 0
    heard_ms: int | None = None
    speaks_version_1: bool = False


@dataclass(slots=True, kw_only=True)
class ReaderSeat:
    """A declared reader; it counts as 0 until it reports a position."""

    position: int = 0
    moved_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A member or reader that holds back a watermark. `behind` counts offsets to the next one; `since_ms` is its last progress.

    `heard_ms` is when this leader last heard of the member, which tells one that is away from one that is slow.
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
        """The highest group watermarks that any member knew: they survive a leader that never heard of them."""

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
        """Empty seats for new members; a hold for each new reader."""
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
        """A new incarnation starts at the group's watermarks: no member has anything that it could copy and that would
        contradict them."""
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
        """The minimum, never lower than before. A rise is distributed at once, without asking for reports."""
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
        """Readers do not count: the replica that they read from knows what is committed or aborted."""
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
