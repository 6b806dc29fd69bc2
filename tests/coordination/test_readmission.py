"""The steps of a readmission, on a toy cluster that does what it is told: whole, killed anywhere, and refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from headstone.coordination.guard_values import Verdict
from headstone.coordination.readmission import (
    Add,
    AskPerson,
    BrokerAway,
    Elect,
    HoldTopic,
    Note,
    PartitionNow,
    Read,
    Readmission,
    ReadmissionDone,
    RemoveReplica,
    Reorder,
    Step,
    Throttle,
    Wait,
    next_step,
)

BROKER = 3
STEPS_MAX = 40


@dataclass
class Toy:
    """One partition. What was asked for is done at the next look, as a cluster does it: a broker that is told of both
    changes at once keeps the copy that it has."""

    now: PartitionNow
    readmission: Readmission
    alive: bool = True
    old_copy: bool = True
    wrong_copies: int = 0
    done: list[str] | None = None

    def step(self) -> Step:
        seen = replace(self.now, has_copy=(BROKER in self.now.replicas or self.old_copy) if self.alive else None)
        step = next_step(self.readmission, seen)
        self.done = [*(self.done or []), type(step).__name__]
        self._carry_out(step)
        return step

    def _carry_out(self, step: Step) -> None:
        match step:
            case Note():
                self.readmission = step.readmission
            case RemoveReplica():
                isr = tuple(b for b in self.now.isr if b != BROKER)
                assert len(isr) >= self.now.in_sync_min
                leader = isr[0] if self.now.leader == BROKER else self.now.leader
                self.now = replace(self.now, replicas=step.remaining, isr=isr, leader=leader, verdict=None)
            case Add():
                assert self.now.held, "a copy begins without a hold"
                assert not self.old_copy, "the broker would go on with its old copy"
                assert step.replicas[-1] == BROKER, "an election may prefer it before it was read"
                self.readmission = replace(self.readmission, added_ms=1)
                self.now = replace(self.now, replicas=step.replicas, adding=(BROKER,))
            case Reorder():
                assert self.readmission.verified
                self.now = replace(self.now, replicas=step.order)
            case HoldTopic():
                self.now = replace(self.now, held=True)
            case Throttle():
                self.now = replace(self.now, throttled=True)
            case Read():
                right = self.wrong_copies == 0
                self.wrong_copies -= not right
                self.now = replace(self.now, verdict=Verdict.RIGHT if right else Verdict.WRONG)
            case Elect():
                self.now = replace(self.now, leader=BROKER)
            case Wait():
                self.pass_time()
            case _:
                pass

    def pass_time(self) -> None:
        if BROKER not in self.now.replicas:
            self.old_copy = False
        if self.now.adding:
            self.now = replace(self.now, adding=(), isr=(*self.now.isr, BROKER))

    def run(self) -> Step:
        for _ in range(STEPS_MAX):
            step = self.step()
            if isinstance(step, BrokerAway | AskPerson | ReadmissionDone):
                return step
        raise AssertionError(f"no end: {self.done}")


def toy(
    *, order: tuple[int, ...] = (3, 1, 2), isr: tuple[int, ...] = (1, 2, 3), leader: int = 1, minimum: int = 2
) -> Toy:
    now = PartitionNow(replicas=order, isr=isr, leader=leader, in_sync_min=minimum)
    return Toy(now=now, readmission=Readmission(topic="t", partition=0, broker=BROKER, order=order))


def test_a_replica_that_is_back_leaves_copies_afresh_is_read_and_gets_its_place_again() -> None:
    cluster = toy()
    assert cluster.run() == ReadmissionDone()
    assert cluster.done == [
        "RemoveReplica", "Note", "Wait", "HoldTopic", "Throttle", "Add", "Wait", "Read", "Note", "Reorder", "Elect",
        "ReadmissionDone",
    ]  # fmt: skip
    assert (cluster.now.replicas, cluster.now.leader) == ((3, 1, 2), 3)


def test_who_was_not_the_preferred_leader_is_not_elected() -> None:
    cluster = toy(order=(1, 3, 2))
    cluster.run()
    assert cluster.now.replicas == (1, 3, 2)
    assert "Elect" not in (cluster.done or [])


def test_one_that_is_away_is_expelled_without_a_hold_and_waits_for_its_broker() -> None:
    cluster = toy(isr=(1, 2))
    cluster.alive = False
    assert cluster.run() == BrokerAway()
    assert cluster.done == ["RemoveReplica", "Note", "BrokerAway"]
    cluster.alive = True
    assert cluster.run() == ReadmissionDone()
    assert cluster.now.replicas == (3, 1, 2)


def test_a_run_that_is_killed_anywhere_is_finished_by_the_next() -> None:
    """What was not durable is lost: the readmission as it was noted last, and every reading."""
    whole = toy()
    whole.run()
    for killed in range(len(whole.done or [])):
        cluster = toy()
        for _ in range(killed):
            cluster.step()
        cluster.now = replace(cluster.now, verdict=None)
        assert cluster.run() == ReadmissionDone(), killed
        assert (cluster.now.replicas, cluster.now.leader, set(cluster.now.isr)) == ((3, 1, 2), 3, {1, 2, 3})


def test_a_fresh_copy_that_is_wrong_is_tried_once_more_and_then_told() -> None:
    cluster = toy()
    cluster.wrong_copies = 1
    assert cluster.run() == ReadmissionDone()
    assert (cluster.done or []).count("RemoveReplica") == 2
    cluster = toy()
    cluster.wrong_copies = 2
    end = cluster.run()
    assert isinstance(end, AskPerson)
    assert "still wrong" in end.why


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (toy(isr=(3,), minimum=1), "no other replica of t-0 is in sync: this one is the last copy"),
        (toy(isr=(2, 3)), "without broker 3 t-0 has 1 in sync, and min.insync.replicas is 2"),
    ],
)
def test_too_few_copies_are_refused(cluster: Toy, why: str) -> None:
    end = cluster.run()
    assert isinstance(end, AskPerson)
    assert end.why.startswith(why)
    assert not end.again
    assert cluster.done == ["AskPerson"]


def test_what_somebody_else_moves_is_left_alone() -> None:
    cluster = toy()
    cluster.now = replace(cluster.now, adding=(4,), removing=(2,))
    end = cluster.run()
    assert isinstance(end, AskPerson)
    assert "reassigned by somebody else (adding 4, removing 2)" in end.why
    cluster = toy(isr=(1, 2))
    cluster.alive = False
    cluster.run()
    cluster.now = replace(cluster.now, replicas=(1, 4))
    end = cluster.run()
    assert isinstance(end, AskPerson)
    assert "somebody else has changed the replicas of t-0 to 1, 4" in end.why


def test_it_copies_from_when_it_was_added_until_it_was_read() -> None:
    cluster = toy()
    copied: list[tuple[str, bool]] = []
    cluster.wrong_copies = 1
    while (cluster.done or ["RemoveReplica"])[-1] != "ReadmissionDone":
        cluster.step()
        copied.append(((cluster.done or [])[-1], cluster.readmission.copies))
    once = [
        ("RemoveReplica", False),
        ("Note", False),
        ("Wait", False),
        ("HoldTopic", False),
        ("Throttle", False),
        ("Add", True),
    ]
    again = [("RemoveReplica", False), ("Note", False), ("Add", True)]
    ended = [("Reorder", False), ("Elect", False), ("ReadmissionDone", False)]
    read = [("Wait", True), ("Read", True), ("Note", False)]
    assert copied == [*once, *read, *again, *read, *ended]


def test_a_hold_that_is_undone_while_it_copies_is_set_again() -> None:
    cluster = toy()
    while "Add" not in (cluster.done or []):
        cluster.step()
    cluster.now = replace(cluster.now, held=False)
    assert cluster.step() == HoldTopic()
