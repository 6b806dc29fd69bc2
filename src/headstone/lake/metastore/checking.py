"""Checks every invariant over the whole metastore: logs are whole, objects exist and are not shared, rows count what their
extents come to, and the queue overlooks nothing.

Reads all extents, in one snapshot of the metastore's. Describes in words what is wrong and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from headstone.lake.format.objects import NamedBytes, places
from headstone.lake.format.spans import touching
from headstone.lake.metastore import commits, schema
from headstone.lake.metastore.commits import Partition
from headstone.lake.metastore.object_states import COMMITTED, ObjectRow, object_rows
from headstone.lake.metastore.rows import by_partition, chunks, loaded_all, located_all, topic_settings, totals_of_row
from headstone.lake.metastore.scheduling import dirty_spans, queue_keys
from headstone.lake.metastore.totals import totals_of
from headstone.pipeline.progress import Board, meter_on


def violations(connection: Connection, board: Board | None = None) -> list[str]:
    faults: list[str] = []
    objects, used = object_rows(connection), dict[str, list[NamedBytes]]()
    rows = located_all(connection, None)
    settings = topic_settings(connection, {row.topic_id for row in rows.values()})
    meter = meter_on(board)
    if board is not None:
        board.expect(sum(totals_of_row(row).extents for row in rows.values()))
    for some in chunks(sorted(rows.items())):
        loaded = loaded_all(connection, [row for _, row in some])
        flagged = _flagged(connection, list(loaded))
        for topic_partition, row in some:
            partition = loaded[row.partition_id]
            wrong = commits.violations(partition) + _miscounted(row, partition, settings[row.topic_id])
            wrong += _misflagged(partition, flagged.get(row.partition_id, set()))
            faults += [f"{topic_partition}: {text}" for text in wrong]
            for extent in partition.extents:
                for object_id, place in places(topic_partition, extent):
                    used.setdefault(object_id, []).append(place)
            meter.add(len(partition.extents), 0)
    for object_id, taken in sorted(used.items()):
        faults += _object_violations(object_id, objects.get(object_id), sorted(taken))
    idle = [row for row in objects.values() if row.state == COMMITTED and row.object_id not in used]
    return faults + [f"object {row.object_id} is committed, but no extent points at it" for row in idle]


def _miscounted(row: Any, partition: Partition, settings: Mapping[str, object]) -> list[str]:
    counted, on_row = totals_of(partition.extents, dirty_spans(partition)), totals_of_row(row)
    wanted = asdict(queue_keys(partition, counted, settings))
    queued = {name: getattr(row, name) for name in wanted}
    faults = [f"its row counts {on_row}, its extents come to {counted}"] if on_row != counted else []
    return faults + ([f"the queue knows {queued} of it, and should know {wanted}"] if queued != wanted else [])


def _flagged(connection: Connection, ids: Sequence[int]) -> dict[int, set[int]]:
    rows = by_partition(connection, schema.extents, ids)
    return {
        partition_id: {extent.span_start for extent in extents if extent.dirty}
        for partition_id, extents in rows.items()
    }


def _misflagged(partition: Partition, flagged: set[int]) -> list[str]:
    dirty = dirty_spans(partition)
    wrong = [
        extent.span
        for extent in partition.extents
        if bool(touching(dirty, extent.span)) != (extent.span.start in flagged)
    ]
    return [f"extent {span} is said to be {'dirty' if span.start in flagged else 'clean'}" for span in wrong]


def _object_violations(object_id: str, row: ObjectRow | None, places: Sequence[NamedBytes]) -> list[str]:
    if row is None:
        return [f"{places[0].what}: its object {object_id} is unknown"]
    violations = [] if row.state == COMMITTED else [f"{places[0].what}: its object {object_id} is {row.state}"]
    for before, after in pairwise(places):
        if before.end > after.start:
            violations.append(f"{before.what} and {after.what} share bytes of object {object_id}")
    if places[-1].end > row.size:
        violations.append(f"{places[-1].what} ends behind its object {object_id} of {row.size} bytes")
    return violations
