"""The guard with agents beside its brokers: what a look tells the truth, and what the truth adds to a look.

The one place where the two meet; the loop knows nothing of agents. Asks nobody, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headstone.coordination.guard_values import PartitionSeen, TopicSeen
from headstone.coordination.watermarks import ReplicaWatermarks
from headstone.guard.clocks import largest_difference_ms
from headstone.guard.looks import Look
from headstone.guard.truth import Truth
from headstone.log.topic_partition import TopicPartition

LookAt = Callable[[Sequence[str] | None], Look]


def attended(look: LookAt, truth: Truth, watched: Sequence[str]) -> LookAt:
    """`watched` as the guard was told: empty is every compacted topic."""

    def looked(topics: Sequence[str] | None) -> Look:
        seen = look(topics)
        whole = topics is None or (bool(watched) and set(topics) == set(watched))
        truth.learn(seen.cluster_id, seen.brokers, seen.topics, whole=whole)
        return replace(seen, topics=tuple(_with_truth(topic, truth) for topic in seen.topics))

    return looked


def _with_truth(topic: TopicSeen, truth: Truth) -> TopicSeen:
    partitions = tuple(
        _with_claims(partition, truth.claims(TopicPartition(topic.topic, partition.partition)))
        for partition in topic.partitions
    )
    skew_ms = max(topic.skew_ms, largest_difference_ms(truth.clocks()))
    return replace(topic, partitions=partitions, skew_ms=skew_ms)


def _with_claims(partition: PartitionSeen, claims: Mapping[int, ReplicaWatermarks]) -> PartitionSeen:
    replicas = tuple(replace(replica, watermarks=claims.get(replica.broker)) for replica in partition.replicas)
    return replace(partition, replicas=replicas)
