"""`headstone lake`: topics in object storage. The arguments of all its actions; each is imported when it is used.

LAKE is a directory (an embedded lake: SQLite and local objects) or the URL of a metastore. What the actions do is in
`lake_data.py` (records in, out and back), `lake_topics.py`, `lake_erasure.py`, `lake_jobs.py` (who compacts what),
`lake_care.py` (status and garbage) and `lake_recovery.py` (when brokers, or the metastore, are lost).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from headstone.cli.connections import add_cluster_arguments, add_store_arguments
from headstone.cli.engines import BY_SIZE, IN_PROCESS, add_engine_arguments
from headstone.cli.options import (
    MOMENT,
    deadline_ms,
    duration_ms,
    interval_ms,
    moment_ms,
    offset,
    partition_count,
    partition_number,
    positive,
    ratio,
    replication_factor,
)
from headstone.cli.output import Output
from headstone.cli.parsing import FINDINGS, UNFINISHED, add_output_arguments, explain

POLICIES = ("compact", "delete", "compact,delete", "delete,compact")
TOPIC_VERBS = ("list", "describe", "create", "alter", "drop", "delete-records")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Actions:
    """The actions of `lake`, with what all of them take."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(
        self, name: str, about: str, body: str, *examples: str, exit_codes: Mapping[int, str] | None = None
    ) -> argparse.ArgumentParser:
        """body: module and function, such as `lake_data.read`."""
        made = self._actions.add_parser(name, help=about, description=about + ".")
        where = (
            "a directory, or a metastore: sqlite:///PATH, postgresql://..., or where its URL is: env:NAME, file:PATH"
        )
        made.add_argument("lake", metavar="LAKE", help=where)
        made.add_argument(
            "--now-ms", type=moment_ms, metavar="TIME",
            help=f"of a lake that was made with --now-ms: its time, {MOMENT} (default: the lake's clock)",
        )  # fmt: skip
        add_store_arguments(made)
        add_output_arguments(made)
        explain(made, [f"headstone lake {name} {example}" for example in examples], exit_codes or {})
        made.set_defaults(run=run, body=body)
        return made


def run(arguments: argparse.Namespace, output: Output) -> int:
    module, _, function = arguments.body.partition(".")
    return int(getattr(importlib.import_module(f"headstone.cli.{module}"), function)(arguments, output))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain(parser, EXAMPLES, {FINDINGS: "something is wrong, by an action that looks for it"})
    actions = Actions(parser)
    init = actions.add("init", "make a new lake", "lake_care.init", "/data/lake",
                       "postgresql://lake@db/lake --objects s3://bucket/lake")  # fmt: skip
    init.add_argument("--objects", metavar="URL", help="s3://, gs://, az://, file:// (default: in LAKE itself)")
    _add_topics(actions)
    _add_ingest(actions)
    _add_read(actions)
    _add_erase(actions)
    _add_back(actions)
    _add_export(actions)
    status = actions.add(
        "status", "totals, partitions and why they are due or not, queue, workers", "lake_care.status", "/data/lake --check",
        exit_codes={FINDINGS: "--check found something wrong"},
    )  # fmt: skip
    status.add_argument(
        "--check", action="store_true", help="check every invariant of the metastore; reads every extent"
    )
    status.add_argument("--totals", action="store_true", help="as text: topics and the lake, and not each partition")
    again = actions.add(
        "rebuild", "make the metastore again from the store, after it was lost or set back in time; workers must be stopped",
        "lake_recovery.rebuild", "/data/lake", "postgresql://lake@db/lake --objects s3://bucket/lake",
        exit_codes={FINDINGS: "objects that are needed are missing in the store"},
    )  # fmt: skip
    again.add_argument(
        "--objects", metavar="URL", help="where the objects of the lake are (default: the metastore tells)"
    )
    _add_compact(actions)
    _add_worker(actions)
    _add_wishes(actions)
    clock = actions.add(
        "set-clock", "count times ahead of the clock, which was wrong once; with --apply, end them",
        "lake_care.set_clock", "/data/lake --apply",
    )  # fmt: skip
    clock.add_argument("--apply", action="store_true", help="do it (default: only say what would be done)")
    upgrade = actions.add(
        "upgrade", "show how a lake of an older version is brought up to date; with --apply, do it", "lake_care.upgrade",
        "/data/lake --apply",
    )  # fmt: skip
    upgrade.add_argument(
        "--apply", action="store_true",
        help="do it: older programs are refused from then on (default: only show it)",
    )  # fmt: skip
    gc = actions.add("gc", "show what is garbage; with --apply, delete it", "lake_care.gc", "/data/lake --apply")
    gc.add_argument("--apply", action="store_true", help="delete it (default: only show it)")
    _add_grace(gc)


def _add_topics(actions: Actions) -> None:
    topics = actions.add(
        "topics", "list the lake's topics; describe, create, alter or drop one, delete its records", "lake_topics.topics",
        "/data/lake", "/data/lake describe orders", "/data/lake alter orders --conf delete.retention.ms=3600000",
        "/data/lake drop orders --dry-run", "/data/lake delete-records orders --partition 0 --before 1000 --dry-run",
    )  # fmt: skip
    topics.add_argument(
        "verb", nargs="?", metavar="VERB", choices=TOPIC_VERBS, default=TOPIC_VERBS[0], help=", ".join(TOPIC_VERBS)
    )
    topics.add_argument("topic", nargs="?", metavar="TOPIC", help="which one; none to list all")
    topics.add_argument("--partitions", type=partition_count, default=1, metavar="N", help="of a topic that is created")
    topics.add_argument(
        "--conf", action="append", default=[], metavar="K=V", help="a setting by Kafka's name; may be repeated"
    )
    topics.add_argument("--partition", type=partition_number, metavar="N", help="of delete-records (default: none)")
    topics.add_argument(
        "--before", type=offset, metavar="OFFSET", help="of delete-records: where the log begins then (default: none)"
    )
    topics.add_argument("--dry-run", action="store_true", help="only say what drop or delete-records would do")
    topics.add_argument(
        "--yes", action="store_true", help="no question before a topic is dropped or records are deleted"
    )
    retain = actions.add(
        "retain", "show what retention.ms and retention.bytes let go; with --apply, let it go", "lake_topics.retain",
        "/data/lake", "/data/lake --topic orders --apply",
    )  # fmt: skip
    retain.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    retain.add_argument("--apply", action="store_true", help="do it (default: only show it)")


def _add_ingest(actions: Actions) -> None:
    into = actions.add(
        "ingest", "copy committed records from log directories, backups or a cluster", "lake_data.ingest",
        "/data/lake /backups/broker-1 --topic orders", "/data/lake s3://backups/broker-1 --master spark://HOST:7077",
        "/data/lake --bootstrap kafka:9092 --topic orders --continuous",
    )  # fmt: skip
    into.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="log directories, partition directories, backups, also s3://BUCKET/PREFIX",
    )
    add_cluster_arguments(into, what="a running cluster instead")
    into.add_argument(
        "--topic", action="append", default=[], help="of the cluster, or of all that the paths hold; may be repeated"
    )
    into.add_argument(
        "--cleanup-policy", choices=POLICIES, metavar="POLICY",
        help="of these topics, where their source does not tell it: compact, delete, or compact,delete; those without "
        "compact are kept as they are (default: the source's)",
    )  # fmt: skip
    into.add_argument(
        "--continuous", action="store_true", help="go on until SIGTERM or Ctrl-C (default: what is there now)"
    )
    into.add_argument(
        "--every-ms",
        type=interval_ms,
        default=1000,
        metavar="N",
        help="between two looks of --continuous at what has come",
    )
    into.add_argument(
        "--max-age-ms", type=duration_ms, default=60_000, metavar="N",
        help="--continuous takes what has come when it makes an object, or after so long (default 60000; 0: at once)",
    )  # fmt: skip
    into.add_argument(
        "--object-bytes", type=positive, default=64 << 20, metavar="N",
        help="the size of objects wanted, from a cluster (default 67108864: 64 MiB)",
    )  # fmt: skip
    into.add_argument(
        "--offsets-per-task", type=positive, metavar="N",
        help="at most; a task holds them in memory (default: an object's worth, by what records take in the lake)",
    )  # fmt: skip
    into.add_argument(
        "--offsets-per-batch",
        type=positive,
        metavar="N",
        help="at most, over all partitions (default: 64 objects' worth)",
    )
    into.add_argument("--codec", choices=CODECS, default="zstd", help="of what is written from a cluster")
    into.add_argument(
        "--topic-conf", metavar="TOPIC:K=V", action="append", default=[],
        help="a topic setting by Kafka's name, for topics that are new; may be repeated",
    )  # fmt: skip
    add_engine_arguments(into, auto=f"{IN_PROCESS}; from a cluster Spark")


def _add_read(actions: Actions) -> None:
    out = actions.add(
        "read", "records or the table (newest of every key) of a topic, as JSON lines or into Parquet", "lake_data.read",
        "/data/lake orders --view table", "/data/lake orders --as-of 2026-11-16T09:30:00Z --to orders.parquet",
    )  # fmt: skip
    out.add_argument("topic", metavar="TOPIC", help="which one")
    out.add_argument("--partition", type=partition_number, metavar="N", help="only this one (default: all)")
    out.add_argument(
        "--view", choices=("records", "table"), default="records", help="every record, or the newest of a key"
    )
    _add_as_of(out)
    out.add_argument(
        "--to", type=Path, metavar="FILE", help="a Parquet file (default: one JSON line per record, to stdout)"
    )
    add_engine_arguments(out, auto=IN_PROCESS)
    proof = actions.add(
        "prove-erased", "read every object of the store and say whether a value of a key is left", "lake_erasure.prove",
        "/data/lake users --key alice",
        exit_codes={
            0: "no object holds a value of the key", FINDINGS: "some do",
            UNFINISHED: "some could not be read, so nothing is proven",
        },
    )  # fmt: skip
    proof.add_argument("topic", metavar="TOPIC", help="whose key it is")
    which = proof.add_mutually_exclusive_group(required=True)
    which.add_argument("--key", help="as text")
    which.add_argument("--key-hex", metavar="HEX", help="as hexadecimal bytes")
    proof.add_argument(
        "--anywhere", action="store_true",
        help="nor the bytes of the key: not in a tombstone, another record, another topic (default: no value of the key)",
    )  # fmt: skip


def _add_erase(actions: Actions) -> None:
    erase = actions.add(
        "erase", "remove every trace of keys by a deadline; run it again, or let workers go on", "lake_erasure.erase",
        "/data/lake users --key alice --deadline 30d", "/data/lake users --keys-file leavers.txt --write-tombstone",
        exit_codes={
            0: "nothing is left of the keys", FINDINGS: "a key is not deleted yet: delete it in Kafka, ingest, run again",
            UNFINISHED: "what could be done is; the rest waits for its time",
        },
    )  # fmt: skip
    erase.add_argument("topic", metavar="TOPIC", help="whose keys they are")
    erase.add_argument("--key", action="append", default=[], help="as text; may be repeated")
    erase.add_argument(
        "--key-hex", action="append", default=[], metavar="HEX", help="as hexadecimal bytes; may be repeated"
    )
    erase.add_argument(
        "--keys-file", type=Path, metavar="FILE", help='one key per line, as text or as {"hex": "..."} (default: none)'
    )
    erase.add_argument(
        "--deadline", dest="deadline_ms", type=deadline_ms, default=30 * 86_400_000, metavar="TIME",
        help="from now, in ms or such as 36h or 30d; `lake status` shows it (default 30d)",
    )  # fmt: skip
    erase.add_argument(
        "--write-tombstone", action="store_true",
        help="write missing tombstones into the lake, whose log is the only one from then on: ingest refuses the topic "
        "(default: only if that is so already)",
    )  # fmt: skip
    _add_grace(erase)
    add_engine_arguments(erase, auto=IN_PROCESS)


def _add_grace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace-ms", type=duration_ms, default=3_600_000, metavar="N",
        help="for readers of what was replaced (default 3600000: an hour)",
    )  # fmt: skip
    parser.add_argument(
        "--upload-ms",
        type=interval_ms,
        default=86_400_000,
        metavar="N",
        help="the longest upload (default 86400000: a day)",
    )


def _add_as_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--as-of", "--as-of-ms", dest="as_of_ms", type=moment_ms, metavar="TIME",
        help=f"the past, as far as gc has left it, {MOMENT} (default: now)",
    )  # fmt: skip


def _add_back(actions: Actions) -> None:
    back = actions.add(
        "restore", "write a topic back into Kafka, tombstones included, and verify it", "lake_recovery.restore",
        "/data/lake orders --bootstrap kafka:9092 --to-topic orders-restored",
    )  # fmt: skip
    back.add_argument("topic", metavar="TOPIC", help="of the lake")
    add_cluster_arguments(back, what="where to", required=True)
    back.add_argument("--to-topic", metavar="TOPIC", help="an empty or new topic (default: of the same name)")
    back.add_argument(
        "--replication-factor", type=replication_factor, default=1, metavar="N", help="of a topic that is made"
    )
    _add_as_of(back)
    back.add_argument("--no-verify", action="store_true", help="do not read it back")
    back.add_argument(
        "--offset-map", type=Path, metavar="FILE",
        help="written: the new offset of every record; if an interrupted restore has left it, that one goes on (default: none)",
    )  # fmt: skip
    back.add_argument(
        "--translate-group", metavar="GROUP", action="append", default=[],
        help="set the offsets of this group, which has no members now, in the restored topic; may be repeated",
    )  # fmt: skip
    add_engine_arguments(back, auto=IN_PROCESS)


def _add_export(actions: Actions) -> None:
    out = actions.add(
        "export", "write topics as log directories from which new brokers start, offsets as they were",
        "lake_recovery.export", "/data/lake orders __consumer_offsets --log-dirs /var/lib/kafka/data",
        "/data/lake --all-topics --log-dirs s3://bucket/kafka --dry-run",
    )  # fmt: skip
    out.add_argument("topics", nargs="*", metavar="TOPIC", help="which ones")
    out.add_argument("--all-topics", action="store_true", help="all that the lake has")
    out.add_argument(
        "--log-dirs", metavar="DIR", action="append", required=True,
        help="where to, a path or s3://, gs://, az://; of several brokers, each formatted by kafka-storage, once per broker",
    )  # fmt: skip
    out.add_argument(
        "--replication-factor",
        type=replication_factor,
        default=1,
        metavar="N",
        help="on how many of the brokers (default 1)",
    )
    out.add_argument(
        "--topic-id", metavar="TOPIC=ID", action="append", default=[],
        help="the id that the topic has in the metadata of the new brokers; may be repeated (default: the one it had)",
    )  # fmt: skip
    _add_as_of(out)
    out.add_argument("--dry-run", action="store_true", help="only say what would be written")
    out.add_argument("--clean", action="store_true", help="remove what a killed export has left in an object store")
    add_engine_arguments(out, auto=IN_PROCESS)


def _add_compact(actions: Actions) -> None:
    compact = actions.add(
        "compact", "compact what is due, most urgent first", "lake_jobs.compact",
        "/data/lake", "/data/lake --topic users --all --purge",
    )  # fmt: skip
    compact.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    compact.add_argument("--all", action="store_true", help="whatever is dirty, due or not")
    compact.add_argument("--level", action="store_true", help="merge small extents too")
    compact.add_argument(
        "--purge", action="store_true",
        help="as --level, and empty every object that holds records which nobody is shown any more: then gc deletes it",
    )  # fmt: skip
    _add_job(compact, auto=BY_SIZE)


def _add_worker(actions: Actions) -> None:
    worker = actions.add(
        "worker", "compact what is due until nothing is, beside any number of others", "lake_jobs.worker",
        "/data/lake --every-ms 60000",
    )  # fmt: skip
    worker.add_argument("--name", help="by which others see it (default: host and process id)")
    worker.add_argument(
        "--lease-ms",
        type=interval_ms,
        default=60_000,
        metavar="N",
        help="after so long without a sign it counts as dead",
    )
    worker.add_argument(
        "--every-ms",
        type=interval_ms,
        metavar="N",
        help="look again after so long, until SIGTERM or Ctrl-C (default: once)",
    )
    worker.add_argument(
        "--no-gc", action="store_true", help="leave garbage to others (default: it is collected now and then)"
    )
    worker.add_argument(
        "--gc-every-ms", type=interval_ms, default=600_000, metavar="N",
        help="between two collections of garbage (default 600000: ten minutes)",
    )  # fmt: skip
    worker.add_argument(
        "--gc-objects", type=positive, default=1000, metavar="N", help="how many objects it deletes at a time"
    )
    worker.add_argument(
        "--upkeep-bytes", type=positive, default=1 << 30, metavar="N",
        help="of small extents to merge, and of extents with old dead records, that it writes again before it looks at the "
        "queue (default 1073741824: 1 GiB)",
    )  # fmt: skip
    worker.add_argument(
        "--partitions-at-once", type=positive, default=16, metavar="N",
        help="how many it takes into one job; on a cluster as many as it has cores, or more (default 16)",
    )  # fmt: skip
    _add_grace(worker)
    _add_job(worker, auto=IN_PROCESS)


def _add_job(parser: argparse.ArgumentParser, *, auto: str) -> None:
    parser.add_argument(
        "--map-bytes", type=positive, metavar="N",
        help="a bounded map of keys as Redpanda has it, in passes (default: one pass)",
    )  # fmt: skip
    parser.add_argument(
        "--dead-share-max", type=ratio, default=0.3, metavar="SHARE",
        help="an extent that loses more of its records is written again, others get them marked (default 0.3; 0: no marks)",
    )  # fmt: skip
    parser.add_argument(
        "--dead-age-max-ms", dest="dead_age_ms_max", type=duration_ms, metavar="N",
        help="bytes of marked records leave their objects after so long, in topics that do not say it themselves "
        "(headstone.dead.age.max.ms; default: no limit)",
    )  # fmt: skip
    add_engine_arguments(parser, auto=auto)


def _add_wishes(actions: Actions) -> None:
    request = actions.add(
        "request", "compact a topic now, whatever its dirty ratio: the next worker does it first", "lake_jobs.request",
        "/data/lake orders",
    )  # fmt: skip
    request.add_argument("topic", metavar="TOPIC", help="which one")
    request.add_argument("--partition", type=partition_number, metavar="N", help="only this one (default: all)")
    pause = actions.add(
        "pause", "let a worker take no new job; with --resume let it go on", "lake_jobs.pause", "/data/lake worker-1"
    )
    pause.add_argument("worker", metavar="WORKER", help="its name, as `lake status` tells it")
    pause.add_argument("--resume", action="store_true", help="let it go on")
    hold = actions.add(
        "hold", "let tombstones from an offset on wait for a reader; with --release no longer", "lake_jobs.hold",
        "/data/lake warehouse --topic orders --offset 1000",
    )  # fmt: skip
    hold.add_argument("reader", metavar="READER", help="a name")
    hold.add_argument("--topic", help="what it reads (default: with --release, all)")
    hold.add_argument("--partition", type=partition_number, metavar="N", help="only this one (default: all)")
    hold.add_argument("--offset", type=offset, default=0, metavar="N", help="what the reader has not passed yet")
    hold.add_argument(
        "--for-ms",
        type=interval_ms,
        default=86_400_000,
        metavar="N",
        help="the hold expires then (default 86400000: a day)",
    )
    hold.add_argument("--release", action="store_true", help="all holds of this reader")


EXAMPLES: Sequence[str] = (
    "headstone lake init /data/lake",
    "headstone lake ingest /data/lake /backups/broker-1",
    "headstone lake worker /data/lake --every-ms 60000",
)
