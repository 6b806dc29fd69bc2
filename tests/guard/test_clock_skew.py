"""How far apart brokers' clocks are known to be."""

from __future__ import annotations

import pytest

from headstone.guard.looks.clock_skew import (
    KEPT_MS,
    KEPT_POLLS,
    UNCOMMITTED_MS,
    Clocks,
    Reading,
    Stamps,
    largest_difference_ms,
)
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


@pytest.mark.parametrize(("poll_ms", "kept_ms"), [(30_000, KEPT_MS), (HOUR_MS, KEPT_POLLS * HOUR_MS)])
def test_what_was_proved_is_told_to_every_look_for_a_while_and_not_for_ever(poll_ms: int, kept_ms: int) -> None:
    """Also by a clock that was set back meanwhile; a year ahead counts no longer than an hour ahead."""
    year_ms, now_ms = 365 * 24 * HOUR_MS, 100 * HOUR_MS
    clocks = Clocks(poll_ms=poll_ms)
    assert clocks.difference_ms([Reading(earliest_ms=year_ms, latest_ms=None)], now_ms) == year_ms
    assert clocks.difference_ms([Reading(earliest_ms=5, latest_ms=-7)], now_ms + 1_000) == year_ms + 7
    assert clocks.difference_ms([], now_ms - 60_000) == year_ms + 7
    assert clocks.difference_ms([], now_ms + kept_ms) == year_ms + 7
    assert clocks.difference_ms([], now_ms + kept_ms + 1) == 5 + 7
    assert clocks.difference_ms([], now_ms + kept_ms + 1_001) == 0


def test_a_difference_that_is_proved_again_counts_from_then() -> None:
    clocks = Clocks()
    assert [clocks.difference_ms([Reading(earliest_ms=50, latest_ms=None)], ms) for ms in (0, KEPT_MS)] == [50, 50]
    assert [clocks.difference_ms([], ms) for ms in (2 * KEPT_MS, 2 * KEPT_MS + 1)] == [50, 0]
