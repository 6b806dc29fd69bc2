"""`headstone lake topics|retain`: lists, creates, alters and drops topics of a lake; lets expired records go.

Calls and renders; `retention/settings.py` checks settings, `lake/jobs/expiry.py` decides what has expired.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headstone import units
from headstone.cli.lake_opening import open_named
from headstone.cli.options import pairs
from headstone.cli.output import Output, confirm, is_somebody_there
from headstone.cli.parsing import DONE
from headstone.errors import UsageError
from headstone.log.topic_partition import partition_row
from headstone.retention.settings import BY_NAME

if TYPE_CHECKING:
    from headstone.lake.lake import Lake
    from headstone.lake.metastore.catalog import TopicRow


def topics(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.verb != "list" and arguments.topic is None:
        raise UsageError(f"name the topic to {arguments.verb}")
    with open_named(arguments) as lake:
        return _VERBS[arguments.verb](arguments, lake, output)


def _list(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    from headstone.lake.topics import topic_document

    del arguments
    rows = lake.metastore.topic_rows()
    output.answer(lambda: {"topics": list(map(topic_document, rows))}, map(_listed, rows))
    return DONE


def _listed(row: TopicRow) -> str:
    records, size = sum(part.records for part in row.partitions), sum(part.bytes for part in row.partitions)
    return (
        f"{row.topic}: {units.count(len(row.partitions), 'partition')}, {units.count(records, 'record')}, {units.size(size)}, "
        f"cleanup.policy {row.cleanup_policy}, id {row.kafka_id or 'unknown'}"
    )


def _describe(arguments: argparse.Namespace, lake: Lake, output: Output) -> int:
    from headstone.lake.topics import topic_document, topic_row

    row = topic_row(lake, arguments.topic)
    output.answer(lambda: topic_document(row), _described(row))
    return DONE


def _described(row: TopicRow) -> Iterator[str]:
    yield f"{row.topic}: id {row.kafka_id or 'unknown'}, cleanup.policy {row.cleanup_policy}"
    for name, value in sorted(row.settings.items()):
        yield f"  {name}={value}{_in_words(name, value)}"
    for part in row.partitions:
        yield (
            f"  {row.topic}-{part.partition}: [{part.start_offset}, {part.next_offset}), "
            f"{units.count(part.records, 'record')}, "
            f"{units.size(part.bytes)} in {units.count(part.extents, 'extent')}, epoch {part.compaction_epoch}"
        )


def _in_words(name: str, value: object) -> str:
    is_duration = name in BY_NAME and BY_NAME[name].is_duration and str(value).isdecimal()
    return f" ({units.duration(int(str(value)))})" if is_duration else ""


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
    from headstone.lake.topics import drop_topic, topic_document, topic_row

    row = topic_row(lake, arguments.topic)
    if arguments.dry_run:
        what = f"would drop {row.topic} with {units.count(len(row.partitions), 'partition')}; nothing was changed"
        output.answer(lambda: {"dropped": False, **topic_document(row)}, [what])
        return DONE
    if not arguments.yes:
        _confirm(f"{row.topic} with {units.count(len(row.partitions), 'partition')} is dropped, and can't be had back")
    objects = drop_topic(lake, row.topic, now_ms=lake.metastore.clock, deadline_ms=arguments.deadline_ms)
    output.answer(
        lambda: {"dropped": True, "objects": objects, **topic_document(row)},
        [
            f"dropped {row.topic}: {units.count(objects, 'object')} now garbage, which `headstone lake gc` deletes "
            "after the grace",
            "workers, and `headstone lake compact --purge`, empty objects that hold other topics, too; `headstone lake status` "
            "tells when all of it is gone",
        ],
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
            _confirm(f"the records of {partition} before {after} are deleted, and can't be had back")
        lake.metastore.start_at(partition, after, now_ms=lake.metastore.clock, unless_held=True)
    line = f"{partition}: now starts at {after}, before at {start}"
    if after == start:
        line = f"{partition}: begins at {start} already; nothing was changed"
    elif not applied:
        line = f"{partition}: would begin at {after}, it begins at {start}; nothing was changed"
    document = {"partition": str(partition), "start_before": start, "start_after": after, "applied": applied}
    output.answer(lambda: document, [line])
    return DONE


def _confirm(what: str) -> None:
    """Without a terminal to ask at, --yes is required."""
    if not is_somebody_there():
        raise UsageError(
            "this command asks for confirmation; use --yes to skip the question, or --dry-run to see what it would do"
        )
    confirm(what)


_VERBS = {
    "list": _list, "describe": _describe, "create": _create, "alter": _alter, "drop": _drop,
    "delete-records": _delete_records,
}  # fmt: skip


def retain(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.jobs.expiry import expire, find_expired
    from headstone.lake.metastore.commits import expect_topics

    with open_named(arguments) as lake:
        chosen, clock = arguments.topic or None, lake.metastore.clock
        expect_topics(arguments.topic, lake.metastore.topics())
        if arguments.apply:
            expired = expire(lake, clock=clock, topics=chosen)
        else:
            expired = find_expired(lake, now_ms=clock(), topics=chosen)
    output.answer(
        lambda: {
            "applied": arguments.apply,
            "partitions": list(map(partition_row, expired)),
        },
        _retained(expired, applied=arguments.apply),
    )
    return DONE


def _retained(expired: Sequence[Any], *, applied: bool) -> Iterator[str]:
    for gone in expired:
        yield (
            f"{gone.partition}: start {gone.start_before} -> {gone.start_after}, {units.count(gone.records, 'record')} and "
            f"{units.size(gone.bytes)} in {units.count(gone.extents, 'extent')}, by {gone.reason}"
        )
    if not expired:
        yield "nothing has expired"
    elif not applied:
        yield "nothing was changed; --apply does it"
