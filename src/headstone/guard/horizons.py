"""Delete horizons in batches that replicas which are away lack, read from the leaders a little at a time.

Cleaners stamp what they clean after it was committed, which the sums of `coordination/danger.py` count on. Only a client's own
stamp, or a delete.retention.ms that was there between two looks, comes earlier, and only reading finds it. A look reads so
many bytes per leader and goes on from there at the next one; what is not read yet has no horizon that is known, which
docs/rfcs/0003-guard.md puts outside the promise. Remembers in memory only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headstone.coordination.guard_values import PartitionSeen
from headstone.log.layout import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
)
from headstone.log.topic_partition import TopicPartition

Fetch = Callable[[Mapping[int, Mapping[TopicPartition, int]]], Mapping[TopicPartition, bytes]]
"""By leader: batches of its replicas from these offsets on; what it does not give is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """All batches from `start` to `end` were read; the earliest horizon among them, or None."""

    start: int
    end: int
    horizon_ms: int | None = None


def horizons_in(data: bytes, read: Read) -> Read:
    """The batches of an answer, added to what was read; the last may be cut off, and the first may begin earlier."""
    position, end, horizon_ms = 0, read.end, read.horizon_ms
    while position + HEADER_BYTES <= len(data):
        (base,) = struct.unpack_from(">q", data, position)
        (length,) = struct.unpack_from(">i", data, position + LENGTH_AT)
        if length < HEADER_BYTES - LOG_OVERHEAD:
            break
        (attributes,) = struct.unpack_from(">h", data, position + ATTRIBUTES_AT)
        (delta,) = struct.unpack_from(">i", data, position + LAST_OFFSET_DELTA_AT)
        if attributes & DELETE_HORIZON and base + delta >= read.start:
            (stamp_ms,) = struct.unpack_from(">q", data, position + BASE_TIMESTAMP_AT)
            horizon_ms = stamp_ms if horizon_ms is None else min(horizon_ms, stamp_ms)
        end = max(end, base + delta + 1)
        position += LOG_OVERHEAD + length
    return Read(start=read.start, end=end, horizon_ms=horizon_ms)


class Horizons:
    """What was read so far, for as long as somebody is away."""

    def __init__(self) -> None:
        self._read: dict[TopicPartition, Read] = {}
        self._ends: dict[tuple[TopicPartition, int], int] = {}
        """The last log end that each replica told."""

    def learn(
        self, seen: Mapping[TopicPartition, PartitionSeen], fetch: Fetch, *, whole: bool = False
    ) -> dict[TopicPartition, int]:
        """The earliest horizon by partition. `whole`: what was not seen does not exist any more. `fetch` does not raise."""
        wanted: dict[int, dict[TopicPartition, int]] = {}
        for partition, state in seen.items():
            start = self._start(partition, state)
            if start is None:
                self._read.pop(partition, None)
                continue
            read = self._read.get(partition)
            if read is None or start < read.start:
                read = self._read[partition] = Read(start=start, end=start)
            if state.leader is not None and read.end < (state.committed_end or 0):
                wanted.setdefault(state.leader, {})[partition] = read.end
        for partition, data in fetch(wanted).items() if wanted else ():
            self._read[partition] = horizons_in(data, self._read[partition])
        if whole:
            self._read = {partition: read for partition, read in self._read.items() if partition in seen}
            self._ends = {replica: end for replica, end in self._ends.items() if replica[0] in seen}
        return {partition: read.horizon_ms for partition, read in self._read.items() if read.horizon_ms is not None}

    def _start(self, partition: TopicPartition, state: PartitionSeen) -> int | None:
        """From where on somebody lacks something; None: nobody is away, or nothing is known of who is."""
        starts = []
        for replica in state.replicas:
            if replica.log_end is not None:
                self._ends[partition, replica.broker] = replica.log_end
            end = self._ends.get((partition, replica.broker))
            if replica.broker not in state.isr and end is not None:
                starts.append(end)
        return min(starts, default=None)
