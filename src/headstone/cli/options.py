"""Values of options that several verbs share: numbers in their ranges, moments, K=V pairs, Kafka's topic settings.

Parsing only; what the values mean is in `retention/policy.py`, the topic settings in `retention/settings.py`.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headstone.errors import UsageError
from headstone.log.topic_partition import TOPIC_NAME
from headstone.retention.policy import DAY_MS, KAFKA, NO_LIMIT, Policy, kafka_rules
from headstone.retention.settings import BY_NAME, CLEANUP_POLICY, INT_MAX, TOPIC_SETTINGS, TopicSetting

TIME_MS_MAX = 253_402_300_799_999
"""The last millisecond of year 9999."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`, for argparse."""

    low: int
    high: int

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {self.low} to {self.high}"
            ) from error
        if not self.low <= value <= self.high:
            raise argparse.ArgumentTypeError(f"{text} is not between {self.low} and {self.high}")
        return value


@dataclass(frozen=True, slots=True)
class Moment(Whole):
    """Milliseconds since 1970, or a time by ISO 8601; without an offset it is UTC."""

    def __call__(self, text: str) -> int:
        try:
            return Whole(self.low, self.high)(text if text.lstrip("-").isdigit() else str(_iso_ms(text)))
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-11-16T09:30:00Z"
            ) from error


def _iso_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


@dataclass(frozen=True, slots=True)
class Duration(Whole):
    """Milliseconds, or a number of seconds, minutes, hours or days: 90s, 15m, 36h, 30d."""

    def __call__(self, text: str) -> int:
        unit = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}.get(text[-1:])
        if unit is None or not text[:-1].isdigit():
            return Whole.__call__(self, text)
        return Whole.__call__(self, str(int(text[:-1]) * unit))


@dataclass(frozen=True, slots=True)
class Share:
    """A number from `low` to `high`, for argparse."""

    low: float = 0.0
    high: float = 1.0

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {self.low:g} to {self.high:g}") from error
        if not self.low <= value <= self.high:  # nan is neither
            raise argparse.ArgumentTypeError(f"{text} is not between {self.low:g} and {self.high:g}")
        return value


@dataclass(frozen=True, slots=True)
class HostPort:
    """HOST:PORT to listen on; [::1]:9464 for IPv6. Port 0: any that is free."""

    def __call__(self, text: str) -> tuple[str, int]:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:9464")
        return host.removeprefix("[").removesuffix("]"), int(port)


class RecordName(NamedTuple):
    """One record of one partition."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"

    @classmethod
    def parse(cls, text: str) -> RecordName:
        match = re.fullmatch(rf"({TOPIC_NAME.pattern})-(\d{{1,10}})@(\d{{1,19}})", text)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not of the form TOPIC-PARTITION@OFFSET, such as orders-0@4711"
            )
        return cls(match[1], partition_number(match[2]), offset(match[3]))


# Every number of the command line has one of these ranges: no other place knows one.
offset = Whole(0, NO_LIMIT)
positive = Whole(1, NO_LIMIT)
partition_number = Whole(0, INT_MAX)
broker_number = Whole(0, INT_MAX)
moment_ms = Moment(0, TIME_MS_MAX)
duration_ms = Whole(0, NO_LIMIT)
"""Kafka's longs: the largest means for ever."""
interval_ms = Whole(1, 365 * DAY_MS)
deadline_ms = Duration(0, TIME_MS_MAX)
report_interval_ms = Duration(1000, 3_600_000)
ratio = Share()
memory_mb = Whole(1, 1 << 24)
record_count = Whole(1, 10**12)
key_count = Whole(0, 10**12)
value_bytes = Whole(0, 1_000_000)
batch_bytes = Whole(1, 64 << 20)
partition_count = Whole(1, 100_000)
producer_count = Whole(1, 1_000_000)
copy_count = Whole(1, 100)
replica_count = Whole(1, 9)
replication_factor = Whole(1, 32767)
seed_number = Whole(0, NO_LIMIT)
seed_count = Whole(1, 10**9)
step_count = Whole(1, 10**6)
process_count = Whole(1, 1024)
MOMENT = "in ms since 1970 or as an ISO 8601 time"


def number_of(setting: TopicSetting) -> Whole | Share:
    return Share(setting.low, setting.high) if setting.kind is float else Whole(int(setting.low), int(setting.high))


segment_bytes = number_of(BY_NAME["segment.bytes"])


def pairs(flag: str, items: Sequence[str], *, such_as: str = "") -> dict[str, str]:
    """Of K=V, given with a flag that may be repeated; a later one wins."""
    values = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {item}: expected K=V" + (f", such as {such_as}" if such_as else ""))
        values[name] = value
    return values


def now_ms(arguments: argparse.Namespace) -> int:
    return time.time_ns() // 1_000_000 if arguments.now_ms is None else int(arguments.now_ms)


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for each topic setting of Kafka's. Their default is None, so that a topic's own setting can be told apart."""
    group = parser.add_argument_group("Kafka's topic settings; in a broker's directory the default is the topic's own")
    for setting in TOPIC_SETTINGS:
        if setting.flag:
            _add_setting(group.add_argument, setting)


def _add_setting(add: Callable[..., Any], setting: TopicSetting) -> None:
    default = "no limit" if setting.default == NO_LIMIT else setting.default
    flag, about = f"--{setting.name.replace('.', '-')}", f"{setting.about} (default {default})"
    if setting.name == CLEANUP_POLICY:
        add(flag, choices=("compact", "compact,delete", "delete,compact"), metavar="POLICY", help=about)
    else:
        add(flag, type=number_of(setting), metavar="N", help=about)


def fields_not_given(arguments: argparse.Namespace) -> frozenset[str]:
    """Fields of the policy that topics' own settings may tell."""
    return frozenset(
        setting.field
        for setting in TOPIC_SETTINGS
        if setting.flag and setting.field and getattr(arguments, setting.option) is None
    )


def policy(arguments: argparse.Namespace) -> Policy:
    """Of the `kafka` rule set, or coordinated with the watermarks given (none given: 0, nothing may go)."""
    numbers: dict[str, Any] = {
        setting.field: getattr(arguments, setting.option)
        for setting in TOPIC_SETTINGS
        if setting.flag and setting.field and setting.name != CLEANUP_POLICY
    }
    common = Policy(
        now_ms=now_ms(arguments),
        **{field: number for field, number in numbers.items() if number is not None},
        index_keys_max=arguments.index_keys_max,
        cleanup_delete="delete" in (arguments.cleanup_policy or ""),
        tombstones_below=arguments.tombstones_below or 0,
        markers_below=arguments.markers_below or 0,
        plain_below=arguments.plain_below or 0,
    )
    return kafka_rules(common) if arguments.rules == KAFKA else common
