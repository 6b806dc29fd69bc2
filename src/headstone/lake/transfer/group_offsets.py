"""What the lake's copy of `__consumer_offsets` says about a consumer group. Kafka's own records, read and never written.

A key is a version (0 and 1 are offsets), the group, the topic and the partition; a value is a version and the offset, and more
that is not needed here. A tombstone removes the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headstone.log.listing import RecordEntry

GROUPS = "__consumer_offsets"
OFFSET_KEYS = (0, 1)


def committed_in(entries: Iterable[RecordEntry], group: str, topic: str) -> dict[int, int]:
    """The offset that the group has committed for each partition of the topic; entries in the order of the log."""
    committed: dict[int, int] = {}
    for entry in entries:
        key = _offset_key(entry.key)
        if key is None or key[:2] != (group, topic):
            continue
        if entry.value is None:
            committed.pop(key[2], None)
        else:
            (committed[key[2]],) = struct.unpack_from(">q", entry.value, 2)
    return committed


def _offset_key(key: bytes | None) -> tuple[str, str, int] | None:
    """Group, topic and partition; None if the key is about something else."""
    if key is None or len(key) < 2 or int.from_bytes(key[:2], "big") not in OFFSET_KEYS:
        return None
    group, position = _text(key, 2)
    topic, position = _text(key, position)
    return group, topic, int.from_bytes(key[position : position + 4], "big")


def _text(data: bytes, position: int) -> tuple[str, int]:
    start = position + 2
    end = start + int.from_bytes(data[position:start], "big")
    return data[start:end].decode(), end
