"""From log directories and backups into the lake: committed records up to the last stable offset, transactions resolved.

What is in the lake already is not read again: next_offset says where to go on, and a commit that comes second is refused, so
running it twice, or killing it anywhere, loses nothing and doubles nothing. Keeps offsets, timestamps, keys, headers, codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headstone.errors import UsageError
from headstone.lake.commits import Extent, oldest
from headstone.lake.keyindex import keys_in
from headstone.lake.lake import Lake
from headstone.lake.metastore import Append
from headstone.lake.objects import ObjectWriter, writing_object
from headstone.lake.segments import oldest_stamp
from headstone.lake.spans import SPREAD_MAX, Span
from headstone.lake.topics import adopt, in_directories
from headstone.log.directory import METADATA_TOPIC, PartitionDir
from headstone.log.layout import NOT_CONTROL
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.planning import survey_all
from headstone.retention.keys import HashKey
from headstone.retention.passes import Piece, PieceReader
from headstone.retention.rewrite import Rewriter
from headstone.retention.survey import PartitionSurvey
from headstone.retention.transactions import COMMITTED, DATA
from headstone.retention.verdicts import COPY, COPY_AS_PLAIN, DROP

EXTENT_BYTES = 16 << 20
OBJECT_BYTES = 64 << 20
NO_LIMIT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One partition: what was in the lake before, and what was added."""

    partition: TopicPartition
    start: int
    end: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What a piece of a log has for consumers, and [first, end) of the batches that were looked at."""

    data: bytes
    records: int
    newest_ms: int
    oldest_ms: int
    """Of its batches, by the newest timestamp of each."""
    first: int
    end: int


@dataclass(slots=True, kw_only=True)
class _Part:
    """An extent's worth of batches, before it has an object."""

    topic_partition: TopicPartition
    span: Span
    chunks: list[bytes] = field(default_factory=list)
    records: int = 0
    max_timestamp_ms: int = -1
    oldest_timestamp_ms: int = -1
    first: int = -1
    """Where its records begin, behind the gap that the span may begin with."""
    size: int = 0

    def take(self, taken: _Taken) -> None:
        self.first = self.first if self.chunks else taken.first
        self.chunks.append(taken.data)
        self.size += len(taken.data)
        self.records += taken.records
        self.max_timestamp_ms = max(self.max_timestamp_ms, taken.newest_ms)
        self.oldest_timestamp_ms = oldest([self.oldest_timestamp_ms, taken.oldest_ms])


def ingest(
    lake: Lake, directories: Sequence[PartitionDir], *, clock: Callable[[], int],
    tell: Callable[[str], None] = lambda text: None, policy: str | None = None,
    extent_bytes: int = EXTENT_BYTES, object_bytes: int = OBJECT_BYTES,
) -> list[Ingested]:  # fmt: skip
    """All partitions found; topics that the lake does not have are created. One commit an object.

    `policy` is these topics' cleanup.policy; None: what their log directories tell of it. The log start of the first log is the
    lake's. Later ones do not move it: a shorter log must not take away what is there."""
    wanted = [directory for directory in directories if directory.topic != METADATA_TOPIC]
    for topic, facts in in_directories(wanted).items():
        adopt(lake, topic, facts, policy=policy, tell=tell)
    surveys = {
        TopicPartition(directory.topic, directory.partition): survey
        for directory, (survey, _) in zip(wanted, survey_all(wanted), strict=True)
    }
    starts = {topic_partition: lake.metastore.partition(topic_partition).next_offset for topic_partition in surveys}
    for topic_partition, survey in surveys.items():
        _refuse_gap(topic_partition, starts[topic_partition], survey)
    added = {
        topic_partition: Ingested(
            partition=topic_partition, start=starts[topic_partition], end=starts[topic_partition], records=0, bytes=0
        )
        for topic_partition in surveys
    }
    waiting: list[_Part] = []
    for topic_partition in sorted(surveys):
        for part in _parts(topic_partition, surveys[topic_partition], starts[topic_partition], extent_bytes):
            waiting.append(part)
            if sum(one.size for one in waiting) >= object_bytes:
                _upload(lake, waiting, added, clock)
                tell(f"{topic_partition}: up to offset {added[topic_partition].end}")
                waiting = []
    if waiting:
        _upload(lake, waiting, added, clock)
    for topic_partition, survey in surveys.items():
        if starts[topic_partition] == 0 < min(survey.log_start, added[topic_partition].end):
            lake.metastore.start_at(topic_partition, min(survey.log_start, added[topic_partition].end), now_ms=clock)
    return [added[topic_partition] for topic_partition in sorted(added)]


def _refuse_gap(topic_partition: TopicPartition, start: int, survey: PartitionSurvey) -> None:
    """A log whose beginning is gone, or a part of a backup: what it lacks may be the deletion of what the lake holds."""
    if 0 < start < survey.log_start:
        raise UsageError(
            f"{topic_partition}: the lake ends at {start}, this log begins at {survey.log_start}: what lies between "
            "is missing; "
            "ingest a log or backup that has it, or make a new lake"
        )


def _upload(
    lake: Lake, parts: Sequence[_Part], added: dict[TopicPartition, Ingested], clock: Callable[[], int]
) -> None:
    (object_id,) = lake.metastore.register(1, now_ms=clock())
    appends: dict[TopicPartition, list[Extent]] = {}
    with writing_object(lake.store, object_id) as writer:
        for part in parts:
            appends.setdefault(part.topic_partition, []).append(_add(writer, part, lake.metastore.hash_key))
    commits = {
        topic_partition: Append(expected_next=added[topic_partition].end, extents=tuple(extents))
        for topic_partition, extents in appends.items()
    }  # fmt: skip
    lake.metastore.append(commits, {object_id: writer.size}, now_ms=clock)
    for topic_partition, extents in appends.items():
        before = added[topic_partition]
        added[topic_partition] = Ingested(
            partition=topic_partition, start=before.start, end=extents[-1].span.end,
            records=before.records + sum(extent.records for extent in extents),
            bytes=before.bytes + sum(extent.length for extent in extents),
        )  # fmt: skip


def _add(writer: ObjectWriter, part: _Part, hash_key: HashKey) -> Extent:
    keys = keys_in((chunk_of(str(part.topic_partition), chunk) for chunk in part.chunks), hash_key)
    return writer.add(
        part.topic_partition.topic, part.topic_partition.number, part.span, part.chunks, records=part.records,
        max_timestamp_ms=part.max_timestamp_ms, oldest_timestamp_ms=part.oldest_timestamp_ms, keys=keys,
    )  # fmt: skip


def _parts(topic_partition: TopicPartition, survey: PartitionSurvey, start: int, extent_bytes: int) -> Iterator[_Part]:
    """Extents that tile [start, LSO); the last one reaches up to the LSO, whatever its last record is."""
    end = survey.lso
    if end <= start:
        return
    rewriter, reader = Rewriter(now_ms=0, plain_below=NO_LIMIT), PieceReader()
    part, looked_at = _Part(topic_partition=topic_partition, span=Span(start, end)), start
    for segment in survey.segments:
        if segment.next_offset <= start or segment.base >= end:
            continue
        for piece in reader.pieces(segment, backwards=False):
            taken = _taken(topic_partition, piece, start, end, rewriter)
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


def _taken(topic_partition: TopicPartition, piece: Piece, start: int, end: int, rewriter: Rewriter) -> _Taken:
    """What consumers may read in [start, end)."""
    batches, roles = piece.chunk.batches, piece.roles
    inside = (batches["last_offset"] >= start) & (batches["last_offset"] < end)
    cut = inside & (batches["base_offset"] < start)
    if cut.any():
        row = batches[int(np.argmax(cut))]
        raise UsageError(
            f"{topic_partition}: the lake ends at {start}, inside the batch [{row['base_offset']}, {row['last_offset']}] of "
            f"{piece.chunk.path}: this log and what the lake was filled from are not the same"
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
