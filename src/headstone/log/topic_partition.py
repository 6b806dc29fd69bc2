"""The name of a partition, the same everywhere in this package: topic and number.

In texts and in JSON it is written as Kafka names the partition's directory, `orders-0`. Checkpoint files keep their offsets by
it. Does not know where the partition's bytes are: that is a `PartitionDir`, or extents.
"""

from __future__ import annotations

import re
from dataclasses import Field, asdict
from typing import Any, ClassVar, NamedTuple, Protocol

TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
"""Kafka's own rule, for a whole name. Such a name stays in the directory in which its folder is made."""
TOPIC_NAME_RULE = "up to 249 letters, digits, dots, underscores and hyphens, and not . or .."


class TopicPartition(NamedTuple):
    """As text `orders-0`."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Partitioned(Protocol):
    """A dataclass about one partition."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def partition(self) -> TopicPartition: ...


def partition_row(value: Partitioned) -> dict[str, Any]:
    """Its fields as in JSON, with the partition by its name."""
    return {**asdict(value), "partition": str(value.partition)}
