"""`headstone lake`: topics in object storage. The arguments of all its actions; each is imported when it is used.

LAKE is a directory (an embedded lake: SQLite and local objects) or the URL of a metastore. The actions are in `lake_data.py`
(records in, out and back), `lake_topics.py`, `lake_erasure.py`, `lake_jobs.py` (compaction), `lake_care.py` (status and
garbage), `lake_recovery.py` (lost brokers or metastore) and `lake_mending.py` (damaged objects).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from headstone.cli import lake_mending
from headstone.cli.connections import add_cluster_arguments, add_store_arguments
from headstone.cli.engines import BY_SIZE, IN_PROCESS, add_engine_arguments
from headstone.cli.lake_erasure_arguments import add_erasure_arguments, add_grace_arguments
from headstone.cli.options import (
    add_topic_argument,
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
    topic_name,
)
from headstone.cli.output import Output
from headstone.cli.parsing import FINDINGS, USAGE, add_output_arguments, explain, sentence
from headstone.lake.defaults import (
    BATCH_OBJECTS,
    CODEC,
    COPIES,
    DEAD_SHARE_MAX,
    ERASURE_DEADLINE_MS,
    FLUSH_AGE_MS,
    GC_EVERY_MS,
    GC_OBJECTS_AT_ONCE,
    HELD_FROM,
    HOLD_MS,
    LEASE_MS,
    OBJECT_BYTES,
    PARTITIONS,
    PARTITIONS_AT_ONCE,
    POLL_EVERY_MS,
    RECORDS,
    UPKEEP_BYTES_AT_ONCE,
    VIEWS,
)
from headstone.log import codecs
from headstone.retention.settings import CLEANUP_POLICIES

TOPIC_VERBS = ("list", "describe", "create", "alter", "drop", "delete-records")


class LakeActions:
    """The actions of `lake`, with the arguments that all of them take."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(
        self, name: str, about: str, body: str, *examples: str, exit_codes: Mapping[int, str] | None = None
    ) -> argparse.ArgumentParser:
        """`body`: module and function, such as `lake_data.read`."""
        made = self._actions.add_parser(name, help=about, description=sentence(about))
        where = "a directory, or a metastore: sqlite:///PATH, postgresql://..., or env:NAME or file:PATH to read its URL from"
        made.add_argument("lake", metavar="LAKE", help=where)
        made.add_argument(
            "--now-ms", type=moment_ms, metavar="TIME",
            help="current time, for a lake that was created with --now-ms (default: the lake's clock)",
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
    explain(parser, EXAMPLES, {FINDINGS: "the action found a problem"})
    actions = LakeActions(parser)
    init = actions.add("init", "create a lake", "lake_care.init", "/data/lake",
                       "postgresql://lake@db/lake --objects s3://bucket/lake")  # fmt: skip
    init.add_argument(
        "--objects",
        metavar="URL",
        help="where objects are stored: s3://, gs://, az:// or file:// (default: in LAKE itself)",
    )
    _add_topics(actions)
    _add_ingest(actions)
    _add_read(actions)
    add_erasure_arguments(actions)
    _add_back(actions)
    _add_export(actions)
    status = actions.add(
        "status", "show totals, partitions and why they are due or not, the queue and workers", "lake_care.status",
        "/data/lake --check",
        "/data/lake --check --deep", exit_codes={FINDINGS: "--check or --deep found something wrong"},
    )  # fmt: skip
    status.add_argument(
        "--check", action="store_true",
        help="check all invariants of the metastore, the journal, and that every object is in the store with the right size",
    )  # fmt: skip
    status.add_argument("--deep", action="store_true", help="like --check, and read every byte of every object")
    add_engine_arguments(status, auto=IN_PROCESS)
    status.add_argument(
        "--totals", action="store_true", help="text output: show topics and the lake, not each partition"
    )
    again = actions.add(
        "rebuild", "rebuild the metastore from the store after it was lost or restored to an earlier time; stop workers first",
        "lake_recovery.rebuild", "/data/lake", "postgresql://lake@db/lake --objects s3://bucket/lake",
        exit_codes={FINDINGS: "needed objects are missing from the store"},
    )  # fmt: skip
    again.add_argument(
        "--objects", metavar="URL", help="where the lake's objects are stored (default: as recorded in the metastore)"
    )
    actions.add(
        "adopt", "make this metastore the lake's only one after it was moved or restored; its copies are refused then",
        "lake_care.adopt", "postgresql://lake@db/lake",
    )  # fmt: skip
    lake_mending.add_arguments(actions)
    _add_compact(actions)
    _add_worker(actions)
    _add_wishes(actions)
    clock = actions.add(
        "set-clock", "find timestamps in the future, left by a wrong clock; with --apply, correct them",
        "lake_care.set_clock", "/data/lake --apply",
    )  # fmt: skip
    clock.add_argument("--apply", action="store_true", help="apply the changes (default: only show them)")
    gc = actions.add("gc", "show what is garbage; with --apply, delete it", "lake_care.gc", "/data/lake --apply")
    gc.add_argument("--apply", action="store_true", help="delete it (default: only show what would be deleted)")
    add_grace_arguments(gc)


def _add_topics(actions: LakeActions) -> None:
    topics = actions.add(
        "topics", "list the lake's topics; describe, create, alter or drop a topic, or delete its records",
        "lake_topics.topics",
        "/data/lake", "/data/lake describe orders", "/data/lake alter orders --conf delete.retention.ms=1h",
        "/data/lake drop orders --dry-run", "/data/lake delete-records orders --partition 0 --before 1000 --dry-run",
    )  # fmt: skip
    topics.add_argument(
        "verb", nargs="?", metavar="VERB", choices=TOPIC_VERBS, default=TOPIC_VERBS[0], help=", ".join(TOPIC_VERBS)
    )
    topics.add_argument("topic", nargs="?", metavar="TOPIC", help="topic of the verb; not used by list")
    topics.add_argument(
        "--partitions", type=partition_count, default=PARTITIONS, metavar="N", help="create: number of partitions"
    )
    topics.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="K=V",
        help="create, alter: a topic setting by Kafka's name; may be repeated",
    )
    topics.add_argument(
        "--partition", type=partition_number, metavar="N", help="delete-records: partition number (default: none)"
    )
    topics.add_argument(
        "--before",
        type=offset,
        metavar="OFFSET",
        help="delete-records: delete records before this offset (default: none)",
    )
    topics.add_argument(
        "--deadline", dest="deadline_ms", type=deadline_ms, default=ERASURE_DEADLINE_MS, metavar="DURATION",
        help="drop: time until no trace of the topic may be left",
    )  # fmt: skip
    topics.add_argument("--dry-run", action="store_true", help="drop, delete-records: only show what would be done")
    topics.add_argument("--yes", action="store_true", help="drop, delete-records: do not ask for confirmation")
    retain = actions.add(
        "retain", "show what retention.ms and retention.bytes expire; with --apply, delete it", "lake_topics.retain",
        "/data/lake", "/data/lake --topic orders --apply",
    )  # fmt: skip
    add_topic_argument(retain)
    retain.add_argument("--apply", action="store_true", help="apply the changes (default: only show them)")


def _add_ingest(actions: LakeActions) -> None:
    into = actions.add(
        "ingest", "copy committed records from log directories, backups or a cluster", "lake_data.ingest",
        "/data/lake /backups/broker-1 --topic orders", "/data/lake s3://backups/broker-1 --master spark://HOST:7077",
        "/data/lake --bootstrap kafka:9092 --topic orders --continuous",
        exit_codes={USAGE: "wrong usage, or a log that is unreadable or does not continue the lake's; others were ingested"},
    )  # fmt: skip
    into.add_argument(
        "paths", nargs="*", metavar="PATH",
        help="log directories, partition directories or backups; may be s3://BUCKET/PREFIX",
    )  # fmt: skip
    add_cluster_arguments(into, what="ingest from a running cluster")
    add_topic_argument(into, "only this topic")
    into.add_argument(
        "--cleanup-policy", choices=CLEANUP_POLICIES, metavar="POLICY",
        help="cleanup.policy for topics whose source does not state one: compact, delete or compact,delete; without compact "
        "they are never compacted (default: the source's)",
    )  # fmt: skip
    into.add_argument(
        "--continuous",
        action="store_true",
        help="keep ingesting until SIGTERM or Ctrl-C (default: ingest what is there now)",
    )
    into.add_argument(
        "--every-ms", type=interval_ms, default=POLL_EVERY_MS, metavar="DURATION",
        help="with --continuous: poll interval",
    )  # fmt: skip
    into.add_argument(
        "--max-age-ms", type=duration_ms, default=FLUSH_AGE_MS, metavar="DURATION",
        help="with --continuous: write an object when it is full (--object-bytes) or this old; 0: at once",
    )  # fmt: skip
    into.add_argument(
        "--object-bytes",
        type=positive,
        default=OBJECT_BYTES,
        metavar="N",
        help="target size of an object when ingesting from a cluster",
    )
    into.add_argument(
        "--offsets-per-task", type=positive, metavar="N",
        help="maximum offsets per task, which keeps them in memory (default: one object's worth, estimated from the lake)",
    )  # fmt: skip
    into.add_argument(
        "--offsets-per-batch", type=positive, metavar="N",
        help=f"maximum offsets per batch over all partitions (default: {BATCH_OBJECTS} objects' worth)",
    )  # fmt: skip
    into.add_argument("--codec", choices=codecs.NAMES, default=CODEC, help="compression when ingesting from a cluster")
    into.add_argument(
        "--topic-conf", metavar="TOPIC:K=V", action="append", default=[],
        help="setting of a new topic, by Kafka's name; may be repeated",
    )  # fmt: skip
    add_engine_arguments(into, auto=f"{IN_PROCESS}; from a cluster Spark")


def _add_read(actions: LakeActions) -> None:
    out = actions.add(
        "read", "read a topic's records, or its table (latest value of each key), as JSON lines or Parquet",
        "lake_data.read",
        "/data/lake orders --view table", "/data/lake orders --as-of 2026-11-16T09:30:00Z --to orders.parquet",
    )  # fmt: skip
    out.add_argument("topic", metavar="TOPIC", help="name of the topic")
    _add_partition(out)
    out.add_argument("--view", choices=VIEWS, default=RECORDS, help="all records, or the latest value of each key")
    _add_as_of(out)
    out.add_argument(
        "--to", type=Path, metavar="FILE", help="a Parquet file (default: one JSON line per record, to stdout)"
    )
    add_engine_arguments(out, auto=IN_PROCESS)


def _add_partition(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", type=partition_number, metavar="N", help="only this partition (default: all)")


def _add_as_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--as-of", dest="as_of_ms", type=moment_ms, metavar="TIME",
        help="read the topic as of this time, if gc has not removed it yet (default: now)",
    )  # fmt: skip


def _add_back(actions: LakeActions) -> None:
    back = actions.add(
        "restore", "write a topic back into Kafka, tombstones included, and verify it", "lake_recovery.restore",
        "/data/lake orders --bootstrap kafka:9092 --to-topic orders-restored",
    )  # fmt: skip
    back.add_argument("topic", metavar="TOPIC", help="topic in the lake")
    add_cluster_arguments(back, what="target cluster", required=True)
    back.add_argument(
        "--to-topic",
        type=topic_name,
        metavar="TOPIC",
        help="target topic, which must be empty or new (default: the same name)",
    )
    back.add_argument(
        "--replication-factor",
        type=replication_factor,
        default=COPIES,
        metavar="N",
        help="replication factor of a new topic",
    )
    _add_as_of(back)
    back.add_argument("--no-verify", action="store_true", help="do not read the topic back to verify it")
    back.add_argument(
        "--offset-map", type=Path, metavar="FILE",
        help="write every record's new offset to this file; if an interrupted restore left it, resume that one (default: none)",
    )  # fmt: skip
    back.add_argument(
        "--translate-group", metavar="GROUP", action="append", default=[],
        help="translate the offsets of this group, which must have no members, to the restored topic; may be repeated",
    )  # fmt: skip
    add_engine_arguments(back, auto=IN_PROCESS)


def _add_export(actions: LakeActions) -> None:
    out = actions.add(
        "export", "write topics as log directories from which new brokers can start; offsets are preserved",
        "lake_recovery.export", "/data/lake orders __consumer_offsets --log-dirs /var/lib/kafka/data",
        "/data/lake --all-topics --log-dirs s3://bucket/kafka --dry-run",
    )  # fmt: skip
    out.add_argument("topics", nargs="*", metavar="TOPIC", help="topics to export")
    out.add_argument("--all-topics", action="store_true", help="export every topic of the lake")
    out.add_argument(
        "--log-dirs", metavar="DIR", action="append", required=True,
        help="target: a path, s3://, gs:// or az://; repeat it for several brokers, each formatted by kafka-storage",
    )  # fmt: skip
    out.add_argument(
        "--replication-factor",
        type=replication_factor,
        default=COPIES,
        metavar="N",
        help="number of brokers that get each partition",
    )
    out.add_argument(
        "--topic-id", metavar="TOPIC=ID", action="append", default=[],
        help="topic ID in the metadata of the new brokers; may be repeated (default: the original ID)",
    )  # fmt: skip
    _add_as_of(out)
    out.add_argument("--dry-run", action="store_true", help="only show what would be written")
    out.add_argument("--clean", action="store_true", help="remove what a killed export left in an object store")
    add_engine_arguments(out, auto=IN_PROCESS)


def _add_compact(actions: LakeActions) -> None:
    compact = actions.add(
        "compact", "compact due partitions, most urgent first", "lake_jobs.compact",
        "/data/lake", "/data/lake --topic users --all --purge",
    )  # fmt: skip
    add_topic_argument(compact)
    compact.add_argument("--all", action="store_true", help="compact every dirty partition, due or not")
    compact.add_argument("--level", action="store_true", help="also merge small extents")
    compact.add_argument(
        "--purge", action="store_true",
        help="like --level, and rewrite every object that contains dead records, so that gc can delete it",
    )  # fmt: skip
    _add_job(compact, auto=BY_SIZE)


def _add_worker(actions: LakeActions) -> None:
    worker = actions.add(
        "worker", "compact due partitions until none is left, beside any number of other workers", "lake_jobs.worker",
        "/data/lake --every-ms 1m",
    )  # fmt: skip
    worker.add_argument("--name", help="name of the worker (default: host and process id)")
    worker.add_argument(
        "--lease-ms", type=interval_ms, default=LEASE_MS, metavar="DURATION",
        help="lease duration: a worker that does not renew its leases for this long loses its partitions",
    )  # fmt: skip
    worker.add_argument(
        "--every-ms", type=interval_ms, metavar="DURATION",
        help="look for work at this interval until SIGTERM or Ctrl-C (default: once)",
    )  # fmt: skip
    worker.add_argument(
        "--no-gc", action="store_true", help="do not collect garbage (default: collect it every --gc-every-ms)"
    )
    worker.add_argument(
        "--gc-every-ms", type=interval_ms, default=GC_EVERY_MS, metavar="DURATION", help="garbage collection interval"
    )  # fmt: skip
    worker.add_argument(
        "--gc-objects", type=positive, default=GC_OBJECTS_AT_ONCE, metavar="N", help="maximum objects per garbage collection"
    )  # fmt: skip
    worker.add_argument(
        "--upkeep-bytes", type=positive, default=UPKEEP_BYTES_AT_ONCE, metavar="N",
        help="maximum bytes of small extents, and of extents with old dead records, rewritten between two looks at the queue",
    )  # fmt: skip
    worker.add_argument(
        "--partitions-at-once", type=positive, default=PARTITIONS_AT_ONCE, metavar="N",
        help="maximum partitions per job; on a cluster, at least its number of cores",
    )  # fmt: skip
    add_grace_arguments(worker)
    _add_job(worker, auto=IN_PROCESS)


def _add_job(parser: argparse.ArgumentParser, *, auto: str) -> None:
    parser.add_argument(
        "--map-bytes", type=positive, metavar="N",
        help="use a bounded key map of this size, like Redpanda, in several passes (default: one pass)",
    )  # fmt: skip
    parser.add_argument(
        "--dead-share-max", type=ratio, default=DEAD_SHARE_MAX, metavar="SHARE",
        help="rewrite an extent if a larger share of its records is dead, else mark them as dead; 0: always rewrite",
    )  # fmt: skip
    parser.add_argument(
        "--dead-age-max-ms", dest="dead_age_ms_max", type=duration_ms, metavar="DURATION",
        help="remove dead records from objects after this time, unless the topic sets headstone.dead.age.max.ms "
        "(default: no limit)",
    )  # fmt: skip
    add_engine_arguments(parser, auto=auto)


def _add_wishes(actions: LakeActions) -> None:
    request = actions.add(
        "request", "ask workers to compact a topic next, whatever its dirty ratio", "lake_jobs.request",
        "/data/lake orders",
    )  # fmt: skip
    request.add_argument("topic", metavar="TOPIC", help="name of the topic")
    _add_partition(request)
    pause = actions.add(
        "pause",
        "stop a worker from taking new jobs; with --resume, let it continue",
        "lake_jobs.pause",
        "/data/lake worker-1",
    )
    pause.add_argument("worker", metavar="WORKER", help="name of the worker, as shown by `lake status`")
    pause.add_argument("--resume", action="store_true", help="let the worker continue")
    hold = actions.add(
        "hold", "keep tombstones until a reader has passed them; with --release, stop", "lake_jobs.hold",
        "/data/lake warehouse --topic orders --offset 1000",
    )  # fmt: skip
    hold.add_argument("reader", metavar="READER", help="name of the reader")
    hold.add_argument("--topic", help="topic that it reads (default: with --release, all topics)")
    _add_partition(hold)
    hold.add_argument(
        "--offset", type=offset, default=HELD_FROM, metavar="N", help="first offset that the reader has not passed yet"
    )
    hold.add_argument(
        "--for-ms", type=interval_ms, default=HOLD_MS, metavar="DURATION", help="time until the hold expires"
    )
    hold.add_argument("--release", action="store_true", help="release all holds of this reader")


EXAMPLES: Sequence[str] = (
    "headstone lake init /data/lake",
    "headstone lake ingest /data/lake /backups/broker-1",
    "headstone lake worker /data/lake --every-ms 1m",
)
