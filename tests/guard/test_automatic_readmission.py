"""The guard's own readmissions: as `guard readmit` does it, at a limited rate, last in the list until it was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headstone.cluster.admin import MayHaveArrived
from headstone.cluster.refusals import NoAnswer
from headstone.coordination.guard_values import HOLD, RATIO, AlarmKind, Allowed, State, Verdict
from headstone.coordination.readmission import Readmission
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import ReplicaReading
from headstone.guard.ledger.readmissions import alone, keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import RATE, THROTTLED, hold_for_a_while, temporary_changes
from headstone.guard.loop.alarms import REFUSED, UNANSWERED
from headstone.guard.loop.rounds import Round
from headstone.guard.loop.watcher import Watcher
from headstone.guard.monitoring.current_status import by_hand
from headstone.guard.readmission.automatic import BY_GUARD, WHY
from tests.guard.watching import ACTS, LIMITS, after, held_at_half_a_day, kinds, states, watcher
from tests.guard.world import DAY_MS, ClusterTwin, Topic

READMITS = replace(ACTS, allowed=Allowed(readmission=True))
THREE_LEADS = (3, 1, 2)


def away_too_long(twin: ClusterTwin, guard: Watcher) -> Round:
    """Holds are refused until broker 3 may have missed something; then they are not."""
    twin.refuses = "not now"
    held_at_half_a_day(twin, guard)
    result = after(twin, guard, DAY_MS // 8, times=4)
    assert (states(result), kinds(result)) == ([State.TOO_LATE], [REFUSED, AlarmKind.TOO_LATE])
    twin.refuses = None
    result = after(twin, guard, 1_000, times=5)
    return result


def looks(twin: ClusterTwin, guard: Watcher, count: int = 3) -> Round:
    for _ in range(count):
        result = after(twin, guard, 1_000)
    return result


def twin_led_by_three() -> ClusterTwin:
    return ClusterTwin(orders=Topic(replicas=THREE_LEADS, isr=THREE_LEADS))


def test_it_copies_at_a_limited_rate_and_gets_its_place_back_only_when_it_was_read(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS)
    away_too_long(twin, guard)
    # While it is away nobody knows whether its old copy is gone: it would go on with that one.
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2)]
    twin.old_copies = {3}
    twin.start(3)
    assert kinds(looks(twin, guard)) == [AlarmKind.TOO_LATE]
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2)]
    twin.old_copies = set()
    looks(twin, guard)
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2), (1, 2, 3)]
    assert (twin.broker_own[3], twin.topics["orders"].overrides[THROTTLED]) == ({RATE: "7000"}, "0:3")
    twin.start(3)
    assert states(looks(twin, guard, 4)) == [State.FINE]
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2), (1, 2, 3), THREE_LEADS]
    assert [str(partition) for partition in twin.elected] == ["orders-0"]
    assert (twin.broker_own[3], twin.topics["orders"].overrides) == ({}, {})
    assert (open_readmissions(journal), temporary_changes(journal)) == ([], [])


def test_the_folder_left_behind_is_told_and_what_the_guard_lends_and_elects_is_journaled_in_its_own_name(
    journal: Journal,
) -> None:
    twin = twin_led_by_three()
    said: list[str] = []
    guard = watcher(twin, journal, READMITS, tell=said.append)
    away_too_long(twin, guard)
    for _ in range(4):
        twin.start(3)
        looks(twin, guard)
    assert [line for line in said if "-stray" in line] == [
        "orders-0 on broker 3: its old folder is called orders-0.*-stray once its broker is back: the broker never deletes it, "
        "you may"
    ]
    throttles = [change for change in journal.changes() if {name for name, _ in change.new} & {RATE, THROTTLED}]
    assert [(change.resource, change.evidence) for change in throttles] == [
        ("broker 3", BY_GUARD), ("topic orders", BY_GUARD), ("broker 3", BY_GUARD), ("topic orders", BY_GUARD),
    ]  # fmt: skip
    (elected,) = [change for change in journal.changes() if change.new == (("leader", "3"),)]
    assert (elected.resource, elected.topic, elected.old) == ("partition orders-0", "orders", (("leader", "1"),))
    assert (elected.reason, elected.evidence, elected.outcome) == ("broker 3 leads again", WHY, "done")


NAMES = ("orders", "parcels", "users")


def topics_away_too_long(twin: ClusterTwin, guard: Watcher, names: Sequence[str] = NAMES) -> None:
    """Broker 3 may have missed something in each of them; it is back, and was taken out of all."""
    twin.refuses = "not now"
    held_at_half_a_day(twin, guard)
    after(twin, guard, DAY_MS // 8, times=4)
    twin.refuses = None
    looks(twin, guard, 5)
    assert sorted((partition.topic, replicas) for partition, replicas in twin.reassigned) == [
        (name, (1, 2)) for name in names
    ]
    twin.start(3)


def copying(twin: ClusterTwin) -> list[str]:
    """By the cluster's own word, each at a limited rate, and nobody else."""
    copies = sorted(name for name, topic in twin.topics.items() if 3 in topic.replicas and 3 not in topic.isr)
    assert [name for name in sorted(twin.topics) if THROTTLED in twin.topics[name].overrides] == copies
    return copies


def twin_of_topics() -> ClusterTwin:
    return ClusterTwin(**{name: Topic(replicas=THREE_LEADS, isr=THREE_LEADS) for name in NAMES})


def test_topics_copy_afresh_one_after_the_other(journal: Journal) -> None:
    twin = twin_of_topics()
    guard = watcher(twin, journal, READMITS)
    topics_away_too_long(twin, guard)
    turns = []
    for _ in NAMES:
        looks(twin, guard, 5)
        (turn,) = copying(twin)
        turns.append(turn)
        changes = len(twin.changes)
        looks(twin, guard, 5)
        assert len(twin.changes) == changes
        twin.start(3)
    assert sorted(turns) == sorted(NAMES)
    result = looks(twin, guard, 5)
    assert {name: states(result, name) for name in NAMES} == {name: [State.FINE] for name in NAMES}
    assert (open_readmissions(journal), temporary_changes(journal), twin.broker_own[3]) == ([], [], {})


def test_so_many_copy_at_once_as_they_were_told_to(journal: Journal) -> None:
    twin = twin_of_topics()
    guard = watcher(twin, journal, READMITS, limits=replace(LIMITS, partitions_at_once=2))
    topics_away_too_long(twin, guard)
    looks(twin, guard, 5)
    assert len(copying(twin)) == 2
    twin.start(3)
    looks(twin, guard, 5)
    assert len(copying(twin)) == 1


@pytest.mark.parametrize(
    ("broker", "alive"), [(1, (1, 2, 3)), (4, (1, 2, 3)), (4, (1, 2, 3, 4))],
    ids=["in sync, and left to a person", "off", "taken out by somebody else"],
)  # fmt: skip
def test_what_copies_nothing_any_more_keeps_nobody_waiting(
    journal: Journal, broker: int, alive: tuple[int, ...]
) -> None:
    twin = twin_of_topics()
    twin.alive = set(alive)
    left = Readmission(topic="orders", partition=0, broker=broker, order=(3, 1, 2), expelled=True, added_ms=7)
    keep_readmission(journal, left)
    guard = watcher(twin, journal, READMITS)
    topics_away_too_long(twin, guard, ("parcels", "users"))
    looks(twin, guard, 5)
    assert len(copying(twin)) == 1


def test_a_copy_that_was_noted_and_not_begun_is_asked_for_again_before_others(journal: Journal) -> None:
    twin = twin_of_topics()
    guard = watcher(twin, journal, READMITS)
    topics_away_too_long(twin, guard)
    noted = open_readmissions(journal)[-1]
    keep_readmission(journal, replace(noted, added_ms=twin.now_ms))
    looks(twin, guard, 5)
    assert copying(twin) == [noted.topic]


def test_a_fresh_copy_that_is_wrong_again_is_left_to_a_person(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS, verdict=Verdict.WRONG)
    away_too_long(twin, guard)
    for _ in range(60):  # shown in its old place it may be an older answer, for as long as those are
        twin.start(3)
        result = looks(twin, guard)
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2), (1, 2, 3)] * 2
    (refused,) = [alarm.detail for alarm in result.alarms if alarm.kind == REFUSED]
    assert refused.startswith("broker 3 re-replicated orders-0 and is still wrong")
    assert [(kept.by_guard, kept.tries) for kept in open_readmissions(journal)] == [(True, 1)]


def test_a_broker_that_does_not_answer_now_and_then_refuses_no_readmission(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS)
    away_too_long(twin, guard)
    twin.fails["reassignments"] = NoAnswer("broker a:9092 does not answer: timed out")
    twin.start(3)
    assert [kinds(looks(twin, guard, 1)) for _ in range(3)] == [
        [AlarmKind.TOO_LATE], [AlarmKind.TOO_LATE], [UNANSWERED, AlarmKind.TOO_LATE],
    ]  # fmt: skip
    twin.fails.clear()
    assert kinds(looks(twin, guard, 1)) == [AlarmKind.TOO_LATE]


def test_one_that_an_operator_has_replaced_is_let_go_and_so_is_its_topic(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS)
    away_too_long(twin, guard)
    assert twin.topics["orders"].replicas == (1, 2)
    twin.topics["orders"].replicas = (1, 2, 4)
    twin.broker_own[4] = {}
    twin.start(4)
    result = looks(twin, guard, 6)
    assert (states(result), open_readmissions(journal), temporary_changes(journal)) == ([State.FINE], [], [])
    assert twin.topics["orders"].overrides.get(RATIO) != dict(HOLD)[RATIO]


def test_what_the_guard_began_a_restarted_one_ends(journal: Journal) -> None:
    twin = twin_led_by_three()
    away_too_long(twin, watcher(twin, journal, READMITS))
    twin.start(3)
    looks(twin, watcher(twin, journal, READMITS))
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2), (1, 2, 3)]
    twin.start(3)
    guard = watcher(twin, journal)
    assert states(looks(twin, guard, 4)) == [State.FINE]
    assert (twin.topics["orders"].replicas, open_readmissions(journal)) == (THREE_LEADS, [])


def test_while_a_person_readmits_the_guard_leaves_it_to_that_one(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS)
    keep_readmission(journal, Readmission(topic="orders", partition=0, broker=3, order=THREE_LEADS))
    result = away_too_long(twin, guard)
    assert (twin.reassigned, [kept.by_guard for kept in open_readmissions(journal)]) == ([], [False])
    assert [(alarm.kind, alarm.detail) for alarm in result.alarms if alarm.kind == REFUSED] == [
        (
            REFUSED,
            "broker 3 waits to re-replicate orders-0: `headstone guard readmit` began with broker 3 and has not finished: run "
            "it again with --apply",
        )
    ]
    keep_readmission(journal, open_readmissions(journal)[0], over=True)
    with alone(journal):
        result = looks(twin, guard)
    assert (twin.reassigned, kinds(result)) == ([], [AlarmKind.TOO_LATE])
    looks(twin, guard)
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2)]


def test_a_hold_that_a_readmission_by_hand_left_stays_as_long_as_the_guard_counts_on_it(journal: Journal) -> None:
    twin = twin_led_by_three()
    copies = Readmission(topic="orders", partition=0, broker=2, order=THREE_LEADS, expelled=True, added_ms=1)
    keep_readmission(journal, copies)
    hold_for_a_while(twin, journal, "orders", reason="re-replicates", evidence="guard readmit", now_ms=1)  # type: ignore[arg-type]
    guard = watcher(twin, journal)
    held_at_half_a_day(twin, guard)
    keep_readmission(journal, copies, over=True)
    result = looks(twin, guard)
    assert (states(result), kinds(result), twin.topics["orders"].overrides) == ([State.HELD], [], dict(HOLD))
    looks(twin, guard)
    assert twin.changes == [("topic orders", dict(HOLD))]
    twin.start(3)
    result = looks(twin, guard)
    assert (states(result), kinds(result), twin.topics["orders"].overrides) == ([State.FINE], [], {})
    assert (journal.memory("orders").hold, temporary_changes(journal)) == (None, [])


def test_a_dry_run_only_says_so(journal: Journal) -> None:
    twin = twin_led_by_three()
    away_too_long(twin, watcher(twin, journal, READMITS))
    twin.start(3)
    changes = len(twin.changes)
    journal.stand_down(ACTS.name)
    looks(twin, watcher(twin, journal, replace(READMITS, applies=False, name="dry")))
    assert ([replicas for _, replicas in twin.reassigned], len(twin.changes)) == ([(1, 2)], changes)


def test_a_reading_of_the_old_copy_says_nothing_of_the_new_one(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS)
    away_too_long(twin, guard)
    journal.note_reading("orders", ReplicaReading(partition=0, broker=3, verdict=Verdict.WRONG, read_ms=twin.now_ms))
    twin.start(3)
    looks(twin, guard)
    twin.start(3)
    looks(twin, watcher(twin, journal, READMITS, verdict=None))
    assert [(kept.expelled, kept.tries) for kept in open_readmissions(journal)] == [(True, 0)]
    looks(twin, guard)
    assert (twin.topics["orders"].replicas, open_readmissions(journal)) == (THREE_LEADS, [])


def test_a_fresh_copy_that_is_wrong_stays_if_readmission_is_no_more_allowed(journal: Journal) -> None:
    twin = twin_led_by_three()
    away_too_long(twin, watcher(twin, journal, READMITS))
    twin.start(3)
    looks(twin, watcher(twin, journal, READMITS))
    twin.start(3)
    result = looks(twin, watcher(twin, journal, verdict=Verdict.WRONG))
    assert ([replicas for _, replicas in twin.reassigned], kinds(result)) == ([(1, 2), (1, 2, 3)], [AlarmKind.WRONG])


def unanswering_twin() -> ClusterTwin:
    """Never carries a reassignment out, and never says so."""
    twin = ClusterTwin()
    twin.fails["reassign"] = MayHaveArrived("no answer")
    return twin


@pytest.mark.parametrize("allowed", [Allowed(readmission=True), Allowed()], ids=["right", "not allowed any more"])
def test_one_that_need_not_leave_any_more_keeps_no_other_replica_from_leaving(
    journal: Journal, allowed: Allowed
) -> None:
    twin = unanswering_twin()
    away_too_long(twin, watcher(twin, journal, READMITS))
    assert [(kept.broker, kept.expelled) for kept in open_readmissions(journal)] == [(3, False)]
    guard = watcher(twin, journal, replace(READMITS, allowed=allowed))
    twin.start(3)
    looks(twin, guard)
    journal.note_reading("orders", ReplicaReading(partition=0, broker=3, verdict=Verdict.RIGHT, read_ms=twin.now_ms))
    result = after(twin, guard, 30_000, times=12)
    assert (states(result), open_readmissions(journal), by_hand(journal)) == ([State.FINE], [], {})
    twin.fails.clear()
    twin.refuses = "not now"
    twin.stop(2)
    guard = watcher(twin, journal, READMITS)
    after(twin, guard, DAY_MS // 8, times=10)
    assert twin.reassigned == []  # nobody is taken out on suspicion where nothing holds the topic
    twin.refuses = None
    looks(twin, guard)
    assert [replicas for _, replicas in twin.reassigned] == [(1, 3)]


def test_one_that_is_still_to_leave_is_not_forgotten_while_only_others_are_looked_at(journal: Journal) -> None:
    twin = unanswering_twin()
    guard = watcher(twin, journal, READMITS)
    away_too_long(twin, guard)
    kept = open_readmissions(journal)
    assert [each.topic for each in kept] == ["orders"]
    twin.topics["parcels"] = Topic()
    guard.round(["parcels"])
    assert open_readmissions(journal) == kept


def test_the_readmission_of_a_topic_that_was_deleted_is_over(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS)
    away_too_long(twin, guard)
    journal.forget("orders")
    del twin.topics["orders"]
    assert (looks(twin, guard).alarms, open_readmissions(journal)) == ((), [])
