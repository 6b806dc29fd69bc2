"""The ids that lie beside a replica's log: its topic's, its cluster's, its broker's. None if no file has them.

Reads small files; `divergence/identity.py` decides what they mean together.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstone.divergence.identity import different_ids
from headstone.errors import UsageError
from headstone.log.checkpoints import PARTITION_METADATA, read_topic_id
from headstone.log.cluster_metadata import meta_properties, node_id
from headstone.log.directory import PartitionDir

Member = tuple[str, PartitionDir]
"""A replica's name and where it is."""


def ids_differ(members: Sequence[Member]) -> str | None:
    """Why these cannot be replicas of one partition."""
    return different_ids(
        {name: meta_properties(directory.log_dir).get("cluster.id") or None for name, directory in members},
        {name: _topic_id(directory) for name, directory in members},
    )


def broker_of(directory: PartitionDir) -> int | None:
    number = node_id(directory.log_dir)
    return int(number) if number is not None and number.isdigit() else None


def _topic_id(directory: PartitionDir) -> str | None:
    """A file that cannot be read as one says nothing."""
    try:
        return read_topic_id(directory.path / PARTITION_METADATA) or None
    except (UsageError, UnicodeDecodeError):
        return None
