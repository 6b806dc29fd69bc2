"""`headstone lake ingest|read`: records into the lake, and out of it.

Calls and renders; their arguments are in `lake.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headstone import units
from headstone.api.stopping import STOPPING, soft_stop
from headstone.cli.connections import has_cluster, kafka_connection, located
from headstone.cli.engines import PROCESS, CommandRunner, engine_of, never_large, require_spark, spark_conf
from headstone.cli.lake_opening import open_named
from headstone.cli.options import pairs
from headstone.cli.output import Output, refuse_unwritable
from headstone.cli.parsing import DONE
from headstone.errors import Unfinished, UsageError
from headstone.log.topic_partition import partition_row
from headstone.pipeline.failed_partition import failed_lines, worst_exit_code
from headstone.retention.settings import known_setting

if TYPE_CHECKING:
    from headstone.api.ingesting import IngestSettings


def ingest(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.api.ingesting import expect_one_source

    expect_one_source(arguments.paths, has_cluster(arguments))
    if not has_cluster(arguments):
        return _ingest_logs(arguments, output)
    rows = _ingest_cluster(arguments, output)
    output.answer(lambda: {"partitions": rows}, map(_ingested_line, rows))
    return DONE


def _ingested_line(row: Mapping[str, Any]) -> str:
    size = f", {units.size(row['bytes'])}" if "bytes" in row else ""
    return f"{row['partition']}: [{row['start']}, {row['end']}) {units.count(row['records'], 'record')}{size}"


def _settings(arguments: argparse.Namespace) -> IngestSettings:
    from headstone.api.ingesting import IngestSettings

    return IngestSettings(
        topics=tuple(arguments.topic), cleanup_policy=arguments.cleanup_policy,
        topic_settings=_topic_settings(arguments.topic_conf), continuous=arguments.continuous,
        every_ms=arguments.every_ms, age_ms_max=arguments.max_age_ms, object_bytes=arguments.object_bytes,
        offsets_per_task=arguments.offsets_per_task, offsets_per_batch=arguments.offsets_per_batch,
        codec=arguments.codec,
    )  # fmt: skip


def _ingest_logs(arguments: argparse.Namespace, output: Output) -> int:
    """Prints what came in first, then what did not."""
    from headstone.api.ingesting import ingest_logs

    places = [located(arguments, path) for path in arguments.paths]
    settings = _settings(arguments)
    runner = CommandRunner(arguments, output, verb="lake ingest", large=never_large)
    with open_named(arguments) as lake, soft_stop(None if output.quiet else STOPPING) as stop:
        done = ingest_logs(lake, places, settings, runner, stop=stop)
    rows = list(map(partition_row, done.partitions))
    output.answer(
        lambda: {"partitions": rows, "failed": [failure.as_json() for failure in done.failed]},
        map(_ingested_line, rows),
    )
    names = {failure.partition for failure in done.failed}
    whole = sum(row["partition"] not in names for row in rows)
    output.warn(*failed_lines(done.failed, "ingested completely", done=whole))
    if done.unfinished is not None:
        raise Unfinished(done.unfinished)
    return worst_exit_code(done.failed) or DONE


def _ingest_cluster(arguments: argparse.Namespace, output: Output) -> list[dict[str, Any]]:
    require_spark()
    from headstone.api.ingesting import ClusterIngest, expect_driver_here
    from headstone.pipeline.progress import OFFSETS, ProgressLine
    from headstone.spark.session import spark_session
    from headstone.spark.streams import CONNECTOR

    if arguments.engine == PROCESS:
        raise UsageError("a cluster is read with Spark's own Kafka source; leave out --engine process")
    expect_driver_here(connect=bool(arguments.spark_remote))
    connection, settings = kafka_connection(arguments), _settings(arguments)
    runner = CommandRunner(arguments, output, verb="lake ingest", large=never_large)
    with open_named(arguments) as lake:
        following = ClusterIngest(lake, connection, settings, runner)
        session = spark_session(
            app_name="headstone lake ingest", master=arguments.master, remote=arguments.spark_remote,
            conf=spark_conf(arguments), package=CONNECTOR,
        )  # fmt: skip
        with (
            session as spark,  # first: Spark takes Ctrl-C for itself when it starts
            ProgressLine(enabled=not (output.quiet or arguments.continuous), unit=OFFSETS) as progress,
            soft_stop(None if output.quiet else STOPPING) as stop,
        ):
            progress.expect(following.offsets_to_come)
            done = following.run(spark, stop=stop, board=progress.board)
    return list(map(partition_row, done))


def _topic_settings(items: Sequence[str]) -> dict[str, dict[str, str]]:
    """By topic and by Kafka's names; an unknown setting's error names the option."""
    settings: dict[str, dict[str, str]] = {}
    for item in items:
        topic, colon, pair = item.partition(":")
        if not colon or "=" not in pair:
            raise UsageError(f"--topic-conf {item}: expected TOPIC:K=V, such as orders:delete.retention.ms=1d")
        for name, value in pairs("--topic-conf", [pair]).items():
            try:
                known_setting(name)
            except UsageError as error:
                raise UsageError(f"--topic-conf {item}: {error}") from error
            settings.setdefault(topic, {})[name] = value
    return settings


def read(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.topics import partitions_of
    from headstone.lake.transfer.views import pinned_view, write_parquet
    from headstone.pipeline.progress import ProgressLine

    refuse_unwritable(arguments.to)
    watched = not output.quiet and (arguments.to is not None or not sys.stdout.isatty())
    progress = ProgressLine(enabled=watched)
    with (
        open_named(arguments) as lake,
        engine_of(arguments, verb="lake read", spark_by_default=False) as engine,
        pinned_view(
            lake,
            partitions_of(lake, arguments.topic, arguments.partition),
            arguments.view,
            engine,
            as_of_ms=arguments.as_of_ms,
            board=progress.board,
        ) as batches,
        progress,
    ):
        if arguments.to is None:
            output.lines(_json_lines(batches))
        else:
            count = write_parquet(arguments.to, batches)
    if arguments.to is None:
        return DONE
    output.tell(f"{units.count(count, 'record')} in {arguments.to}")
    output.answer(lambda: {"records": count, "file": str(arguments.to)}, ())
    return DONE


def _json_lines(batches: Iterator[Any]) -> Iterator[str]:
    """One line per record, whatever --output says: there may be more than fit into one document."""
    from headstone.lake.transfer.views import record_document

    for batch in batches:
        for row in batch.to_pylist():
            yield json.dumps(record_document(row))
