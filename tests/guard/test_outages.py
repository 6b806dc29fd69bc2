"""The longest outage that a guard has seen: from when a replica last had everything until it was back, held for or not."""

from __future__ import annotations

import pytest

from headstone.coordination.guard_values import Away, Memory
from headstone.guard.check.facts import learnt_outage_ms
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.outages import Outage, ended, longest_noted
from tests.guard.watching import DRY, after, watcher
from tests.guard.world import MARGINS, START_MS, ClusterTwin, Topic

HOUR_MS = 3_600_000


def outage(twin: ClusterTwin, journal: Journal, hours: int, broker: int = 3) -> None:
    """Looked at every hour; then back, and read where it must be."""
    guard = watcher(twin, journal)
    guard.round()
    twin.stop(broker)
    for _ in range(hours):
        after(twin, guard, HOUR_MS)
    twin.start(broker)
    after(twin, guard, MARGINS.effect_ms, times=4)


def test_an_outage_counts_from_the_departure_and_not_from_the_hold(journal: Journal) -> None:
    twin = ClusterTwin()
    outage(twin, journal, hours=30)
    assert journal.changes()[0].reason.startswith("behind")
    back_ms = START_MS + 30 * HOUR_MS + MARGINS.effect_ms
    longest = Outage(topic="orders", broker=3, from_ms=START_MS - MARGINS.metadata_age_ms, until_ms=back_ms)
    assert longest_noted(journal) == longest
    assert learnt_outage_ms(journal, now_ms=twin.now_ms) == longest.span_ms


def test_an_outage_without_a_hold_counts_and_a_shorter_one_does_not_replace_it(journal: Journal) -> None:
    twin = ClusterTwin()
    spans = []
    for hours, broker in ((5, 3), (2, 2), (7, 1)):
        outage(twin, journal, hours=hours, broker=broker)
        longest = longest_noted(journal)
        assert longest is not None
        spans.append((longest.broker, longest.span_ms // HOUR_MS))
    assert (spans, journal.changes()) == ([(3, 5), (3, 5), (1, 7)], [])


def test_one_that_lasts_counts_up_to_now(journal: Journal) -> None:
    twin = ClusterTwin()
    guard = watcher(twin, journal)
    guard.round()
    assert learnt_outage_ms(journal, now_ms=twin.now_ms) is None
    twin.stop(3)
    after(twin, guard, HOUR_MS)
    assert longest_noted(journal) is None
    assert learnt_outage_ms(journal, now_ms=START_MS + 9 * HOUR_MS) == 9 * HOUR_MS + MARGINS.metadata_age_ms


def test_a_guard_that_only_watches_learns_too_and_one_that_began_late_what_it_saw(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic(isr=(1, 2)))
    guard = watcher(twin, journal, DRY)
    guard.round()
    after(twin, guard, 3 * HOUR_MS)
    twin.start(3)
    after(twin, guard, HOUR_MS)
    assert longest_noted(journal) == Outage(topic="orders", broker=3, from_ms=START_MS, until_ms=twin.now_ms)


@pytest.mark.parametrize(
    "away",
    [
        Away(partition=0, broker=3, since_ms=5, complete_ms=None, unread=True),
        Away(partition=0, broker=3, since_ms=5, complete_ms=None),
        Away(partition=0, broker=3, since_ms=5, complete_ms=2, unread=True),
        Away(partition=0, broker=3, since_ms=5, complete_ms=2, returned_ms=7),
        Away(partition=0, broker=3, since_ms=5, complete_ms=2, too_late=True, order=(1, 2, 3)),
    ],
)
def test_a_new_copy_one_that_nobody_saw_away_and_one_that_is_back_or_taken_out_are_no_outages(away: Away) -> None:
    assert list(ended("orders", Memory(away=(away,)), Memory(), 90)) == []


def test_who_is_taken_out_of_the_assignment_was_away_until_then() -> None:
    away = Away(partition=0, broker=3, since_ms=5, complete_ms=2)
    expelled = Away(partition=0, broker=3, since_ms=5, complete_ms=2, order=(1, 2, 3))
    wanted = [Outage(topic="orders", broker=3, from_ms=2, until_ms=90)]
    assert list(ended("orders", Memory(away=(away,)), Memory(away=(expelled,)), 90)) == wanted
    assert list(ended("orders", Memory(away=(away,)), Memory(), 90)) == wanted
    assert list(ended("orders", Memory(away=(away,)), Memory(away=(away,)), 90)) == []
