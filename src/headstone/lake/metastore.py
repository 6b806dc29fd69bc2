"""The metastore: which extents are the log of each partition. SQL through SQLAlchemy; SQLite or PostgreSQL.

Owns transactions. A commit reads the partition under a lock, asks `commits` for the new state, and writes the difference; a
refusal rolls back everything. Objects are registered before they are uploaded, and used by one commit only.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection, Engine, and_, delete, func, insert, select, update
from sqlalchemy.exc import OperationalError

from headstone.errors import Unfinished, UsageError
from headstone.lake import commits, schema
from headstone.lake.commits import Claim, CommitRefused, Extent, Partition
from headstone.lake.database import connected
from headstone.lake.rows import Place, TopicPartition, extent_of, extent_row, loaded, located, places
from headstone.retention.keys import HashKey

REGISTERED, COMMITTED, UNREFERENCED, CONDEMNED = "registered", "committed", "unreferenced", "condemned"
ROWS_AT_ONCE = 500
"""In one SQL statement: databases limit its parameters."""


Moment = int | Callable[[], int]
"""Milliseconds since 1970, or a clock, which is read when the locks are held: whoever waited for them is not too early."""


def _ms(moment: Moment) -> int:
    return moment if isinstance(moment, int) else moment()


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Extents for the end of one partition's log."""

    expected_next: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRow:
    object_id: str
    state: str
    size: int
    changed_ms: int


class Metastore:
    """One lake's metastore. Methods are one transaction each; a CommitRefused has changed nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hash_key: HashKey | None = None

    @classmethod
    def open(cls, url: str) -> Metastore:
        """An existing metastore, migrated to this program's version."""
        store = cls(connected(url))
        with store.transaction() as connection:
            if not schema.exists(connection):
                raise UsageError(f"{url} holds no lake; `headstone lake init` makes one")
            schema.migrate(connection)
        return store

    @classmethod
    def create(cls, url: str, *, location: str, now_ms: int) -> Metastore:
        """A new one. `location` is the prefix of its objects, which it alone uses."""
        store = cls(connected(url))
        with store.transaction() as connection:
            if schema.exists(connection):
                raise UsageError(f"{url} holds a lake already")
            schema.metadata.create_all(connection)
            row = {"lake_id": str(uuid.uuid4()), "version": schema.VERSION, "location": location, "created_ms": now_ms}
            row["hash_key"] = secrets.token_hex(16)
            connection.execute(insert(schema.lakes).values(**row))
        return store

    @property
    def lake_id(self) -> str:
        with self.transaction() as connection:
            return str(connection.execute(select(schema.lakes.c.lake_id)).scalar_one())

    @property
    def hash_key(self) -> HashKey:
        """The secret of the digests in lists of keys. It never changes."""
        if self._hash_key is None:
            with self.transaction() as connection:
                secret = int(connection.execute(select(schema.lakes.c.hash_key)).scalar_one(), 16)
            self._hash_key = HashKey(secret >> 64, secret & (1 << 64) - 1)
        return self._hash_key

    @property
    def location(self) -> str:
        with self.transaction() as connection:
            return str(connection.execute(select(schema.lakes.c.location)).scalar_one())

    def close(self) -> None:
        self._engine.dispose()

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, object] | None = None, *, kafka_id: str | None = None
    ) -> None:
        with self.transaction() as connection:
            if connection.execute(select(schema.topics.c.topic_id).where(schema.topics.c.name == name)).first():
                raise UsageError(f"topic {name} exists already")
            row = {"name": name, "settings": json.dumps(dict(settings or {})), "kafka_id": kafka_id}
            connection.execute(insert(schema.topics).values(**row))
            named = select(schema.topics.c.topic_id).where(schema.topics.c.name == name)
            start = {"start_offset": 0, "next_offset": 0, "compaction_epoch": 0}
            start["topic_id"] = connection.execute(named).scalar_one()
            connection.execute(insert(schema.partitions), [{**start, "number": number} for number in range(partitions)])

    def add_partitions(self, topic: str, count: int) -> None:
        """Up to `count`; a topic that has as many or more stays as it is."""
        with self.transaction() as connection:
            named = select(schema.topics.c.topic_id).where(schema.topics.c.name == topic)
            topic_id = connection.execute(named).scalar_one()
            mine = schema.partitions.c.topic_id == topic_id
            known = connection.execute(select(func.count()).select_from(schema.partitions).where(mine)).scalar_one()
            fresh = {"topic_id": topic_id, "start_offset": 0, "next_offset": 0, "compaction_epoch": 0}
            rows = [{**fresh, "number": number} for number in range(known, count)]
            if rows:
                connection.execute(insert(schema.partitions), rows)

    def topics(self) -> dict[str, dict[str, object]]:
        """Names and settings."""
        with self.transaction() as connection:
            rows = connection.execute(
                select(schema.topics.c.name, schema.topics.c.settings).order_by(schema.topics.c.name)
            )
            return {row.name: json.loads(row.settings) for row in rows}

    def configure(self, topic: str, settings: Mapping[str, object]) -> None:
        """These settings of a topic, beside those that it has."""
        named = schema.topics.c.name == topic
        with self.transaction() as connection:
            known = connection.execute(select(schema.topics.c.settings).where(named).with_for_update()).scalar_one()
            after = json.dumps(json.loads(known) | dict(settings))
            connection.execute(update(schema.topics).where(named).values(settings=after))

    def identify(self, topic: str, kafka_id: str) -> str:
        """The id of the topic in Kafka: the one that is known, or this one, from now on."""
        columns = schema.topics.c
        with self.transaction() as connection:
            unknown = (columns.name == topic) & columns.kafka_id.is_(None)
            connection.execute(update(schema.topics).where(unknown).values(kafka_id=kafka_id))
            return str(connection.execute(select(columns.kafka_id).where(columns.name == topic)).scalar_one())

    def partitions(self) -> list[TopicPartition]:
        with self.transaction() as connection:
            rows = connection.execute(
                select(schema.topics.c.name, schema.partitions.c.number)
                .join_from(schema.partitions, schema.topics)
                .order_by(schema.topics.c.name, schema.partitions.c.number)
            )
            return [TopicPartition(row.name, row.number) for row in rows]

    def partition(self, at: TopicPartition) -> Partition:
        with self.transaction() as connection:
            return loaded(connection, *located(connection, at, lock=False))

    def partition_as_of(self, at: TopicPartition, moment_ms: int) -> Partition:
        """What the log was made of then; clean ranges are of no interest to readers and left out."""
        with self.transaction() as connection:
            partition_id, row = located(connection, at, lock=False)
            if moment_ms < row.known_from_ms:
                raise UsageError(
                    f"{at} as of {moment_ms}: what was replaced before {row.known_from_ms} was collected as garbage"
                )
            now, past = schema.extents, schema.past_extents
            lived = select(past).where(
                past.c.partition_id == partition_id, past.c.added_ms <= moment_ms, past.c.removed_ms > moment_ms
            )
            lives = select(now).where(now.c.partition_id == partition_id, now.c.added_ms <= moment_ms)
            found = [extent_of(one) for query in (lived, lives) for one in connection.execute(query)]
        found.sort(key=lambda extent: extent.span.start)
        start = min(row.start_offset, found[0].span.start) if found else 0
        end = found[-1].span.end if found else 0
        return Partition(
            start_offset=start, next_offset=end, compaction_epoch=row.compaction_epoch, extents=tuple(found), cleaned=(),
            tombstones=(),
        )  # fmt: skip

    def register(self, count: int, *, now_ms: int) -> list[str]:
        """Ids for objects that are about to be uploaded."""
        made = [str(uuid.uuid4()) for _ in range(count)]
        rows = [{"object_id": one, "state": REGISTERED, "size": 0, "changed_ms": now_ms} for one in made]
        with self.transaction() as connection:
            connection.execute(insert(schema.objects), rows)
        return made

    def append(self, appends: Mapping[TopicPartition, Append], sizes: Mapping[str, int], *, now_ms: Moment) -> None:
        """Several partitions at once, all or none: an object of ingest holds ranges of many. `sizes` by object id."""
        with self.transaction() as connection:
            _use(connection, [extent for append in appends.values() for extent in append.extents], sizes, now_ms)
            for at, append in sorted(appends.items(), key=lambda item: item[0]):
                change = partial(commits.appended, expected_next=append.expected_next, extents=append.extents)
                _commit(connection, at, change, now_ms, with_extents=False)

    def replace(
        self, at: TopicPartition, expected_epoch: int, extents: Sequence[Extent], claim: Claim | None,
        sizes: Mapping[str, int], *, now_ms: Moment,
    ) -> None:  # fmt: skip
        """A compaction's result; `claim` None is a part of a longer job. Raises the epoch by one."""
        with self.transaction() as connection:
            _use(connection, extents, sizes, now_ms)
            left = _commit(
                connection, at, lambda before: commits.replaced(before, expected_epoch, extents, claim), now_ms
            )
            _release(connection, left | set(sizes), now_ms)

    def level(
        self,
        at: TopicPartition,
        expected_epoch: int,
        extents: Sequence[Extent],
        sizes: Mapping[str, int],
        *,
        now_ms: Moment,
    ) -> None:
        """Merged small extents; checks the epoch without raising it."""
        with self.transaction() as connection:
            _use(connection, extents, sizes, now_ms)
            left = _commit(connection, at, lambda before: commits.leveled(before, expected_epoch, extents), now_ms)
            _release(connection, left | set(sizes), now_ms)

    def start_at(self, at: TopicPartition, start_offset: int, *, now_ms: Moment) -> None:
        with self.transaction() as connection:
            left = _commit(connection, at, lambda before: commits.started_at(before, start_offset), now_ms)
            _release(connection, left, now_ms)

    def collectable(self, *, unreferenced_before_ms: int, registered_before_ms: int) -> list[ObjectRow]:
        """Objects that nobody can need: no extent points at them since then, or they were registered and never used."""
        mine = _collectable(unreferenced_before_ms, registered_before_ms)
        with self.transaction() as connection:
            rows = connection.execute(select(schema.objects).where(mine).order_by(schema.objects.c.object_id))
            return [ObjectRow(**row._mapping) for row in rows]

    def condemn(
        self, object_ids: Sequence[str], *, unreferenced_before_ms: int, registered_before_ms: int
    ) -> list[str]:
        """Before they are deleted from the store: from now on no commit can use them. Those that are still garbage."""
        mine = schema.objects.c.object_id.in_(object_ids) & _collectable(unreferenced_before_ms, registered_before_ms)
        with self.transaction() as connection:
            rows = connection.execute(select(schema.objects.c.object_id).where(mine).with_for_update()).all()
            condemned = sorted(row.object_id for row in rows)
            chosen = schema.objects.c.object_id.in_(condemned)
            connection.execute(update(schema.objects).where(chosen).values(state=CONDEMNED))
            _forget_past(connection, condemned)
        return condemned

    def forget(self, object_ids: Sequence[str]) -> None:
        """After they were deleted from the store."""
        columns = schema.objects.c
        with self.transaction() as connection:
            gone = connection.execute(
                delete(schema.objects).where(columns.object_id.in_(object_ids), columns.state == CONDEMNED)
            )
            if gone.rowcount != len(object_ids):
                raise CommitRefused(f"{len(object_ids) - gone.rowcount} of the objects to forget are not condemned")

    def objects(self) -> dict[str, ObjectRow]:
        with self.transaction() as connection:
            return {row.object_id: ObjectRow(**row._mapping) for row in connection.execute(select(schema.objects))}

    def check(self) -> list[str]:
        """Every invariant over the whole metastore, in one transaction; what is wrong, in words."""
        found: list[str] = []
        with self.transaction() as connection:
            rows = connection.execute(select(schema.objects)).all()
            known = {row.object_id: ObjectRow(**row._mapping) for row in rows}
            used: dict[str, list[Place]] = {}
            every = select(schema.topics.c.name, schema.partitions).join_from(schema.partitions, schema.topics)
            for row in connection.execute(every).all():
                at = TopicPartition(row.name, row.number)
                partition = loaded(connection, row.partition_id, row)
                found += [f"{at}: {text}" for text in commits.violations(partition)]
                for extent in partition.extents:
                    for object_id, place in places(at, extent):
                        used.setdefault(object_id, []).append(place)
        for object_id, found_places in sorted(used.items()):
            found += _object_violations(object_id, known.get(object_id), sorted(found_places))
        idle = [row for row in known.values() if row.state == COMMITTED and row.object_id not in used]
        return found + [f"object {row.object_id} is committed, but no extent points at it" for row in idle]

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except OperationalError as error:
            raise Unfinished(f"the metastore does not answer: {error.orig}") from error


def _collectable(unreferenced_before_ms: int, registered_before_ms: int) -> Any:
    columns = schema.objects.c
    old = and_(columns.state == UNREFERENCED, columns.changed_ms < unreferenced_before_ms)
    lost = and_(columns.state == REGISTERED, columns.changed_ms < registered_before_ms)
    return old | lost | (columns.state == CONDEMNED)


def _object_violations(object_id: str, row: ObjectRow | None, places: Sequence[Place]) -> list[str]:
    if row is None:
        return [f"{places[0].what}: its object {object_id} is unknown"]
    found = [] if row.state == COMMITTED else [f"{places[0].what}: its object {object_id} is {row.state}"]
    for before, after in pairwise(places):
        if before.end > after.start:
            found.append(f"{before.what} and {after.what} share bytes of object {object_id}")
    if places[-1].end > row.size:
        found.append(f"{places[-1].what} ends behind its object {object_id} of {row.size} bytes")
    return found


def _commit(
    connection: Connection, at: TopicPartition, change: Callable[[Partition], Partition], now_ms: Moment, *,
    with_extents: bool = True,
) -> set[str]:  # fmt: skip
    """Reads the partition under its lock, and writes what the change made of it. An append looks at no old extent.

    Returns the objects of the extents that are gone."""
    schema.expect_version(connection)
    partition_id, row = located(connection, at, lock=True)
    before = loaded(connection, partition_id, row, with_extents=with_extents)
    after = change(before)
    moment_ms = max(_ms(now_ms), row.changed_ms)
    columns = schema.partitions.c
    connection.execute(
        update(schema.partitions)
        .where(columns.partition_id == partition_id)
        .values(
            start_offset=after.start_offset, next_offset=after.next_offset, compaction_epoch=after.compaction_epoch,
            changed_ms=moment_ms,
        )
    )  # fmt: skip
    kept, known = set(after.extents), set(before.extents)
    gone = [extent for extent in before.extents if extent not in kept]
    new = [extent for extent in after.extents if extent not in known]
    table = schema.extents
    if gone:
        _retire(connection, partition_id, [extent.span.start for extent in gone], moment_ms)
    if new:
        connection.execute(insert(table), [extent_row(partition_id, extent, moment_ms) for extent in new])
    if after.cleaned != before.cleaned:
        rows = [{"partition_id": partition_id, "span_start": s.start, "span_end": s.end} for s in after.cleaned]
        _rewrite(connection, schema.cleaned, partition_id, rows)
    if after.tombstones != before.tombstones:
        rows = [
            {
                "partition_id": partition_id, "span_start": known.span.start, "span_end": known.span.end,
                "cleaned_at_ms": known.cleaned_at_ms,
            }
            for known in after.tombstones
        ]  # fmt: skip
        _rewrite(connection, schema.tombstones, partition_id, rows)
    return {object_id for extent in gone for object_id, _ in places(at, extent)}


def _retire(connection: Connection, partition_id: int, starts: Sequence[int], moment_ms: int) -> None:
    """Extents that the log is no longer made of move to the past."""
    table = schema.extents
    for some in (starts[i : i + ROWS_AT_ONCE] for i in range(0, len(starts), ROWS_AT_ONCE)):
        mine = (table.c.partition_id == partition_id) & table.c.span_start.in_(some)
        rows = [{**row._mapping, "removed_ms": moment_ms} for row in connection.execute(select(table).where(mine))]
        connection.execute(insert(schema.past_extents), rows)
        connection.execute(delete(table).where(mine))


def _forget_past(connection: Connection, object_ids: Sequence[str]) -> None:
    """What pointed at collected objects; from then on the past before that can't be read any more."""
    past, partitions = schema.past_extents, schema.partitions
    mine = past.c.object_id.in_(object_ids) | past.c.dead_object.in_(object_ids)
    latest = select(past.c.partition_id, func.max(past.c.removed_ms)).where(mine).group_by(past.c.partition_id)
    for partition_id, removed_ms in connection.execute(latest).all():
        later = (partitions.c.partition_id == partition_id) & (partitions.c.known_from_ms < removed_ms)
        connection.execute(update(partitions).where(later).values(known_from_ms=removed_ms))
    connection.execute(delete(past).where(mine))


def _rewrite(connection: Connection, table: Any, partition_id: int, rows: Sequence[Mapping[str, object]]) -> None:
    connection.execute(delete(table).where(table.c.partition_id == partition_id))
    if rows:
        connection.execute(insert(table), list(rows))


def _use(connection: Connection, extents: Sequence[Extent], sizes: Mapping[str, int], now_ms: Moment) -> None:
    """Registered objects become committed ones; an object that is not registered, or used already, is refused.

    An extent with dead records is one that is there: only the list of them is new."""
    for object_id in sorted({extent.dead_object or extent.object_id for extent in extents}):
        taken = connection.execute(
            update(schema.objects)
            .where(schema.objects.c.object_id == object_id, schema.objects.c.state == REGISTERED)
            .values(state=COMMITTED, size=sizes[object_id], changed_ms=_ms(now_ms))
        )
        if taken.rowcount != 1:
            raise CommitRefused(
                f"object {object_id} is not registered any more, or used already: upload under a new id"
            )


def _release(connection: Connection, object_ids: set[str], now_ms: Moment) -> None:
    """Of these objects, those that the last extent has left are garbage, after a time of grace for readers.

    Their rows are locked first: of two partitions that leave the same object at once, the second must see the first."""
    rows = select(schema.objects.c.object_id).where(schema.objects.c.object_id.in_(object_ids))
    # Not against those who only point at them from new rows: two who both do would wait for each other.
    connection.execute(rows.order_by(schema.objects.c.object_id).with_for_update(key_share=True)).all()
    columns = (schema.extents.c.object_id, schema.extents.c.dead_object)
    still = {name for column in columns for name in connection.scalars(select(column).where(column.in_(object_ids)))}
    free = sorted(object_ids - still)
    if free:
        connection.execute(
            update(schema.objects)
            .where(schema.objects.c.object_id.in_(free), schema.objects.c.state == COMMITTED)
            .values(state=UNREFERENCED, changed_ms=_ms(now_ms))
        )
