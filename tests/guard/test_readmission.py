"""Readmissions: what a plan says of them, whom it is for, and what a person goes on with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.cluster.questions import Reassignment
from headstone.coordination.guard_values import HOLD, AlarmKind, Hold, Memory, State, Verdict
from headstone.coordination.readmission import (
    PartitionNow,
    Readmission,
)
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import RememberedTopic, ReplicaReading
from headstone.guard.ledger.readmissions import keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import RATE, hold_for_a_while, temporary_changes, throttle_copy
from headstone.guard.monitoring.current_status import ask_status, journal_status
from headstone.guard.monitoring.status import Waiting
from headstone.guard.readmission.candidates import suspects
from headstone.guard.readmission.driver import Ended, Readmitted, readmit
from headstone.guard.readmission.plan import ENDED_MEANWHILE, CopyLimits, ReadmissionPlan, Wanted, no_source, plan
from headstone.guard.verification.verdicts import JudgedReplica
from headstone.log.topic_partition import TopicPartition
from tests.guard.watching import after, kinds, means_of, watcher
from tests.guard.world import DAY_MS, START_MS, ClusterTwin, Topic

PARTITION = TopicPartition("orders", 0)
ORDER = (3, 1, 2)
BEGUN = Readmission(topic="orders", partition=0, broker=3, order=ORDER, topic_id="first")
COPIES = replace(BEGUN, expelled=True, added_ms=7, by_guard=True)
"""As the guard left it: taken out, and added again."""
RIGHT, WRONG = JudgedReplica(verdict=Verdict.RIGHT), JudgedReplica(verdict=Verdict.WRONG, why="deleted-reappears")
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
    "stale", [PLAN, replace(PLAN, resumed=True), replace(PLAN, judged=JudgedReplica(verdict=Verdict.RIGHT))]
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
    counts = RememberedTopic(memory=Memory(hold=Hold(asked_ms=1, found=HOLD, seen_ms=1)))
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
        reading = ReplicaReading(partition=0, broker=broker, verdict=judged, read_ms=twin.now_ms + 1)
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
    read = {
        1: JudgedReplica(verdict=Verdict.RIGHT),
        2: JudgedReplica(verdict=Verdict.RIGHT),
        3: JudgedReplica(verdict=verdict),
    }
    monkeypatch.setattr("headstone.guard.readmission.plan.read_replicas", lambda *arguments, **how: read)
    monkeypatch.setattr("headstone.guard.readmission.plan.readmission_commands", lambda *arguments, **how: ())
    (planned,) = plan(
        twin, ClusterAddress(), journal, Wanted(), work=journal.path.parent, limits=CopyLimits(), tell=print
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
    journal.note_reading("orders", ReplicaReading(partition=0, broker=3, verdict=Verdict.WRONG, read_ms=early))
    assert suspects(journal, "orders", memory) == ()
    journal.note_reading("orders", ReplicaReading(partition=0, broker=3, verdict=Verdict.RIGHT, read_ms=twin.now_ms))
    assert suspects(journal, "orders", memory) == ()
