"""A partition's name: written as its directory is, and equal to the plain pair that the checkpoint files hold."""

from __future__ import annotations

from pathlib import Path

from headstone.log.checkpoints import read_offsets, write_offsets
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from tests.logs import write_log


def test_a_partition_is_named_as_its_directory_is(tmp_path: Path) -> None:
    write_log(tmp_path, "N[a]", "a-b.c_d-12")
    (directory,) = find_partitions([tmp_path])
    assert directory.topic_partition == TopicPartition("a-b.c_d", 12)
    assert str(directory.topic_partition) == directory.name


def test_offsets_of_a_checkpoint_are_kept_by_that_name(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    write_offsets(path, {TopicPartition("orders", 2): 17})
    assert [str(partition) for partition in read_offsets(path)] == ["orders-2"]
