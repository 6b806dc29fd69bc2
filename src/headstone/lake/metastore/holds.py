"""Readers that ask for time: tombstones that they have not passed stay until they have, or until the hold expires.

A reader that builds its own table from the lake, or resumes one, needs every deletion of what it has already seen. Without a
hold it has `delete.retention.ms`, like a Kafka consumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert

from headstone.errors import UsageError
from headstone.lake.metastore import schema
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.rows import located, with_names
from headstone.log.topic_partition import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHold:
    reader: str
    partition: TopicPartition
    held_from: int
    expires_ms: int


class Holds:
    """The readers' holds of one lake."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def hold(self, reader: str, topic_partition: TopicPartition, held_from: int, *, expires_ms: int) -> None:
        """Replaces the reader's last hold on the partition: as it reads on, it holds less."""
        columns = schema.holds.c
        with self._metastore.transaction() as connection:
            # Under the lock that commits take: every later commit sees the hold.
            partition_id, _ = located(connection, topic_partition, lock=True)
            last_hold = (columns.reader == reader) & (columns.partition_id == partition_id)
            connection.execute(delete(schema.holds).where(last_hold))
            row = {"reader": reader, "partition_id": partition_id, "held_from": held_from, "expires_ms": expires_ms}
            connection.execute(insert(schema.holds).values(**row))

    def release(self, reader: str) -> int:
        """Releases all holds of a reader; returns their number."""
        with self._metastore.transaction() as connection:
            return connection.execute(delete(schema.holds).where(schema.holds.c.reader == reader)).rowcount

    def forget(self, *, expired_by_ms: int) -> int:
        """Removes expired holds of all readers; returns their number."""
        expired = schema.holds.c.expires_ms <= expired_by_ms
        with self._metastore.transaction() as connection:
            return connection.execute(delete(schema.holds).where(expired)).rowcount

    def lowest(self, *, now_ms: int) -> dict[TopicPartition, int]:
        """For each partition with a hold: tombstones from this offset on stay."""
        lowest: dict[TopicPartition, int] = {}
        for hold in self.all(now_ms=now_ms):
            lowest[hold.partition] = min(hold.held_from, lowest.get(hold.partition, hold.held_from))
        return lowest

    def all(self, *, now_ms: int) -> list[ReaderHold]:
        named = with_names(schema.holds)
        joined = named.order_by(schema.holds.c.reader, schema.topics.c.name, schema.partitions.c.number)
        with self._metastore.transaction() as connection:
            unexpired = joined.where(schema.holds.c.expires_ms > self._metastore.moment(connection, now_ms))
            return [
                ReaderHold(
                    reader=row.reader, partition=TopicPartition(row.name, row.number), held_from=row.held_from,
                    expires_ms=row.expires_ms,
                )
                for row in connection.execute(unexpired)
            ]  # fmt: skip


def hold_from(
    metastore: Metastore, reader: str, partitions: Sequence[TopicPartition], offset: int, *, for_ms: int
) -> int:  # fmt: skip
    """Holds all of these from the offset on, or none if one of them ends before it. Returns until when."""
    for name, end in metastore.next_offsets(partitions).items():
        if offset > end:
            raise UsageError(
                f"{name} ends at {end}: there are no tombstones to keep from offset {offset} on; name an offset up to the end"
            )
    expires_ms = metastore.clock() + for_ms
    for name in partitions:
        Holds(metastore).hold(reader, name, offset, expires_ms=expires_ms)
    return expires_ms
