"""Durations, moments, counts and sizes as people write and read them: the one parser and the one set of words.

Text and numbers only: no clock, no ranges of options, nothing about Kafka. JSON documents keep plain milliseconds and bytes.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1000, 60_000, 3_600_000, 86_400_000
UNITS_MS = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "min": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
DURATION_FORM = "90s, 15m, 12h, 1d, 500ms, or plain milliseconds"
MOMENT_FORM = "2026-11-18T09:30:00Z, 2026-11-18 09:30:00 UTC, or milliseconds since 1970"
MOMENT_MS_MAX = 253_402_300_799_999
"""The last millisecond of year 9999: later times have no calendar date."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_DURATION = re.compile(r"(-?[0-9]+) *([a-z]*)")


def parse_duration_ms(text: str) -> int:
    """A whole number of one unit, or plain milliseconds; ValueError if it is neither."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or (match[2] or "ms") not in UNITS_MS:
        raise ValueError(f"{text!r} is not a duration, such as {DURATION_FORM}")
    return int(match[1]) * UNITS_MS[match[2] or "ms"]


def parse_moment_ms(text: str) -> int:
    """A time in ISO 8601 (UTC, unless it has an offset), or milliseconds since 1970; ValueError if it is neither."""
    text = text.strip()
    if re.fullmatch("[0-9]+", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time, such as {MOMENT_FORM}") from error
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)


def duration(span_ms: int) -> str:
    """The two largest units: 1 d 2 h, 3 min 20 s; milliseconds only below a second. Smaller units are dropped."""
    if span_ms < 0:
        return f"-{duration(-span_ms)}"
    if 0 < span_ms < SECOND_MS:
        return f"{span_ms} ms"
    left_ms = span_ms
    parts: list[str] = []
    for unit in ("d", "h", "min", "s"):
        count, left_ms = divmod(left_ms, UNITS_MS[unit])
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def exact_duration(span_ms: int) -> str:
    """Adds the milliseconds if the words drop some: 23 h 59 min (86377944 ms)."""
    words = duration(span_ms)
    return words if _told_ms(words) == span_ms else f"{words} ({span_ms} ms)"


def _told_ms(words: str) -> int:
    sign = -1 if words.startswith("-") else 1
    numbers = words.removeprefix("-").split()
    return sign * sum(int(count) * UNITS_MS[unit] for count, unit in zip(numbers[::2], numbers[1::2], strict=True))


def brief_duration(span_ms: int) -> str:
    """As a flag takes it, exactly and without a space, in the largest unit that divides it: 30s, 1d, 1500ms."""
    for unit in ("d", "h", "m", "s"):
        if span_ms and span_ms % UNITS_MS[unit] == 0:
            return f"{span_ms // UNITS_MS[unit]}{unit}"
    return f"{span_ms}ms" if span_ms else "0"


def moment(time_ms: int) -> str:
    """UTC, to the second: 2026-11-18 18:40:12 UTC. A time beyond any calendar is shown as never."""
    try:
        return f"{EPOCH + timedelta(seconds=time_ms // SECOND_MS):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return "never"


def exact_moment(time_ms: int) -> str:
    """With the milliseconds since 1970, which commands and documents take: 2026-11-18 18:40:12 UTC (1795027212345)."""
    return f"{moment(time_ms)} ({time_ms})"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """1 partition, 12,000 partitions, 1 key, 2 entries."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(number: float) -> str:
    """In bytes, by thousands, as disks are sold: 512 bytes, 16.6 MB."""
    if number < 1000:
        return count(int(number), "byte")
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.95 or unit == "TB":
            break
    return f"{number:,.1f} {unit}"
