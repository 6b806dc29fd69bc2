"""One compaction of one partition of the lake: fetch, compact by the shared pipeline, upload what changed, commit.

The pipeline sees a log directory like any other, a segment an extent, so the rules are those of `retention/`. Extents that
lose nothing keep their objects. The commit carries the epoch that the job began with: if another worker was faster, it is
refused, and the objects of this job are garbage that nobody has ever seen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from headstone.errors import UsageError
from headstone.lake.commits import Claim, Extent, Partition
from headstone.lake.lake import Lake
from headstone.lake.metastore import TopicPartition
from headstone.lake.objects import read_extent, writing_object
from headstone.lake.spans import Span, Spans, overlap, without
from headstone.log.columns import VALUE_SIZE, decode
from headstone.log.directory import LOG, PartitionDir, list_segments, numbered
from headstone.log.layout import DELETE_HORIZON
from headstone.log.reading import ChunkReader, Payloads, SegmentFile, walk_segment
from headstone.retention.policy import NO_LIMIT, Policy, kafka_rules
from headstone.retention.verdicts import BY_KEYLESS, REASONS
from headstone.spark.compaction import CompactionRequest, Engine, compact
from headstone.spark.report import PartitionReport

UNMERGED_SEGMENT_BYTES = 1
"""No two extents become one: each keeps its span, and those that lose nothing are recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What one compaction did. `committed` False: there was nothing to do."""

    at: TopicPartition
    committed: bool
    epoch: int
    dirty: Spans
    extents: int
    extents_rewritten: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    bytes_read: int
    bytes_written: int


def topic_policy(settings: Mapping[str, object], *, now_ms: int, tombstones_below: int = NO_LIMIT) -> Policy:
    """By the names of Kafka's topic configs. There is one copy, so time decides, and holds of readers."""
    policy = Policy(
        now_ms=now_ms,
        delete_retention_ms=int(str(settings.get("delete.retention.ms", 86_400_000))),
        min_compaction_lag_ms=int(str(settings.get("min.compaction.lag.ms", 0))),
        segment_bytes=UNMERGED_SEGMENT_BYTES,
    )
    return replace(kafka_rules(policy), tombstones_below=tombstones_below)


def dirty_spans(partition: Partition) -> Spans:
    log = [Span(partition.start_offset, partition.next_offset)]
    return without(log, partition.cleaned) if partition.next_offset > partition.start_offset else ()


def compact_partition(
    lake: Lake, at: TopicPartition, engine: Engine, *, now_ms: int, tombstones_below: int = NO_LIMIT,
    before_commit: Callable[[], None] = lambda: None,
) -> Compacted:  # fmt: skip
    """Raises CommitRefused if another worker was faster. `before_commit` is called when only the commit is left to do."""
    partition = lake.metastore.partition(at)
    policy = topic_policy(lake.metastore.topics()[at.topic], now_ms=now_ms, tombstones_below=tombstones_below)
    dirty, due = dirty_spans(partition), _due(partition, policy)
    if not dirty and not due:
        return _summary(at, partition, partition.extents, (), 0, committed=False)
    with tempfile.TemporaryDirectory(prefix="headstone-lake-") as work:
        directory = PartitionDir(path=Path(work) / str(at), topic=at.topic, partition=at.number)
        read = _fetch(lake, partition, directory)
        # Due tombstones alone: nothing is dirty, so the pass has to be told to go over the clean part again.
        first = dirty[0].start if dirty else partition.start_offset
        request = CompactionRequest(
            paths=(str(directory.path),), out=None, policy=policy, dirty_from=first, progress=False
        )
        report = compact(request, engine, lambda text: None).partitions[0]
        _refuse_keyless(at, report)
        facts = {segment.base: _facts(segment) for segment in list_segments(directory)}
        extents, sizes = _upload(lake, at, partition, directory, facts, now_ms)
        claim = (
            _claim(partition, facts, report.dirty_end, due, now_ms)
            if report.dirty_end > partition.start_offset
            else None
        )
    before_commit()
    lake.metastore.replace(at, partition.compaction_epoch, extents, claim, sizes, now_ms=now_ms)
    after = {extent.span: extent for extent in partition.extents} | {extent.span: extent for extent in extents}
    written = sum(extent.length for extent in extents)
    return replace(
        _summary(at, partition, tuple(after.values()), dirty, read, committed=True),
        extents_rewritten=len(extents), bytes_written=written,
    )  # fmt: skip


def _due(partition: Partition, policy: Policy) -> Spans:
    """Where tombstones are that have had their time."""
    last = policy.now_ms - policy.delete_retention_ms
    return tuple(known.span for known in partition.tombstones if known.cleaned_at_ms <= last)


def _refuse_keyless(at: TopicPartition, report: PartitionReport) -> None:
    """Compaction drops records without a key. A compacted topic has none: whoever has some did not mean to lose them."""
    lost = report.reasons.get(REASONS[BY_KEYLESS], 0)
    if lost:
        raise UsageError(
            f"{at}: {lost} records have no key and would be lost, so this is not a compacted topic; nothing was changed"
        )


def _fetch(lake: Lake, partition: Partition, directory: PartitionDir) -> int:
    """A log directory of the extents, and an empty active segment behind them: a pass never touches the active one."""
    directory.path.mkdir(parents=True)
    read = 0
    for extent in partition.extents:
        content = read_extent(lake.store, extent)
        (directory.path / numbered(extent.span.start, LOG)).write_bytes(content)
        read += len(content)
    (directory.path / numbered(partition.next_offset, LOG)).touch()
    return read


def _upload(
    lake: Lake,
    at: TopicPartition,
    partition: Partition,
    directory: PartitionDir,
    facts: Mapping[int, _Facts],
    now_ms: int,
) -> tuple[list[Extent], dict[str, int]]:
    """The extents that changed, in one object; none if nothing did."""
    changed = [extent.span for extent in partition.extents if _content_changed(directory, extent)]
    if not changed:
        return [], {}
    (object_id,) = lake.metastore.register(1, now_ms=now_ms)
    extents = []
    with writing_object(lake.store, object_id) as writer:
        for span in changed:
            known = facts.get(span.start, _Facts())
            content = _content(directory, span)
            extents.append(
                writer.add(
                    at.topic, at.number, span, [content] if content else [], records=known.records,
                    max_timestamp_ms=known.max_timestamp_ms,
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


def _claim(partition: Partition, facts: Mapping[int, _Facts], cleaned_to: int, due: Spans, now_ms: int) -> Claim:
    """Everything from the log start up to where the pass got is clean, and which extents still hold tombstones.

    Ranges that were due are done with: what is left in them all the same, held by a reader, waits for another time."""
    processed = Span(partition.start_offset, cleaned_to)
    holding = {base for base, known in facts.items() if known.tombstones}
    left = overlap([extent.span for extent in partition.extents if extent.span.start in holding], [processed])
    known = [known.span for known in partition.tombstones]
    done = overlap(due, [processed])
    return Claim(
        processed=processed, cleaned=(processed,), tombstones=without(left, without(known, done)), tombstones_removed=done,
        cleaned_at_ms=now_ms,
    )  # fmt: skip


def _summary(
    at: TopicPartition, before: Partition, after: tuple[Extent, ...], dirty: Spans, read: int, *, committed: bool
) -> Compacted:
    return Compacted(
        at=at, committed=committed, epoch=before.compaction_epoch + committed, dirty=dirty, extents=len(before.extents),
        extents_rewritten=0, records_before=sum(extent.records for extent in before.extents),
        records_after=sum(extent.records for extent in after), bytes_before=sum(extent.length for extent in before.extents),
        bytes_after=sum(extent.length for extent in after), bytes_read=read, bytes_written=0,
    )  # fmt: skip
