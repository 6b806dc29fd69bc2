"""`headstone lake ingest|read`: records into the lake, and out of it.

Calls and renders; their arguments are in `lake.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.connections import has_cluster, kafka_connection, located
from headstone.cli.engines import PROCESS, engine_of, require_spark, spark_conf
from headstone.cli.inspect import of_topics
from headstone.cli.lake_opening import chosen_partitions, name_of_worker, open_named
from headstone.cli.options import pairs
from headstone.cli.output import Output
from headstone.cli.parsing import DONE
from headstone.cli.stopping import STOPPING, soft_stop
from headstone.errors import UsageError
from headstone.log.shown import shown_bytes
from headstone.retention.settings import BY_NAME

if TYPE_CHECKING:
    from headstone.lake.commits import Extent
    from headstone.lake.lake import Lake
    from headstone.pipeline.engine import Engine
    from headstone.pipeline.progress import Board, Meter


def ingest(arguments: argparse.Namespace, output: Output) -> int:
    if bool(arguments.paths) == has_cluster(arguments):
        raise UsageError("name what to ingest: log directories, or a cluster with --bootstrap HOSTS --topic T")
    if arguments.paths and arguments.continuous:
        raise UsageError("--continuous follows a cluster; log directories are ingested as they are now")
    rows = _ingest_cluster(arguments, output) if has_cluster(arguments) else _ingest_logs(arguments, output)
    output.answer(lambda: {"partitions": rows}, map(_ingested_line, rows))
    return DONE


def _ingested_line(row: Mapping[str, Any]) -> str:
    size = f", {row['bytes'] / 1e6:,.1f} MB" if "bytes" in row else ""
    return f"{row['partition']}: [{row['start']}, {row['end']}) {row['records']:,} records{size}"


def _ingest_logs(arguments: argparse.Namespace, output: Output) -> list[dict[str, Any]]:
    from headstone.lake.ingest import ingest as ingest_logs
    from headstone.lake.topics import adopt, in_directories
    from headstone.log.directory import find_partitions
    from headstone.pipeline.progress import ProgressLine

    directories = of_topics(
        find_partitions([located(arguments, path) for path in arguments.paths]), arguments.topic, arguments.paths
    )
    facts = in_directories(directories)
    given = _topic_settings(arguments.topic_conf, facts)
    lake = open_named(arguments)
    for topic in given.keys() - lake.metastore.topics().keys():
        topic_facts = replace(facts[topic], settings={**facts[topic].settings, **given[topic]})
        adopt(lake, topic, topic_facts, policy=arguments.cleanup_policy)
    with (
        engine_of(arguments, verb="lake ingest", spark_by_default=False) as engine,
        ProgressLine(enabled=not output.quiet) as progress,
        soft_stop(None if output.quiet else STOPPING) as stop,
    ):
        engine.begin()
        done = ingest_logs(
            lake, directories, clock=lake.metastore.clock, engine=engine, board=progress.board, tell=output.tell,
            policy=arguments.cleanup_policy, stop=stop,
        )  # fmt: skip
    lake.close()
    return [{**asdict(part), "partition": str(part.partition)} for part in done]


def _ingest_cluster(arguments: argparse.Namespace, output: Output) -> list[dict[str, Any]]:
    require_spark()
    from headstone.cluster.connection import spark_source_options
    from headstone.cluster.live import LiveCluster
    from headstone.lake.live import ReadTopics, facts_of, offsets_to_come, prepare
    from headstone.log import codecs
    from headstone.pipeline.progress import OFFSETS, ProgressLine
    from headstone.spark.lake_stream import StreamOptions, stream
    from headstone.spark.session import spark_session, with_package
    from headstone.spark.streams import CONNECTOR

    if not arguments.topic:
        raise UsageError("name the topics with --topic; it may be repeated")
    if arguments.engine == PROCESS:
        raise UsageError("a cluster is read with Spark's own Kafka source; leave out --engine process")
    if arguments.spark_remote:
        raise UsageError("ingest from a cluster commits from the driver, which must be this process: use --master")
    connection = kafka_connection(arguments)
    source = spark_source_options(connection)
    cluster = LiveCluster(connection, beside_spark=True)
    lake = open_named(arguments)
    facts = facts_of(cluster, arguments.topic)
    given = _topic_settings(arguments.topic_conf, facts)
    facts = {topic: replace(fact, settings={**fact.settings, **given.get(topic, {})}) for topic, fact in facts.items()}
    prepare(lake, facts, policy=arguments.cleanup_policy, tell=output.tell)
    topics = ReadTopics(lake, cluster, {topic: fact.kafka_id for topic, fact in facts.items()})
    topics.confirm()
    before = lake.metastore.next_offsets()
    options = StreamOptions(
        source=source, continuous=arguments.continuous, every_ms=arguments.every_ms,
        age_ms_max=arguments.max_age_ms, object_bytes=arguments.object_bytes,
        offsets_per_batch=arguments.offsets_per_batch, offsets_per_task=arguments.offsets_per_task,
        codec=codecs.NAMES.index(arguments.codec),
        before_commit=topics.confirm,
    )  # fmt: skip
    session = spark_session(
        app_name="headstone lake ingest", master=arguments.master, remote=arguments.spark_remote,
        conf=with_package(spark_conf(arguments), CONNECTOR),
    )  # fmt: skip
    with (
        session as spark,  # first: it takes Ctrl-C for its own when it starts
        ProgressLine(enabled=not (output.quiet or arguments.continuous), unit=OFFSETS) as progress,
        soft_stop(None if output.quiet else STOPPING) as stop,
    ):
        starts = {topic: fact.starts for topic, fact in facts.items()}
        progress.expect(offsets_to_come(lake, facts))
        added = stream(
            lake, spark, starts, replace(options, stop=stop), clock=lake.metastore.clock, tell=output.tell,
            board=progress.board,
        )  # fmt: skip
    if untold := topics.untold():
        output.tell(
            f"leader epochs of {len(untold)} partitions, such as {untold[0]}, were not told: an export makes them up"
        )
    rows = [
        {
            "partition": str(name), "start": before.get(name, 0), "end": end, "records": added.get(name, 0),
        }
        for name, end in lake.metastore.next_offsets().items() if name.topic in facts
    ]  # fmt: skip
    lake.close()
    return rows


def _topic_settings(items: Sequence[str], topics: Collection[str]) -> dict[str, dict[str, object]]:
    """Of those topics that are ingested; of others, or by another name, it would be a mistake."""
    settings: dict[str, dict[str, object]] = {}
    for item in items:
        topic, colon, pair = item.partition(":")
        if not colon or "=" not in pair:
            raise UsageError(f"--topic-conf {item}: expected TOPIC:K=V, such as orders:delete.retention.ms=1000")
        if topic not in topics:
            raise UsageError(f"--topic-conf {item}: {topic} is not among what is ingested: {', '.join(sorted(topics))}")
        for name, value in pairs("--topic-conf", [pair]).items():
            if name not in BY_NAME:
                raise UsageError(f"--topic-conf {item}: no topic setting {name}; there are {', '.join(BY_NAME)}")
            BY_NAME[name].parsed(value)
            settings.setdefault(topic, {})[name] = value
    return settings


def read(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.pins import pinned
    from headstone.pipeline.progress import ProgressLine

    lake = open_named(arguments)
    watched = not output.quiet and (arguments.to is not None or not sys.stdout.isatty())
    progress = ProgressLine(enabled=watched)
    with (
        engine_of(arguments, verb="lake read", spark_by_default=False) as engine,
        pinned(lake.metastore, name_of_worker("read"), as_of_ms=arguments.as_of_ms),
        progress,
    ):
        batches = _batches(arguments, lake, engine, progress.board)
        if arguments.to is None:
            output.lines(_json_lines(batches))
        else:
            count = _write_parquet(arguments.to, batches)
    lake.close()
    if arguments.to is None:
        return DONE
    output.tell(f"{count:,} records in {arguments.to}")
    output.answer(lambda: {"records": count, "file": str(arguments.to)}, ())
    return DONE


def _batches(arguments: argparse.Namespace, lake: Lake, engine: Engine, board: Board | None) -> Iterator[Any]:
    from headstone.lake.reading import record_batches, snapshots
    from headstone.lake.table_view import decided, rows_of_table

    states = snapshots(lake, chosen_partitions(arguments, lake), arguments.as_of_ms)
    if arguments.view == "records":
        everything = [extent for state in states.values() for extent in state.extents]
        meter = _meter(board, everything)
        for name, state in states.items():
            records = sum(extent.records for extent in state.extents)
            batches = record_batches(lake.store, name, state.extents, state.start_offset)
            yield from _metered(batches, state.extents, records, meter)
        return
    hash_key = lake.metastore.hash_key
    tables = decided(lake.store, hash_key, states, engine, board)
    meter = _meter(board, [found.extent for live in tables.values() for found in live])
    for name, live in tables.items():
        batches = rows_of_table(lake.store, hash_key, name, live)
        records = sum(found.records for found in live)
        yield from _metered(batches, [found.extent for found in live], records, meter)


def _meter(board: Board | None, extents: Sequence[Extent]) -> Meter:
    """Of a reader of these extents."""
    from headstone.pipeline.progress import meter_on

    if board is not None:
        board.expect(sum(extent.length for extent in extents))
    return meter_on(board)


def _metered(batches: Iterator[Any], extents: Sequence[Extent], records: int, meter: Meter) -> Iterator[Any]:
    """Bytes by the share of the records that come: a batch does not tell how many it was made of."""
    size = sum(extent.length for extent in extents)
    for batch in batches:
        meter.add(size * batch.num_rows // max(records, 1), batch.num_rows)
        yield batch


def _json_lines(batches: Iterator[Any]) -> Iterator[str]:
    """One per record, whatever --output says: there may be more of them than a document can hold."""
    for batch in batches:
        for row in batch.to_pylist():
            headers = [{"key": pair["key"], "value": shown_bytes(pair["value"])} for pair in row["headers"]]
            line = {
                "partition": row["partition"], "offset": row["offset"], "timestamp_ms": row["timestamp_ms"],
                "key": shown_bytes(row["key"]), "value": shown_bytes(row["value"]), "headers": headers,
            }  # fmt: skip
            yield json.dumps(line)


def _write_parquet(path: Path, batches: Iterator[Any]) -> int:
    """Whole or not at all."""
    import pyarrow.parquet as pq

    from headstone.lake.reading import SCHEMA

    partial = path.with_name(path.name + ".partial")
    count = 0
    with pq.ParquetWriter(partial, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    partial.replace(path)
    return count
