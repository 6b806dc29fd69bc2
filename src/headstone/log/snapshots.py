"""Producer snapshots: `<offset>.snapshot` holds the producer state of everything below that offset.

Owns the layout and the checksum. `retention/producers.py` knows what the state means.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headstone import units
from headstone.errors import CorruptLog
from headstone.log.intrinsics import crc32c
from headstone.storage.places import Place

HEAD = np.dtype([("version", ">i2"), ("crc", ">u4"), ("count", ">i4")])
ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("txn_first_offset", ">i8"),
    ]
)
assert (HEAD.itemsize, ENTRY.itemsize) == (10, 46)
VERSION = 1
CRC_FROM = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerEntry:
    """One producer; `last_offset` is -1 if no batch is cached, `txn_first_offset` is -1 if no transaction is open."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def snapshot_bytes(entries: list[ProducerEntry]) -> bytes:
    rows = [tuple(getattr(entry, name) for name in ENTRY.names or ()) for entry in entries]
    body = np.array(len(entries), dtype=">i4").tobytes() + np.array(rows, dtype=ENTRY).tobytes()
    view = np.frombuffer(body, dtype=np.uint8)
    head = np.zeros(1, dtype=HEAD)
    head["version"], head["crc"] = VERSION, crc32c(view, 0, view.size)
    return head.tobytes()[:CRC_FROM] + body


def read_snapshot(path: Place) -> list[ProducerEntry]:
    content = path.read_bytes()
    view = np.frombuffer(content, dtype=np.uint8)
    if len(content) < HEAD.itemsize:
        raise _corrupt(path, "too short for a producer snapshot")
    head = np.frombuffer(content[: HEAD.itemsize], dtype=HEAD)[0]
    if head["version"] != VERSION:
        raise _corrupt(path, f"unknown producer snapshot version {head['version']}")
    if crc32c(view, CRC_FROM, view.size) != head["crc"]:
        raise _corrupt(path, "wrong CRC-32C in a producer snapshot")
    if len(content) != HEAD.itemsize + int(head["count"]) * ENTRY.itemsize:
        raise _corrupt(
            path, f"says {units.count(int(head['count']), 'producer')} but has {units.count(len(content), 'byte')}"
        )
    rows = np.frombuffer(content[HEAD.itemsize :], dtype=ENTRY)
    return [ProducerEntry(**{name: int(row[name]) for name in ENTRY.names or ()}) for row in rows]


def write_snapshot(path: Path, entries: list[ProducerEntry]) -> None:
    with open(path, "wb") as file:
        file.write(snapshot_bytes(entries))
        file.flush()
        os.fsync(file.fileno())


def _corrupt(path: Place, problem: str) -> CorruptLog:
    return CorruptLog(
        file=str(path), position=0, offset=-1, problem=problem, advice="an older snapshot will be used instead"
    )
