"""The task of an ingest: shares of some partitions' logs become one object of the lake.

Owns how a log is cut into shares, and what consumers see of a share: committed records, transactions resolved, codecs as they
are. A task can reach the store and nothing else; the driver decides which objects there are and what becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headstone.errors import UsageError
from headstone.lake.format.extents import oldest
from headstone.lake.format.keyindex import keys_in
from headstone.lake.format.objects import ObjectWriter, Stored, write_once
from headstone.lake.format.spans import SPREAD_MAX, Span
from headstone.log.arrow_batches import oldest_stamp
from headstone.log.layout import NOT_CONTROL
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Meter
from headstone.retention.keys import HashKey
from headstone.retention.passes import Piece, PieceReader
from headstone.retention.rewrite import Rewriter
from headstone.retention.survey import PartitionSurvey, SegmentSurvey
from headstone.retention.transactions import COMMITTED, DATA
from headstone.retention.verdicts import COPY, COPY_AS_PLAIN, DROP
from headstone.storage.stores import Store

NO_LIMIT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShare:
    """What one task takes of a partition's log: [span.start, span.end), and only those chunks of its segments."""

    topic_partition: TopicPartition
    span: Span
    segments: tuple[SegmentSurvey, ...]

    @property
    def size(self) -> int:
        return sum(_size(segment) for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestWork:
    """The log for one object."""

    store: Store
    lake_id: str
    object_id: str
    hash_key: HashKey
    shares: tuple[LogShare, ...]
    extent_bytes: int


def shares_of(
    topic_partition: TopicPartition, survey: PartitionSurvey, start: int, share_bytes: int
) -> Iterator[LogShare]:
    """Shares that tile [start, LSO), of about equal sizes below `share_bytes` as far as chunks allow; none if it is empty.

    Chunks wholly below the log start are skipped, so the first share reaches beyond it."""
    end, wanted_from = survey.lso, max(start, survey.log_start)
    if end <= start:
        return
    chunks = [
        replace(segment, cuts=segment.cuts[i : i + 2])
        for segment in survey.segments
        for i in range(segment.cuts.size - 1)
        if segment.cuts[i]["offset"] < end and segment.cuts[i + 1]["offset"] > wanted_from
    ]
    total = sum(_size(chunk) for chunk in chunks)
    wanted = total / max(1, -(-total // share_bytes))
    taken: list[SegmentSurvey] = []
    size = 0
    for chunk in chunks[:-1]:
        taken.append(chunk)
        size += _size(chunk)
        border = int(chunk.cuts[-1]["offset"])
        if size >= wanted and start < border < end:
            yield LogShare(topic_partition=topic_partition, span=Span(start, border), segments=_joined(taken))
            taken, size, start = [], 0, border
    yield LogShare(
        topic_partition=topic_partition, span=Span(start, end), segments=_joined([*taken, *chunks[-1:]])
    )  # fmt: skip


def objects_of(
    shares: Mapping[TopicPartition, Sequence[LogShare]], object_bytes: int
) -> Iterator[tuple[LogShare, ...]]:
    """The shares for each object: one of a large partition, or many small partitions as a whole.

    An unreadable share fails its object; the caller then tries the others in it again, each alone."""
    together: list[LogShare] = []
    size = 0
    for topic_partition in sorted(shares):
        if len(shares[topic_partition]) > 1:
            yield from ((share,) for share in shares[topic_partition])
            continue
        for share in shares[topic_partition]:
            if together and size + share.size > object_bytes:
                yield tuple(together)
                together, size = [], 0
            together.append(share)
            size += share.size
    if together:
        yield tuple(together)


def _joined(chunks: Iterable[SegmentSurvey]) -> tuple[SegmentSurvey, ...]:
    """Neighbouring chunks of a segment as one."""
    joined: list[SegmentSurvey] = []
    for chunk in chunks:
        if joined and joined[-1].file == chunk.file:
            joined[-1] = replace(joined[-1], cuts=np.concatenate([joined[-1].cuts, chunk.cuts[-1:]]))
        else:
            joined.append(chunk)
    return tuple(joined)


def _size(segment: SegmentSurvey) -> int:
    return int(segment.cuts[-1]["position"] - segment.cuts[0]["position"])


def ingest_object(work: IngestWork, meter: Meter) -> Stored:
    """The body of the task."""

    def fill(writer: ObjectWriter) -> None:
        for share in work.shares:
            for part in _parts(share, work.extent_bytes, meter):
                _add(writer, part, work.hash_key)

    return write_once(work.store, work.object_id, work.lake_id, fill)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What consumers see of a piece of a log, and [first, end) of the batches that were looked at."""

    data: bytes
    records: int
    newest_ms: int
    oldest_ms: int
    """Of its batches, by the newest timestamp of each."""
    first: int
    end: int


@dataclass(slots=True, kw_only=True)
class _Part:
    """The batches for one extent, before it has an object."""

    topic_partition: TopicPartition
    span: Span
    chunks: list[bytes] = field(default_factory=list)
    records: int = 0
    max_timestamp_ms: int = -1
    oldest_timestamp_ms: int = -1
    first: int = -1
    """Where its records begin, after the gap with which the span may begin."""
    size: int = 0

    def take(self, taken: _Taken) -> None:
        self.first = self.first if self.chunks else taken.first
        self.chunks.append(taken.data)
        self.size += len(taken.data)
        self.records += taken.records
        self.max_timestamp_ms = max(self.max_timestamp_ms, taken.newest_ms)
        self.oldest_timestamp_ms = oldest([self.oldest_timestamp_ms, taken.oldest_ms])


def _add(writer: ObjectWriter, part: _Part, hash_key: HashKey) -> None:
    keys = keys_in((chunk_of(str(part.topic_partition), chunk) for chunk in part.chunks), hash_key)
    writer.add(
        part.topic_partition.topic, part.topic_partition.number, part.span, part.chunks, records=part.records,
        max_timestamp_ms=part.max_timestamp_ms, oldest_timestamp_ms=part.oldest_timestamp_ms, keys=keys,
    )  # fmt: skip


def _parts(share: LogShare, extent_bytes: int, meter: Meter) -> Iterator[_Part]:
    """Extents that tile the share's span; the last one reaches its end, wherever its last record is."""
    topic_partition, (looked_at, end) = share.topic_partition, share.span
    rewriter, reader = Rewriter(now_ms=0, plain_below=NO_LIMIT), PieceReader(may_grow=True)
    part = _Part(topic_partition=topic_partition, span=share.span)
    for segment in share.segments:
        for piece in reader.pieces(segment, backwards=False):
            taken = _taken(share, piece, rewriter)
            meter.add(int(piece.chunk.batches["size"].sum(dtype=np.int64)), taken.records)
            if part.chunks and taken.records and taken.end - part.first > SPREAD_MAX:
                yield replace(part, span=Span(part.span.start, looked_at))
                part = _Part(topic_partition=topic_partition, span=Span(looked_at, end))
            if taken.records:
                part.take(taken)
            looked_at = max(looked_at, taken.end)
            if part.size >= extent_bytes and looked_at > part.span.start:
                yield replace(part, span=Span(part.span.start, looked_at))
                part = _Part(topic_partition=topic_partition, span=Span(looked_at, end))
    if part.span.start < end:
        yield part


def _taken(share: LogShare, piece: Piece, rewriter: Rewriter) -> _Taken:
    """What consumers may read of the share's span."""
    start, end = share.span
    batches, roles = piece.chunk.batches, piece.roles
    inside = (batches["last_offset"] >= start) & (batches["last_offset"] < end)
    cut = inside & (batches["base_offset"] < start)
    if cut.any():
        row = batches[int(np.argmax(cut))]
        raise UsageError(
            f"{share.topic_partition}: the lake ends at {start}, inside the batch [{row['base_offset']}, {row['last_offset']}] "
            f"of {piece.chunk.path}: this log is not the one that the lake was filled from"
        )
    data = inside & (batches["count"] > 0) & (batches["control_type"] == NOT_CONTROL)
    actions = np.full(batches.size, DROP, dtype=np.uint8)
    actions[data & (roles == DATA)] = COPY
    actions[data & (roles == COMMITTED)] = COPY_AS_PLAIN
    horizons = np.full(batches.size, -1, dtype=np.int64)
    states = np.zeros(piece.records, dtype=np.uint8)
    written = rewriter.rewrite(piece.chunk, actions, roles, horizons, states, piece.ordinals)
    return _Taken(
        data=bytes(written.data), records=written.records, newest_ms=int(written.stamps.max(initial=-1)),
        oldest_ms=oldest_stamp(written.stamps),
        first=int(batches["base_offset"][inside][0]) if inside.any() else start,
        end=int(batches["last_offset"][inside].max()) + 1 if inside.any() else start,
    )  # fmt: skip
