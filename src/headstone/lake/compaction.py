"""One compaction of one partition of the lake: plan, fetch, compact by the shared pipeline, upload what changed, commit.

The pipeline sees a log directory like any other, one segment per extent, so the rules are those of `retention/`. What is read
for it is `job_plan`'s choice; extents that lose nothing keep their objects, and so do those whose few dead records are listed.
Every commit carries the epoch: if another worker was faster it is refused, and what this job has uploaded since its last
commit is garbage that nobody has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from headstone.errors import UsageError
from headstone.lake.commits import Claim, Extent, Partition, oldest
from headstone.lake.dead import dead_bytes
from headstone.lake.job_plan import FETCHES_AT_ONCE, JobOptions, Mark, Plan, plan_job
from headstone.lake.keyindex import ABOVE_MAX, keys_in
from headstone.lake.lake import Lake
from headstone.lake.objects import object_path, read_live, writing_object
from headstone.lake.scheduling import dirty_spans, not_compacted
from headstone.lake.segments import files_of, lay_down, oldest_stamp
from headstone.lake.spans import Span, Spans, overlap, without
from headstone.log.columns import VALUE_SIZE, decode
from headstone.log.directory import LOG, numbered
from headstone.log.layout import DELETE_HORIZON
from headstone.log.reading import ChunkReader, Payloads, chunk_of, walk_segment
from headstone.log.scratch import scratch_directory
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.engine import Engine
from headstone.retention.verdicts import BY_KEYLESS, REASONS
from headstone.storage.ranges import open_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What one compaction did. `committed` False: there was nothing to do."""

    partition: TopicPartition
    committed: bool
    epoch: int
    dirty: Spans
    indexed: Span | None
    """The dirty part that this pass took on; a bounded map takes it in several."""
    commits: int
    extents: int
    extents_read: int
    extents_rewritten: int
    extents_marked: int
    """Not read and not rewritten: their superseded records are listed as dead."""
    records_before: int
    records_after: int
    records_dead: int
    """In the bytes afterwards, but shown to nobody; not among `records_after`."""
    bytes_before: int
    bytes_after: int
    bytes_read: int
    """Batches, lists of keys and of dead records."""
    bytes_written: int
    """Whole objects."""


@dataclass(slots=True, kw_only=True)
class _Job:
    """A compaction that is under way."""

    lake: Lake
    topic_partition: TopicPartition
    partition: Partition
    """As it was when the job began."""
    plan: Plan
    directory: Path
    clock: Callable[[], int]
    options: JobOptions
    bytes_read: int = 0
    bytes_written: int = 0
    committed: list[Extent] = field(default_factory=list)
    """Rewritten or marked."""
    epoch: int = 0


def compact_partition(
    lake: Lake, topic_partition: TopicPartition, engine: Engine, *, now_ms: int, options: JobOptions | None = None
) -> Compacted:
    """Raises CommitRefused if another worker was faster; parts that were committed before stay, without a claim."""
    options = options or JobOptions()
    partition = lake.metastore.partition(topic_partition)
    if not_compacted(lake.metastore.topics()[topic_partition.topic]):
        return _idle(topic_partition, partition)
    _refuse_keyless(
        topic_partition,
        sum(extent.records + extent.dead - extent.keys for extent in partition.extents if extent.keys >= 0),
    )
    plan = plan_job(lake, topic_partition, partition, now_ms, options)
    if plan is None:
        return _idle(topic_partition, partition)
    with scratch_directory("lake") as work:
        job = _Job(
            lake=lake, topic_partition=topic_partition, partition=partition, plan=plan,
            clock=options.clock or (lambda: now_ms), options=options,
            directory=work / str(topic_partition), bytes_read=plan.choice.bytes_read, epoch=partition.compaction_epoch,
        )  # fmt: skip
        fetched = plan.choice.fetched
        options.tell(f"{topic_partition}: reading {len(fetched)} of {len(partition.extents)} extents")
        _fetch(job)
        request = CompactionRequest(
            paths=(str(job.directory),), out=None, policy=plan.policy, dirty_from=plan.index.start,
            progress=job.options.progress,
            path="auto" if options.map_bytes is None else "whole",
        )  # fmt: skip
        options.check()
        report = compact(request, engine, lambda text: None).partitions[0]
        _refuse_keyless(topic_partition, report.reasons.get(REASONS[BY_KEYLESS], 0))
        facts = {extent.span.start: _facts(files_of(job.directory, extent.span)) for extent in fetched}
        claim = None
        if report.dirty_end > plan.index.start:  # a full map may end before what was planned
            job.plan = plan = replace(plan, index=Span(plan.index.start, report.dirty_end))
            claim = _claim(partition, plan, facts)
        changes: list[Extent | Mark] = [
            extent for extent in fetched if _without_list(extent) or _content_changed(job.directory, extent)
        ]
        changes = sorted([*changes, *plan.choice.marks], key=lambda change: _extent_of(change).span)
        if claim is None and not changes:
            return _idle(topic_partition, partition)
        _commit_parts(job, facts, changes, claim)
    return _summary(job)


def _refuse_keyless(topic_partition: TopicPartition, lost: int) -> None:
    """Compaction drops records without a key. A compacted topic has none: whoever has some did not mean to lose them.

    Lists of keys tell before anything is read; where there are none, the pass does."""
    if lost:
        raise UsageError(
            f"{topic_partition}: {lost} records have no key and would be lost, so this is not a compacted topic; "
            "nothing was changed"
        )


def _fetch(job: _Job) -> None:
    """A log directory of the extents, and an empty active segment behind them: a pass never touches the active one."""
    directory, fetched = job.directory, job.plan.choice.fetched
    directory.mkdir(parents=True)

    def fetch(extent: Extent) -> None:
        lay_down(directory, extent.span, read_live(job.lake.store, extent))

    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        list(pool.map(fetch, fetched))
    job.bytes_read += sum(extent.length + dead_bytes(extent.dead, extent.span) for extent in fetched)
    (directory / numbered(fetched[-1].span.end, LOG)).touch()


def _extent_of(change: Extent | Mark) -> Extent:
    return change.extent if isinstance(change, Mark) else change


def _commit_parts(
    job: _Job, facts: Mapping[int, _Facts], changes: Sequence[Extent | Mark], claim: Claim | None
) -> None:
    """Oldest first: a tombstone is never gone while an older record of its key is still served."""
    parts = _parts(changes, job.options.commit_bytes, lambda change: _size(job.directory, change)) or [[]]
    for i, part in enumerate(parts):
        job.options.check()
        extents, sizes = _upload(job, part, facts)
        job.options.check()
        job.options.before_commit()
        last = i == len(parts) - 1
        job.lake.metastore.replace(
            job.topic_partition, job.epoch, extents, claim if last else None, sizes,
            tombstones_below=job.plan.policy.tombstones_below,
            now_ms=job.clock,
        )  # fmt: skip
        job.epoch += 1
        job.committed += extents
        if not last:
            job.options.tell(
                f"{job.topic_partition}: committed up to offset {extents[-1].span.end}, part {i + 1} of {len(parts)}"
            )


def _parts(
    changes: Sequence[Extent | Mark], part_bytes: int, size_of: Callable[[Extent | Mark], int]
) -> list[list[Extent | Mark]]:
    """By what is left of each, so that an object is as large as a part may be."""
    parts: list[list[Extent | Mark]] = []
    room = 0
    for change in changes:
        size = max(size_of(change), 1)
        if not parts or size > room:
            parts.append([])
            room = part_bytes
        parts[-1].append(change)
        room -= size
    return parts


def _size(directory: Path, change: Extent | Mark) -> int:
    if isinstance(change, Mark):
        return dead_bytes(change.dead.size, change.extent.span)
    return sum(path.stat().st_size for _, path in files_of(directory, change.span))


def _upload(
    job: _Job, part: Sequence[Extent | Mark], facts: Mapping[int, _Facts]
) -> tuple[list[Extent], dict[str, int]]:
    """Extents that changed, in one object, and lists of dead records; no object if there are none."""
    if not part:
        return [], {}
    (object_id,) = job.lake.metastore.register(1, now_ms=job.clock())
    extents, topic_partition, hash_key = [], job.topic_partition, job.lake.metastore.hash_key
    with writing_object(job.lake.store, object_id) as writer:
        for change in part:
            if isinstance(change, Mark):
                extents.append(writer.mark(topic_partition.topic, topic_partition.number, change.extent, change.dead))
                continue
            written, content = facts.get(change.span.start, _Facts()), _content(job.directory, change.span)
            extents.append(
                writer.add(
                    topic_partition.topic, topic_partition.number, change.span, [content] if content else [],
                    records=written.records,
                    max_timestamp_ms=written.max_timestamp_ms, oldest_timestamp_ms=written.oldest_timestamp_ms,
                    keys=keys_in([chunk_of(object_path(object_id), content)], hash_key),
                )
            )  # fmt: skip
    job.bytes_written += writer.size
    return extents, {object_id: writer.size}


def _without_list(extent: Extent) -> bool:
    """Written again, once, to get one: without it every pass would have to read the extent."""
    return extent.keys < 0 and extent.length > 0 and extent.span.end - extent.span.start <= ABOVE_MAX


def _content_changed(directory: Path, extent: Extent) -> bool:
    content = _content(directory, extent.span)
    return len(content) != extent.length or google_crc32c.value(content) != extent.checksum


def _content(directory: Path, span: Span) -> bytes:
    """What is left of an extent."""
    return b"".join(path.read_bytes() for _, path in files_of(directory, span))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    records: int = 0
    max_timestamp_ms: int = -1
    oldest_timestamp_ms: int = -1
    tombstones: bool = False


def _facts(segments: Sequence[tuple[int, Path]]) -> _Facts:
    """Of an extent that was gone over: its tombstones are in batches with a delete horizon, but not in all of those."""
    records, newest, eldest, tombstones = 0, -1, -1, False
    reader, payloads = ChunkReader(), Payloads()
    for file, table in ((path, table) for base, path in segments for table in walk_segment(str(path), base=base)):
        records += int(table["count"].sum(dtype=np.int64))
        newest = max(newest, int(table["max_timestamp"].max()))
        eldest = oldest([eldest, oldest_stamp(table["max_timestamp"][table["count"] > 0])])
        stamped = table[((table["attributes"] & DELETE_HORIZON) != 0) & (table["count"] > 0)]
        tombstones = tombstones or any(_has_tombstone(file, row, reader, payloads) for row in stamped)
    return _Facts(records=records, max_timestamp_ms=newest, oldest_timestamp_ms=eldest, tombstones=tombstones)


def _has_tombstone(path: Path, row: Any, reader: ChunkReader, payloads: Payloads) -> bool:
    start, end = int(row["position"]), int(row["position"] + row["size"])
    with open_ranges(str(path)) as ranges:
        chunk = reader.read(ranges, start, end, batches=1, previous=-1, with_crc=False)
    only = np.zeros(1, dtype=np.int64)
    return any(bool((spans[:, VALUE_SIZE] < 0).any()) for _, spans in decode(chunk, only, payloads))


def _claim(partition: Partition, plan: Plan, facts: Mapping[int, _Facts]) -> Claim:
    """What was indexed is clean now, and which of it still holds tombstones. Ranges that were due are done with.

    What is left in those all the same (its batches were stamped under a longer retention) is tracked anew."""
    claimed = plan.index
    holding = [extent.span for extent in plan.choice.fetched if facts.get(extent.span.start, _Facts()).tombstones]
    left = overlap(overlap(holding, [claimed, *plan.due]), [*partition.cleaned, claimed])
    tracked = without([known.span for known in partition.tombstones], plan.due)
    return Claim(
        processed=Span(partition.start_offset, max(claimed.end, *(span.end for span in plan.due), 0)),
        cleaned=(claimed, *plan.due), tombstones=without(left, tracked), tombstones_removed=plan.due,
    )  # fmt: skip


def _idle(topic_partition: TopicPartition, partition: Partition) -> Compacted:
    extents = partition.extents
    records, size = sum(extent.records for extent in extents), sum(extent.length for extent in extents)
    return Compacted(
        partition=topic_partition, committed=False, epoch=partition.compaction_epoch, dirty=(), indexed=None, commits=0,
        extents=len(extents),
        extents_read=0, extents_rewritten=0, extents_marked=0, records_before=records, records_after=records,
        records_dead=sum(extent.dead for extent in extents), bytes_before=size, bytes_after=size, bytes_read=0, bytes_written=0,
    )  # fmt: skip


def _summary(job: _Job) -> Compacted:
    before, changed = job.partition, {extent.span: extent for extent in job.committed}
    after = [changed.get(extent.span, extent) for extent in before.extents]
    marked = [extent for extent in job.committed if extent.dead]
    return Compacted(
        partition=job.topic_partition, committed=True, epoch=job.epoch, dirty=dirty_spans(before), indexed=job.plan.index,
        commits=job.epoch - before.compaction_epoch, extents=len(before.extents),
        extents_read=len(job.plan.choice.fetched), extents_rewritten=len(changed) - len(marked), extents_marked=len(marked),
        records_before=sum(extent.records for extent in before.extents),
        records_after=sum(extent.records for extent in after), records_dead=sum(extent.dead for extent in after),
        bytes_before=sum(extent.length for extent in before.extents), bytes_after=sum(extent.length for extent in after),
        bytes_read=job.bytes_read, bytes_written=job.bytes_written,
    )  # fmt: skip
