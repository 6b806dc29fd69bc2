"""What holds of a leader whatever it is told: its watermarks against a slow model, what it sends, whom it blames."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstone.coordination.leader import (
    Blocker,
    Effect,
    Elected,
    Event,
    Followed,
    HoldGranted,
    Leader,
    MembersChanged,
    ReaderPassed,
    Reported,
    SteppedDown,
    Tick,
    poll_interval_ms,
)
from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.watermarks import NEVER_HEARD, GroupWatermarks, ReplicaWatermarks, group_watermarks
from tests.coordination.chance import runs, weighted

HOUR_MS = 3_600_000
EPOCH = 3
OFFSETS = st.integers(0, 9)
NAMES = ["billing", "billing", "mirror", "stranger"]
MEMBERS = st.sampled_from([(1,), (1, 2), (1, 2), (1, 2, 3)])
WHO = weighted((4, st.just(1)), (4, st.just(2)), (3, st.just(3)), (1, st.just(9)))
INCARNATIONS = weighted((4, st.just(2)), (1, st.just(1)), (2, st.just(3)))
READERS = st.sampled_from([(), (), ("billing",), ("billing", "mirror")])
REPORTS = st.builds(
    Report, member=WHO, incarnation=INCARNATIONS,
    leader_epoch=weighted((8, st.just(EPOCH)), (1, st.just(EPOCH - 1)), (1, st.just(EPOCH + 1))),
    mcco=OFFSETS, mxfo=weighted((9, OFFSETS), (1, st.none())),
)  # fmt: skip
ELECTIONS = st.builds(
    Elected, leader_epoch=st.just(EPOCH), members=MEMBERS, readers=READERS,
    group=st.builds(GroupWatermarks, mtro=st.integers(0, 3), mxro=st.integers(0, 3)),
    log_end=OFFSETS, now_ms=st.just(0),
)  # fmt: skip
NEWS = weighted(
    (8, st.builds(Reported, report=REPORTS, now_ms=st.just(0))),
    (2, st.builds(Followed, member=WHO, incarnation=INCARNATIONS, now_ms=st.just(0))),
    (3, st.builds(ReaderPassed, reader=st.sampled_from(NAMES), position=OFFSETS, now_ms=st.just(0))),
    (1, st.builds(MembersChanged, members=MEMBERS, readers=READERS, log_end=OFFSETS, now_ms=st.just(0))),
    (1, st.builds(Tick, now_ms=st.just(0))),
)
TERMS = st.tuples(ELECTIONS, runs(NEWS, 30))
"""One leadership: the election and what follows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    incarnation: int
    mcco: int
    mxfo: int


@dataclass(slots=True, kw_only=True)
class Model:
    """Keeps every claim and counts anew each time. Of a member only the newest incarnation counts, with its best."""

    group: GroupWatermarks
    members: tuple[int, ...]
    readers: tuple[str, ...]
    claims: dict[int, list[Claim]] = field(default_factory=dict)
    positions: dict[str, list[int]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        match event:
            case MembersChanged(members=members, readers=readers):
                self.members, self.readers = members, readers
                self.claims = {m: claims for m, claims in self.claims.items() if m in members}
                self.positions = {r: positions for r, positions in self.positions.items() if r in readers}
            case Reported(report=report):
                if report.member in self.members and report.leader_epoch == EPOCH and report.mxfo is not None:
                    claim = Claim(incarnation=report.incarnation, mcco=report.mcco, mxfo=report.mxfo)
                    self.claims.setdefault(report.member, []).append(claim)
            case Followed(member=member, incarnation=incarnation):
                if member in self.members and incarnation > self.newest(member):
                    claim = Claim(incarnation=incarnation, mcco=self.group.mtro, mxfo=self.group.mxro)
                    self.claims.setdefault(member, []).append(claim)
            case ReaderPassed(reader=reader, position=position):
                if reader in self.readers:
                    self.positions.setdefault(reader, []).append(position)
        if isinstance(event, MembersChanged | Reported | ReaderPassed):
            self.raise_group()

    def newest(self, member: int) -> int:
        return max((claim.incarnation for claim in self.claims.get(member, [])), default=-1)

    def counted(self, member: int) -> ReplicaWatermarks:
        valid = [claim for claim in self.claims.get(member, []) if claim.incarnation == self.newest(member)]
        return ReplicaWatermarks(
            mcco=max((claim.mcco for claim in valid), default=0), mxfo=max((claim.mxfo for claim in valid), default=0)
        )

    def passed(self) -> dict[str, int]:
        return {reader: max(self.positions.get(reader, [0])) for reader in self.readers}

    def raise_group(self) -> None:
        low = group_watermarks([self.counted(member) for member in self.members])
        mtro = min([low.mtro, *self.passed().values()])
        self.group = GroupWatermarks(mtro=max(self.group.mtro, mtro), mxro=max(self.group.mxro, low.mxro))


def polls(effects: list[Effect]) -> list[tuple[int, Poll]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, Poll)]


@given(TERMS)
def test_the_group_is_the_minimum_of_what_the_newest_incarnations_claim(term: tuple[Elected, list[Event]]) -> None:
    elected, news = term
    leader, model = Leader(1), Model(group=elected.group, members=elected.members, readers=elected.readers)
    leader.step(elected)
    for event in news:
        leader.step(event)
        model.hear(event)
        counted = {m: seat.watermarks or NEVER_HEARD for m, seat in leader.seats.items()}
        assert counted == {member: model.counted(member) for member in model.members}
        assert {name: reader.position for name, reader in leader.readers.items()} == model.passed()
        assert leader.group == model.group


@given(TERMS)
def test_watermarks_never_fall_and_a_rise_is_told_at_once(term: tuple[Elected, list[Event]]) -> None:
    """To every member, and without asking for answers; and nothing else makes a leader speak but its clock."""
    elected, news = term
    leader = Leader(1)
    leader.step(elected)
    for event in news:
        before = leader.group
        sent = polls(leader.step(event))
        after = leader.group
        assert after.mtro >= before.mtro
        assert after.mxro >= before.mxro
        answer = isinstance(event, Tick)
        poll = Poll(leader=1, leader_epoch=EPOCH, mtro=after.mtro, mxro=after.mxro, answer=answer)
        speaks = answer or after != before
        assert sent == ([(member, poll) for member in leader.seats] if speaks else [])


@given(TERMS, ELECTIONS)
def test_an_election_forgets_all_reports_and_polls_with_what_was_known(
    term: tuple[Elected, list[Event]], again: Elected
) -> None:
    """Even if the new leader is the old one, and even if nothing changed."""
    elected, news = term
    leader = Leader(1)
    for event in [elected, *news]:
        leader.step(event)
    again = replace(again, leader_epoch=EPOCH + 2)
    poll = Poll(leader=1, leader_epoch=EPOCH + 2, mtro=again.group.mtro, mxro=again.group.mxro, answer=True)
    assert polls(leader.step(again)) == [(member, poll) for member in again.members]
    assert leader.group == again.group
    assert [seat.watermarks for seat in leader.seats.values()] == [None] * len(again.members)
    assert [reader.position for reader in leader.readers.values()] == [0] * len(again.readers)


@given(TERMS, runs(NEWS, 10))
def test_who_does_not_lead_hears_and_says_nothing(term: tuple[Elected, list[Event]], late: list[Event]) -> None:
    elected, news = term
    leader = Leader(1)
    assert [leader.step(event) for event in late] == [[]] * len(late)
    for event in [elected, *news]:
        leader.step(event)
    group = leader.group
    assert leader.step(SteppedDown()) == []
    assert [leader.step(event) for event in late] == [[]] * len(late)
    assert (leader.group, leader.seats, leader.readers) == (group, {}, {})


@given(TERMS)
def test_a_hold_is_granted_once_and_from_the_end_of_the_leaders_log(term: tuple[Elected, list[Event]]) -> None:
    """Not from what the leader knows of MTRO: a newcomer may be elected that was never polled."""
    elected, news = term
    leader = Leader(1)
    declared: set[str] = set()
    for event in [elected, *news]:
        grants = [effect for effect in leader.step(event) if isinstance(effect, HoldGranted)]
        if isinstance(event, Elected | MembersChanged):
            new = [reader for reader in event.readers if reader not in declared]
            assert grants == [HoldGranted(reader=reader, from_offset=event.log_end) for reader in new]
            declared = set(event.readers)
        else:
            assert grants == []


def test_the_watermarks_survive_a_leader_that_never_heard_of_them() -> None:
    """A newcomer is elected before any poll reached it; what the others know they tell it with their answers."""
    leader = Leader(3)
    start = GroupWatermarks(mtro=0, mxro=0)
    leader.step(Elected(leader_epoch=EPOCH, members=(1, 3), readers=(), group=start, log_end=0, now_ms=0))
    told = Report(member=1, incarnation=1, leader_epoch=EPOCH, mcco=80, mxfo=90, mtro=40, mxro=30)
    sent = polls(leader.step(Reported(report=told, now_ms=0)))
    assert leader.group == GroupWatermarks(mtro=40, mxro=30)
    assert sent == [(m, Poll(leader=3, leader_epoch=EPOCH, mtro=40, mxro=30, answer=False)) for m in (1, 3)]


@given(TERMS)
def test_whoever_is_blamed_is_at_the_minimum_and_the_next_is_that_far(term: tuple[Elected, list[Event]]) -> None:
    elected, news = term
    leader = Leader(1)
    for event in [elected, *news]:
        leader.step(event)
    mccos: dict[int | str, int] = {m: s.watermarks.mcco if s.watermarks else 0 for m, s in leader.seats.items()}
    mxfos: dict[int | str, int] = {m: s.watermarks.mxfo if s.watermarks else 0 for m, s in leader.seats.items()}
    mccos |= {name: reader.position for name, reader in leader.readers.items()}
    mccos = {who: max(value, leader.group.mtro) for who, value in mccos.items()}
    mxfos = {who: max(value, leader.group.mxro) for who, value in mxfos.items()}
    blamed = [(blocker.kind, blocker.who, blocker.watermark, blocker.behind) for blocker in leader.blockers()]
    expected = []
    for kind, values in (("tombstones", mccos), ("markers", mxfos)):
        low, *higher = sorted(set(values.values()))
        expected += [(kind, who, low, higher[0] - low) for who, at in values.items() if higher and at == low]
    assert blamed == expected


def test_a_blocker_says_why_and_since_when() -> None:
    leader = Leader(1)
    start = GroupWatermarks(mtro=0, mxro=0)
    leader.step(Elected(leader_epoch=EPOCH, members=(1, 2, 3), readers=(), group=start, log_end=0, now_ms=100))

    def report(member: int, mcco: int, mxfo: int | None, now_ms: int) -> None:
        said = Report(member=member, incarnation=1, leader_epoch=EPOCH, mcco=mcco, mxfo=mxfo)
        leader.step(Reported(report=said, now_ms=now_ms))

    def blocker(
        kind: str, who: int, watermark: int, behind: int, times: tuple[int, int | None], reason: str
    ) -> Blocker:
        since_ms, heard_ms = times
        return Blocker(
            kind=kind, who=who, watermark=watermark, behind=behind, since_ms=since_ms, heard_ms=heard_ms, reason=reason
        )  # fmt: skip

    report(1, 80, 90, 200)
    report(2, 60, 50, 200)
    never = "never heard of since this leader was elected"
    assert leader.blockers() == [
        blocker("tombstones", 3, 0, 60, (100, None), never),
        blocker("markers", 3, 0, 50, (100, None), never),
    ]
    report(3, 70, None, 300)
    old = "reports no MXFO: an older version"
    assert leader.blockers() == [
        blocker("tombstones", 3, 0, 60, (100, 300), old),
        blocker("markers", 3, 0, 50, (100, 300), old),
    ]
    report(3, 70, 60, 400)
    report(2, 60, 50, 500)
    assert leader.blockers() == [
        blocker("tombstones", 2, 60, 10, (200, 500), "not cleanly compacted further"),
        blocker("markers", 2, 50, 10, (200, 500), "holds transactional data"),
    ]
    report(2, 60, 55, 600)
    assert [found.since_ms for found in leader.blockers()] == [600, 600]


@pytest.mark.parametrize(
    ("delete_retention_ms", "interval_ms"),
    [
        (0, 1_000),
        (5, 1_000),
        (24, 1_000),
        (24_023, 1_000),
        (24_024, 1_001),
        (HOUR_MS, 150_000),
        (24 * HOUR_MS - 1, HOUR_MS - 1),
        (24 * HOUR_MS, HOUR_MS),
        (7 * 24 * HOUR_MS, HOUR_MS),
        (2**63 - 1, HOUR_MS),
    ],
)
def test_polls_are_24_in_a_retention_but_not_a_load_and_not_forgotten(
    delete_retention_ms: int, interval_ms: int
) -> None:
    assert poll_interval_ms(delete_retention_ms) == interval_ms


def test_the_group_is_held_by_the_slowest_in_each() -> None:
    members = [ReplicaWatermarks(mcco=80, mxfo=30), ReplicaWatermarks(mcco=40, mxfo=60)]
    assert group_watermarks(members) == GroupWatermarks(mtro=40, mxro=30)
