"""`headstone lake compact|worker|request|pause|hold`: who compacts what, and what has to wait.

Calls and renders; what is due and in which order is decided in `lake/scheduling.py`.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headstone.cli.engines import SPARK_FROM_BYTES, engine_of
from headstone.cli.lake_opening import chosen_partitions, name_of_worker, open_named
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, UNFINISHED
from headstone.cli.stopping import STOPPING, signals_heard, soft_stop
from headstone.errors import HeadstoneError, UsageError

if TYPE_CHECKING:
    from headstone.lake.compaction import Compacted
    from headstone.lake.job_plan import JobOptions
    from headstone.lake.lake import Lake
    from headstone.lake.leveling import Leveled
    from headstone.lake.purging import Evacuated
    from headstone.lake.scheduling import Eligibility
    from headstone.log.topic_partition import TopicPartition
    from headstone.pipeline.engine import Engine


def compact(arguments: argparse.Namespace, output: Output) -> int:
    """A partition that fails does not keep the others from their turn; the exit code is the first failure's.

    3: stopped by a signal, and something is left; or somebody else works on what was to be leveled or purged."""
    from headstone.lake.compaction import Compacted, Stopped
    from headstone.lake.leased_jobs import compact_leased
    from headstone.lake.scheduling import queue
    from headstone.lake.worker import eligibilities

    chosen = _job_options(arguments, output)
    lake = open_named(arguments)
    now_ms = lake.metastore.clock()
    states = _of_topics(arguments, eligibilities(lake, now_ms=now_ms))
    order = list(states) if arguments.all else [name for name, _ in queue(states.items(), now_ms=now_ms)]
    worker_name = name_of_worker("compact")
    large = sum(states[name].dirty_bytes for name in order) >= SPARK_FROM_BYTES
    with (
        engine_of(arguments, verb="lake", spark_by_default=large) as engine,
        soft_stop(None if output.quiet else STOPPING) as stop,
    ):
        output.tell(f"compacting {len(order)} partitions" if order else "nothing is due")
        options = replace(chosen, clock=lake.metastore.clock, tell=output.tell, stop=stop)
        outcomes = compact_leased(lake, order, engine, worker=worker_name, options=options)
        tidied = _tidied(arguments, output, _Tidying(lake, engine, worker_name, stop), list(states))
    lake.close()
    ended = [(name, outcomes[name]) for name in order]
    done = [outcome for _, outcome in ended if isinstance(outcome, Compacted)]
    failed = [(name, outcome) for name, outcome in ended if not isinstance(outcome, Compacted | Stopped)]
    failed += tidied.failed
    left = {name for name, outcome in ended if isinstance(outcome, Stopped)} | set(tidied.left)
    evacuated = tidied.evacuated
    for text in [*(f"{name}: {error}" for name, error in failed), *evacuated.busy]:
        output.warn(f"headstone: {text}")
    stopped = stop() and (left or not evacuated.complete)
    if stopped:
        output.warn(f"headstone: stopped by a signal, {len(left)} partitions are left; run the same command again")
    output.answer(
        lambda: {
            "partitions": [{**asdict(result), "partition": str(result.partition)} for result in done],
            "leveled": [{**asdict(result), "partition": str(result.partition)} for result in tidied.leveled],
            "failed": [{"partition": str(name), "why": str(error)} for name, error in failed],
            "left": [str(name) for name in sorted(left)],
            "evacuated": asdict(evacuated) if arguments.purge or evacuated.extents or evacuated.busy else None,
        },
        _compact_lines(done, tidied.leveled, evacuated, nothing_due=not order),
    )
    if tidied.error is not None:
        raise tidied.error
    unfinished = stopped or evacuated.busy
    return next((getattr(error, "exit_code", UNFINISHED) for _, error in failed), UNFINISHED if unfinished else DONE)


class _Tidying(NamedTuple):
    """What leveling and purging are done with."""

    lake: Lake
    engine: Engine
    worker: str
    stop: Callable[[], bool]


class _Tidied(NamedTuple):
    leveled: list[Leveled]
    failed: list[tuple[TopicPartition, Exception]]
    left: Sequence[TopicPartition]
    """Not leveled, because of a signal."""
    evacuated: Evacuated
    error: HeadstoneError | None = None
    """What the evacuation ended with: what was done before it is told all the same."""


def _tidied(
    arguments: argparse.Namespace, output: Output, tidying: _Tidying, partitions: Sequence[TopicPartition]
) -> _Tidied:
    """Partitions that fail, or that somebody else works on, keep nobody from their turn."""
    from headstone.lake.compaction import Stopped
    from headstone.lake.keeping import leased
    from headstone.lake.leased_jobs import level_leased
    from headstone.lake.leveling import Leveled
    from headstone.lake.purging import Evacuated, evacuate_idle, purge_aged
    from headstone.lake.turns import Turn
    from headstone.pipeline.progress import ProgressLine

    lake, engine, worker_name, stop = tidying
    to_level = partitions if arguments.level or arguments.purge else []
    with ProgressLine(enabled=not output.quiet) as line:
        ended = level_leased(
            lake, to_level, engine, worker=worker_name, purge=arguments.purge, stop=stop, board=line.board
        )
        topics = {name.topic for name in partitions}
        moved_by: dict[str, Any] = {
            "clock": lake.metastore.clock, "worker": worker_name, "turn": Turn(go_on=lambda: not stop()), "board": line.board,
            "engine": engine, "working_on": partial(leased, lake, worker=worker_name),
        }  # fmt: skip
        evacuated, error = Evacuated(), None
        try:
            evacuated = (
                evacuate_idle(lake, topics, **moved_by)
                if arguments.purge
                else purge_aged(lake, topics=topics, age_ms_max=arguments.dead_age_ms_max, **moved_by)
            )
        except HeadstoneError as failure:
            error = failure
    outcomes = [(name, ended[name]) for name in to_level]
    return _Tidied(
        leveled=[outcome for _, outcome in outcomes if isinstance(outcome, Leveled)],
        failed=[(name, outcome) for name, outcome in outcomes if not isinstance(outcome, Leveled | Stopped)],
        left=[name for name, outcome in outcomes if isinstance(outcome, Stopped)],
        evacuated=evacuated, error=error,
    )  # fmt: skip


def _job_options(arguments: argparse.Namespace, output: Output) -> JobOptions:
    from headstone.lake.job_plan import JobOptions

    return JobOptions(
        map_bytes=arguments.map_bytes, dead_share_max=arguments.dead_share_max, progress=not output.quiet
    )  # fmt: skip


def _of_topics(
    arguments: argparse.Namespace, states: Mapping[TopicPartition, Eligibility]
) -> dict[TopicPartition, Eligibility]:
    """Only of the topics that were named, if any were; a name that is not there is a mistake."""
    topics = {name.topic for name in states}
    for topic in arguments.topic:
        if topic not in topics:
            raise UsageError(f"the lake has no topic {topic}; it has {', '.join(sorted(topics)) or 'none'}")
    return {name: state for name, state in states.items() if not arguments.topic or name.topic in arguments.topic}


def _compact_lines(
    done: Sequence[Compacted], leveled: Sequence[Leveled], evacuated: Evacuated, *, nothing_due: bool
) -> Iterator[str]:
    for result in done:
        yield _compacted_line(result)
    if nothing_due:
        yield "nothing is due"
    for merged in leveled:
        yield (
            f"{merged.partition}: {merged.extents_before} -> {merged.extents_after} extents, {merged.extents_purged} rewritten "
            "without their dead records"
        )
    if evacuated.extents:
        yield f"{evacuated.extents} extents moved out of {len(evacuated.objects)} objects that held erased records"


def _compacted_line(result: Compacted) -> str:
    if not result.committed:
        return f"{result.partition}: nothing to do"
    removed = result.bytes_before - result.bytes_after
    amplification = (
        f"{result.bytes_written / removed:.2f} bytes written for each removed" if removed else "no bytes removed"
    )
    return (
        f"{result.partition}: {result.records_before:,} -> {result.records_after:,} records, "
        f"{result.bytes_before / 1e6:,.1f} -> "
        f"{result.bytes_after / 1e6:,.1f} MB, {result.extents_read} of {result.extents} extents read, "
        f"{result.extents_rewritten} rewritten, {result.extents_marked} marked ({result.records_dead:,} dead records in "
        f"all), {amplification}"
    )


def worker(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.erasure import Tools
    from headstone.lake.job_plan import JobOptions
    from headstone.lake.keeping import leased
    from headstone.lake.leases import Leases
    from headstone.lake.upkeep import Upkeep
    from headstone.lake.worker import HARD, RUN, SOFT, Worker

    lake = open_named(arguments)
    name = arguments.name or name_of_worker()
    woken = threading.Event()
    committed = 0
    with engine_of(arguments, verb="lake", spark_by_default=False) as engine:
        tools = Tools(
            lake=lake, engine=engine, clock=lake.metastore.clock, worker=name, tell=output.tell,
            working_on=partial(leased, lake, worker=name), grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms,
            options=JobOptions(stop=lambda: working.stop != RUN),
        )  # fmt: skip
        working = Worker(
            name=name, lake=lake, engine=engine, clock=lake.metastore.clock, tell=output.tell,
            lease_ms=arguments.lease_ms, partitions_at_once=arguments.partitions_at_once,
            options=_job_options(arguments, output),
            upkeep=Upkeep(
                tools=tools, dead_age_ms_max=arguments.dead_age_ms_max, gc=not arguments.no_gc,
                gc_every_ms=arguments.gc_every_ms, objects_at_once=arguments.gc_objects,
                bytes_at_once=arguments.upkeep_bytes,
            ),
            bytes_at_once=arguments.upkeep_bytes,
        )  # fmt: skip

        def stop(count: int) -> None:
            """The first signal lets it finish the parts in hand, the second gives them up before their commits."""
            working.stop = SOFT if count == 1 else HARD
            woken.set()

        with signals_heard(stop):
            committed += working.look() if arguments.every_ms else working.work()
            while arguments.every_ms and working.stop == RUN:
                woken.wait(arguments.every_ms / 1000)
                committed += working.look()
    Leases(lake.metastore).left(name)
    lake.close()
    output.answer(lambda: {"worker": name, "committed": committed}, [f"{name}: {committed} compactions"])
    return DONE


def hold(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.holds import Holds

    lake = open_named(arguments)
    holds = Holds(lake.metastore)
    document: dict[str, object] = {"reader": arguments.reader}
    if arguments.release:
        document["released"] = holds.release(arguments.reader)
        text = f"{arguments.reader}: {document['released']} holds released"
    elif not arguments.topic:
        raise UsageError("name what to hold with --topic, or --release")
    else:
        expires_ms = lake.metastore.clock() + arguments.for_ms
        chosen = chosen_partitions(arguments, lake)
        for name in chosen:
            holds.hold(arguments.reader, name, arguments.offset, expires_ms=expires_ms)
        document |= {"held": [str(name) for name in chosen], "expires_ms": expires_ms}
        text = f"{arguments.reader} holds {', '.join(map(str, chosen))} from offset {arguments.offset}"
    lake.close()
    output.answer(lambda: document, [text])
    return DONE


def request(arguments: argparse.Namespace, output: Output) -> int:
    """What there is nothing to do for is told, and not asked for."""
    from headstone.lake.leases import Leases
    from headstone.lake.worker import eligibilities

    lake = open_named(arguments)
    chosen, now_ms = chosen_partitions(arguments, lake), lake.metastore.clock()
    states = eligibilities(lake, now_ms=now_ms, requested=chosen)
    wanted = [name for name in chosen if states[name].eligible]
    for name in wanted:
        Leases(lake.metastore).request(name, now_ms=now_ms)
    lake.close()
    idle = {str(name): states[name].reason for name in chosen if name not in wanted}
    output.answer(
        lambda: {"requested": [str(name) for name in wanted], "nothing_to_do": idle},
        [
            *([f"requested: {', '.join(map(str, wanted))}"] if wanted else []),
            *(f"{name}: nothing to do: {reason}" for name, reason in idle.items()),
        ],
    )
    return DONE


def pause(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.lake.leases import Leases

    lake = open_named(arguments)
    if not Leases(lake.metastore).pause(arguments.worker, paused=not arguments.resume):
        raise UsageError(f"no worker {arguments.worker}; `headstone lake status` names them")
    lake.close()
    what = "goes on" if arguments.resume else "takes no new job"
    output.answer(lambda: {"worker": arguments.worker, "paused": not arguments.resume}, [f"{arguments.worker} {what}"])
    return DONE
