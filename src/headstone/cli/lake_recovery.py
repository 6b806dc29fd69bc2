"""`headstone lake restore|export|rebuild`: topics back to Kafka, and recovery when brokers, or the metastore, are lost.

Calls and renders; the arguments are in `lake.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from headstone import units
from headstone.api.stopping import STOPPING, soft_stop
from headstone.cli.connections import kafka_connection, located
from headstone.cli.engines import engine_of
from headstone.cli.lake_opening import open_named
from headstone.cli.options import pairs
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.errors import UsageError
from headstone.interruption import given_up
from headstone.lake.jobs.keeping import name_of_worker

SENDING = "stopping: what was sent is acknowledged first; a second signal gives that up"

if TYPE_CHECKING:
    from headstone.lake.jobs.rebuild import Rebuilt
    from headstone.lake.lake import Lake
    from headstone.lake.transfer.export import Exported, PartitionExport
    from headstone.lake.transfer.export_cluster import TargetBroker
    from headstone.lake.transfer.export_plan import ExportRequest
    from headstone.lake.transfer.restore_request import RestoreMeans
    from headstone.lake.transfer.restore_run import RestoreRun
    from headstone.storage.places import Place


def export(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.transfer.export_cluster import brokers_of
    from headstone.lake.transfer.export_run import requested, run_export
    from headstone.pipeline.progress import ProgressLine
    from headstone.storage.places import place

    if bool(arguments.topics) == arguments.all_topics:
        raise UsageError("name the topics to export, or --all-topics")
    with open_named(arguments) as lake:
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
    output.answer(
        ended.as_json,
        _exported_lines(ended.exported, ended.metadata_snapshots),
    )
    return DONE


def _planned(lake: Lake, request: ExportRequest, brokers: Sequence[TargetBroker], output: Output) -> int:
    from headstone.lake.transfer.export_cluster import placed
    from headstone.lake.transfer.export_run import planned_export, planned_row

    where = placed(planned_export(lake, request), brokers, copies=request.copies)
    output.answer(lambda: {"partitions": [planned_row(one, some) for one, some in where]}, map(_planned_line, where))
    return DONE


def _planned_line(where: tuple[PartitionExport, Sequence[TargetBroker]]) -> str:
    from headstone.lake.transfer.export_run import planned_row

    row = planned_row(*where)
    return (
        f"{row['partition']}: would write [{row['start_offset']}, {row['next_offset']}), "
        f"{units.count(where[0].records, 'record')}, "
        f"{units.size(where[0].bytes)}, to {', '.join(str(broker.log_dir) for broker in where[1])}"
    )


def _exported_lines(done: Sequence[Exported], snapshots: Sequence[Place]) -> Iterator[str]:
    for exported in done:
        yield (
            f"{exported.partition}: [{exported.start_offset}, {exported.next_offset}) "
            f"{units.count(exported.records, 'record')}, "
            f"{units.size(exported.bytes)} in {units.count(exported.segments, 'segment')}, topic id {exported.topic_id}"
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
    from headstone.lake.transfer.restore_request import RestoreRequest
    from headstone.lake.transfer.restore_run import restore_document, run_restore

    request = RestoreRequest(
        topic=arguments.topic, to_topic=arguments.to_topic or arguments.topic, as_of_ms=arguments.as_of_ms,
        verify=not arguments.no_verify, copies=arguments.replication_factor, map_file=arguments.offset_map,
        groups=tuple(arguments.translate_group),
    )  # fmt: skip
    cluster = LiveCluster(kafka_connection(arguments), given_up=given_up)
    with open_named(arguments) as lake:
        run = run_restore(lake, request, cluster, _means(arguments, output), tell=output.tell, warn=output.warn)
    output.answer(lambda: restore_document(run), _restored_lines(run))
    return DONE


@contextmanager
def _means(arguments: argparse.Namespace, output: Output) -> Iterator[RestoreMeans]:
    from headstone.lake.transfer.restore_request import RestoreMeans
    from headstone.pipeline.progress import ProgressLine

    with (
        engine_of(arguments, verb="lake restore", spark_by_default=False) as engine,
        ProgressLine(enabled=not output.quiet) as progress,
        soft_stop(None if output.quiet else SENDING) as stop,
    ):
        yield RestoreMeans(engine=engine, board=progress.board, stop=stop)


def _restored_lines(run: RestoreRun) -> Iterator[str]:
    for part in run.partitions:
        yield (
            f"{part.partition}: {units.count(part.records, 'record')}, {units.count(part.tombstones, 'tombstone')}, "
            + ("not verified" if part.keys is None else f"{units.count(part.keys, 'key')}, verified")
        )
    for group, offsets in run.groups.items():
        yield f"group {group}: " + ", ".join(f"{number}: {old} -> {new}" for number, (old, new) in offsets.items())


def rebuild(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cli.connections import store_settings
    from headstone.lake.jobs.rebuild import rebuild as rebuild_metastore
    from headstone.lake.jobs.rebuild import rebuilding
    from headstone.lake.lake import rebuilt_place
    from headstone.lake.metastore.identity import adopt

    url, location = rebuilt_place(arguments.lake, arguments.objects)
    with rebuilding(url, location, settings=store_settings(arguments, location or "")) as lake:
        if arguments.now_ms is not None:
            lake.metastore.give_clock(arguments.now_ms)
        done = rebuild_metastore(lake, progress=not output.quiet, tell=output.tell)
    with lake:
        adopt(lake.metastore, lake.store)
    output.answer(lambda: asdict(done), _rebuilt_lines(done))
    nothing_left = not done.topics and (done.dropped or done.unused)
    return FINDINGS if done.missing or done.doubt or nothing_left else DONE


def _rebuilt_lines(done: Rebuilt) -> Iterator[str]:
    yield (
        f"{units.count(done.topics, 'topic')}, {units.count(done.partitions, 'partition')} with records, "
        f"{units.count(done.extents, 'extent')}, from {units.count(done.changes, 'change')}; "
        f"not as the metastore had them: {units.count(len(done.changed), 'partition')}"
    )
    yield f"unused: {units.count(len(done.unused), 'object')}; gc deletes them after the grace period, which starts now"
    yield from (f"missing in the store: {object_id}" for object_id in done.missing)
    if done.dropped and not done.topics:
        yield f"no topic is left: dropped, by the journal: {', '.join(done.dropped)}; if you did not, restore the store"
    if done.doubt:
        yield (
            f"{done.doubt}; what an ingest brought in is read again by the next one. Run neither gc nor workers before you "
            "have compared the topics with Kafka, or a backup: after the grace they delete the objects of a lost commit"
        )
    if done.erasures:
        yield (
            f"still to be erased, by their deadlines: {units.count(done.erasures, 'key')}; workers begin again "
            "with the first step"
        )
    yield "lost with the metastore, if it was: holds, requests, history, the past before now"
