"""What the lake asks of a running Kafka cluster, and what it makes of the answers. The port; `cluster/live.py` implements it.

Decides which settings of a topic are copied, whether the cluster's log continues where the lake ends, and whether it is still
the same topic. Knows no client, no address and no credential.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from headstone.errors import UsageError
from headstone.lake.lake import Lake
from headstone.lake.metastore.leader_epochs import Epochs, note_leader_epochs
from headstone.lake.metastore.scheduling import POLICY, POLICY_UNKNOWN
from headstone.lake.topics import Tell, TopicFacts, adopt
from headstone.lake.transfer.landing import FollowedTopics, offsets_between
from headstone.log.listing import RecordEntry
from headstone.log.topic_partition import TopicPartition
from headstone.retention.settings import IF_SET, IN_FORCE, names_copied

COPIED_SETTINGS = names_copied(IN_FORCE)
"""Copied as they are in force, wherever they are set: compaction in the lake uses them."""
COPIED_IF_SET = names_copied(IF_SET)
"""Copied if they were set for the topic itself: a restored topic gets them back."""


class LiveTopic(Protocol):
    """A topic as the cluster has it now."""

    @property
    def starts(self) -> tuple[int, ...]:
        """Where the log of each partition begins."""

    @property
    def ends(self) -> tuple[int, ...]:
        """Where it ends: its high watermark."""

    @property
    def kafka_id(self) -> str | None:
        """As Kafka writes it; None if the cluster gives none."""

    @property
    def settings(self) -> Mapping[str, str] | None:
        """All that are in force; None if we may not read them."""

    @property
    def settings_of_its_own(self) -> Collection[str]:
        """Names of those that were set for the topic itself."""


class SourceCluster(Protocol):
    """Every question is answered, or ends with Unfinished, which says where and why."""

    def describe(self, names: Sequence[str]) -> Mapping[str, LiveTopic]:
        """Those of them that exist."""

    def topic_ids(self, names: Sequence[str]) -> Mapping[str, str | None]: ...
    def leader_epochs(
        self, names: Sequence[str], newest: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Epochs]:
        """For partitions whose newest epoch differs from `newest`. Partitions that can't answer now are asked another time."""

    def create_topic(self, topic: str, *, partitions: int, copies: int, settings: Mapping[str, str]) -> None: ...
    def log_end(self, partition: TopicPartition) -> int:
        """Where its leader's log ends, with records that not all in-sync replicas have yet, as far as this can be asked."""

    def send(self, partition: TopicPartition, entries: Iterable[RecordEntry], *, offset: int) -> None:
        """Sends in this order, with their keys, values, headers and timestamps; the first gets this offset, which is the log's
        end.

        Returns when all are acknowledged. After Unfinished, a prefix of them is in the log. NotResumable: one was refused for
        good, or got another offset than its own."""

    def consume(self, partition: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Key and value of each committed record, from the first to the end at the time of the call."""

    def group_offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """By partition, as the group has committed them; empty for an unknown group."""

    def set_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """For a group without members."""


def facts_of(cluster: SourceCluster, topics: Sequence[str]) -> dict[str, TopicFacts]:
    """UsageError if a topic does not exist in the cluster."""
    described = cluster.describe(topics)
    missing = sorted(set(topics) - set(described))
    if missing:
        raise UsageError(f"the cluster has no topic {', '.join(missing)}")
    return {
        topic: TopicFacts(
            partitions=len(live.starts), settings=_copied(live), kafka_id=live.kafka_id, starts=live.starts, ends=live.ends
        )
        for topic, live in described.items()
    }  # fmt: skip


def _copied(live: LiveTopic) -> dict[str, object]:
    if live.settings is None:  # we may read it but not describe it: the caller must say what it is
        return {POLICY: POLICY_UNKNOWN}
    names = (*COPIED_SETTINGS, *(name for name in COPIED_IF_SET if name in live.settings_of_its_own))
    return {name: live.settings[name] for name in names if name in live.settings}


def prepare(
    lake: Lake, facts: Mapping[str, TopicFacts], *, policy: str | None = None, tell: Tell = lambda text: None
) -> dict[str, int]:
    """Creates missing topics and partitions; refuses a log that does not continue where the lake ends."""
    for topic, live in facts.items():
        adopt(lake, topic, live, policy=policy, tell=tell)
        logs = lake.metastore.log_ends([TopicPartition(topic, number) for number in range(len(live.starts))])
        for number, (start, end) in enumerate(zip(live.starts, live.ends, strict=True)):
            partition = TopicPartition(topic, number)
            lake_start, next_offset = logs[partition]
            if lake_start < next_offset < start:
                raise UsageError(
                    f"{partition}: the lake ends at {next_offset}, but Kafka's log starts at {start}: the records between them "
                    "are missing; create a new lake"
                )
            if end < next_offset:
                raise UsageError(
                    f"{partition}: the lake ends at {next_offset}, but Kafka's log ends at {end}: it has lost records, or it "
                    "is another topic of the same name; create a new lake, or restore the lake's topic into a new topic"
                )
    return {topic: live.partitions for topic, live in facts.items()}


def offsets_to_come(lake: Lake, facts: Mapping[str, TopicFacts]) -> int:
    """From where the lake ends, or the logs begin, to where they ended when they were described."""
    starts = {
        TopicPartition(topic, number): start
        for topic, live in facts.items()
        for number, start in enumerate(live.starts)
    }
    ends = {TopicPartition(topic, number): end for topic, live in facts.items() for number, end in enumerate(live.ends)}
    return offsets_between(FollowedTopics(lake, starts).unread(), ends)


class ReadTopics:
    """Topics of a cluster while they are read; `ids` are those of the topics that were described."""

    def __init__(self, lake: Lake, cluster: SourceCluster, ids: Mapping[str, str | None]) -> None:
        self._lake, self._cluster, self._ids = lake, cluster, ids
        self._newest: dict[TopicPartition, int] = {}

    def confirm(self) -> None:
        """Confirms that everything read so far is of these topics, and notes the leader epochs of all that was read."""
        changed = self._cluster.leader_epochs(sorted(self._ids), self._newest)
        expect_ids(self._cluster, self._ids)  # after the other question, so that its answer is of these topics, too
        partitions = self._lake.metastore.next_offsets() if changed else {}
        for partition, epochs in changed.items():
            if partition in partitions:
                note_leader_epochs(self._lake.metastore, partition, epochs)
                self._newest[partition] = epochs[-1][0]

    def untold(self) -> list[TopicPartition]:
        """Partitions in the lake whose leader epochs are unknown."""
        return [
            name for name in self._lake.metastore.next_offsets() if name.topic in self._ids and name not in self._newest
        ]


def expect_ids(cluster: SourceCluster, ids: Mapping[str, str | None]) -> None:
    """Everything read under these names since they were described is of these topics: an id is never reused."""
    for topic, now in cluster.topic_ids(sorted(ids)).items():
        if now != ids[topic]:
            raise UsageError(
                f"{topic} was deleted and created again while it was read (ID was {ids[topic]}, now {now}): nothing of the new "
                "topic was ingested; ingest it into a new lake"
            )
