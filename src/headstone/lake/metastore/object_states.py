"""The states of an object, by its row: registered, committed, unreferenced, condemned, forgotten.

An object is registered before it is uploaded and used by one commit only. It is unreferenced when the last extent points
elsewhere, and condemned before it is deleted from the store. Every function works inside a transaction of the metastore's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from headstone.lake.format.extents import Extent
from headstone.lake.metastore import schema
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.rows import chunks

REGISTERED, COMMITTED, UNREFERENCED, CONDEMNED = "registered", "committed", "unreferenced", "condemned"


def is_garbage(
    connection: Connection, unreferenced_before_ms: int, registered_before_ms: int, now_ms: int
) -> ColumnElement[bool]:
    """Condition for objects that nobody can need. One left since the oldest pin may still be read."""
    columns, pinned_ms = schema.objects.c, oldest_pin(connection, now_ms)
    needed_ms = unreferenced_before_ms if pinned_ms is None else min(unreferenced_before_ms, pinned_ms)
    old = and_(columns.state == UNREFERENCED, columns.changed_ms < needed_ms)
    lost = and_(columns.state == REGISTERED, columns.changed_ms < registered_before_ms)
    return old | lost | (columns.state == CONDEMNED)


def collectable(connection: Connection, garbage: ColumnElement[bool]) -> list[ObjectRow]:
    rows = connection.execute(select(schema.objects).where(garbage).order_by(schema.objects.c.object_id))
    return [object_row(row) for row in rows]


def condemn(connection: Connection, garbage: ColumnElement[bool]) -> list[str]:
    rows = connection.execute(select(schema.objects.c.object_id).where(garbage).with_for_update()).all()
    condemned = sorted(row.object_id for row in rows)
    chosen = schema.objects.c.object_id.in_(condemned)
    connection.execute(update(schema.objects).where(chosen).values(state=CONDEMNED))
    forget_past(connection, condemned)
    return condemned


def forget_past(connection: Connection, object_ids: Sequence[str]) -> None:
    """Removes the past that points at collected objects: earlier moments can't be read from then on."""
    past, partitions = schema.past_extents, schema.partitions
    own = past.c.object_id.in_(object_ids) | past.c.dead_object.in_(object_ids)
    latest = select(past.c.partition_id, func.max(past.c.removed_ms)).where(own).group_by(past.c.partition_id)
    starts = schema.past_starts
    for partition_id, removed_ms in connection.execute(latest).all():
        later = (partitions.c.partition_id == partition_id) & (partitions.c.known_from_ms < removed_ms)
        connection.execute(update(partitions).where(later).values(known_from_ms=removed_ms))
        unknown = (starts.c.partition_id == partition_id) & (starts.c.removed_ms <= removed_ms)
        connection.execute(delete(starts).where(unknown))
    connection.execute(delete(past).where(own))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRow:
    object_id: str
    state: str
    size: int
    changed_ms: int


def use(connection: Connection, extents: Sequence[Extent], sizes: Mapping[str, int], clock: Callable[[], int]) -> None:
    """Registered objects become committed. An object that is not registered, or already used, is refused.

    An extent with dead records exists already: only the list of them is new."""
    table, wanted = schema.objects, sorted({extent.dead_object or extent.object_id for extent in extents})
    free: set[str] = set()
    for some in chunks(wanted):
        registered = table.c.object_id.in_(some) & (table.c.state == REGISTERED)
        rows = select(table.c.object_id).where(registered).order_by(table.c.object_id)
        free.update(connection.scalars(rows.with_for_update(key_share=True)))
    for object_id in wanted:
        if object_id not in free:
            raise CommitRefused(f"object {object_id} is no longer registered, or already used: upload under a new ID")
    now_ms = clock() if wanted else 0
    taken = [
        {"row_id": object_id, "state": COMMITTED, "size": sizes[object_id], "changed_ms": now_ms}
        for object_id in wanted
    ]
    if taken:
        connection.execute(update(table).where(table.c.object_id == bindparam("row_id")), taken)


def release(connection: Connection, object_ids: set[str], clock: Callable[[], int]) -> None:
    """Those of the objects that no extent uses any more become garbage, after a time of grace for readers.

    Locks their rows first: if two partitions leave the same object at once, the second must see the first."""
    ordered = sorted(object_ids)
    for some in chunks(ordered):
        listed = schema.objects.c.object_id.in_(some)
        rows = select(schema.objects.c.object_id).where(listed).order_by(schema.objects.c.object_id)
        # Not against transactions that only point at them from new rows: two that do both would deadlock.
        connection.execute(rows.with_for_update(key_share=True)).all()
        columns, own = (schema.extents.c.object_id, schema.extents.c.dead_object), schema.objects.c.object_id
        used = or_(*(exists().where(column == own) for column in columns))
        still = set(connection.scalars(select(own).where(own.in_(some), used)))
        free = schema.objects.c.object_id.in_([object_id for object_id in some if object_id not in still])
        left = free & (schema.objects.c.state == COMMITTED)
        connection.execute(update(schema.objects).where(left).values(state=UNREFERENCED, changed_ms=clock()))


def object_rows(connection: Connection) -> dict[str, ObjectRow]:
    return {row.object_id: object_row(row) for row in connection.execute(select(schema.objects)).all()}


def object_row(row: Any) -> ObjectRow:
    return ObjectRow(object_id=row.object_id, state=row.state, size=row.size, changed_ms=row.changed_ms)


def lock_pins(connection: Connection) -> None:
    """Taking a pin and condemning objects exclude each other, so that one of them sees what the other did."""
    connection.execute(select(schema.lakes.c.lake_id).with_for_update()).all()


def oldest_pin(connection: Connection, now_ms: int) -> int | None:
    """The oldest moment of the pins that have not expired: nobody needs what was left before it."""
    columns = schema.pins.c
    oldest: int | None = connection.execute(
        select(func.min(columns.as_of_ms)).where(columns.expires_ms > now_ms)
    ).scalar_one()
    return oldest


def note_orphans(connection: Connection, object_ids: Sequence[str], moment_ms: int) -> None:
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    unknown = insert(schema.objects).on_conflict_do_nothing(index_elements=[schema.objects.c.object_id])
    row = {"state": UNREFERENCED, "size": 0, "changed_ms": moment_ms}
    for some in chunks(object_ids):
        connection.execute(unknown, [{**row, "object_id": object_id} for object_id in some])


def claim_listing(connection: Connection, now_ms: int, every_ms: int) -> int | None:
    listed_ms = int(connection.execute(select(schema.lakes.c.listed_ms)).scalar_one())
    if listed_ms and listed_ms > now_ms - every_ms:
        return None
    unchanged = schema.lakes.c.listed_ms == listed_ms
    claimed = connection.execute(update(schema.lakes).where(unchanged).values(listed_ms=now_ms)).rowcount
    return listed_ms if claimed else None
