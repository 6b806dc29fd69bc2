"""Batches and records one by one, with every field on disk: for looking at a log when counts do not explain.

For people and for comparison with Kafka's own dump; Python objects, so not for volume. Checksums are verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstone import units
from headstone.log import codecs, layout
from headstone.log.columns import (
    BATCH_INDEX,
    KEY_AT,
    KEY_SIZE,
    OFFSET,
    TIMESTAMP,
    VALUE_AT,
    VALUE_SIZE,
    decode,
    header_column,
)
from headstone.log.reading import Batches, Bytes, Chunk, ChunkReader, Ints, Payloads, SegmentFile, walk_segment
from headstone.log.shown import shown_bytes
from headstone.storage.ranges import open_ranges

CONTROL_NAMES = {layout.ABORT: "ABORT", layout.COMMIT: "COMMIT", layout.EMPTIED: "EMPTIED"}
NO_LIMIT = (1 << 63) - 1
SEQUENCE_MASK = 0x7FFFFFFF
ONLY = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEntry:
    offset: int
    timestamp_ms: int
    sequence: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEntry:
    """One batch. `control` is None for data; EMPTIED is a marker that lost its record. `records` is None if not requested, and
    fewer than `count` if only some were."""

    file: str
    position: int
    size: int
    base_offset: int
    last_offset: int
    count: int
    leader_epoch: int
    crc: int
    codec: str
    timestamp_type: str
    base_timestamp_ms: int
    max_timestamp_ms: int
    delete_horizon_ms: int | None
    transactional: bool
    control: str | None
    coordinator_epoch: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    records: tuple[RecordEntry, ...] | None

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        if self.records is None:
            del fields["records"]
            return fields
        fields["records"] = [
            {
                **asdict(record),
                "key": shown_bytes(record.key),
                "value": shown_bytes(record.value),
                "headers": [{"key": name, "value": shown_bytes(value)} for name, value in record.headers],
            }
            for record in self.records
        ]
        return fields

    def as_lines(self) -> Iterator[str]:
        """One for the batch, and an indented one for each record."""
        kinds = ["transactional"] if self.transactional else []
        kinds += [self.control or "data"]
        kinds += ["header-only"] if self.count == 0 else []
        kinds += [f"horizon {_time(self.delete_horizon_ms)}"] if self.delete_horizon_ms is not None else []
        some = self.records is not None and len(self.records) < self.count
        listed = f" ({len(self.records or ())} of them in the range)" if some else ""
        yield (
            f"  [{self.base_offset}, {self.last_offset}] {units.count(self.count, 'record')}{listed}, {' '.join(kinds)}, "
            f"producer {self.producer_id} epoch {self.producer_epoch} "
            f"sequences [{self.base_sequence}, {self.last_sequence}], leader epoch {self.leader_epoch}, "
            f"{self.timestamp_type} {_time(self.max_timestamp_ms)}, {self.codec}, crc {self.crc}, {Path(self.file).name} "
            f"position {self.position}, {units.count(self.size, 'byte')}"
        )
        for record in self.records or ():
            headers = "".join(f", {name}={shown_bytes(value)!r}" for name, value in record.headers)
            what = "marker" if self.control else f"{shown_bytes(record.key)!r} = {shown_bytes(record.value)!r}"
            time = _time(record.timestamp_ms)
            yield f"    {record.offset}: {what}, time {time}, sequence {record.sequence}{headers}"


def _time(time_ms: int) -> str:
    """As in the log, and as a person reads it; a record may have none."""
    return f"{time_ms} ({units.moment(time_ms)})" if time_ms >= 0 else "none"


def list_batches(
    file: SegmentFile, *, with_records: bool, offset_start: int = 0, offset_end: int = NO_LIMIT
) -> Iterator[BatchEntry]:
    """Batches with an offset in [offset_start, offset_end), with only those of their records that lie in it."""
    reader, payloads = ChunkReader(), Payloads()
    with open_ranges(file.path, file.access, size=file.size) as ranges:
        for table in walk_segment(file.path, base=file.base, with_crc=True, access=file.access, size=file.size):
            wanted = (table["last_offset"] >= offset_start) & (table["base_offset"] < offset_end)
            for row in table[wanted]:
                start = int(row["position"])
                before = int(row["base_offset"]) - 1
                end = start + int(row["size"])
                chunk = reader.read(ranges, start, end, batches=1, previous=before, with_crc=False)
                records = None
                if with_records:
                    records = tuple(r for r in _records(chunk, payloads) if offset_start <= r.offset < offset_end)
                yield _batch(file.path, row, chunk, records)


def _batch(path: str, row: Any, chunk: Chunk, records: tuple[RecordEntry, ...] | None) -> BatchEntry:
    attributes = int(row["attributes"])
    kind = int(row["control_type"])
    is_control = kind != layout.NOT_CONTROL
    stamped = bool(attributes & layout.DELETE_HORIZON)
    crc = bytes(chunk.data[layout.CRC_AT : layout.CRC_AT + 4])
    delta = int(row["last_offset"]) - int(row["base_offset"])
    return BatchEntry(
        file=path,
        position=int(row["position"]),
        size=int(row["size"]),
        base_offset=int(row["base_offset"]),
        last_offset=int(row["last_offset"]),
        count=int(row["count"]),
        leader_epoch=int(row["leader_epoch"]),
        crc=int.from_bytes(crc, "big"),
        codec=codecs.NAMES[int(row["codec"])],
        timestamp_type="LogAppendTime" if attributes & layout.LOG_APPEND_TIME else "CreateTime",
        base_timestamp_ms=int(row["base_timestamp"]),
        max_timestamp_ms=int(row["max_timestamp"]),
        delete_horizon_ms=int(row["base_timestamp"]) if stamped else None,
        transactional=bool(attributes & layout.TRANSACTIONAL),
        control=CONTROL_NAMES.get(kind, f"type {kind}") if is_control else None,
        coordinator_epoch=int(row["coordinator_epoch"]) if kind in (layout.ABORT, layout.COMMIT) else None,
        producer_id=int(row["producer_id"]),
        producer_epoch=int(row["producer_epoch"]),
        base_sequence=int(row["base_sequence"]),
        last_sequence=_sequence(int(row["base_sequence"]), delta),
        records=records,
    )


def _sequence(first: int, delta: int) -> int:
    """0 follows 2147483647."""
    return -1 if first < 0 else (first + delta) & SEQUENCE_MASK


def _records(chunk: Chunk, payloads: Payloads) -> Iterator[RecordEntry]:
    if int(chunk.batches[0]["count"]) > 0:
        for data, spans in decode(chunk, ONLY, payloads):
            yield from record_entries(chunk.batches, data, spans)


def record_entries(batches: Batches, data: Bytes, spans: Ints) -> Iterator[RecordEntry]:
    """The decoded records of a run, as values."""
    for span, pairs in zip(spans, header_column(data, spans).to_pylist(), strict=True):
        batch = batches[int(span[BATCH_INDEX])]
        yield RecordEntry(
            offset=int(span[OFFSET]),
            timestamp_ms=int(span[TIMESTAMP]),
            sequence=_sequence(int(batch["base_sequence"]), int(span[OFFSET]) - int(batch["base_offset"])),
            key=_bytes(data, span, KEY_AT, KEY_SIZE),
            value=_bytes(data, span, VALUE_AT, VALUE_SIZE),
            headers=tuple((pair["key"], pair["value"]) for pair in pairs),
        )


def _bytes(data: Bytes, span: Ints, start_column: int, size_column: int) -> bytes | None:
    length = int(span[size_column])
    return None if length < 0 else bytes(data[int(span[start_column]) : int(span[start_column]) + length])
