"""Leader epochs of a running cluster: which of them began where in a partition's log, by the word of its leader.

No request lists them. OffsetForLeaderEpoch (KIP-101, KIP-320) tells of an epoch where the next one begins, and which is the
newest that is not above it: so whoever asks goes from the newest down, all partitions of a broker at a time. It takes DESCRIBE
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
"""For the cluster, and for each answer of a leader: who does not answer now is asked another time."""
NO_EPOCH = -1

Epochs = tuple[tuple[int, int], ...]
"""(epoch, start offset), both rising."""


def leader_epochs(
    connection: Connection, settings: WireSettings, topics: Sequence[str], newest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Epochs]:
    """Of partitions whose newest epoch is another one than `newest` says. Those whose leader does not answer now are absent."""
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
                if answer is None or answer.error:  # it does not lead any more
                    del walks[partition]
                elif (lower := walks[partition].step(epoch, answer.epoch, answer.end)) is not None:
                    following[partition] = lower
            asked = following
    return {partition: tuple(reversed(walk.epochs)) for partition, walk in walks.items() if walk.epochs}


class _Walk:
    """One partition's epochs, from the newest down. `epochs` are those whose start is known.

    An answer tells the newest epoch that is not above the one asked for, and where the epoch above that one begins. Below the
    oldest epoch a broker answers with the very epoch that was asked for, as if it were there; then it ends where the oldest one
    begins, and that is where the log begins, or where the answer before ended as well."""

    def __init__(self, log_start: int) -> None:
        self.epochs: list[tuple[int, int]] = []
        self._log_start = log_start
        self._above = NO_EPOCH
        """The epoch whose start is asked for; none before the first answer."""

    def step(self, asked: int, epoch: int, end: int) -> int | None:
        """Which to ask for next; None: that was the last."""
        if not NO_EPOCH < epoch <= asked:
            return None
        if self._above != NO_EPOCH:
            if self.epochs and end >= self.epochs[-1][1]:  # the one above is none of this log's
                return None
            self.epochs.append((self._above, max(end, self._log_start)))
            if end <= self._log_start:
                return None
        if epoch == 0:
            self.epochs.append((epoch, self._log_start))
            return None
        self._above = epoch
        return epoch - 1
