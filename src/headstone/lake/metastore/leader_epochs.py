"""Leader epochs of a partition as Kafka counted them: noted when its logs come in, written when a log directory goes out.

Decides which epochs are worth keeping. Batches carry theirs in their headers; epochs that lost all their records are known only
from here. Nothing in the lake depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import delete, insert, select

from headstone.lake.metastore import schema
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.notes import note_epochs
from headstone.lake.metastore.rows import located, partition_id_of
from headstone.log.topic_partition import TopicPartition

Epochs = tuple[tuple[int, int], ...]
"""(epoch, start offset), both rising."""


def merged(*sources: Iterable[tuple[int, int]]) -> Epochs:
    """The epochs that several sources report for one log: each begins at the lowest offset that any of them has.

    An entry that begins after the start of a later epoch is not part of this log's history: the later epoch's start stands."""
    starts: dict[int, int] = {}
    for epoch, start in (entry for source in sources for entry in source):
        starts[epoch] = min(start, starts.get(epoch, start))
    rising: list[tuple[int, int]] = []
    for epoch, start in sorted(starts.items(), reverse=True):
        if epoch >= 0 and (not rising or start < rising[-1][1]):
            rising.append((epoch, start))
    return tuple(reversed(rising))


def within(epochs: Epochs, start_offset: int, next_offset: int) -> Epochs:
    """As Kafka keeps them for a log of this range: the epoch in force at its start begins there, none begins after its end."""
    below = [(epoch, start_offset) for epoch, start in epochs if start <= start_offset][-1:]
    return (*below, *((epoch, start) for epoch, start in epochs if start_offset < start <= next_offset))


def note_leader_epochs(
    metastore: Metastore, topic_partition: TopicPartition, epochs: Iterable[tuple[int, int]]
) -> None:
    """Adds these to the known ones."""
    table = schema.leader_epochs
    with metastore.transaction() as connection:
        partition_id, _ = located(connection, topic_partition, lock=True)
        of_partition = table.c.partition_id == partition_id
        before = [(row.epoch, row.start_offset) for row in connection.execute(select(table).where(of_partition))]
        after = merged(before, epochs)
        if sorted(before) == list(after):
            return
        connection.execute(delete(table).where(of_partition))
        rows = [{"partition_id": partition_id, "epoch": epoch, "start_offset": start} for epoch, start in after]
        connection.execute(insert(table), rows)
        note_epochs(connection, topic_partition, after)


def known_leader_epochs(metastore: Metastore, topic_partition: TopicPartition) -> Epochs:
    table = schema.leader_epochs
    with metastore.transaction() as connection:
        of_partition = table.c.partition_id == partition_id_of(connection, topic_partition)
        rows = connection.execute(select(table).where(of_partition).order_by(table.c.epoch))
        return tuple((row.epoch, row.start_offset) for row in rows)
