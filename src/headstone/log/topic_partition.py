"""The name of a partition, one for the whole house: topic and number.

In texts and in JSON it is written as Kafka names the partition's directory, `orders-0`. Offsets of the
checkpoint files are kept by it. Knows nothing of where the partition's bytes are: that is a `PartitionDir`, or extents.
"""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"
