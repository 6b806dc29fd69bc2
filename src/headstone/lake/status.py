"""What `lake status` shows: partitions from their rows, totals of topics and of the lake, who works on what, and why not.

Values, and the one document built from them; the CLI renders the lines for people. Extents are read only by a check of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from headstone import units
from headstone.lake.format.spans import Spans
from headstone.lake.metastore.commits import TombstoneRange
from headstone.lake.metastore.erasures import Erasure, Erasures
from headstone.lake.metastore.holds import Holds, ReaderHold
from headstone.lake.metastore.leases import HistoryRow, Leases, WorkerRow
from headstone.lake.metastore.losses import Loss, all_losses
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.scheduling import queue
from headstone.lake.metastore.standings import PartitionUrgency
from headstone.lake.metastore.surveys import all_judged
from headstone.log.topic_partition import TopicPartition, partition_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Totals of some partitions. `due` are worth a compaction now; `dead_bytes` is approximate (`totals`)."""

    partitions: int
    due: int
    extents: int
    records: int
    dead_records: int
    bytes: int
    dirty_bytes: int
    dead_bytes: int

    def as_line(self, name: str) -> str:
        return (
            f"{name}: {units.count(self.partitions, 'partition')}, {self.due:,} due; {units.count(self.records, 'record')} "
            f"(and {self.dead_records:,} dead), {units.size(self.bytes)}, {units.size(self.dirty_bytes)} dirty, "
            f"in {units.count(self.extents, 'extent')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    partition: TopicPartition
    start_offset: int
    next_offset: int
    compaction_epoch: int
    dirty_ratio: float
    sums: Sums
    dead_since_ms: int | None
    """When the dead record was marked that has waited longest to leave its object."""
    cleaned_ranges: Spans
    tombstone_ranges: tuple[TombstoneRange, ...]
    eligible: bool
    reason: str
    """Why it is due, or why not."""
    waits_for: str
    """Why no worker has begun although it is due, or which one has; empty if the next worker may."""

    def as_line(self) -> str:
        cleaned, sums = ", ".join(map(str, self.cleaned_ranges)) or "nothing", self.sums
        return (
            f"{self.partition}: [{self.start_offset}, {self.next_offset}) "
            f"{units.count(sums.records, 'record')} (and {sums.dead_records:,} dead), {units.size(sums.bytes)} "
            f"in {units.count(sums.extents, 'extent')}, clean: {cleaned}, epoch {self.compaction_epoch}; "
            f"{'due' if self.eligible else 'not due'}: {self.reason}"
            + (f"; {self.waits_for}" if self.waits_for else "")
        )


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
    holds: tuple[ReaderHold, ...]
    erasures: tuple[Erasure, ...]
    losses: tuple[Loss, ...]
    """What was given up with damaged objects and is no longer in the log."""


def lake_status(metastore: Metastore) -> LakeStatus:
    leases, now_ms = Leases(metastore), metastore.clock()
    judged, lost = all_judged(metastore, now_ms=now_ms), all_losses(metastore)
    working, waiting = leases.held(now_ms=now_ms), leases.waiting(now_ms=now_ms)
    topics: dict[str, list[PartitionStatus]] = {name: [] for name in metastore.topics()}
    for each in sorted(judged, key=lambda each: each.partition):
        worker, until_ms = working.get(each.partition), waiting.get(each.partition)
        waits_for = f"{worker} works on it" if worker else ""
        if until_ms is not None and not worker:
            wait = units.exact_duration(until_ms - now_ms)
            waits_for = f"its last job failed: not before {units.moment(until_ms)}, in {wait}"
        topics[each.partition.topic].append(_partition(each, waits_for))
    urgencies = [(each.partition, each.urgency) for each in judged]
    return LakeStatus(
        now_ms=now_ms,
        sums=_sums(partition.sums for partitions in topics.values() for partition in partitions),
        topics=tuple(
            TopicStatus(topic=name, sums=_sums(each.sums for each in partitions), partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
        queue=tuple(partition for partition, _ in queue(urgencies, now_ms=now_ms)),
        working=working,
        workers=tuple(leases.workers()),
        history=tuple(leases.history()),
        holds=tuple(Holds(metastore).all(now_ms=now_ms)),
        erasures=tuple(Erasures(metastore).all()),
        losses=tuple(lost),
    )  # fmt: skip


def _partition(judged: PartitionUrgency, waits_for: str) -> PartitionStatus:
    partition, totals, urgency = judged.standing.partition, judged.standing.totals, judged.urgency
    return PartitionStatus(
        partition=judged.partition, start_offset=partition.start_offset, next_offset=partition.next_offset,
        compaction_epoch=partition.compaction_epoch, dirty_ratio=urgency.dirty_ratio, cleaned_ranges=partition.cleaned,
        tombstone_ranges=partition.tombstones, eligible=urgency.eligible, reason=urgency.reason, waits_for=waits_for,
        dead_since_ms=totals.dead_since_ms if totals.dead_since_ms >= 0 else None,
        sums=Sums(
            partitions=1, due=int(urgency.eligible), extents=totals.extents, records=totals.records,
            dead_records=totals.dead_records, bytes=totals.bytes, dirty_bytes=totals.dirty_bytes, dead_bytes=totals.dead_bytes,
        ),
    )  # fmt: skip


def _sums(parts: Iterable[Sums]) -> Sums:
    parts = list(parts)
    return Sums(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(Sums)})


def status_document(status: LakeStatus) -> dict[str, object]:
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
        "history": list(map(partition_row, status.history)),
        "erasures": [asdict(erasure) for erasure in status.erasures],
        "losses": list(map(partition_row, status.losses)),
        "holds": list(map(partition_row, status.holds)),
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
