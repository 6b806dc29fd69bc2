"""The journal, folded: what its entries up to a number come to, written anew, so that it grows with the lake and not with time.

The metastore itself is what all entries come to. It is read page by page while others commit: what they change meanwhile is
told by entries behind the number, and each of those says of an extent, a range or a topic how it is and not how it differs,
so that it may come twice. All that has waited is written before the base appears: whoever reads a base has the entries behind
it. A base is whole or not there; only then what it stands for is deleted, so that a run which is killed anywhere leaves a
journal that tells the same. Of two who fold at once the higher number counts, and both are right.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select

from headstone.lake import schema
from headstone.lake.commits import Extent
from headstone.lake.journal import (
    BASE_PARTS,
    BASES,
    FOLDER,
    Entry,
    base_number,
    base_of,
    commit_change,
    content_of,
    epochs_change,
    erasure_change,
    expect_current,
    numbered,
    record,
    topic_change,
)
from headstone.lake.lake import Lake
from headstone.lake.rows import extent_of, loaded, located_all
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.engine import Stop, never
from headstone.pipeline.progress import Board, meter_on

OBJECTS_MIN = 1000
"""Of the journal, before it is worth the trouble."""
EXTENTS_PER_OBJECT = 100
"""Reading the lake's extents is paid for by so many of them for each object that is folded."""
EXTENTS_PER_PAGE = 1000
ENTRIES_PER_PART = 1000
"""Or as many extents."""

Change = Mapping[str, Any]


def is_worth_folding(lake: Lake) -> bool:
    """A lookup of the number, a listing of the bases, a sum over the partitions' rows."""
    with lake.metastore.transaction(snapshot=True) as connection:
        number = connection.execute(select(schema.lakes.c.journal_number)).scalar_one()
        if number < OBJECTS_MIN:
            return False
        extents = connection.execute(select(func.coalesce(func.sum(schema.partitions.c.extents), 0))).scalar_one()
    return bool(number - base_number(lake.store) >= max(OBJECTS_MIN, int(extents) // EXTENTS_PER_OBJECT))


def fold(lake: Lake, board: Board | None = None, *, stop: Stop = never) -> int:
    """The number up to which the journal is one base now; 0 if there is nothing to fold, or if somebody said stop.

    A metastore that was set back in time is refused: it is not what the entries come to. The board counts extents.
    `stop`: asked before each part of the base; those that were written are deleted, and the journal is as it was."""
    metastore, store = lake.metastore, lake.store
    expect_current(metastore, store)
    with metastore.transaction() as connection:
        number = int(connection.execute(select(schema.lakes.c.journal_number)).scalar_one())
        extents = connection.execute(select(func.coalesce(func.sum(schema.partitions.c.extents), 0))).scalar_one()
    if number <= base_number(store):
        return 0
    if board is not None:
        board.expect(int(extents))
    meter = meter_on(board)
    folder = f"{BASE_PARTS}/{number:020d}-{secrets.token_hex(4)}"
    parts = list[str]()
    for i, entries in enumerate(_parts(_changes(lake))):
        if stop():
            store.delete(parts)
            return 0
        parts.append(f"{folder}/{i:08d}")
        store.put(parts[-1], content_of(entries))
        meter.add(sum(len(entry.change.get("new", ())) for entry in entries), 0)
    record(metastore, store)
    if store.put(base_of(number), json.dumps({"parts": parts}).encode(), create=True):
        forget_folded(lake, number)
    return number


def forget_folded(lake: Lake, number: int) -> None:
    """What nobody reads any more beside the base of this number: older bases first, then what they and it stand for."""
    store = lake.store
    store.delete([path for path in store.list(BASES) if numbered(path) < number])
    store.delete([path for path in store.list(BASE_PARTS) if int(path.split("/")[1].partition("-")[0]) < number])
    store.delete([path for path in store.list(FOLDER) if numbered(path) <= number])


def _parts(changes: Iterator[Change]) -> Iterator[list[Entry]]:
    entries: list[Entry] = []
    weight = 0
    for change in changes:
        entries.append(Entry(token="", change=change))
        weight += 1 + len(change.get("new", ()))
        if weight >= ENTRIES_PER_PART:
            yield entries
            entries, weight = [], 0
    if entries:
        yield entries


def _changes(lake: Lake) -> Iterator[Change]:
    """Topics first: partitions are theirs."""
    with lake.metastore.transaction(snapshot=True) as connection:
        names = list(connection.scalars(select(schema.topics.c.name).order_by(schema.topics.c.name)))
        topics = [topic_change(connection, name) for name in names]
        partitions = located_all(connection, None)
        erasures = [erasure_change(row) for row in connection.execute(select(schema.erasures))]
        epochs = connection.execute(select(schema.leader_epochs).order_by(schema.leader_epochs.c.epoch)).all()
    yield from topics
    yield from erasures
    starts: dict[int, list[tuple[int, int]]] = {}
    for row in epochs:
        starts.setdefault(row.partition_id, []).append((row.epoch, row.start_offset))
    for topic_partition, row in partitions.items():
        if row.partition_id in starts:
            yield epochs_change(topic_partition, starts[row.partition_id])
        if row.next_offset:
            yield from _pages(lake, topic_partition, row)


def _pages(lake: Lake, topic_partition: TopicPartition, row: Any) -> Iterator[Change]:
    """A partition as it is at the first page, with the extents of each page as they are then."""
    columns, after = schema.extents.c, -1
    own = select(schema.extents).where(columns.partition_id == row.partition_id).order_by(columns.span_start)
    with lake.metastore.transaction(snapshot=True) as connection:
        state = loaded(connection, row.partition_id, row)
    ranges = True
    while True:
        with lake.metastore.transaction(snapshot=True) as connection:
            rows = connection.execute(own.where(columns.span_start > after).limit(EXTENTS_PER_PAGE)).all()
        extents: list[Extent] = [extent_of(each) for each in rows]
        if extents or ranges:
            yield commit_change(topic_partition, state, gone=(), new=extents, ranges=ranges, moment_ms=row.changed_ms)
        if len(extents) < EXTENTS_PER_PAGE:
            return
        after, ranges = extents[-1].span.start, False
