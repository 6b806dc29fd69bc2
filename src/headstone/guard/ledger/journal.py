"""The guard's journal: its memory of each topic, every change that it made or tried, alarms, and the lease of the leading
guard.

One SQLite file per cluster. What a method writes is on disk when it returns. Only the leading guard writes memories: each such
write checks the lease in its own transaction, and a guard that lost it changes nothing. Refuses a file that is damaged, of
another cluster or of another version: with an empty memory the guard would take every replica for fine. Asks no broker.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from headstone.coordination.guard_values import Configs, Memory, Status, Verdict
from headstone.errors import Unfinished, UsageError
from headstone.guard.ledger.encoding import NotAMemory, memory_json, memory_of, plain, value_of
from headstone.guard.ledger.journal_file import checked, copy_in_memory, damaged, make_private
from headstone.guard.ledger.journal_values import BEGUN, Change, KeptAlarm, Lease, RememberedTopic, ReplicaReading

BUSY_SECONDS = 10.0
CHANGES = "SELECT number, resource, topic, old, new, reason, evidence, began_ms, ended_ms, outcome, times, last_ms FROM changes"
FACT = "(SELECT value FROM facts WHERE name = ?)"
LEASE = f"SELECT holder, until_ms, applies, {FACT}, {FACT} FROM lease"
LOOKED = "looked_ms"
WATCHED = "topics of the guard that leads"
EPOCH = "epoch of the lease"
NONE = -1
"""Partition or broker of an alarm that is not about one: in a key, NULL would not equal itself."""
FAILED = "failed: "
"""Prefix of the outcome of a change that was refused, or whose answer was lost."""


class GuardLeaseLost(Unfinished):
    """Another guard leads now, or could have led meanwhile; nothing was written."""


class Journal:
    """Threads may share it: each call is one transaction under one lock."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, cluster_id: str, *, is_copy: bool = False
    ) -> None:  # fmt: skip
        self.path, self.cluster_id = path, cluster_id
        self._connection, self._is_copy = connection, is_copy
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, *, cluster_id: str | None) -> Journal:
        """Creates the file if it is missing. If `cluster_id` is None, the file must exist and may be of any cluster. A file
        that cannot be written, as on a full disk, is read from a copy in memory; the first write that succeeds goes to the
        file."""
        if cluster_id is None and not path.exists():
            raise UsageError(f"{path}: no such journal; name an existing one with --journal FILE")
        make_private(path)
        try:
            try:
                connection = _connected(path)
                return cls(path, connection, checked(path, connection, cluster_id))
            except sqlite3.OperationalError:
                copy = copy_in_memory(path)
                if copy is None:
                    raise
                return cls(path, copy, checked(path, copy, cluster_id), is_copy=True)
        except sqlite3.OperationalError as error:
            raise Unfinished(f"{path}: the journal cannot be opened: {error}; nothing was changed") from error
        except sqlite3.DatabaseError as error:
            raise damaged(path, str(error)) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """For this package only, like `rows`. What the block writes is on disk when it ends."""
        with self._lock:
            try:
                self._leave_copy()
                with self._connection:  # commits, or rolls back
                    self._connection.execute("BEGIN IMMEDIATE")
                    yield self._connection
            except sqlite3.OperationalError as error:
                raise Unfinished(f"{self.path}: the journal cannot be written: {error}") from error
            except sqlite3.DatabaseError as error:
                raise damaged(self.path, str(error)) from error

    def _leave_copy(self) -> None:
        if self._is_copy:
            connection = _connected(self.path)
            checked(self.path, connection, self.cluster_id)
            self._connection.close()
            self._connection, self._is_copy = connection, False

    def rows(self, question: str, *values: object) -> list[tuple[object, ...]]:
        with self._lock:
            try:
                return self._connection.execute(question, values).fetchall()
            except sqlite3.OperationalError as error:
                raise Unfinished(f"{self.path}: the journal cannot be read: {error}") from error
            except sqlite3.DatabaseError as error:
                raise damaged(self.path, str(error)) from error

    def memory(self, topic: str) -> Memory:
        """Empty for a topic that is not in the journal."""
        return self.remembered(topic).memory

    def remembered(self, topic: str) -> RememberedTopic:
        rows = self.rows("SELECT memory, statuses, looked_ms FROM memory WHERE topic = ?", topic)
        return self._remembered(topic, *rows[0]) if rows else RememberedTopic(memory=Memory())

    def topics(self) -> dict[str, RememberedTopic]:
        rows = self.rows("SELECT topic, memory, statuses, looked_ms FROM memory ORDER BY topic")
        return {str(topic): self._remembered(str(topic), *rest) for topic, *rest in rows}

    def _remembered(self, topic: str, memory: object, statuses: object, looked_ms: object) -> RememberedTopic:
        try:
            memory_kept = memory_of(str(memory))
        except NotAMemory as error:
            raise damaged(self.path, f"its memory of topic {topic!r} cannot be read: {error}") from error
        return RememberedTopic(
            memory=memory_kept, statuses=self._statuses(topic, str(statuses)), looked_ms=int(str(looked_ms))
        )

    def remember(self, topic: str, memory: Memory) -> None:
        before = self.remembered(topic)
        self.remember_all({topic: replace(before, memory=memory)}, holder=None, now_ms=0)

    def remember_all(
        self, decided: Mapping[str, RememberedTopic], *, holder: str | None, now_ms: int, looked_ms: int | None = None
    ) -> None:
        """Writes all or nothing, and only while `holder` leads (None: no check). `looked_ms`: when a look at everything watched
        began."""
        with self.transaction() as connection:
            if holder is not None:
                self._check_lease(connection, holder, now_ms)
            connection.executemany(
                "INSERT OR REPLACE INTO memory VALUES (?, ?, ?, ?)",
                [
                    (topic, memory_json(kept.memory), json.dumps([plain(s) for s in kept.statuses]), kept.looked_ms)
                    for topic, kept in decided.items()
                ],
            )
            if looked_ms is not None:
                connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (LOOKED, str(looked_ms)))

    def looked_ms(self) -> int | None:
        """When the newest look at everything watched began; `shown` is as of that time."""
        looked = self.fact(LOOKED)
        return None if looked is None else int(looked)

    def names(self) -> list[str]:
        return [str(topic) for (topic,) in self.rows("SELECT topic FROM memory ORDER BY topic")]

    def shown(self) -> dict[str, tuple[Status, ...]]:
        """The last decided status of each topic's partitions, without the memories."""
        rows = self.rows("SELECT topic, statuses FROM memory ORDER BY topic")
        return {str(topic): self._statuses(str(topic), str(statuses)) for topic, statuses in rows}

    def _statuses(self, topic: str, text: str) -> tuple[Status, ...]:
        try:
            return tuple(value_of(Status, item) for item in json.loads(text))
        except (NotAMemory, ValueError) as error:
            raise damaged(self.path, f"its status of topic {topic!r} cannot be read: {error}") from error

    def forget(self, topic: str) -> None:
        """For a topic that is gone. Its changes stay."""
        with self.transaction() as connection:
            for table in ("memory", "alarms", "readings", "held_sizes", "released"):
                connection.execute(f"DELETE FROM {table} WHERE topic = ?", (topic,))

    def begin(self, change: Change) -> int:
        """On disk before the change is made; pass the number to `end`. A change that was refused and is tried again at every
        look stays one row, with the newest evidence. One that others keep undoing is two rows: the first time, and all later
        ones."""
        wanted = (change.topic, json.dumps(change.old), json.dumps(change.new), change.reason)
        with self.transaction() as connection:
            newest = connection.execute(
                "SELECT number, outcome, topic, old, new, reason FROM changes WHERE resource = ? ORDER BY number DESC LIMIT 2",
                (change.resource,),
            ).fetchall()
            alike = [row for row in newest if row[2:] == wanted and row[1] is not BEGUN]
            row = newest[0] if newest and newest[0] in alike else None
            if row is not None and (str(row[1]).startswith(FAILED) or len(alike) == 2):
                connection.execute(
                    "UPDATE changes SET outcome = NULL, ended_ms = NULL, times = times + 1, last_ms = ?, evidence = ? "
                    "WHERE number = ?",
                    (change.began_ms, change.evidence, row[0]),
                )
                return int(row[0])
            done = connection.execute(
                "INSERT INTO changes (topic, old, new, reason, resource, evidence, began_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (*wanted, change.resource, change.evidence, change.began_ms),
            )
            assert done.lastrowid is not None
            return done.lastrowid

    def end(self, number: int, outcome: str, *, now_ms: int | None = None) -> None:
        """If `now_ms` is None, it ended when it began."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE changes SET outcome = ?, ended_ms = coalesce(?, last_ms, began_ms) WHERE number = ?",
                (outcome, now_ms, number),
            )

    def changes(self, *, topic: str | None = None) -> list[Change]:
        """Oldest first; of one topic, or of all."""
        rows = self.rows(f"{CHANGES} WHERE ?1 IS NULL OR topic = ?1 ORDER BY number", topic)
        return [self._change(*row) for row in rows]

    def forget_changes(self, *, before_ms: int, topics: Collection[str], resources: Collection[str]) -> None:
        """Deletes changes that ended before `before_ms`, except those of these topics and resources."""
        kept = json.dumps(sorted(topics)), json.dumps(sorted(resources))
        with self.transaction() as connection:
            connection.execute(
                "DELETE FROM changes WHERE ended_ms < ? AND coalesce(topic, '') NOT IN (SELECT value FROM json_each(?)) "
                "AND resource NOT IN (SELECT value FROM json_each(?))",
                (before_ms, *kept),
            )

    def unfinished(self) -> list[Change]:
        """Changes without an outcome: a guard died, or the answer was lost."""
        return [self._change(*row) for row in self.rows(f"{CHANGES} WHERE outcome IS NULL ORDER BY number")]

    def _change(self, number: object, *rest: object) -> Change:
        resource, topic, old, new, reason, evidence, began_ms, ended_ms, outcome, times, last_ms = rest
        try:
            return Change(
                number=int(str(number)), resource=str(resource), topic=None if topic is None else str(topic),
                old=_configs(str(old)), new=_configs(str(new)), reason=str(reason), evidence=str(evidence),
                began_ms=int(str(began_ms)), ended_ms=None if ended_ms is None else int(str(ended_ms)),
                outcome=None if outcome is None else str(outcome), times=int(str(times)),
                last_ms=None if last_ms is None else int(str(last_ms)),
            )  # fmt: skip
        except ValueError as error:
            raise damaged(self.path, f"change {number} cannot be read: {error}") from error

    def lead(
        self, holder: str, *, now_ms: int, lease_ms: int, applies: bool, topics: Collection[str] = ()
    ) -> Lease:  # fmt: skip
        """Takes the lease if it is free, expired or already `holder`'s, or if it belongs to a dry run and `applies` is true.
        Returns the lease as it is then, which may be another guard's."""
        with self.transaction() as connection:
            lease = _lease(connection)
            kept = lease is not None and lease.holder == holder and lease.until_ms > now_ms
            free = lease is None or lease.holder == holder or lease.until_ms <= now_ms
            if free or (applies and lease is not None and not lease.applies):
                epoch = _epoch(connection) + (not kept)
                lease = Lease(
                    holder=holder, until_ms=now_ms + lease_ms, applies=applies, topics=tuple(sorted(set(topics))), epoch=epoch
                )  # fmt: skip
                connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (EPOCH, str(epoch)))
                connection.execute(
                    "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?)", (holder, lease.until_ms, applies)
                )
                connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (WATCHED, json.dumps(lease.topics)))
            assert lease is not None
            return lease

    def renew(self, holder: str, *, now_ms: int, lease_ms: int) -> Lease:
        """Never renews a lease that has expired, even if no guard took it: a guard that stood still for that long must look
        again. Writes only when half of the lease or less is left, because callers ask before every action and would wait for
        the disk each time."""
        with self.transaction() as connection:
            self._check_lease(connection, holder, now_ms)
            lease = _lease(connection)
            assert lease is not None
            if lease.until_ms - now_ms > lease_ms // 2:
                return lease
            connection.execute("UPDATE lease SET until_ms = ?", (now_ms + lease_ms,))
            return replace(lease, until_ms=now_ms + lease_ms)

    def stand_down(self, holder: str) -> None:
        """Gives up the lease, so that other guards need not wait until it expires."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM lease WHERE holder = ?", (holder,))

    def lease(self) -> Lease | None:
        return _lease_of(self.rows(LEASE, WATCHED, EPOCH))

    def check_lease(self, holder: str, *, now_ms: int) -> None:
        with self.transaction() as connection:
            self._check_lease(connection, holder, now_ms)

    def _check_lease(self, connection: sqlite3.Connection, holder: str, now_ms: int) -> None:
        lease = _lease(connection)
        if lease is None or lease.holder != holder or lease.until_ms <= now_ms:
            raise self._lost(holder, lease if lease is not None and lease.until_ms > now_ms else None)

    def _lost(self, holder: str, lease: Lease | None) -> GuardLeaseLost:
        who = "nobody" if lease is None else lease.holder
        return GuardLeaseLost(f"{self.path}: {who} leads now, not {holder}: nothing was changed")

    def set_alarms(self, topic: str, alarms: Sequence[KeptAlarm], *, now_ms: int) -> None:
        """Replaces the topic's alarms by those that stand now."""
        alarms_before = {_key(alarm): alarm for alarm in self.alarms(topic)}
        wanted = {_key(alarm): alarm for alarm in alarms}
        if {key: alarm.detail for key, alarm in alarms_before.items()} == {
            key: alarm.detail for key, alarm in wanted.items()
        }:
            return
        with self.transaction() as connection:
            connection.execute("DELETE FROM alarms WHERE topic = ?", (topic,))
            connection.executemany(
                "INSERT INTO alarms VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (*key, alarm.detail, alarms_before[key].first_ms if key in alarms_before else now_ms)
                    for key, alarm in wanted.items()
                ],
            )

    def alarms(self, topic: str | None = None) -> list[KeptAlarm]:
        """Of one topic, or of all."""
        rows = self.rows(
            "SELECT topic, kind, partition, broker, detail, first_ms FROM alarms WHERE ?1 IS NULL OR topic = ?1 "
            "ORDER BY topic, kind, partition, broker", topic,
        )  # fmt: skip
        return [
            KeptAlarm(
                topic=str(topic), kind=str(kind), partition=_or_none(partition), broker=_or_none(broker), detail=str(detail),
                first_ms=int(str(first_ms)),
            )
            for topic, kind, partition, broker, detail, first_ms in rows
        ]  # fmt: skip

    def note_reading(self, topic: str, reading: ReplicaReading) -> None:
        with self.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?, ?, ?)",
                (topic, reading.partition, reading.broker, str(reading.verdict or ""), reading.read_ms, reading.detail),
            )

    def readings(self, topic: str) -> list[ReplicaReading]:
        rows = self.rows("SELECT partition, broker, verdict, read_ms, detail FROM readings WHERE topic = ?", topic)
        return [
            ReplicaReading(
                partition=int(str(partition)), broker=int(str(broker)), verdict=Verdict(str(verdict)) if verdict else None,
                read_ms=int(str(read_ms)), detail=str(detail),
            )
            for partition, broker, verdict, read_ms, detail in rows
        ]  # fmt: skip

    def note_sizes(self, topic: str, sizes_bytes: Mapping[int, int]) -> None:
        """Sizes by broker when the hold began: only the first size of each broker is kept, until the topic is released."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO held_sizes VALUES (?, ?, ?)",
                [(topic, broker, size) for broker, size in sizes_bytes.items()],
            )

    def forget_sizes(self, topic: str) -> None:
        with self.transaction() as connection:
            connection.execute("DELETE FROM held_sizes WHERE topic = ?", (topic,))

    def sizes(self) -> dict[str, dict[int, int]]:
        """By topic and broker."""
        sizes: dict[str, dict[int, int]] = {}
        for topic, broker, size in self.rows("SELECT topic, broker, bytes FROM held_sizes"):
            sizes.setdefault(str(topic), {})[int(str(broker))] = int(str(size))
        return sizes

    def note_released(self, topic: str, *, now_ms: int) -> None:
        """A person released the topic: the guard leaves it alone until every replica is back."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO released VALUES (?, ?)", (topic, now_ms))

    def released(self) -> dict[str, int]:
        return {str(topic): int(str(ms)) for topic, ms in self.rows("SELECT topic, released_ms FROM released")}

    def forget_released(self, topic: str) -> None:
        with self.transaction() as connection:
            connection.execute("DELETE FROM released WHERE topic = ?", (topic,))

    def fact(self, name: str) -> str | None:
        rows = self.rows("SELECT value FROM facts WHERE name = ?", name)
        return str(rows[0][0]) if rows else None

    def note_fact(self, name: str, value: str | None) -> None:
        """None deletes the fact."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM facts WHERE name = ?", (name,))
            if value is not None:
                connection.execute("INSERT INTO facts VALUES (?, ?)", (name, value))


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def remembers(path: Path, cluster_id: str, topic: str) -> bool:
    """False if there is no journal; creates none."""
    if not path.exists():
        return False
    with Journal.open(path, cluster_id=cluster_id) as journal:
        return topic in journal.names()


def _lease(connection: sqlite3.Connection) -> Lease | None:
    return _lease_of(connection.execute(LEASE, (WATCHED, EPOCH)).fetchall())


def _epoch(connection: sqlite3.Connection) -> int:
    rows = connection.execute("SELECT value FROM facts WHERE name = ?", (EPOCH,)).fetchall()
    return int(rows[0][0]) if rows else 0


def _lease_of(rows: Sequence[tuple[object, ...]]) -> Lease | None:
    for holder, until_ms, applies, topics, epoch in rows:
        watched = tuple(json.loads(str(topics)))
        return Lease(
            holder=str(holder), until_ms=int(str(until_ms)), applies=bool(applies), topics=watched, epoch=int(str(epoch))
        )  # fmt: skip
    return None


def _key(alarm: KeptAlarm) -> tuple[str, str, int, int]:
    partition = NONE if alarm.partition is None else alarm.partition
    return alarm.topic, alarm.kind, partition, NONE if alarm.broker is None else alarm.broker


def _or_none(number: object) -> int | None:
    return None if number == NONE else int(str(number))


def _configs(text: str) -> Configs:
    return tuple((str(name), None if value is None else str(value)) for name, value in json.loads(text))
