"""`headstone lake compact|worker|request|pause|hold`: runs compaction, and says what has to wait.

Calls and renders; `lake/metastore/scheduling.py` decides what is due and in which order.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from headstone import units
from headstone.api.stopping import STOPPING, soft_stop
from headstone.cli.engines import by_size, engine_of
from headstone.cli.lake_opening import open_named
from headstone.cli.output import Output
from headstone.cli.parsing import DONE
from headstone.errors import UsageError
from headstone.lake.jobs.keeping import name_of_worker

if TYPE_CHECKING:
    from headstone.lake.jobs.compaction import Compacted
    from headstone.lake.jobs.leveling import Leveled
    from headstone.lake.jobs.purging import Evacuated


def compact(arguments: argparse.Namespace, output: Output) -> int:
    """If a partition fails, the others still get their turn; the exit code is that of the first failure.

    Returns 3 if a signal stopped it and something is left; or if somebody else is working on what was to be leveled or purged.
    """
    from headstone.lake.jobs.compact_run import LakeCompactionSettings, agenda_of, compact_due, run_document
    from headstone.pipeline.progress import ProgressLine

    settings = LakeCompactionSettings(
        topics=tuple(arguments.topic), everything=arguments.all, level=arguments.level, purge=arguments.purge,
        map_bytes=arguments.map_bytes, dead_share_max=arguments.dead_share_max,
        dead_age_ms_max=arguments.dead_age_ms_max,
    )  # fmt: skip
    with open_named(arguments) as lake:
        agenda = agenda_of(lake, settings)
        with (
            engine_of(arguments, verb="lake", spark_by_default=by_size(agenda.dirty_bytes)) as engine,
            soft_stop(None if output.quiet else STOPPING) as stop,
            ExitStack() as shown,
        ):
            output.tell(
                f"compacting {units.count(len(agenda.order), 'partition')}" if agenda.order else "nothing is due"
            )
            run = compact_due(
                lake, agenda, settings, engine, worker=name_of_worker("compact"), stop=stop, tell=output.tell,
                progress=not output.quiet,
                tidying=lambda: shown.enter_context(ProgressLine(enabled=not output.quiet)).board,
            )  # fmt: skip
    for text in [*(f"{name}: {error}" for name, error in run.failed), *run.evacuated.busy]:
        output.warn(f"headstone: {text}")
    if run.stopped:
        output.warn(
            f"headstone: stopped by a signal, {units.count(len(run.left), 'partition')} left; run the same command again"
        )
    output.answer(
        lambda: run_document(run, settings),
        _compact_lines(run.compacted, run.leveled, run.evacuated, nothing_due=not agenda.order),
    )
    if run.error is not None:
        raise run.error
    return run.exit_code


def _compact_lines(
    done: Sequence[Compacted], leveled: Sequence[Leveled], evacuated: Evacuated, *, nothing_due: bool
) -> Iterator[str]:
    for result in done:
        yield result.as_line()
    if nothing_due:
        yield "nothing is due"
    for merged in leveled:
        yield (
            f"{merged.partition}: {merged.extents_before} -> {units.count(merged.extents_after, 'extent')}, "
            f"{merged.extents_purged} rewritten "
            "without their dead records"
        )
    if evacuated.extents:
        yield (
            f"{units.count(evacuated.extents, 'extent')} moved out of "
            f"{units.count(len(evacuated.objects), 'object')} that held "
            "erased records"
        )


def worker(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.jobs.worker_run import WorkerRun, WorkerSettings

    settings = WorkerSettings(
        every_ms=arguments.every_ms, lease_ms=arguments.lease_ms, partitions_at_once=arguments.partitions_at_once,
        map_bytes=arguments.map_bytes, dead_share_max=arguments.dead_share_max, dead_age_ms_max=arguments.dead_age_ms_max,
        gc=not arguments.no_gc, gc_every_ms=arguments.gc_every_ms, gc_objects=arguments.gc_objects,
        upkeep_bytes=arguments.upkeep_bytes, grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms,
    )  # fmt: skip
    name = arguments.name or name_of_worker()
    with open_named(arguments) as lake, engine_of(arguments, verb="lake", spark_by_default=False) as engine:
        run = WorkerRun(lake, settings, engine, name=name, tell=output.tell, progress=not output.quiet)
        committed = run.work(soft_stop(None if output.quiet else STOPPING, run.stop))
    output.answer(lambda: {"worker": name, "committed": committed}, [f"{name}: {units.count(committed, 'compaction')}"])
    return DONE


def hold(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.metastore.holds import Holds, hold_from
    from headstone.lake.topics import partitions_of

    reader, document = arguments.reader, dict[str, object](reader=arguments.reader)
    with open_named(arguments) as lake:
        if arguments.release:
            document["released"] = released = Holds(lake.metastore).release(reader)
            text = f"{reader}: {units.count(released, 'hold')} released"
        elif not arguments.topic:
            raise UsageError("name what to hold with --topic, or --release")
        else:
            held = partitions_of(lake, arguments.topic, arguments.partition)
            expires_ms = hold_from(lake.metastore, reader, held, arguments.offset, for_ms=arguments.for_ms)
            document |= {"held": [str(name) for name in held], "expires_ms": expires_ms}
            text = (
                f"{reader} holds {', '.join(map(str, held))} from offset {arguments.offset} for "
                f"{units.exact_duration(arguments.for_ms)}"
            )
    output.answer(lambda: document, [text])
    return DONE


def request(arguments: argparse.Namespace, output: Output) -> int:
    """Partitions that need nothing are reported, and not requested."""
    from headstone.lake.jobs.urgencies import request_compaction
    from headstone.lake.topics import partitions_of

    with open_named(arguments) as lake:
        asked = request_compaction(lake, partitions_of(lake, arguments.topic, arguments.partition))
    output.answer(
        lambda: {
            "requested": [str(name) for name in asked.partitions],
            "nothing_to_do": {str(name): reason for name, reason in asked.idle.items()},
        },
        [
            *([f"requested: {', '.join(map(str, asked.partitions))}"] if asked.partitions else []),
            *(f"{name}: nothing to do: {reason}" for name, reason in asked.idle.items()),
        ],
    )
    return DONE


def pause(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.metastore.leases import Leases

    with open_named(arguments) as lake:
        if not Leases(lake.metastore).pause(arguments.worker, paused=not arguments.resume):
            raise UsageError(f"no worker {arguments.worker}; `headstone lake status` lists the workers")
    what = "goes on" if arguments.resume else "takes no new job"
    output.answer(lambda: {"worker": arguments.worker, "paused": not arguments.resume}, [f"{arguments.worker} {what}"])
    return DONE
