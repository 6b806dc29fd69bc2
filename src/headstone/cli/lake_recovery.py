"""`headstone lake restore|export|rebuild`: topics back to Kafka; and when brokers, or the metastore, are lost.

Calls and renders; the arguments are in `lake.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headstone.cli.connections import kafka_connection, located
from headstone.cli.engines import engine_of
from headstone.cli.lake_opening import name_of_worker, open_named
from headstone.cli.options import pairs
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.errors import UsageError

if TYPE_CHECKING:
    from headstone.lake.export import Exported, PartitionExport
    from headstone.lake.export_cluster import Broker
    from headstone.lake.lake import Lake
    from headstone.lake.rebuild import Rebuilt
    from headstone.lake.restore import Restored
    from headstone.storage.places import Place


def export(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.pins import pinned

    if bool(arguments.topics) == arguments.all_topics:
        raise UsageError("name the topics to export, or --all-topics")
    lake = open_named(arguments)
    with pinned(lake.metastore, name_of_worker("export"), as_of_ms=arguments.as_of_ms):
        code = _export(arguments, output, lake)
    lake.close()
    return code


def _export(arguments: argparse.Namespace, output: Output, lake: Lake) -> int:
    from headstone.lake.export import plan_export
    from headstone.lake.export_cluster import brokers_of, placed, refuse_unknown_policies
    from headstone.storage.places import place

    topics = sorted(lake.metastore.topics()) if arguments.all_topics else list(dict.fromkeys(arguments.topics))
    settings = {topic: some for topic, some in lake.metastore.topics().items() if topic in topics}
    refuse_unknown_policies(settings)
    ids = pairs("--topic-id", arguments.topic_id, such_as="orders=AAAAAAAAQACAAAAAAAAAAQ")
    planned = plan_export(lake, topics, topic_ids=ids, as_of_ms=arguments.as_of_ms)
    brokers = brokers_of([place(located(arguments, log_dir)) for log_dir in arguments.log_dirs])
    where = placed(planned, brokers, copies=arguments.replication_factor)
    if arguments.dry_run:
        output.answer(
            lambda: {"partitions": [_planned_row(one, some) for one, some in where]}, map(_planned_line, where)
        )
        return DONE
    done = _written(arguments, output, lake, brokers, where)
    nodes = _nodes(where)
    extended = _bootstrap(brokers, done, nodes, settings) if nodes is not None else []
    output.answer(
        lambda: {
            "partitions": [{**asdict(one), "partition": str(one.partition)} for one in done],
            "bootstrap_files": [str(file) for file in extended],
        },
        _exported_lines(done, extended),
    )
    return DONE


def _written(
    arguments: argparse.Namespace, output: Output, lake: Lake, brokers: Sequence[Broker],
    where: Sequence[tuple[PartitionExport, Sequence[Broker]]],
) -> list[Exported]:  # fmt: skip
    """Of each partition what its first copy tells: all are the same."""
    from headstone.lake.export import export as export_partitions
    from headstone.lake.export_places import export_place
    from headstone.pipeline.progress import ProgressLine

    done: dict[Any, Exported] = {}
    with (
        engine_of(arguments, verb="lake export", spark_by_default=False) as engine,
        ProgressLine(enabled=not output.quiet) as progress,
    ):
        for broker in brokers:
            planned = [one for one, some in where if broker in some]
            target = export_place(broker.log_dir, clean=arguments.clean)
            for exported in export_partitions(lake, planned, target, engine, board=progress.board, tell=output.tell):
                done.setdefault(exported.partition, exported)
    return [done[one.partition] for one, _ in where]


def _nodes(where: Sequence[tuple[PartitionExport, Sequence[Broker]]]) -> dict[str, list[list[int]]] | None:
    """By topic the brokers of each partition; None where nobody knows who they are."""
    by_topic: dict[str, list[list[int]]] = {}
    for planned, brokers in where:
        nodes = [broker.node for broker in brokers if broker.node is not None]
        if len(nodes) < len(brokers):
            return None
        by_topic.setdefault(planned.partition.topic, []).append(nodes)
    return by_topic


def _bootstrap(
    brokers: Sequence[Broker], done: Sequence[Exported], nodes: Mapping[str, Sequence[Sequence[int]]],
    settings: Mapping[str, Mapping[str, object]],
) -> list[Place]:  # fmt: skip
    from headstone.lake.export_cluster import add_to_bootstrap, new_topics

    highest = max((one.producer_id_max for one in done), default=-1)
    return add_to_bootstrap(brokers, new_topics(done, nodes, settings), producer_id_max=highest)


def _planned_row(planned: PartitionExport, brokers: Sequence[Broker]) -> dict[str, object]:
    return {
        "partition": str(planned.partition), "topic_id": planned.topic_id, "start_offset": planned.state.start_offset,
        "next_offset": planned.state.next_offset, "records": planned.records, "bytes": planned.bytes,
        "log_dirs": [str(broker.log_dir) for broker in brokers],
    }  # fmt: skip


def _planned_line(where: tuple[PartitionExport, Sequence[Broker]]) -> str:
    row = _planned_row(*where)
    return (
        f"{row['partition']}: would write [{row['start_offset']}, {row['next_offset']}), {row['records']:,} records, "
        f"{where[0].bytes / 1e6:,.1f} MB, to {', '.join(str(broker.log_dir) for broker in where[1])}"
    )


def _exported_lines(done: Sequence[Exported], extended: Sequence[Place]) -> Iterator[str]:
    for exported in done:
        yield (
            f"{exported.partition}: [{exported.start_offset}, {exported.next_offset}) {exported.records:,} records, "
            f"{exported.bytes / 1e6:,.1f} MB in {exported.segments} segments, topic id {exported.topic_id}"
        )
    for file in extended:
        yield f"{file}: the topics are in it; start the brokers"
    if not extended:
        yield (
            "no bootstrap file was there to tell brokers of the topics: they start from these directories only if their "
            "metadata has these topics with these ids"
        )


def restore(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cluster.live import LiveCluster
    from headstone.lake.pins import pinned
    from headstone.lake.restore import restore as restore_topic
    from headstone.lake.restore import translate_group
    from headstone.pipeline.progress import ProgressLine

    cluster = LiveCluster(kafka_connection(arguments))
    lake = open_named(arguments)
    with (
        engine_of(arguments, verb="lake restore", spark_by_default=False) as engine,
        pinned(lake.metastore, name_of_worker("restore"), as_of_ms=arguments.as_of_ms),
        ProgressLine(enabled=not output.quiet) as progress,
    ):
        done, offsets = restore_topic(
            lake, arguments.topic, arguments.to_topic or arguments.topic, cluster, engine=engine,
            as_of_ms=arguments.as_of_ms, verify=not arguments.no_verify, copies=arguments.replication_factor,
            map_file=arguments.offset_map, board=progress.board, tell=output.tell,
        )  # fmt: skip
    moved = {group: translate_group(lake, cluster, group, offsets) for group in arguments.translate_group}
    lake.close()
    output.answer(
        lambda: {
            "partitions": [{**asdict(part), "partition": str(part.partition)} for part in done],
            "groups": moved,
        },
        _restored_lines(done, moved),
    )
    return DONE


def _restored_lines(done: Sequence[Restored], moved: Mapping[str, Mapping[int, tuple[int, int]]]) -> Iterator[str]:
    for part in done:
        yield (
            f"{part.partition}: {part.records:,} records, {part.tombstones:,} tombstones, {part.keys:,} keys, "
            f"{'verified' if part.verified else 'not verified'}"
        )
    for group, offsets in moved.items():
        yield f"group {group}: " + ", ".join(f"{number}: {old} -> {new}" for number, (old, new) in offsets.items())


def rebuild(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cli.connections import store_settings
    from headstone.lake.lake import rebuilt_place
    from headstone.lake.rebuild import open_for_rebuild
    from headstone.lake.rebuild import rebuild as rebuild_metastore

    url, location = rebuilt_place(arguments.lake, arguments.objects)
    lake = open_for_rebuild(url, location, settings=store_settings(arguments, location or ""))
    if arguments.now_ms is not None:
        lake.metastore.give_clock(arguments.now_ms)
    done = rebuild_metastore(lake, tell=output.tell)
    lake.close()
    output.answer(lambda: asdict(done), _rebuilt_lines(done))
    return FINDINGS if done.missing else DONE


def _rebuilt_lines(done: Rebuilt) -> Iterator[str]:
    yield (
        f"{done.topics} topics, {done.partitions} partitions with records, {done.extents:,} extents, from {done.changes:,} "
        f"changes; {len(done.changed)} partitions were not as the metastore had them"
    )
    yield f"{len(done.unused)} objects are in use by nobody: gc deletes them after its grace, which begins now"
    yield from (f"missing in the store: {object_id}" for object_id in done.missing)
    yield "lost with the metastore, if it was: holds, requests, erasures that were asked for, history, the past before now"
