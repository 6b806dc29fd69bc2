"""Notes for the journal, written by the transaction that makes the change: partitions, topics, leader epochs, erasures.

A note is a row that waits until it is written to the store, after the transaction (`journal`). Every function works in a
transaction of the metastore's. A change states the new state, not the difference; only a commit's extents are differences.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, func, insert, select

from headstone.lake.format.extents import Extent
from headstone.lake.metastore import schema
from headstone.lake.metastore.commits import Partition
from headstone.log.topic_partition import TopicPartition

NOTED = "headstone-journal"
"""Key in a connection's info, until its transaction ends: something was noted."""


def commit_change(
    topic_partition: TopicPartition, after: Partition, *, gone: Sequence[Extent], new: Sequence[Extent], ranges: bool,
    moment_ms: int,
) -> dict[str, Any]:  # fmt: skip
    """`ranges`: cleaned and tombstone ranges are included; otherwise they have not changed."""
    change: dict[str, Any] = {
        "partition": [topic_partition.topic, topic_partition.number], "start": after.start_offset, "next": after.next_offset,
        "epoch": after.compaction_epoch, "moment_ms": moment_ms, "gone": [extent.span.start for extent in gone],
        "new": [asdict(extent) for extent in new],
    }  # fmt: skip
    if ranges:
        change["cleaned"] = [list(span) for span in after.cleaned]
        change["tombstones"] = [[*known.span, known.cleaned_at_ms] for known in after.tombstones]
    return change


def topic_change(connection: Connection, name: str) -> dict[str, Any]:
    """The topic as it is now: settings, id, number of partitions; or that it is gone."""
    topics, partitions = schema.topics, schema.partitions
    row = connection.execute(select(topics).where(topics.c.name == name)).first()
    if row is None:
        return {"topic": name, "dropped": True}
    counted = select(func.count()).select_from(partitions).where(partitions.c.topic_id == row.topic_id)
    change = {"topic": name, "settings": json.loads(row.settings), "kafka_id": row.kafka_id}
    return {**change, "partitions": connection.execute(counted).scalar_one()}


def epochs_change(topic_partition: TopicPartition, epochs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {"epochs": [topic_partition.topic, topic_partition.number], "starts": list(map(list, epochs))}


def note_topic(connection: Connection, name: str) -> None:
    note(connection, [topic_change(connection, name)])


def note_epochs(connection: Connection, topic_partition: TopicPartition, epochs: Sequence[tuple[int, int]]) -> None:
    note(connection, [epochs_change(topic_partition, epochs)])


def erasure_change(row: Any) -> dict[str, Any]:
    """From a row of the erasures: the request and the last step, but not what it waits for."""
    names = ("requested_ms", "deadline_ms", "step", "step_ms", "seen")
    return {"erasure": [row.topic, row.key_digest], **{name: getattr(row, name) for name in names}}


def note(connection: Connection, changes: Sequence[Mapping[str, Any]]) -> None:
    """In one statement, however many there are."""
    rows = [{"token": secrets.token_hex(8), "change": json.dumps(change, separators=(",", ":"))} for change in changes]
    if rows:
        connection.execute(insert(schema.journal), rows)
        connection.info[NOTED] = True
