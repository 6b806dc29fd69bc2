"""Erasures that somebody asked for: which key, by when, how far each one is. Rows of the metastore, and the order of the steps.

A key is remembered as its digest under the lake's secret. What is done for a step is in `erasure`; here is which one comes
next, decided by what is left of the key, and why it has to wait. What is asked for, and each step, is told to the journal: a
metastore that is rebuilt knows of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, select, update

from headstone.lake import schema
from headstone.lake.changes import CONDEMNED, REGISTERED, UNREFERENCED
from headstone.lake.journal import erasure_change, note
from headstone.lake.key_search import KeyRecord
from headstone.lake.metastore import Metastore
from headstone.lake.rows import chunks

REQUESTED = "requested"
VALUES_LEFT = "values have left the log"
VALUES_GONE = "values are gone"
KEY_LEFT = "key has left the log"
ERASED = "erased"
STEPS = (REQUESTED, VALUES_LEFT, VALUES_GONE, KEY_LEFT, ERASED)
"""In this order. Whatever has left the log is in objects at which nobody points, until these are collected."""
RETRY_MS = 600_000
"""After which a worker looks again for what nobody can tell the time of: a deletion in Kafka, a hold that is released."""
RETRY_MS_MAX = 6 * 3_600_000
"""For a deletion that does not come: every look reads the lists of keys of the whole topic."""


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
        """One that is under way stays so, and the earlier deadline counts; one that is done begins anew.

        requested_ms is of the last time: whoever is looking for the key just now has not looked at what came since."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            fresh = {
                "topic": topic, "requested_ms": moment_ms, "deadline_ms": deadline_ms, "step": REQUESTED,
                "step_ms": moment_ms, "not_before_ms": 0, "waits_for": "",
            }  # fmt: skip
            changes = [
                erasure_change(row)
                for some in chunks(sorted(set(digests)))
                for row in _requested(connection, fresh, some)
            ]
            note(connection, changes)

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

    def advance(self, steps: Sequence[tuple[Erasure, str]], *, now_ms: int) -> int:
        """How many were done; of the others another worker was faster, and nothing of them is changed.

        All in one transaction, with one entry of the journal: a thousand keys are not a thousand objects."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            done: list[Erasure] = []
            for step in sorted({step for _, step in steps}):
                values = {"step": step, "step_ms": moment_ms, "not_before_ms": 0, "waits_for": ""}
                for same in _same([erasure for erasure, next_step in steps if next_step == step]):
                    rows = connection.execute(select(schema.erasures).where(same).with_for_update()).all()
                    locked = schema.erasures.c.key_digest.in_([row.key_digest for row in rows])
                    connection.execute(update(schema.erasures).where(same, locked).values(**values))
                    done += [Erasure(**{**row._mapping, **values}) for row in rows]
            note(connection, [erasure_change(erasure) for erasure in done])
        return len(done)

    def wait(self, erasures: Sequence[Erasure], waits_for: str, *, until_ms: int) -> None:
        values = {"waits_for": waits_for, "not_before_ms": until_ms}
        with self._metastore.transaction() as connection:
            for same in _same(erasures):
                connection.execute(update(schema.erasures).where(same).values(**values))

    def unused_objects(self) -> UnusedObjects:
        columns = schema.objects.c
        # One that was never committed has no size: an orphan, which is known since it was found, and may hold what is older.
        orphan = (columns.state == UNREFERENCED) & (columns.size == 0)
        old = columns.state.in_([UNREFERENCED, REGISTERED]) & ~orphan
        # A long job renews what it has registered, and may have uploaded since: what it has read is as old as ever.
        since_ms = case((columns.state == REGISTERED, columns.registered_ms), else_=columns.changed_ms)
        with self._metastore.transaction() as connection:
            always = select(func.count()).select_from(schema.objects).where(orphan | (columns.state == CONDEMNED))
            return UnusedObjects(
                always=int(connection.execute(always).scalar_one()),
                changed_ms=tuple(connection.scalars(select(since_ms).where(old).order_by(since_ms))),
            )


def _requested(connection: Connection, fresh: Mapping[str, object], digests: Sequence[str]) -> list[Any]:
    """The rows of these keys as they are now. `fresh`: of one that was not under way."""
    table = schema.erasures
    chosen = (table.c.topic == fresh["topic"]) & table.c.key_digest.in_(digests)
    connection.execute(delete(table).where(chosen, table.c.step == ERASED))
    under_way = set(connection.scalars(select(table.c.key_digest).where(chosen).with_for_update()))
    connection.execute(update(table).where(chosen).values(requested_ms=fresh["requested_ms"]))
    later = chosen & (table.c.deadline_ms > fresh["deadline_ms"])
    connection.execute(update(table).where(later).values(deadline_ms=fresh["deadline_ms"]))
    rows = [{**fresh, "key_digest": digest} for digest in digests if digest not in under_way]
    if rows:
        connection.execute(insert(table), rows)
    return list(connection.execute(select(table).where(chosen)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedObjects:
    """Objects that nobody points at, and uploads that are on their way: since when, and how many of which nobody knows."""

    always: int
    changed_ms: tuple[int, ...]
    """In order."""

    def since(self, moment_ms: int) -> int:
        """Those that were so by then: what is left of them."""
        return self.always + bisect_right(self.changed_ms, moment_ms)


def _same(erasures: Sequence[Erasure]) -> Iterator[ColumnElement[bool]]:
    """Their rows, as long as they are at the same step, done at the same time, and were not asked for again: one that has
    begun again is another.

    In chunks, each of which locks its rows in one order."""
    columns, by_step = schema.erasures.c, dict[tuple[str, str, int, int], list[str]]()
    for erasure in erasures:
        state = (erasure.topic, erasure.step, erasure.step_ms, erasure.requested_ms)
        by_step.setdefault(state, []).append(erasure.key_digest)
    for (topic, step, step_ms, requested_ms), digests in sorted(by_step.items()):
        at_step = and_(
            columns.topic == topic, columns.step == step, columns.step_ms == step_ms, columns.requested_ms == requested_ms
        )  # fmt: skip
        for some in chunks(sorted(digests)):
            yield at_step & columns.key_digest.in_(some)


def patience_ms(erasure: Erasure, now_ms: int) -> int:
    """Until the next look for a deletion in Kafka: as long as it was waited for so far, so twice as long each time.

    Up to a quarter of a day, and up to an eighth of what is left before the deadline. Whoever asks again starts anew."""
    waited_ms, left_ms = now_ms - max(erasure.requested_ms, erasure.step_ms), erasure.deadline_ms - now_ms
    longest_ms = min(RETRY_MS_MAX, left_ms // 8) if left_ms > 0 else RETRY_MS_MAX
    return max(RETRY_MS, min(waited_ms, longest_ms))


def undeleted(records: Sequence[KeyRecord]) -> list[KeyRecord]:
    """Of each partition the newest shown record of the key, where it is a value: somebody has to delete it first."""
    newest = {record.partition: record for record in sorted(records, key=lambda record: record.offset) if record.shown}
    return [record for _, record in sorted(newest.items()) if not record.tombstone]


def next_left(erasure: Erasure, records: Sequence[KeyRecord]) -> str | None:
    """The step that is done as soon as the objects of these records' past are emptied; None: too much is left in the log."""
    if erasure.step == REQUESTED and not any(not record.tombstone for record in records):
        return VALUES_LEFT if records else KEY_LEFT
    return KEY_LEFT if erasure.step == VALUES_GONE and not records else None
