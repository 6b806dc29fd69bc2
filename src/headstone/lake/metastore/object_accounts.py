"""What the metastore knows about the bytes of objects, so that their indexes need not be read.

An object is explained if the rows of extents, current and past, lie back to back in it, and if an index of exactly these is as
long as the rest of it: then nothing else can be in it. Others, such as objects with ranges of a dropped topic, can only be
explained by their index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, select

from headstone.lake.format.objects import MAGIC, Range, place_of, size_of
from headstone.lake.metastore import schema
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.object_states import COMMITTED
from headstone.lake.metastore.rows import chunks, extent_of


@dataclass(slots=True)
class Account:
    """`used`: positions in it where current extents with batches begin."""

    lake_id: str
    object_id: str
    size: int
    used: set[int] = field(default_factory=set)
    ranges: set[Range] = field(default_factory=set)

    @property
    def is_explained(self) -> bool:
        end = len(MAGIC)
        for start, range_end in sorted(place_of(listed, self.object_id) for listed in self.ranges):
            if start != end:
                return False
            end = range_end
        return size_of(self.lake_id, self.object_id, self.ranges, end) == self.size


def accounts_of(metastore: Metastore, object_ids: Sequence[str]) -> dict[str, Account]:
    """Of those that exist. At most as many ids as fit into a statement; in one snapshot, in which no extent moves."""
    with metastore.transaction(snapshot=True) as connection:
        return _accounts(connection, object_ids)


def _accounts(connection: Connection, object_ids: Sequence[str]) -> dict[str, Account]:
    objects = schema.objects.c
    sizes = connection.execute(select(objects.object_id, objects.size).where(objects.object_id.in_(object_ids)))
    lake_id = connection.execute(select(schema.lakes.c.lake_id)).scalar_one()
    accounts = {object_id: Account(lake_id, object_id, size) for object_id, size in sizes}
    for table in (schema.extents, schema.past_extents):
        for row in _rows(connection, table, table.c.object_id, sorted(accounts)):
            extent = extent_of(row)
            account = accounts[extent.object_id]
            if table is schema.extents and extent.length:
                account.used.add(extent.position)
            written = replace(
                extent, records=extent.records + extent.dead, dead=0, dead_object=None, dead_position=0, dead_checksum=0
            )
            account.ranges.add(Range(topic=row.name, partition=row.number, extent=written))
        for row in _rows(connection, table, table.c.dead_object, sorted(accounts)):
            accounts[row.dead_object].ranges.add(Range(topic=row.name, partition=row.number, extent=extent_of(row)))
    return accounts


def _rows(connection: Connection, table: Any, column: Any, object_ids: Sequence[str]) -> Iterable[Any]:
    partitions, topics = schema.partitions, schema.topics
    joined = table.join(partitions, table.c.partition_id == partitions.c.partition_id).join(
        topics, partitions.c.topic_id == topics.c.topic_id
    )
    return connection.execute(
        select(topics.c.name, partitions.c.number, table).select_from(joined).where(column.in_(object_ids))
    )


def accounts_in_use(metastore: Metastore) -> Iterator[list[Account]]:
    """Accounts of the objects in use, in chunks."""
    objects = schema.objects
    with metastore.transaction() as connection:
        in_use = list(connection.scalars(select(objects.c.object_id).where(objects.c.state == COMMITTED)))
    for some in chunks(sorted(in_use)):
        yield [account for _, account in sorted(accounts_of(metastore, some).items())]
