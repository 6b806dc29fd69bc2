"""`headstone lake`: topics in object storage. init, ingest, status, compact, worker, request, pause, read, gc.

LAKE is a directory (an embedded lake: SQLite and local objects) or the URL of a metastore. Exit 0 done; 1 `status --check`
found something wrong; 2 wrong usage or damaged data; 3 could not finish, or another worker was faster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli.options import cores, offset, positive, tell
from headstone.errors import UsageError

if TYPE_CHECKING:
    from headstone.lake.lake import Lake
    from headstone.lake.metastore import TopicPartition
    from headstone.log.listing import RecordEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, about: str, body: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=about, description=about + ".")
        made.add_argument("lake", metavar="LAKE", help="a directory, or a metastore: sqlite:///PATH, postgresql://...")
        made.add_argument("--output", choices=("text", "json"), default="text")
        made.add_argument("--now-ms", type=offset, help="the clock that decides, in ms since 1970 (default: now)")
        made.add_argument(
            "--store-conf", metavar="K=V", action="append", default=[], help="such as endpoint=http://..."
        )
        made.set_defaults(act=body)
        return made

    init = action("init", "make a new lake", _init)
    init.add_argument("--objects", metavar="URL", help="s3://, gs://, az://, file:// (default: in LAKE itself)")
    ingest = action("ingest", "copy committed records from log directories or backups", _ingest)
    ingest.add_argument("paths", nargs="+", metavar="PATH")
    ingest.add_argument(
        "--topic-conf", metavar="TOPIC:K=V", action="append", default=[], help="for topics that are new"
    )
    status = action("status", "partitions, dirty ratios, cleaned ranges, queue", _status)
    status.add_argument("--check", action="store_true", help="check every invariant of the metastore")
    compact = action("compact", "compact what is due, most urgent first", _compact)
    compact.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    compact.add_argument("--all", action="store_true", help="whatever is dirty, due or not")
    worker = action("worker", "compact what is due until nothing is, beside any number of others", _worker)
    worker.add_argument("--name", help="by which others see it (default: host and process id)")
    worker.add_argument(
        "--lease-ms", type=positive, default=60_000, help="after so long without a sign it counts as dead"
    )
    worker.add_argument(
        "--every-ms", type=positive, help="look again after so long, until SIGTERM or Ctrl-C (default: once)"
    )
    request = action(
        "request", "compact a topic now, whatever its dirty ratio: the next worker does it first", _request
    )
    request.add_argument("topic")
    request.add_argument("--partition", type=offset)
    pause = action("pause", "let a worker take no new job; with --resume let it go on", _pause)
    pause.add_argument("worker")
    pause.add_argument("--resume", action="store_true")
    read = action("read", "records or the table (newest of every key) of a topic", _read)
    read.add_argument("topic")
    read.add_argument("--partition", type=offset)
    read.add_argument("--view", choices=("records", "table"), default="records")
    read.add_argument(
        "--to", type=Path, metavar="FILE", help="a Parquet file (default: a JSON line a record, to stdout)"
    )
    gc = action("gc", "show what is garbage; with --apply, delete it", _gc)
    gc.add_argument("--apply", action="store_true")
    gc.add_argument(
        "--grace-ms", type=offset, default=3_600_000, help="for readers of what was replaced (default an hour)"
    )
    gc.add_argument("--upload-ms", type=positive, default=86_400_000, help="the longest upload (default a day)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.now_ms is None:
        arguments.now_ms = int(time.time() * 1000)
    return int(arguments.act(arguments))


def _init(arguments: argparse.Namespace) -> int:
    from headstone.lake.lake import create_lake

    url = metastore_url(arguments.lake, make=True)
    if "://" in arguments.lake and not arguments.objects:
        raise UsageError("name the object storage with --objects; only a lake in a directory has its own")
    objects = arguments.objects or f"file://{Path(arguments.lake).absolute() / 'objects'}"
    lake = create_lake(url, objects, now_ms=arguments.now_ms, settings=store_settings(arguments))
    made = {"lake": lake.metastore.lake_id, "metastore": url, "objects": objects}
    print(
        json.dumps(made, indent=2)
        if arguments.output == "json"
        else f"made lake {made['lake']} in {url}, objects in {objects}"
    )
    lake.close()
    return 0


def metastore_url(given: str, *, make: bool = False) -> str:
    if "://" in given:
        return given
    if make:
        Path(given).mkdir(parents=True, exist_ok=True)
    elif not (Path(given) / "metastore.db").exists():
        raise UsageError(f"{given} holds no lake; `headstone lake init {given}` makes one")
    return f"sqlite:///{Path(given).absolute() / 'metastore.db'}"


def store_settings(arguments: argparse.Namespace) -> dict[str, str]:
    pairs = [item.partition("=") for item in arguments.store_conf]
    if any(not equals for _, equals, _ in pairs):
        raise UsageError("--store-conf wants K=V, such as endpoint=http://127.0.0.1:9000")
    return {name: value for name, _, value in pairs}


def _open(arguments: argparse.Namespace) -> Lake:
    from headstone.lake.lake import open_lake

    return open_lake(metastore_url(arguments.lake), settings=store_settings(arguments))


def _ingest(arguments: argparse.Namespace) -> int:
    from headstone.lake.ingest import ingest
    from headstone.log.directory import find_partitions

    directories = find_partitions(arguments.paths)
    lake = _open(arguments)
    for topic, settings in _topic_settings(arguments.topic_conf).items():
        if topic not in lake.metastore.topics():
            count = max((d.partition + 1 for d in directories if d.topic == topic), default=1)
            lake.metastore.create_topic(topic, count, settings)
    done = ingest(lake, directories, now_ms=arguments.now_ms, tell=tell)
    lake.close()
    rows = [{**asdict(one), "at": str(one.at)} for one in done]
    if arguments.output == "json":
        print(json.dumps({"partitions": rows}, indent=2))
    for one in done if arguments.output == "text" else ():
        print(f"{one.at}: [{one.start}, {one.end}) {one.records:,} records, {one.bytes / 1e6:,.1f} MB")
    return 0


def _topic_settings(items: list[str]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for item in items:
        topic, colon, pair = item.partition(":")
        name, equals, value = pair.partition("=")
        if not colon or not equals:
            raise UsageError(f"--topic-conf {item}: expected TOPIC:K=V, such as orders:delete.retention.ms=1000")
        found.setdefault(topic, {})[name] = value
    return found


def _status(arguments: argparse.Namespace) -> int:
    from headstone.lake.leases import Leases
    from headstone.lake.scheduling import queue
    from headstone.lake.worker import eligibilities

    lake = _open(arguments)
    states = eligibilities(lake, now_ms=arguments.now_ms)
    topics: dict[str, list[dict[str, Any]]] = {name: [] for name in lake.metastore.topics()}
    for at, state in states.items():
        partition = lake.metastore.partition(at)
        topics[at.topic].append({
            "partition": at.number, "start_offset": partition.start_offset, "next_offset": partition.next_offset,
            "compaction_epoch": partition.compaction_epoch, "dirty_ratio": round(state.dirty_ratio, 6),
            "extents": len(partition.extents), "cleaned_ranges": [list(span) for span in partition.cleaned],
            "tombstone_ranges": [[*known.span, known.cleaned_at_ms] for known in partition.tombstones],
            "records": sum(extent.records for extent in partition.extents),
            "bytes": sum(extent.length for extent in partition.extents), "eligible": state.eligible, "reason": state.reason,
        })  # fmt: skip
    wrong = lake.metastore.check() if arguments.check else []
    waiting = [str(at) for at, _ in queue(states.items(), now_ms=arguments.now_ms)]
    leases = Leases(lake.metastore)
    working = {str(at): name for at, name in leases.held(now_ms=arguments.now_ms).items()}
    workers, history = leases.workers(), leases.history()
    lake.close()
    if arguments.output == "json":
        listed = [{"topic": name, "partitions": found} for name, found in topics.items()]
        told = {
            "topics": listed, "queue": waiting, "working": working, "workers": [asdict(row) for row in workers],
            "history": [{**asdict(row), "at": str(row.at)} for row in history], "violations": wrong,
        }  # fmt: skip
        print(json.dumps(told, indent=2))
        return 1 if wrong else 0
    for name, found in topics.items():
        for one in found:
            cleaned = ", ".join(f"[{start}, {end})" for start, end in one["cleaned_ranges"]) or "nothing"
            print(
                f"{name}-{one['partition']}: [{one['start_offset']}, {one['next_offset']}) {one['records']:,} records, "
                f"{one['bytes'] / 1e6:,.1f} MB in {one['extents']} extents, clean: {cleaned}, epoch {one['compaction_epoch']}; "
                f"{'due' if one['eligible'] else 'not due'}: {one['reason']}"
            )
    print(f"queue: {', '.join(waiting) or 'empty'}")
    for row in workers:
        print(
            f"worker {row.worker}: {'paused' if row.paused else row.doing}, seen {arguments.now_ms - row.seen_ms} ms ago"
        )
    for text in wrong:
        print(f"WRONG: {text}")
    return 1 if wrong else 0


def _compact(arguments: argparse.Namespace) -> int:
    from headstone.lake.compaction import compact_partition
    from headstone.lake.scheduling import queue
    from headstone.lake.worker import eligibilities
    from headstone.spark.inprocess import InProcess

    lake = _open(arguments)
    states = eligibilities(lake, now_ms=arguments.now_ms)
    order = list(states) if arguments.all else [at for at, _ in queue(states.items(), now_ms=arguments.now_ms)]
    done = []
    for at in (at for at in order if not arguments.topic or at.topic in arguments.topic):
        tell(f"compacting {at}")
        done.append(compact_partition(lake, at, InProcess(cores()), now_ms=arguments.now_ms))
    lake.close()
    if arguments.output == "json":
        print(json.dumps({"partitions": [{**asdict(one), "at": str(one.at)} for one in done]}, indent=2))
        return 0
    for one in done:
        if not one.committed:
            print(f"{one.at}: nothing to do")
            continue
        removed = one.bytes_before - one.bytes_after
        amplification = (
            f"{one.bytes_written / removed:.2f} bytes written for each removed" if removed else "nothing removed"
        )
        print(
            f"{one.at}: {one.records_before:,} -> {one.records_after:,} records, {one.bytes_before / 1e6:,.1f} -> "
            f"{one.bytes_after / 1e6:,.1f} MB, {one.extents_rewritten} of {one.extents} extents rewritten, {amplification}"
        )
    if not done:
        print("nothing is due")
    return 0


def _worker(arguments: argparse.Namespace) -> int:
    from headstone.lake.leases import Leases
    from headstone.lake.worker import HARD, RUN, SOFT, Worker
    from headstone.spark.inprocess import InProcess

    lake = _open(arguments)
    name = arguments.name or f"{socket.gethostname()}-{os.getpid()}"
    clock = _clock(arguments)
    worker = Worker(
        name=name, lake=lake, engine=InProcess(cores()), clock=clock, tell=tell, lease_ms=arguments.lease_ms
    )  # fmt: skip
    woken = threading.Event()

    def stop(*_: object) -> None:
        """The first signal lets the job finish, the second gives it up before its commit."""
        worker.stop = SOFT if worker.stop == RUN else HARD
        woken.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    committed = worker.work()
    while arguments.every_ms and worker.stop == RUN:
        woken.wait(arguments.every_ms / 1000)
        committed += worker.work()
    Leases(lake.metastore).left(name)
    lake.close()
    told = {"worker": name, "committed": committed}
    print(json.dumps(told, indent=2) if arguments.output == "json" else f"{name}: {committed} compactions")
    return 0


def _clock(arguments: argparse.Namespace) -> Callable[[], int]:
    """The wall clock, set to --now-ms when the command began."""
    ahead = arguments.now_ms - int(time.time() * 1000)
    return lambda: int(time.time() * 1000) + ahead


def _request(arguments: argparse.Namespace) -> int:
    from headstone.lake.leases import Leases

    lake = _open(arguments)
    chosen = _chosen(arguments, lake)
    for at in chosen:
        Leases(lake.metastore).request(at, now_ms=arguments.now_ms)
    lake.close()
    names = [str(at) for at in chosen]
    print(json.dumps({"requested": names}) if arguments.output == "json" else f"requested: {', '.join(names)}")
    return 0


def _pause(arguments: argparse.Namespace) -> int:
    from headstone.lake.leases import Leases

    lake = _open(arguments)
    if not Leases(lake.metastore).pause(arguments.worker, paused=not arguments.resume):
        raise UsageError(f"no worker {arguments.worker}; `headstone lake status` names them")
    lake.close()
    told = {"worker": arguments.worker, "paused": not arguments.resume}
    what = "goes on" if arguments.resume else "takes no new job"
    print(json.dumps(told) if arguments.output == "json" else f"{arguments.worker} {what}")
    return 0


def _chosen(arguments: argparse.Namespace, lake: Lake) -> list[TopicPartition]:
    known = [at for at in lake.metastore.partitions() if at.topic == arguments.topic]
    chosen = [at for at in known if arguments.partition in (None, at.number)]
    if not chosen:
        raise UsageError(f"the lake has no {arguments.topic}-{arguments.partition or 0}")
    return chosen


def _read(arguments: argparse.Namespace) -> int:
    from headstone.lake.reading import records, table

    lake = _open(arguments)
    chosen = _chosen(arguments, lake)

    def rows() -> Any:
        for at in chosen:
            for record in records(lake, at) if arguments.view == "records" else table(lake, at).values():
                yield at.number, record

    count = _write_parquet(arguments.to, rows()) if arguments.to else _print_lines(rows())
    lake.close()
    if arguments.to:
        print(f"{count:,} records in {arguments.to}", file=sys.stderr)
    return 0


def _print_lines(rows: Any) -> int:
    from headstone.cli.inspect import shown_bytes

    count = 0
    for partition, record in rows:
        headers = [{"key": name, "value": shown_bytes(value)} for name, value in record.headers]
        line = {
            "partition": partition, "offset": record.offset, "timestamp_ms": record.timestamp_ms,
            "key": shown_bytes(record.key), "value": shown_bytes(record.value), "headers": headers,
        }  # fmt: skip
        print(json.dumps(line))
        count += 1
    return count


def _write_parquet(path: Path, rows: Any) -> int:
    """Whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema([
        ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("key", pa.binary()),
        ("value", pa.binary()), ("headers", pa.list_(header)),
    ])  # fmt: skip
    partial = path.with_name(path.name + ".partial")
    count = 0
    with pq.ParquetWriter(partial, schema) as writer:
        batch: list[dict[str, object]] = []
        for partition, record in rows:
            batch.append(_row(partition, record))
            count += 1
            if len(batch) == 10_000:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
                batch = []
        writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
    partial.replace(path)
    return count


def _row(partition: int, record: RecordEntry) -> dict[str, object]:
    headers = [{"key": name, "value": value} for name, value in record.headers]
    return {
        "partition": partition, "offset": record.offset, "timestamp_ms": record.timestamp_ms, "key": record.key,
        "value": record.value, "headers": headers,
    }  # fmt: skip


def _gc(arguments: argparse.Namespace) -> int:
    from headstone.lake.collection import collect, garbage

    lake = _open(arguments)
    rows = garbage(lake, now_ms=arguments.now_ms, grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms)
    if arguments.apply:
        collect(lake, rows)
    lake.close()
    if arguments.output == "json":
        print(json.dumps({"applied": arguments.apply, "objects": [asdict(row) for row in rows]}, indent=2))
        return 0
    for row in rows:
        print(f"{row.object_id} {row.state} {row.size / 1e6:,.1f} MB")
    what = "deleted" if arguments.apply else "to delete; --apply does it"
    print(f"{len(rows)} objects, {sum(row.size for row in rows) / 1e6:,.1f} MB {what}")
    return 0
