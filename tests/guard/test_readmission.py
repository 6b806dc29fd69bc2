"""`guard readmit --apply` beside a guard: what the guard did between a plan and the lock is gone on with, not overwritten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.cluster.questions import Reassignment
from headstone.coordination.guard_values import HOLD, Hold, Memory, Verdict
from headstone.coordination.readmission import Readmission
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Remembered
from headstone.guard.ledger.readmissions import keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import RATE, hold_for_a_while, temporary_changes, throttle_copy
from headstone.guard.readmission.driver import Ended, Means, Readmitted, readmit
from headstone.guard.readmission.plan import ENDED_MEANWHILE, ReadmissionPlan
from headstone.guard.verification.verdicts import Judged
from headstone.log.topic_partition import TopicPartition
from tests.guard.world import ClusterTwin, Topic

PARTITION = TopicPartition("orders", 0)
ORDER = (3, 1, 2)
BEGUN = Readmission(topic="orders", partition=0, broker=3, order=ORDER, topic_id="first")
COPIES = replace(BEGUN, expelled=True, added_ms=7, by_guard=True)
"""As the guard left it: taken out, and added again."""
PLAN = ReadmissionPlan(readmission=BEGUN, judged=Judged(verdict=Verdict.WRONG, why="deleted-reappears"), away=False)


def interrupted(seconds: float) -> None:
    raise KeyboardInterrupt


def means_of(twin: ClusterTwin, journal: Journal) -> Means:
    """Interrupted where it would wait."""
    return Means(
        admin=twin, connection=None, journal=journal, work=journal.path.parent, clock_ms=twin.clock, pause=interrupted,
    )  # type: ignore[arg-type]  # fmt: skip


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
