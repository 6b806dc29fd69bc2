"""Options that several verbs share: clocks, retentions, Spark.

Parsing only; what the values mean is in `retention/policy.py` and `spark/session.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping

from headstone.errors import UsageError
from headstone.retention.policy import DAY_MS, NO_LIMIT, Policy, kafka_rules


def offset(text: str) -> int:
    value = int(text)
    if not 0 <= value <= NO_LIMIT:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {NO_LIMIT}")
    return value


def positive(text: str) -> int:
    value = int(text)
    if not 0 < value <= NO_LIMIT:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def limit(text: str) -> int:
    value = int(text)
    if not -1 <= value <= NO_LIMIT:
        raise argparse.ArgumentTypeError(f"{text} is not -1 (no limit) or more")
    return value


def ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


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
    group.add_argument("--now-ms", type=offset, help="the clock that decides, in ms since 1970 (default: now)")
    group.add_argument("--delete-retention-ms", type=offset, default=DAY_MS)
    group.add_argument("--producer-id-expiration-ms", type=positive, default=DAY_MS)
    group.add_argument("--min-compaction-lag-ms", type=offset, default=0)
    group.add_argument("--max-compaction-lag-ms", type=positive, default=NO_LIMIT)
    group.add_argument("--min-cleanable-dirty-ratio", type=ratio, default=0.5)
    group.add_argument("--segment-bytes", type=positive, default=1 << 30)
    group.add_argument("--segment-index-bytes", type=positive, default=10 << 20)
    group.add_argument("--index-interval-bytes", type=offset, default=4096)
    group.add_argument("--cleanup-policy", choices=("compact", "compact,delete", "delete,compact"), default="compact",
                       metavar="POLICY", help="compact (default) or compact,delete")  # fmt: skip
    group.add_argument("--retention-ms", type=limit, default=7 * DAY_MS, help="with compact,delete")
    group.add_argument("--retention-bytes", type=limit, default=-1, help="with compact,delete")


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
