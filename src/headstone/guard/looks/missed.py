"""What replicas that are away have missed, read from the leaders a little at a time: delete horizons, tombstones and markers.

Cleaners stamp what they clean after it was committed, which the sums of `coordination/danger.py` count on. Only a client's own
stamp, or a delete.retention.ms that was there between two looks, comes earlier, and only reading finds it. And where all that
was missed is plain values, nothing that a cleaner removes is missed. A look reads so many bytes and goes on from
there at the next one; of what is not read yet nothing is known, and what cannot be read counts as a deletion
(docs/rfcs/0003-guard.md). Remembers in memory only.
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
"""Per partition: each pass of a cleaner stamps with one."""

Fetch = Callable[[Mapping[int, Mapping[TopicPartition, int]]], Iterable[tuple[TopicPartition, bytes]]]
"""By leader: batches of its replicas from these offsets on, each when the one before is worked off; what it does not give is
left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """All batches from `start` to `end` were read: their horizons (`PartitionSeen.horizons`) and the newest tombstone or
    marker; both also of what was read before `start` moved."""

    start: int
    end: int
    horizons: tuple[tuple[int, int], ...] = ()
    deletion: int | None = None

    @property
    def deletions(self) -> DeletionsRead:
        return DeletionsRead(start=self.start, end=self.end, newest=self.deletion)


def missed_in(data: bytes, read: Read) -> Read:
    """The batches of an answer, added to what was read; the first may begin earlier. The last may be cut off and is asked
    for again; but if it is the only one, because it is larger than an answer, what its header says must do."""
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
    return Read(start=read.start, end=end, horizons=horizons, deletion=deletion)


def with_horizon(horizons: tuple[tuple[int, int], ...], offset: int, stamp_ms: int) -> tuple[tuple[int, int], ...]:
    """One that has something as early behind it is the earliest for nobody. Of too many the first two become one that
    is as early as the one and as far as the other: who lacks neither is not concerned, who lacks both is told right."""
    behind = [pair for pair in horizons if pair[0] > offset]
    if any(pair[1] <= stamp_ms for pair in behind):
        return horizons
    kept = [*(pair for pair in horizons if pair[0] <= offset and pair[1] < stamp_ms), (offset, stamp_ms), *behind]
    if len(kept) > HORIZONS_MAX:
        kept = [(kept[1][0], kept[0][1]), *kept[2:]]
    return tuple(kept)


def newest_deletion(batches: bytes, end: int) -> int | None:
    """Of whole batches, which end there. What nobody can read may be one."""
    try:
        deletions = deletions_in(chunk_of("a leader's answer", batches))
    except CorruptLog:
        return end - 1
    return int(deletions[-1, 0]) if len(deletions) else None


class Missed:
    """What was read so far, for as long as somebody is away."""

    def __init__(self) -> None:
        self._read: dict[TopicPartition, Read] = {}
        self._ends: dict[tuple[TopicPartition, int], int] = {}
        """The last log end that each replica told while it was in sync."""
        self._complete_ends: dict[str, Mapping[tuple[int, int], int]] = {}
        """By topic, then partition and broker: below this offset, the guard's memory says, it has every deletion."""

        self._topic_ids: dict[str, str] = {}

    def recognise(self, topic_ids: Mapping[str, str | None]) -> None:
        """What was read of a topic that was made anew was another log's."""
        for topic, topic_id in topic_ids.items():
            if topic_id is not None and self._topic_ids.setdefault(topic, topic_id) != topic_id:
                self._topic_ids[topic] = topic_id
                self._read = {partition: read for partition, read in self._read.items() if partition.topic != topic}
                self._ends = {replica: end for replica, end in self._ends.items() if replica[0].topic != topic}
                self._complete_ends.pop(topic, None)

    def expect(self, topic: str, ends: Mapping[tuple[int, int], int]) -> None:
        """Of those that are away (`absences.known_below`): reading begins there."""
        if ends:
            self._complete_ends[topic] = ends
        else:
            self._complete_ends.pop(topic, None)

    def learn(
        self, seen: Mapping[TopicPartition, PartitionSeen], fetch: Fetch, *, whole: bool = False
    ) -> dict[TopicPartition, Read]:
        """`whole`: what was not seen does not exist any more. `fetch` does not raise."""
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
        """From where on somebody lacks something that it had a claim to; None: nobody is away, or nothing is known of who is.

        A new copy lacks everything, and so does one that lost its disk: both are read when they are there."""
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


def _from(read: Read | None, start: int) -> Read:
    """Reading goes on; or begins at `start`, if that is earlier, or beyond all that was read. What was found is not lost."""
    if read is None:
        return Read(start=start, end=start)
    return read if read.start <= start <= read.end else replace(read, start=start, end=start)
