"""`headstone lake ingest|read|restore|prove-erased`: records into the lake, out of it, back to Kafka, and gone.

Parsing and printing only; `lake.py` beside it has the other actions.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.options import (
    add_spark_arguments,
    interval_ms,
    moment_ms,
    partition_number,
    positive,
    replication_factor,
    spark_conf,
    tell,
)
from headstone.errors import Unfinished, UsageError

if TYPE_CHECKING:
    from headstone.cluster.connection import Connection
    from headstone.lake.lake import Lake
    from headstone.log.directory import PartitionDir
    from headstone.log.topic_partition import TopicPartition

POLICIES = ("compact", "delete", "compact,delete", "delete,compact")


def add_actions(action: Callable[[str, str, Callable[[argparse.Namespace], int]], argparse.ArgumentParser]) -> None:
    """The arguments of all of them; what is named after an action parses it."""
    into = action("ingest", "copy committed records from log directories, backups or a cluster", ingest)
    into.add_argument("paths", nargs="*", metavar="PATH", help="log directories, partition directories, backups")
    _add_cluster(into, required=False)
    into.add_argument(
        "--topic", action="append", default=[], help="of the cluster, or of all that the paths hold; may be repeated"
    )
    into.add_argument(
        "--cleanup-policy", choices=POLICIES,
        help="of these topics, where their source does not tell it; those without compact are kept as they are",
    )  # fmt: skip
    into.add_argument(
        "--continuous", action="store_true", help="go on until SIGTERM or Ctrl-C (default: what is there now)"
    )
    into.add_argument("--every-ms", type=interval_ms, default=1000, help="between two batches of --continuous")
    into.add_argument("--offsets-per-batch", type=positive, help="at most, over all partitions")
    into.add_argument("--codec", choices=("none", "gzip", "snappy", "lz4", "zstd"), default="zstd")
    into.add_argument("--topic-conf", metavar="TOPIC:K=V", action="append", default=[], help="for topics that are new")
    add_spark_arguments(into)
    out = action("read", "records or the table (newest of every key) of a topic", read)
    out.add_argument("topic")
    out.add_argument("--partition", type=partition_number)
    out.add_argument("--view", choices=("records", "table"), default="records")
    out.add_argument("--as-of-ms", type=moment_ms, help="the past, as far as gc has left it")
    out.add_argument(
        "--to", type=Path, metavar="FILE", help="a Parquet file (default: one JSON line per record, to stdout)"
    )
    proof = action("prove-erased", "read every object of the store and say whether a value of a key is left", prove)
    proof.add_argument("topic")
    which = proof.add_mutually_exclusive_group(required=True)
    which.add_argument("--key", help="as text")
    which.add_argument("--key-hex", metavar="HEX")
    back = action("restore", "write a topic back into Kafka, tombstones included, and verify it", restore)
    back.add_argument("topic")
    _add_cluster(back, required=True)
    back.add_argument("--to-topic", help="an empty or new topic (default: of the same name)")
    back.add_argument("--replication-factor", type=replication_factor, default=1, help="of a topic that is made")
    back.add_argument("--as-of-ms", type=moment_ms, help="the past, as far as gc has left it")
    back.add_argument("--no-verify", action="store_true")


def _add_cluster(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--bootstrap", metavar="HOSTS", required=required, help="a Kafka cluster")
    parser.add_argument(
        "--kafka-conf", metavar="K=V", action="append", default=[], help="a setting of librdkafka; may be repeated"
    )


def ingest(arguments: argparse.Namespace) -> int:
    if bool(arguments.paths) == bool(arguments.bootstrap):
        raise UsageError("name what to ingest: log directories, or a cluster with --bootstrap HOSTS --topic T")
    if arguments.paths and arguments.continuous:
        raise UsageError("--continuous follows a cluster; log directories are ingested as they are now")
    rows = _ingest_cluster(arguments) if arguments.bootstrap else _ingest_logs(arguments)
    if arguments.output == "json":
        print(json.dumps({"partitions": rows}, indent=2))
    for row in rows if arguments.output == "text" else ():
        size = f", {row['bytes'] / 1e6:,.1f} MB" if "bytes" in row else ""
        print(f"{row['at']}: [{row['start']}, {row['end']}) {row['records']:,} records{size}")
    return 0


def _ingest_logs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from headstone.lake.ingest import ingest as ingest_logs
    from headstone.lake.topics import adopt, in_directories
    from headstone.log.directory import find_partitions

    directories = _of_topics(arguments, find_partitions(arguments.paths))
    facts = in_directories(directories)
    given = _topic_settings(arguments.topic_conf, facts)
    lake = open_named(arguments)
    for topic in given.keys() - lake.metastore.topics().keys():
        found = replace(facts[topic], settings={**facts[topic].settings, **given[topic]})
        adopt(lake, topic, found, policy=arguments.cleanup_policy)
    done = ingest_logs(lake, directories, clock=lake.metastore.clock, tell=tell, policy=arguments.cleanup_policy)
    lake.close()
    return [{**asdict(one), "at": str(one.at)} for one in done]


def _of_topics(arguments: argparse.Namespace, directories: Sequence[PartitionDir]) -> list[PartitionDir]:
    missing = sorted(set(arguments.topic) - {directory.topic for directory in directories})
    if missing:
        raise UsageError(f"no partition of topic {', '.join(missing)} in {', '.join(map(str, arguments.paths))}")
    return [directory for directory in directories if not arguments.topic or directory.topic in arguments.topic]


def _ingest_cluster(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from headstone.cluster.connection import spark_source_options
    from headstone.cluster.live import LiveCluster
    from headstone.lake.lake import LakeAddress
    from headstone.lake.live import expect_ids, facts_of, prepare
    from headstone.log import codecs
    from headstone.spark.lake_stream import StreamOptions, stream
    from headstone.spark.session import spark_session, with_package
    from headstone.spark.streams import CONNECTOR

    if not arguments.topic:
        raise UsageError("name the topics with --topic; it may be repeated")
    if arguments.spark_remote:
        raise UsageError("ingest from a cluster commits from the driver, which must be this process: use --master")
    connection = kafka_connection(arguments)
    source = spark_source_options(connection)
    cluster = LiveCluster(connection, beside_spark=True)
    lake = open_named(arguments)
    facts = facts_of(cluster, arguments.topic)
    given = _topic_settings(arguments.topic_conf, facts)
    facts = {topic: replace(one, settings={**one.settings, **given.get(topic, {})}) for topic, one in facts.items()}
    prepare(lake, facts, policy=arguments.cleanup_policy, tell=tell)
    before = {at: lake.metastore.partition(at).next_offset for at in lake.metastore.partitions()}
    address = LakeAddress(metastore_url=_url(arguments), store_settings=store_settings(arguments))
    options = StreamOptions(
        source=source, continuous=arguments.continuous, every_ms=arguments.every_ms,
        offsets_per_batch=arguments.offsets_per_batch, codec=codecs.NAMES.index(arguments.codec),
        stop=_stop_on_signal() if arguments.continuous else threading.Event(),
        before_commit=lambda: expect_ids(cluster, {topic: one.kafka_id for topic, one in facts.items()}),
    )  # fmt: skip
    with spark_session(
        app_name="headstone lake ingest", master=arguments.master, remote=arguments.spark_remote,
        conf=with_package(spark_conf(arguments), CONNECTOR),
    ) as spark:  # fmt: skip
        starts = {topic: one.starts for topic, one in facts.items()}
        added = stream(lake, address, spark, starts, options, clock=lake.metastore.clock, tell=tell)
    rows = [
        {
            "at": str(at), "start": before.get(at, 0), "end": lake.metastore.partition(at).next_offset,
            "records": added.get(at, 0),
        }
        for at in lake.metastore.partitions() if at.topic in facts
    ]  # fmt: skip
    lake.close()
    return rows


def _stop_on_signal() -> threading.Event:
    """The batch that is under way is finished or forgotten; either way nothing is lost."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def kafka_connection(arguments: argparse.Namespace) -> Connection:
    from headstone.cluster.connection import Connection

    pairs = [item.partition("=") for item in arguments.kafka_conf]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError("--kafka-conf wants K=V, such as security.protocol=SASL_SSL")
    return Connection.parse(arguments.bootstrap, {name: value for name, _, value in pairs})


def _topic_settings(items: list[str], topics: Collection[str]) -> dict[str, dict[str, object]]:
    """Of those topics that are ingested; of others it would be a mistake in the name."""
    found: dict[str, dict[str, object]] = {}
    for item in items:
        topic, colon, pair = item.partition(":")
        name, equals, value = pair.partition("=")
        if not colon or not equals:
            raise UsageError(f"--topic-conf {item}: expected TOPIC:K=V, such as orders:delete.retention.ms=1000")
        if topic not in topics:
            raise UsageError(f"--topic-conf {item}: {topic} is not among what is ingested: {', '.join(sorted(topics))}")
        found.setdefault(topic, {})[name] = value
    return found


def read(arguments: argparse.Namespace) -> int:
    from headstone.lake.reading import record_batches, snapshot, table_batches

    lake = open_named(arguments)
    chosen = chosen_partitions(arguments, lake)

    def batches() -> Iterator[Any]:
        for at in chosen:
            state = snapshot(lake, at, arguments.as_of_ms)
            if arguments.view == "table":
                yield from table_batches(lake, at, state)
            else:
                yield from record_batches(lake, at, state.extents, state.start_offset)

    count = _write_parquet(arguments.to, batches()) if arguments.to else _print_lines(batches())
    lake.close()
    if arguments.to:
        print(f"{count:,} records in {arguments.to}", file=sys.stderr)
    return 0


def _print_lines(batches: Iterator[Any]) -> int:
    from headstone.cli.inspect import shown_bytes

    count = 0
    for batch in batches:
        for row in batch.to_pylist():
            headers = [{"key": pair["key"], "value": shown_bytes(pair["value"])} for pair in row["headers"]]
            line = {
                "partition": row["partition"], "offset": row["offset"], "timestamp_ms": row["timestamp_ms"],
                "key": shown_bytes(row["key"]), "value": shown_bytes(row["value"]), "headers": headers,
            }  # fmt: skip
            print(json.dumps(line))
            count += 1
    return count


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


def prove(arguments: argparse.Namespace) -> int:
    """Exit 0 no object holds a value of the key; 1 some do; 3 some could not be read, so nothing is proven."""
    from headstone.lake.proof import ERASED, FOUND, prove_erased

    lake = open_named(arguments)
    if arguments.topic not in lake.metastore.topics():
        raise UsageError(f"the lake has no topic {arguments.topic}")
    proof = prove_erased(lake, arguments.topic, _key(arguments))
    lake.close()
    total = sum(one.bytes for one in proof.searched)
    if arguments.output == "json":
        told = {
            "topic": proof.topic, "key_hex": proof.key.hex(), "verdict": proof.verdict, "bytes": total,
            "found": [asdict(one) for one in proof.sightings], "objects": [asdict(one) for one in proof.searched],
            "unread": [asdict(one) for one in proof.unread],
        }  # fmt: skip
        print(json.dumps(told, indent=2))
    else:
        for sighting in proof.sightings:
            what = "tombstone" if sighting.tombstone else "value"
            print(
                f"{what} at {proof.topic}-{sighting.partition} {sighting.offset}, {sighting.state}, in {sighting.object_id}"
            )
        for one in proof.unread:
            print(f"not read: {one.path}: {one.why}")
        print(f"{proof.verdict}: {len(proof.searched)} objects, {total:,} bytes were read")
    return 0 if proof.verdict == ERASED else 1 if proof.verdict == FOUND else Unfinished.exit_code


def _key(arguments: argparse.Namespace) -> bytes:
    if arguments.key is not None:
        return str(arguments.key).encode()
    try:
        return bytes.fromhex(arguments.key_hex)
    except ValueError as error:
        raise UsageError(f"--key-hex {arguments.key_hex}: not hexadecimal") from error


def restore(arguments: argparse.Namespace) -> int:
    from headstone.cluster.live import LiveCluster
    from headstone.lake.restore import restore as restore_topic

    cluster = LiveCluster(kafka_connection(arguments))
    lake = open_named(arguments)
    done = restore_topic(
        lake, arguments.topic, arguments.to_topic or arguments.topic, cluster, as_of_ms=arguments.as_of_ms,
        verify=not arguments.no_verify, copies=arguments.replication_factor, tell=tell,
    )  # fmt: skip
    lake.close()
    if arguments.output == "json":
        print(json.dumps({"partitions": [{**asdict(one), "at": str(one.at)} for one in done]}, indent=2))
    for one in done if arguments.output == "text" else ():
        verified = "verified" if one.verified else "not verified"
        print(f"{one.at}: {one.records:,} records, {one.tombstones:,} tombstones, {one.keys:,} keys, {verified}")
    return 0


def store_settings(arguments: argparse.Namespace) -> dict[str, str]:
    pairs = [item.partition("=") for item in arguments.store_conf]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError("--store-conf wants K=V, such as endpoint=http://127.0.0.1:9000")
    return {name: value for name, _, value in pairs}


def _url(arguments: argparse.Namespace) -> str:
    from headstone.lake.lake import metastore_url

    return metastore_url(arguments.lake)


def open_named(arguments: argparse.Namespace) -> Lake:
    """The lake that the command line names."""
    from headstone.lake.lake import open_lake

    lake = open_lake(_url(arguments), settings=store_settings(arguments))
    if arguments.now_ms is not None:
        lake.metastore.give_clock(arguments.now_ms)
    return lake


def chosen_partitions(arguments: argparse.Namespace, lake: Lake) -> list[TopicPartition]:
    known = [at for at in lake.metastore.partitions() if at.topic == arguments.topic]
    chosen = [at for at in known if arguments.partition in (None, at.number)]
    if not chosen:
        raise UsageError(f"the lake has no {arguments.topic}-{arguments.partition or 0}")
    return chosen
