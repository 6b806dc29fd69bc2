"""Values of options that several verbs share: numbers in their ranges, times, K=V pairs, Kafka's topic settings.

Parsing only; `retention/policy.py` has the meaning of the values, `retention/settings.py` the topic settings.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headstone.agent.defaults import REPORT_INTERVAL_MS
from headstone.bounds import (
    COUNT,
    DEADLINE_MS,
    DURATION_MS,
    INT_MAX,
    INTERVAL_MS,
    LONG_MAX,
    MOMENT_MS,
    OFFSET,
    PARTITION_COUNT,
    PARTITION_NUMBER,
    REPLICATION_FACTOR,
    SHARE,
    TASK_MEMORY_BYTES,
)
from headstone.errors import UsageError
from headstone.log.topic_partition import TOPIC_NAME, TOPIC_NAME_RULE
from headstone.retention.policy import NO_LIMIT
from headstone.retention.settings import BY_NAME, CLEANUP_POLICIES, CLEANUP_POLICY, TOPIC_SETTINGS, TopicSetting
from headstone.units import brief_duration, duration, parse_duration_ms, parse_moment_ms


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
    """A time, as `units.parse_moment_ms` reads it."""

    def __call__(self, text: str) -> int:
        try:
            return Whole(self.low, self.high)(str(parse_moment_ms(text)))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Duration(Whole):
    """A duration in milliseconds, as `units.parse_duration_ms` reads it."""

    def __call__(self, text: str) -> int:
        try:
            value = parse_duration_ms(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        if not self.low <= value <= self.high:
            widest = "" if self.high == NO_LIMIT else f" ({duration(self.high)})"
            raise argparse.ArgumentTypeError(f"{text} is not between {self.low} and {self.high} ms{widest}")
        return value


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


def topic_name(text: str) -> str:
    """A name that Kafka accepts for a new topic."""
    if not TOPIC_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid topic name: {TOPIC_NAME_RULE}")
    return text


@dataclass(frozen=True, slots=True)
class HostPort:
    """HOST:PORT to listen on; [::1]:9464 for IPv6. Port 0: any free port."""

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
                f"{text!r} does not have the form TOPIC-PARTITION@OFFSET, such as orders-0@4711"
            )
        return cls(match[1], partition_number(match[2]), offset(match[3]))


# Every number on the command line has one of these ranges. Those that a program may give too are in `bounds`.
offset = Whole(*OFFSET)
positive = Whole(*COUNT)
partition_number = Whole(*PARTITION_NUMBER)
broker_number = Whole(0, INT_MAX)
moment_ms = Moment(*MOMENT_MS)
duration_ms = Duration(*DURATION_MS)
interval_ms = Duration(*INTERVAL_MS)
deadline_ms = Duration(*DEADLINE_MS)
report_interval_ms = Duration(*REPORT_INTERVAL_MS)
ratio = Share(*SHARE)
memory_mb = Whole(1, TASK_MEMORY_BYTES.high >> 20)
record_count = Whole(1, 10**12)
key_count = Whole(0, 10**12)
value_bytes = Whole(0, 1_000_000)
batch_bytes = Whole(1, 64 << 20)
partition_count = Whole(*PARTITION_COUNT)
producer_count = Whole(1, 1_000_000)
copy_count = Whole(1, 100)
replica_count = Whole(1, 9)
replication_factor = Whole(*REPLICATION_FACTOR)
seed_number = Whole(0, LONG_MAX)
seed_count = Whole(1, 10**9)
step_count = Whole(1, 10**6)
process_count = Whole(1, 1024)


def number_of(setting: TopicSetting) -> Whole | Share:
    if setting.kind is float:
        return Share(setting.low, setting.high)
    kind = Duration if setting.is_duration else Whole
    return kind(int(setting.low), int(setting.high))


segment_bytes = number_of(BY_NAME["segment.bytes"])


def pairs(flag: str, items: Sequence[str], *, such_as: str = "") -> dict[str, str]:
    """K=V pairs of a flag that may be repeated; a later one wins."""
    values = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {item}: expected K=V" + (f", such as {such_as}" if such_as else ""))
        values[name] = value
    return values


def add_topic_argument(add: argparse.ArgumentParser | argparse._ArgumentGroup, about: str = "only this topic") -> None:
    add.add_argument("--topic", action="append", default=[], help=f"{about}; may be repeated")


def now_ms(arguments: argparse.Namespace) -> int:
    return time.time_ns() // 1_000_000 if arguments.now_ms is None else int(arguments.now_ms)


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each of Kafka's topic settings. Their default is None, so that a topic's own setting can be told
    apart."""
    group = parser.add_argument_group("Kafka's topic settings; in a broker's directory the default is the topic's own")
    for setting in TOPIC_SETTINGS:
        if setting.flag:
            _add_setting(group.add_argument, setting)


def _add_setting(add: Callable[..., Any], setting: TopicSetting) -> None:
    default = "no limit" if setting.default == NO_LIMIT else setting.default
    if setting.is_duration and setting.default != NO_LIMIT:
        default = brief_duration(setting.default)
    flag, about = f"--{setting.name.replace('.', '-')}", f"{setting.about} (default {default})"
    if setting.name == CLEANUP_POLICY:
        add(flag, choices=[policy for policy in CLEANUP_POLICIES if "compact" in policy], metavar="POLICY", help=about)
    else:
        add(flag, type=number_of(setting), metavar="DURATION" if setting.is_duration else "N", help=about)


def topic_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Those that were given, by Kafka's names."""
    given = {setting.name: getattr(arguments, setting.option) for setting in TOPIC_SETTINGS if setting.flag}
    return {name: str(value) for name, value in given.items() if value is not None}
