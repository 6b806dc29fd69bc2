"""What a plan says before anything happens: the steps in words, the folder that stays behind, and whom not to copy from."""

from __future__ import annotations

from dataclasses import replace

from headstone.coordination.guard_values import Verdict
from headstone.coordination.readmission import PartitionNow, Readmission
from headstone.guard.readmission.plan import ReadmissionPlan, Wanted, no_source
from headstone.guard.verification.verdicts import Judged
from headstone.log.topic_partition import TopicPartition

PARTITION = TopicPartition("orders", 0)
RIGHT, WRONG = Judged(verdict=Verdict.RIGHT), Judged(verdict=Verdict.WRONG, why="deleted-reappears")
NOW = PartitionNow(replicas=(3, 1, 2), isr=(1, 2, 3), leader=1, in_sync_min=1)
PLAN = ReadmissionPlan(
    readmission=Readmission(topic="orders", partition=0, broker=3, order=(3, 1, 2)), judged=WRONG, away=False
)


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
