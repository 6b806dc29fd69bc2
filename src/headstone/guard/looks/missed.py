"""What absent replicas have missed, read from the leaders a little at a time: delete horizons, tombstones and markers.

`coordination/danger.py` assumes that cleaners stamp a batch after it was committed. An earlier stamp comes only from a client,
or from a delete.retention.ms that was in force between two looks, and only reading finds it. And if all that was missed is
plain values, the replica misses nothing that a cleaner removes. A look reads a bounded number of bytes, and the next one
continues there. What is not read yet is unknown, and what cannot be read counts as a deletion (docs/rfcs/0003-guard.md).
Remembers in memory only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from headstone.agent.deletions import deletions_in
from headstone.coordination.guard_values import DeletionsRead, PartitionSeen
from headstone.errors import CorruptLog
from headstone.log.layout import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
)
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition

HORIZONS_MAX = 64
"""Per partition: each pass of a cleaner may stamp with another one."""

Fetch = Callable[[Mapping[int, Mapping[TopicPartition, int]]], Iterable[tuple[TopicPartition, bytes]]]
"""From offsets by leader and partition: the batches from there on, fetched after the previous ones are processed. Partitions
that cannot be read are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """All batches from `start` to `end` were read. `horizons` (as in `PartitionSeen.horizons`) and `deletion`, the newest
    tombstone or marker, also cover what was read before `start` moved."""

    start: int
    end: int
    horizons: tuple[tuple[int, int], ...] = ()
    deletion: int | None = None

    @property
    def deletions(self) -> DeletionsRead:
        return DeletionsRead(start=self.start, end=self.end, newest=self.deletion)


def missed_in(data: bytes, read: ReadRange) -> ReadRange:
    """Adds the batches of an answer to what was read; the first may begin before `read.end`. A last batch that is cut off is
    fetched again. If it is the only one, because it is larger than an answer, its header must do."""
    position, end, horizons = 0, read.end, read.horizons
    while position + HEADER_BYTES <= len(data):
        (base,) = struct.unpack_from(">q", data, position)
        (length,) = struct.unpack_from(">i", data, position + LENGTH_AT)
        is_whole = position + LOG_OVERHEAD + length <= len(data)
        if length < HEADER_BYTES - LOG_OVERHEAD or (not is_whole and position):
            break
        (attributes,) = struct.unpack_from(">h", data, position + ATTRIBUTES_AT)
        (delta,) = struct.unpack_from(">i", data, position + LAST_OFFSET_DELTA_AT)
        if attributes & DELETE_HORIZON and base + delta >= read.start:
            (stamp_ms,) = struct.unpack_from(">q", data, position + BASE_TIMESTAMP_AT)
            horizons = with_horizon(horizons, base + delta, stamp_ms)
        end = max(end, base + delta + 1)
        position += LOG_OVERHEAD + length
    deletions = [read.deletion, newest_deletion(data[:position], end)]
    deletion = max((offset for offset in deletions if offset is not None), default=None)
    return ReadRange(start=read.start, end=end, horizons=horizons, deletion=deletion)


def with_horizon(horizons: tuple[tuple[int, int], ...], offset: int, stamp_ms: int) -> tuple[tuple[int, int], ...]:
    """Adds a horizon. One that has an equal or earlier horizon at a later offset is never the earliest, so it is dropped. If
    there are too many, the first two become one with the earlier stamp and the later offset: exact for a replica that lacks
    both or neither."""
    behind = [pair for pair in horizons if pair[0] > offset]
    if any(pair[1] <= stamp_ms for pair in behind):
        return horizons
    kept = [*(pair for pair in horizons if pair[0] <= offset and pair[1] < stamp_ms), (offset, stamp_ms), *behind]
    if len(kept) > HORIZONS_MAX:
        kept = [(kept[1][0], kept[0][1]), *kept[2:]]
    return tuple(kept)


def newest_deletion(batches: bytes, end: int) -> int | None:
    """The offset of the newest deletion in whole batches that end at `end`. Batches that cannot be read count as deletions."""
    try:
        deletions = deletions_in(chunk_of("a leader's answer", batches))
    except CorruptLog:
        return end - 1
    return int(deletions[-1, 0]) if len(deletions) else None


class Missed:
    """What was read so far, for as long as a replica is away."""

    def __init__(self) -> None:
        self._read: dict[TopicPartition, ReadRange] = {}
        self._ends: dict[tuple[TopicPartition, int], int] = {}
        """The last log end that each replica reported while it was in sync."""
        self._complete_ends: dict[str, Mapping[tuple[int, int], int]] = {}
        """By topic, then by partition and broker: the offset below which, by the guard's memory, the replica has every
        deletion."""

        self._topic_ids: dict[str, str] = {}

    def recognise(self, topic_ids: Mapping[str, str | None]) -> None:
        """Forgets what was read of a topic that was created again: it was another log."""
        for topic, topic_id in topic_ids.items():
            if topic_id is not None and self._topic_ids.setdefault(topic, topic_id) != topic_id:
                self._topic_ids[topic] = topic_id
                self._read = {partition: read for partition, read in self._read.items() if partition.topic != topic}
                self._ends = {replica: end for replica, end in self._ends.items() if replica[0].topic != topic}
                self._complete_ends.pop(topic, None)

    def expect(self, topic: str, ends: Mapping[tuple[int, int], int]) -> None:
        """For absent replicas (`absences.known_below`): reading begins at these offsets."""
        if ends:
            self._complete_ends[topic] = ends
        else:
            self._complete_ends.pop(topic, None)

    def learn(
        self, seen: Mapping[TopicPartition, PartitionSeen], fetch: Fetch, *, whole: bool = False
    ) -> dict[TopicPartition, ReadRange]:
        """`whole`: anything not in `seen` no longer exists. `fetch` does not raise."""
        wanted: dict[int, dict[TopicPartition, int]] = {}
        for partition, state in seen.items():
            start = self._start(partition, state)
            if start is None:
                self._read.pop(partition, None)
                continue
            read = self._read[partition] = _from(self._read.get(partition), start)
            if state.leader is not None and read.end < (state.committed_end or 0):
                wanted.setdefault(state.leader, {})[partition] = read.end
        for partition, data in fetch(wanted) if wanted else ():
            self._read[partition] = missed_in(data, self._read[partition])
        if whole:
            self._read = {partition: read for partition, read in self._read.items() if partition in seen}
            self._ends = {replica: end for replica, end in self._ends.items() if replica[0] in seen}
            topics = {partition.topic for partition in seen}
            self._complete_ends = {topic: known for topic, known in self._complete_ends.items() if topic in topics}
            self._topic_ids = {topic: topic_id for topic, topic_id in self._topic_ids.items() if topic in topics}
        return {partition: self._read[partition] for partition in seen if partition in self._read}

    def _start(self, partition: TopicPartition, state: PartitionSeen) -> int | None:
        """The first offset from which an absent replica may lack something that it had a claim to; None if no replica is away,
        or nothing is known of those that are.

        A new copy lacks everything, and so does a replica that lost its disk: both are read and compared once they are in sync.
        """
        starts = []
        for replica in state.replicas:
            place = partition, replica.broker
            if replica.broker in state.isr and replica.broker not in state.moving:
                if replica.log_end is not None:
                    self._ends[place] = replica.log_end
            else:
                complete_end = self._complete_ends.get(partition.topic, {}).get((partition.number, replica.broker))
                starts += [end for end in (complete_end, self._ends.get(place)) if end is not None]
        return min(starts, default=None)


def _from(read: ReadRange | None, start: int) -> ReadRange:
    """Continues, or starts again at `start` if that is before or beyond what was read. Keeps what was found."""
    if read is None:
        return ReadRange(start=start, end=start)
    return read if read.start <= start <= read.end else replace(read, start=start, end=start)
