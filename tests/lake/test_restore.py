"""A topic back into Kafka: into an empty or a new one, in order, and verified as a consumer sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstone.errors import Unfinished, UsageError
from headstone.lake.reading import records
from headstone.lake.restore import Restored, restore
from tests.lake.scene import AT, Scene
from tests.lake.twin import TwinCluster, TwinTopic

TARGET = AT._replace(topic="again")


def test_records_go_back_as_they_are_into_a_topic_with_the_lakes_settings(scene: Scene) -> None:
    scene.write("N[a]", "N[b]", "T[a]")
    cluster, said = TwinCluster(), list[str]()
    done = restore(scene.lake, "t", "again", cluster, copies=2, tell=said.append)
    assert done == [Restored(partition=AT, records=3, tombstones=1, keys=1, verified=True)]
    assert cluster.topics["again"].logs == [list(records(scene.lake, AT))]
    assert cluster.topics["again"].settings == {"cleanup.policy": "compact", "delete.retention.ms": "1000"}
    assert (cluster.copies, said) == ({"again": 2}, ["t-0: verifying 3 records"])


def test_a_topic_that_is_there_is_used_if_it_is_empty_and_fits(scene: Scene) -> None:
    scene.write("N[a]")
    (record,) = records(scene.lake, AT)
    empty, full = TwinTopic(logs=[[]], first=7), TwinTopic(logs=[[record]], first=7)
    cluster = TwinCluster({"empty": empty, "full": full, "more": TwinTopic(logs=[[], []])})
    assert restore(scene.lake, "t", "empty", cluster)[0].verified
    for topic, said in (
        ("full", r"full-0 is not empty \(\[7, 8\)\): restore into a new topic"),
        ("more", "topic more has 2 partitions, the lake's has 1"),
    ):
        with pytest.raises(UsageError, match=said):
            restore(scene.lake, "t", topic, cluster)
    assert (full.logs, cluster.topics["more"].logs) == ([[record]], [[], []])


def test_what_did_not_arrive_is_noticed_unless_nobody_looks(scene: Scene) -> None:
    scene.write("N[a]", "N[b]")
    with pytest.raises(Unfinished, match="again-0: 1 keys are not as in the lake; do not use this topic"):
        restore(scene.lake, "t", "again", TwinCluster(broken=[TARGET]))
    (unverified,) = restore(scene.lake, "t", "again", TwinCluster(broken=[TARGET]), verify=False)
    assert not unverified.verified


def test_a_table_is_the_same_whatever_the_cluster_has_cleaned(scene: Scene) -> None:
    """The deletion of a key that was not there before is lost on the way: nobody sees a difference."""
    scene.write("N[a]", "T[b]")
    assert restore(scene.lake, "t", "again", TwinCluster(broken=[TARGET]))[0].verified


def test_of_a_topic_that_is_not_compacted_every_record_counts(scene: Scene) -> None:
    scene.write("N[a]", "T[b]")
    scene.lake.metastore.configure("t", {"cleanup.policy": "delete"})
    with pytest.raises(Unfinished, match="again-0: 1 records are there, 2 were sent, and they are not the same"):
        restore(scene.lake, "t", "again", TwinCluster(broken=[TARGET]))


def test_a_topic_whose_policy_nobody_knows_is_not_made(scene: Scene) -> None:
    scene.write("N[a]")
    scene.lake.metastore.configure("t", {"cleanup.policy": "unknown"})
    cluster = TwinCluster()
    with pytest.raises(UsageError, match="or make the topic again yourself, then restore into it"):
        restore(scene.lake, "t", "again", cluster)
    assert cluster.topics == {}
    with pytest.raises(UsageError, match="the lake has no topic nothing"):
        restore(scene.lake, "nothing", "again", cluster)


def test_the_past_is_restored_as_it_was(scene: Scene) -> None:
    scene.write("N[a]", now_ms=10)
    scene.write("T[a]", now_ms=20)
    cluster = TwinCluster()
    (done,) = restore(scene.lake, "t", "again", cluster, as_of_ms=15)
    assert replace(done, partition=TARGET) == Restored(partition=TARGET, records=1, tombstones=0, keys=1, verified=True)
