"""Who works on what: leases on partitions, requests, workers that are alive or paused, finished jobs, waits after failures.

A lease only saves others the work: a worker that lost its lease without noticing is refused because of the epoch. Every write
is a compare-and-set; the loser changes nothing. A topic may be dropped while a worker has its partitions: these leases end, and
the rest of a call is done.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from headstone.lake.defaults import LEASE_MS
from headstone.lake.metastore import schema
from headstone.lake.metastore.due import most_urgent
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.rows import chunks, located, located_present, with_names
from headstone.lake.metastore.scheduling import Urgency
from headstone.log.topic_partition import TopicPartition
from headstone.units import DAY_MS, HOUR_MS, MINUTE_MS

COMMITTED, IDLE, REFUSED, FAILED, LEVELED = "committed", "idle", "refused", "failed", "leveled"
STOPPED = "stopped"
WAIT_MS, WAIT_MS_MAX = MINUTE_MS, 6 * HOUR_MS
"""After a failure; doubles after each further one, up to six hours: permanent failures cost workers little time."""
HISTORY_JOBS_MAX, HISTORY_MS_MAX = 20, 30 * DAY_MS
"""Per partition: how many jobs are remembered, and how long before the last job a remembered one may have ended."""


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
    details: dict[str, object]
    """What the job reports about itself; `why` if it did not commit."""


class Leases:
    """The leases, requests, workers and history of one lake."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore

    def take(self, topic_partition: TopicPartition, worker: str, *, now_ms: int, lease_ms: int = LEASE_MS) -> bool:
        """True if the partition is ours until now + lease_ms: it was free, expired, or ours already."""
        return bool(self.take_all([topic_partition], worker, now_ms=now_ms, lease_ms=lease_ms))

    def take_all(
        self, partitions: Collection[TopicPartition], worker: str, *, now_ms: int, lease_ms: int = LEASE_MS
    ) -> set[TopicPartition]:
        """The partitions that are ours until now + lease_ms, as with `take`; few statements, however many there are."""
        columns = schema.leases.c
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            free_or_ours = (columns.expires_ms <= moment_ms) | (columns.worker == worker)
            names = {row.partition_id: name for name, row in located_present(connection, partitions).items()}
            taken = _locked(connection, names, free_or_ours)
            self._lease(connection, taken, worker, moment_ms + lease_ms)
        return {names[partition_id] for partition_id in taken}

    def take_due(
        self, worker: str, limit: int, *, now_ms: int, lease_ms: int = LEASE_MS
    ) -> dict[TopicPartition, Urgency]:
        """At most `limit` partitions that are due and free, most urgent first, each with its reason; ours for lease_ms.

        Skips those that wait after a failure. A request that needs no work is answered: the history has it as idle. Fewer than
        `limit`, or none: no more are due, or another worker is taking them at this moment; look again later."""
        with self._metastore.transaction() as connection:
            moment_ms = self._metastore.moment(connection, now_ms)
            chosen, idle = most_urgent(connection, limit=limit, now_ms=moment_ms)
            self._lease(connection, [each.partition_id for each in chosen], worker, moment_ms + lease_ms)
            kept = _kept(connection, [each.partition_id for each in idle], skip_locked=True)
            for each in (each for each in idle if each.partition_id in kept):
                row = _Job(each.partition_id, worker, moment_ms, moment_ms)
                _remember(connection, row, IDLE, {"why": each.urgency.reason})
                _fulfil(connection, each.partition_id, moment_ms)
        return {each.partition: each.urgency for each in chosen}

    def renew_all(
        self, partitions: Collection[TopicPartition], worker: str, *, now_ms: int, lease_ms: int = LEASE_MS
    ) -> set[TopicPartition]:
        """Those of our partitions that are ours for lease_ms more; the others were taken over meanwhile, or dropped."""
        with self._metastore.transaction() as connection:
            expires_ms = self._metastore.moment(connection, now_ms) + lease_ms
            names = {row.partition_id: name for name, row in located_present(connection, partitions).items()}
            renewed = _locked(connection, names, schema.leases.c.worker == worker)
            self._lease(connection, renewed, worker, expires_ms)
        return {names[partition_id] for partition_id in renewed}

    def release_all(self, partitions: Collection[TopicPartition], worker: str) -> None:
        """Releases those that are still ours."""
        columns = schema.leases.c
        with self._metastore.transaction() as connection:
            ids = [row.partition_id for row in located_present(connection, partitions).values()]
            for some in chunks(ids):
                held = columns.partition_id.in_(some) & (columns.worker == worker)
                connection.execute(update(schema.leases).where(held).values(worker="", expires_ms=0))

    def renew(self, topic_partition: TopicPartition, worker: str, *, now_ms: int, lease_ms: int = LEASE_MS) -> bool:
        """False if another worker has taken it over meanwhile."""
        return bool(self.renew_all([topic_partition], worker, now_ms=now_ms, lease_ms=lease_ms))

    def release(self, topic_partition: TopicPartition, worker: str) -> None:
        self.release_all([topic_partition], worker)

    def _lease(self, connection: Connection, partition_ids: Sequence[int], worker: str, expires_ms: int) -> None:
        for some in chunks(partition_ids):
            chosen = schema.leases.c.partition_id.in_(some)
            connection.execute(update(schema.leases).where(chosen).values(worker=worker, expires_ms=expires_ms))

    def held(self, *, now_ms: int) -> dict[TopicPartition, str]:
        """Partitions with a lease, and the worker that has it."""
        with self._metastore.transaction() as connection:
            query = with_names(schema.leases).where(
                schema.leases.c.expires_ms > self._metastore.moment(connection, now_ms)
            )
            return {TopicPartition(row.name, row.number): row.worker for row in connection.execute(query)}

    def request(self, topic_partition: TopicPartition, *, now_ms: int) -> None:
        """Asks for a compaction now, whatever the dirty ratio, and however often it failed."""
        with self._metastore.transaction() as connection:
            # The partition's row first, as in a drop: two requests, or a request and a drop, never deadlock.
            partition_id, _ = located(connection, topic_partition, lock=True)
            for table in (schema.requests, schema.setbacks):
                connection.execute(delete(table).where(table.c.partition_id == partition_id))
            moment_ms = self._metastore.moment(connection, now_ms)
            connection.execute(insert(schema.requests).values(partition_id=partition_id, requested_ms=moment_ms))

    def waiting(self, *, now_ms: int) -> dict[TopicPartition, int]:
        """Partitions whose last jobs failed, and until when no worker should try them again."""
        with self._metastore.transaction() as connection:
            query = with_names(schema.setbacks).where(
                schema.setbacks.c.not_before_ms > self._metastore.moment(connection, now_ms)
            )
            return {TopicPartition(row.name, row.number): row.not_before_ms for row in connection.execute(query)}

    def requested(self) -> dict[TopicPartition, int]:
        with self._metastore.transaction() as connection:
            rows = connection.execute(with_names(schema.requests))
            return {TopicPartition(row.name, row.number): row.requested_ms for row in rows}

    def done(
        self, topic_partition: TopicPartition, worker: str, outcome: str, details: Mapping[str, object], *,
        started_ms: int, now_ms: int,
        wait_ms: int = WAIT_MS,
    ) -> None:  # fmt: skip
        """Remembers a job. It fulfils a request made before it began, unless it failed: then the partition has to wait."""
        with self._metastore.transaction() as connection:
            row = located_present(connection, [topic_partition]).get(topic_partition)
            if row is None or not _kept(connection, [row.partition_id]):
                return
            partition_id, moment_ms = row.partition_id, self._metastore.moment(connection, now_ms)
            _remember(connection, _Job(partition_id, worker, started_ms, moment_ms), outcome, details)
            if outcome in (COMMITTED, IDLE):
                _fulfil(connection, partition_id, started_ms)
            if outcome == FAILED:
                _set_back(connection, partition_id, moment_ms, wait_ms)

    def history(self, *, limit: int = 20) -> list[HistoryRow]:
        """Newest first."""
        columns = schema.history.c
        newest = with_names(schema.history).order_by(columns.finished_ms.desc(), columns.job_id).limit(limit)
        with self._metastore.transaction() as connection:
            return [
                HistoryRow(
                    partition=TopicPartition(row.name, row.number), worker=row.worker, started_ms=row.started_ms,
                    finished_ms=row.finished_ms, outcome=row.outcome, details=json.loads(row.details),
                )
                for row in connection.execute(newest)
            ]  # fmt: skip

    def seen(self, worker: str, doing: str, *, now_ms: int) -> bool:
        """A worker reports that it is alive; False if it was paused."""
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

    def forget_workers(self, *, unseen_since_ms: int, now_ms: int) -> int:
        """Removes workers that were killed: not seen since then, and without a lease. Returns their number."""
        columns = schema.workers.c
        with self._metastore.transaction() as connection:
            in_force = schema.leases.c.expires_ms > self._metastore.moment(connection, now_ms)
            busy = select(schema.leases.c.worker).where(in_force)
            gone = (columns.seen_ms < unseen_since_ms) & columns.worker.not_in(busy)
            return connection.execute(delete(schema.workers).where(gone)).rowcount

    def workers(self) -> list[WorkerRow]:
        with self._metastore.transaction() as connection:
            rows = connection.execute(select(schema.workers).order_by(schema.workers.c.worker))
            return [
                WorkerRow(worker=row.worker, seen_ms=row.seen_ms, paused=bool(row.paused), doing=row.doing)
                for row in rows
            ]


def _locked(connection: Connection, partition_ids: Collection[int], condition: ColumnElement[bool]) -> list[int]:
    """Those of the leases that meet the condition, locked until the transaction ends.

    Locked in the order of row ids, so overlapping calls never deadlock."""
    columns, locked = schema.leases.c, list[int]()
    for some in chunks(sorted(partition_ids)):
        chosen = select(columns.partition_id).where(columns.partition_id.in_(some) & condition)
        locked += connection.scalars(chosen.order_by(columns.partition_id).with_for_update()).all()
    return locked


def _kept(connection: Connection, partition_ids: Sequence[int], *, skip_locked: bool = False) -> set[int]:
    """Those of the partitions that exist until the end of the transaction, so that rows may point at them.

    Waits for a drop under way. `skip_locked`: does not wait, for callers with a lease locked that the drop waits for."""
    columns, kept = schema.partitions.c, set[int]()
    for some in chunks(sorted(partition_ids)):
        chosen = select(columns.partition_id).where(columns.partition_id.in_(some)).order_by(columns.partition_id)
        kept |= set(connection.scalars(chosen.with_for_update(read=True, key_share=True, skip_locked=skip_locked)))
    return kept


def _set_back(connection: Connection, partition_id: int, now_ms: int, wait_ms: int) -> None:
    table = schema.setbacks
    of_partition = table.c.partition_id == partition_id
    failures = connection.execute(select(table.c.failures).where(of_partition)).scalar_one_or_none() or 0
    until_ms = now_ms + min(wait_ms << min(failures, 30), WAIT_MS_MAX)
    connection.execute(delete(table).where(of_partition))
    row = {"partition_id": partition_id, "failures": failures + 1, "not_before_ms": until_ms}
    connection.execute(insert(table).values(**row))


class _Job(NamedTuple):
    partition_id: int
    worker: str
    started_ms: int
    finished_ms: int


def _remember(connection: Connection, job: _Job, outcome: str, details: Mapping[str, object]) -> None:
    """Also forgets old jobs: each partition keeps its last ones, and none of these for ever."""
    table = schema.history
    job_ids = select(table.c.job_id).where(table.c.partition_id == job.partition_id)
    newest = job_ids.order_by(table.c.finished_ms.desc(), table.c.job_id).limit(HISTORY_JOBS_MAX - 1)
    forgotten = table.c.job_id.not_in(newest) | (table.c.finished_ms < job.finished_ms - HISTORY_MS_MAX)
    connection.execute(delete(table).where(table.c.partition_id == job.partition_id, forgotten))
    row = {**job._asdict(), "job_id": str(uuid.uuid4()), "outcome": outcome, "details": json.dumps(dict(details))}
    connection.execute(insert(table).values(**row))


def _fulfil(connection: Connection, partition_id: int, started_ms: int) -> None:
    columns = schema.requests.c
    older = (columns.partition_id == partition_id) & (columns.requested_ms <= started_ms)
    connection.execute(delete(schema.requests).where(older))
    connection.execute(delete(schema.setbacks).where(schema.setbacks.c.partition_id == partition_id))
