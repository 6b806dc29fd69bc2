"""`headstone compact`: one compaction of every partition found.

Exit 0 done; 2 wrong usage, or no log that can be read whole (nothing written); 3 could not finish, or not all of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.options import (
    add_policy_arguments,
    add_spark_arguments,
    cores,
    memory_mb,
    offset,
    policy,
    positive,
    spark_conf,
    tell,
)
from headstone.errors import UsageError
from headstone.pipeline.memory import TASK_MEMORY_BYTES
from headstone.retention.policy import COORDINATED, KAFKA, RULES
from headstone.retention.settings import FIELDS

if TYPE_CHECKING:
    from headstone.pipeline.compaction import CompactionRequest, CompactionResult

MB = 1 << 20
TOPIC_OPTIONS = {"cleanup_policy": "cleanup_delete", **{name: name for name in FIELDS - {"cleanup_delete"}}}
"""Options that are topic settings in Kafka, and the field of the policy that each is."""
BOUNDS = ("tombstones_below", "markers_below", "plain_below")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a partition directory or a log directory")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=directory, help="write a complete new log directory here")
    where.add_argument("--in-place", action="store_true", help="swap the new segments in, as a broker does")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done; writes nothing")
    parser.add_argument(
        "--eligible", action="store_true", help="only what the cleaner would choose now, filthiest first"
    )
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    topics.add_argument(
        "--all-topics",
        action="store_true",
        help="in a broker's directory: also topics that nothing tells to be compacted",
    )
    parser.add_argument(
        "--drop-keyless", action="store_true", help="in a broker's directory: drop records without a key"
    )
    parser.add_argument(
        "--force-offline", action="store_true", help="in place although the broker did not stop cleanly"
    )
    parser.add_argument("--rules", choices=RULES, default=COORDINATED,
                        help="tombstones and markers go by time alone, or by time and watermarks (default)")  # fmt: skip
    parser.add_argument(
        "--dirty-from", type=offset, metavar="OFFSET", help="first dirty offset (default: the checkpoint)"
    )
    parser.add_argument("--tombstones-below", type=offset, metavar="OFFSET", help="MTRO: older tombstones may go")
    parser.add_argument("--markers-below", type=offset, metavar="OFFSET", help="MXRO: older markers may go")
    parser.add_argument(
        "--plain-below", type=offset, metavar="OFFSET",
        help="committed data below it loses its transactional bit; only where every replica has seen its marker",
    )  # fmt: skip
    parser.add_argument("--peer", type=directory, action="append", default=[], metavar="DIR",
                        help="log directory of another replica: watermarks are computed from all of them")  # fmt: skip
    parser.add_argument("--index-keys-max", type=positive, metavar="N", help="Kafka's bounded offset map of N keys")
    parser.add_argument("--task-memory-mb", type=memory_mb, default=TASK_MEMORY_BYTES // MB,
                        help="a partition whose keys need more is split over tasks (default %(default)s)")  # fmt: skip
    parser.add_argument("--split", choices=("auto", "whole", "shuffle"), default="auto", help=argparse.SUPPRESS)
    add_policy_arguments(parser)
    parser.set_defaults(topic_defaults={option: parser.get_default(option) for option in TOPIC_OPTIONS})
    parser.set_defaults(**dict.fromkeys(TOPIC_OPTIONS))
    add_spark_arguments(parser)


def directory(text: str) -> Path:
    """An empty text would be the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("expected a directory, found an empty text")
    return Path(text)


def _fields_not_given(arguments: argparse.Namespace) -> frozenset[str]:
    """Fields of the policy that topics' own settings may tell; their options get their defaults."""
    absent = [option for option in TOPIC_OPTIONS if getattr(arguments, option) is None]
    for option in absent:
        setattr(arguments, option, arguments.topic_defaults[option])
    return frozenset(TOPIC_OPTIONS[option] for option in absent)


def request(arguments: argparse.Namespace) -> CompactionRequest:
    from headstone.pipeline.compaction import CompactionRequest

    fields = _fields_not_given(arguments)
    if arguments.out is None and not arguments.in_place and not arguments.dry_run:
        raise UsageError("say where the result goes: --out DIR, --in-place, or --dry-run")
    watermarks = arguments.tombstones_below is not None or arguments.markers_below is not None or arguments.peer
    bounds = {f"--{name.replace('_', '-')}": getattr(arguments, name) for name in BOUNDS}
    given = [flag for flag, bound in bounds.items() if bound is not None]
    if arguments.rules == KAFKA and (given or arguments.peer):
        raise UsageError(f"{', '.join(bounds)} and --peer belong to --rules coordinated")
    if arguments.peer and given:
        raise UsageError(f"--peer computes {', '.join(bounds)} from the replicas; leave out {given[0]}")
    for peer in arguments.peer:
        _check_peer(peer, arguments.paths)
    if arguments.rules == COORDINATED and not watermarks:
        tell(
            "no watermarks (--tombstones-below, --markers-below or --peer): no tombstone or marker goes because of its age"
        )
    return CompactionRequest(
        paths=tuple(arguments.paths),
        out=arguments.out.resolve() if arguments.out else None,
        policy=policy(arguments),
        dirty_from=arguments.dirty_from,
        peers=tuple(peer.resolve() for peer in arguments.peer),
        topics=tuple(arguments.topic),
        all_topics=arguments.all_topics,
        eligible_only=arguments.eligible,
        settings_from_cluster=fields,
        clock_given=arguments.now_ms is not None,
        drop_keyless=arguments.drop_keyless,
        force_offline=arguments.force_offline,
        dry_run=arguments.dry_run,
        path=arguments.split,
        task_memory_bytes=arguments.task_memory_mb * MB,
        parallelism=cores(),
    )


def _check_peer(peer: Path, paths: list[str]) -> None:
    from headstone.log.directory import LOG, as_partition

    if not peer.is_dir():
        raise UsageError(f"--peer {peer}: no such log directory")
    if any(peer.glob("[0-9]*" + LOG)):
        raise UsageError(f"--peer {peer} is a partition directory; name the log directory that holds it")
    partitions = [as_partition(Path(path)) for path in paths]
    inputs = {partition.log_dir for partition in partitions if partition} | {Path(path).resolve() for path in paths}
    if peer.resolve() in inputs:
        raise UsageError(f"--peer {peer} is what is compacted; name the other replicas")


def run(arguments: argparse.Namespace) -> int:
    from headstone.pipeline.compaction import compact
    from headstone.spark.engine import OnSpark
    from headstone.spark.session import StartingSession

    wanted = request(arguments)
    conf = spark_conf(arguments)
    starting = StartingSession(
        app_name="headstone compact", master=arguments.master, remote=arguments.spark_remote, conf=conf
    )
    with starting:
        engine = OnSpark(starting.get, parallelism=wanted.parallelism, begin=starting.begin)
        result = compact(wanted, engine, tell)
    render(result, arguments.output)
    return 3 if result.failed else 0


def render(result: CompactionResult, output: str) -> None:
    if output == "json":
        failed = [{"partition": one.partition, "error": str(one.error)} for one in result.failed]
        document = {
            "partitions": [p.as_json() for p in result.partitions],
            "failed": failed,
            "seconds": round(result.seconds, 3),
        }
        print(json.dumps(document, indent=2))
        return
    for partition in result.partitions:
        print(partition.as_line())
        if partition.reasons.get("keyless", 0):
            tell(f"warning: {partition.partition}: {partition.reasons['keyless']:,} records without a key were dropped")
    for one in result.failed:
        tell(f"{one.partition}: NOT compacted: {one.error}")
    read = sum(partition.bytes_rewritten for partition in result.partitions)
    if read:
        rate = read / 1e6 / result.seconds
        print(f"{read / 1e6:,.1f} MB read in {result.seconds:.1f} s with Spark's start ({rate:,.1f} MB/s)")
