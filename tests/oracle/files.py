"""Owns the files beside the log: indexes, snapshots, checkpoints, metadata, and a partition directory as a whole.

Knows layouts only. Pairs of functions, bytes or text in, values out, and back.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from tests.oracle.batches import BadLog, crc32c, parse_log, to_bytes
from tests.oracle.segments import AbortedTxn, Segment

INDEX_ENTRY = struct.Struct(">ii")
TIME_INDEX_ENTRY = struct.Struct(">qi")
TXN_INDEX_ENTRY = struct.Struct(">hqqqq")
SNAPSHOT_HEAD = struct.Struct(">hIi")
SNAPSHOT_ENTRY = struct.Struct(
    ">"
    "q"  # producer id
    "h"  # producer epoch
    "i"  # last sequence
    "q"  # last offset, -1 if no batch is cached
    "i"  # offset delta
    "q"  # timestamp
    "i"  # coordinator epoch
    "q"  # first offset of the open transaction, -1 if none
)
assert (TXN_INDEX_ENTRY.size, SNAPSHOT_ENTRY.size) == (34, 46)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEntry:
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def write_index(base: int, entries: tuple[tuple[int, int], ...]) -> bytes:
    return b"".join(INDEX_ENTRY.pack(offset - base, position) for offset, position in entries)


def read_index(base: int, data: bytes) -> tuple[tuple[int, int], ...]:
    """Leaves out the zero-filled rest of a pre-sized file; no entry points at position 0."""
    return tuple((base + delta, position) for delta, position in INDEX_ENTRY.iter_unpack(data) if position > 0)


def write_time_index(base: int, entries: tuple[tuple[int, int], ...]) -> bytes:
    return b"".join(TIME_INDEX_ENTRY.pack(timestamp, offset - base) for timestamp, offset in entries)


def read_time_index(base: int, data: bytes) -> tuple[tuple[int, int], ...]:
    """Leaves out the zero-filled rest of a pre-sized file; zeros are an entry only where they are the whole file."""
    entries = list(TIME_INDEX_ENTRY.iter_unpack(data))
    if len(entries) > 1:
        while entries and entries[-1] == (0, 0):
            entries.pop()
    return tuple((timestamp, base + delta) for timestamp, delta in entries)


def write_txn_index(entries: tuple[AbortedTxn, ...]) -> bytes:
    return b"".join(
        TXN_INDEX_ENTRY.pack(0, entry.producer_id, entry.first_offset, entry.last_offset, entry.lso)
        for entry in entries
    )


def read_txn_index(data: bytes) -> tuple[AbortedTxn, ...]:
    entries: list[AbortedTxn] = []
    for version, pid, first, last, lso in TXN_INDEX_ENTRY.iter_unpack(data):
        if version != 0 or (entries and last <= entries[-1].last_offset):
            raise BadLog(f"transaction index entry {len(entries)} is wrong")
        entries.append(AbortedTxn(producer_id=pid, first_offset=first, last_offset=last, lso=lso))
    return tuple(entries)


def write_snapshot(entries: list[SnapshotEntry]) -> bytes:
    body = struct.pack(">i", len(entries))
    for entry in entries:
        body += SNAPSHOT_ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
    return struct.pack(">hI", 1, crc32c(body)) + body


def read_snapshot(data: bytes) -> list[SnapshotEntry]:
    version, crc, count = SNAPSHOT_HEAD.unpack_from(data)
    if version != 1 or crc != crc32c(data[6:]) or len(data) != SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size:
        raise BadLog("producer snapshot is wrong")
    entries = []
    for pid, epoch, seq, last, delta, timestamp, coordinator, txn in SNAPSHOT_ENTRY.iter_unpack(data[10:]):
        entries.append(
            SnapshotEntry(
                producer_id=pid,
                producer_epoch=epoch,
                last_sequence=seq,
                last_offset=last,
                offset_delta=delta,
                timestamp=timestamp,
                coordinator_epoch=coordinator,
                txn_first_offset=txn,
            )
        )
    return entries


def write_lines(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in ["0", str(len(lines)), *lines])


def read_lines(text: str) -> list[list[str]]:
    """The entries of a checkpoint file, split at whitespace."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    if not rows:
        return []
    if rows[0] != ["0"] or rows[1] != [str(len(rows) - 2)]:
        raise BadLog("checkpoint file is wrong")
    return rows[2:]


def write_leader_epochs(epochs: list[tuple[int, int]]) -> str:
    return write_lines([f"{epoch} {start}" for epoch, start in epochs])


def read_leader_epochs(text: str) -> list[tuple[int, int]]:
    return [(int(epoch), int(start)) for epoch, start in read_lines(text)]


def write_checkpoint(offsets: dict[tuple[str, int], int]) -> str:
    return write_lines([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def read_checkpoint(text: str) -> dict[tuple[str, int], int]:
    found = {(topic, int(partition)): int(offset) for topic, partition, offset in read_lines(text)}
    if any(not -(2**63) <= offset < 2**63 for offset in found.values()):
        raise BadLog("a checkpoint offset is a Java long")
    return found


def write_partition_metadata(topic_id: str) -> str:
    return f"version: 0\ntopic_id: {topic_id}"


def segment_path(directory: Path, base: int, suffix: str) -> Path:
    return directory / f"{base:020d}.{suffix}"


def write_segment(directory: Path, segment: Segment) -> None:
    base = segment.base
    log = segment_path(directory, base, "log")
    log.write_bytes(b"".join(to_bytes(batch) for batch in segment.batches))
    segment_path(directory, base, "index").write_bytes(write_index(base, segment.index))
    segment_path(directory, base, "timeindex").write_bytes(write_time_index(base, segment.time_index))
    txn_index = segment_path(directory, base, "txnindex")
    txn_index.unlink(missing_ok=True)
    if segment.aborted:
        txn_index.write_bytes(write_txn_index(segment.aborted))
    os.utime(log, ns=(segment.mtime_ms * 10**6,) * 2)


def read_segment(directory: Path, base: int) -> Segment:
    log = segment_path(directory, base, "log")
    data = log.read_bytes()
    batches = parse_log(data)
    if sum(len(to_bytes(batch)) for batch in batches) != len(data):
        raise BadLog(f"{log} ends in a partial batch")
    txn_index = segment_path(directory, base, "txnindex")
    return Segment(
        base=base,
        batches=tuple(batches),
        mtime_ms=log.stat().st_mtime_ns // 10**6,
        index=read_index(base, segment_path(directory, base, "index").read_bytes()),
        time_index=read_time_index(base, segment_path(directory, base, "timeindex").read_bytes()),
        aborted=read_txn_index(txn_index.read_bytes()) if txn_index.exists() else (),
    )


def read_partition(directory: Path) -> list[Segment]:
    """Every segment of a partition directory in which no cleaning was interrupted, ascending."""
    bases = sorted(int(path.name.split(".")[0]) for path in directory.glob("*.log"))
    return [read_segment(directory, base) for base in bases]
