"""What the lake takes over from a running cluster, and what it refuses."""

from __future__ import annotations

import pytest

from headstone.errors import UsageError
from headstone.lake.lake import Lake
from headstone.lake.metastore.leader_epochs import known_leader_epochs
from headstone.lake.topics import TopicFacts
from headstone.lake.transfer.live import ReadTopics, expect_ids, facts_of, prepare
from headstone.log.topic_partition import TopicPartition
from tests.lake.twin import TwinCluster, TwinTopic


def test_settings_that_compaction_goes_by_are_taken_over_and_others_if_they_are_the_topics_own() -> None:
    settings = {
        "cleanup.policy": "compact", "delete.retention.ms": "5", "retention.ms": "6", "retention.bytes": "7",
        "segment.bytes": "8",
    }  # fmt: skip
    topic = TwinTopic(
        logs=[[], []], first=3, settings=settings, settings_of_its_own=frozenset({"retention.bytes", "segment.bytes"})
    )
    assert facts_of(TwinCluster({"t": topic, "other": topic}), ["t"]) == {
        "t": TopicFacts(
            partitions=2, starts=(3, 3), ends=(3, 3), kafka_id="id",
            settings={"cleanup.policy": "compact", "delete.retention.ms": "5", "retention.bytes": "7"},
        )
    }  # fmt: skip


def test_of_a_topic_whose_settings_may_not_be_read_the_policy_is_unknown() -> None:
    facts = facts_of(TwinCluster({"t": TwinTopic(logs=[[]], settings=None)}), ["t"])
    assert facts["t"].settings == {"cleanup.policy": "unknown"}


def test_topics_that_are_not_there_are_named() -> None:
    with pytest.raises(UsageError, match="the cluster has no topic a, c"):
        facts_of(TwinCluster({"b": TwinTopic(logs=[[]])}), ["c", "b", "a"])


def test_a_topic_that_was_created_again_while_it_was_read_is_refused() -> None:
    cluster = TwinCluster({"t": TwinTopic(logs=[[]], kafka_id="new"), "none": TwinTopic(logs=[[]], kafka_id=None)})
    expect_ids(cluster, {"t": "new", "none": None})
    with pytest.raises(UsageError, match=r"t was deleted and created again .*ID was old, now new"):
        expect_ids(cluster, {"t": "old", "none": None})


def test_leader_epochs_are_noted_while_a_topic_is_read(lake: Lake) -> None:
    """As they change, of partitions that the lake has, and only of the topic that is read."""
    topic = TwinTopic(logs=[[], []], leader_epochs={0: ((0, 0), (2, 5)), 2: ((1, 0),)})
    cluster = TwinCluster({"t": topic})
    prepare(lake, facts_of(cluster, ["t"]))
    names = [TopicPartition("t", number) for number in range(3)]
    read = ReadTopics(lake, cluster, {"t": "id"})
    read.confirm()
    assert [known_leader_epochs(lake.metastore, name) for name in names[:2]] == [((0, 0), (2, 5)), ()]
    assert read.untold() == [names[1]]
    lake.metastore.add_partitions("t", 3)
    topic.leader_epochs = {0: ((2, 6), (4, 9)), 1: ((3, 0),), 2: ((1, 0),)}
    read.confirm()
    assert [known_leader_epochs(lake.metastore, name) for name in names] == [
        ((0, 0), (2, 5), (4, 9)),
        ((3, 0),),
        ((1, 0),),
    ]
    assert read.untold() == []
    topic.kafka_id, topic.leader_epochs = "another", {0: ((9, 0),)}
    with pytest.raises(UsageError, match="t was deleted and created again"):
        read.confirm()
    assert known_leader_epochs(lake.metastore, names[0]) == ((0, 0), (2, 5), (4, 9))
