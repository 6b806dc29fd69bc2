"""Compaction and leveling of any number of partitions outside the workers' queue: job after job, each under its leases.

A job holds the rows of all its extents in memory, so a large lake is cut into jobs by number of extents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headstone.lake.jobs.compaction import Compacted, compact_partitions
from headstone.lake.jobs.job import JobControl, Stopped
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.keeping import KeptLeases, leased_all
from headstone.lake.jobs.leveling import Leveled, level_partitions
from headstone.lake.lake import Lake
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.surveys import extent_counts
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.progress import Board

EXTENTS_AT_ONCE = 500_000
"""A few hundred megabytes of rows in the driver."""


def compact_leased(
    lake: Lake, order: Sequence[TopicPartition], engine: Engine, *, worker: str, settings: JobSettings | None = None,
    control: JobControl | None = None, extents_at_once: int = EXTENTS_AT_ONCE,
) -> dict[TopicPartition, Compacted | Exception]:  # fmt: skip
    """In this order. Returns for each what was done, or why not. Partitions that others work on are left to them."""
    clock, control = lake.metastore.clock, control or JobControl()
    outcomes: dict[TopicPartition, Compacted | Exception] = {}
    for names in jobs_of(lake, order, extents_at_once):
        if control.stop():
            outcomes |= {name: Stopped("stopped before it was begun; run it again") for name in names}
            continue
        with leased_all(lake, names, worker) as kept:
            outcomes |= kept.refused
            free = [name for name in names if name not in kept.refused]
            outcomes |= compact_partitions(
                lake, free, engine, now_ms=clock(), settings=settings, control=control, check=kept.check
            )
    return outcomes


def level_leased(
    lake: Lake, order: Sequence[TopicPartition], engine: Engine, *, worker: str, purge: bool = False, stop: Stop = never,
    board: Board | None = None, extents_at_once: int = EXTENTS_AT_ONCE,
) -> dict[TopicPartition, Leveled | Exception]:  # fmt: skip
    """As `compact_leased`; releases a lease as soon as its partition has ended."""
    clock, leases = lake.metastore.clock, Leases(lake.metastore)
    outcomes: dict[TopicPartition, Leveled | Exception] = {}
    for names in jobs_of(lake, order, extents_at_once):
        if stop():
            outcomes |= {name: Stopped("stopped before it was begun; run it again") for name in names}
            continue
        with leased_all(lake, names, worker) as kept:
            outcomes |= kept.refused
            free = [name for name in names if name not in kept.refused]
            outcomes |= level_partitions(
                lake, free, clock=clock, engine=engine, worker=worker, purge=purge, board=board, stop=stop,
                check=kept.check, done=_let_go(kept, leases, worker),
            )  # fmt: skip
    return outcomes


def _let_go(kept: KeptLeases, leases: Leases, worker: str) -> Callable[[TopicPartition, Leveled | Exception], None]:
    """Partitions with nothing to do come first: they are released together, with the first one that had work."""
    ended: list[TopicPartition] = []

    def end(name: TopicPartition, outcome: Leveled | Exception) -> None:
        kept.let_go(name)
        ended.append(name)
        if isinstance(outcome, Exception) or outcome.bytes_written:
            leases.release_all(ended, worker)
            ended.clear()

    return end


def jobs_of(lake: Lake, order: Sequence[TopicPartition], extents_at_once: int) -> Iterator[list[TopicPartition]]:
    """By the number of extents on the partitions' rows; a partition with more is a job of its own.

    A partition dropped meanwhile is in a job too, which finds no lease of it."""
    extents = extent_counts(lake.metastore, order)
    names: list[TopicPartition] = []
    room = extents_at_once
    for name in order:
        count = extents.get(name, 0)
        if names and count > room:
            yield names
            names, room = [], extents_at_once
        names.append(name)
        room -= count
    if names:
        yield names
