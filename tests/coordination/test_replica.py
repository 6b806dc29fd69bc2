"""What holds of a replica whatever happens to it, in whatever order, and wherever it crashes.

A life is a list of events. Each may end in a crash after some of its effects were carried out; then the replica starts
again with what is on its disk, and whatever its log still proves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from headstone.coordination.messages import Poll, Report, Send
from headstone.coordination.replica import (
    Durable,
    Effect,
    Event,
    LeaderKnown,
    Persist,
    Progressed,
    Replica,
    Started,
    Truncated,
)
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks
from tests.coordination.chance import runs, weighted

MEMBER = 2
OFFSETS = st.integers(0, 9)
TOLD = st.integers(0, 3)
"""The group is behind most logs, else it would vouch for whatever they lose."""
EPOCHS = weighted((8, st.just(3)), (1, st.just(2)), (1, st.just(4)))
LOCALS = st.builds(ReplicaWatermarks, mcco=OFFSETS, mxfo=OFFSETS)
POLLS = st.builds(
    Poll, leader=st.just(1), leader_epoch=EPOCHS, mtro=TOLD, mxro=TOLD, answer=st.sampled_from([True, True, False])
)  # fmt: skip
EVENTS = weighted(
    (4, POLLS),
    (3, st.builds(Progressed, local=LOCALS)),
    (1, st.builds(Truncated, local=LOCALS, fresh=st.just(0))),
    (1, st.builds(LeaderKnown, leader_epoch=EPOCHS)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """`after` effects were carried out. `local` is what the log proves then; a lost disk proves nothing."""

    after: int
    local: ReplicaWatermarks
    disk_lost: bool


CRASHES = st.builds(Crash, after=st.integers(0, 2), local=LOCALS, disk_lost=st.sampled_from([False, False, True]))
LIVES = runs(st.tuples(EVENTS, weighted((4, st.none()), (1, CRASHES))), 25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An event, what was carried out of it, the disk before each effect and after all, and the replica as it then was.

    `whole`: everything was carried out.
    """

    event: Event
    done: tuple[Effect, ...]
    whole: bool
    disks: tuple[Durable | None, ...]
    replica: Replica

    def reports(self) -> Iterator[tuple[Report, Durable | None]]:
        """What was sent, and what was on disk when it was."""
        for effect, disk in zip(self.done, self.disks, strict=False):
            if isinstance(effect, Send):
                assert isinstance(effect.message, Report)
                yield effect.message, disk


def live(life: list[tuple[Event, Crash | None]]) -> Iterator[Moment]:
    incarnations, disk = iter(range(1, 1000)), None
    replica = Replica(MEMBER)
    steps: list[tuple[Event, Crash | None]] = [(started(None, ReplicaWatermarks(mcco=0, mxfo=0)), None), *life]
    for event, crash in steps:
        moment = step(replica, event, disk, next(incarnations), crash.after if crash else None)
        yield moment
        disk = moment.disks[-1]
        if crash is not None:
            disk = None if crash.disk_lost else disk
            local = ReplicaWatermarks(mcco=0, mxfo=0) if crash.disk_lost else crash.local
            replica = Replica(MEMBER)
            moment = step(replica, started(disk, local), disk, next(incarnations), None)
            yield moment
            disk = moment.disks[-1]


def started(disk: Durable | None, local: ReplicaWatermarks) -> Started:
    return Started(durable=disk, local=local, fresh=0)


def step(replica: Replica, event: Event, disk: Durable | None, fresh: int, effects_max: int | None) -> Moment:
    if isinstance(event, Started | Truncated):
        event = replace(event, fresh=fresh)
    effects = replica.step(event)
    done = effects[:effects_max]
    disks = [disk]
    for effect in done:
        disks.append(effect.durable if isinstance(effect, Persist) else disks[-1])
    return Moment(event=event, done=tuple(done), whole=done == effects, disks=tuple(disks), replica=replica)


@given(LIVES)
def test_a_claim_is_on_disk_before_it_is_sent(life: list[tuple[Event, Crash | None]]) -> None:
    for moment in live(life):
        for report, disk in moment.reports():
            assert disk is not None
            assert report.incarnation == disk.incarnation
            assert disk.claimed == ReplicaWatermarks(mcco=report.mcco, mxfo=report.mxfo or 0)


@given(LIVES)
def test_a_replica_takes_no_claim_back(life: list[tuple[Event, Crash | None]]) -> None:
    claimed: dict[int, tuple[int, int]] = {}
    for moment in live(life):
        for report, _ in moment.reports():
            mcco, mxfo = claimed.get(report.incarnation, (0, 0))
            assert report.mxfo is not None
            assert report.mcco >= mcco
            assert report.mxfo >= mxfo
            claimed[report.incarnation] = report.mcco, report.mxfo
    assert list(claimed) == sorted(claimed)


@given(LIVES)
def test_what_is_left_of_the_log_proves_every_claim(life: list[tuple[Event, Crash | None]]) -> None:
    """After a lost suffix or a restart: all that this incarnation ever reported is proved, by the log or by the group."""
    reported: dict[int, Report] = {}
    for moment in live(life):
        if isinstance(moment.event, Truncated | Started):
            last = reported.get(moment.replica.incarnation)
            may = moment.replica.watermarks()
            assert last is None or (last.mcco <= may.mcco and last.mxfo is not None and last.mxfo <= may.mxfo)
        reported.update({report.incarnation: report for report, _ in moment.reports()})


@given(LIVES)
def test_an_incarnation_lasts_while_its_claims_are_proved(life: list[tuple[Event, Crash | None]]) -> None:
    """Else every restart would start a member again from the group's watermarks."""
    known: Durable | None = None
    for moment in live(life):
        event, disk = moment.event, moment.disks[-1]
        if isinstance(event, Truncated | Started) and known is not None and moment.disks[0] is not None:
            proved_mcco = max(event.local.mcco, known.group.mtro) >= known.claimed.mcco
            proved_mxfo = max(event.local.mxfo, known.group.mxro) >= known.claimed.mxfo
            assert (moment.replica.incarnation == known.incarnation) == (proved_mcco and proved_mxfo)
        known = disk


@given(LIVES)
def test_the_group_is_the_highest_that_a_leader_ever_told(life: list[tuple[Event, Crash | None]]) -> None:
    """So it never falls, not in a restart either; only a lost disk forgets. Epochs do not matter: it was true."""
    highest = GroupWatermarks(mtro=0, mxro=0)
    for moment in live(life):
        event = moment.event
        if isinstance(event, Started):
            highest = event.durable.group if event.durable else GroupWatermarks(mtro=0, mxro=0)
        if isinstance(event, Poll):
            highest = GroupWatermarks(mtro=max(highest.mtro, event.mtro), mxro=max(highest.mxro, event.mxro))
        assert moment.replica.group == highest


@given(runs(EVENTS, 25))
def test_what_is_known_of_the_group_is_on_disk(life: list[Event]) -> None:
    for moment in live([(event, None) for event in life]):
        disk = moment.disks[-1]
        assert disk is not None
        assert disk.group == moment.replica.group
        assert disk.incarnation == moment.replica.incarnation


@given(LIVES)
def test_only_the_newest_leader_that_is_known_of_is_answered(life: list[tuple[Event, Crash | None]]) -> None:
    """The disk remembers who that is: whoever is answered, or was told of before anything else happened."""
    newest = -1
    for moment in live(life):
        event = moment.event
        answered = [report.leader_epoch for report, _ in moment.reports()]
        if isinstance(event, Poll) and event.answer and event.leader_epoch >= newest:
            assert answered == [event.leader_epoch] or not moment.whole
            newest = event.leader_epoch
        else:
            assert answered == []
        if isinstance(event, LeaderKnown):
            newest = max(newest, event.leader_epoch)
        if isinstance(event, Started):
            newest = event.durable.leader_epoch if event.durable else -1
        disk = moment.disks[-1]
        assert disk is not None
        assert disk.leader_epoch == newest or not moment.whole


@given(runs(EVENTS, 25))
def test_a_report_says_what_the_log_proves_and_at_least_what_holds_for_the_group(life: list[Event]) -> None:
    """And never more than was once proved in this incarnation."""
    best: dict[int, ReplicaWatermarks] = {}
    for moment in live([(event, None) for event in life]):
        may, incarnation = moment.replica.watermarks(), moment.replica.incarnation
        group = moment.replica.group
        assert may.mcco >= group.mtro
        assert may.mxfo >= group.mxro
        before = best.get(incarnation, may)
        best[incarnation] = ReplicaWatermarks(mcco=max(before.mcco, may.mcco), mxfo=max(before.mxfo, may.mxfo))
        for report, _ in moment.reports():
            assert report.mxfo is not None
            assert may.mcco <= report.mcco <= best[incarnation].mcco
            assert may.mxfo <= report.mxfo <= best[incarnation].mxfo


@given(LOCALS, POLLS)
def test_an_answer_goes_to_the_leader_that_asked(local: ReplicaWatermarks, poll: Poll) -> None:
    replica = Replica(MEMBER)
    replica.step(Started(durable=None, local=local, fresh=7))
    effects = replica.step(replace(poll, leader=5, answer=True))
    mcco, mxfo = max(local.mcco, poll.mtro), max(local.mxfo, poll.mxro)
    report = Report(
        member=MEMBER,
        incarnation=7,
        leader_epoch=poll.leader_epoch,
        mcco=mcco,
        mxfo=mxfo,
        mtro=poll.mtro,
        mxro=poll.mxro,
    )
    assert effects[-1] == Send(to=5, message=report)
