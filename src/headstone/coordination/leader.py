"""The leader's part: collects what members claim, takes the minimum, tells everyone. Says who holds removal back.

Events in, messages out; the clock is an argument. Starts empty with each leadership: what members told another leader
does not count here, because a member may have copied from somebody else since (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """This replica leads; `group` is what it knew of the group's watermarks, `own_mcco` its own clean offset."""

    leader_epoch: int
    members: tuple[int, ...]
    readers: tuple[str, ...]
    group: GroupWatermarks
    own_mcco: int
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChanged:
    """The replica set, learners included, and the declared readers, as the controller has them."""

    members: tuple[int, ...]
    readers: tuple[str, ...]
    own_mcco: int
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
    """Effect: from this offset on no tombstone goes before the reader has passed it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Who holds a watermark where it is. `behind` counts offsets to the next member; since_ms is its last progress."""

    kind: str
    who: int | str
    at: int
    behind: int
    since_ms: int
    reason: str


class Leader:
    """One leadership of one partition."""

    def __init__(self, member: int) -> None:
        self.member = member
        self.leader_epoch = -1
        self.leading = False
        self.group = GroupWatermarks(mtro=0, mxro=0)
        self.seats: dict[int, Seat] = {}
        self.readers: dict[str, int | None] = {}
        self._elected_ms = 0

    def step(self, event: Event) -> list[Effect]:
        if not self.leading and not isinstance(event, Elected):
            return []
        match event:
            case Elected():
                return self._elected(event)
            case MembersChanged():
                granted = self._seat(event.members, event.readers, event.own_mcco, event.now_ms)
                return [*granted, *self._recompute()]
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
                if event.reader in self.readers:
                    self.readers[event.reader] = max(self.readers[event.reader] or 0, event.position)
                return self._recompute()
            case _:
                assert_never(event)

    def blockers(self) -> list[Blocker]:
        """Members and readers at the minimum, for each watermark that could be higher without them."""
        found = []
        for kind, values in (("tombstones", self._mccos()), ("markers", self._mxfos())):
            low = min(value for _, value in values)
            higher = [value for _, value in values if value > low]
            if higher:
                found += [self._blocker(kind, who, low, min(higher) - low) for who, value in values if value == low]
        return found

    def _elected(self, event: Elected) -> list[Effect]:
        self.leader_epoch, self.leading = event.leader_epoch, True
        self.group, self._elected_ms = event.group, event.now_ms
        self.seats, self.readers = {}, {}
        granted = self._seat(event.members, event.readers, event.own_mcco, event.now_ms)
        return [*granted, *self._polls(answer=True)]

    def _seat(self, members: Iterable[int], readers: Iterable[str], own_mcco: int, now_ms: int) -> list[Effect]:
        self.seats = {member: self.seats.get(member) or Seat(moved_ms=now_ms) for member in members}
        new = [reader for reader in readers if reader not in self.readers]
        self.readers = {reader: self.readers.get(reader) for reader in readers}
        # An older leader that knows nothing of this hold can have raised MTRO to at most what this replica told it.
        return [HoldGranted(reader=reader, from_offset=max(self.group.mtro, own_mcco)) for reader in new]

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
        known = seat.watermarks if report.incarnation == seat.incarnation else None
        told = ReplicaWatermarks(mcco=report.mcco, mxfo=report.mxfo)
        if known is not None:
            told = ReplicaWatermarks(mcco=max(told.mcco, known.mcco), mxfo=max(told.mxfo, known.mxfo))
        if told != seat.watermarks:
            seat.moved_ms = now_ms
        seat.incarnation, seat.watermarks = report.incarnation, told
        return self._recompute()

    def _recompute(self) -> list[Effect]:
        """The minimum, never lower than before; a rise is told at once, without asking for answers."""
        mtro = max(self.group.mtro, min(value for _, value in self._mccos()))
        mxro = max(self.group.mxro, min(value for _, value in self._mxfos()))
        raised = GroupWatermarks(mtro=mtro, mxro=mxro)
        if raised == self.group:
            return []
        self.group = raised
        return self._polls(answer=False)

    def _mccos(self) -> list[tuple[int | str, int]]:
        members: list[tuple[int | str, int]] = [
            (m, s.watermarks.mcco if s.watermarks else 0) for m, s in self._counted()
        ]
        return members + [(reader, position or 0) for reader, position in self.readers.items()]

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

    def _blocker(self, kind: str, who: int | str, at: int, behind: int) -> Blocker:
        if isinstance(who, str):
            return Blocker(kind=kind, who=who, at=at, behind=behind, since_ms=self._elected_ms, reason="reader behind")
        seat = self.seats[who]
        if seat.speaks_version_1:
            reason = "reports no MXFO: an older version"
        elif seat.watermarks is None:
            reason = "never heard of since this leader was elected"
        elif kind == "tombstones":
            reason = "not cleanly compacted further"
        else:
            reason = "holds transactional data"
        return Blocker(kind=kind, who=who, at=at, behind=behind, since_ms=seat.moved_ms, reason=reason)
