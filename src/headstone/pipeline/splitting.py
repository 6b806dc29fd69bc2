"""Partitions over many tasks: what each task of the shuffle path is sent, and nothing else of the job.

Units, buckets and groups are numbered across all partitions: a number names a task of its stage. A work says which tasks its
task must get rows from, each once, so that lost or duplicated rows are noticed. Knows nothing about Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headstone import units
from headstone.errors import Unfinished
from headstone.pipeline.machine import AUTO, WHOLE
from headstone.pipeline.progress import Meter

BUCKET_BYTES = 64 << 20
ENTRY_BYTES = 24
SPLIT_BYTES_MIN = 1 << 30
"""Below this, splitting a partition over tasks costs more than it gains."""
SHARE_MAX = 1.5
"""Of an even share of the whole job per task: a larger partition would hold up the others."""


def takes_whole(path: str, *, memory: int, memory_max: int, size: int, bytes_per_task: float) -> bool:
    """One task for the whole partition: its keys fit into the task's memory, and it does not hold up the others."""
    if path != AUTO:
        return path == WHOLE
    return memory <= memory_max and size <= max(SPLIT_BYTES_MIN, SHARE_MAX * bytes_per_task)


class Unit(Protocol):
    """A part of a partition whose keys one task indexes."""

    @property
    def size(self) -> int: ...

    def index(self, bucket_count: int, meter: Meter) -> tuple[list[bytes], int]:
        """Its entries by bucket (`buckets`), newest first, and the tombstones that were superseded within the unit."""
        ...


class Part(Protocol):
    """A part of a partition that one task rewrites."""

    def rewrite(self, blobs: Sequence[bytes], meter: Meter, *, keys_found: int, tombstones_lost: int) -> Any:
        """The answer of the task. Each bucket sends the survivors of this part."""
        ...


class Splittable(Protocol):
    """A partition that is compacted by many tasks. Every record has an ordinal in it."""

    @property
    def records(self) -> int: ...

    @property
    def group_edges(self) -> tuple[int, ...]:
        """The ordinals where the parts begin, and where the last one ends."""
        ...

    def units(self) -> Sequence[Unit]:
        """Oldest first."""
        ...

    def parts(self) -> Sequence[Part]:
        """Oldest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWork:
    """A unit of a partition, whose entries go to the partition's buckets."""

    unit: Unit
    buckets: range


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWork:
    """A share of a partition's keys: gets rows from its units, and sends to its groups, whose first ordinals are the edges."""

    units: range
    groups: range
    edges: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteWork:
    """One group of a partition, which gets rows from all its buckets."""

    partition: int
    """Which of the split works."""
    part: Part
    buckets: range


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitWorks:
    """The tasks of the three stages, numbered across all partitions."""

    units: tuple[IndexWork, ...]
    buckets: tuple[BucketWork, ...]
    groups: tuple[RewriteWork, ...]


def buckets_of(records: int) -> int:
    """Enough that the entries of each fit into a task."""
    return max(1, -(-records * ENTRY_BYTES // BUCKET_BYTES))


def split_works(works: Sequence[Splittable], *, parallelism: int) -> SplitWorks:
    units: list[IndexWork] = []
    buckets: list[BucketWork] = []
    groups: list[RewriteWork] = []
    for p, work in enumerate(works):
        cut, parts = work.units(), work.parts()
        count = max(buckets_of(work.records), min(parallelism, len(cut)))
        own_units = range(len(units), len(units) + len(cut))
        own_buckets = range(len(buckets), len(buckets) + count)
        own_groups = range(len(groups), len(groups) + len(parts))
        units += [IndexWork(unit=unit, buckets=own_buckets) for unit in cut]
        buckets += [BucketWork(units=own_units, groups=own_groups, edges=work.group_edges)] * count
        groups += [RewriteWork(partition=p, part=part, buckets=own_buckets) for part in parts]
    return SplitWorks(units=tuple(units), buckets=tuple(buckets), groups=tuple(groups))


def require_each_once(senders: Sequence[int], wanted: range, *, who: str) -> None:
    """An engine that loses or duplicates rows must not make records vanish."""
    if sorted(senders) != list(wanted):
        raise Unfinished(
            f"{who} heard {units.count(len(senders), 'time')} from {len(set(senders) & set(wanted))} of "
            f"{units.count(len(wanted), 'task')} before it; "
            "run the same command again"
        )
