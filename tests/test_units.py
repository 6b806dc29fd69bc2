"""What people type is read exactly, and what they read can be typed back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstone.units import (
    brief_duration,
    count,
    duration,
    exact_duration,
    exact_moment,
    moment,
    parse_duration_ms,
    parse_moment_ms,
    size,
)

SPANS_MS = st.integers(0, 10**15)
MOMENTS_MS = st.integers(0, 253_402_300_799_999)


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [
        ("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("15min", 900_000), ("12h", 43_200_000), ("1d", 86_400_000),
        ("30000", 30_000), ("0", 0), (" 30 s ", 30_000), ("-1", -1), ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_and_a_unit_or_milliseconds(text: str, span_ms: int) -> None:
    assert parse_duration_ms(text) == span_ms


@pytest.mark.parametrize("text", ["", "s", "1.5h", "1y", "1d12h", "0x10", "1_000", "٣s", "one day", "--1", "1S"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"{text!r} is not a duration, such as 90s, 15m, 12h, 1d, 500ms, or")
    ):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0), ("1795027212345", 1_795_027_212_345), ("2026-11-18T18:40:12.345Z", 1_795_027_212_345),
        ("2026-11-18 18:40:12 UTC", 1_795_027_212_000), ("2026-11-18 18:40:12", 1_795_027_212_000),
        ("2026-11-18T20:40:12+02:00", 1_795_027_212_000), ("2026-11-18", 1_794_960_000_000),
        ("1969-12-31T23:59:59.999Z", -1),
    ],
)  # fmt: skip
def test_a_moment_is_a_time_or_milliseconds(text: str, time_ms: int) -> None:
    assert parse_moment_ms(text) == time_ms


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "2026-13-01", "18:40"])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is not a time, such as 2026-11-18T09:30:00Z, ")):
        parse_moment_ms(text)


@pytest.mark.parametrize(
    ("span_ms", "words", "exactly"),
    [
        (0, "0 s", None), (1, "1 ms", None), (999, "999 ms", None), (1000, "1 s", None), (60_000, "1 min", None),
        (200_000, "3 min 20 s", None), (86_400_000, "1 d", None), (93_600_000, "1 d 2 h", None),
        (59_999, "59 s", "59 s (59999 ms)"), (86_377_944, "23 h 59 min", "23 h 59 min (86377944 ms)"),
        (-86_377_944, "-23 h 59 min", "-23 h 59 min (-86377944 ms)"),
    ],
)  # fmt: skip
def test_a_duration_in_words_and_exactly_where_words_drop_something(
    span_ms: int, words: str, exactly: str | None
) -> None:
    assert (duration(span_ms), exact_duration(span_ms)) == (words, exactly or words)


@given(SPANS_MS)
def test_a_duration_is_told_as_a_flag_takes_it(span_ms: int) -> None:
    assert parse_duration_ms(brief_duration(span_ms)) == span_ms


@given(SPANS_MS)
def test_words_drop_less_than_the_smaller_of_their_units_and_the_exact_form_drops_nothing(span_ms: int) -> None:
    told_ms = [parse_duration_ms(part) for part in re.findall(r"\d+ [a-z]+", duration(span_ms))]
    unit_ms = parse_duration_ms("1" + duration(span_ms).split()[-1])
    assert 0 <= span_ms - sum(told_ms) < {1: 1, 1000: 60_000, 60_000: 3_600_000}.get(unit_ms, 86_400_000)
    exactly = re.search(r"\((\d+) ms\)", exact_duration(span_ms))
    assert (int(exactly[1]) if exactly else sum(told_ms)) == span_ms


@given(MOMENTS_MS)
def test_a_moment_that_is_shown_can_be_given_back(time_ms: int) -> None:
    assert parse_moment_ms(moment(time_ms)) == time_ms // 1000 * 1000
    assert exact_moment(time_ms) == f"{moment(time_ms)} ({time_ms})"


def test_a_moment_beyond_the_calendar_is_never() -> None:
    assert (moment(2**63 - 1), moment(1_795_027_212_345)) == ("never", "2026-11-18 18:40:12 UTC")


def test_one_is_singular() -> None:
    assert [count(n, "partition") for n in (0, 1, 2, 12_000)] == [
        "0 partitions", "1 partition", "2 partitions", "12,000 partitions",
    ]  # fmt: skip
    assert [count(n, "batch", "batches") for n in (1, 2)] == ["1 batch", "2 batches"]


def test_a_size_is_told_by_thousands() -> None:
    sizes = {0: "0 bytes", 1: "1 byte", 999: "999 bytes", 1000: "1.0 kB", 16_622_881: "16.6 MB", 999_960: "1.0 MB",
             999_940: "999.9 kB", 5 * 10**15: "5,000.0 TB"}  # fmt: skip
    assert {number: size(number) for number in sizes} == sizes
