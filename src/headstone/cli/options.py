"""Options that several verbs share: clocks, retentions, Spark.

Parsing only; what the values mean is in `retention/policy.py` and `spark/session.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from headstone.errors import UsageError
from headstone.retention.policy import DAY_MS, NO_LIMIT, Policy, kafka_rules

INT_MAX = 2**31 - 1
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


# Every number of the command line has one of these ranges: no other place knows one.
offset = Whole(0, NO_LIMIT)
positive = Whole(1, NO_LIMIT)
partition_number = Whole(0, INT_MAX)
moment_ms = Whole(0, TIME_MS_MAX)
duration_ms = Whole(0, NO_LIMIT)
"""Kafka's longs: the largest means for ever."""
expiration_ms = Whole(1, INT_MAX)
interval_ms = Whole(1, 365 * DAY_MS)
retention_limit = Whole(-1, NO_LIMIT)
"""-1 is no limit."""
ratio = Share()
segment_bytes = Whole(14, INT_MAX)
"""Kafka's own range of segment.bytes; positions in indexes are ints."""
segment_index_bytes = Whole(4, INT_MAX)
index_interval_bytes = Whole(0, INT_MAX)
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


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", help="Spark master (default local[*])")
    group.add_argument("--spark-remote", metavar="URL", help="Spark Connect server, such as sc://host:15002")
    group.add_argument(
        "--spark-conf", metavar="K=V", action="append", default=[], help="a Spark setting; may be repeated"
    )


def spark_conf(arguments: argparse.Namespace) -> Mapping[str, str]:
    settings = {}
    for item in arguments.spark_conf:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise UsageError(f"--spark-conf {item}: expected K=V")
        settings[name] = value
    if arguments.master and arguments.spark_remote:
        raise UsageError("--master and --spark-remote exclude each other; name one")
    return settings


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("rules (names and defaults of Kafka's topic configs)")
    group.add_argument("--now-ms", type=moment_ms, help="the clock that decides, in ms since 1970 (default: now)")
    group.add_argument("--delete-retention-ms", type=duration_ms, default=DAY_MS)
    group.add_argument("--producer-id-expiration-ms", type=expiration_ms, default=DAY_MS)
    group.add_argument("--min-compaction-lag-ms", type=duration_ms, default=0)
    group.add_argument("--max-compaction-lag-ms", type=positive, default=NO_LIMIT)
    group.add_argument("--min-cleanable-dirty-ratio", type=ratio, default=0.5)
    group.add_argument("--segment-bytes", type=segment_bytes, default=1 << 30)
    group.add_argument("--segment-index-bytes", type=segment_index_bytes, default=10 << 20)
    group.add_argument("--index-interval-bytes", type=index_interval_bytes, default=4096)
    group.add_argument("--cleanup-policy", choices=("compact", "compact,delete", "delete,compact"), default="compact",
                       metavar="POLICY", help="compact (default) or compact,delete")  # fmt: skip
    group.add_argument("--retention-ms", type=retention_limit, default=7 * DAY_MS, help="with compact,delete")
    group.add_argument("--retention-bytes", type=retention_limit, default=-1, help="with compact,delete")


def policy(arguments: argparse.Namespace) -> Policy:
    """Of the `kafka` rule set, or coordinated with the watermarks given (none given: 0, nothing may go)."""
    common = Policy(
        now_ms=time.time_ns() // 1_000_000 if arguments.now_ms is None else arguments.now_ms,
        delete_retention_ms=arguments.delete_retention_ms,
        producer_id_expiration_ms=arguments.producer_id_expiration_ms,
        min_compaction_lag_ms=arguments.min_compaction_lag_ms,
        max_compaction_lag_ms=arguments.max_compaction_lag_ms,
        min_cleanable_dirty_ratio=arguments.min_cleanable_dirty_ratio,
        segment_bytes=arguments.segment_bytes,
        segment_index_bytes=arguments.segment_index_bytes,
        index_interval_bytes=arguments.index_interval_bytes,
        index_keys_max=arguments.index_keys_max,
        cleanup_delete="delete" in arguments.cleanup_policy,
        retention_ms=arguments.retention_ms,
        retention_bytes=arguments.retention_bytes,
        tombstones_below=arguments.tombstones_below or 0,
        markers_below=arguments.markers_below or 0,
        plain_below=arguments.plain_below or 0,
    )
    return kafka_rules(common) if arguments.rules == "kafka" else common


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
