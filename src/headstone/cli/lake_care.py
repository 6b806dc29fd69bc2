"""`headstone lake init|status|set-clock|gc`: a lake is made, looked at, put right and tidied up.

Calls and renders; what is due, wrong or garbage is decided in `lake/`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headstone.cli.connections import store_settings
from headstone.cli.lake_erasure import erasure_line
from headstone.cli.lake_opening import open_named
from headstone.cli.output import BAD, Output
from headstone.cli.parsing import DONE, FINDINGS
from headstone.errors import UsageError


def init(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.lake import create_lake, metastore_url
    from headstone.storage.redaction import address

    url = metastore_url(arguments.lake, make=True)
    if "://" in arguments.lake and not arguments.objects:
        raise UsageError("name the object storage with --objects; only a lake in a directory has its own")
    objects = arguments.objects or f"file://{Path(arguments.lake).absolute() / 'objects'}"
    lake = create_lake(url, objects, now_ms=arguments.now_ms, settings=store_settings(arguments, objects))
    made = {"lake": lake.metastore.lake_id, "metastore": address(url), "objects": address(objects)}
    lake.close()
    output.answer(lambda: made, [f"made lake {made['lake']} in {made['metastore']}, objects in {made['objects']}"])
    return DONE


def status(arguments: argparse.Namespace, output: Output) -> int:
    document, now_ms = _status(arguments)
    output.answer(lambda: document, _status_lines(document, now_ms, output))
    return FINDINGS if document["violations"] else DONE


def _status(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """What there is to tell, and the lake's time."""
    from headstone.lake.erasures import Erasures
    from headstone.lake.holds import Holds
    from headstone.lake.leases import Leases
    from headstone.lake.scheduling import queue
    from headstone.lake.worker import eligibilities

    lake = open_named(arguments)
    now_ms = lake.metastore.clock()
    states = eligibilities(lake, now_ms=now_ms)
    topics: dict[str, list[dict[str, Any]]] = {name: [] for name in lake.metastore.topics()}
    for name, state in states.items():
        partition = lake.metastore.partition(name)
        topics[name.topic].append({
            "partition": name.number, "start_offset": partition.start_offset, "next_offset": partition.next_offset,
            "compaction_epoch": partition.compaction_epoch, "dirty_ratio": round(state.dirty_ratio, 6),
            "extents": len(partition.extents), "cleaned_ranges": [list(span) for span in partition.cleaned],
            "tombstone_ranges": [[*known.span, known.cleaned_at_ms] for known in partition.tombstones],
            "records": sum(extent.records for extent in partition.extents),
            "dead_records": sum(extent.dead for extent in partition.extents),
            "bytes": sum(extent.length for extent in partition.extents), "eligible": state.eligible, "reason": state.reason,
        })  # fmt: skip
    leases = Leases(lake.metastore)
    document = {
        "topics": [{"topic": name, "partitions": partitions} for name, partitions in topics.items()],
        "queue": [str(name) for name, _ in queue(states.items(), now_ms=now_ms)],
        "working": {str(name): worker for name, worker in leases.held(now_ms=now_ms).items()},
        "workers": [asdict(row) for row in leases.workers()],
        "history": [{**asdict(row), "partition": str(row.partition)} for row in leases.history()],
        "erasures": [asdict(erasure) for erasure in Erasures(lake.metastore).all()],
        "violations": lake.metastore.check() if arguments.check else [],
        "holds": [
            {**asdict(hold), "partition": str(hold.partition)} for hold in Holds(lake.metastore).all(now_ms=now_ms)
        ],
    }
    lake.close()
    return document, now_ms


def _status_lines(document: Mapping[str, Any], now_ms: int, output: Output) -> Iterator[str]:
    for topic in document["topics"]:
        for partition in topic["partitions"]:
            yield _partition_line(topic["topic"], partition)
    yield f"queue: {', '.join(document['queue']) or 'empty'}"
    for row in document["workers"]:
        doing = "paused" if row["paused"] else row["doing"]
        yield f"worker {row['worker']}: {doing}, seen {now_ms - row['seen_ms']} ms ago"
    for hold in document["holds"]:
        left = hold["expires_ms"] - now_ms
        yield f"held by {hold['reader']}: {hold['partition']} from {hold['held_from']} for {left} ms more"
    for erasure in document["erasures"]:
        yield erasure_line(erasure, now_ms, output)
    for text in document["violations"]:
        yield output.painted(f"WRONG: {text}", BAD)


def _partition_line(topic: str, partition: Mapping[str, Any]) -> str:
    cleaned = ", ".join(f"[{start}, {end})" for start, end in partition["cleaned_ranges"]) or "nothing"
    return (
        f"{topic}-{partition['partition']}: [{partition['start_offset']}, {partition['next_offset']}) "
        f"{partition['records']:,} records (and {partition['dead_records']:,} dead), {partition['bytes'] / 1e6:,.1f} MB "
        f"in {partition['extents']} extents, clean: {cleaned}, epoch {partition['compaction_epoch']}; "
        f"{'due' if partition['eligible'] else 'not due'}: {partition['reason']}"
    )


def set_clock(arguments: argparse.Namespace, output: Output) -> int:
    lake = open_named(arguments)
    ahead = lake.metastore.set_clock(apply=arguments.apply)
    lake.close()
    what = "are now" if arguments.apply else "would be now; --apply does it"
    output.answer(
        lambda: {"applied": arguments.apply, "times_ahead": ahead},
        [f"{ahead} times lie ahead of the clock, and {what}"],
    )
    return DONE


def gc(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.collection import collect, garbage

    lake = open_named(arguments)
    found = garbage(lake, now_ms=lake.metastore.clock(), grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms)
    if arguments.apply:
        collect(lake, found)
    lake.close()
    rows = found.rows
    what = "deleted" if arguments.apply else "to delete; --apply does it"
    output.answer(
        lambda: {"applied": arguments.apply, "objects": [asdict(row) for row in rows], "orphans": found.orphans},
        [
            *(f"{row.object_id} {row.state} {row.size / 1e6:,.1f} MB" for row in rows),
            *(f"{object_id} orphan" for object_id in found.orphans),
            f"{len(rows) + len(found.orphans)} objects, {sum(row.size for row in rows) / 1e6:,.1f} MB {what}",
        ],
    )
    return DONE
