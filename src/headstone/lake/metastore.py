"""The metastore: which extents are the log of each partition. SQL through SQLAlchemy; SQLite or PostgreSQL.

Owns transactions, each of which asks first whether the tables are of this program's version. A commit reads the partition under
a lock, asks `commits` for the new state, and writes the difference (`changes`); a refusal rolls back everything. Objects are
registered before they are uploaded, and used by one commit only.
Times are the lake's (`clock`): what callers give as `now_ms` counts in lakes on a given clock only.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, insert, select, update

from headstone.errors import UsageError
from headstone.lake import catalog, checking, commits, past, schema
from headstone.lake.changes import (
    CONDEMNED,
    REGISTERED,
    append_all,
    forget_past,
    is_garbage,
    locked,
    release,
    touched_by,
    use,
    write,
)
from headstone.lake.clock import (
    DATABASE,
    GIVEN,
    Clock,
    Moment,
    bring_back,
    read_clock,
    refuse_skew,
    times_ahead,
    wall_clock,
)
from headstone.lake.commits import Claim, CommitRefused, Extent, Partition
from headstone.lake.database import begun, connected
from headstone.lake.due import looked_for_small, unleveled
from headstone.lake.journal import NOTED
from headstone.lake.rows import (
    ObjectRow,
    chunks,
    extents_in,
    lease_of,
    loaded_all,
    located,
    located_all,
    located_present,
    lock_pins,
    lowest_hold,
    object_row,
    object_rows,
)
from headstone.lake.spans import Span
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from headstone.retention.keys import HashKey
from headstone.storage.redaction import address


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """Extents for the end of one partition's log."""

    expected_next: int
    extents: tuple[Extent, ...]
    log_start: int | None = None
    """Where the log begins, of one that holds nothing yet. In the same commit: what lies below must never be served."""
    from_kafka: bool = False
    """Its offsets are those of a Kafka topic: refused where the lake has given away offsets of its own."""


class Metastore:
    """One lake's metastore. Methods are one transaction each; a CommitRefused has changed nothing."""

    def __init__(self, engine: Engine, host: Clock = wall_clock) -> None:
        self._engine = engine
        self._snapshots = engine
        if engine.dialect.name == "postgresql":  # SQLite lets nobody in between anyway
            self._snapshots = engine.execution_options(isolation_level="REPEATABLE READ")
        self._host = host
        self._hash_key: HashKey | None = None
        self.after_commit: Callable[[], None] | None = None
        """Whoever tells the store what was committed (`lake.py`)."""

    @classmethod
    def open(cls, url: str, *, host: Clock = wall_clock) -> Metastore:
        """An existing metastore. A host whose clock is far from its own is refused."""
        store = cls(connected(url), host)
        with store.any_version() as connection:
            if not schema.exists(connection):
                raise UsageError(f"{address(url)} holds no lake; `headstone lake init` makes one")
            schema.expect_version(connection)
            refuse_skew(connection, host)
        return store

    @classmethod
    def create(
        cls, url: str, *, location: str, now_ms: int | None = None, host: Clock = wall_clock, lake_id: str | None = None,
        hash_key: str | None = None,
    ) -> Metastore:  # fmt: skip
        """A new one. `location` is the prefix of its objects, which it alone uses. `now_ms`: all its times will be given.

        `lake_id`, `hash_key`: of a lake whose metastore was lost."""
        store = cls(connected(url), host)
        with store.any_version() as connection:
            if schema.exists(connection):
                raise UsageError(f"{address(url)} holds a lake already")
            schema.metadata.create_all(connection)
            row = {
                "lake_id": lake_id or str(uuid.uuid4()),
                "version": schema.VERSION,
                "location": location,
                "created_ms": now_ms or 0,
            }
            row |= {
                "hash_key": hash_key or secrets.token_hex(16),
                "clock": DATABASE if now_ms is None else GIVEN,
                "clock_ms": now_ms or 0,
            }
            connection.execute(insert(schema.lakes).values(**row))
            if now_ms is None:
                refuse_skew(connection, host)
                connection.execute(update(schema.lakes).values(created_ms=read_clock(connection, None, host)))
        return store

    def clock(self) -> int:
        """The lake's time, in milliseconds since 1970."""
        with self.transaction() as connection:
            return read_clock(connection, None, self._host)

    def give_clock(self, now_ms: int) -> None:
        """Moves the clock of a lake that goes by a given one."""
        with self.transaction() as connection:
            lake = connection.execute(select(schema.lakes.c.clock, schema.lakes.c.clock_ms).with_for_update()).one()
            if lake.clock != GIVEN:
                raise UsageError(
                    "this lake goes by its database's clock, which --now-ms does not move; `lake init --now-ms` makes one "
                    "that goes by what it is given"
                )
            if now_ms < lake.clock_ms:
                raise UsageError(
                    f"--now-ms {now_ms}: this lake was at {lake.clock_ms} already, and time only goes forward"
                )
            connection.execute(update(schema.lakes).values(clock_ms=now_ms))

    def set_clock(self, *, apply: bool) -> int:
        """Times ahead of the clock become now (`clock.bring_back`); how many there are."""
        with self.transaction() as connection:
            if connection.execute(select(schema.lakes.c.clock).with_for_update()).scalar_one() == GIVEN:
                raise UsageError("this lake goes by a given clock; --now-ms moves it, and only forward")
            ahead = times_ahead(connection, self._host)
            if apply and ahead:
                bring_back(connection, self._host)
                catalog.requeue(connection)
            return ahead

    def moment(self, connection: Connection, given: Moment | None = None) -> int:
        """The lake's time inside a transaction; read it behind the locks. `given` may be the lake's own clock."""
        return read_clock(connection, None if given == self.clock else given, self._host)

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
            catalog.create_topic(connection, name, partitions, settings or {}, kafka_id)

    def add_partitions(self, topic: str, count: int) -> None:
        """Up to `count`; a topic that has as many or more stays as it is."""
        with self.transaction() as connection:
            catalog.add_partitions(connection, topic, count)

    def topics(self) -> dict[str, dict[str, object]]:
        """Names and settings."""
        with self.transaction() as connection:
            rows = connection.execute(
                select(schema.topics.c.name, schema.topics.c.settings).order_by(schema.topics.c.name)
            )
            return {row.name: json.loads(row.settings) for row in rows}

    def kafka_ids(self) -> dict[str, str | None]:
        """Of every topic the id that Kafka gave it, where it is known."""
        with self.transaction() as connection:
            return catalog.kafka_ids(connection)

    def configure(self, topic: str, settings: Mapping[str, object]) -> None:
        """These settings of a topic, beside those that it has."""
        with self.transaction() as connection:
            catalog.configure(connection, topic, settings)

    def identify(self, topic: str, kafka_id: str) -> str:
        """The id of the topic in Kafka: the one that is known, or this one, from now on."""
        with self.transaction() as connection:
            return catalog.identify(connection, topic, kafka_id)

    def partitions(self) -> list[TopicPartition]:
        with self.transaction() as connection:
            rows = connection.execute(
                select(schema.topics.c.name, schema.partitions.c.number)
                .join_from(schema.partitions, schema.topics)
                .order_by(schema.topics.c.name, schema.partitions.c.number)
            )
            return [TopicPartition(row.name, row.number) for row in rows]

    def partition(self, topic_partition: TopicPartition) -> Partition:
        with self.transaction(snapshot=True) as connection:
            partition_id, row = located(connection, topic_partition, lock=False)
            return loaded_all(connection, [row])[partition_id]

    def snapshot(
        self, partitions: Collection[TopicPartition] | None = None, *, present_only: bool = False
    ) -> dict[TopicPartition, Partition]:
        """These partitions, or all of the lake, at one moment: a few statements per chunk of them, none per partition."""
        with self.transaction(snapshot=True) as connection:
            rows = (located_present if present_only else located_all)(connection, partitions)
            loaded = loaded_all(connection, list(rows.values()))
        return {topic_partition: loaded[row.partition_id] for topic_partition, row in sorted(rows.items())}

    def next_offsets(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Where the logs of these partitions, or of all, end. Looks at no extent."""
        with self.transaction(snapshot=True) as connection:
            rows = located_all(connection, partitions)
        return {topic_partition: int(row.next_offset) for topic_partition, row in sorted(rows.items())}

    def record_bytes(self, topics: Collection[str]) -> int | None:
        """What a record of these topics takes on average; None if there is none. Looks at no extent."""
        columns = schema.partitions.c
        records = columns.records + columns.dead_records
        query = select(func.sum(columns.bytes), func.sum(records)).join_from(schema.partitions, schema.topics)
        with self.transaction() as connection:
            size, count = connection.execute(query.where(schema.topics.c.name.in_(topics))).one()
        return max(1, int(size) // int(count)) if count else None

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Where the logs of these partitions begin and end. Looks at no extent."""
        with self.transaction(snapshot=True) as connection:
            rows = located_all(connection, partitions)
        return {each: (int(row.start_offset), int(row.next_offset)) for each, row in sorted(rows.items())}

    def within(self, wanted: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Partition]:
        """Of each partition only what reaches into its range: no other extent is looked at."""
        with self.transaction(snapshot=True) as connection:
            return {
                topic_partition: Partition(
                    start_offset=row.start_offset, next_offset=row.next_offset, compaction_epoch=row.compaction_epoch,
                    extents=extents_in(connection, row.partition_id, (wanted[topic_partition],)), cleaned=(), tombstones=(),
                )
                for topic_partition, row in sorted(located_all(connection, wanted).items())
            }  # fmt: skip

    def partition_as_of(self, topic_partition: TopicPartition, moment_ms: int) -> Partition:
        """What the log was made of then; clean ranges are of no interest to readers and left out."""
        with self.transaction(snapshot=True) as connection:
            return past.partition_as_of(connection, topic_partition, moment_ms, self._host)

    def register(self, count: int, *, now_ms: Moment | None = None) -> list[str]:
        """Ids for objects that are about to be uploaded."""
        made = [str(uuid.uuid4()) for _ in range(count)]
        with self.transaction() as connection:
            moment_ms = self.moment(connection, now_ms)
            fresh = {"state": REGISTERED, "size": 0, "changed_ms": moment_ms, "registered_ms": moment_ms}
            rows = [{**fresh, "object_id": object_id} for object_id in made]
            if rows:
                connection.execute(insert(schema.objects), rows)
        return made

    def keep_registered(self, object_ids: Sequence[str], *, now_ms: Moment | None = None) -> None:
        """A long job is still going to upload these: garbage collection counts their age from now on."""
        self._each_some(
            object_ids, lambda own, moment_ms: update(schema.objects).where(own).values(changed_ms=moment_ms), now_ms
        )

    def unregister(self, object_ids: Sequence[str]) -> None:
        """Nobody has uploaded these, and nobody will."""
        self._each_some(object_ids, lambda own, moment_ms: delete(schema.objects).where(own), None)

    def _each_some(self, object_ids: Sequence[str], change: Callable[[Any, int], Any], now_ms: Moment | None) -> None:
        """A change of those that are registered and not used."""
        columns = schema.objects.c
        with self.transaction() as connection:
            moment_ms = self.moment(connection, now_ms)
            for some in chunks(object_ids):
                connection.execute(change(columns.object_id.in_(some) & (columns.state == REGISTERED), moment_ms))

    def append(
        self, appends: Mapping[TopicPartition, Append], sizes: Mapping[str, int], *, now_ms: Moment | None = None
    ) -> None:
        """Several partitions at once, all or none: an object of ingest holds ranges of many. `sizes` by object id."""
        with self.transaction() as connection:
            clock = partial(self.moment, connection, now_ms)
            use(connection, [extent for append in appends.values() for extent in append.extents], sizes, clock)
            append_all(connection, appends, clock)

    def replace(
        self, topic_partition: TopicPartition, expected_epoch: int, extents: Sequence[Extent], claim: Claim | None,
        sizes: Mapping[str, int], *, tombstones_below: int = 0, now_ms: Moment | None = None,
    ) -> None:  # fmt: skip
        """A compaction's result; `claim` None is a part of a longer job. Raises the epoch by one.

        `tombstones_below`: the new extents may lack tombstones below this offset."""
        with self.transaction() as connection:
            clock = partial(self.moment, connection, now_ms)
            use(connection, extents, sizes, clock)
            partition = locked(connection, topic_partition, clock, touched_by(extents, claim))
            hold = lowest_hold(connection, partition.partition_id, partition.moment_ms)
            after = commits.replaced(
                partition.before, expected_epoch, extents, claim, tombstones_below=tombstones_below, hold=hold,
                now_ms=partition.moment_ms,
            )  # fmt: skip
            release(connection, write(connection, partition, after) | set(sizes), clock)

    def level(
        self, topic_partition: TopicPartition, expected_epoch: int, extents: Sequence[Extent], sizes: Mapping[str, int], *,
        worker: str | None = None, now_ms: Moment | None = None,
    ) -> None:  # fmt: skip
        """Merged small extents; checks the epoch without raising it. Refused while another one than `worker` has the lease."""
        with self.transaction() as connection:
            clock = partial(self.moment, connection, now_ms)
            use(connection, extents, sizes, clock)
            partition = locked(connection, topic_partition, clock, touched_by(extents))
            holder = lease_of(connection, partition.partition_id, partition.moment_ms)
            after = commits.leveled(
                partition.before, expected_epoch, extents, worked_on_by=holder if holder != worker else None
            )
            release(connection, write(connection, partition, after) | set(sizes), clock)

    def unleveled(self, *, limit: int) -> dict[TopicPartition, int]:
        """Partitions in which there may be small extents to merge, those first to which most has come since somebody looked.

        With the bytes that have come, for `looked_for_small`. From an index: no extent is read."""
        with self.transaction() as connection:
            return unleveled(connection, limit)

    def looked_for_small(self, topic_partition: TopicPartition, unleveled_bytes: int) -> None:
        """Nothing is left to merge of what had come; what came since counts towards the next look. Of one that is there."""
        with self.transaction() as connection:
            for row in located_present(connection, [topic_partition]).values():
                looked_for_small(connection, row.partition_id, unleveled_bytes)

    def start_at(
        self, topic_partition: TopicPartition, start_offset: int, *, now_ms: Moment | None = None, unless_held: bool = False
    ) -> None:  # fmt: skip
        """`unless_held`: refused if a reader holds what lies below, by a hold that was taken meanwhile."""
        with self.transaction() as connection:
            clock = partial(self.moment, connection, now_ms)
            partition = locked(connection, topic_partition, clock, lambda log: (Span(0, start_offset),))
            hold = lowest_hold(connection, partition.partition_id, partition.moment_ms) if unless_held else None
            if hold is not None and hold.held_from < start_offset:
                raise CommitRefused(f"{hold.reader} holds {topic_partition} from offset {hold.held_from}")
            release(connection, write(connection, partition, commits.started_at(partition.before, start_offset)), clock)

    def collectable(
        self, *, unreferenced_before_ms: int, registered_before_ms: int, now_ms: Moment | None = None
    ) -> list[ObjectRow]:
        """Objects that nobody can need: no extent points at them since then, or they were registered and never used."""
        with self.transaction() as connection:
            garbage = is_garbage(
                connection, unreferenced_before_ms, registered_before_ms, self.moment(connection, now_ms)
            )
            rows = connection.execute(select(schema.objects).where(garbage).order_by(schema.objects.c.object_id))
            return [object_row(row) for row in rows]

    def condemn(
        self, object_ids: Sequence[str], *, unreferenced_before_ms: int, registered_before_ms: int,
        now_ms: Moment | None = None,
    ) -> list[str]:  # fmt: skip
        """Before they are deleted from the store: from now on no commit can use them. Those that are still garbage."""
        with self.transaction() as connection:
            lock_pins(connection)
            garbage = is_garbage(
                connection, unreferenced_before_ms, registered_before_ms, self.moment(connection, now_ms)
            )
            garbage &= schema.objects.c.object_id.in_(object_ids)
            rows = connection.execute(select(schema.objects.c.object_id).where(garbage).with_for_update()).all()
            condemned = sorted(row.object_id for row in rows)
            chosen = schema.objects.c.object_id.in_(condemned)
            connection.execute(update(schema.objects).where(chosen).values(state=CONDEMNED))
            forget_past(connection, condemned)
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
            return object_rows(connection)

    def check(self, board: Board | None = None) -> list[str]:
        """Every invariant over the whole metastore, in one snapshot; what is wrong, in words. `board`: of extents."""
        with self.transaction(snapshot=True) as connection:
            return checking.violations(connection, board)

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[Connection]:
        """`snapshot`: all that is read is of one moment. Else a statement sees what was committed before it began.

        A program of another version is refused, and no upgrade begins before the end of the transaction (`upgrades`)."""
        with self.any_version(snapshot=snapshot) as connection:
            schema.expect_version(connection, snapshot=snapshot)
            yield connection

    @contextmanager
    def any_version(self, *, snapshot: bool = False) -> Iterator[Connection]:
        """Of tables that may not be there, or be of another version."""
        with begun(self._snapshots if snapshot else self._engine) as connection:
            connection.info.pop(NOTED, None)  # of one that was rolled back, on the same connection of the pool
            yield connection
            noted = connection.info.pop(NOTED, False)
        if noted and self.after_commit is not None:
            self.after_commit()
