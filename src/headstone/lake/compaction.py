"""One compaction of one partition of the lake: plan, fetch, compact by the shared pipeline, upload what changed, commit.

The pipeline sees a log directory like any other, a segment an extent, so the rules are those of `retention/`. Lists of keys
decide which clean extents are fetched at all; those that lose nothing keep their objects. Every commit carries the epoch: if
another worker was faster it is refused, and what this job has uploaded since its last commit is garbage that nobody has seen.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from headstone.errors import UsageError
from headstone.lake.commits import Claim, Extent, Partition
from headstone.lake.holds import Holds
from headstone.lake.keyindex import EMPTY, Keys, any_common, keys_in, section_bytes, union
from headstone.lake.lake import Lake
from headstone.lake.metastore import TopicPartition
from headstone.lake.objects import object_path, read_extent, read_keys, writing_object
from headstone.lake.scheduling import compactable, dirty_spans, due_tombstones, setting
from headstone.lake.spans import Span, Spans, overlap, without
from headstone.log.columns import VALUE_SIZE, decode
from headstone.log.directory import LOG, PartitionDir, list_segments, numbered
from headstone.log.layout import DELETE_HORIZON
from headstone.log.reading import ChunkReader, Payloads, SegmentFile, chunk_of, walk_segment
from headstone.retention.policy import NO_LIMIT, Policy, kafka_rules
from headstone.retention.verdicts import BY_KEYLESS, REASONS
from headstone.spark.compaction import CompactionRequest, Engine, compact
from headstone.spark.report import PartitionReport

UNMERGED_SEGMENT_BYTES = 1
"""No two extents become one: each keeps its span, and those that lose nothing are recognised."""
COMMIT_BYTES = 64 << 20
"""A job that writes more commits in parts, oldest first; each part is an object."""
FETCHES_AT_ONCE = 4
SLOT_BYTES, SLOT_LOAD = 40, 0.95
"""Of Redpanda's key-offset map: a SHA-256 and an offset, never fuller than this."""

Tell = Callable[[str], None]


def map_keys_max(map_bytes: int) -> int:
    """How many keys a map of so many bytes takes: 3,187,671 for 128 MiB."""
    return math.ceil(map_bytes // SLOT_BYTES * SLOT_LOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What one compaction did. `committed` False: there was nothing to do."""

    at: TopicPartition
    committed: bool
    epoch: int
    dirty: Spans
    indexed: Span | None
    """The dirty part that this pass took on; a bounded map takes it in several."""
    commits: int
    extents: int
    extents_read: int
    extents_rewritten: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    bytes_read: int
    """Batches and lists of keys."""
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What may differ from job to job. `held_from` is added to the holds that the metastore knows."""

    held_from: int = NO_LIMIT
    map_bytes: int | None = None
    """None: any number of keys in one pass, on the shared pipeline."""
    commit_bytes: int = COMMIT_BYTES
    clock: Callable[[], int] | None = None
    """For what happens during the job: uploads are registered and extents replaced then. None: all when it began."""
    before_commit: Callable[[], None] = lambda: None
    """Called when only a commit is left to do; what it raises gives the job up."""
    tell: Tell = lambda text: None


@dataclass(slots=True, kw_only=True)
class _Plan:
    index: Span
    """Keys of records in it decide; everything below its end is gone over."""
    keys_max: int | None
    due: Spans
    policy: Policy
    fetched: tuple[Extent, ...]
    bytes_read: int = 0
    extents: list[Extent] = field(default_factory=list)
    """Rewritten ones."""


def compact_partition(
    lake: Lake, at: TopicPartition, engine: Engine, *, now_ms: int, options: JobOptions | None = None
) -> Compacted:
    """Raises CommitRefused if another worker was faster; parts that were committed before stay, without a claim."""
    options = options or JobOptions()
    partition = lake.metastore.partition(at)
    plan = _plan(lake, at, partition, now_ms, options)
    if plan is None:
        return _summary(at, partition, None, epoch=partition.compaction_epoch, commits=0)
    with tempfile.TemporaryDirectory(prefix="headstone-lake-") as work:
        directory = PartitionDir(path=Path(work) / str(at), topic=at.topic, partition=at.number)
        options.tell(f"{at}: reading {len(plan.fetched)} of {len(partition.extents)} extents")
        _fetch(lake, plan, directory)
        request = CompactionRequest(
            paths=(str(directory.path),),
            out=None,
            policy=plan.policy,
            dirty_from=plan.index.start,
            progress=False,
            path="auto" if options.map_bytes is None else "whole",
        )
        report = compact(request, engine, lambda text: None).partitions[0]
        _refuse_keyless(at, report)
        facts = {segment.base: _facts(segment) for segment in list_segments(directory)}
        claim = None
        if report.dirty_end > plan.index.start:  # a full map may end before what was planned
            plan.index = Span(plan.index.start, report.dirty_end)
            # Later than any tombstone in it was written, whenever this job began.
            claim = _claim(partition, plan, facts, options.clock() if options.clock else now_ms)
        changed = [extent for extent in plan.fetched if _content_changed(directory, extent)]
        if claim is None and not changed:
            return _summary(at, partition, plan, epoch=partition.compaction_epoch, commits=0)
        epoch = _commit_parts(lake, at, partition, plan, directory, facts, changed, claim, now_ms, options)
    return _summary(at, partition, plan, epoch=epoch, commits=epoch - partition.compaction_epoch)


def _plan(lake: Lake, at: TopicPartition, partition: Partition, now_ms: int, options: JobOptions) -> _Plan | None:
    """None if there is nothing to do."""
    settings = lake.metastore.topics()[at.topic]
    held_from = min(options.held_from, Holds(lake.metastore).held_from(at, now_ms=now_ms))
    dirty = compactable(partition, settings, now_ms=now_ms)
    due = due_tombstones(partition, settings, now_ms=now_ms, held_from=held_from)
    if not dirty and not due:
        return None
    keys_max = None
    lists: dict[Span, Keys] = {}
    if not dirty:  # nothing is dirty, so the pass has to be told to go over the clean part again
        index = Span(due[0].start, due[-1].end)
    elif options.map_bytes is None:
        index = Span(dirty[0].start, dirty[-1].end)
    else:
        index, keys_max = _bounded(lake, partition, dirty[-1], map_keys_max(options.map_bytes), lists)
    policy = Policy(
        now_ms=now_ms, delete_retention_ms=setting(settings, "delete.retention.ms"),
        segment_bytes=UNMERGED_SEGMENT_BYTES, index_keys_max=keys_max,
    )  # fmt: skip
    # Tombstones go below this and nowhere else: delete horizons in batches from Kafka are not the lake's.
    policy = replace(kafka_rules(policy), tombstones_below=due[-1].end if due else 0)
    fetched, read = _wanted(lake, partition, index, due, lists) if dirty else (_overlapping(partition, [index]), 0)
    read += sum(section_bytes(keys.size) for keys in lists.values())
    return _Plan(index=index, keys_max=keys_max, due=due, policy=policy, fetched=fetched, bytes_read=read)


def _bounded(
    lake: Lake, partition: Partition, newest: Span, keys_max: int, lists: dict[Span, Keys]
) -> tuple[Span, int | None]:
    """How far down from the end of the newest dirty range the map reaches, whole extents; at least a part of one.

    Extents without a list of keys count as all records of theirs, each with a key of its own."""
    keys, start = EMPTY, newest.end
    for extent in reversed(_overlapping(partition, [newest])):
        if extent.keys < 0 and extent.records > keys_max - keys.size:
            break
        if extent.keys >= 0:
            lists[extent.span] = read_keys(lake.store, extent)
            more = union([keys, lists[extent.span]])
            if more.size > keys_max:
                break
            keys = more
        start = max(extent.span.start, newest.start)
    if start < newest.end:
        return Span(start, newest.end), None
    last = _overlapping(partition, [newest])[-1]
    return Span(max(last.span.start, newest.start), newest.end), keys_max


def _wanted(
    lake: Lake, partition: Partition, index: Span, due: Spans, lists: Mapping[Span, Keys]
) -> tuple[tuple[Extent, ...], int]:  # fmt: skip
    """What the pass has to read: what it indexes, where tombstones are due, and where one of those keys is.

    With the bytes of the lists that were read for it. Of those below, a few are in memory at a time."""

    def listed(extent: Extent) -> tuple[Keys, int]:
        if extent.span in lists or not extent.length:
            return lists.get(extent.span, EMPTY), 0
        return read_keys(lake.store, extent), section_bytes(extent.keys)

    def concerned(extent: Extent) -> tuple[bool, int]:
        if overlap([extent.span], due):
            return True, 0
        if not known or extent.keys < 0:
            return extent.length > 0, 0
        found, size = listed(extent)
        return any_common(found, keys), size

    indexed = _overlapping(partition, [index])
    below = [extent for extent in partition.extents if extent.span.end <= index.start]
    known = all(extent.keys >= 0 or not extent.length for extent in indexed)
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        ours = list(pool.map(listed, indexed)) if known and below else []
        keys = union(found for found, _ in ours)
        judged = list(pool.map(concerned, below))
    wanted = [extent for extent, (chosen, _) in zip(below, judged, strict=True) if chosen]
    return (*wanted, *indexed), sum(size for _, size in (*ours, *judged))


def _overlapping(partition: Partition, spans: Sequence[Span]) -> tuple[Extent, ...]:
    return tuple(extent for extent in partition.extents if overlap([extent.span], spans))


def _refuse_keyless(at: TopicPartition, report: PartitionReport) -> None:
    """Compaction drops records without a key. A compacted topic has none: whoever has some did not mean to lose them."""
    lost = report.reasons.get(REASONS[BY_KEYLESS], 0)
    if lost:
        raise UsageError(
            f"{at}: {lost} records have no key and would be lost, so this is not a compacted topic; nothing was changed"
        )


def _fetch(lake: Lake, plan: _Plan, directory: PartitionDir) -> None:
    """A log directory of the extents, and an empty active segment behind them: a pass never touches the active one."""
    directory.path.mkdir(parents=True)

    def fetch(extent: Extent) -> int:
        content = read_extent(lake.store, extent)
        (directory.path / numbered(extent.span.start, LOG)).write_bytes(content)
        return len(content)

    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        plan.bytes_read += sum(pool.map(fetch, plan.fetched))
    (directory.path / numbered(plan.fetched[-1].span.end, LOG)).touch()


def _commit_parts(
    lake: Lake, at: TopicPartition, partition: Partition, plan: _Plan, directory: PartitionDir,
    facts: Mapping[int, _Facts], changed: Sequence[Extent], claim: Claim | None, now_ms: int, options: JobOptions,
) -> int:  # fmt: skip
    """Oldest first: a tombstone is never gone while an older record of its key is still served. The epoch afterwards."""
    epoch, clock = partition.compaction_epoch, options.clock or (lambda: now_ms)
    parts = _parts(changed, options.commit_bytes, lambda extent: _size(directory, extent.span)) or [[]]
    for i, part in enumerate(parts):
        extents, sizes = _upload(lake, at, part, directory, facts, clock())
        options.before_commit()
        last = i == len(parts) - 1
        lake.metastore.replace(at, epoch, extents, claim if last else None, sizes, now_ms=clock)
        epoch += 1
        plan.extents += extents
        if not last:
            options.tell(f"{at}: committed up to offset {part[-1].span.end}, part {i + 1} of {len(parts)}")
    return epoch


def _parts(changed: Sequence[Extent], part_bytes: int, size_of: Callable[[Extent], int]) -> list[list[Extent]]:
    """By what is left of each, so that an object is as large as a part may be."""
    parts: list[list[Extent]] = []
    room = 0
    for extent in changed:
        size = max(size_of(extent), 1)
        if not parts or size > room:
            parts.append([])
            room = part_bytes
        parts[-1].append(extent)
        room -= size
    return parts


def _size(directory: PartitionDir, span: Span) -> int:
    path = directory.path / numbered(span.start, LOG)
    return path.stat().st_size if path.exists() else 0


def _upload(
    lake: Lake, at: TopicPartition, part: Sequence[Extent], directory: PartitionDir, facts: Mapping[int, _Facts], now_ms: int
) -> tuple[list[Extent], dict[str, int]]:  # fmt: skip
    """Extents that changed, in one object; none if there are none."""
    if not part:
        return [], {}
    (object_id,) = lake.metastore.register(1, now_ms=now_ms)
    extents, payloads = [], Payloads()
    with writing_object(lake.store, object_id) as writer:
        for span in (extent.span for extent in part):
            known, content = facts.get(span.start, _Facts()), _content(directory, span)
            extents.append(
                writer.add(
                    at.topic, at.number, span, [content] if content else [], records=known.records,
                    max_timestamp_ms=known.max_timestamp_ms,
                    keys=keys_in(chunk_of(object_path(object_id), content), payloads),
                )
            )  # fmt: skip
    return extents, {object_id: writer.size}


def _content_changed(directory: PartitionDir, extent: Extent) -> bool:
    content = _content(directory, extent.span)
    return len(content) != extent.length or google_crc32c.value(content) != extent.checksum


def _content(directory: PartitionDir, span: Span) -> bytes:
    """What is left of an extent; a segment that lost everything may be gone."""
    path = directory.path / numbered(span.start, LOG)
    return path.read_bytes() if path.exists() else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    records: int = 0
    max_timestamp_ms: int = -1
    tombstones: bool = False


def _facts(segment: SegmentFile) -> _Facts:
    """Of a segment that was gone over: its tombstones are in batches with a delete horizon, but not in all of those."""
    records, newest, tombstones = 0, -1, False
    reader, payloads = ChunkReader(), Payloads()
    for table in walk_segment(segment.path, base=segment.base):
        records += int(table["count"].sum(dtype=np.int64))
        newest = max(newest, int(table["max_timestamp"].max()))
        stamped = table[((table["attributes"] & DELETE_HORIZON) != 0) & (table["count"] > 0)]
        tombstones = tombstones or any(_has_tombstone(segment, row, reader, payloads) for row in stamped)
    return _Facts(records=records, max_timestamp_ms=newest, tombstones=tombstones)


def _has_tombstone(segment: SegmentFile, row: Any, reader: ChunkReader, payloads: Payloads) -> bool:
    start, end = int(row["position"]), int(row["position"] + row["size"])
    with open(segment.path, "rb") as file:
        chunk = reader.read(file, segment.path, start, end, batches=1, previous=-1, with_crc=False)
    only = np.zeros(1, dtype=np.int64)
    return any(bool((spans[:, VALUE_SIZE] < 0).any()) for _, spans in decode(chunk, only, payloads))


def _claim(partition: Partition, plan: _Plan, facts: Mapping[int, _Facts], cleaned_at_ms: int) -> Claim:
    """What was indexed is clean now, and which of it still holds tombstones. Ranges that were due are done with.

    What is left in those all the same (its batches were stamped under a longer retention) is tracked anew."""
    claimed = plan.index
    holding = [extent.span for extent in plan.fetched if facts.get(extent.span.start, _Facts()).tombstones]
    left = overlap(overlap(holding, [claimed, *plan.due]), [*partition.cleaned, claimed])
    tracked = without([known.span for known in partition.tombstones], plan.due)
    return Claim(
        processed=Span(partition.start_offset, max(claimed.end, *(span.end for span in plan.due), 0)),
        cleaned=(claimed, *plan.due), tombstones=without(left, tracked), tombstones_removed=plan.due,
        cleaned_at_ms=cleaned_at_ms,
    )  # fmt: skip


def _summary(at: TopicPartition, before: Partition, plan: _Plan | None, *, epoch: int, commits: int) -> Compacted:
    rewritten = {extent.span: extent for extent in plan.extents} if plan else {}
    after = [rewritten.get(extent.span, extent) for extent in before.extents]
    return Compacted(
        at=at, committed=commits > 0, epoch=epoch, dirty=dirty_spans(before) if commits else (),
        indexed=plan.index if plan else None, commits=commits, extents=len(before.extents),
        extents_read=len(plan.fetched) if plan else 0, extents_rewritten=len(rewritten),
        records_before=sum(extent.records for extent in before.extents),
        records_after=sum(extent.records for extent in after),
        bytes_before=sum(extent.length for extent in before.extents), bytes_after=sum(extent.length for extent in after),
        bytes_read=plan.bytes_read if plan else 0,
        bytes_written=sum(extent.length + section_bytes(extent.keys) for extent in rewritten.values()),
    )  # fmt: skip
