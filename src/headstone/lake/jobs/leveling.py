"""Leveling: neighbouring small extents become one, so that a log of many small writes does not need many small reads.

Chooses them; `rewriting` writes and commits. A running compaction is not disturbed: leveling needs the partition's lease, and
is refused while another worker has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from headstone.lake.defaults import EXTENT_BYTES
from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import SPREAD_MAX, touching
from headstone.lake.jobs.job import Check, Told
from headstone.lake.jobs.rewriting import Rewriting, RewrittenExtents, rewrite_all, shown_to_nobody
from headstone.lake.jobs.turns import Turn
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import Partition, gone
from headstone.lake.metastore.scheduling import dirty_spans
from headstone.lake.metastore.surveys import Mergeable, small_extents
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Engine, Stop, never
from headstone.pipeline.progress import Board

SMALL = 0.5
"""Share of the wanted size: larger extents are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leveled:
    partition: TopicPartition
    extents_before: int
    extents_after: int
    extents_purged: int
    """Rewritten only because some of their records are dead, or below the log start."""
    bytes_written: int
    runs_left: int = 0
    """For another turn."""


def runs_to_merge(partition: Partition, *, extent_bytes: int = EXTENT_BYTES) -> list[list[Extent]]:
    """Runs of two or more small neighbours, together up to the wanted size, all clean or all dirty.

    The last run waits until it makes an extent of a healthy size, or every write would copy it once more. Large extents may be
    missing from the partition: they only keep small ones apart."""
    dirty, small_bytes = dirty_spans(partition), extent_bytes * SMALL
    runs: list[list[Extent]] = [[]]
    size = 0
    for extent in partition.extents:
        if extent.length >= small_bytes:
            continue
        run = runs[-1]
        fits = not run or (
            run[-1].span.end == extent.span.start
            and bool(touching(dirty, run[-1].span)) == bool(touching(dirty, extent.span))
            and size + extent.length <= extent_bytes
            and extent.span.end - run[0].span.start <= SPREAD_MAX
        )
        if not fits:
            runs.append([])
            size = 0
        runs[-1].append(extent)
        size += extent.length
    if runs[-1] and runs[-1][-1].span.end == partition.next_offset and size < small_bytes:
        runs.pop()
    return [run for run in runs if len(run) > 1]


def with_small_extents(
    lake: Lake, partitions: Collection[TopicPartition], *, extent_bytes: int = EXTENT_BYTES
) -> dict[TopicPartition, Mergeable]:
    """For those that exist, at one moment. From an index of small extents: it looks at no others, however many there are."""
    return small_extents(lake.metastore, partitions, smaller_than=int(extent_bytes * SMALL))


def level_partitions(
    lake: Lake, names: Sequence[TopicPartition], *, clock: Callable[[], int], extent_bytes: int = EXTENT_BYTES,
    purge: bool = False, engine: Engine | None = None, worker: str | None = None, turn: Turn | None = None,
    board: Board | None = None, stop: Stop = never, check: Check = lambda topic_partition: None,
    done: Told[Leveled] = lambda topic_partition, outcome: None,
) -> dict[TopicPartition, Leveled | Exception]:  # fmt: skip
    """All of them in one job, with a commit for each new extent, as with `rewrite_all`; spends the turn in this order.

    CommitRefused for a partition if a compaction came in between, or if another than `worker` has its lease: that one's
    compaction would no longer fit. `purge`: also rewrites extents with dead records without them, merged or not."""
    turn = turn or Turn()
    plans = _plans(lake, names, extent_bytes=extent_bytes, purge=purge)
    outcomes: dict[TopicPartition, Leveled | Exception] = {name: gone(name) for name in names if name not in plans}
    for name, outcome in outcomes.items():
        done(name, outcome)
    wanted: dict[TopicPartition, Rewriting] = {}
    for name in (name for name in names if name in plans):
        runs = turn.spend(plans[name].runs)
        wanted[name] = Rewriting(partition=plans[name].partition, runs=runs)
        if board is not None and runs:
            board.expect(sum(map(_size, runs)))

    def ended(name: TopicPartition, outcome: RewrittenExtents | Exception) -> None:
        plan, runs = plans[name], wanted[name].runs
        outcomes[name] = plan.leveled(name, runs, outcome) if isinstance(outcome, RewrittenExtents) else outcome
        done(name, outcomes[name])

    rewrite_all(
        lake, wanted, clock=clock, engine=engine, worker=worker, board=board, stop=stop, check=check, done=ended
    )
    return outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    partition: Partition
    extents: int
    merged: Sequence[Sequence[Extent]]
    purged: Sequence[Sequence[Extent]]

    @property
    def runs(self) -> list[Sequence[Extent]]:
        return [*self.merged, *self.purged]

    def leveled(self, name: TopicPartition, chosen: Sequence[Sequence[Extent]], rewritten: RewrittenExtents) -> Leveled:
        return Leveled(
            partition=name, extents_before=self.extents, extents_after=self.extents - sum(len(run) - 1 for run in chosen),
            extents_purged=len(chosen[len(self.merged) :]), bytes_written=rewritten.bytes_written,
            runs_left=len(self.runs) - len(chosen),
        )  # fmt: skip


def _plans(
    lake: Lake, names: Sequence[TopicPartition], *, extent_bytes: int, purge: bool
) -> dict[TopicPartition, _Plan]:
    """For those that exist. Purging looks at every extent."""
    if not purge:
        return {
            name: _Plan(
                partition=looked.partition, extents=looked.extents, purged=(),
                merged=runs_to_merge(looked.partition, extent_bytes=extent_bytes),
            )
            for name, looked in with_small_extents(lake, names, extent_bytes=extent_bytes).items()
        }  # fmt: skip
    plans = {}
    for name, partition in lake.metastore.snapshot(names, present_only=True).items():
        runs = runs_to_merge(partition, extent_bytes=extent_bytes)
        merged = {extent.span for run in runs for extent in run}
        purged = [
            [extent]
            for extent in partition.extents
            if extent.span not in merged and _purgeable(lake, partition, extent)
        ]
        plans[name] = _Plan(partition=partition, extents=len(partition.extents), merged=runs, purged=purged)
    return plans


def _size(extents: Sequence[Extent]) -> int:
    return sum(extent.length for extent in extents)


def _purgeable(lake: Lake, partition: Partition, extent: Extent) -> bool:
    below = extent.span.start < partition.start_offset and extent.length > 0
    return extent.dead > 0 or (below and shown_to_nobody(lake.store, extent, partition.start_offset).size > 0)
