"""`headstone lake init|status|set-clock|upgrade|gc`: a lake is made, looked at, put right and tidied up.

Calls and renders; what is due, wrong or garbage is decided in `lake/`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.connections import store_settings
from headstone.cli.lake_erasure import erasure_line
from headstone.cli.lake_opening import open_named
from headstone.cli.output import BAD, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.cli.stopping import STOPPING, soft_stop
from headstone.errors import UsageError

if TYPE_CHECKING:
    from headstone.lake.status import LakeStatus, PartitionStatus, Sums


def init(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.lake import create_lake, directory_url, metastore_url
    from headstone.storage.redaction import address

    url = metastore_url(arguments.lake, make=True)
    if url != directory_url(arguments.lake) and not arguments.objects:
        raise UsageError("name the object storage with --objects; only a lake in a directory has its own")
    objects = arguments.objects or f"file://{Path(arguments.lake).absolute() / 'objects'}"
    lake = create_lake(url, objects, now_ms=arguments.now_ms, settings=store_settings(arguments, objects))
    made = {"lake": lake.metastore.lake_id, "metastore": address(url), "objects": address(objects)}
    lake.close()
    output.answer(lambda: made, [f"made lake {made['lake']} in {made['metastore']}, objects in {made['objects']}"])
    return DONE


def status(arguments: argparse.Namespace, output: Output) -> int:
    """1: --check found something wrong."""
    from headstone.lake.status import lake_status
    from headstone.pipeline.progress import EXTENTS, ProgressLine

    lake = open_named(arguments)
    lake_state = lake_status(lake.metastore)
    with ProgressLine(enabled=arguments.check and not output.quiet, unit=EXTENTS) as progress:
        violations = lake.metastore.check(progress.board) if arguments.check else []
    lake.close()
    output.answer(
        lambda: {**_status_document(lake_state), "violations": violations},
        (
            *_status_lines(lake_state, output, partitions=not arguments.totals),
            *(output.painted(f"WRONG: {text}", BAD) for text in violations),
        ),
    )
    return FINDINGS if violations else DONE


def _status_document(status: LakeStatus) -> dict[str, object]:
    return {
        "now_ms": status.now_ms,
        "totals": asdict(status.sums),
        "topics": [
            {
                "topic": topic.topic,
                "totals": asdict(topic.sums),
                "partitions": [_partition_document(partition) for partition in topic.partitions],
            }
            for topic in status.topics
        ],
        "queue": [str(partition) for partition in status.queue],
        "working": {str(partition): worker for partition, worker in status.working.items()},
        "workers": [asdict(row) for row in status.workers],
        "history": [{**asdict(row), "partition": str(row.partition)} for row in status.history],
        "erasures": [asdict(erasure) for erasure in status.erasures],
        "holds": [{**asdict(hold), "partition": str(hold.partition)} for hold in status.holds],
    }


def _partition_document(status: PartitionStatus) -> dict[str, object]:
    sums = {name: value for name, value in asdict(status.sums).items() if name not in ("partitions", "due")}
    return {
        "partition": status.partition.number, "start_offset": status.start_offset, "next_offset": status.next_offset,
        "compaction_epoch": status.compaction_epoch, "dirty_ratio": round(status.dirty_ratio, 6), **sums,
        "dead_since_ms": status.dead_since_ms, "cleaned_ranges": [list(span) for span in status.cleaned_ranges],
        "tombstone_ranges": [[*known.span, known.cleaned_at_ms] for known in status.tombstone_ranges],
        "eligible": status.eligible, "reason": status.reason, "waits_for": status.waits_for,
    }  # fmt: skip


def _status_lines(status: LakeStatus, output: Output, *, partitions: bool) -> Iterator[str]:
    for topic in status.topics:
        yield from (_partition_line(partition) for partition in topic.partitions if partitions)
        yield _sums_line(topic.topic, topic.sums)
    yield _sums_line("all", status.sums)
    yield (
        f"queue: {', '.join(map(str, status.queue)) or 'empty'}"
        if partitions
        else f"queue: {len(status.queue)} partitions"
    )
    for row in status.workers:
        doing = "paused" if row.paused else row.doing
        yield f"worker {row.worker}: {doing}, seen {status.now_ms - row.seen_ms} ms ago"
    for hold in status.holds:
        left_ms = hold.expires_ms - status.now_ms
        yield f"held by {hold.reader}: {hold.partition} from {hold.held_from} for {left_ms} ms more"
    for erasure in status.erasures:
        yield erasure_line(asdict(erasure), status.now_ms, output)


def _partition_line(status: PartitionStatus) -> str:
    cleaned, sums = ", ".join(map(str, status.cleaned_ranges)) or "nothing", status.sums
    return (
        f"{status.partition}: [{status.start_offset}, {status.next_offset}) "
        f"{sums.records:,} records (and {sums.dead_records:,} dead), {sums.bytes / 1e6:,.1f} MB "
        f"in {sums.extents} extents, clean: {cleaned}, epoch {status.compaction_epoch}; "
        f"{'due' if status.eligible else 'not due'}: {status.reason}"
        + (f"; {status.waits_for}" if status.waits_for else "")
    )


def _sums_line(name: str, sums: Sums) -> str:
    return (
        f"{name}: {sums.partitions:,} partitions, {sums.due:,} due; {sums.records:,} records (and {sums.dead_records:,} dead), "
        f"{sums.bytes / 1e6:,.1f} MB, {sums.dirty_bytes / 1e6:,.1f} dirty, in {sums.extents:,} extents"
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


def upgrade(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.lake import metastore_url
    from headstone.lake.upgrades import upgrade as bring_up_to_date

    outcome = bring_up_to_date(metastore_url(arguments.lake), apply=arguments.apply, tell=output.tell)
    what = "done" if arguments.apply else "to do; --apply does it"
    versions = f"version {outcome.version_before}"
    if outcome.steps:
        versions += f", {'now' if arguments.apply else 'to become'} {outcome.version_after}"
    output.answer(
        lambda: {"applied": arguments.apply, **asdict(outcome)},
        [*outcome.steps, f"{versions}: {f'{len(outcome.steps)} steps {what}' if outcome.steps else 'nothing to do'}"],
    )
    return DONE


def gc(arguments: argparse.Namespace, output: Output) -> int:
    """3: stopped by a signal, and something is left."""
    from headstone.lake.collection import collect, garbage
    from headstone.lake.folding import fold, is_worth_folding
    from headstone.lake.pins import Pins
    from headstone.pipeline.progress import EXTENTS, OBJECTS, ProgressLine

    lake = open_named(arguments)
    pins = Pins(lake.metastore).all()
    collectable = garbage(
        lake, now_ms=lake.metastore.clock(), grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms
    )
    to_fold, folded = is_worth_folding(lake), 0
    rows, stopped = collectable.rows, False
    if arguments.apply:
        with soft_stop(None if output.quiet else STOPPING) as stop:
            with ProgressLine(enabled=not output.quiet, unit=OBJECTS) as progress:
                gone = frozenset(collect(lake, collectable, progress.board, stop=stop))
            with ProgressLine(enabled=not output.quiet, unit=EXTENTS) as progress:
                folded = fold(lake, progress.board, stop=stop) if to_fold and not stop() else 0
        rows = [row for row in rows if row.object_id in gone]
        unfolded = " and the journal is not folded" if to_fold and not folded else ""
        left = len(collectable.rows) - len(rows)
        stopped = stop() and bool(left or unfolded)
        if stopped:
            output.warn(
                f"headstone: stopped by a signal, {left:,} objects are left{unfolded}; run the same command again"
            )
    lake.close()
    what = "deleted" if arguments.apply else "to delete; --apply does it"
    output.answer(
        lambda: {
            "applied": arguments.apply,
            "objects": [asdict(row) for row in rows],
            "orphans": collectable.orphans,
            "pins": [asdict(pin) for pin in pins],
            "journal_to_fold": to_fold,
            "journal_folded": folded,
        },
        [
            *(f"{row.object_id} {row.state} {row.size / 1e6:,.1f} MB" for row in rows),
            *(f"{object_id} orphan" for object_id in collectable.orphans),
            *(
                f"{pin.reader} reads what was there at {pin.as_of_ms} or since: it stays until {pin.expires_ms}"
                for pin in pins
            ),
            *([f"the journal is folded up to number {folded}"] if folded else []),
            *(["the journal is to be folded; --apply does it"] if to_fold and not arguments.apply else []),
            f"{len(rows) + len(collectable.orphans)} objects, {sum(row.size for row in rows) / 1e6:,.1f} MB {what}",
        ],
    )
    return UNFINISHED if stopped else DONE
