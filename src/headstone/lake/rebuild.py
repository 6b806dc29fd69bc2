"""The metastore from the store alone, after it was lost or set back in time: the journal read from its beginning.

A partition is what its last commit that reached the store has made of it: commits that were never made are not in the journal,
however much of them was uploaded, so nothing can be revived by them and nothing lost to them. Objects that no partition points
at stay for a new time of grace, and those that the journal needs and the store lacks are told. What the journal does not know
is lost with the metastore: holds, requests, leases, history, the past before the rebuild; a metastore that was only set back
keeps what it has of these. Erasures come back with their deadlines, and those that are not done begin again: which objects were
left, and when, is not known any more. One transaction: it is rebuilt, or as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from headstone.errors import UsageError
from headstone.lake import catalog, schema
from headstone.lake.changes import COMMITTED, UNREFERENCED, Locked, forget_past, write
from headstone.lake.clock import GIVEN
from headstone.lake.commits import EMPTY, Extent, Partition, TombstoneRange
from headstone.lake.database import connected
from headstone.lake.erasures import ERASED, REQUESTED
from headstone.lake.journal import Entry, SetBack, extent_of_entry, read_all, record
from headstone.lake.lake import LAKE_ID_BYTES, MARKER, Lake, joined
from headstone.lake.leader_epochs import Epochs
from headstone.lake.metastore import Metastore
from headstone.lake.rows import chunks, loaded_all, located, located_all, places, topic_settings, totals_of_row
from headstone.lake.spans import Span
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import ROWS, Board, Meter, ProgressLine, meter_on
from headstone.storage.redaction import address
from headstone.storage.stores import MissingObject, Store

Tell = Callable[[str], None]


@dataclass(slots=True)
class _Log:
    """A partition while the journal is read. `extents` by the start of their span."""

    state: Partition = EMPTY
    extents: dict[int, Extent] = field(default_factory=dict)
    moment_ms: int = 0

    def partition(self) -> Partition:
        ordered = tuple(self.extents[start] for start in sorted(self.extents))
        return Partition(
            start_offset=self.state.start_offset, next_offset=self.state.next_offset,
            compaction_epoch=self.state.compaction_epoch, extents=ordered, cleaned=self.state.cleaned,
            tombstones=self.state.tombstones,
        )  # fmt: skip


@dataclass(slots=True)
class Replayed:
    """What all commits that the store was told of come to."""

    number: int = 0
    objects: int = 0
    """Of the journal, that were read."""
    changes: int = 0
    topics: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """Of each topic that ever was, the number of the entry that tells of it last; it may have been made again."""
    logs: dict[TopicPartition, _Log] = field(default_factory=dict)
    """Of partitions that had a commit. The others are empty."""
    epochs: dict[TopicPartition, Epochs] = field(default_factory=dict)
    erasures: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """By topic and digest of the key."""

    @property
    def newest_ms(self) -> int:
        return max((log.moment_ms for log in self.logs.values()), default=0)

    def apply(self, entry: Entry) -> None:
        change = entry.change
        self.changes += 1
        if "partition" in change:
            self._commit(self.logs.setdefault(TopicPartition(*change["partition"]), _Log()), change)
        elif "epochs" in change:
            self.epochs[TopicPartition(*change["epochs"])] = tuple((epoch, start) for epoch, start in change["starts"])
        elif "erasure" in change:
            topic, key_digest = change["erasure"]
            self.erasures[topic, key_digest] = change
        elif change.get("dropped"):
            self._drop(change["topic"])
        else:
            self.topics[change["topic"]] = change

    def _drop(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self.dropped[topic] = self.number
        self.logs = {partition: log for partition, log in self.logs.items() if partition.topic != topic}
        self.epochs = {partition: epochs for partition, epochs in self.epochs.items() if partition.topic != topic}

    def _commit(self, log: _Log, change: Mapping[str, Any]) -> None:
        for start in change["gone"]:
            log.extents.pop(start, None)
        for fields in change["new"]:
            extent = extent_of_entry(fields)
            log.extents[extent.span.start] = extent
        before = log.state
        log.moment_ms = change["moment_ms"]
        log.state = Partition(
            start_offset=change["start"], next_offset=change["next"], compaction_epoch=change["epoch"], extents=(),
            cleaned=tuple(Span(*span) for span in change["cleaned"]) if "cleaned" in change else before.cleaned,
            tombstones=tuple(
                TombstoneRange(span=Span(start, end), cleaned_at_ms=moment_ms) for start, end, moment_ms in change["tombstones"]
            )
            if "tombstones" in change
            else before.tombstones,
        )  # fmt: skip


def replayed(store: Store, board: Board | None = None) -> Replayed:
    result = Replayed()
    for number, entries in read_all(store, board):
        result.number = number
        result.objects += 1
        for entry in entries:
            result.apply(entry)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    topics: int
    partitions: int
    extents: int
    changes: int
    """That the journal tells of."""
    changed: tuple[str, ...]
    """Partitions that the metastore had otherwise, or not at all."""
    erasures: int
    """Keys that are still to be erased; each begins again, with the deadline that it had."""
    unused: tuple[str, ...]
    """Objects that nobody points at, from now on for the time of grace."""
    missing: tuple[str, ...]
    """Objects that are needed, and not in the store."""


def open_for_rebuild(metastore_url: str, location: str | None, *, settings: Mapping[str, str] | None = None) -> Lake:
    """The metastore as it is, or a new one, empty, for the lake whose objects are at `location`."""
    metastore = _metastore_if_any(metastore_url)
    where = location or (metastore.location if metastore is not None else None)
    if where is None:
        raise UsageError(
            f"{address(metastore_url)} holds no lake; say with --objects where the objects of the lost one are"
        )
    store = Store.open(where, settings)
    try:
        marker = store.read(MARKER, 0, store.size(MARKER)).decode()
    except MissingObject as error:
        raise UsageError(f"{store.url} holds no lake: {MARKER} is missing there") from error
    lake_id, facts = marker[:LAKE_ID_BYTES], json.loads(marker[LAKE_ID_BYTES:])
    if metastore is None:
        now_ms = max(replayed(store).newest_ms, 0) if facts["clock"] == GIVEN else None
        metastore = Metastore.create(
            metastore_url, location=where, now_ms=now_ms, lake_id=lake_id, hash_key=facts["hash_key"]
        )
    elif metastore.lake_id != lake_id:
        raise UsageError(f"{store.url} belongs to lake {lake_id}, the metastore to lake {metastore.lake_id}")
    return joined(metastore, store)


def _metastore_if_any(url: str) -> Metastore | None:
    with Metastore(connected(url)).any_version() as connection:
        there = schema.exists(connection)
    return Metastore.open(url) if there else None


def rebuild(lake: Lake, *, progress: bool = False, tell: Tell = lambda text: None) -> Rebuilt:
    """Nobody else may work on the lake meanwhile; a commit that comes between is not in the journal, and gone."""
    # A commit that the store has not heard of yet is a commit. Of a metastore that was set back it is another history's.
    with suppress(SetBack):
        record(lake.metastore, lake.store)
    with ProgressLine(enabled=progress) as line:
        after = replayed(lake.store, line.board)
    tell(f"{after.changes:,} changes in {after.objects:,} objects of the journal")
    sizes = {entry.path.rpartition("/")[2]: entry.size for entry in lake.store.entries("objects")}
    needed = _needed(after)
    extents = sum(len(log.extents) for log in after.logs.values())
    with ProgressLine(enabled=progress, unit=ROWS) as line, lake.metastore.transaction() as connection:
        meter = meter_on(line.board)
        line.expect(len(sizes.keys() | needed.keys()) + extents + len(after.erasures))
        if after.newest_ms > lake.metastore.moment(connection):
            connection.execute(update(schema.lakes).values(clock_ms=after.newest_ms))
        now_ms = lake.metastore.moment(connection)
        _write_topics(connection, after)
        _write_objects(connection, sizes, needed, now_ms, meter)
        changed = _write_partitions(connection, after, now_ms, meter)
        erasures = _write_erasures(connection, after, now_ms, meter)
        _forget_missing(connection, sizes.keys() | needed.keys())
        catalog.requeue(connection)
        connection.execute(delete(schema.journal))
        connection.execute(update(schema.lakes).values(journal_number=after.number))
    return Rebuilt(
        topics=len(after.topics), partitions=len(after.logs), changes=after.changes, changed=tuple(changed),
        extents=extents, erasures=erasures,
        unused=tuple(sorted(sizes.keys() - needed.keys())),
        missing=tuple(sorted(one for one, size in needed.items() if sizes.get(one, -1) < size)),
    )  # fmt: skip


def _needed(after: Replayed) -> dict[str, int]:
    """The objects that extents point at, and how long each must be at least."""
    needed: dict[str, int] = {}
    for partition, log in after.logs.items():
        for extent in log.extents.values():
            for object_id, place in places(partition, extent):
                needed[object_id] = max(needed.get(object_id, 0), place.end)
    return needed


def _write_topics(connection: Connection, after: Replayed) -> None:
    rows = {row.name: row for row in connection.execute(select(schema.topics))}
    number = connection.execute(select(schema.lakes.c.journal_number)).scalar_one()
    kept = {topic for topic, row in rows.items() if _is_the_same(row, after, number)}
    for topic in sorted(rows.keys() - kept):
        catalog.forget_topic(connection, topic)
    for topic, facts in after.topics.items():
        if topic in kept:
            catalog.forget_partitions(connection, topic, facts["partitions"])
            catalog.add_partitions(connection, topic, facts["partitions"])
            values = {"settings": json.dumps(facts["settings"]), "kafka_id": facts["kafka_id"]}
            connection.execute(update(schema.topics).where(schema.topics.c.name == topic).values(**values))
        else:
            catalog.create_topic(connection, topic, facts["partitions"], facts["settings"], facts["kafka_id"])


def _is_the_same(row: Any, after: Replayed, number: int) -> bool:
    """Whether a topic of the metastore is the journal's of that name, and not one that was dropped behind `number`, the last
    entry that the metastore knows of, or in what a base has folded: then nothing but its id in Kafka may tell."""
    facts = after.topics.get(row.name)
    if facts is None or after.dropped.get(row.name, 0) > number:
        return False
    return row.kafka_id is None or facts["kafka_id"] is None or row.kafka_id == facts["kafka_id"]


def _write_objects(
    connection: Connection, sizes: Mapping[str, int], needed: Mapping[str, int], now_ms: int, meter: Meter
) -> None:
    """What is in the store, or should be. Grace counts from now on: whoever reads by an older metastore may need them."""
    table = schema.objects
    present = {row.object_id: row for row in connection.execute(select(table))}
    wanted = {
        object_id: {
            "object_id": object_id, "size": sizes.get(object_id, needed.get(object_id, 0)), "changed_ms": now_ms,
            "state": COMMITTED if object_id in needed else UNREFERENCED,
        }
        for object_id in sorted(sizes.keys() | needed.keys())
    }  # fmt: skip
    fresh = [row for object_id, row in wanted.items() if object_id not in present]
    for some in chunks(fresh):
        connection.execute(insert(table), some)
        meter.add(len(some), 0)
    for object_id, row in ((one, wanted[one]) for one in wanted if one in present):
        if present[object_id].state != row["state"]:
            connection.execute(update(table).where(table.c.object_id == object_id).values(**row))
        meter.add(1, 0)


def _write_partitions(connection: Connection, after: Replayed, now_ms: int, meter: Meter) -> list[str]:
    """Those that changed. Their past is another's, or nobody's: it is told from now on.

    Every one that there is: what the metastore has in one of which the journal tells no commit was never told to the store."""
    changed = []
    table = schema.partitions
    for partition in sorted(located_all(connection, None)):
        partition_id, row = located(connection, partition, lock=True)
        before, wanted = loaded_all(connection, [row])[partition_id], after.logs.get(partition, _Log()).partition()
        if before != wanted:
            locked = Locked(
                topic_partition=partition, partition_id=partition_id, before=before, totals=totals_of_row(row),
                settings=topic_settings(connection, [row.topic_id])[row.topic_id], moment_ms=max(now_ms, row.changed_ms),
            )  # fmt: skip
            write(connection, locked, wanted)
            values = {
                "known_from_ms": now_ms,
                "first_added_ms": _first_added_ms(row.first_added_ms, wanted, now_ms),
            }
            connection.execute(update(table).where(table.c.partition_id == partition_id).values(**values))
            changed.append(str(partition))
        _write_epochs(connection, partition_id, after.epochs.get(partition, ()))
        meter.add(len(wanted.extents), 0)
    return changed


def _first_added_ms(known_ms: int, partition: Partition, now_ms: int) -> int:
    if partition == EMPTY:
        return -1
    return now_ms if known_ms < 0 else known_ms


def _write_epochs(connection: Connection, partition_id: int, epochs: Epochs) -> None:
    table = schema.leader_epochs
    connection.execute(delete(table).where(table.c.partition_id == partition_id))
    rows = [{"partition_id": partition_id, "epoch": epoch, "start_offset": start} for epoch, start in epochs]
    if rows:
        connection.execute(insert(table), rows)


def _write_erasures(connection: Connection, after: Replayed, now_ms: int, meter: Meter) -> int:
    """How many are not done. An object that nobody points at may hold such a key since before: its age begins anew, so the
    steps of the erasure do, too."""
    table = schema.erasures
    for (topic, key_digest), change in sorted(after.erasures.items()):
        values = {name: change[name] for name in ("requested_ms", "deadline_ms", "step", "step_ms")}
        connection.execute(delete(table).where(table.c.topic == topic, table.c.key_digest == key_digest))
        row = {"topic": topic, "key_digest": key_digest, "not_before_ms": 0, "waits_for": ""}
        connection.execute(insert(table).values(**row, **values))
        meter.add(1, 0)
    begun_again = {"step": REQUESTED, "step_ms": now_ms, "not_before_ms": 0, "waits_for": ""}
    return connection.execute(update(table).where(table.c.step != ERASED).values(**begun_again)).rowcount


def _forget_missing(connection: Connection, there: Iterable[str]) -> None:
    """Objects that were collected since the metastore's time: nobody points at them any more but the past."""
    table, kept = schema.objects, set(there)
    settled = select(table.c.object_id).where(table.c.state.in_([COMMITTED, UNREFERENCED]))
    gone = [object_id for object_id in connection.scalars(settled) if object_id not in kept]
    for some in chunks(gone):
        forget_past(connection, some)
        connection.execute(delete(table).where(table.c.object_id.in_(some)))
