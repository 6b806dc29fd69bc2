"""`headstone compact`: one compaction of every partition found.

Parses, asks before a broker's own files are changed, makes one call, renders.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.api.settings import CompactionSettings
from headstone.cli.connections import add_store_arguments, located
from headstone.cli.engines import ON_SPARK, CommandRunner, add_engine_arguments, always_large, tell_small
from headstone.cli.options import (
    add_policy_arguments,
    add_topic_argument,
    memory_mb,
    moment_ms,
    offset,
    positive,
    topic_settings,
)
from headstone.cli.output import Output, confirm, is_somebody_there
from headstone.cli.parsing import DONE, UNFINISHED, USAGE
from headstone.pipeline.machine import PATHS
from headstone.retention.policy import RULES

if TYPE_CHECKING:
    from headstone.pipeline.compaction import CompactionRequest, CompactionResult

DEFAULTS = CompactionSettings()
MB = 1 << 20
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
        "--eligible", action="store_true", help="only what the cleaner would choose now, dirtiest first"
    )
    topics = parser.add_mutually_exclusive_group()
    add_topic_argument(topics)
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
    parser.add_argument("--rules", choices=RULES, default=DEFAULTS.rules,
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
    parser.add_argument("--task-memory-mb", type=memory_mb, default=DEFAULTS.task_memory_bytes // MB, metavar="MB",
                        help="a partition whose keys need more is split over tasks (default %(default)s)")  # fmt: skip
    parser.add_argument("--split", choices=PATHS, default=DEFAULTS.path, help=argparse.SUPPRESS)
    parser.add_argument("--now-ms", type=moment_ms, metavar="TIME", help="the clock that decides (default: now)")
    add_store_arguments(parser)
    add_policy_arguments(parser)
    add_engine_arguments(parser, auto=ON_SPARK)


def directory(text: str) -> str:
    """Refuses an empty text, which would be the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("expected a directory, found an empty text")
    return text


def request(arguments: argparse.Namespace, output: Output) -> CompactionRequest:
    from headstone.api.compacting import request_of

    return request_of(
        tuple(arguments.paths), _settings(arguments), out=arguments.out, in_place=arguments.in_place,
        dry_run=arguments.dry_run, reach=partial(located, arguments), progress=not output.quiet, says=_flag,
    )  # fmt: skip


def _flag(name: str) -> str:
    return {"peers": "--peer"}.get(name, f"--{name.replace('_', '-')}")


def _settings(arguments: argparse.Namespace) -> CompactionSettings:
    return CompactionSettings(
        rules=arguments.rules,
        topics=tuple(arguments.topic),
        all_topics=arguments.all_topics,
        eligible_only=arguments.eligible,
        topic_settings=topic_settings(arguments),
        now_ms=arguments.now_ms,
        dirty_from=arguments.dirty_from,
        tombstones_below=arguments.tombstones_below,
        markers_below=arguments.markers_below,
        plain_below=arguments.plain_below,
        peers=tuple(arguments.peer),
        index_keys_max=arguments.index_keys_max,
        task_memory_bytes=arguments.task_memory_mb * MB,
        path=arguments.split,
        drop_keyless=arguments.drop_keyless,
        force_offline=arguments.force_offline,
        clean=arguments.clean,
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.api.compacting import carry_out

    wanted = request(arguments, output)
    if arguments.in_place and not arguments.dry_run and not arguments.yes:
        _ask(arguments.paths)
    result = carry_out(wanted, CommandRunner(arguments, output, verb="compact", large=always_large), says=_flag)
    output.answer(result.as_json, lines(result))
    size = sum(partition.bytes_rewritten for partition in result.partitions)
    tell_small(arguments, output, size=size, seconds=result.seconds)
    _warn(result, output, out=arguments.out)
    return UNFINISHED if result.failed else DONE


def _ask(paths: list[str]) -> None:
    """Asks before a broker's own files are changed, if a person is there to answer."""
    from headstone.log.directory import is_broker_directory

    local = [path for path in paths if "://" not in path]
    brokers = [path for path in local if is_broker_directory(Path(path)) or is_broker_directory(Path(path).parent)]
    if brokers and is_somebody_there():
        what = f"{', '.join(brokers)}: a broker's own directory; its segments are replaced"
        confirm(what, hint=" (--yes goes on without the question)")


def _warn(result: CompactionResult, output: Output, *, out: str | None) -> None:
    from headstone.pipeline.failed_partition import failed_lines

    done = len(result.partitions) + len(result.done_before)
    output.warn(*failed_lines(result.failed, "compacted", done=done))
    if result.failed and out is not None:
        output.warn(
            f"{out} is unfinished, and no broker starts from it: mend what is named, then run the same command again; it goes "
            "on there"
        )


def lines(result: CompactionResult) -> Iterator[str]:
    from headstone.pipeline.report import read_in

    for name in result.done_before:
        yield f"{name}: done by an earlier run of this command"
    for partition in result.partitions:
        yield partition.as_line()
    read = sum(partition.bytes_rewritten for partition in result.partitions)
    if read:
        yield read_in(read, result.seconds)
