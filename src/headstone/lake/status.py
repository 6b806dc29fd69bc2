"""What `lake status` tells: partitions from their rows, totals of topics and of the lake, who works on what, and why not.

Values only; how they are shown is the CLI's. Extents are read by whoever asks for a check of them, and by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from headstone.lake.commits import TombstoneRange
from headstone.lake.erasures import Erasure, Erasures
from headstone.lake.holds import Hold, Holds
from headstone.lake.leases import HistoryRow, Leases, WorkerRow
from headstone.lake.metastore import Metastore
from headstone.lake.rows import located_all
from headstone.lake.scheduling import queue
from headstone.lake.spans import Spans
from headstone.lake.standings import Standing, standings
from headstone.log.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Of some partitions. `due` are worth a compaction now; `dead_bytes` is about right (`totals`)."""

    partitions: int
    due: int
    extents: int
    records: int
    dead_records: int
    bytes: int
    dirty_bytes: int
    dead_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    partition: TopicPartition
    start_offset: int
    next_offset: int
    compaction_epoch: int
    dirty_ratio: float
    sums: Sums
    dead_since_ms: int | None
    """Since when the longest dead record waits to leave its object."""
    cleaned_ranges: Spans
    tombstone_ranges: tuple[TombstoneRange, ...]
    eligible: bool
    reason: str
    """Why it is due, or why it is not."""
    waits_for: str
    """Why nobody begins although it is due, or who has begun; empty if the next worker may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    topic: str
    sums: Sums
    partitions: tuple[PartitionStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStatus:
    now_ms: int
    """By the lake's clock."""
    sums: Sums
    topics: tuple[TopicStatus, ...]
    queue: tuple[TopicPartition, ...]
    working: dict[TopicPartition, str]
    workers: tuple[WorkerRow, ...]
    history: tuple[HistoryRow, ...]
    holds: tuple[Hold, ...]
    erasures: tuple[Erasure, ...]


def lake_status(metastore: Metastore) -> LakeStatus:
    leases, now_ms = Leases(metastore), metastore.clock()
    with metastore.transaction(snapshot=True) as connection:
        judged = standings(connection, located_all(connection, None), now_ms=now_ms)
    working, waiting = leases.held(now_ms=now_ms), leases.waiting(now_ms=now_ms)
    topics: dict[str, list[PartitionStatus]] = {name: [] for name in metastore.topics()}
    for standing in sorted(judged, key=lambda standing: standing.partition):
        worker, until_ms = working.get(standing.partition), waiting.get(standing.partition)
        waits_for = f"{worker} works on it" if worker else ""
        if until_ms is not None and not worker:
            waits_for = f"its last job failed: not before {until_ms}, in {until_ms - now_ms} ms"
        topics[standing.partition.topic].append(_partition(standing, waits_for))
    states = [(standing.partition, standing.state) for standing in judged]
    return LakeStatus(
        now_ms=now_ms,
        sums=_sums(partition.sums for partitions in topics.values() for partition in partitions),
        topics=tuple(
            TopicStatus(topic=name, sums=_sums(each.sums for each in partitions), partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
        queue=tuple(partition for partition, _ in queue(states, now_ms=now_ms)),
        working=working,
        workers=tuple(leases.workers()),
        history=tuple(leases.history()),
        holds=tuple(Holds(metastore).all(now_ms=now_ms)),
        erasures=tuple(Erasures(metastore).all()),
    )  # fmt: skip


def _partition(standing: Standing, waits_for: str) -> PartitionStatus:
    partition, totals, state = standing.summary.partition, standing.summary.totals, standing.state
    return PartitionStatus(
        partition=standing.partition, start_offset=partition.start_offset, next_offset=partition.next_offset,
        compaction_epoch=partition.compaction_epoch, dirty_ratio=state.dirty_ratio, cleaned_ranges=partition.cleaned,
        tombstone_ranges=partition.tombstones, eligible=state.eligible, reason=state.reason, waits_for=waits_for,
        dead_since_ms=totals.dead_since_ms if totals.dead_since_ms >= 0 else None,
        sums=Sums(
            partitions=1, due=int(state.eligible), extents=totals.extents, records=totals.records,
            dead_records=totals.dead_records, bytes=totals.bytes, dirty_bytes=totals.dirty_bytes, dead_bytes=totals.dead_bytes,
        ),
    )  # fmt: skip


def _sums(parts: Iterable[Sums]) -> Sums:
    parts = list(parts)
    return Sums(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(Sums)})
