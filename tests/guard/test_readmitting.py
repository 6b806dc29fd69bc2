"""The guard's own readmissions: as `guard readmit` does it, at a limited rate, last in the list until it was read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.coordination.guard_values import HOLD, AlarmKind, Allowed, State, Verdict
from headstone.guard.alarms import REFUSED
from headstone.guard.journal import Journal, Reading
from headstone.guard.loans import RATE, THROTTLED, lend_hold, loans
from headstone.guard.readmission_records import alone, keep_readmission, open_readmissions
from headstone.guard.readmission_steps import Readmission
from headstone.guard.watching import Round, Watcher
from tests.guard.test_watching import ACTS, after, held_at_half_a_day, kinds, states, watcher
from tests.guard.world import CLUSTER_ID, DAY_MS, ClusterTwin, Topic

READMITS = replace(ACTS, allowed=Allowed(readmission=True))
THREE_LEADS = (3, 1, 2)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as opened:
        yield opened


def away_too_long(twin: ClusterTwin, guard: Watcher) -> Round:
    """Holds are refused until broker 3 may have missed something; then they are not."""
    twin.refuses = "not now"
    held_at_half_a_day(twin, guard)
    for _ in range(12):
        result = after(twin, guard, DAY_MS // 24)
    assert (states(result), kinds(result)) == ([State.TOO_LATE], [REFUSED, AlarmKind.TOO_LATE])
    twin.refuses = None
    for _ in range(5):
        result = after(twin, guard, 1_000)
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
    assert (open_readmissions(journal), loans(journal)) == ([], [])


def test_a_fresh_copy_that_is_wrong_again_is_left_to_a_person(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS, verdict=Verdict.WRONG)
    away_too_long(twin, guard)
    for _ in range(8):
        twin.start(3)
        result = looks(twin, guard)
    assert [replicas for _, replicas in twin.reassigned] == [(1, 2), (1, 2, 3)] * 2
    (refused,) = [alarm.detail for alarm in result.alarms if alarm.kind == REFUSED]
    assert refused.startswith("broker 3 copied orders-0 afresh and is still wrong")
    assert [(kept.by_guard, kept.tries) for kept in open_readmissions(journal)] == [(True, 1)]


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
            "broker 3 waits to copy orders-0 afresh: `headstone guard readmit` began that with broker 3 and has not ended it: "
            "run it again with --apply",
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
    lend_hold(twin, journal, "orders", reason="copies afresh", now_ms=1)  # type: ignore[arg-type]
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
    assert (journal.memory("orders").hold, loans(journal)) == (None, [])


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
    journal.note_reading("orders", Reading(partition=0, broker=3, verdict=Verdict.WRONG, read_ms=twin.now_ms))
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


def test_the_readmission_of_a_topic_that_was_deleted_is_over(journal: Journal) -> None:
    twin = twin_led_by_three()
    guard = watcher(twin, journal, READMITS)
    away_too_long(twin, guard)
    journal.forget("orders")
    del twin.topics["orders"]
    assert (looks(twin, guard).alarms, open_readmissions(journal)) == ((), [])
