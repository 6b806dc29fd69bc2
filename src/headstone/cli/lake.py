"""`headstone lake`: topics in object storage. init, ingest, status, compact, worker, request, pause, hold, read, restore, gc.

LAKE is a directory (an embedded lake: SQLite and local objects) or the URL of a metastore. Exit 0 done; 1 `status --check`
found something wrong; 2 wrong usage or damaged data; 3 could not finish, or another worker was faster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone.cli import lake_data
from headstone.cli.lake_data import chosen_partitions, open_named, store_settings
from headstone.cli.options import (
    add_spark_arguments,
    cores,
    duration_ms,
    interval_ms,
    moment_ms,
    offset,
    partition_number,
    positive,
    ratio,
    spark_conf,
    tell,
)
from headstone.errors import HeadstoneError, UsageError

if TYPE_CHECKING:
    from headstone.lake.compaction import Compacted
    from headstone.lake.job_plan import JobOptions
    from headstone.lake.scheduling import Eligibility
    from headstone.log.topic_partition import TopicPartition
    from headstone.pipeline.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, about: str, body: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=about, description=about + ".")
        made.add_argument("lake", metavar="LAKE", help="a directory, or a metastore: sqlite:///PATH, postgresql://...")
        made.add_argument("--output", choices=("text", "json"), default="text")
        made.add_argument(
            "--now-ms", type=moment_ms, help="of a lake that was made with --now-ms: its time, in ms since 1970"
        )
        made.add_argument(
            "--store-conf", metavar="K=V", action="append", default=[], help="such as endpoint=http://..."
        )
        made.set_defaults(act=body)
        return made

    init = action("init", "make a new lake", _init)
    init.add_argument("--objects", metavar="URL", help="s3://, gs://, az://, file:// (default: in LAKE itself)")
    lake_data.add_actions(action)
    status = action("status", "partitions, dirty ratios, cleaned ranges, queue", _status)
    status.add_argument("--check", action="store_true", help="check every invariant of the metastore")
    compact = action("compact", "compact what is due, most urgent first", _compact)
    compact.add_argument("--topic", action="append", default=[], help="only this topic; may be repeated")
    compact.add_argument("--all", action="store_true", help="whatever is dirty, due or not")
    compact.add_argument("--level", action="store_true", help="merge small extents too")
    compact.add_argument(
        "--purge",
        action="store_true",
        help="as --level, and empty every object that holds records which nobody is shown any more: then gc deletes it",
    )
    _add_job(compact)
    worker = action("worker", "compact what is due until nothing is, beside any number of others", _worker)
    worker.add_argument("--name", help="by which others see it (default: host and process id)")
    worker.add_argument(
        "--lease-ms", type=interval_ms, default=60_000, help="after so long without a sign it counts as dead"
    )
    worker.add_argument(
        "--every-ms", type=interval_ms, help="look again after so long, until SIGTERM or Ctrl-C (default: once)"
    )
    _add_job(worker)
    request = action(
        "request", "compact a topic now, whatever its dirty ratio: the next worker does it first", _request
    )
    request.add_argument("topic")
    request.add_argument("--partition", type=partition_number)
    pause = action("pause", "let a worker take no new job; with --resume let it go on", _pause)
    pause.add_argument("worker")
    pause.add_argument("--resume", action="store_true")
    hold = action("hold", "let tombstones from an offset on wait for a reader; with --release no longer", _hold)
    hold.add_argument("reader", help="a name")
    hold.add_argument("--topic")
    hold.add_argument("--partition", type=partition_number)
    hold.add_argument("--offset", type=offset, default=0, help="what the reader has not passed yet (default 0)")
    hold.add_argument("--for-ms", type=interval_ms, default=86_400_000, help="the hold expires then (default a day)")
    hold.add_argument("--release", action="store_true", help="all holds of this reader")
    clock = action(
        "set-clock", "count times ahead of the clock, which was wrong once; with --apply, end them", _set_clock
    )
    clock.add_argument("--apply", action="store_true")
    gc = action("gc", "show what is garbage; with --apply, delete it", _gc)
    gc.add_argument("--apply", action="store_true")
    gc.add_argument(
        "--grace-ms", type=duration_ms, default=3_600_000, help="for readers of what was replaced (default an hour)"
    )
    gc.add_argument("--upload-ms", type=interval_ms, default=86_400_000, help="the longest upload (default a day)")


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--map-bytes", type=positive, help="a bounded map of keys as Redpanda has it, in passes (default: one pass)"
    )
    parser.add_argument(
        "--dead-share-max", type=ratio, default=0.3,
        help="an extent that loses more of its records is written again, others get them marked (default 0.3; 0: no marks)",
    )  # fmt: skip
    parser.add_argument("--on-spark", action="store_true", help="run the stages on Spark (default: in this process)")
    add_spark_arguments(parser)


def _job_options(arguments: argparse.Namespace) -> JobOptions:
    from headstone.lake.job_plan import JobOptions

    return JobOptions(map_bytes=arguments.map_bytes, dead_share_max=arguments.dead_share_max)


def run(arguments: argparse.Namespace) -> int:
    return int(arguments.act(arguments))


def _init(arguments: argparse.Namespace) -> int:
    from headstone.lake.lake import create_lake, metastore_url
    from headstone.storage.redaction import address

    url = metastore_url(arguments.lake, make=True)
    if "://" in arguments.lake and not arguments.objects:
        raise UsageError("name the object storage with --objects; only a lake in a directory has its own")
    objects = arguments.objects or f"file://{Path(arguments.lake).absolute() / 'objects'}"
    lake = create_lake(url, objects, now_ms=arguments.now_ms, settings=store_settings(arguments))
    made = {"lake": lake.metastore.lake_id, "metastore": address(url), "objects": address(objects)}
    text = f"made lake {made['lake']} in {made['metastore']}, objects in {made['objects']}"
    print(json.dumps(made, indent=2) if arguments.output == "json" else text)
    lake.close()
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from headstone.lake.holds import Holds
    from headstone.lake.leases import Leases
    from headstone.lake.scheduling import queue
    from headstone.lake.worker import eligibilities

    lake = open_named(arguments)
    now_ms = lake.metastore.clock()
    states = eligibilities(lake, now_ms=now_ms)
    topics: dict[str, list[dict[str, Any]]] = {name: [] for name in lake.metastore.topics()}
    for at, state in states.items():
        partition = lake.metastore.partition(at)
        topics[at.topic].append({
            "partition": at.number, "start_offset": partition.start_offset, "next_offset": partition.next_offset,
            "compaction_epoch": partition.compaction_epoch, "dirty_ratio": round(state.dirty_ratio, 6),
            "extents": len(partition.extents), "cleaned_ranges": [list(span) for span in partition.cleaned],
            "tombstone_ranges": [[*known.span, known.cleaned_at_ms] for known in partition.tombstones],
            "records": sum(extent.records for extent in partition.extents),
            "dead_records": sum(extent.dead for extent in partition.extents),
            "bytes": sum(extent.length for extent in partition.extents), "eligible": state.eligible, "reason": state.reason,
        })  # fmt: skip
    wrong = lake.metastore.check() if arguments.check else []
    waiting = [str(at) for at, _ in queue(states.items(), now_ms=now_ms)]
    leases = Leases(lake.metastore)
    working = {str(at): name for at, name in leases.held(now_ms=now_ms).items()}
    workers, history = leases.workers(), leases.history()
    holds = Holds(lake.metastore).all(now_ms=now_ms)
    lake.close()
    if arguments.output == "json":
        listed = [{"topic": name, "partitions": found} for name, found in topics.items()]
        told = {
            "topics": listed, "queue": waiting, "working": working, "workers": [asdict(row) for row in workers],
            "history": [{**asdict(row), "at": str(row.at)} for row in history], "violations": wrong,
            "holds": [{**asdict(hold), "at": str(hold.at)} for hold in holds],
        }  # fmt: skip
        print(json.dumps(told, indent=2))
        return 1 if wrong else 0
    for name, found in topics.items():
        for one in found:
            cleaned = ", ".join(f"[{start}, {end})" for start, end in one["cleaned_ranges"]) or "nothing"
            print(
                f"{name}-{one['partition']}: [{one['start_offset']}, {one['next_offset']}) {one['records']:,} records "
                f"(and {one['dead_records']:,} dead), {one['bytes'] / 1e6:,.1f} MB in {one['extents']} extents, "
                f"clean: {cleaned}, epoch {one['compaction_epoch']}; "
                f"{'due' if one['eligible'] else 'not due'}: {one['reason']}"
            )
    print(f"queue: {', '.join(waiting) or 'empty'}")
    for row in workers:
        print(f"worker {row.worker}: {'paused' if row.paused else row.doing}, seen {now_ms - row.seen_ms} ms ago")
    for hold in holds:
        print(f"held by {hold.reader}: {hold.at} from {hold.held_from} for {hold.expires_ms - now_ms} ms more")
    for text in wrong:
        print(f"WRONG: {text}")
    return 1 if wrong else 0


@contextmanager
def _engine(arguments: argparse.Namespace) -> Iterator[Engine]:
    if not (arguments.on_spark or arguments.master or arguments.spark_remote):
        from headstone.pipeline.inprocess import InProcess

        yield InProcess(cores())
        return
    from headstone.spark.engine import OnSpark
    from headstone.spark.session import StartingSession

    starting = StartingSession(
        app_name="headstone lake", master=arguments.master, remote=arguments.spark_remote, conf=spark_conf(arguments)
    )
    with starting:
        yield OnSpark(starting.get, parallelism=cores(), begin=starting.begin)


def _compact(arguments: argparse.Namespace) -> int:
    """A partition that fails does not keep the others from their turn; the exit code is the first failure's."""
    from headstone.lake.compaction import compact_partition
    from headstone.lake.leveling import level_partition
    from headstone.lake.purging import evacuate
    from headstone.lake.scheduling import queue
    from headstone.lake.worker import eligibilities, leased

    chosen = _job_options(arguments)
    lake = open_named(arguments)
    now_ms = lake.metastore.clock()
    states = _of_topics(arguments, eligibilities(lake, now_ms=now_ms))
    order = list(states) if arguments.all else [at for at, _ in queue(states.items(), now_ms=now_ms)]
    name = _name("compact")
    working_on = partial(leased, lake, worker=name)
    done, leveled, failed = [], [], []
    with _engine(arguments) as engine:
        for at in order:
            tell(f"compacting {at}")
            try:
                with working_on(at) as lease:
                    options = replace(chosen, clock=lake.metastore.clock, check=lease.check, tell=tell)
                    done.append(compact_partition(lake, at, engine, now_ms=now_ms, options=options))
            except HeadstoneError as error:
                failed.append((at, error))
                tell(f"headstone: {at}: {error}")
    for at in states if arguments.level or arguments.purge else ():
        with working_on(at):
            leveled.append(level_partition(lake, at, clock=lake.metastore.clock, purge=arguments.purge, worker=name))
    evacuated = None
    if arguments.purge:
        topics = {at.topic for at in states}
        evacuated = evacuate(lake, topics, clock=lake.metastore.clock, worker=name, working_on=working_on)
    lake.close()
    if arguments.output == "json":
        told = {
            "partitions": [{**asdict(one), "at": str(one.at)} for one in done],
            "leveled": [{**asdict(one), "at": str(one.at)} for one in leveled],
            "failed": [{"at": str(at), "why": str(error)} for at, error in failed],
            "evacuated": asdict(evacuated) if evacuated else None,
        }  # fmt: skip
        print(json.dumps(told, indent=2))
    else:
        _print_compacted(done)
        for merged in leveled:
            print(
                f"{merged.at}: {merged.extents_before} -> {merged.extents_after} extents, {merged.extents_purged} rewritten "
                "without their dead records"
            )
        if evacuated:
            print(f"{evacuated.extents} extents moved out of {len(evacuated.objects)} objects that held erased records")
    return failed[0][1].exit_code if failed else 0


def _of_topics(
    arguments: argparse.Namespace, states: Mapping[TopicPartition, Eligibility]
) -> dict[TopicPartition, Eligibility]:
    """Only of the topics that were named, if any were; a name that is not there is a mistake."""
    known = {at.topic for at in states}
    for name in arguments.topic:
        if name not in known:
            raise UsageError(f"the lake has no topic {name}; it has {', '.join(sorted(known)) or 'none'}")
    return {at: state for at, state in states.items() if not arguments.topic or at.topic in arguments.topic}


def _name(what: str = "") -> str:
    """By which others see who works on a partition."""
    return "-".join(filter(None, (what, socket.gethostname(), str(os.getpid()))))


def _print_compacted(done: list[Compacted]) -> None:
    for one in done:
        if not one.committed:
            print(f"{one.at}: nothing to do")
            continue
        removed = one.bytes_before - one.bytes_after
        amplification = (
            f"{one.bytes_written / removed:.2f} bytes written for each removed" if removed else "no bytes removed"
        )
        print(
            f"{one.at}: {one.records_before:,} -> {one.records_after:,} records, {one.bytes_before / 1e6:,.1f} -> "
            f"{one.bytes_after / 1e6:,.1f} MB, {one.extents_read} of {one.extents} extents read, {one.extents_rewritten} "
            f"rewritten, {one.extents_marked} marked ({one.records_dead:,} dead records in all), {amplification}"
        )
    if not done:
        print("nothing is due")


def _worker(arguments: argparse.Namespace) -> int:
    from headstone.lake.leases import Leases
    from headstone.lake.worker import HARD, RUN, SOFT, Worker

    lake = open_named(arguments)
    name = arguments.name or _name()
    woken = threading.Event()
    committed = 0
    with _engine(arguments) as engine:
        worker = Worker(
            name=name, lake=lake, engine=engine, clock=lake.metastore.clock, tell=tell, lease_ms=arguments.lease_ms,
            options=_job_options(arguments),
        )  # fmt: skip

        def stop(*_: object) -> None:
            """The first signal lets the job finish, the second gives it up before its commit."""
            worker.stop = SOFT if worker.stop == RUN else HARD
            woken.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        committed += worker.look() if arguments.every_ms else worker.work()
        while arguments.every_ms and worker.stop == RUN:
            woken.wait(arguments.every_ms / 1000)
            committed += worker.look()
    Leases(lake.metastore).left(name)
    lake.close()
    told = {"worker": name, "committed": committed}
    print(json.dumps(told, indent=2) if arguments.output == "json" else f"{name}: {committed} compactions")
    return 0


def _hold(arguments: argparse.Namespace) -> int:
    from headstone.lake.holds import Holds

    lake = open_named(arguments)
    holds = Holds(lake.metastore)
    if arguments.release:
        told = {"reader": arguments.reader, "released": holds.release(arguments.reader)}
        text = f"{arguments.reader}: {told['released']} holds released"
    elif not arguments.topic:
        raise UsageError("name what to hold with --topic, or --release")
    else:
        expires_ms = lake.metastore.clock() + arguments.for_ms
        chosen = chosen_partitions(arguments, lake)
        for at in chosen:
            holds.hold(arguments.reader, at, arguments.offset, expires_ms=expires_ms)
        told = {"reader": arguments.reader, "held": [str(at) for at in chosen], "expires_ms": expires_ms}
        text = f"{arguments.reader} holds {', '.join(map(str, chosen))} from offset {arguments.offset}"
    lake.close()
    print(json.dumps(told) if arguments.output == "json" else text)
    return 0


def _request(arguments: argparse.Namespace) -> int:
    """What there is nothing to do for is told, and not asked for."""
    from headstone.lake.leases import Leases
    from headstone.lake.worker import eligibilities

    lake = open_named(arguments)
    chosen, now_ms = chosen_partitions(arguments, lake), lake.metastore.clock()
    states = eligibilities(lake, now_ms=now_ms, requested=chosen)
    wanted = [at for at in chosen if states[at].eligible]
    for at in wanted:
        Leases(lake.metastore).request(at, now_ms=now_ms)
    lake.close()
    idle = {str(at): states[at].reason for at in chosen if at not in wanted}
    if arguments.output == "json":
        print(json.dumps({"requested": [str(at) for at in wanted], "nothing_to_do": idle}))
        return 0
    if wanted:
        print(f"requested: {', '.join(map(str, wanted))}")
    for name, reason in idle.items():
        print(f"{name}: nothing to do: {reason}")
    return 0


def _pause(arguments: argparse.Namespace) -> int:
    from headstone.lake.leases import Leases

    lake = open_named(arguments)
    if not Leases(lake.metastore).pause(arguments.worker, paused=not arguments.resume):
        raise UsageError(f"no worker {arguments.worker}; `headstone lake status` names them")
    lake.close()
    told = {"worker": arguments.worker, "paused": not arguments.resume}
    what = "goes on" if arguments.resume else "takes no new job"
    print(json.dumps(told) if arguments.output == "json" else f"{arguments.worker} {what}")
    return 0


def _set_clock(arguments: argparse.Namespace) -> int:
    lake = open_named(arguments)
    ahead = lake.metastore.set_clock(apply=arguments.apply)
    lake.close()
    told = {"applied": arguments.apply, "times_ahead": ahead}
    what = "are now" if arguments.apply else "would be now; --apply does it"
    print(json.dumps(told) if arguments.output == "json" else f"{ahead} times lie ahead of the clock, and {what}")
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    from headstone.lake.collection import collect, garbage

    lake = open_named(arguments)
    found = garbage(lake, now_ms=lake.metastore.clock(), grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms)
    if arguments.apply:
        collect(lake, found)
    lake.close()
    rows = found.rows
    if arguments.output == "json":
        told = {"applied": arguments.apply, "objects": [asdict(row) for row in rows], "orphans": found.orphans}
        print(json.dumps(told, indent=2))
        return 0
    for row in rows:
        print(f"{row.object_id} {row.state} {row.size / 1e6:,.1f} MB")
    for object_id in found.orphans:
        print(f"{object_id} orphan")
    what = "deleted" if arguments.apply else "to delete; --apply does it"
    print(f"{len(rows) + len(found.orphans)} objects, {sum(row.size for row in rows) / 1e6:,.1f} MB {what}")
    return 0
