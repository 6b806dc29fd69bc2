"""`headstone lake restore|export|rebuild`: topics back to Kafka; and when brokers, or the metastore, are lost.

Calls and renders; the arguments are in `lake.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from headstone.cli.connections import kafka_connection, located
from headstone.cli.engines import engine_of
from headstone.cli.lake_opening import name_of_worker, open_named
from headstone.cli.options import pairs
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.cli.stopping import STOPPING, SoftStop, signals_heard, soft_stop
from headstone.errors import UsageError

SENDING = "stopping: what was sent is acknowledged first; a second signal gives that up"

if TYPE_CHECKING:
    from headstone.cluster.live import LiveCluster
    from headstone.lake.export import Exported, PartitionExport
    from headstone.lake.export_cluster import Broker
    from headstone.lake.export_plan import ExportRequest
    from headstone.lake.lake import Lake
    from headstone.lake.offset_map import OffsetMap
    from headstone.lake.rebuild import Rebuilt
    from headstone.lake.restore import Restored
    from headstone.storage.places import Place


def export(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.export_cluster import brokers_of
    from headstone.lake.export_run import requested, run_export
    from headstone.pipeline.progress import ProgressLine
    from headstone.storage.places import place

    if bool(arguments.topics) == arguments.all_topics:
        raise UsageError("name the topics to export, or --all-topics")
    lake = open_named(arguments)
    brokers = brokers_of([place(located(arguments, log_dir)) for log_dir in arguments.log_dirs])
    ids = pairs("--topic-id", arguments.topic_id, such_as="orders=AAAAAAAAQACAAAAAAAAAAQ")
    request = requested(
        brokers, arguments.topics, topic_ids=ids, copies=arguments.replication_factor, as_of_ms=arguments.as_of_ms
    )
    if arguments.dry_run:
        return _planned(lake, request, brokers, output)
    with (
        engine_of(arguments, verb="lake export", spark_by_default=False) as engine,
        ProgressLine(enabled=not output.quiet) as progress,
        soft_stop(None if output.quiet else STOPPING) as stop,
    ):
        ended = run_export(
            lake, request, brokers, engine, reader=name_of_worker("export"), clean=arguments.clean, board=progress.board,
            tell=output.tell, stop=stop,
        )  # fmt: skip
    lake.close()
    output.answer(
        lambda: {
            "partitions": [{**asdict(one), "partition": str(one.partition)} for one in ended.exported],
            "metadata_snapshots": [str(file) for file in ended.metadata_snapshots],
        },
        _exported_lines(ended.exported, ended.metadata_snapshots),
    )
    return DONE


def _planned(lake: Lake, request: ExportRequest, brokers: Sequence[Broker], output: Output) -> int:
    from headstone.lake.export_cluster import placed
    from headstone.lake.export_run import planned_export

    where = placed(planned_export(lake, request), brokers, copies=request.copies)
    lake.close()
    output.answer(lambda: {"partitions": [_planned_row(one, some) for one, some in where]}, map(_planned_line, where))
    return DONE


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


def _exported_lines(done: Sequence[Exported], snapshots: Sequence[Place]) -> Iterator[str]:
    for exported in done:
        yield (
            f"{exported.partition}: [{exported.start_offset}, {exported.next_offset}) {exported.records:,} records, "
            f"{exported.bytes / 1e6:,.1f} MB in {exported.segments} segments, topic id {exported.topic_id}"
        )
    for file in snapshots:
        yield f"{file}: the topics are in it; start the brokers"
    if not snapshots:
        yield (
            "no new broker's metadata was there to add the topics to: brokers start from these directories only if their "
            "metadata has these topics with these ids"
        )


def restore(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cluster.live import LiveCluster
    from headstone.lake.restore import finished_map, translate_group

    stop = SoftStop(None if output.quiet else SENDING)
    cluster = LiveCluster(kafka_connection(arguments), given_up=stop.given_up)
    lake = open_named(arguments)
    done: list[Restored] = []
    finished = None
    if arguments.translate_group and arguments.offset_map is not None:
        to_topic = arguments.to_topic or arguments.topic
        finished = finished_map(lake, arguments.topic, to_topic, arguments.offset_map, as_of_ms=arguments.as_of_ms)
    if finished is None:
        done, offsets = _restore(arguments, output, lake, cluster, stop)
    else:
        offsets = finished
        output.tell(f"{offsets.topic} was restored into {offsets.to_topic}: only groups are translated")
    moved = {
        group: translate_group(lake, cluster, group, offsets, again=finished is not None, tell=output.warn)
        for group in arguments.translate_group
    }
    lake.close()
    output.answer(
        lambda: {
            "partitions": [{**asdict(part), "partition": str(part.partition)} for part in done],
            "groups": moved,
        },
        _restored_lines(done, moved),
    )
    return DONE


def _restore(
    arguments: argparse.Namespace, output: Output, lake: Lake, cluster: LiveCluster, stop: SoftStop
) -> tuple[list[Restored], OffsetMap]:
    from headstone.lake.restore import restore as restore_topic
    from headstone.pipeline.progress import ProgressLine

    with (
        engine_of(arguments, verb="lake restore", spark_by_default=False) as engine,
        ProgressLine(enabled=not output.quiet) as progress,
        signals_heard(stop.heard),
    ):
        return restore_topic(
            lake, arguments.topic, arguments.to_topic or arguments.topic, cluster, engine=engine,
            as_of_ms=arguments.as_of_ms, verify=not arguments.no_verify, copies=arguments.replication_factor,
            map_file=arguments.offset_map, mapped=bool(arguments.translate_group), board=progress.board, tell=output.tell,
            reader=name_of_worker("restore"), stop=stop,
        )  # fmt: skip


def _restored_lines(done: Sequence[Restored], moved: Mapping[str, Mapping[int, tuple[int, int]]]) -> Iterator[str]:
    for part in done:
        yield (
            f"{part.partition}: {part.records:,} records, {part.tombstones:,} tombstones, "
            + ("not verified" if part.keys is None else f"{part.keys:,} keys, verified")
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
    done = rebuild_metastore(lake, progress=not output.quiet, tell=output.tell)
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
    if done.erasures:
        yield f"{done.erasures} keys are still to be erased, by their deadlines: workers begin again with the first step"
    yield "lost with the metastore, if it was: holds, requests, history, the past before now"
