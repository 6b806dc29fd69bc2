"""The result of all journal entries: read from the journal and written as rows; or taken from the rows, to be folded.

A partition is what its last commit in the store has made of it. Written in one transaction: the metastore is as the journal
says, or unchanged. `rebuild` decides which metastore this may be done to, and reports it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from headstone.lake.format.extents import Extent
from headstone.lake.format.objects import places
from headstone.lake.format.spans import Span
from headstone.lake.metastore import catalog, schema
from headstone.lake.metastore.changes import Locked, write
from headstone.lake.metastore.commits import EMPTY, Partition, TombstoneRange
from headstone.lake.metastore.erasure_steps import CLOSED, REQUESTED, TOPIC_DROPPED
from headstone.lake.metastore.journal import (
    NO_ENTRY,
    JournalEnd,
    JournalEntry,
    extent_of_entry,
    known_end,
    read_all,
    told_end,
)
from headstone.lake.metastore.journal_names import ENDS
from headstone.lake.metastore.leader_epochs import Epochs
from headstone.lake.metastore.locations import kept_location
from headstone.lake.metastore.losses import Loss, loss_change, loss_of, losses, write_loss
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.metastore.notes import commit_change, epochs_change, erasure_change, topic_change
from headstone.lake.metastore.object_states import COMMITTED, UNREFERENCED, forget_past
from headstone.lake.metastore.rows import (
    chunks,
    extent_of,
    loaded,
    loaded_all,
    located,
    located_all,
    topic_settings,
    totals_of_row,
)
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board, Meter
from headstone.storage.stores import Store

EXTENTS_PER_PAGE = 1000


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
    """The result of all commits that the store was told of."""

    end: JournalEnd = NO_ENTRY
    doubt: str = ""
    """Why there may have been commits after the last one told; empty if there were none."""
    objects: int = 0
    """Number of the journal's objects that were read."""
    changes: int = 0
    topics: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """For each topic ever dropped, the number of its last drop's entry; it may have been created again."""
    logs: dict[TopicPartition, _Log] = field(default_factory=dict)
    """For partitions that had a commit. The others are empty."""
    epochs: dict[TopicPartition, Epochs] = field(default_factory=dict)
    losses: dict[Loss, None] = field(default_factory=dict)
    """In order, each once: a base and an entry may report the same."""
    erasures: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """By topic and digest of the key."""

    @property
    def newest_ms(self) -> int:
        return max((log.moment_ms for log in self.logs.values()), default=0)

    def apply(self, entry: JournalEntry) -> None:
        change = entry.change
        self.changes += 1
        if "partition" in change:
            self._commit(self.logs.setdefault(TopicPartition(*change["partition"]), _Log()), change)
        elif "epochs" in change:
            self.epochs[TopicPartition(*change["epochs"])] = tuple((epoch, start) for epoch, start in change["starts"])
        elif "lost" in change:
            self.losses[loss_of(change)] = None
        elif "erasure" in change:
            topic, key_digest = change["erasure"]
            self.erasures[topic, key_digest] = change
        elif "adopted" in change:  # for processes that had opened the lake before (`identity`)
            return
        elif change.get("dropped"):
            self._drop(change["topic"])
        else:
            self.topics[change["topic"]] = change

    def _drop(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self.dropped[topic] = self.end.number
        self.logs = {partition: log for partition, log in self.logs.items() if partition.topic != topic}
        self.epochs = {partition: epochs for partition, epochs in self.epochs.items() if partition.topic != topic}
        self.losses = {loss: None for loss in self.losses if loss.partition.topic != topic}

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


def replayed(store: Store, lake_id: str, board: Board | None = None) -> Replayed:
    """Reads the whole journal and returns its result; writes nothing."""
    result = Replayed()
    for end, entries in read_all(store, lake_id, board):
        result.end = end
        result.objects += 1
        for entry in entries:
            result.apply(entry)
    newest = told_end(store, lake_id, last=result.end.number)
    # Nobody writes a number before the one below it is told, so at most one more may be there than is told.
    if newest is None or newest.number < result.end.number - 1:
        result.doubt = (
            f"the journal ends at number {result.end.number}, and {ENDS} says "
            f"{'nothing' if newest is None else newest.number}: nothing tells that there was no number {result.end.number + 1}"
        )
    return result


def needed_objects(after: Replayed) -> dict[str, int]:
    """The objects that extents point at, and the minimum length of each."""
    needed: dict[str, int] = {}
    for partition, log in after.logs.items():
        for extent in log.extents.values():
            for object_id, place in places(partition, extent):
                needed[object_id] = max(needed.get(object_id, 0), place.end)
    return needed


def write_replayed(
    metastore: Metastore,
    after: Replayed,
    sizes: Mapping[str, int],
    needed: Mapping[str, int],
    location: str,
    meter: Meter,
) -> tuple[list[str], int]:
    """Returns the changed partitions, and how many erasures are not done. `sizes`: of objects in the store at `location`."""
    location_before = metastore.location
    with metastore.transaction() as connection:
        if location != location_before:
            connection.execute(update(schema.lakes).values(location=kept_location(location, metastore.file)))
        if after.newest_ms > metastore.moment(connection):
            connection.execute(update(schema.lakes).values(clock_ms=after.newest_ms))
        now_ms = metastore.moment(connection)
        _write_topics(connection, after)
        _write_objects(connection, sizes, needed, now_ms, meter)
        changed = _write_partitions(connection, after, now_ms, meter)
        _write_losses(connection, after)
        erasures = _write_erasures(connection, after, now_ms, meter)
        _forget_missing(connection, sizes.keys() | needed.keys())
        catalog.requeue(connection)
        connection.execute(delete(schema.journal))
        number, digest = after.end
        connection.execute(update(schema.lakes).values(journal_number=number, journal_digest=digest))
    return changed, erasures


def _write_topics(connection: Connection, after: Replayed) -> None:
    rows = {row.name: row for row in connection.execute(select(schema.topics))}
    number = known_end(connection).number
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
    """Whether a topic of the metastore is the journal's topic of that name. Not if that was dropped after `number`, the last
    entry that the metastore knows. If a base has folded the drop, only the id in Kafka can tell, and it may be unknown."""
    facts = after.topics.get(row.name)
    if facts is None or after.dropped.get(row.name, 0) > number:
        return False
    return row.kafka_id is None or facts["kafka_id"] is None or row.kafka_id == facts["kafka_id"]


def _write_objects(
    connection: Connection, sizes: Mapping[str, int], needed: Mapping[str, int], now_ms: int, meter: Meter
) -> None:
    """Objects that are, or should be, in the store. Grace starts now: readers with an older metastore may need them."""
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
    """Returns those that changed. Their past is another history's, or unknown: it is recorded from now on.

    Goes over all partitions. If the journal has no commit of one, what the metastore has in it was never told to the store."""
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


def _write_losses(connection: Connection, after: Replayed) -> None:
    connection.execute(delete(schema.losses))
    for loss in after.losses:
        write_loss(connection, located(connection, loss.partition, lock=False)[0], loss)


def _write_erasures(connection: Connection, after: Replayed, now_ms: int, meter: Meter) -> int:
    """Returns how many are not done. An unreferenced object may still hold such a key, and its age begins anew. So the steps of
    the erasure begin anew, too."""
    table = schema.erasures
    for (topic, key_digest), change in sorted(after.erasures.items()):
        values = {name: change[name] for name in ("requested_ms", "deadline_ms", "step", "step_ms", "seen")}
        connection.execute(delete(table).where(table.c.topic == topic, table.c.key_digest == key_digest))
        row = {"topic": topic, "key_digest": key_digest, "not_before_ms": 0, "waits_for": ""}
        connection.execute(insert(table).values(**row, **values))
        meter.add(1, 0)
    begun_again = {"step": REQUESTED, "step_ms": now_ms, "not_before_ms": 0, "waits_for": ""}
    return connection.execute(
        update(table).where(table.c.step.not_in((*CLOSED, TOPIC_DROPPED))).values(**begun_again)
    ).rowcount


def _forget_missing(connection: Connection, there: Iterable[str]) -> None:
    """Objects collected after the metastore's time: only the past still points at them."""
    table, kept = schema.objects, set(there)
    settled = select(table.c.object_id).where(table.c.state.in_([COMMITTED, UNREFERENCED]))
    gone = [object_id for object_id in connection.scalars(settled) if object_id not in kept]
    for some in chunks(gone):
        forget_past(connection, some)
        connection.execute(delete(table).where(table.c.object_id.in_(some)))


def changes_so_far(metastore: Metastore) -> Iterator[Mapping[str, Any]]:
    """The result of all changes, from the metastore as it is. Topics first, because partitions belong to them."""
    with metastore.transaction(snapshot=True) as connection:
        names = list(connection.scalars(select(schema.topics.c.name).order_by(schema.topics.c.name)))
        topics = [topic_change(connection, name) for name in names]
        partitions = located_all(connection, None)
        erasures = [erasure_change(row) for row in connection.execute(select(schema.erasures))]
        epochs = connection.execute(select(schema.leader_epochs).order_by(schema.leader_epochs.c.epoch)).all()
        lost = [loss_change(loss) for loss in losses(connection)]
    yield from topics
    yield from lost
    yield from erasures
    starts: dict[int, list[tuple[int, int]]] = {}
    for row in epochs:
        starts.setdefault(row.partition_id, []).append((row.epoch, row.start_offset))
    for topic_partition, row in partitions.items():
        if row.partition_id in starts:
            yield epochs_change(topic_partition, starts[row.partition_id])
        if row.next_offset:
            yield from _pages(metastore, topic_partition, row)


def _pages(metastore: Metastore, topic_partition: TopicPartition, row: Any) -> Iterator[Mapping[str, Any]]:
    """A partition as it is at the first page, with the extents of each page as they are when it is read."""
    columns, after = schema.extents.c, -1
    own = select(schema.extents).where(columns.partition_id == row.partition_id).order_by(columns.span_start)
    with metastore.transaction(snapshot=True) as connection:
        state = loaded(connection, row)
    ranges = True
    while True:
        with metastore.transaction(snapshot=True) as connection:
            rows = connection.execute(own.where(columns.span_start > after).limit(EXTENTS_PER_PAGE)).all()
        extents: list[Extent] = [extent_of(each) for each in rows]
        if extents or ranges:
            yield commit_change(topic_partition, state, gone=(), new=extents, ranges=ranges, moment_ms=row.changed_ms)
        if len(extents) < EXTENTS_PER_PAGE:
            return
        after, ranges = extents[-1].span.start, False
