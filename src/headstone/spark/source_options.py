"""Options of the data sources, read strictly: a name that is not known, or a range that names nothing, is refused.

A misspelt option would otherwise read everything, and a reversed range nothing, without a word. Knows no source.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headstone.errors import UsageError
from headstone.retention.policy import NO_LIMIT

PARTITION_MAX = (1 << 31) - 1


def refuse_unknown(options: Mapping[str, str], known: Collection[str]) -> None:
    """Spark hands names over in lower case. A known name that ends in a dot and NAME stands for all that begin so."""
    exact = {name.lower() for name in known}
    prefixes = tuple(name.removesuffix("NAME").lower() for name in known if name.endswith(".NAME"))
    for name in sorted(options):
        if name.lower() not in exact and not name.lower().startswith(prefixes):
            raise UsageError(f"unknown option {name}; there are {', '.join(sorted(known, key=str.lower))}")


def partition_numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f'partitions {text!r}: expected numbers, such as "0,3"') from error
    for number in numbers:
        if not 0 <= number <= PARTITION_MAX:
            raise UsageError(f"partitions {text!r}: {number} is not between 0 and {PARTITION_MAX}")
    return numbers


def require_partitions(wanted: Iterable[int], present: Collection[int]) -> None:
    for number in wanted:
        if number not in present:
            there = ", ".join(map(str, sorted(present)))
            raise UsageError(f"no partition {number}; there {'is' if len(present) == 1 else 'are'} {there or 'none'}")


def offset_range(text: str) -> tuple[int, int]:
    """[start, end) of "1000:2000"; either side may be left out."""
    start, colon, end = text.partition(":")
    if not colon:
        raise UsageError(f"{text} is not A:B, such as 1000:2000 or 1000:")
    chosen = _offset(start or "0"), _offset(end or str(NO_LIMIT))
    if chosen[0] >= chosen[1]:
        raise UsageError(f"{text} is empty: the first offset must be below the second, which is exclusive")
    return chosen


def _offset(text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an offset") from error
    if not 0 <= value <= NO_LIMIT:
        raise UsageError(f"{text} is not between 0 and {NO_LIMIT}")
    return value
