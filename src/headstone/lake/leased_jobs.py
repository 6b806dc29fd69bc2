"""Compaction of any number of partitions for one who does not share the queue: job after job, each under its leases.

A job holds the rows of all its extents in memory, so a lake of any size goes in jobs of so many extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headstone.lake.compaction import Compacted, Stopped, compact_partitions
from headstone.lake.job_plan import JobOptions
from headstone.lake.keeping import leased_all
from headstone.lake.lake import Lake
from headstone.lake.rows import located_all
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine

EXTENTS_AT_ONCE = 500_000
"""A few hundred megabytes of rows in the driver."""


def compact_leased(
    lake: Lake, order: Sequence[TopicPartition], engine: Engine, *, worker: str, options: JobOptions,
    extents_at_once: int = EXTENTS_AT_ONCE,
) -> dict[TopicPartition, Compacted | Exception]:  # fmt: skip
    """In this order; of each what was done, or why it was not. What somebody else works on is left to them."""
    clock = lake.metastore.clock
    outcomes: dict[TopicPartition, Compacted | Exception] = {}
    for names in jobs_of(lake, order, extents_at_once):
        if options.stop():
            outcomes |= {name: Stopped("stopped before it was begun; run it again") for name in names}
            continue
        with leased_all(lake, names, worker) as kept:
            outcomes |= kept.refused
            free = [name for name in names if name not in kept.refused]
            outcomes |= compact_partitions(lake, free, engine, now_ms=clock(), options=options, check=kept.check)
    return outcomes


def jobs_of(lake: Lake, order: Sequence[TopicPartition], extents_at_once: int) -> Iterator[list[TopicPartition]]:
    """By the partitions' rows, which know their number of extents; one that has more is a job of its own."""
    with lake.metastore.transaction(snapshot=True) as connection:
        extents = {name: int(row.extents) for name, row in located_all(connection, order).items()}
    names: list[TopicPartition] = []
    room = extents_at_once
    for name in order:
        if names and extents[name] > room:
            yield names
            names, room = [], extents_at_once
        names.append(name)
        room -= extents[name]
    if names:
        yield names
