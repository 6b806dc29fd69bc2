"""From log directories and backups into the lake: committed records up to the last stable offset, transactions resolved.

What is in the lake already is not read again: next_offset says where to go on, and a commit that comes second is refused, so
running it twice, or killing it anywhere, loses nothing and doubles nothing. Keeps offsets, timestamps, keys, headers, codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headstone.errors import UsageError
from headstone.lake.commits import Extent
from headstone.lake.keyindex import keys_in
from headstone.lake.lake import Lake
from headstone.lake.metastore import Append
from headstone.lake.objects import ObjectWriter, writing_object
from headstone.lake.rows import TopicPartition
from headstone.lake.spans import Span
from headstone.log.directory import METADATA_TOPIC, PartitionDir
from headstone.log.layout import NOT_CONTROL
from headstone.log.reading import chunk_of
from headstone.retention.keys import HashKey
from headstone.retention.passes import Piece, PieceReader
from headstone.retention.rewrite import Rewriter
from headstone.retention.survey import PartitionSurvey
from headstone.retention.transactions import COMMITTED, DATA
from headstone.retention.verdicts import COPY, COPY_AS_PLAIN, DROP
from headstone.spark.planning import survey_all

EXTENT_BYTES = 16 << 20
OBJECT_BYTES = 64 << 20
NO_LIMIT = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One partition: what was in the lake before, and what was added."""

    at: TopicPartition
    start: int
    end: int
    records: int
    bytes: int


@dataclass(slots=True, kw_only=True)
class _Part:
    """An extent's worth of batches, before it has an object."""

    at: TopicPartition
    span: Span
    chunks: list[bytes]
    records: int
    max_timestamp_ms: int

    @property
    def size(self) -> int:
        return sum(map(len, self.chunks))


def ingest(
    lake: Lake, directories: Sequence[PartitionDir], *, clock: Callable[[], int],
    tell: Callable[[str], None] = lambda text: None,
    extent_bytes: int = EXTENT_BYTES, object_bytes: int = OBJECT_BYTES,
) -> list[Ingested]:  # fmt: skip
    """All partitions found; topics that the lake does not have are created. One commit an object.

    The log start of the first log is the lake's. Later ones do not move it: a shorter log must not take away what is there."""
    wanted = [directory for directory in directories if directory.topic != METADATA_TOPIC]
    _create_topics(lake, wanted)
    surveys = {
        TopicPartition(directory.topic, directory.partition): survey
        for directory, (survey, _) in zip(wanted, survey_all(wanted), strict=True)
    }
    starts = {at: lake.metastore.partition(at).next_offset for at in surveys}
    for at, survey in surveys.items():
        _refuse_gap(at, starts[at], survey)
    added = {at: Ingested(at=at, start=starts[at], end=starts[at], records=0, bytes=0) for at in surveys}
    waiting: list[_Part] = []
    for at in sorted(surveys):
        for part in _parts(at, surveys[at], starts[at], extent_bytes):
            waiting.append(part)
            if sum(one.size for one in waiting) >= object_bytes:
                _upload(lake, waiting, added, clock)
                tell(f"{at}: up to offset {added[at].end}")
                waiting = []
    if waiting:
        _upload(lake, waiting, added, clock)
    for at, survey in surveys.items():
        if starts[at] == 0 < min(survey.log_start, added[at].end):
            lake.metastore.start_at(at, min(survey.log_start, added[at].end), now_ms=clock)
    return [added[at] for at in sorted(added)]


def _refuse_gap(at: TopicPartition, start: int, survey: PartitionSurvey) -> None:
    """A log whose beginning is gone, or a part of a backup: what it lacks may be the deletion of what the lake holds."""
    if 0 < start < survey.log_start:
        raise UsageError(
            f"{at}: the lake ends at {start}, this log begins at {survey.log_start}: what lies between is missing; "
            "ingest a log or backup that has it, or make a new lake"
        )


def _create_topics(lake: Lake, directories: Sequence[PartitionDir]) -> None:
    counts: dict[str, int] = {}
    for directory in directories:
        counts[directory.topic] = max(counts.get(directory.topic, 0), directory.partition + 1)
    known = lake.metastore.topics()
    for topic, count in sorted(counts.items()):
        if topic not in known:
            lake.metastore.create_topic(topic, count)


def _upload(
    lake: Lake, parts: Sequence[_Part], added: dict[TopicPartition, Ingested], clock: Callable[[], int]
) -> None:
    (object_id,) = lake.metastore.register(1, now_ms=clock())
    appends: dict[TopicPartition, list[Extent]] = {}
    with writing_object(lake.store, object_id) as writer:
        for part in parts:
            appends.setdefault(part.at, []).append(_add(writer, part, lake.metastore.hash_key))
    commits = {
        at: Append(expected_next=added[at].end, extents=tuple(extents)) for at, extents in appends.items()
    }  # fmt: skip
    lake.metastore.append(commits, {object_id: writer.size}, now_ms=clock)
    for at, extents in appends.items():
        before = added[at]
        added[at] = Ingested(
            at=at, start=before.start, end=extents[-1].span.end,
            records=before.records + sum(extent.records for extent in extents),
            bytes=before.bytes + sum(extent.length for extent in extents),
        )  # fmt: skip


def _add(writer: ObjectWriter, part: _Part, hash_key: HashKey) -> Extent:
    keys = keys_in((chunk_of(str(part.at), chunk) for chunk in part.chunks), hash_key)
    return writer.add(
        part.at.topic, part.at.number, part.span, part.chunks, records=part.records,
        max_timestamp_ms=part.max_timestamp_ms, keys=keys,
    )  # fmt: skip


def _parts(at: TopicPartition, survey: PartitionSurvey, start: int, extent_bytes: int) -> Iterator[_Part]:
    """Extents that tile [start, LSO); the last one reaches up to the LSO, whatever its last record is."""
    end = survey.lso
    if end <= start:
        return
    rewriter, reader = Rewriter(now_ms=0, plain_below=NO_LIMIT), PieceReader()
    chunks: list[bytes] = []
    records, stamp, base = 0, -1, start
    for segment in survey.segments:
        if segment.next_offset <= start or segment.base >= end:
            continue
        for piece in reader.pieces(segment, backwards=False, with_crc=True):
            data, count, newest, last = _taken(at, piece, start, end, rewriter)
            if count:
                chunks.append(data)
                records, stamp = records + count, max(stamp, newest)
            if sum(map(len, chunks)) >= extent_bytes and last + 1 > base:
                yield _Part(at=at, span=Span(base, last + 1), chunks=chunks, records=records, max_timestamp_ms=stamp)
                chunks, records, stamp, base = [], 0, -1, last + 1
    if base < end:
        yield _Part(at=at, span=Span(base, end), chunks=chunks, records=records, max_timestamp_ms=stamp)


def _taken(at: TopicPartition, piece: Piece, start: int, end: int, rewriter: Rewriter) -> tuple[bytes, int, int, int]:
    """(bytes, records, newest timestamp, last offset looked at) of what consumers may read in [start, end)."""
    batches, roles = piece.chunk.batches, piece.roles
    inside = (batches["last_offset"] >= start) & (batches["last_offset"] < end)
    cut = inside & (batches["base_offset"] < start)
    if cut.any():
        row = batches[int(np.argmax(cut))]
        raise UsageError(
            f"{at}: the lake ends at {start}, inside the batch [{row['base_offset']}, {row['last_offset']}] of "
            f"{piece.chunk.path}: this log and what the lake was filled from are not the same"
        )
    data = inside & (batches["count"] > 0) & (batches["control_type"] == NOT_CONTROL)
    actions = np.full(batches.size, DROP, dtype=np.uint8)
    actions[data & (roles == DATA)] = COPY
    actions[data & (roles == COMMITTED)] = COPY_AS_PLAIN
    horizons = np.full(batches.size, -1, dtype=np.int64)
    states = np.zeros(piece.records, dtype=np.uint8)
    written = rewriter.rewrite(piece.chunk, actions, roles, horizons, states, piece.ordinals)
    newest = int(written.stamps.max()) if written.stamps.size else -1
    last = int(batches["last_offset"][inside].max()) if inside.any() else start - 1
    return bytes(written.data), written.records, newest, last
