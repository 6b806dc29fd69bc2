"""A running cluster behind the lake's port (`lake/transfer/live.py`), through librdkafka.

Before the first question our own client checks whether a broker answers: it gives the reason if not, where librdkafka only
times out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from headstone.cluster import epochs, groups, records, topics
from headstone.cluster.connection import Connection, wire_settings
from headstone.cluster.librdkafka import Clients
from headstone.cluster.topics import SECURITY, own_settings
from headstone.cluster.wire import ask_cluster
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop, never


class LiveCluster:
    """`beside_spark`: Spark reads from the same cluster, and gets the settings that are Java's.

    `given_up`: a send stops, and sends nothing more. Asked in this process only."""

    def __init__(self, connection: Connection, *, beside_spark: bool = False, given_up: Stop = never) -> None:
        self._connection, self._given_up = connection, given_up
        self._clients = Clients(connection, beside_spark=beside_spark)
        self._reached = False

    def describe(self, names: Sequence[str]) -> dict[str, topics.ClusterTopic]:
        return topics.describe(self._reach(), names)

    def topic_ids(self, names: Sequence[str]) -> dict[str, str | None]:
        return topics.topic_ids(self._reach(), names)

    def leader_epochs(
        self, names: Sequence[str], newest: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, epochs.Epochs]:
        settings = own_settings(self._connection)
        return {} if settings is None else epochs.leader_epochs(self._connection, settings, names, newest)

    def create_topic(self, topic: str, *, partitions: int, copies: int, settings: Mapping[str, str]) -> None:
        topics.create_topic(self._reach(), topic, partitions=partitions, copies=copies, settings=settings)

    def log_end(self, partition: TopicPartition) -> int:
        return topics.log_end(self._reach(), partition)

    def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
        records.send(self._reach(), partition, entries, offset=offset, given_up=self._given_up)

    def consume(self, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
        return records.consume(self._reach(), partition)

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        return groups.committed(self._reach(), group, topic)

    def set_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        groups.commit(self._reach(), group, topic, offsets)

    def __reduce__(self) -> tuple[object, ...]:
        """A task creates clients of its own."""
        return LiveCluster, (self._connection,)

    def _reach(self) -> Clients:
        if not self._reached:
            reach(self._connection)
            self._reached = True
        return self._clients


def reach(connection: Connection) -> None:
    """Raises Unfinished, with the address and the reason, unless a broker answers and accepts the login.

    If only librdkafka knows the mechanism, it must find out by itself."""
    if any(name.startswith(SECURITY) for name in connection.for_librdkafka):
        return
    ask_cluster(connection, wire_settings(replace(connection, for_librdkafka={}, for_java={})), [])
