"""The metastore: which extents are the log of each partition. SQL through SQLAlchemy; SQLite or PostgreSQL.

Owns transactions; each first checks that the tables have this program's version. A commit reads the partition under a lock,
asks `commits` for the new state, and writes the difference (`changes`); a refusal rolls back everything. Objects are registered
before they are uploaded, and used by one commit only. Times are the lake's (`clock`): a caller's `now_ms` counts only in lakes
on a given clock.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Engine, delete, insert, select, update

from headstone.errors import UsageError
from headstone.lake.format.extents import Extent
from headstone.lake.format.prefixes import ANEW
from headstone.lake.format.spans import Span
from headstone.lake.metastore import catalog, checking, commits, past, schema
from headstone.lake.metastore.catalog import TopicRow
from headstone.lake.metastore.changes import append_all, locked, touched_by, write
from headstone.lake.metastore.clock import (
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
from headstone.lake.metastore.commits import Append, Claim, CommitRefused, Partition
from headstone.lake.metastore.database import begun, connected, file_of, sqlite_file
from headstone.lake.metastore.due import looked_for_small, unleveled
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.locations import found_location, kept_location
from headstone.lake.metastore.notes import NOTED
from headstone.lake.metastore.object_states import (
    CONDEMNED,
    REGISTERED,
    ObjectRow,
    claim_listing,
    collectable,
    condemn,
    is_garbage,
    lock_pins,
    note_orphans,
    object_rows,
    release,
    use,
)
from headstone.lake.metastore.rows import (
    chunks,
    extents_in,
    lease_of,
    loaded_all,
    located,
    located_all,
    located_present,
    lowest_hold,
)
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from headstone.retention.keys import HashKey
from headstone.storage.redaction import address
from headstone.units import exact_moment


class Metastore:
    """One lake's metastore. Each method is one transaction. A CommitRefused has changed nothing."""

    def __init__(self, engine: Engine, host: Clock = wall_clock) -> None:
        self._engine = engine
        self._snapshots = engine
        if engine.dialect.name == "postgresql":  # SQLite admits one writer at a time anyway
            self._snapshots = engine.execution_options(isolation_level="REPEATABLE READ")
        self._host = host
        self._for_good: dict[str, str] = {}  # no cached_property: its lock and a database's together are a deadlock
        self.after_commit = Listeners()

    @classmethod
    def open(cls, url: str, *, host: Clock = wall_clock) -> Metastore:
        """Opens an existing metastore. Refused if this host's clock is far from the metastore's."""
        store = cls(connected(url), host)
        with store.any_version() as connection:
            if not schema.exists(connection):
                raise UsageError(f"{address(url)} has no lake; create one with {ANEW}")
            schema.expect_version(connection)
            refuse_skew(connection, host)
        return store

    @classmethod
    def create(
        cls, url: str, *, location: str, now_ms: int | None = None, host: Clock = wall_clock, lake_id: str | None = None,
        hash_key: str | None = None,
    ) -> Metastore:  # fmt: skip
        """Creates one. `location`: prefix of its objects, which it alone uses. `now_ms`: all its times will be given.

        `lake_id`, `hash_key`: of a lake whose metastore was lost."""
        store = cls(connected(url, make=True), host)
        with store.any_version() as connection:
            if schema.exists(connection):
                raise UsageError(f"{address(url)} already contains a lake")
            schema.metadata.create_all(connection)
            row = {
                "lake_id": lake_id or str(uuid.uuid4()), "version": schema.VERSION,
                "location": kept_location(location, store.file), "created_ms": now_ms or 0, "clock_ms": now_ms or 0,
                "hash_key": hash_key or secrets.token_hex(16), "clock": DATABASE if now_ms is None else GIVEN,
            }  # fmt: skip
            connection.execute(insert(schema.lakes).values(**row))
            if now_ms is None:
                refuse_skew(connection, host)
                connection.execute(update(schema.lakes).values(created_ms=read_clock(connection, None, host)))
        return store

    @classmethod
    def is_there(cls, url: str) -> bool:
        """Whether there is a metastore, of any version."""
        if (file := file_of(url)) is not None and not file.exists():
            return False
        metastore = cls(connected(url))
        with metastore.any_version() as connection:
            is_there = schema.exists(connection)
        metastore.close()
        return is_there

    def unmake(self) -> None:
        """Removes a metastore that has nothing but the row of the lake."""
        with self.any_version() as connection:
            schema.lakes.drop(connection)

    def clock(self) -> int:
        """The lake's time, in milliseconds since 1970."""
        with self.transaction() as connection:
            return read_clock(connection, None, self._host)

    def give_clock(self, now_ms: int) -> None:
        """Moves the clock of a lake on a given clock."""
        with self.transaction() as connection:
            lake = connection.execute(select(schema.lakes.c.clock, schema.lakes.c.clock_ms).with_for_update()).one()
            if lake.clock != GIVEN:
                raise UsageError(
                    "this lake uses its database's clock, which --now-ms does not set; `lake init --now-ms` creates a lake "
                    "with a manual clock"
                )
            if now_ms < lake.clock_ms:
                raise UsageError(f"--now-ms {now_ms}: the lake's clock is already at {exact_moment(lake.clock_ms)}")
            connection.execute(update(schema.lakes).values(clock_ms=now_ms))

    def set_clock(self, *, apply: bool) -> int:
        """Sets times ahead of the clock to now (`clock.bring_back`); returns how many there are."""
        with self.transaction() as connection:
            if connection.execute(select(schema.lakes.c.clock).with_for_update()).scalar_one() == GIVEN:
                raise UsageError("this lake has a manual clock; only --now-ms moves it, and only forward")
            ahead = times_ahead(connection, self._host)
            if apply and ahead:
                bring_back(connection, self._host)
                catalog.requeue(connection)
            return ahead

    def moment(self, connection: Connection, given: Moment | None = None) -> int:
        """The lake's time inside a transaction; read it after taking locks. `given` may be the lake's own clock."""
        return read_clock(connection, None if given == self.clock else given, self._host)

    def _of_lake(self, column: Column[Any]) -> str:
        with self.transaction() as connection:
            return str(connection.execute(select(column)).scalar_one())

    @property
    def lake_id(self) -> str:
        return self._for_good.get("id") or self._for_good.setdefault("id", self._of_lake(schema.lakes.c.lake_id))

    @property
    def hash_key(self) -> HashKey:
        """The secret of the digests in lists of keys."""
        key = self._for_good.get("key") or self._for_good.setdefault("key", self._of_lake(schema.lakes.c.hash_key))
        return HashKey(*divmod(int(key, 16), 1 << 64))

    @property
    def file(self) -> Path | None:
        return sqlite_file(self._engine)

    @property
    def location(self) -> str:
        """The URL of the prefix of its objects."""
        return found_location(self._of_lake(schema.lakes.c.location), self.file)

    def close(self) -> None:
        self._engine.dispose()

    def create_topic(
        self, name: str, partitions: int, settings: Mapping[str, object] | None = None, *, kafka_id: str | None = None
    ) -> None:
        with self.transaction() as connection:
            catalog.create_topic(connection, name, partitions, settings or {}, kafka_id)

    def add_partitions(self, topic: str, count: int) -> None:
        """Adds partitions up to `count`; a topic that has as many or more stays as it is."""
        with self.transaction() as connection:
            catalog.add_partitions(connection, topic, count)

    def topics(self) -> dict[str, dict[str, object]]:
        """Names and settings."""
        with self.transaction() as connection:
            return catalog.topics(connection)

    def topic_rows(self) -> list[TopicRow]:
        """All topics by name, each with its partitions."""
        with self.transaction(snapshot=True) as connection:
            return catalog.topic_rows(connection)

    def kafka_ids(self) -> dict[str, str | None]:
        """For every topic its id in Kafka, None if unknown."""
        with self.transaction() as connection:
            return catalog.kafka_ids(connection)

    def configure(self, topic: str, settings: Mapping[str, object]) -> None:
        """Sets these settings; the topic's others stay."""
        with self.transaction() as connection:
            catalog.configure(connection, topic, settings)

    def identify(self, topic: str, kafka_id: str) -> str:
        """The topic's id in Kafka: the known one, or else this one, which is stored."""
        with self.transaction() as connection:
            return catalog.identify(connection, topic, kafka_id)

    def partitions(self) -> list[TopicPartition]:
        with self.transaction() as connection:
            return catalog.partitions(connection)

    def partition(self, topic_partition: TopicPartition) -> Partition:
        with self.transaction(snapshot=True) as connection:
            partition_id, row = located(connection, topic_partition, lock=False)
            return loaded_all(connection, [row])[partition_id]

    def snapshot(
        self, partitions: Collection[TopicPartition] | None = None, *, present_only: bool = False
    ) -> dict[TopicPartition, Partition]:
        """These partitions, or all of the lake, at one moment. A few statements per chunk of partitions, none per partition."""
        with self.transaction(snapshot=True) as connection:
            rows = (located_present if present_only else located_all)(connection, partitions)
            loaded = loaded_all(connection, list(rows.values()))
        return {topic_partition: loaded[row.partition_id] for topic_partition, row in sorted(rows.items())}

    def next_offsets(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Where the logs of these partitions, or of all, end. Looks at no extent."""
        with self.transaction(snapshot=True) as connection:
            rows = located_all(connection, partitions)
        return {topic_partition: int(row.next_offset) for topic_partition, row in sorted(rows.items())}

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Where the logs of these partitions begin and end. Looks at no extent."""
        with self.transaction(snapshot=True) as connection:
            rows = located_all(connection, partitions)
        return {each: (int(row.start_offset), int(row.next_offset)) for each, row in sorted(rows.items())}

    def within(self, wanted: Mapping[TopicPartition, Span]) -> dict[TopicPartition, Partition]:
        """Of each partition only the extents that reach into its range; it looks at no others."""
        with self.transaction(snapshot=True) as connection:
            return {
                topic_partition: Partition(
                    start_offset=row.start_offset, next_offset=row.next_offset, compaction_epoch=row.compaction_epoch,
                    extents=extents_in(connection, row.partition_id, (wanted[topic_partition],)), cleaned=(), tombstones=(),
                )
                for topic_partition, row in sorted(located_all(connection, wanted).items())
            }  # fmt: skip

    def partition_as_of(self, topic_partition: TopicPartition, moment_ms: int) -> Partition:
        """What the log consisted of then. Without clean ranges, which readers don't need."""
        with self.transaction(snapshot=True) as connection:
            return past.partition_as_of(connection, topic_partition, moment_ms, self._host)

    def register(self, count: int, *, now_ms: Moment | None = None) -> list[str]:
        """Ids for objects about to be uploaded."""
        made = [str(uuid.uuid4()) for _ in range(count)]
        with self.transaction() as connection:
            moment_ms = self.moment(connection, now_ms)
            fresh = {"state": REGISTERED, "size": 0, "changed_ms": moment_ms, "registered_ms": moment_ms}
            if made:
                connection.execute(insert(schema.objects), [{**fresh, "object_id": object_id} for object_id in made])
        return made

    def keep_registered(self, object_ids: Sequence[str], *, now_ms: Moment | None = None) -> None:
        """A long job will still upload these: garbage collection counts their age from now on."""
        self._each_some(
            object_ids, lambda own, moment_ms: update(schema.objects).where(own).values(changed_ms=moment_ms), now_ms
        )

    def unregister(self, object_ids: Sequence[str]) -> None:
        """These were never uploaded, and never will be."""
        self._each_some(object_ids, lambda own, moment_ms: delete(schema.objects).where(own), None)

    def _each_some(self, object_ids: Sequence[str], change: Callable[[Any, int], Any], now_ms: Moment | None) -> None:
        """Changes those that are registered and not used."""
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
        """A compaction's result; with `claim` None, a part of a longer job. Raises the epoch by one.

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
        """Merged small extents. Checks the epoch without raising it. Refused while another than `worker` has the lease."""
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
        """Partitions that may have small extents to merge, most bytes since the last look first.

        With these bytes, for `looked_for_small`. From an index: reads no extent."""
        with self.transaction() as connection:
            return unleveled(connection, limit)

    def looked_for_small(self, topic_partition: TopicPartition, unleveled_bytes: int) -> None:
        """Nothing of those bytes is left to merge; newer ones count towards the next look. Ignores a dropped partition."""
        with self.transaction() as connection:
            for row in located_present(connection, [topic_partition]).values():
                looked_for_small(connection, row.partition_id, unleveled_bytes)

    def start_at(
        self, topic_partition: TopicPartition, start_offset: int, *, now_ms: Moment | None = None, unless_held: bool = False
    ) -> None:  # fmt: skip
        """`unless_held`: refused if a reader holds something below, by a hold taken meanwhile."""
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
        """Objects that nobody can need: unreferenced since that time, or registered by that time and never used."""
        with self.transaction() as connection:
            moment_ms = self.moment(connection, now_ms)
            return collectable(
                connection, is_garbage(connection, unreferenced_before_ms, registered_before_ms, moment_ms)
            )

    def condemn(
        self, object_ids: Sequence[str], *, unreferenced_before_ms: int, registered_before_ms: int,
        now_ms: Moment | None = None,
    ) -> list[str]:  # fmt: skip
        """Call before deleting from the store: no commit can use these from now on. Returns those that are still garbage."""
        with self.transaction() as connection:
            lock_pins(connection)
            moment_ms = self.moment(connection, now_ms)
            garbage = is_garbage(connection, unreferenced_before_ms, registered_before_ms, moment_ms)
            return condemn(connection, garbage & schema.objects.c.object_id.in_(object_ids))

    def forget(self, object_ids: Sequence[str]) -> None:
        """Call after deleting them from the store."""
        columns = schema.objects.c
        with self.transaction() as connection:
            gone = connection.execute(
                delete(schema.objects).where(columns.object_id.in_(object_ids), columns.state == CONDEMNED)
            )
            if gone.rowcount != len(object_ids):
                raise CommitRefused(
                    f"{len(object_ids) - gone.rowcount} of the objects to forget are not marked as garbage"
                )

    def note_orphans(self, object_ids: Sequence[str]) -> None:
        """Unreferenced from now on; those that another collector has noted meanwhile stay as they are."""
        with self.transaction() as connection:
            note_orphans(connection, object_ids, self.moment(connection))

    def claim_listing(self, now_ms: int, *, every_ms: int) -> int | None:
        """If the store has not been listed for `every_ms`: when it last was, 0 if never. From now on it counts as listed."""
        with self.transaction() as connection:
            return claim_listing(connection, now_ms, every_ms)

    def give_back_listing(self, listed_ms: int) -> None:
        """The claimed listing has failed: the next caller may claim it."""
        with self.transaction() as connection:
            connection.execute(update(schema.lakes).values(listed_ms=listed_ms))

    def objects(self) -> dict[str, ObjectRow]:
        with self.transaction() as connection:
            return object_rows(connection)

    def check(self, board: Board | None = None) -> list[str]:
        """Checks every invariant in one snapshot; returns what is wrong, in words. `board`: progress in extents."""
        with self.transaction(snapshot=True) as connection:
            return checking.violations(connection, board)

    @contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[Connection]:
        """`snapshot`: everything read is of one moment. Otherwise a statement sees what was committed before it began.

        Refused if the tables have another version than the program."""
        with self.any_version(snapshot=snapshot) as connection:
            schema.expect_version(connection)
            yield connection

    @contextmanager
    def any_version(self, *, snapshot: bool = False) -> Iterator[Connection]:
        """For tables that may be missing, or of another version."""
        with begun(self._snapshots if snapshot else self._engine) as connection:
            connection.info.pop(NOTED, None)  # left by a rollback on the same connection of the pool
            yield connection
            noted = connection.info.pop(NOTED, False)
        if noted:
            self.after_commit.tell()
