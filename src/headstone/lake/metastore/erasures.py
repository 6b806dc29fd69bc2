"""Requested erasures: which key, by when, how far each one is, and what it waits for.

Dropping a topic is an erasure of all of it, under its name and `WHOLE`; a new topic with the same name is not affected. A key
is stored as its digest under the lake's secret. The steps are in `erasure_steps`; the job decides which one comes next and does
the work (`lake/jobs/erasure`). Each request and each step goes to the journal, so that a rebuilt metastore knows them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, select, update

from headstone.lake.metastore import schema
from headstone.lake.metastore.catalog import forget_topic
from headstone.lake.metastore.clock import Moment
from headstone.lake.metastore.commits import no_topic
from headstone.lake.metastore.erasure_steps import (
    CLOSED,
    ERASED,
    NEVER_SEEN,
    REQUESTED,
    TOPIC_DROPPED,
    WHOLE,
    request_drop,
)
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.notes import erasure_change, note
from headstone.lake.metastore.object_states import CONDEMNED, REGISTERED, UNREFERENCED, release
from headstone.lake.metastore.rows import chunks
from headstone.units import HOUR_MS

RETRY_MS = 600_000
"""When a worker looks again while it waits for something without a known time: a deletion in Kafka, a hold to be released."""
RETRY_MS_MAX = 6 * HOUR_MS
"""For a deletion that does not come: every look reads the lists of keys of the whole topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """One row: a key of a topic by its digest, or a whole dropped topic (`WHOLE`)."""

    topic: str
    key_digest: str
    requested_ms: int
    deadline_ms: int
    step: str
    step_ms: int
    """When the last step was done."""
    not_before_ms: int
    """Nothing to do before this time."""
    waits_for: str
    seen: bool
    """A record of the key was found since the request, or the key was erased here before."""

    @property
    def is_open(self) -> bool:
        return self.step not in CLOSED

    @property
    def is_whole(self) -> bool:
        return self.key_digest == WHOLE


class Erasures:
    """The requested erasures of one lake."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def request(self, topic: str, digests: Collection[str], *, deadline_ms: int, now_ms: int) -> None:
        """An erasure under way goes on, with the earlier deadline; a finished one begins anew.

        requested_ms is of the last request: a job that is already looking for the key has not seen what came since."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            fresh = {
                "topic": topic, "requested_ms": moment_ms, "deadline_ms": deadline_ms, "step": REQUESTED,
                "step_ms": moment_ms, "not_before_ms": 0, "waits_for": "", "seen": False,
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
        """Topics with something to do now."""
        table = schema.erasures
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            due = table.c.step.not_in(CLOSED) & (table.c.not_before_ms <= moment_ms)
            return list(connection.scalars(select(table.c.topic).where(due).distinct().order_by(table.c.topic)))

    def of(self, topic: str) -> list[Erasure]:
        return [erasure for erasure in self.all() if erasure.topic == topic]

    def open_of(self, topic: str) -> list[Erasure]:
        """Erasures of the topic's keys that still have to be looked for; not those of a dropped topic with this name."""
        passed = (*CLOSED, TOPIC_DROPPED)
        return [erasure for erasure in self.of(topic) if not erasure.is_whole and erasure.step not in passed]

    def open_drop(self, topic: str) -> Erasure | None:
        return next((erasure for erasure in self.of(topic) if erasure.is_whole and erasure.is_open), None)

    def open_drops(self) -> list[str]:
        """Dropped topics that may not be completely erased yet."""
        return [erasure.topic for erasure in self.all() if erasure.is_whole and erasure.is_open]

    def digests_of(self, topic: str) -> list[str]:
        """Digests of all keys for which an erasure was ever requested."""
        table = schema.erasures
        query = select(table.c.key_digest).where(table.c.topic == topic, table.c.key_digest != WHOLE)
        with self._metastore.transaction() as connection:
            return list(connection.scalars(query.order_by(table.c.key_digest)))

    def saw(self, topic: str, digests: Collection[str]) -> None:
        """A record of each of these keys was found."""
        table, changes = schema.erasures, list[Any]()
        with self._metastore.transaction() as connection:
            for some in chunks(sorted(digests)):
                chosen = (table.c.topic == topic) & table.c.key_digest.in_(some) & ~table.c.seen
                rows = connection.execute(select(table).where(chosen).with_for_update()).all()
                connection.execute(update(table).where(chosen).values(seen=True))
                changes += [Erasure(**{**row._mapping, "seen": True}) for row in rows]
            note(connection, [erasure_change(row) for row in changes])

    def advance(self, steps: Sequence[tuple[Erasure, str]], *, now_ms: int) -> int:
        """Returns how many steps were done. Where another worker was faster, nothing changes.

        A key that was never seen ends as `NEVER_SEEN`, not as erased. All in one transaction with one journal entry: a thousand
        keys are not a thousand objects."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            done: list[Erasure] = []
            for step in sorted({step for _, step in steps}):
                for same in _same([erasure for erasure, next_step in steps if next_step == step]):
                    values = {"step": step, "step_ms": moment_ms, "not_before_ms": 0, "waits_for": ""}
                    rows = connection.execute(select(schema.erasures).where(same).with_for_update()).all()
                    for seen in (True, False):
                        some = [row for row in rows if row.seen == seen]
                        if step == ERASED and not seen:
                            values["step"] = NEVER_SEEN
                        locked = schema.erasures.c.key_digest.in_([row.key_digest for row in some])
                        connection.execute(update(schema.erasures).where(same, locked).values(**values))
                        done += [Erasure(**{**row._mapping, **values}) for row in some]
            note(connection, [erasure_change(erasure) for erasure in done])
        return len(done)

    def wait(self, erasures: Sequence[Erasure], waits_for: str, *, until_ms: int) -> None:
        values = {"waits_for": waits_for, "not_before_ms": until_ms}
        with self._metastore.transaction() as connection:
            for same in _same(erasures):
                connection.execute(update(schema.erasures).where(same).values(**values))

    def unused_objects(self) -> UnusedObjects:
        columns = schema.objects.c
        # Without a size it was never committed: an orphan, known only since it was found, which may hold older data.
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


def drop(metastore: Metastore, topic: str, *, now_ms: Moment | None, deadline_ms: int) -> int:
    """Forgets a topic and requests the erasure of all of it. Returns how many objects became unreferenced."""
    partitions = schema.partitions
    with metastore.transaction() as connection:
        topic_id = connection.execute(select(schema.topics.c.topic_id).where(schema.topics.c.name == topic)).scalar()
        if topic_id is None:
            raise no_topic(topic, connection.scalars(select(schema.topics.c.name)))
        own = select(partitions.c.partition_id).where(partitions.c.topic_id == topic_id)
        ids = list(connection.scalars(own.order_by(partitions.c.partition_id).with_for_update()))
        before = _unreferenced(connection)
        objects: set[str] = set()
        for some in chunks(ids):
            for column in (schema.extents.c.object_id, schema.extents.c.dead_object):
                object_ids = (
                    select(column).where(schema.extents.c.partition_id.in_(some), column.is_not(None)).distinct()
                )
                objects |= set(connection.scalars(object_ids))
        forget_topic(connection, topic)
        clock = partial(metastore.moment, connection, now_ms)
        release(connection, objects, clock)
        moment_ms = clock()
        request_drop(connection, topic, deadline_ms=moment_ms + deadline_ms, moment_ms=moment_ms)
        return _unreferenced(connection) - before


def _unreferenced(connection: Connection) -> int:
    counted = select(func.count()).select_from(schema.objects).where(schema.objects.c.state == UNREFERENCED)
    return int(connection.execute(counted).scalar_one())


def _requested(connection: Connection, fresh: Mapping[str, object], digests: Sequence[str]) -> list[Any]:
    """The current rows of these keys. `fresh`: values for keys that have no erasure under way."""
    table = schema.erasures
    chosen = (table.c.topic == fresh["topic"]) & table.c.key_digest.in_(digests)
    seen = set(connection.scalars(select(table.c.key_digest).where(chosen, table.c.seen)))
    connection.execute(delete(table).where(chosen, table.c.step.in_((*CLOSED, TOPIC_DROPPED))))
    under_way = set(connection.scalars(select(table.c.key_digest).where(chosen).with_for_update()))
    connection.execute(update(table).where(chosen).values(requested_ms=fresh["requested_ms"]))
    later = chosen & (table.c.deadline_ms > fresh["deadline_ms"])
    connection.execute(update(table).where(later).values(deadline_ms=fresh["deadline_ms"]))
    rows = [{**fresh, "key_digest": digest, "seen": digest in seen} for digest in digests if digest not in under_way]
    if rows:
        connection.execute(insert(table), rows)
    return list(connection.execute(select(table).where(chosen)))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedObjects:
    """Unreferenced objects and uploads under way, with the time since when; `always` counts those without a known time."""

    always: int
    changed_ms: tuple[int, ...]
    """In order."""

    def since(self, moment_ms: int) -> int:
        """How many may hold data from `moment_ms` or earlier."""
        return self.always + bisect_right(self.changed_ms, moment_ms)


def _same(erasures: Sequence[Erasure]) -> Iterator[ColumnElement[bool]]:
    """Conditions for their rows, provided that step, its time and the request are unchanged: an erasure that has begun again is
    another one.

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
    """Until the next look for a deletion in Kafka: as long as it has waited so far, so the wait doubles each time.

    At least RETRY_MS; at most six hours and an eighth of the time left before the deadline. A new request starts anew."""
    waited_ms, left_ms = now_ms - max(erasure.requested_ms, erasure.step_ms), erasure.deadline_ms - now_ms
    longest_ms = min(RETRY_MS_MAX, left_ms // 8) if left_ms > 0 else RETRY_MS_MAX
    return max(RETRY_MS, min(waited_ms, longest_ms))
