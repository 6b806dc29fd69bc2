"""Who works on what: leases on partitions, requests, workers that are alive or paused, what was done, and what has to wait.

A lease spares others the work and no more: a worker that lost its lease without noticing is refused by the epoch. Every
write is a compare-and-set; the loser changes nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from headstone.lake import schema
from headstone.lake.metastore import Metastore
from headstone.lake.rows import partition_id_of
from headstone.log.topic_partition import TopicPartition

LEASE_MS = 60_000
COMMITTED, IDLE, REFUSED, FAILED, LEVELED = "committed", "idle", "refused", "failed", "leveled"
STOPPED = "stopped"
WAIT_MS, WAIT_MS_MAX = 60_000, 6 * 3_600_000
"""After a failure, and twice as long after the next, up to a quarter of a day: what fails for good costs no worker its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    worker: str
    seen_ms: int
    paused: bool
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    partition: TopicPartition
    worker: str
    started_ms: int
    finished_ms: int
    outcome: str
    told: dict[str, object]


class Leases:
    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def take(self, topic_partition: TopicPartition, worker: str, *, now_ms: int, lease_ms: int = LEASE_MS) -> bool:
        """True if the partition is ours until now + lease_ms: it was free, expired, or ours already."""
        columns = schema.leases.c
        try:
            with self._metastore.transaction() as connection:
                partition_id = partition_id_of(connection, topic_partition)
                moment_ms = self._metastore.moment(connection, now_ms)
                free_or_ours = (columns.partition_id == partition_id) & (
                    (columns.expires_ms <= moment_ms) | (columns.worker == worker)
                )
                taken = connection.execute(
                    update(schema.leases).where(free_or_ours).values(worker=worker, expires_ms=moment_ms + lease_ms)
                )
                if taken.rowcount == 0 and not _held(connection, partition_id):
                    row = {"partition_id": partition_id, "worker": worker, "expires_ms": moment_ms + lease_ms}
                    connection.execute(insert(schema.leases).values(**row))
                    return True
                return taken.rowcount == 1
        except IntegrityError:  # two inserted at once: the other one was first
            return False

    def renew(self, topic_partition: TopicPartition, worker: str, *, now_ms: int, lease_ms: int = LEASE_MS) -> bool:
        """False if somebody else has taken it over meanwhile."""
        with self._metastore.transaction() as connection:
            ours = (schema.leases.c.partition_id == partition_id_of(connection, topic_partition)) & (
                schema.leases.c.worker == worker
            )
            expires_ms = self._metastore.moment(connection, now_ms) + lease_ms
            return connection.execute(update(schema.leases).where(ours).values(expires_ms=expires_ms)).rowcount == 1

    def release(self, topic_partition: TopicPartition, worker: str) -> None:
        with self._metastore.transaction() as connection:
            ours = (schema.leases.c.partition_id == partition_id_of(connection, topic_partition)) & (
                schema.leases.c.worker == worker
            )
            connection.execute(delete(schema.leases).where(ours))

    def held(self, *, now_ms: int) -> dict[TopicPartition, str]:
        """Partitions that somebody works on, and who."""
        joined = (
            select(schema.topics.c.name, schema.partitions.c.number, schema.leases.c.worker)
            .join_from(schema.leases, schema.partitions)
            .join(schema.topics)
        )
        with self._metastore.transaction() as connection:
            ours = joined.where(schema.leases.c.expires_ms > self._metastore.moment(connection, now_ms))
            return {TopicPartition(row.name, row.number): row.worker for row in connection.execute(ours)}

    def request(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Compact this now, whatever its dirty ratio is, and however often it failed."""
        with self._metastore.transaction() as connection:
            partition_id = partition_id_of(connection, topic_partition)
            for table in (schema.requests, schema.setbacks):
                connection.execute(delete(table).where(table.c.partition_id == partition_id))
            moment_ms = self._metastore.moment(connection, now_ms)
            connection.execute(insert(schema.requests).values(partition_id=partition_id, requested_ms=moment_ms))

    def waiting(self, *, now_ms: int) -> dict[TopicPartition, int]:
        """Partitions whose last jobs failed and that nobody should try yet, and until when."""
        joined = (
            select(schema.topics.c.name, schema.partitions.c.number, schema.setbacks.c.not_before_ms)
            .join_from(schema.setbacks, schema.partitions)
            .join(schema.topics)
        )
        with self._metastore.transaction() as connection:
            ours = joined.where(schema.setbacks.c.not_before_ms > self._metastore.moment(connection, now_ms))
            return {TopicPartition(row.name, row.number): row.not_before_ms for row in connection.execute(ours)}

    def requested(self) -> dict[TopicPartition, int]:
        joined = (
            select(schema.topics.c.name, schema.partitions.c.number, schema.requests.c.requested_ms)
            .join_from(schema.requests, schema.partitions)
            .join(schema.topics)
        )
        with self._metastore.transaction() as connection:
            return {TopicPartition(row.name, row.number): row.requested_ms for row in connection.execute(joined)}

    def done(
        self, topic_partition: TopicPartition, worker: str, outcome: str, told: Mapping[str, object], *,
        started_ms: int, now_ms: int,
        wait_ms: int = WAIT_MS,
    ) -> None:  # fmt: skip
        """Remembers a job. A request that came before the job began is fulfilled, unless the job failed: that has to wait."""
        with self._metastore.transaction() as connection:
            partition_id = partition_id_of(connection, topic_partition)
            moment_ms = self._metastore.moment(connection, now_ms)
            connection.execute(
                insert(schema.history).values(
                    job_id=str(uuid.uuid4()), partition_id=partition_id, worker=worker, started_ms=started_ms,
                    finished_ms=moment_ms, outcome=outcome, told=json.dumps(dict(told)),
                )
            )  # fmt: skip
            if outcome in (COMMITTED, IDLE):
                columns = schema.requests.c
                older = (columns.partition_id == partition_id) & (columns.requested_ms <= started_ms)
                connection.execute(delete(schema.requests).where(older))
                connection.execute(delete(schema.setbacks).where(schema.setbacks.c.partition_id == partition_id))
            if outcome == FAILED:
                _set_back(connection, partition_id, moment_ms, wait_ms)

    def history(self, *, limit: int = 20) -> list[HistoryRow]:
        """Newest first."""
        joined = (
            select(schema.topics.c.name, schema.partitions.c.number, schema.history)
            .join_from(schema.history, schema.partitions)
            .join(schema.topics)
            .order_by(schema.history.c.finished_ms.desc(), schema.history.c.job_id)
            .limit(limit)
        )
        with self._metastore.transaction() as connection:
            return [
                HistoryRow(
                    partition=TopicPartition(row.name, row.number), worker=row.worker, started_ms=row.started_ms,
                    finished_ms=row.finished_ms, outcome=row.outcome, told=json.loads(row.told),
                )
                for row in connection.execute(joined)
            ]  # fmt: skip

    def seen(self, worker: str, doing: str, *, now_ms: int) -> bool:
        """A worker says that it is alive; False if somebody paused it."""
        columns = schema.workers.c
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            row = connection.execute(select(columns.paused).where(columns.worker == worker)).first()
            if row is None:
                fresh = {"worker": worker, "seen_ms": moment_ms, "paused": 0, "doing": doing}
                connection.execute(insert(schema.workers).values(**fresh))
                return True
            connection.execute(
                update(schema.workers).where(columns.worker == worker).values(seen_ms=moment_ms, doing=doing)
            )
            return not row.paused

    def pause(self, worker: str, *, paused: bool) -> bool:
        """False if there is no such worker."""
        with self._metastore.transaction() as connection:
            change = update(schema.workers).where(schema.workers.c.worker == worker).values(paused=int(paused))
            return connection.execute(change).rowcount == 1

    def left(self, worker: str) -> None:
        with self._metastore.transaction() as connection:
            connection.execute(delete(schema.workers).where(schema.workers.c.worker == worker))

    def workers(self) -> list[WorkerRow]:
        with self._metastore.transaction() as connection:
            rows = connection.execute(select(schema.workers).order_by(schema.workers.c.worker))
            return [
                WorkerRow(worker=row.worker, seen_ms=row.seen_ms, paused=bool(row.paused), doing=row.doing)
                for row in rows
            ]


def _set_back(connection: Connection, partition_id: int, now_ms: int, wait_ms: int) -> None:
    table = schema.setbacks
    mine = table.c.partition_id == partition_id
    failures = connection.execute(select(table.c.failures).where(mine)).scalar_one_or_none() or 0
    until_ms = now_ms + min(wait_ms << min(failures, 30), WAIT_MS_MAX)
    connection.execute(delete(table).where(mine))
    row = {"partition_id": partition_id, "failures": failures + 1, "not_before_ms": until_ms}
    connection.execute(insert(table).values(**row))


def _held(connection: Connection, partition_id: int) -> bool:
    return (
        connection.execute(select(schema.leases).where(schema.leases.c.partition_id == partition_id)).first()
        is not None
    )
