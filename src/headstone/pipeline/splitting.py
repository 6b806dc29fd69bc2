"""Partitions over many tasks: cut into what each task of the shuffle path is sent, and nothing else of the job.

Units, buckets and groups of all partitions are numbered through: a number names a task of its stage. A work says from
whom its task must hear, each once, so that a row that was lost or came twice is noticed. Knows nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstone.errors import Unfinished
from headstone.pipeline.work import IndexUnit, PartitionWork, index_units
from headstone.retention.passes import CleaningPass

BUCKET_BYTES = 64 << 20
ENTRY_BYTES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWork:
    """A unit of a partition, whose entries go to the partition's buckets."""

    cleaning: CleaningPass
    unit: IndexUnit
    buckets: range


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWork:
    """A share of a partition's keys: hears from its units, and tells its groups, whose first ordinals are the edges."""

    units: range
    groups: range
    edges: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteWork:
    """One group of a partition, which hears from all its buckets."""

    partition: int
    """Which of the works that were split."""
    work: PartitionWork
    """With this group alone."""
    buckets: range


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWorks:
    units: tuple[IndexWork, ...]
    buckets: tuple[BucketWork, ...]
    groups: tuple[RewriteWork, ...]


def split_works(works: Sequence[PartitionWork], *, parallelism: int) -> SplitWorks:
    units: list[IndexWork] = []
    buckets: list[BucketWork] = []
    groups: list[RewriteWork] = []
    for p, work in enumerate(works):
        cut = index_units(work)
        count = max(-(-work.records * ENTRY_BYTES // BUCKET_BYTES), min(parallelism, len(cut)), 1)
        own_units = range(len(units), len(units) + len(cut))
        own_buckets = range(len(buckets), len(buckets) + count)
        own_groups = range(len(groups), len(groups) + len(work.groups))
        units += [IndexWork(cleaning=work.cleaning, unit=unit, buckets=own_buckets) for unit in cut]
        buckets += [BucketWork(units=own_units, groups=own_groups, edges=work.group_edges)] * count
        groups += [
            RewriteWork(partition=p, work=replace(work, groups=(group,)), buckets=own_buckets) for group in work.groups
        ]
    return SplitWorks(units=tuple(units), buckets=tuple(buckets), groups=tuple(groups))


def require_each_once(senders: Sequence[int], wanted: range, *, who: str) -> None:
    """An engine that loses rows or brings them twice must not make records vanish."""
    if sorted(senders) != list(wanted):
        raise Unfinished(
            f"{who} heard {len(senders)} times from {len(set(senders) & set(wanted))} of {len(wanted)} tasks before it; "
            "run the same command again"
        )
