"""Records that were given up because their object was damaged: as a row of the metastore, and as a change in the journal.

They stay recorded while their topic exists. `mending` decides what is given up, and whether it may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, insert, select

from headstone.lake.format.extents import Extent
from headstone.lake.format.spans import Span
from headstone.lake.metastore import commits, schema
from headstone.lake.metastore.changes import locked, touched_by, write
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.notes import note
from headstone.lake.metastore.object_states import release, use
from headstone.lake.metastore.rows import located_all
from headstone.log.topic_partition import TopicPartition
from headstone.units import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records that were given up."""

    partition: TopicPartition
    span: Span
    records: int
    keys: int | None
    """Number of keys whose newest records they were; None if unknown."""
    older_values: bool
    """Older values of their keys may be served, because it is not known which keys they are."""
    moment_ms: int

    def __str__(self) -> str:
        keys = "unknown keys" if self.keys is None else count(self.keys, "key")
        older = "; older values of these may be served" if self.older_values else ""
        return f"{self.partition} {self.span}: lost {count(self.records, 'record')}, the newest of {keys}{older}"


def write_loss(connection: Connection, partition_id: int, loss: Loss) -> None:
    row = {
        "partition_id": partition_id, "span_start": loss.span.start, "span_end": loss.span.end, "records": loss.records,
        "lost_keys": -1 if loss.keys is None else loss.keys, "older_values": int(loss.older_values),
        "moment_ms": loss.moment_ms,
    }  # fmt: skip
    connection.execute(insert(schema.losses).values(**row))


def losses(connection: Connection) -> list[Loss]:
    """All that were ever given up, for existing topics."""
    names = {row.partition_id: name for name, row in located_all(connection, None).items()}
    rows = connection.execute(select(schema.losses).order_by(schema.losses.c.loss_id))
    return [_loss(names[row.partition_id], row) for row in rows]


def all_losses(metastore: Metastore) -> list[Loss]:
    with metastore.transaction(snapshot=True) as connection:
        return losses(connection)


def _loss(name: TopicPartition, row: Any) -> Loss:
    return Loss(
        partition=name, span=Span(row.span_start, row.span_end), records=row.records,
        keys=None if row.lost_keys < 0 else row.lost_keys, older_values=bool(row.older_values), moment_ms=row.moment_ms,
    )  # fmt: skip


def loss_change(loss: Loss) -> dict[str, Any]:
    return {
        "lost": [loss.partition.topic, loss.partition.number], "span": list(loss.span), "records": loss.records,
        "keys": loss.keys, "older_values": loss.older_values, "moment_ms": loss.moment_ms,
    }  # fmt: skip


def loss_of(change: Mapping[str, Any]) -> Loss:
    topic, number = change["lost"]
    return Loss(
        partition=TopicPartition(topic, number), span=Span(*change["span"]), records=change["records"], keys=change["keys"],
        older_values=change["older_values"], moment_ms=change["moment_ms"],
    )  # fmt: skip


def give_up(
    metastore: Metastore, topic_partition: TopicPartition, expected_epoch: int, hole: Extent, size: int, loss: Loss
) -> None:
    """Replaces an unreadable extent by an empty one, in an object of this size. The loss gets the time of the commit."""
    with metastore.transaction() as connection:
        clock = partial(metastore.moment, connection)
        use(connection, [hole], {hole.object_id: size}, clock)
        partition = locked(connection, topic_partition, clock, touched_by([hole]))
        after = commits.replaced(partition.before, expected_epoch, [hole], None, now_ms=partition.moment_ms)
        release(connection, write(connection, partition, after) | {hole.object_id}, clock)
        loss = replace(loss, moment_ms=partition.moment_ms)
        write_loss(connection, partition.partition_id, loss)
        note(connection, [loss_change(loss)])
