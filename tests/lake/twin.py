"""A Kafka cluster in memory, for what the lake asks of one: the twin of `cluster/live.py`."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headstone.errors import NotResumable, Unfinished
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition


@dataclass
class TwinTopic:
    logs: list[list[RecordEntry]]
    kafka_id: str | None = "id"
    settings: Mapping[str, str] | None = field(default_factory=dict)
    settings_of_its_own: frozenset[str] = frozenset()
    first: int = 0
    """Where the log of each partition begins."""
    leader_epochs: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """By partition."""

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(self.first for _ in self.logs)

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(self.first + len(log) for log in self.logs)


class TwinCluster:
    """`broken`: partitions whose last record no consumer gets. `refused`: keys of records that are refused for good."""

    def __init__(
        self,
        topics: Mapping[str, TwinTopic] | None = None,
        *,
        broken: Sequence[TopicPartition] = (),
        refused: Sequence[bytes] = (),
    ) -> None:
        self.topics = dict(topics or {})
        self.copies: dict[str, int] = {}
        self.groups: dict[tuple[str, str], Mapping[int, int]] = {}
        self.taken_max = sys.maxsize
        """So many records it takes; then it is gone."""
        self._broken, self._refused = broken, refused

    def describe(self, names: Sequence[str]) -> Mapping[str, TwinTopic]:
        return {name: self.topics[name] for name in names if name in self.topics}

    def topic_ids(self, names: Sequence[str]) -> Mapping[str, str | None]:
        return {name: self.topics[name].kafka_id for name in names}

    def leader_epochs(
        self, names: Sequence[str], newest: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, tuple[tuple[int, int], ...]]:
        return {
            TopicPartition(topic, number): epochs
            for topic in names
            for number, epochs in self.topics[topic].leader_epochs.items()
            if epochs[-1][0] != newest.get(TopicPartition(topic, number))
        }

    def create_topic(self, topic: str, *, partitions: int, copies: int, settings: Mapping[str, str]) -> None:
        self.topics[topic] = TwinTopic(logs=[[] for _ in range(partitions)], settings=settings)
        self.copies[topic] = copies

    def log_end(self, partition: TopicPartition) -> int:
        return self.topics[partition.topic].ends[partition.number]

    def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
        log = self.topics[partition.topic].logs[partition.number]
        for expected, entry in enumerate(entries, start=offset):
            if self.taken_max == 0:
                raise Unfinished("the cluster does not answer")
            if entry.key in self._refused:
                raise NotResumable(f"{partition}: Broker: Invalid timestamp")
            self.taken_max -= 1
            if self.log_end(partition) != expected:
                raise NotResumable(f"{partition}: a record got another offset than {expected}")
            log.append(entry)

    def group_offsets(self, group: str, topic: str) -> Mapping[int, int]:
        return self.groups.get((group, topic), {})

    def set_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.groups[group, topic] = offsets

    def consume(self, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
        log = self.topics[partition.topic].logs[partition.number]
        for entry in log[:-1] if partition in self._broken else log:
            yield entry.key, entry.value


class TwinOnDisk(TwinCluster):
    """What is sent to it is in files, so that tasks in other processes send to the same one."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        root.mkdir()

    def log_end(self, partition: TopicPartition) -> int:
        return len(self.log(partition))

    def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
        before = self.log(partition)
        assert len(before) == offset
        (self._root / str(partition)).write_bytes(pickle.dumps([*before, *entries]))

    def consume(self, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
        yield from ((entry.key, entry.value) for entry in self.log(partition))

    def log(self, partition: TopicPartition) -> list[RecordEntry]:
        file = self._root / str(partition)
        return list(pickle.loads(file.read_bytes())) if file.exists() else []
