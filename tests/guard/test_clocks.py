"""How far apart brokers' clocks are known to be."""

from __future__ import annotations

import pytest

from headstone.guard.clocks import UNCOMMITTED_MS, Clocks, Reading, Stamps, largest_difference_ms
from headstone.log.topic_partition import TopicPartition

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("readings", "difference_ms"),
    [
        ([], 0),
        ([(-50, 20), (None, None)], 0),
        ([(HOUR_MS, None), (-50, 20)], HOUR_MS),
        ([(-HOUR_MS, None)], 0),
        ([(None, -HOUR_MS)], HOUR_MS),
        ([(HOUR_MS, None), (-2 * HOUR_MS, -HOUR_MS)], 2 * HOUR_MS),
    ],
    ids=["nothing told", "right as far as told", "ahead", "an old timestamp says nothing", "behind", "both"],
)
def test_only_what_is_certain_counts(readings: list[tuple[int | None, int | None]], difference_ms: int) -> None:
    bounds = [Reading(earliest_ms=earliest, latest_ms=latest) for earliest, latest in readings]
    assert largest_difference_ms(bounds) == difference_ms


def test_a_timestamp_that_came_since_and_is_older_than_the_last_look_proves_a_clock_behind() -> None:
    """An old one says nothing: nobody knows when it was written."""
    offsets, clocks = TopicPartition("__consumer_offsets", 0), Clocks()

    def read(newest_ms: int, asked_ms: int) -> Reading:
        return clocks.reading(Stamps(newest_ms={offsets: newest_ms}, asked_ms=asked_ms, answered_ms=asked_ms + 10))

    assert read(5_000, 9_000_000) == Reading(earliest_ms=5_000 - 9_000_010, latest_ms=None)
    assert read(5_000, 9_030_000).latest_ms is None
    assert read(6_000, 9_060_000).latest_ms == 6_000 - 9_030_000 + UNCOMMITTED_MS
    assert clocks.reading(Stamps(newest_ms={}, asked_ms=0, answered_ms=1)) == Reading(earliest_ms=None, latest_ms=None)


def test_a_timestamp_in_the_future_counts_when_it_is_first_seen_and_not_for_as_long_as_its_record_lives() -> None:
    offsets, clocks = TopicPartition("__consumer_offsets", 0), Clocks()

    def skew_ms(newest_ms: int, hours: int) -> int:
        now_ms = hours * HOUR_MS
        stamps = Stamps(newest_ms={offsets: newest_ms}, asked_ms=now_ms, answered_ms=now_ms)
        return largest_difference_ms([clocks.reading(stamps)])

    assert [skew_ms(10 * HOUR_MS, 0), skew_ms(10 * HOUR_MS, 1), skew_ms(10 * HOUR_MS, 2)] == [10 * HOUR_MS, 0, 0]
    assert skew_ms(10 * HOUR_MS + 5, 2) == 8 * HOUR_MS + 5
