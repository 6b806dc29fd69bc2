"""Which brokers get which partitions of an export, and what their controllers have to know about the topics beforehand.

A log directory formatted by `kafka-storage format` has its broker's number. If it has a bootstrap file, the metadata of a new
cluster begins with a snapshot of that file and of the topics, with their ids, settings and leader epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headstone.errors import UsageError
from headstone.lake.metastore.scheduling import POLICY, POLICY_UNKNOWN, not_compacted
from headstone.lake.transfer.export import Exported, PartitionExport
from headstone.lake.transfer.export_places import ANEW
from headstone.log.bootstrap import NewTopic, bootstrap_file, snapshot_place, with_topics
from headstone.log.checkpoints import replace_whole
from headstone.log.cluster_metadata import node_id, topic_ids_in
from headstone.retention.settings import kafka_settings
from headstone.storage.places import Place

EPOCHS_AHEAD = 1000
"""Leaders that there may have been since the lake was last filled: consumers have committed offsets with their epochs, and a
consumer that knows a newer epoch than the cluster waits for ever."""
PRODUCER_IDS_PER_BLOCK = 1000
"""A controller gives out whole blocks. A new producer must not be taken for one whose batches are in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetBroker:
    """A log directory that gets partitions. `node` None: it is not formatted, and may become any broker's."""

    log_dir: Place
    node: int | None


def brokers_of(log_dirs: Sequence[Place]) -> list[TargetBroker]:
    """Several directories must be formatted, and for different brokers: UsageError otherwise."""
    brokers = []
    for log_dir in log_dirs:
        node = node_id(log_dir)
        brokers.append(TargetBroker(log_dir=log_dir, node=None if node is None else int(node)))
    nodes = [broker.node for broker in brokers]
    if len(brokers) > 1 and (None in nodes or len(set(nodes)) < len(nodes)):
        raise UsageError(
            "--log-dirs: several directories must belong to different brokers: format them with kafka-storage"
        )
    return brokers


def placed(
    planned: Sequence[PartitionExport], brokers: Sequence[TargetBroker], *, copies: int
) -> list[tuple[PartitionExport, list[TargetBroker]]]:
    """Assigns round-robin, each partition to `copies` brokers; the first of them is its preferred leader."""
    if copies > len(brokers):
        raise UsageError(f"--replication-factor {copies}: there are {len(brokers)} log directories")
    return [(one, [brokers[(i + copy) % len(brokers)] for copy in range(copies)]) for i, one in enumerate(planned)]


def refuse_unknown_policies(settings: Mapping[str, Mapping[str, object]]) -> None:
    """For a topic without a policy, brokers use the default: they delete its records after a week."""
    for topic, some in settings.items():
        if some.get(POLICY) == POLICY_UNKNOWN:
            raise UsageError(f"{topic}: {not_compacted(some)}")


def new_topics(
    exported: Sequence[Exported],
    nodes: Mapping[str, Sequence[Sequence[int]]],
    settings: Mapping[str, Mapping[str, object]],
) -> list[NewTopic]:
    """`nodes`: by topic, the brokers of each partition."""
    topics = []
    for topic in nodes:
        some = sorted((one for one in exported if one.partition.topic == topic), key=lambda one: one.partition.number)
        topics.append(
            NewTopic(
                name=topic, topic_id=some[0].topic_id, replicas=tuple(tuple(each) for each in nodes[topic]),
                settings={POLICY: "compact"} | kafka_settings(settings[topic]),
                leader_epochs=tuple(
                    max((epoch for epoch, _ in one.leader_epochs), default=0) + EPOCHS_AHEAD for one in some
                ),
            )
        )  # fmt: skip
    return topics


def refuse_known_topics(brokers: Sequence[TargetBroker], topics: Collection[str]) -> None:
    """A controller that finds a topic twice does not start."""
    for broker in brokers:
        file = bootstrap_file(broker.log_dir)
        for topic in sorted(topic_ids_in(file).keys() & topics) if file is not None else ():
            raise UsageError(f"{file} already has topic {topic}: an export ran here before; {ANEW}")


def write_metadata(brokers: Sequence[TargetBroker], topics: Sequence[NewTopic], *, producer_id_max: int) -> list[Place]:
    """Writes the snapshots with which the metadata of new brokers begins; all are the same. One written by an interrupted
    export stays."""
    blocks = (producer_id_max + PRODUCER_IDS_PER_BLOCK) // PRODUCER_IDS_PER_BLOCK
    snapshots = []
    for broker in brokers:
        file = bootstrap_file(broker.log_dir)
        if file is None:
            continue
        present = topic_ids_in(file)
        if all(present.get(topic.name) == topic.topic_id for topic in topics):
            snapshots.append(file)
            continue
        content = with_topics(
            file.read_bytes(), topics, next_producer_id=blocks * PRODUCER_IDS_PER_BLOCK, name=str(file)
        )
        snapshots.append(snapshot_place(broker.log_dir, content))
        replace_whole(snapshots[-1], content)
    return snapshots
