"""`headstone lake topics|retain`: topics of a lake are listed, made, altered and dropped; old records are let go.

Calls and renders; settings are checked in `retention/settings.py`, what has expired is decided in `lake/expiry.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headstone.cli.lake_opening import open_named
from headstone.cli.options import pairs
from headstone.cli.output import Output
from headstone.cli.parsing import DONE
from headstone.errors import Unfinished, UsageError

if TYPE_CHECKING:
    from headstone.lake.lake import Lake
    from headstone.lake.topics import TopicRow


def topics(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.verb != "list" and arguments.topic is None:
        raise UsageError(f"name the topic to {arguments.verb}")
    lake = open_named(arguments)
    try:
        return _VERBS[arguments.verb](arguments, lake, output)
    finally:
        lake.close()


def _list(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    from headstone.lake.topics import topic_rows

    del arguments
    rows = topic_rows(lake)
    output.answer(lambda: {"topics": [_document(row) for row in rows]}, map(_listed, rows))
    return DONE


def _listed(row: TopicRow) -> str:
    records, size = sum(part.records for part in row.partitions), sum(part.bytes for part in row.partitions)
    return (
        f"{row.topic}: {len(row.partitions)} partitions, {records:,} records, {size / 1e6:,.1f} MB, "
        f"cleanup.policy {_policy(row)}, id {row.kafka_id or 'unknown'}"
    )


def _policy(row: TopicRow) -> str:
    from headstone.retention.settings import CLEANUP_POLICY, setting_of

    return str(setting_of(row.settings, CLEANUP_POLICY))


def _document(row: TopicRow) -> dict[str, Any]:
    return {**asdict(row), "cleanup_policy": _policy(row)}


def _named(lake: Lake, topic: str) -> TopicRow:
    from headstone.lake.topics import topic_rows

    for row in topic_rows(lake):
        if row.topic == topic:
            return row
    raise UsageError(f"the lake has no topic {topic}")


def _describe(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    row = _named(lake, arguments.topic)
    output.answer(lambda: _document(row), _described(row))
    return DONE


def _described(row: TopicRow) -> Iterator[str]:
    yield f"{row.topic}: id {row.kafka_id or 'unknown'}, cleanup.policy {_policy(row)}"
    for name, value in sorted(row.settings.items()):
        yield f"  {name}={value}"
    for part in row.partitions:
        yield (
            f"  {row.topic}-{part.partition}: [{part.start_offset}, {part.next_offset}), {part.records:,} records, "
            f"{part.bytes / 1e6:,.1f} MB in {part.extents} extents, epoch {part.compaction_epoch}"
        )


def _create(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    from headstone.lake.topics import create_topic

    create_topic(lake, arguments.topic, arguments.partitions, pairs("--conf", arguments.conf))
    return _describe(arguments, lake, output)


def _alter(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    from headstone.lake.topics import alter_topic

    if not arguments.conf:
        raise UsageError("say what to alter with --conf K=V; it may be repeated")
    alter_topic(lake, arguments.topic, pairs("--conf", arguments.conf))
    return _describe(arguments, lake, output)


def _drop(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    from headstone.lake.topics import drop_topic

    row = _named(lake, arguments.topic)
    if arguments.dry_run:
        what = f"would drop {row.topic} with {len(row.partitions)} partitions; nothing was changed"
        output.answer(lambda: {"dropped": False, **_document(row)}, [what])
        return DONE
    if not arguments.yes:
        _confirm(f"{row.topic} with {len(row.partitions)} partitions is dropped, and can't be had back. Go on? [y/N] ")
    objects = drop_topic(lake, row.topic, now_ms=lake.metastore.clock)
    output.answer(
        lambda: {"dropped": True, "objects": objects, **_document(row)},
        [f"dropped {row.topic}: {objects} objects are garbage, which `headstone lake gc` deletes after the grace"],
    )
    return DONE


def _delete_records(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    from headstone.lake.topics import start_after_deletion
    from headstone.log.topic_partition import TopicPartition

    if arguments.partition is None or arguments.before is None:
        raise UsageError("say which records to delete, with --partition N and --before OFFSET")
    partition = TopicPartition(arguments.topic, arguments.partition)
    start, after = start_after_deletion(lake, partition, arguments.before)
    applied = after > start and not arguments.dry_run
    if applied:
        if not arguments.yes:
            _confirm(f"the records of {partition} before {after} are deleted, and can't be had back. Go on? [y/N] ")
        lake.metastore.start_at(partition, after, now_ms=lake.metastore.clock, unless_held=True)
    line = f"{partition}: begins at {after} now, it was {start}"
    if after == start:
        line = f"{partition}: begins at {start} already; nothing was changed"
    elif not applied:
        line = f"{partition}: would begin at {after}, it begins at {start}; nothing was changed"
    document = {"partition": str(partition), "start_before": start, "start_after": after, "applied": applied}
    output.answer(lambda: document, [line])
    return DONE


def _confirm(question: str) -> None:
    """Whoever is not there to be asked has to say --yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "this asks before it does it; --yes goes on without the question, --dry-run shows what it would do"
        )
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Unfinished("not confirmed: nothing was changed")


_VERBS = {
    "list": _list, "describe": _describe, "create": _create, "alter": _alter, "drop": _drop,
    "delete-records": _delete_records,
}  # fmt: skip


def retain(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.expiry import expire, find_expired

    lake = open_named(arguments)
    settings, chosen = lake.metastore.topics(), arguments.topic or None
    if missing := sorted(set(arguments.topic) - settings.keys()):
        raise UsageError(f"the lake has no topic {', '.join(missing)}")
    if arguments.apply:
        expired = expire(lake, clock=lake.metastore.clock, topics=chosen)
    else:
        expired = find_expired(lake, now_ms=lake.metastore.clock(), topics=chosen)
    lake.close()
    output.answer(
        lambda: {
            "applied": arguments.apply,
            "partitions": [{**asdict(gone), "partition": str(gone.partition)} for gone in expired],
        },
        _retained(expired, applied=arguments.apply),
    )
    return DONE


def _retained(expired: Sequence[Any], *, applied: bool) -> Iterator[str]:
    for gone in expired:
        yield (
            f"{gone.partition}: start {gone.start_before} -> {gone.start_after}, {gone.records:,} records and "
            f"{gone.bytes / 1e6:,.1f} MB in {gone.extents} extents, by {gone.reason}"
        )
    if not expired:
        yield "nothing has expired"
    elif not applied:
        yield "nothing was changed; --apply does it"
