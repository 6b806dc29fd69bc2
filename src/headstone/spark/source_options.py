"""Options of the data sources, read strictly: an unknown name, or an empty range, is refused.

Otherwise a misspelt option would silently read everything, and a reversed range nothing. Knows no source.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headstone.errors import UsageError
from headstone.retention.policy import NO_LIMIT
from headstone.storage.access import Access
from headstone.storage.secrets import resolved_setting
from headstone.units import DURATION_FORM, parse_duration_ms, parse_moment_ms

STORE = "store."
PARTITION_MAX = (1 << 31) - 1
LATEST, EARLIEST = -1, -2
"""As Kafka's own source has them in its JSON."""
WORDS = {"latest": LATEST, "earliest": EARLIEST}


def refuse_unknown(options: Mapping[str, str], names: Collection[str]) -> None:
    """Spark passes names in lower case. A known name that ends in a dot and NAME stands for all names with that prefix."""
    exact = {name.lower() for name in names}
    prefixes = tuple(name.removesuffix("NAME").lower() for name in names if name.endswith(".NAME"))
    for name in sorted(options):
        if name.lower() not in exact and not name.lower().startswith(prefixes):
            raise UsageError(f"unknown option {name}; there are {', '.join(sorted(names, key=str.lower))}")


def store_access(options: Mapping[str, str]) -> Access:
    """Settings of an object store: `store.endpoint` and so on. References are resolved where queries are planned."""
    given = {name.removeprefix(STORE): value for name, value in options.items() if name.startswith(STORE)}
    return Access.of({name: resolved_setting(name, value) for name, value in given.items()})


def topic_names(text: str) -> tuple[str, ...]:
    """One topic, or several separated by commas, which no topic name contains."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f'topic {text!r}: expected names, such as "orders" or "orders,payments"')
    return names


def require_topics(wanted: Iterable[str], present: Collection[str]) -> None:
    for name in wanted:
        if name not in present:
            raise UsageError(f"no topic {name}; there {'is' if len(present) == 1 else 'are'} {_listed(present)}")


def one_of(name: str, text: str, values: Sequence[str]) -> str:
    if text not in values:
        raise UsageError(f"{name} {text!r}: there are {' and '.join(values)}")
    return text


def truth(name: str, text: str) -> bool:
    return one_of(name, text.lower(), ("true", "false")) == "true"


def positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise UsageError(f"{name} {text!r}: expected a number above 0")
    return int(text)


def duration_ms(name: str, text: str) -> int:
    try:
        span_ms = parse_duration_ms(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error
    if span_ms <= 0:
        raise UsageError(f"{name} {text!r}: expected a duration above 0, such as {DURATION_FORM}")
    return span_ms


def moment_ms(name: str, text: str) -> int:
    try:
        return parse_moment_ms(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


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
            raise UsageError(f"no partition {number}; there {'is' if len(present) == 1 else 'are'} {_listed(present)}")


def _listed(present: Collection[int] | Collection[str]) -> str:
    return ", ".join(map(str, sorted(present))) or "none"


def offset_range(text: str) -> tuple[int, int]:
    """[start, end) from "1000:2000"; either side may be left out."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPerPartition:
    """Where to begin or end. `default`: for partitions that are not named, LATEST or EARLIEST."""

    default: int
    named: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def of(self, topic_partition: tuple[str, int], *, earliest: int, latest: int) -> int:
        offset = self.named.get(topic_partition, self.default)
        return {EARLIEST: earliest, LATEST: latest}.get(offset, offset)


def offset_per_partition(name: str, text: str, *, default: int) -> OffsetPerPartition:
    """ "earliest", "latest", or JSON as Kafka's source takes it: {"orders": {"0": 1000, "1": -2}}."""
    if text in WORDS:
        return OffsetPerPartition(default=WORDS[text])
    wrong = UsageError(
        f'{name} {text!r}: earliest, latest, or offsets by topic and partition, {{"orders": {{"0": 1000}}}}'
    )
    try:
        given = json.loads(text)
    except ValueError as error:
        raise wrong from error
    if not isinstance(given, dict) or not all(isinstance(numbers, dict) for numbers in given.values()):
        raise wrong
    named: dict[tuple[str, int], int] = {}
    for topic, numbers in given.items():
        for number, offset in numbers.items():
            if not number.isdecimal() or not isinstance(offset, int) or not EARLIEST <= offset <= NO_LIMIT:
                raise wrong
            named[topic, int(number)] = offset
    return OffsetPerPartition(default=default, named=named)
