"""Rows of `kafka-log` from a run of chunks of one segment: by decoding records, or from batch headers alone.

Owns which columns a batch header can fill. A task gets a `LogPart` and needs nothing else. It reads exactly what was surveyed,
though a segment may have grown since. An `ObjectPart` is read without a survey. Knows neither Spark nor options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from headstone.log.columns import (
    BATCH_INDEX,
    KEY_AT,
    KEY_SIZE,
    OFFSET,
    TIMESTAMP,
    VALUE_AT,
    VALUE_SIZE,
    binary_column,
    decode,
    header_column,
)
from headstone.log.layout import LOG_APPEND_TIME, TRANSACTIONAL
from headstone.log.reading import Batches, Bytes, Chunk, Ints, Payloads, SegmentFile, chunks_of_object
from headstone.retention.passes import PieceReader
from headstone.retention.rewrite import changed
from headstone.retention.survey import SegmentSurvey, Walk, seals, walk_file
from headstone.retention.transactions import Roles
from headstone.spark.record_columns import arrow_schema, timestamps

SPLIT_BYTES = 64 << 20
"""Approximate bytes of log per task."""
HEADER_ROWS_MAX = 1 << 20
"""Rows made from headers at once: a megabyte of headers may stand for any number of records."""

VISIBILITY = pa.array(["committed", "committed", "aborted", "open", None, None], pa.string())
"""By role: `transactions.DATA` to CONTROL_IDLE."""
TIMESTAMP_TYPES = pa.array(["CreateTime", "LogAppendTime"], pa.string())
CONTROL_TYPES = pa.array(
    [
        "ABORT",
        "COMMIT",
        "LEADER_CHANGE",
        "SNAPSHOT_HEADER",
        "SNAPSHOT_FOOTER",
        "KRAFT_VERSION",
        "KRAFT_VOTERS",
        "UNKNOWN",
        None,
    ],
    pa.string(),
)
UNKNOWN_CONTROL, NO_CONTROL = 7, 8

Columns = Mapping[str, Callable[[], pa.Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The records of some chunks of a segment whose offsets are in [offset_start, offset_end)."""

    topic: str
    partition: int
    segment: SegmentSurvey
    offset_start: int
    offset_end: int

    @property
    def file(self) -> SegmentFile:
        return self.segment.file


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPart:
    """As `LogPart`, for a segment in an object store that was not surveyed: what is visible is unknown."""

    topic: str
    partition: int
    file: SegmentFile
    offset_start: int
    offset_end: int


def parts_of(
    topic: str, partition: int, segment: SegmentSurvey, start: int, end: int, split_bytes: int = SPLIT_BYTES
) -> Iterator[LogPart]:
    """The chunks that may hold offsets of [start, end), in reads of about split_bytes. Each gets its share of the range."""
    offsets, positions = segment.cuts["offset"], segment.cuts["position"]
    here = int(np.searchsorted(offsets[1:], start, side="right"))
    last = int(np.searchsorted(offsets[:-1], end, side="left"))
    while here < last:
        there = int(np.searchsorted(positions, positions[here] + split_bytes, side="left"))
        there = min(max(there, here + 1), last)
        yield LogPart(
            topic=topic, partition=partition, segment=replace(segment, cuts=segment.cuts[here : there + 1]),
            offset_start=max(start, int(offsets[here])), offset_end=min(end, int(offsets[there])),
        )  # fmt: skip
        here = there


def headers_tell(columns: Sequence[str]) -> bool:
    """If so, one task walks a whole segment: there is little to read."""
    return HEADER_COLUMNS.issuperset(columns)


def rows_of(part: LogPart, columns: Sequence[str], walk: Walk = walk_file) -> Iterator[pa.RecordBatch]:
    if headers_tell(columns) and _is_whole(part):
        yield from rows_of_headers(part, columns, walk)
    else:
        for batch, _ in rows_of_records(part, columns):
            yield batch


def rows_of_records(part: LogPart, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Each with the offset after the last record looked at, so that a reader knows where to continue."""
    payloads = Payloads()
    for piece in PieceReader(may_grow=True).pieces(part.segment, backwards=False):
        yield from _records_in(part, piece.chunk, piece.roles, columns, payloads)


def rows_of_object(part: ObjectPart, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """In one read, as long as there may be wanted offsets."""
    assert "visibility" not in columns, "other segments decide what is visible"
    payloads = Payloads()
    for chunk in chunks_of_object(part.file):
        batches = chunk.batches
        if int(batches[0]["base_offset"]) >= part.offset_end:
            return
        roles = np.zeros(batches.size, dtype=np.uint8)
        edges = int(batches[0]["base_offset"]), int(batches[-1]["last_offset"])
        if headers_tell(columns) and part.offset_start <= edges[0] and edges[1] < part.offset_end:
            yield from _headers_in(part, batches, roles, chunk.position, columns)
        else:
            for batch, _ in _records_in(part, chunk, roles, columns, payloads):
                yield batch


def rows_of_headers(part: LogPart, columns: Sequence[str], walk: Walk) -> Iterator[pa.RecordBatch]:
    """Still one row per record, but reads no record: a header says how many there are."""
    segment = part.segment
    roles, seal, done = segment.roles(), 0, 0
    for table in walk(segment.file, segment.base - 1):
        batches = table[: segment.batches - done]
        seal += int(seals(batches).sum(dtype=np.uint64))
        yield from _headers_in(part, batches, roles[done:], 0, columns)
        done += batches.size
        if done == segment.batches:
            break
    if done != segment.batches or seal % 2**64 != int(segment.cuts[-1]["seal"]):
        raise changed(segment.file.path, 0, segment.base)


def _records_in(
    part: LogPart | ObjectPart, chunk: Chunk, roles: Roles, columns: Sequence[str], payloads: Payloads
) -> Iterator[tuple[pa.RecordBatch, int]]:
    batches = chunk.batches
    inside = (batches["last_offset"] >= part.offset_start) & (batches["base_offset"] < part.offset_end)
    chosen = np.flatnonzero(inside & (batches["count"] > 0))
    if not chosen.size:
        return
    schema = arrow_schema(columns)
    for data, spans in decode(chunk, chosen, payloads):
        following = int(spans[-1, OFFSET]) + 1
        spans = spans[(spans[:, OFFSET] >= part.offset_start) & (spans[:, OFFSET] < part.offset_end)]
        of_batch = spans[:, BATCH_INDEX]
        makers = {
            **_of_headers(part, batches[of_batch], roles[of_batch], chunk.position),
            **_of_records(data, spans, batches[of_batch]),
        }
        yield pa.RecordBatch.from_arrays([makers[name]() for name in columns], schema=schema), following


def _headers_in(
    part: LogPart | ObjectPart, batches: Batches, roles: Roles, position: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(columns)
    for first, last in _slices(batches["count"]):
        of_batch = np.repeat(np.arange(first, last), batches["count"][first:last])
        makers = _of_headers(part, batches[of_batch], roles[of_batch], position)
        yield pa.RecordBatch.from_arrays([makers[name]() for name in columns], schema=schema)


def _slices(counts: Ints) -> Iterator[tuple[int, int]]:
    """Slices of batches, each with about HEADER_ROWS_MAX records, or of one batch."""
    ends = np.cumsum(counts, dtype=np.int64)
    first = 0
    while first < counts.size:
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + HEADER_ROWS_MAX, side="right")), first + 1)
        yield first, last
        first = last


def _is_whole(part: LogPart) -> bool:
    """The part is a whole segment: that is what a walk over headers gives."""
    segment = part.segment
    cuts = segment.cuts
    return (
        int(cuts[0]["batch"]) == 0
        and int(cuts[-1]["batch"]) == segment.batches
        and part.offset_start <= int(cuts[0]["offset"])
        and part.offset_end >= segment.next_offset
    )


def _of_headers(part: LogPart | ObjectPart, batches: Batches, roles: Roles, position: int) -> Columns:
    """For each record, what its batch's header says. `position`: where in the file the batches' positions begin to count."""
    rows = batches.size
    attributes, kinds = batches["attributes"], batches["control_type"].astype(np.int64)
    name = part.file.path.rsplit("/", 1)[-1]
    return {
        "topic": lambda: pa.repeat(pa.scalar(part.topic, pa.string()), rows),
        "partition": lambda: pa.repeat(pa.scalar(part.partition, pa.int32()), rows),
        "timestamp_type": lambda: TIMESTAMP_TYPES.take(pa.array((attributes & LOG_APPEND_TIME != 0).astype(np.int8))),
        "producer_id": lambda: pa.array(batches["producer_id"]),
        "producer_epoch": lambda: pa.array(batches["producer_epoch"].astype(np.int32)),
        "transactional": lambda: pa.array(attributes & TRANSACTIONAL != 0),
        "control_type": lambda: CONTROL_TYPES.take(
            pa.array(np.where(kinds < 0, NO_CONTROL, np.minimum(kinds, UNKNOWN_CONTROL)))
        ),
        "visibility": lambda: VISIBILITY.take(pa.array(roles)),
        "segment": lambda: pa.repeat(pa.scalar(name, pa.string()), rows),
        "batch_position": lambda: pa.array(batches["position"] + position),
    }


HEADER_COLUMNS = frozenset(
    (
        "topic", "partition", "timestamp_type", "producer_id", "producer_epoch", "transactional", "control_type",
        "visibility", "segment", "batch_position",
    )
)  # fmt: skip
"""The keys of `_of_headers`."""


def _of_records(data: Bytes, spans: Ints, batches: Batches) -> Columns:
    columns = np.ascontiguousarray(spans.T)
    first = batches["base_sequence"]
    delta = columns[OFFSET] - batches["base_offset"]
    return {
        "offset": lambda: pa.array(columns[OFFSET]),
        "timestamp": lambda: timestamps(columns[TIMESTAMP]),
        "timestamp_ms": lambda: pa.array(columns[TIMESTAMP]),
        "key": lambda: binary_column(data, columns[KEY_AT], columns[KEY_SIZE]),
        "value": lambda: binary_column(data, columns[VALUE_AT], columns[VALUE_SIZE]),
        "headers": lambda: header_column(data, spans),
        "sequence": lambda: pa.array(np.where(first < 0, -1, (first + delta) & 0x7FFFFFFF).astype(np.int32)),
    }
