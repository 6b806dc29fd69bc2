"""Leader epochs of a running cluster: which ones began where in a partition's log, according to its leader.

No request lists them. OffsetForLeaderEpoch (KIP-101, KIP-320) takes an epoch, and returns the newest one that is not above it
and where the next one begins. So this goes from the newest epoch down, for all partitions of a broker at a time. Needs DESCRIBE
on the topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headstone.cluster.connection import Connection, Host, WireSettings
from headstone.cluster.questions import leader_epoch_ends, list_offsets
from headstone.cluster.refusals import NoAnswer
from headstone.cluster.wire import EARLIEST, BrokerConnection, ask_cluster
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition

SECONDS_MAX = 5.0
"""For the cluster, and for each answer of a leader: one that does not answer now is asked another time."""
NO_EPOCH = -1

Epochs = tuple[tuple[int, int], ...]
"""(epoch, start offset), both rising."""


def leader_epochs(
    connection: Connection, settings: WireSettings, topics: Sequence[str], newest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Epochs]:
    """For partitions whose newest epoch differs from `newest`. Leaves out those whose leader does not answer now."""
    try:
        state = ask_cluster(connection, settings, topics, seconds_max=SECONDS_MAX)
    except Unfinished:
        return {}
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for topic, partitions in state.topics.items():
        for number, partition in partitions.items():
            name = TopicPartition(topic, number)
            if partition.leader in state.brokers and partition.leader_epoch != newest.get(name):
                by_leader.setdefault(partition.leader, {})[name] = partition.leader_epoch
    epochs: dict[TopicPartition, Epochs] = {}
    for leader, current in sorted(by_leader.items()):
        host = Host(state.brokers[leader].host, state.brokers[leader].port)
        try:
            epochs |= _of_leader(host, settings, current)
        except NoAnswer:
            continue
    return epochs


def _of_leader(
    host: Host, settings: WireSettings, current: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Epochs]:
    with BrokerConnection(host, settings, seconds_max=SECONDS_MAX, proved=True) as broker:
        starts = {
            partition: answer.offset
            for partition, answer in list_offsets(broker, list(current), timestamp=EARLIEST).items()
            if not answer.error
        }
        asked = {partition: current[partition] for partition in starts}
        walks: dict[TopicPartition, _Walk] = {partition: _Walk(start) for partition, start in starts.items()}
        while asked:
            answers = leader_epoch_ends(broker, asked)
            following = {}
            for partition, epoch in asked.items():
                answer = answers.get(partition)
                if answer is None or answer.error:  # it no longer leads
                    del walks[partition]
                elif (lower := walks[partition].step(epoch, answer.epoch, answer.end)) is not None:
                    following[partition] = lower
            asked = following
    return {partition: tuple(reversed(walk.epochs)) for partition, walk in walks.items() if walk.epochs}


class _Walk:
    """One partition's epochs, from the newest down. `epochs` are those whose start is known.

    An answer has the newest epoch that is not above the one asked for, and the offset where the epoch above that one begins.
    Below its oldest epoch, a broker answers with the very epoch that was asked for, as if it existed, ending where the oldest
    one begins: that is where the log begins, or where the previous answer ended too."""

    def __init__(self, log_start: int) -> None:
        self.epochs: list[tuple[int, int]] = []
        self._log_start = log_start
        self._above = NO_EPOCH
        """The epoch whose start is being asked for; NO_EPOCH before the first answer."""

    def step(self, asked: int, epoch: int, end: int) -> int | None:
        """The epoch to ask for next; None after the last."""
        if not NO_EPOCH < epoch <= asked:
            return None
        if self._above != NO_EPOCH:
            if self.epochs and end >= self.epochs[-1][1]:  # the epoch above is not of this log
                return None
            self.epochs.append((self._above, max(end, self._log_start)))
            if end <= self._log_start:
                return None
        if epoch == 0:
            self.epochs.append((epoch, self._log_start))
            return None
        self._above = epoch
        return epoch - 1
