"""Erasures that somebody asked for: which key, by when, how far each one is. Rows of the metastore, and the order of the steps.

A key is remembered as its digest under the lake's secret. What is done for a step is in `erasure`; here is which one comes
next, decided by what is left of the key, and why it has to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, func, insert, select, update

from headstone.lake import schema
from headstone.lake.changes import CONDEMNED, REGISTERED, UNREFERENCED
from headstone.lake.key_search import KeyRecord
from headstone.lake.metastore import Metastore

REQUESTED = "requested"
VALUES_LEFT = "values have left the log"
VALUES_GONE = "values are gone"
KEY_LEFT = "key has left the log"
ERASED = "erased"
STEPS = (REQUESTED, VALUES_LEFT, VALUES_GONE, KEY_LEFT, ERASED)
"""In this order. Whatever has left the log is in objects at which nobody points, until these are collected."""
RETRY_MS = 600_000
"""After which a worker looks again for what nobody can tell the time of: a deletion in Kafka, a hold that is released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    topic: str
    key_digest: str
    requested_ms: int
    deadline_ms: int
    step: str
    step_ms: int
    """When the step was done."""
    not_before_ms: int
    """Until then there is nothing to do."""
    waits_for: str

    @property
    def is_open(self) -> bool:
        return self.step != ERASED

    def is_late(self, now_ms: int) -> bool:
        return (now_ms if self.is_open else self.step_ms) > self.deadline_ms


class Erasures:
    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def request(self, topic: str, digests: Collection[str], *, deadline_ms: int, now_ms: int) -> None:
        """One that is under way stays so, and the earlier deadline counts; one that is done begins anew."""
        table = schema.erasures
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            chosen = (table.c.topic == topic) & table.c.key_digest.in_(digests)
            connection.execute(delete(table).where(chosen, table.c.step == ERASED))
            under_way = set(connection.scalars(select(table.c.key_digest).where(chosen).with_for_update()))
            later = chosen & (table.c.deadline_ms > deadline_ms)
            connection.execute(update(table).where(later).values(deadline_ms=deadline_ms))
            fresh = {
                "topic": topic, "requested_ms": moment_ms, "deadline_ms": deadline_ms, "step": REQUESTED,
                "step_ms": moment_ms, "not_before_ms": 0, "waits_for": "",
            }  # fmt: skip
            rows = [{**fresh, "key_digest": digest} for digest in sorted(set(digests) - under_way)]
            if rows:
                connection.execute(insert(table), rows)

    def all(self) -> list[Erasure]:
        table = schema.erasures
        with self._metastore.transaction() as connection:
            rows = connection.execute(select(table).order_by(table.c.topic, table.c.key_digest))
            return [Erasure(**row._mapping) for row in rows]

    def open_topics(self, *, now_ms: int) -> list[str]:
        """Of those that have something to do now."""
        table = schema.erasures
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            due = (table.c.step != ERASED) & (table.c.not_before_ms <= moment_ms)
            return list(connection.scalars(select(table.c.topic).where(due).distinct().order_by(table.c.topic)))

    def open_of(self, topic: str) -> list[Erasure]:
        return [erasure for erasure in self.all() if erasure.topic == topic and erasure.is_open]

    def advance(self, erasure: Erasure, step: str, *, now_ms: int) -> bool:
        """False if another worker was faster; nothing is changed then."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            values = {"step": step, "step_ms": moment_ms, "not_before_ms": 0, "waits_for": ""}
            return connection.execute(update(schema.erasures).where(_same(erasure)).values(**values)).rowcount == 1

    def wait(self, erasure: Erasure, waits_for: str, *, until_ms: int) -> None:
        values = {"waits_for": waits_for, "not_before_ms": until_ms}
        with self._metastore.transaction() as connection:
            connection.execute(update(schema.erasures).where(_same(erasure)).values(**values))

    def objects_since(self, moment_ms: int) -> int:
        """Objects that nobody pointed at by then, and uploads that were on their way: what is left of those."""
        columns = schema.objects.c
        # One that was never committed has no size: an orphan, which is known since it was found, and may hold what is older.
        orphan = (columns.state == UNREFERENCED) & (columns.size == 0)
        old = columns.state.in_([UNREFERENCED, REGISTERED]) & (columns.changed_ms <= moment_ms) | orphan
        with self._metastore.transaction() as connection:
            query = select(func.count()).select_from(schema.objects).where(old | (columns.state == CONDEMNED))
            return int(connection.execute(query).scalar_one())


def _same(erasure: Erasure) -> ColumnElement[bool]:
    columns = schema.erasures.c
    return and_(
        columns.topic == erasure.topic, columns.key_digest == erasure.key_digest, columns.step == erasure.step
    )  # fmt: skip


def undeleted(records: Sequence[KeyRecord]) -> list[KeyRecord]:
    """Of each partition the newest shown record of the key, where it is a value: somebody has to delete it first."""
    newest = {record.partition: record for record in sorted(records, key=lambda record: record.offset) if record.shown}
    return [record for _, record in sorted(newest.items()) if not record.tombstone]


def next_left(erasure: Erasure, records: Sequence[KeyRecord]) -> str | None:
    """The step that is done as soon as the objects of these records' past are emptied; None: too much is left in the log."""
    if erasure.step == REQUESTED and not any(not record.tombstone for record in records):
        return VALUES_LEFT if records else KEY_LEFT
    return KEY_LEFT if erasure.step == VALUES_GONE and not records else None
