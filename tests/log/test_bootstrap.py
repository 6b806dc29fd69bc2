"""Topics that are added to the metadata with which a new cluster begins, in as many batches as they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.log import bootstrap
from headstone.log.bootstrap import NewTopic, snapshot_place, with_topics
from headstone.log.cluster_metadata import read_cluster_metadata
from headstone.log.directory import PartitionDir
from headstone.log.reading import chunk_of

CAPTURED = Path(__file__).resolve().parent.parent / "captured" / "bootstrap-3.9.2.checkpoint"
TOPICS = [
    NewTopic(
        name=name, topic_id=f"{name * 21}A", settings={"cleanup.policy": "compact", "segment.bytes": str(number)},
        replicas=((1,), (2,)), leader_epochs=(3, 4),
    )
    for number, name in enumerate("abc", start=100)
]  # fmt: skip


@pytest.mark.parametrize("records_per_batch", [1, 4, 500])
def test_topics_of_several_batches_are_all_there_and_their_offsets_rise_by_one(
    records_per_batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "RECORDS_PER_BATCH", records_per_batch)
    before = CAPTURED.read_bytes()
    content = with_topics(before, TOPICS, next_producer_id=1000, name="bootstrap")
    batches = chunk_of("snapshot", content).batches
    assert list(batches["base_offset"][1:]) == [last + 1 for last in batches["last_offset"][:-1]]
    added = 5 * len(TOPICS) + 1
    assert batches["last_offset"][-1] == chunk_of("bootstrap", before).batches["last_offset"][-1] + added
    place = snapshot_place(tmp_path, content)
    assert isinstance(place, Path)
    place.write_bytes(content)
    (place.parent / f"{int(batches['last_offset'][-1]) + 1:020d}.log").touch()
    metadata = read_cluster_metadata(PartitionDir(path=place.parent, topic="__cluster_metadata", partition=0))
    assert metadata.topic_ids == {topic.name: topic.topic_id for topic in TOPICS}
    for topic in TOPICS:
        assert metadata.topic_settings(topic.name, broker=None) == topic.settings
