"""A broker's log directory that a test changes as a running broker would, under whoever reads it."""

from __future__ import annotations

from pathlib import Path

from headstone.log import checkpoints
from headstone.log.directory import PartitionDir, as_partition
from headstone.log.topic_partition import TopicPartition
from tests.oracle.notation import History

CLUSTER = "Headston-test-cluster1"


class BrokerDirectory:
    def __init__(
        self, root: Path, *, broker: int = 1, cluster: str = CLUSTER, directory_id: str = "directory-a"
    ) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        lines = ("version=1", f"node.id={broker}", f"cluster.id={cluster}", f"directory.id={directory_id}")
        (root / checkpoints.META_PROPERTIES).write_text("".join(f"{line}\n" for line in lines))
        self.histories: dict[str, History] = {}

    def append(self, name: str, terms: str) -> PartitionDir:
        """The high watermark follows, as on a broker whose followers are there."""
        history = self.histories.setdefault(name, History())
        history.append(terms)
        history.write_partition(self.root, name)
        directory = as_partition(self.root / name)
        assert directory is not None
        self.checkpoint(checkpoints.HIGH_WATERMARK, name, history.next_offset)
        return directory

    def cleaned(self, name: str, offset: int) -> None:
        self.checkpoint(checkpoints.CLEANER, name, offset)

    def checkpoint(self, file: str, name: str, offset: int) -> None:
        topic, _, number = name.rpartition("-")
        known = checkpoints.read_offsets(self.root / file)
        checkpoints.write_offsets(self.root / file, {**known, TopicPartition(topic, int(number)): offset})

    def segment(self, name: str, base: int, suffix: str = ".log") -> Path:
        return self.root / name / f"{base:020d}{suffix}"
