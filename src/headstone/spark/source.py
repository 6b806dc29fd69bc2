"""`spark.read.format("kafka-log").load(PATH)`: every record of a log directory or backup, with where it lies.

One row per record, control records included. Reads runs of segments as Arrow batches. The options `partitions` ("0,3") and
`offsets` ("1000:2000", half-open) choose segments and batches before anything is decompressed.

A query's own filters choose nothing here. Spark 4 (read in its sources, seen in 4.3) plans a Python source once for a
DataFrame and keeps that plan for all its queries: with filters pushed down, a second query, or the other side of a
join, would silently get the rows of the first. Spark applies them to what is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headstone.errors import UsageError
from headstone.log.columns import (
    BATCH_INDEX,
    HEADER_TYPE,
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
from headstone.log.directory import find_partitions
from headstone.log.layout import LOG_APPEND_TIME, TRANSACTIONAL
from headstone.log.reading import Bytes, Ints, Payloads
from headstone.pipeline.planning import survey_all
from headstone.retention.passes import Piece, PieceReader
from headstone.retention.policy import NO_LIMIT
from headstone.retention.survey import SegmentSurvey
from headstone.spark.source_options import offset_range, partition_numbers, refuse_unknown, require_partitions

NAME = "kafka-log"
OPTIONS = ("offsets", "partitions", "path", "paths")
SCHEMA = (
    "topic string, partition int, offset long, timestamp timestamp, timestamp_ms long, timestamp_type string, "
    "key binary, value binary, headers array<struct<key: string, value: binary>>, producer_id long, producer_epoch int, "
    "sequence int, transactional boolean, control_type string, visibility string, segment string, batch_position long"
)
ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ms", pa.int64()),
        ("timestamp_type", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADER_TYPE),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("sequence", pa.int32()),
        ("transactional", pa.bool_()),
        ("control_type", pa.string()),
        ("visibility", pa.string()),
        ("segment", pa.string()),
        ("batch_position", pa.int64()),
    ]
)
SPLIT_BYTES = 64 << 20
TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The last millisecond of year 9999: later ones have a null `timestamp`, and their number in `timestamp_ms`."""

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options leave: [offset_start, offset_end), and partitions (None: all)."""

    offset_start: int = 0
    offset_end: int = NO_LIMIT
    partitions: tuple[int, ...] | None = None


@dataclass
class SegmentPart(InputPartition):
    topic: str
    partition: int
    segment: SegmentSurvey
    wanted: Wanted


class KafkaLogSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        refuse_unknown(self.options, OPTIONS)
        return KafkaLogReader(paths_in(self.options), wanted_by(self.options))


class KafkaLogReader(DataSourceReader):
    def __init__(self, paths: Sequence[str], wanted: Wanted) -> None:
        self._paths = paths
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        directories = find_partitions(self._paths)
        if self._wanted.partitions is not None:
            require_partitions(self._wanted.partitions, {directory.partition for directory in directories})
            directories = [d for d in directories if d.partition in self._wanted.partitions]
        parts: list[InputPartition] = []
        for directory, (survey, _) in zip(directories, survey_all(directories), strict=True):
            for segment in survey.segments:
                parts += [
                    SegmentPart(topic=directory.topic, partition=directory.partition, segment=run, wanted=self._wanted)
                    for run in runs(segment, self._wanted)
                ]
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SegmentPart):  # what Spark makes of an empty list of partitions
            return
        payloads = Payloads()
        for piece in PieceReader().pieces(partition.segment, backwards=False):
            batches = piece.chunk.batches
            mine = (batches["last_offset"] >= partition.wanted.offset_start) & (
                batches["base_offset"] < partition.wanted.offset_end
            )
            chosen = np.flatnonzero(mine & (batches["count"] > 0))
            if chosen.size:
                for data, spans in decode(piece.chunk, chosen, payloads):
                    yield within(record_batch(partition, piece, data, spans), partition.wanted)


def within(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    offsets = batch.column("offset").to_numpy()
    mine = (offsets >= wanted.offset_start) & (offsets < wanted.offset_end)
    return batch if mine.all() else batch.filter(pa.array(mine))


def paths_in(options: Mapping[str, str]) -> list[str]:
    """Spark hands several paths over as one option, a JSON list."""
    paths = [options["path"]] if options.get("path") else json.loads(options.get("paths") or "[]")
    if not paths:
        raise UsageError('name a log directory or a partition directory: .load("PATH")')
    return [str(path) for path in paths]


def wanted_by(options: Mapping[str, str]) -> Wanted:
    wanted = Wanted()
    if "partitions" in options:
        wanted = replace(wanted, partitions=partition_numbers(options["partitions"]))
    if "offsets" in options:
        start, end = offset_range(options["offsets"])
        wanted = replace(wanted, offset_start=start, offset_end=end)
    return wanted


def runs(segment: SegmentSurvey, wanted: Wanted) -> Iterator[SegmentSurvey]:
    """The segment cut into reads of about SPLIT_BYTES; none if no wanted offset is in it."""
    if segment.batches == 0 or segment.next_offset <= wanted.offset_start or segment.base >= wanted.offset_end:
        return
    positions = segment.cuts["position"]
    start = 0
    while start < positions.size - 1:
        end = int(np.searchsorted(positions, positions[start] + SPLIT_BYTES, side="left"))
        end = min(max(end, start + 1), positions.size - 1)
        yield replace(segment, cuts=segment.cuts[start : end + 1])
        start = end


def record_batch(part: SegmentPart, piece: Piece, data: Bytes, spans: Ints) -> pa.RecordBatch:
    columns = np.ascontiguousarray(spans.T)
    of_batch = columns[BATCH_INDEX]
    batches = piece.chunk.batches[of_batch]
    stamps = columns[TIMESTAMP]
    sane = (stamps >= 0) & (stamps <= TIMESTAMP_MS_MAX)
    log_append = batches["attributes"] & LOG_APPEND_TIME != 0
    delta = (columns[OFFSET] - batches["base_offset"]).astype(np.int64)
    sequence = np.where(batches["base_sequence"] < 0, -1, (batches["base_sequence"] + delta) & 0x7FFFFFFF)
    kinds = batches["control_type"].astype(np.int64)
    controls = np.where(kinds < 0, NO_CONTROL, np.minimum(kinds, UNKNOWN_CONTROL))
    rows = spans.shape[0]
    arrays = [
        pa.repeat(pa.scalar(part.topic, pa.string()), rows),
        pa.repeat(pa.scalar(part.partition, pa.int32()), rows),
        pa.array(columns[OFFSET]),
        pa.array(np.where(sane, stamps, 0) * 1000, mask=~sane).cast(pa.timestamp("us", tz="UTC")),
        pa.array(stamps),
        TIMESTAMP_TYPES.take(pa.array(log_append.astype(np.int8))),
        binary_column(data, columns[KEY_AT], columns[KEY_SIZE]),
        binary_column(data, columns[VALUE_AT], columns[VALUE_SIZE]),
        header_column(data, spans),
        pa.array(batches["producer_id"]),
        pa.array(batches["producer_epoch"].astype(np.int32)),
        pa.array(sequence.astype(np.int32)),
        pa.array(batches["attributes"] & TRANSACTIONAL != 0),
        CONTROL_TYPES.take(pa.array(controls)),
        VISIBILITY.take(pa.array(piece.roles[of_batch])),
        pa.repeat(pa.scalar(part.segment.file.path.rsplit("/", 1)[-1], pa.string()), rows),
        pa.array(batches["position"] + piece.chunk.position),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)
