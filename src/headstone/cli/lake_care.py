"""`headstone lake init|status|set-clock|gc`: creates a lake, shows its state, corrects its clock, collects garbage.

Calls and renders; `lake/` decides what is due, wrong or garbage.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headstone import units
from headstone.api.stopping import STOPPING, soft_stop
from headstone.cli.connections import store_settings
from headstone.cli.engines import engine_of
from headstone.cli.lake_erasure import erasure_line
from headstone.cli.lake_opening import open_named
from headstone.cli.output import BAD, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED

if TYPE_CHECKING:
    from headstone.lake.jobs.store_check import StoreCheck
    from headstone.lake.lake import Lake
    from headstone.lake.status import LakeStatus


def init(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.lake import create_lake, new_place
    from headstone.storage.redaction import address

    url, objects = new_place(arguments.lake, arguments.objects)
    with create_lake(url, objects, now_ms=arguments.now_ms, settings=store_settings(arguments, objects)) as lake:
        made = {"lake": lake.metastore.lake_id, "metastore": address(url), "objects": address(objects)}
    output.answer(lambda: made, [f"made lake {made['lake']} in {made['metastore']}, objects in {made['objects']}"])
    return DONE


def status(arguments: argparse.Namespace, output: Output) -> int:
    """Returns 1 if --check or --deep found a problem."""
    from headstone.lake.jobs.store_check import check_document, check_lines
    from headstone.lake.status import lake_status, status_document
    from headstone.pipeline.progress import EXTENTS, ProgressLine

    looks = arguments.check or arguments.deep
    with open_named(arguments, damaged=looks) as lake:
        lake_state = lake_status(lake.metastore)
        with ProgressLine(enabled=looks and not output.quiet, unit=EXTENTS) as progress:
            violations = lake.metastore.check(progress.board) if looks else []
        checked = _checked(arguments, output, lake) if looks else None
    wrong = [*violations, *map(str, checked.findings if checked else ())]
    output.answer(
        lambda: {
            **status_document(lake_state), "violations": violations, "store": check_document(checked) if checked else None
        },
        (
            *_status_lines(lake_state, output, partitions=not arguments.totals),
            *(check_lines(checked) if checked else ()),
            *(output.painted(f"WRONG: {text}", BAD) for text in wrong),
        ),
    )  # fmt: skip
    return FINDINGS if wrong else DONE


def _checked(arguments: argparse.Namespace, output: Output, lake: Lake) -> StoreCheck:
    from headstone.lake.jobs.store_check import check_store
    from headstone.pipeline.progress import ProgressLine

    if not arguments.deep:
        return check_store(lake)
    with (
        engine_of(arguments, verb="lake status", spark_by_default=False) as engine,
        ProgressLine(enabled=not output.quiet) as progress,
    ):
        return check_store(lake, engine=engine, board=progress.board)


def _status_lines(status: LakeStatus, output: Output, *, partitions: bool) -> Iterator[str]:
    for topic in status.topics:
        yield from (partition.as_line() for partition in topic.partitions if partitions)
        yield topic.sums.as_line(topic.topic)
    yield status.sums.as_line("all")
    yield (
        f"queue: {', '.join(map(str, status.queue)) or 'empty'}"
        if partitions
        else f"queue: {units.count(len(status.queue), 'partition')}"
    )
    for row in status.workers:
        doing = "paused" if row.paused else row.doing
        yield f"worker {row.worker}: {doing}, seen {units.duration(status.now_ms - row.seen_ms)} ago"
    for hold in status.holds:
        left = units.exact_duration(hold.expires_ms - status.now_ms)
        yield f"held by {hold.reader}: {hold.partition} from {hold.held_from} for {left} more"
    yield from (output.painted(f"LOST: {loss}", BAD) for loss in status.losses)
    for erasure in status.erasures:
        yield erasure_line(erasure, status.now_ms, output)


def adopt(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.cli.lake_opening import lake_address
    from headstone.lake.lake import adopt_lake

    address = lake_address(arguments)
    with adopt_lake(address.metastore_url, settings=address.store_settings) as lake:
        adopted = {"lake": lake.metastore.lake_id, "objects": lake.store.url}
    line = f"this metastore is the only one of lake {adopted['lake']} now; copies of it are refused"
    output.answer(lambda: adopted, [line])
    return DONE


def set_clock(arguments: argparse.Namespace, output: Output) -> int:
    with open_named(arguments) as lake:
        ahead = lake.metastore.set_clock(apply=arguments.apply)
    what = "set to now" if arguments.apply else "to be set to now; --apply does it"
    output.answer(
        lambda: {"applied": arguments.apply, "times_ahead": ahead},
        [f"{units.count(ahead, 'timestamp')} in the future of the clock, {what}"],
    )
    return DONE


def gc(arguments: argparse.Namespace, output: Output) -> int:
    """Returns 3 if a signal stopped it and garbage is left."""
    from headstone.lake.jobs.garbage_run import collect_garbage, garbage_document, garbage_lines
    from headstone.pipeline.progress import ProgressLine

    with open_named(arguments) as lake:
        run = collect_garbage(
            lake, apply=arguments.apply, grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms,
            hearing=soft_stop(None if output.quiet else STOPPING),
            progress=lambda unit: ProgressLine(enabled=not output.quiet, unit=unit),
        )  # fmt: skip
    if run.stopped:
        unfolded = " and the journal is not folded" if run.unfolded else ""
        output.warn(
            f"headstone: stopped by a signal, {units.count(run.objects_left, 'object')} left{unfolded}; run the same command "
            "again"
        )
    output.answer(lambda: garbage_document(run), garbage_lines(run))
    return UNFINISHED if run.stopped else DONE
