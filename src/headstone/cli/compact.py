"""`headstone compact`: one compaction of every partition found.

Parses, asks before a broker's own files are changed, calls the pipeline, renders.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.connections import add_store_arguments, located
from headstone.cli.engines import ON_SPARK, add_engine_arguments, cores, engine_of
from headstone.cli.options import (
    MOMENT,
    add_policy_arguments,
    fields_not_given,
    memory_mb,
    moment_ms,
    offset,
    policy,
    positive,
)
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, UNFINISHED, USAGE
from headstone.errors import Unfinished, UsageError
from headstone.pipeline.memory import TASK_MEMORY_BYTES
from headstone.retention.policy import COORDINATED, KAFKA, RULES

if TYPE_CHECKING:
    from headstone.pipeline.compaction import CompactionRequest, CompactionResult
    from headstone.storage.places import Place

MB = 1 << 20
BOUNDS = ("tombstones_below", "markers_below", "plain_below")
EXAMPLES = (
    "headstone compact /var/lib/kafka/data --out /tmp/compacted",
    "headstone compact broker-1 --out compacted --peer broker-2 --peer broker-3",
    "headstone compact broker-1 --in-place --topic orders --dry-run",
    "headstone compact s3://backups/broker-1 --out s3://backups/compacted --store-conf region=eu-west-1",
)
EXIT_CODES = {
    DONE: "done",
    USAGE: "wrong usage, or no log that can be read whole; nothing was written",
    UNFINISHED: "could not finish, or not every partition",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a partition directory or a log directory, also s3://BUCKET/PREFIX"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--out", type=directory, metavar="DIR",
        help="write a complete new log directory here, which may be s3://BUCKET/PREFIX (default: none)",
    )  # fmt: skip
    where.add_argument("--in-place", action="store_true", help="swap the new segments in, as a broker does")
    parser.add_argument(
        "--clean", action="store_true",
        help="with --out in an object store: take over what another run has begun there and may still be at work on",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="no question before a broker's own directory is changed")
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
    parser.add_argument(
        "--tombstones-below", type=offset, metavar="OFFSET", help="MTRO: older tombstones may go (default: none may)"
    )
    parser.add_argument(
        "--markers-below", type=offset, metavar="OFFSET", help="MXRO: older markers may go (default: none may)"
    )
    parser.add_argument(
        "--plain-below", type=offset, metavar="OFFSET",
        help="committed data below it loses its transactional bit; only where every replica has seen its marker "
        "(default: none)",
    )  # fmt: skip
    parser.add_argument("--peer", type=directory, action="append", default=[], metavar="DIR",
                        help="log directory of another replica, for watermarks of all; may be repeated")  # fmt: skip
    parser.add_argument(
        "--index-keys-max",
        type=positive,
        metavar="N",
        help="Kafka's bounded offset map of N keys (default: any number)",
    )
    parser.add_argument("--task-memory-mb", type=memory_mb, default=TASK_MEMORY_BYTES // MB, metavar="MB",
                        help="a partition whose keys need more is split over tasks (default %(default)s)")  # fmt: skip
    parser.add_argument("--split", choices=("auto", "whole", "shuffle"), default="auto", help=argparse.SUPPRESS)
    parser.add_argument(
        "--now-ms", type=moment_ms, metavar="TIME", help=f"the clock that decides, {MOMENT} (default: now)"
    )
    add_store_arguments(parser)
    add_policy_arguments(parser)
    add_engine_arguments(parser, auto=ON_SPARK)


def directory(text: str) -> str:
    """An empty text would be the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("expected a directory, found an empty text")
    return text


def request(arguments: argparse.Namespace, output: Output) -> CompactionRequest:
    from headstone.pipeline.compaction import CompactionRequest

    if arguments.out is None and not arguments.in_place and not arguments.dry_run:
        raise UsageError("say where the result goes: --out DIR, --in-place, or --dry-run")
    watermarks = arguments.tombstones_below is not None or arguments.markers_below is not None or arguments.peer
    bounds = {f"--{name.replace('_', '-')}": getattr(arguments, name) for name in BOUNDS}
    given = [flag for flag, bound in bounds.items() if bound is not None]
    if arguments.rules == KAFKA and (given or arguments.peer):
        raise UsageError(f"{', '.join(bounds)} and --peer belong to --rules coordinated")
    if arguments.peer and given:
        raise UsageError(f"--peer computes {', '.join(bounds)} from the replicas; leave out {given[0]}")
    if arguments.rules == COORDINATED and not watermarks:
        output.tell(
            "no watermarks (--tombstones-below, --markers-below or --peer): no tombstone or marker goes because of its age"
        )
    return CompactionRequest(
        paths=tuple(located(arguments, path) for path in arguments.paths),
        out=_out(arguments) if arguments.out else None,
        clean=arguments.clean,
        policy=policy(arguments),
        dirty_from=arguments.dirty_from,
        peers=tuple(_peer(arguments, peer) for peer in arguments.peer),
        topics=tuple(arguments.topic),
        all_topics=arguments.all_topics,
        eligible_only=arguments.eligible,
        settings_from_cluster=fields_not_given(arguments),
        clock_given=arguments.now_ms is not None,
        drop_keyless=arguments.drop_keyless,
        force_offline=arguments.force_offline,
        dry_run=arguments.dry_run,
        path=arguments.split,
        task_memory_bytes=arguments.task_memory_mb * MB,
        parallelism=cores(),
        progress=not output.quiet,
    )


def _out(arguments: argparse.Namespace) -> Place:
    from headstone.storage.places import ObjectPlace

    out = located(arguments, arguments.out)
    return out if isinstance(out, ObjectPlace) else Path(str(out)).resolve()


def _peer(arguments: argparse.Namespace, given: str) -> Place:
    from headstone.log.directory import LOG, as_partition
    from headstone.storage.places import ObjectPlace, children, place

    peer = place(located(arguments, given))
    if not peer.is_dir():
        raise UsageError(f"--peer {given}: no such log directory")
    if any(child.name[:1].isdigit() and child.name.endswith(LOG) for child in children(peer)):
        raise UsageError(f"--peer {given} is a partition directory; name the log directory that holds it")
    if isinstance(peer, ObjectPlace):
        inputs = {path.rstrip("/") for path in arguments.paths}
        same = given.rstrip("/") in inputs
    else:
        peer = peer.resolve()
        partitions = [as_partition(Path(path)) for path in arguments.paths]
        same = peer in {partition.log_dir for partition in partitions if partition} or peer in {
            Path(path).resolve() for path in arguments.paths
        }
    if same:
        raise UsageError(f"--peer {given} is what is compacted; name the other replicas")
    return peer


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.pipeline.compaction import compact

    wanted = request(arguments, output)
    if arguments.in_place and not arguments.dry_run and not arguments.yes:
        _ask(arguments.paths)
    with engine_of(arguments, verb="compact", spark_by_default=True) as engine:
        result = compact(wanted, engine, output.tell)
    output.answer(lambda: document(result), lines(result))
    if not output.as_json:
        _warn(result, output)
    return UNFINISHED if result.failed else DONE


def _ask(paths: list[str]) -> None:
    """Before a broker's own files are changed, if there is somebody to ask."""
    from headstone.log.directory import is_broker_directory

    local = [path for path in paths if "://" not in path]
    brokers = [path for path in local if is_broker_directory(Path(path)) or is_broker_directory(Path(path).parent)]
    if not brokers or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(
        f"{', '.join(brokers)}: a broker's own directory; its segments are replaced. Go on? [y/N] ",
        end="",
        file=sys.stderr,
    )
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Unfinished("not confirmed: nothing was changed (--yes goes on without the question)")


def document(result: CompactionResult) -> dict[str, object]:
    return {
        "partitions": [partition.as_json() for partition in result.partitions],
        "failed": [{"partition": failure.partition, "error": str(failure.error)} for failure in result.failed],
        "seconds": round(result.seconds, 3),
    }


def _warn(result: CompactionResult, output: Output) -> None:
    for partition in result.partitions:
        if partition.reasons.get("keyless", 0):
            output.warn(
                f"warning: {partition.partition}: {partition.reasons['keyless']:,} records without a key were dropped"
            )
    for failure in result.failed:
        output.warn(f"{failure.partition}: NOT compacted: {failure.error}")


def lines(result: CompactionResult) -> Iterator[str]:
    for partition in result.partitions:
        yield partition.as_line()
    read = sum(partition.bytes_rewritten for partition in result.partitions)
    if read:
        rate = read / 1e6 / result.seconds
        yield f"{read / 1e6:,.1f} MB read in {result.seconds:.1f} s ({rate:,.1f} MB/s)"
