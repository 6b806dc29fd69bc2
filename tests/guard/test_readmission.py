"""The steps of a readmission on a toy cluster, what a plan says of them, whom it is for, and what a person goes on with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from headstone.cluster.questions import Reassignment
from headstone.coordination.guard_values import HOLD, AlarmKind, Hold, Memory, State, Verdict
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Reading, Readmission, Remembered
from headstone.guard.ledger.readmissions import keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import RATE, hold_for_a_while, temporary_changes, throttle_copy
from headstone.guard.monitoring.current_status import ask_status, journal_status
from headstone.guard.monitoring.status import Waiting
from headstone.guard.readmission.candidates import suspects
from headstone.guard.readmission.driver import Ended, Readmitted, readmit
from headstone.guard.readmission.plan import ENDED_MEANWHILE, Limits, ReadmissionPlan, Wanted, no_source, plan
from headstone.guard.readmission.steps import (
    Add,
    BrokerAway,
    Elect,
    Finished,
    HoldTopic,
    Note,
    PartitionNow,
    Read,
    RemoveReplica,
    Reorder,
    Step,
    Stop,
    Throttle,
    Wait,
    next_step,
)
from headstone.guard.verification.verdicts import Judged
from headstone.log.topic_partition import TopicPartition
from tests.guard.watching import after, kinds, means_of, watcher
from tests.guard.world import DAY_MS, START_MS, ClusterTwin, Topic

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
            if isinstance(step, BrokerAway | Stop | Finished):
                return step
        raise AssertionError(f"no end: {self.done}")


def toy(
    *, order: tuple[int, ...] = (3, 1, 2), isr: tuple[int, ...] = (1, 2, 3), leader: int = 1, minimum: int = 2
) -> Toy:
    now = PartitionNow(replicas=order, isr=isr, leader=leader, in_sync_min=minimum)
    return Toy(now=now, readmission=Readmission(topic="t", partition=0, broker=BROKER, order=order))


def test_a_replica_that_is_back_leaves_copies_afresh_is_read_and_gets_its_place_again() -> None:
    cluster = toy()
    assert cluster.run() == Finished()
    assert cluster.done == [
        "RemoveReplica", "Note", "Wait", "HoldTopic", "Throttle", "Add", "Wait", "Read", "Note", "Reorder", "Elect", "Finished",
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
    assert cluster.run() == Finished()
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
        assert cluster.run() == Finished(), killed
        assert (cluster.now.replicas, cluster.now.leader, set(cluster.now.isr)) == ((3, 1, 2), 3, {1, 2, 3})


def test_a_fresh_copy_that_is_wrong_is_tried_once_more_and_then_told() -> None:
    cluster = toy()
    cluster.wrong_copies = 1
    assert cluster.run() == Finished()
    assert (cluster.done or []).count("RemoveReplica") == 2
    cluster = toy()
    cluster.wrong_copies = 2
    end = cluster.run()
    assert isinstance(end, Stop)
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
    assert isinstance(end, Stop)
    assert end.why.startswith(why)
    assert not end.again
    assert cluster.done == ["Stop"]


def test_what_somebody_else_moves_is_left_alone() -> None:
    cluster = toy()
    cluster.now = replace(cluster.now, adding=(4,), removing=(2,))
    end = cluster.run()
    assert isinstance(end, Stop)
    assert "reassigned by somebody else (adding 4, removing 2)" in end.why
    cluster = toy(isr=(1, 2))
    cluster.alive = False
    cluster.run()
    cluster.now = replace(cluster.now, replicas=(1, 4))
    end = cluster.run()
    assert isinstance(end, Stop)
    assert "somebody else has changed the replicas of t-0 to 1, 4" in end.why


def test_it_copies_from_when_it_was_added_until_it_was_read() -> None:
    cluster = toy()
    copied: list[tuple[str, bool]] = []
    cluster.wrong_copies = 1
    while (cluster.done or ["RemoveReplica"])[-1] != "Finished":
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
    ended = [("Reorder", False), ("Elect", False), ("Finished", False)]
    read = [("Wait", True), ("Read", True), ("Note", False)]
    assert copied == [*once, *read, *again, *read, *ended]


def test_a_hold_that_is_undone_while_it_copies_is_set_again() -> None:
    cluster = toy()
    while "Add" not in (cluster.done or []):
        cluster.step()
    cluster.now = replace(cluster.now, held=False)
    assert cluster.step() == HoldTopic()


PARTITION = TopicPartition("orders", 0)
ORDER = (3, 1, 2)
BEGUN = Readmission(topic="orders", partition=0, broker=3, order=ORDER, topic_id="first")
COPIES = replace(BEGUN, expelled=True, added_ms=7, by_guard=True)
"""As the guard left it: taken out, and added again."""
RIGHT, WRONG = Judged(verdict=Verdict.RIGHT), Judged(verdict=Verdict.WRONG, why="deleted-reappears")
PLAN = ReadmissionPlan(readmission=BEGUN, judged=WRONG, away=False)


def twin_that_copies(journal: Journal) -> ClusterTwin:
    """Broker 3 copies afresh, held and at a limited rate: the guard has done that since the plan was made."""
    twin = ClusterTwin(orders=Topic(replicas=(1, 2, 3), isr=(1, 2)))
    twin.moving = {PARTITION: Reassignment(replicas=(1, 2, 3), adding=(3,), removing=())}
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    throttle_copy(twin, journal, PARTITION, 3, bytes_per_second=7, evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    keep_readmission(journal, COPIES)
    return twin


@pytest.mark.parametrize(
    "stale", [PLAN, replace(PLAN, resumed=True), replace(PLAN, judged=Judged(verdict=Verdict.RIGHT))]
)
def test_what_the_guard_has_begun_since_the_plan_is_gone_on_with(journal: Journal, stale: ReadmissionPlan) -> None:
    twin = twin_that_copies(journal)
    with pytest.raises(KeyboardInterrupt):
        readmit(means_of(twin, journal), [stale])
    assert open_readmissions(journal) == [COPIES]
    assert ([temporary.broker for temporary in temporary_changes(journal)], twin.broker_own[3]) == (
        [None, 3, None],
        {RATE: "7"},
    )
    assert twin.topics["orders"].overrides.items() >= dict(HOLD).items()


def test_what_was_ended_since_the_plan_is_not_begun_again(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(replicas=ORDER, isr=ORDER))
    ended = readmit(means_of(twin, journal), [replace(PLAN, readmission=COPIES, resumed=True)])
    assert ended == [Readmitted(partition=PARTITION, broker=3, ended=Ended.REFUSED, why=ENDED_MEANWHILE)]
    assert (open_readmissions(journal), twin.reassigned) == ([], [])


def test_a_hold_that_the_guard_counts_on_stays_and_is_told(journal: Journal) -> None:
    twin = ClusterTwin()
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    journal.lead("guard", now_ms=1, lease_ms=1_000, applies=True)
    counts = Remembered(memory=Memory(hold=Hold(asked_ms=1, found=HOLD, seen_ms=1)))
    journal.remember_all({"orders": counts}, holder="guard", now_ms=1, looked_ms=1)
    said: list[str] = []
    means = means_of(twin, journal)
    means.tell = said.append
    assert readmit(means, []) == []
    assert said == ["topic orders stays held: the guard relies on it and restores it later"]
    assert twin.topics["orders"].overrides == dict(HOLD)


NOW = PartitionNow(replicas=(3, 1, 2), isr=(1, 2, 3), leader=1, in_sync_min=1)


def test_the_steps_are_told_in_their_order() -> None:
    assert PLAN.steps == (
        "take broker 3 out of the assignment: [1, 2]; it cannot lead any more",
        "wait until broker 3 has deleted its copy",
        "hold the topic, and add broker 3 again: it re-replicates",
        "read it and compare it with the others",
        "restore the order of replicas: [3, 1, 2], and let broker 3 lead again",
        "put settings back as they were found",
    )


def test_one_that_is_away_leaves_a_folder_that_is_named_without_obeying_it() -> None:
    hostile = replace(PLAN.readmission, topic="or\x1b[2Jders")
    plan = replace(PLAN, away=True, readmission=hostile)
    assert plan.stray == "or\\x1b[2Jders-0.*-stray"
    assert (
        plan.steps[1]
        == f"wait for broker 3; when it is back it renames its folder to {plan.stray}, which it never deletes"
    )


def test_one_that_was_expelled_already_is_not_taken_out_again() -> None:
    resumed = replace(PLAN, readmission=replace(PLAN.readmission, expelled=True), resumed=True)
    assert resumed.steps == PLAN.steps[1:]


def test_nothing_is_planned_for_one_that_is_right_or_refused() -> None:
    assert (replace(PLAN, judged=RIGHT).needed, replace(PLAN, judged=RIGHT).steps) == (False, ())
    assert replace(PLAN, refusals=("the last copy",)).steps == ()


def test_a_leader_that_is_wrong_itself_is_nobody_to_copy_from() -> None:
    assert no_source(PARTITION, 3, NOW, {1: RIGHT, 2: WRONG, 3: WRONG}) == []
    (reason,) = no_source(PARTITION, 3, NOW, {1: WRONG, 2: RIGHT, 3: WRONG})
    assert reason.startswith("broker 1, which would lead orders-0 and be copied, is wrong itself")
    (reason,) = no_source(PARTITION, 3, replace(NOW, leader=3, isr=(2, 3)), {2: WRONG, 3: WRONG})
    assert reason.startswith("broker 2, which would lead")


def test_names_that_are_left_out_mean_all_of_them() -> None:
    assert Wanted().covers(PARTITION, 3)
    assert Wanted(topics=("orders",), partition=0, broker=3).covers(PARTITION, 3)
    assert not Wanted(topics=("users",)).covers(PARTITION, 3)
    assert not Wanted(topics=("orders",), partition=1).covers(PARTITION, 3)
    assert not Wanted(broker=2).covers(PARTITION, 3)
    assert (Wanted().named, Wanted(broker=2).named) == (False, True)


def read_after_the_guard_was_down(twin: ClusterTwin, journal: Journal, verdict: Verdict) -> list[str]:
    """For three days nobody looked, so that everybody is to be read: broker 3 is found to be so. The alarms."""
    guard = watcher(twin, journal, verdict=None)
    guard.round()
    after(twin, guard, 3 * DAY_MS)
    for broker, judged in ((1, Verdict.RIGHT), (2, Verdict.RIGHT), (3, verdict)):
        reading = Reading(partition=0, broker=broker, verdict=judged, read_ms=twin.now_ms + 1)
        journal.note_reading("orders", reading)
    return kinds(after(twin, guard, 30_000))


@pytest.mark.parametrize("verdict", [Verdict.WRONG, Verdict.UNJUDGED])
def test_one_that_was_to_be_read_and_is_not_right_is_shown_and_planned_for(
    journal: Journal, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = ClusterTwin()
    kind = {Verdict.WRONG: AlarmKind.WRONG, Verdict.UNJUDGED: AlarmKind.UNJUDGED}[verdict]
    assert kind in read_after_the_guard_was_down(twin, journal, verdict)
    for status in (
        journal_status(journal, now_ms=twin.now_ms, why=""),
        ask_status(journal, twin, twin.clock, look_at=lambda: twin.look(None)),  # type: ignore[arg-type]
    ):
        (topic,) = status.topics
        waiting = Waiting(partition=0, broker=3, since_ms=START_MS + 3 * DAY_MS, expelled_ms=None)
        is_wrong = verdict is Verdict.WRONG
        assert topic.waiting == ((waiting,) if is_wrong else ())
        assert [p.state for p in topic.partitions] == [State.TOO_LATE if is_wrong else State.UNJUDGED]
    read = {1: Judged(verdict=Verdict.RIGHT), 2: Judged(verdict=Verdict.RIGHT), 3: Judged(verdict=verdict)}
    monkeypatch.setattr("headstone.guard.readmission.plan.read_replicas", lambda *arguments, **how: read)
    monkeypatch.setattr("headstone.guard.readmission.plan.readmission_commands", lambda *arguments, **how: ())
    (planned,) = plan(
        twin, ClusterAddress(), journal, Wanted(), work=journal.path.parent, limits=Limits(), tell=print
    )  # type: ignore[arg-type]  # fmt: skip
    assert (planned.readmission.broker, planned.judged.verdict, planned.needed) == (3, verdict, True)


class ClusterAddress:
    address, protocol = "k:9092", "PLAINTEXT"


def test_one_that_is_right_or_was_read_before_it_was_back_is_nobodys(journal: Journal) -> None:
    twin = ClusterTwin()
    read_after_the_guard_was_down(twin, journal, Verdict.WRONG)
    memory = journal.memory("orders")
    assert [away.broker for away in suspects(journal, "orders", memory)] == [3]
    early = START_MS + 3 * DAY_MS - 1
    journal.note_reading("orders", Reading(partition=0, broker=3, verdict=Verdict.WRONG, read_ms=early))
    assert suspects(journal, "orders", memory) == ()
    journal.note_reading("orders", Reading(partition=0, broker=3, verdict=Verdict.RIGHT, read_ms=twin.now_ms))
    assert suspects(journal, "orders", memory) == ()
